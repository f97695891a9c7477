//! The structures of every version against what NCCL's headers say.

use std::any::type_name;
use std::mem::offset_of;

use nccl_net_netsum::interface::*;

/// What NCCL's headers say.
const HEADERS: &str = include_str!("layouts.txt");

/// A structure as the lines of `layouts.txt`.
macro_rules! lines {
    ($rust:ident = $($c:literal),+: $($field:ident $name:literal),+) => {
        {
            let fields = [$(($name, offset_of!($rust, $field), type_of(|it: &$rust| &it.$field))),+];
            let structures = [$($c),+].into_iter();
            structures.flat_map(move |c| {
                let of = |(name, offset, kind)| line(c, name, offset, kind);
                let size = format!("{c} - {}", size_of::<$rust>());
                std::iter::once(size).chain(fields.map(of)).collect::<Vec<_>>()
            })
        }
    };
}

fn type_of<S, F>(_: fn(&S) -> &F) -> &'static str {
    type_name::<F>()
}

fn line(structure: &str, field: &str, offset: usize, kind: &str) -> String {
    let parameters = parameters(kind).map(|kinds| format!(" {}", kinds.join(",")));
    format!("{structure} {field} {offset}{}", parameters.unwrap_or_default())
}

/// The parameters of a function's type as words of `layouts.txt`; none if it is no function.
fn parameters(kind: &str) -> Option<Vec<&'static str>> {
    let (_, rest) = kind.split_once("fn(")?;
    let (mut depth, mut parameters) = (0, vec![String::new()]);
    for letter in rest.chars() {
        match letter {
            ')' if depth == 0 => break,
            ',' if depth == 0 => parameters.push(String::new()),
            _ => parameters.last_mut().unwrap().push(letter),
        }
        depth += i32::from("(<".contains(letter)) - i32::from(")>".contains(letter));
        // The arrow of a function's result.
        depth += i32::from(letter == '>' && parameters.last().unwrap().ends_with("->"));
    }
    let word = |kind: &String| match kind.trim() {
        "i32" => "int",
        "usize" | "u64" => "word",
        kind if kind.starts_with("*mut ")
            || kind.starts_with("*const ")
            || kind.contains("fn(") =>
        {
            "word"
        }
        other => panic!("{other} is not in layouts.txt"),
    };
    Some(parameters.iter().map(word).collect())
}

macro_rules! collnet_lines {
    ($rust:ident = $($c:literal),+ $(; $field:ident $name:literal)*) => {
        lines!($rust = $($c),+: name "name", init "init", devices "devices", get_properties "getProperties",
            listen "listen", connect "connect", reduce_support "reduceSupport", reg_mr "regMr",
            reg_mr_dma_buf "regMrDmaBuf", dereg_mr "deregMr", iallreduce "iallreduce", iallgather "iallgather",
            ireducescatter "ireducescatter", iflush "iflush", test "test", close_coll "closeColl",
            close_listen "closeListen" $(, $field $name)*)
    };
}

macro_rules! net_lines {
    ($rust:ident = $($c:literal),+ $(; $field:ident $name:literal)*) => {
        lines!($rust = $($c),+: name "name", init "init", devices "devices", get_properties "getProperties",
            listen "listen", connect "connect", accept "accept", reg_mr "regMr", reg_mr_dma_buf "regMrDmaBuf",
            dereg_mr "deregMr", isend "isend", irecv "irecv", iflush "iflush", test "test", close_send "closeSend",
            close_recv "closeRecv", close_listen "closeListen", get_device_mr "getDeviceMr",
            irecv_consumed "irecvConsumed" $(, $field $name)*)
    };
}

macro_rules! properties_lines {
    ($rust:ident = $($c:literal),+ $(; $field:ident $name:literal)*) => {
        lines!($rust = $($c),+: name "name", pci_path "pciPath", guid "guid", ptr_support "ptrSupport",
            reg_is_global "regIsGlobal", speed "speed", port "port", latency "latency", max_comms "maxComms",
            max_recvs "maxRecvs", net_device_type "netDeviceType", net_device_version "netDeviceVersion"
            $(, $field $name)*)
    };
}

macro_rules! tuner_lines {
    ($rust:ident = $c:literal, $finalize:literal $(; $field:ident $name:literal)*) => {
        lines!($rust = $c: name "name", init "init", get_coll_info "getCollInfo", finalize $finalize
            $(, $field $name)*)
    };
}

macro_rules! profiler_lines {
    ($rust:ident = $($c:literal),+) => {
        lines!($rust = $($c),+: name "name", init "init", start_event "startEvent", stop_event "stopEvent",
            record_event_state "recordEventState", finalize "finalize")
    };
}

/// What is read of an event, with the members of its kinds behind what all kinds have.
fn event_lines(version: u32) -> Vec<String> {
    let name = format!("ncclProfilerEventDescr_v{version}_t");
    let base = offset_of!(Event, of);
    let mut lines = vec![
        line(&name, "type", offset_of!(Event, kind), "u64"),
        line(&name, "parentObj", offset_of!(Event, parent), "usize"),
        line(&name, "rank", offset_of!(Event, rank), "i32"),
    ];
    macro_rules! of {
        ($rust:ident: $($field:ident $member:literal),+) => {
            $(lines.push(line(&name, $member, base + offset_of!($rust, $field), ""));)+
        };
    }
    of!(ProfiledCollective: sequence "coll.seqNumber", function "coll.func", send "coll.sendBuff",
        receive "coll.recvBuff", count "coll.count", root "coll.root", datatype "coll.datatype",
        channels "coll.nChannels", warps "coll.nWarps", algorithm "coll.algo", protocol "coll.proto");
    of!(ProfiledMessage: function "p2p.func", memory "p2p.buff", datatype "p2p.datatype", count "p2p.count",
        peer "p2p.peer");
    lines
}

#[test]
fn structures_are_those_of_the_headers() {
    let mut ours: Vec<String> = Vec::new();
    ours.extend(properties_lines!(PropertiesV8 = "ncclNetProperties_v8_t"));
    ours.extend(properties_lines!(PropertiesV9 = "ncclNetProperties_v9_t", "ncclNetProperties_v10_t";
        force_flush "forceFlush"; v_props "vProps"; max_p2p_bytes "maxP2pBytes"; max_coll_bytes "maxCollBytes"));
    ours.extend(properties_lines!(PropertiesV11 = "ncclNetProperties_v11_t";
        force_flush "forceFlush"; v_props "vProps"; max_p2p_bytes "maxP2pBytes"; max_coll_bytes "maxCollBytes";
        max_multi_request_size "maxMultiRequestSize"));
    ours.extend(properties_lines!(PropertiesV12 = "ncclNetProperties_v12_t";
        force_flush "forceFlush"; v_props "vProps"; max_p2p_bytes "maxP2pBytes"; max_coll_bytes "maxCollBytes";
        max_multi_request_size "maxMultiRequestSize"; rail_id "railId"; plane_id "planeId"));
    ours.extend(lines!(VirtualDeviceV9 = "ncclNetVDeviceProps_v9_t", "ncclNetVDeviceProps_v10_t",
        "ncclNetVDeviceProps_v11_t": ndevs "ndevs", devs "devs"));
    ours.extend(lines!(VirtualDeviceV12 = "ncclNetVDeviceProps_v12_t": ndevs "ndevs", devs "devs"));
    ours.extend(lines!(CommConfig = "ncclNetCommConfig_v10_t", "ncclNetCommConfig_v11_t",
        "ncclNetCommConfig_v12_t": traffic_class "trafficClass"));
    ours.extend(lines!(CommAttributes = "ncclNetCommAttr_v11_t", "ncclNetCommAttr_v12_t":
        max_concurrent_peers "maxConcurrentPeers", min_concurrent_peers "minConcurrentPeers",
        max_flows_per_peer "maxFlowsPerPeer", min_flows_per_peer "minFlowsPerPeer"));
    ours.extend(lines!(NetAttributes = "ncclNetAttr_v11_t", "ncclNetAttr_v12_t":
        send_comm_attr "sendCommAttr", recv_comm_attr "recvCommAttr", op "op", algo "algo", proto "proto"));
    ours.extend(
        lines!(PartV8 = "ncclNetSGE_v8_t": mhandle "mhandle", address "address", size "size"),
    );
    ours.extend(lines!(PartV9 = "ncclNetSGE_v9_t", "ncclNetSGE_v10_t", "ncclNetSGE_v11_t", "ncclNetSGE_v12_t":
        mhandle "mhandle", address "address", size "size"));
    ours.extend(net_lines!(NetV8 = "ncclNet_v8_t"));
    ours.extend(net_lines!(NetV9 = "ncclNet_v9_t"; make_v_device "makeVDevice"));
    ours.extend(net_lines!(NetV10 = "ncclNet_v10_t"; make_v_device "makeVDevice"));
    ours.extend(net_lines!(NetV11 = "ncclNet_v11_t";
        make_v_device "makeVDevice"; finalize "finalize"; set_net_attr "setNetAttr"));
    ours.extend(net_lines!(NetV12 = "ncclNet_v12_t";
        make_v_device "makeVDevice"; finalize "finalize"; set_net_attr "setNetAttr"));
    ours.extend(collnet_lines!(CollNetV8 = "ncclCollNet_v8_t"));
    ours.extend(collnet_lines!(CollNetV9 = "ncclCollNet_v9_t", "ncclCollNet_v10_t"; make_v_device "makeVDevice"));
    ours.extend(collnet_lines!(CollNetV11 = "ncclCollNet_v11_t";
        make_v_device "makeVDevice"; finalize "finalize"));
    ours.extend(collnet_lines!(CollNetV12 = "ncclCollNet_v12_t";
        make_v_device "makeVDevice"; finalize "finalize"));
    ours.extend(tuner_lines!(TunerV3 = "ncclTuner_v3_t", "destroy"));
    ours.extend(tuner_lines!(TunerV4 = "ncclTuner_v4_t", "destroy"));
    ours.extend(tuner_lines!(TunerV5 = "ncclTuner_v5_t", "finalize"));
    ours.extend(
        tuner_lines!(TunerV6 = "ncclTuner_v6_t", "finalize"; get_chunk_size "getChunkSize"),
    );
    ours.extend(lines!(NvlinkDomains = "ncclNvlDomainInfo_v5_t": domains "nNvlDomains",
        ranks_min "minRanksPerNvlDomain", ranks_max "maxRanksPerNvlDomain"));
    ours.extend(profiler_lines!(ProfilerV4 = "ncclProfiler_v4_t"));
    ours.extend(profiler_lines!(
        ProfilerV5 = "ncclProfiler_v5_t",
        "ncclProfiler_v6_t",
        "ncclProfiler_v7_t"
    ));
    (4..=7).for_each(|version| ours.extend(event_lines(version)));
    let mut theirs: Vec<&str> = HEADERS.lines().filter(|line| !line.starts_with('#')).collect();
    ours.sort();
    theirs.sort_unstable();
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(ours.len(), theirs.len());
}
