//! The rules of MSCCL++ for execution plans.
//!
//! Source: microsoft/mscclpp at 1f5f065d, `src/core/executor/execution_plan.cc`, `executor.cc` and
//! `src/core/include/execution_common.hpp`. Operations are those that are written here; switch channels, pipelines,
//! semaphores and packets are not looked at.

use serde_json::Value;

/// Why MSCCL++ would refuse an execution plan, or run it wrongly; `None` if it takes it.
pub fn mscclpp_refuses(text: &str) -> Option<String> {
    match serde_json::from_str(text) {
        Ok(plan) => rules(&plan).err(),
        Err(error) => Some(format!("malformed JSON: {error}")),
    }
}

fn rules(plan: &Value) -> Result<(), String> {
    for name in ["name", "collective", "protocol"] {
        plan[name].as_str().ok_or_else(|| format!("{name} is no text"))?;
    }
    let in_place = plan["inplace"].as_bool();
    in_place.ok_or("inplace is not given")?;
    let gpus = list(plan, "gpus")?;
    for (rank, gpu) in gpus.iter().enumerate() {
        let here = |problem: String| format!("GPU {rank}: {problem}");
        gpu_rules(gpu, rank, gpus.len()).map_err(here)?;
    }
    Ok(())
}

fn gpu_rules(gpu: &Value, rank: usize, ranks: usize) -> Result<(), String> {
    if number(gpu, "id")? != rank {
        return Err("its id is not its place".to_owned());
    }
    let chunks = [number(gpu, "input_chunks")?, number(gpu, "output_chunks")?];
    let scratch = number(gpu, "scratch_chunks")?;
    if chunks.contains(&0) {
        return Err("its input or output has no chunks".to_owned());
    }
    let mut connected = 0;
    for channels in list(gpu, "channels")? {
        memory_channel(channels, "channel_type")?;
        for peer in list(channels, "connected_to")? {
            below("a peer", whole(peer)?, ranks)?;
            connected += 1;
        }
    }
    let mut remote = Vec::new();
    for buffer in list(gpu, "remote_buffers")? {
        below("the GPU of a remote buffer", number(buffer, "rank")?, ranks)?;
        remote.push(memory(buffer)?);
    }
    for (index, block) in list(gpu, "threadblocks")?.iter().enumerate() {
        let sizes = Sizes { input: chunks[0], output: chunks[1], scratch };
        let here = |problem: String| format!("thread block {index}: {problem}");
        if number(block, "id")? != index {
            return Err(here("its id is not its place".to_owned()));
        }
        block_rules(block, &sizes, connected, remote.len()).map_err(here)?;
    }
    Ok(())
}

/// Chunks of each memory of a GPU.
struct Sizes {
    input: usize,
    output: usize,
    scratch: usize,
}

fn block_rules(
    block: &Value,
    sizes: &Sizes,
    connected: usize,
    remote: usize,
) -> Result<(), String> {
    let (mut channels, mut buffers) = (0, 0);
    for own in list(block, "channels")? {
        memory_channel(own, "channel_type")?;
        for id in list(own, "channel_ids")? {
            below("a channel", whole(id)?, connected)?;
            channels += 1;
        }
    }
    for own in list(block, "remote_buffer_refs")? {
        memory_channel(own, "access_channel_type")?;
        for id in list(own, "remote_buffer_ids")? {
            below("a remote buffer", whole(id)?, remote)?;
            buffers += 1;
        }
    }
    below("channels", channels, CHANNELS_MAX + 1)?;
    below("remote buffers", buffers, CHANNELS_MAX + 1)?;
    let ops = list(block, "ops")?;
    below("operations", ops.len(), OPS_MAX + 1)?;
    for (at, op) in ops.iter().enumerate() {
        let here = |problem: String| format!("operation {at}: {problem}");
        op_rules(op, sizes, channels, buffers).map_err(here)?;
    }
    Ok(())
}

fn op_rules(op: &Value, sizes: &Sizes, channels: usize, buffers: usize) -> Result<(), String> {
    let name = op["name"].as_str().unwrap_or_default();
    let (used, from, to) = match name {
        "nop" => (0..=0, 0, 0),
        "signal" | "wait" => (1..=PER_OP_MAX, 0, 0),
        "put" => (1..=1, 1, 1),
        "re" => (0..=0, 2, 1),
        _ => return Err(format!("{name:?} is not known")),
    };
    let nothing = Vec::new();
    let ids = op["channel_ids"].as_array().unwrap_or(&nothing);
    if !used.contains(&ids.len()) {
        return Err(format!("{name} on {} channels", ids.len()));
    }
    if !ids.is_empty() {
        memory_channel(op, "channel_type")?;
    }
    let ids = ids.iter().map(whole).collect::<Result<Vec<usize>, String>>()?;
    for (place, &id) in ids.iter().enumerate() {
        below("its channel", id, channels)?;
        if ids[..place].contains(&id) {
            return Err(format!("{name} on channel {id} twice"));
        }
    }
    let [sources, targets] =
        ["src_buff", "dst_buff"].map(|key| op[key].as_array().unwrap_or(&nothing));
    if sources.len() != from || targets.len() != to {
        return Err(format!("{name} from {} to {} buffers", sources.len(), targets.len()));
    }
    if name == "re" && op["reduce_op"].as_str() != Some("sum") {
        return Err("its addition is not a sum".to_owned());
    }
    let remote = name == "put";
    sources.iter().try_for_each(|buffer| buffer_rules(buffer, sizes, None))?;
    targets.iter().try_for_each(|buffer| buffer_rules(buffer, sizes, remote.then_some(buffers)))
}

/// `buffers`: of the thread block, for a remote one, whose size is that of another GPU's memory.
fn buffer_rules(buffer: &Value, sizes: &Sizes, buffers: Option<usize>) -> Result<(), String> {
    let (index, size) = (number(buffer, "index")?, number(buffer, "size")?);
    if size == 0 {
        return Err("a buffer of no chunks".to_owned());
    }
    if let Some(buffers) = buffers {
        return below("its remote buffer", number(buffer, "buffer_id")?, buffers);
    }
    let all = match memory(buffer)? {
        "i" => sizes.input,
        "o" => sizes.output,
        _ => sizes.scratch,
    };
    below("the end of a buffer", index.saturating_add(size), all + 1)
}

fn memory(buffer: &Value) -> Result<&str, String> {
    let name = buffer["type"].as_str().filter(|name| ["i", "o", "s"].contains(name));
    name.ok_or_else(|| format!("memory {} is not known", buffer["type"]))
}

fn memory_channel(value: &Value, key: &str) -> Result<(), String> {
    if value[key] == "memory" { Ok(()) } else { Err(format!("{key} {} is not memory", value[key])) }
}

fn list<'a>(value: &'a Value, key: &str) -> Result<&'a Vec<Value>, String> {
    value[key].as_array().ok_or_else(|| format!("{key} is no list"))
}

fn number(value: &Value, key: &str) -> Result<usize, String> {
    whole(&value[key]).map_err(|problem| format!("{key}: {problem}"))
}

fn whole(value: &Value) -> Result<usize, String> {
    let number = value.as_u64().filter(|&number| number <= u32::MAX.into());
    number.map(|number| number as usize).ok_or_else(|| format!("{value} is no small number"))
}

fn below(what: &str, value: usize, limit: usize) -> Result<(), String> {
    if value < limit { Ok(()) } else { Err(format!("{what}: {value} is not below {limit}")) }
}

/// `MAX_OPERATION`, `MAX_CHANNEL`, `MAX_CHANNEL_PER_OPERATION`.
const OPS_MAX: usize = 64;
const CHANNELS_MAX: usize = 16;
const PER_OP_MAX: usize = 8;
