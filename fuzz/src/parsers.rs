//! Parsers of what comes from other processes, hosts and files: each takes anything, or refuses it with a reason.

use std::hash::{DefaultHasher, Hash, Hasher};

use netsum_proto::panama::{self, Slab};
use netsum_proto::row_machines::{Role, RowMachines};
use netsum_proto::{Aggregator, Lease, Time, atp};
use netsum_topo::links::{TreePlan, dgx1v};
use netsum_topo::{Fabric, Rate};
use netsum_wire::seal::{HopKeys, SealKey};
use netsum_wire::tag::{JobKey, Mac};

/// A lease from a controller, installed in the machine that it is for: memory stays within what the switch has, and a
/// revoked lease leaves nothing.
pub fn lease(bytes: &[u8]) {
    let Some(lease) = netsum_control::fuzzing::lease(bytes) else { return };
    let key = lease.key();
    if let Lease::Tree(lease) = lease {
        let mut switch = panama::Switch::new(Slab::new(1 << 20));
        let _ = switch.install(Time(0), lease);
        switch.revoke(key.job, key.epoch);
        switch.flushed();
        return assert_eq!(switch.memory().used(), 0);
    }
    let policy = atp::Policy::FirstCome;
    let config = atp::SwitchConfig { slots: 64, row_bytes: 256, policy, straggler_ns: 1000 };
    for role in [Role::Switch(config), Role::Server { row_bytes: 256, rows: 256 }] {
        let mut machines = RowMachines::new(role);
        let _ = machines.install(Time(0), lease.clone(), None, 0);
        machines.revoke(key.job, key.epoch);
        machines.flushed();
        assert_eq!((machines.rows_used(), machines.lease_keys().count()), (0, 0));
    }
}

/// A fabric file: what is accepted is written and read again.
pub fn fabric(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(fabric) = Fabric::parse(text, "fuzz") else { return };
    let again = Fabric::parse(&fabric.to_toml(), "again");
    assert_eq!(again, Ok(fabric.clone()));
    let nodes = fabric.hosts.len() + fabric.switches.len() + fabric.servers.len();
    assert_eq!(fabric.topology().nodes().count(), nodes);
}

/// Plans and programs: a tree plan in JSON, MSCCL's XML, MSCCL++'s JSON, by the first byte. The verifier says whether a
/// program is right, and says so again after it was written and read.
pub fn plan(bytes: &[u8]) {
    use netsum_plan::program::{check, read_msccl, read_mscclpp, write_msccl};
    let Some((&which, rest)) = bytes.split_first() else { return };
    netsum_collective::fuzzing::tree_plan(rest);
    let Ok(text) = std::str::from_utf8(rest) else { return };
    let program = match which % 3 {
        0 => return tree_plan(text),
        1 => read_msccl(text),
        _ => read_mscclpp(text),
    };
    let Ok(program) = program else { return };
    let steps = program.threads.iter().flatten().map(|thread| thread.steps.len()).sum::<usize>();
    // The verifier takes time by the square of the steps.
    if steps > 200 || program.pieces > 1 << 12 {
        return;
    }
    if check(&program).is_ok()
        && let Ok(written) = write_msccl(&program, "fuzz")
    {
        let again = read_msccl(&written).expect("it was written here");
        assert_eq!(check(&again), Ok(()));
    }
}

/// Its own plan is checked against the machine that most plans are for.
fn tree_plan(text: &str) {
    let Ok(plan) = serde_json::from_str::<TreePlan>(text) else { return };
    let steps: usize = plan.flows.iter().map(|flow| flow.up.len() + flow.down.len()).sum();
    if steps < 100 {
        let _ = netsum_plan::program::verify_plan(&dgx1v(Rate(25_000_000_000)), &plan);
    }
}

/// Schedules with dependencies for the simulator, by the first byte: GOAL, traces of Chakra (a file per rank, divided
/// by `|`), files of the recorder or of PyTorch's profiler (divided by lines). What is accepted has a place for every
/// node.
pub fn schedule(bytes: &[u8]) {
    use netsum_sim::schedule::{chakra, goal, pytorch, recorder};
    let Some((&which, rest)) = bytes.split_first() else { return };
    let text = || std::str::from_utf8(rest).ok();
    let lines = |text: &str| -> Vec<(String, String)> {
        text.lines().map(|line| ("fuzz".to_owned(), line.to_owned())).collect()
    };
    let (folder, operations) = ("fuzz", None);
    let schedule = match which % 4 {
        0 => text().map(|text| goal::parse(text, "fuzz")),
        1 => {
            let files: Vec<Vec<u8>> =
                rest.split(|&byte| byte == b'|').map(<[u8]>::to_vec).collect();
            Some(chakra::parse(&chakra::Trace { files: &files, prefix: "fuzz", groups: None }))
        }
        2 => text().map(|text| {
            recorder::parse(&recorder::Recording { files: &lines(text), folder, operations })
        }),
        _ => text().map(|text| {
            pytorch::parse(&pytorch::Profiles { files: &lines(text), folder, operations })
        }),
    };
    let Some(Ok(schedule)) = schedule else { return };
    for (rank, own) in (0..).zip(&schedule.ranks) {
        (0..own.nodes.len() as u32)
            .for_each(|node| assert!(!schedule.place(rank, node).is_empty()));
    }
}

/// Messages between ranks before they are connected, and beside sums.
pub fn ranks(bytes: &[u8]) {
    netsum_collective::fuzzing::address(bytes);
    netsum_collective::fuzzing::rendezvous(bytes);
    netsum_collective::fuzzing::peer_link(bytes);
    netsum_net::fuzzing::hellos(bytes);
    netsum_net::fuzzing::accelerator_frame(bytes);
}

/// Credentials: a text, PEM, or one certificate.
pub fn identity(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        netsum_identity::fuzzing::identity(text);
    }
    netsum_identity::fuzzing::pem(bytes);
    netsum_identity::fuzzing::der(bytes);
}

/// Tags: no bytes are a packet under a key unless they were sealed with it. Keys: those that are read are written as
/// they came.
pub fn tag(bytes: &[u8]) {
    // A fuzzer sees the tags that a packet is compared with. With another key for other bytes it cannot write them.
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    let secret = u128::from(hasher.finish()).to_be_bytes();
    for mac in [Mac::SipHash, Mac::Aegis, Mac::Nh, Mac::AegisAead] {
        let key = JobKey::new(mac, secret);
        assert!(SealKey::new(&key).open(&mut bytes.to_vec()).is_none(), "a forged tag");
    }
    if let Some(key) = JobKey::from_bytes(bytes) {
        let written = key.to_bytes();
        assert!(written == bytes || written[1..] == *bytes);
    }
    if let Some(keys) = HopKeys::from_bytes(bytes) {
        assert_eq!(keys.to_bytes(), *bytes);
    }
}
