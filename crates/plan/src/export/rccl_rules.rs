//! The rules of RCCL for MSCCL's XML.
//!
//! Source: ROCm/rccl at 0cbce2a7, `src/misc/msccl/msccl_parser.cc` and `src/include/msccl/*.h`. Known differences: here
//! whole steps must lie in their memory and dependencies must exist, and there are at most NCCL's 32 channels, as in
//! MSCCL; RCCL has more, and does not look at the others.

use std::collections::{HashMap, HashSet};

use roxmltree::{Document, Node};

/// Why RCCL would refuse a file of MSCCL's XML, or run it wrongly; `None` if it takes it.
pub fn rccl_refuses(text: &str) -> Option<String> {
    let document = match Document::parse(text) {
        Ok(document) => document,
        Err(error) => return Some(format!("malformed XML: {error}")),
    };
    let algo = document.root_element();
    rules(algo).err()
}

fn rules(algo: Node<'_, '_>) -> Result<(), String> {
    for node in algo.descendants().filter(Node::is_element) {
        let long = node.attributes().find(|attribute| attribute.value().len() > STRING_MAX);
        if long.is_some() || node.attributes().len() > ATTRIBUTES_MAX {
            return Err(format!(
                "<{}> has too many or too long attributes",
                node.tag_name().name()
            ));
        }
    }
    let (ranks, channels) = (number(algo, "ngpus")?, number(algo, "nchannels")?);
    let (pieces, coll) = (number(algo, "nchunksperloop")?, text(algo, "coll")?);
    let sharded = ["allgather", "reducescatter", "alltoall"].contains(&coll);
    if !sharded && !["allreduce", "broadcast", "reduce"].contains(&coll) {
        return Err(format!("collective {coll:?} is not known"));
    }
    within("nchunksperloop", pieces, 1, OFFSET_MAX + 1)?;
    within("nchannels", channels, 1, CHANNELS_MAX)?;
    if sharded && pieces % ranks.max(1) != 0 {
        return Err(format!("{pieces} chunks for {ranks} shards"));
    }
    if !["Simple", "LL", "LL128"].contains(&text(algo, "proto")?) {
        return Err("its protocol is not known".to_owned());
    }
    let places = [number(algo, "inplace")?, number(algo, "outofplace")?];
    if !places.contains(&1) || places.iter().any(|place| !(0..=1).contains(place)) {
        return Err("it is used neither in place nor out of place".to_owned());
    }
    let (least, most) = (number(algo, "minBytes")?, number(algo, "maxBytes")?);
    if least < 0 || most != 0 && most < least {
        return Err(format!("no buffer has {least} to {most} bytes"));
    }
    let gpus: Vec<Node<'_, '_>> = children(algo, "gpu").collect();
    let ids =
        gpus.iter().map(|gpu| number(*gpu, "id")).collect::<Result<HashSet<i64>, String>>()?;
    if ids.len() != gpus.len() || ids != (0..ranks).collect() {
        return Err(format!("its GPUs are not 0 to {}", ranks - 1));
    }
    gpus.iter().try_for_each(|gpu| {
        let nodes = 1 + gpus.len() + gpu.descendants().filter(Node::is_element).count();
        within("elements that a rank reads", nodes as i64, 1, NODES_MAX)?;
        gpu_rules(*gpu, ranks, channels)
    })
}

fn gpu_rules(gpu: Node<'_, '_>, ranks: i64, channels: i64) -> Result<(), String> {
    let id = number(gpu, "id")?;
    let blocks: Vec<Node<'_, '_>> = children(gpu, "tb").collect();
    within("thread blocks of a GPU", blocks.len() as i64, 0, BLOCKS_MAX)?;
    let steps: Vec<i64> = blocks.iter().map(|tb| children(*tb, "step").count() as i64).collect();
    // By direction and channel the peers of its thread blocks.
    let mut peers: HashMap<(&str, i64), HashSet<i64>> = HashMap::new();
    let mut awaited: HashSet<(i64, i64)> = HashSet::new();
    let mut marked: HashSet<(i64, i64)> = HashSet::new();
    for (index, tb) in blocks.iter().enumerate() {
        if number(*tb, "id")? != index as i64 {
            return Err(format!("GPU {id}: thread blocks do not count from 0"));
        }
        let channel = number(*tb, "chan")?;
        within("channel", channel, 0, channels - 1)?;
        for direction in ["send", "recv"] {
            let peer = number(*tb, direction)?;
            if peer == id || !(-1..ranks).contains(&peer) {
                return Err(format!("GPU {id}, thread block {index}: peer {peer}"));
            }
            let known = peers.entry((direction, channel)).or_default();
            if peer >= 0 && !known.insert(peer) {
                return Err(format!("GPU {id}: two thread blocks {direction} {peer} on {channel}"));
            }
            within("peers on a channel", known.len() as i64, 0, PEERS_MAX)?;
        }
        for (at, step) in children(*tb, "step").enumerate() {
            let key = (index as i64, at as i64);
            let here = |problem: String| format!("GPU {id}, tb {index}, step {at}: {problem}");
            step_rules(gpu, *tb, step, key.1).map_err(here)?;
            let after = (number(step, "depid")?, number(step, "deps")?);
            if after.0 >= 0 {
                let there =
                    steps.get(after.0 as usize).is_some_and(|&all| (0..all).contains(&after.1));
                if !there || after.0 == key.0 {
                    return Err(here("it waits for a step that is not there".to_owned()));
                }
                awaited.insert(after);
            }
            match number(step, "hasdep")? {
                0 => {}
                1 => {
                    marked.insert(key);
                }
                other => return Err(here(format!("hasdep is {other}"))),
            }
        }
    }
    if awaited == marked { Ok(()) } else { Err(format!("GPU {id}: hasdep and depid differ")) }
}

fn step_rules(
    gpu: Node<'_, '_>,
    tb: Node<'_, '_>,
    step: Node<'_, '_>,
    at: i64,
) -> Result<(), String> {
    if number(step, "s")? != at {
        return Err("it is not in its place".to_owned());
    }
    within("steps of a thread block", at + 1, 1, STEPS_MAX)?;
    let (sends, receives, reads, writes) = match text(step, "type")? {
        "s" => (true, false, true, false),
        "r" => (false, true, false, true),
        "rcs" => (true, true, false, true),
        "rrs" => (true, true, true, false),
        "rrc" => (false, true, true, true),
        "rrcs" => (true, true, true, true),
        "cpy" | "re" => (false, false, true, true),
        "nop" => return Ok(()),
        other => return Err(format!("type {other:?} is not known")),
    };
    for (needed, direction) in [(sends, "send"), (receives, "recv")] {
        if needed && number(tb, direction)? < 0 {
            return Err(format!("its thread block has no peer to {direction}"));
        }
    }
    let count = number(step, "cnt")?;
    within("chunks of a step", count, 1, COUNT_MAX)?;
    for (used, memory, offset) in [(reads, "srcbuf", "srcoff"), (writes, "dstbuf", "dstoff")] {
        let chunks = match text(step, memory)? {
            "i" => number(gpu, "i_chunks")?,
            "o" => number(gpu, "o_chunks")?,
            "s" => number(gpu, "s_chunks")?,
            other => return Err(format!("memory {other:?} is not known")),
        };
        if used {
            within(offset, number(step, offset)?, 0, chunks.min(OFFSET_MAX + 1) - count)?;
        }
    }
    Ok(())
}

fn children<'a, 'd>(node: Node<'a, 'd>, name: &'static str) -> impl Iterator<Item = Node<'a, 'd>> {
    node.children().filter(move |child| child.has_tag_name(name))
}

fn text<'a>(node: Node<'a, '_>, name: &str) -> Result<&'a str, String> {
    node.attribute(name).ok_or_else(|| format!("<{}> has no {name}", node.tag_name().name()))
}

fn number(node: Node<'_, '_>, name: &str) -> Result<i64, String> {
    let text = text(node, name)?;
    text.parse().map_err(|_| format!("{name} {text:?} is no number"))
}

fn within(what: &str, value: i64, least: i64, most: i64) -> Result<(), String> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(format!("{what}: {value} is not in {least} to {most}"))
}

/// `MAX_STR_LEN`, `MAX_ATTR_COUNT`, `MAX_NODES`.
const STRING_MAX: usize = 254;
const ATTRIBUTES_MAX: usize = 16;
const NODES_MAX: i64 = 4095;
/// `MSCCL_MAX_NUM_THREAD_BLOCKS`, `MSCCL_MAX_NUM_THREAD_BLOCKS_PER_CHANNEL`, `MSCCL_MAX_NUM_STEPS`.
const BLOCKS_MAX: i64 = 64;
const PEERS_MAX: i64 = 32;
const STEPS_MAX: i64 = 64;
/// Below `MSCCL_MAX_COUNT`.
const COUNT_MAX: i64 = 71;
/// Offsets have 16 bits with a sign.
const OFFSET_MAX: i64 = i16::MAX as i64;
/// NCCL's `MAXCHANNELS`.
const CHANNELS_MAX: i64 = 32;
