//! MSCCL's XML, written and read.
//!
//! Source: microsoft/msccl-tools `msccl/language/ir.py` (names of elements and steps); ROCm/rccl at 0cbce2a7,
//! `src/misc/msccl/msccl_parser.cc` (names of collectives).

use std::fmt::Write;

use netsum_topo::links::Collective;
use roxmltree::{Document, Node};

use super::{Action, Memory, MemoryLocation, Program, Step, Thread};
use crate::error::PackError;

/// The program as MSCCL's XML.
///
/// Names are those that RCCL reads. Errors: a switch that adds (MSCCL has none), or more pieces or channels than its
/// executor takes.
pub fn write_msccl(program: &Program, name: &str) -> Result<String, PackError> {
    let refuse = |problem: String| Err(PackError::Format { format: "MSCCL XML", problem });
    let collective = match program.collective {
        Collective::Alltoall => return refuse("an all-to-all is not written".to_owned()),
        Collective::Broadcast { .. } => "broadcast",
        Collective::Allgather => "allgather",
        Collective::ReduceScatter => "reducescatter",
        Collective::Allreduce => "allreduce",
        Collective::Reduce { .. } => "reduce",
    };
    if program.threads.len() > program.ranks {
        return refuse("it knows GPUs only; plan without switches that add".to_owned());
    }
    if program.pieces > PIECES_MAX {
        return refuse(format!(
            "{} pieces are more than {PIECES_MAX}; round the shares to fewer",
            program.pieces
        ));
    }
    let channels =
        program.threads.iter().flatten().map(|thread| thread.channel + 1).max().unwrap_or(0);
    if !program.in_place {
        return refuse("only programs in place are written".to_owned());
    }
    if channels > CHANNELS_MAX {
        return refuse(format!(
            "{channels} channels are more than {CHANNELS_MAX}; use fewer trees"
        ));
    }
    // In place, all shards of an all-gather are in the output, of a reduce-scatter in the input.
    let (letter, inputs, outputs) = match program.collective {
        Collective::Allgather => ('o', program.pieces / program.ranks as u64, program.pieces),
        Collective::ReduceScatter => ('i', program.pieces, program.pieces / program.ranks as u64),
        _ => ('i', program.pieces, program.pieces),
    };
    let awaited = |agent: usize, thread: usize, step: usize| {
        let waits = |other: &Step| other.after == Some((thread, step));
        program.threads[agent].iter().any(|thread| thread.steps.iter().any(waits))
    };
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        r#"<algo name="{}" proto="Simple" nchannels="{channels}" nchunksperloop="{}" ngpus="{}" coll="{collective}" inplace="1" outofplace="0" minBytes="0" maxBytes="0">"#,
        escaped(&name.chars().take(NAME_MAX).collect::<String>()),
        program.pieces,
        program.ranks,
    );
    let buffer = |place: MemoryLocation| match place.memory {
        Memory::Scratch => 's',
        Memory::Input | Memory::Output => letter,
    };
    for (rank, threads) in program.threads.iter().enumerate() {
        let scratch = scratch(threads);
        let _ = writeln!(
            text,
            r#"  <gpu id="{rank}" i_chunks="{inputs}" o_chunks="{outputs}" s_chunks="{scratch}">"#
        );
        for (id, thread) in threads.iter().enumerate() {
            let peer = |peer: Option<usize>, used: bool| {
                peer.filter(|_| used).map_or("-1".to_owned(), |peer| peer.to_string())
            };
            let send = peer(thread.send, thread.steps.iter().any(|step| step.action.sends()));
            let receive =
                peer(thread.receive, thread.steps.iter().any(|step| step.action.receives()));
            let _ = writeln!(
                text,
                r#"    <tb id="{id}" send="{send}" recv="{receive}" chan="{}">"#,
                thread.channel
            );
            for (place, step) in thread.steps.iter().enumerate() {
                let (other, at) = step.after.map_or((-1, -1), |(t, s)| (t as i64, s as i64));
                let _ = writeln!(
                    text,
                    r#"      <step s="{place}" type="{}" srcbuf="{}" srcoff="{}" dstbuf="{}" dstoff="{}" cnt="{}" depid="{other}" deps="{at}" hasdep="{}"/>"#,
                    word(step.action),
                    buffer(step.from),
                    step.from.at,
                    buffer(step.to),
                    step.to.at,
                    step.count,
                    u8::from(awaited(rank, id, place)),
                );
            }
            text.push_str("    </tb>\n");
        }
        text.push_str("  </gpu>\n");
    }
    text.push_str("</algo>\n");
    Ok(text)
}

/// Chunks of scratch memory that an agent's threads use.
fn scratch(threads: &[Thread]) -> u64 {
    let ends = threads.iter().flat_map(|thread| &thread.steps).flat_map(|step| {
        let places = [step.from, step.to].into_iter();
        places.filter(|place| place.memory == Memory::Scratch).map(|place| place.at + step.count)
    });
    ends.max().unwrap_or(0)
}

/// A program from MSCCL's XML. A broadcast's root is the rank that only sends.
///
/// Errors: malformed XML, or unsupported elements, with the line.
pub fn read_msccl(text: &str) -> Result<Program, PackError> {
    let fault = |problem: String| PackError::Format { format: "MSCCL XML", problem };
    if text.len() > TEXT_MAX {
        return Err(fault(format!("longer than {TEXT_MAX} bytes")));
    }
    let document =
        Document::parse(text).map_err(|error| fault(format!("malformed XML: {error}")))?;
    let algo = document.root_element();
    let place = |node: Node<'_, '_>| document.text_pos_at(node.range().start).row;
    let attribute = |node: Node<'_, '_>, name: &str| -> Result<String, PackError> {
        node.attribute(name).map(str::to_owned).ok_or_else(|| {
            fault(format!("line {}: <{}> has no {name}", place(node), node.tag_name().name()))
        })
    };
    let number = |node: Node<'_, '_>, name: &str| -> Result<i64, PackError> {
        let text = attribute(node, name)?;
        let value = text.parse().ok().filter(|value| (-1..1 << 40).contains(value));
        value.ok_or_else(|| fault(format!("line {}: {name} {text:?} is no number", place(node))))
    };
    let whole = |node: Node<'_, '_>, name: &str| -> Result<u64, PackError> {
        u64::try_from(number(node, name)?)
            .map_err(|_| fault(format!("line {}: {name} is negative", place(node))))
    };
    let ranks = whole(algo, "ngpus")? as usize;
    let mut threads: Vec<Option<Vec<Thread>>> = vec![None; ranks.min(RANKS_MAX)];
    if ranks > RANKS_MAX {
        return Err(fault(format!("{ranks} GPUs are more than {RANKS_MAX}")));
    }
    let (coll, pieces) = (attribute(algo, "coll")?, whole(algo, "nchunksperloop")?);
    if pieces == 0 || ranks == 0 || pieces % ranks as u64 != 0 && !WHOLE.contains(&coll.as_str()) {
        return Err(fault(format!("{pieces} chunks for {ranks} GPUs")));
    }
    for gpu in algo.children().filter(|node| node.has_tag_name("gpu")) {
        let id = whole(gpu, "id")? as usize;
        let mut own = Vec::new();
        for (index, block) in gpu.children().filter(|node| node.has_tag_name("tb")).enumerate() {
            if whole(block, "id")? as usize != index {
                return Err(fault(format!(
                    "line {}: thread blocks must count from 0",
                    place(block)
                )));
            }
            let peer = |name: &str| number(block, name).map(|peer| usize::try_from(peer).ok());
            let mut thread = Thread {
                send: peer("send")?,
                receive: peer("recv")?,
                channel: whole(block, "chan")? as usize,
                steps: Vec::new(),
            };
            for step in block.children().filter(|node| node.has_tag_name("step")) {
                let spot = |memory: &str, offset: &str| -> Result<MemoryLocation, PackError> {
                    let memory = match attribute(step, memory)?.as_str() {
                        "i" => Memory::Input,
                        "o" => Memory::Output,
                        "s" => Memory::Scratch,
                        other => {
                            return Err(fault(format!("line {}: buffer {other:?}", place(step))));
                        }
                    };
                    // Offsets of a GPU's own shard start at 0 there.
                    let own_shard = match (coll.as_str(), memory) {
                        ("allgather", Memory::Input)
                        | ("reducescatter" | "reduce_scatter", Memory::Output) => {
                            pieces / ranks as u64 * id as u64
                        }
                        _ => 0,
                    };
                    Ok(MemoryLocation {
                        memory,
                        at: own_shard + number(step, offset)?.max(0) as u64,
                    })
                };
                let kind = attribute(step, "type")?;
                let action = ACTIONS.iter().find(|(_, name)| *name == kind).ok_or_else(|| {
                    fault(format!("line {}: step type {kind:?} is unknown", place(step)))
                })?;
                let (other, at) = (number(step, "depid")?, number(step, "deps")?);
                let after = usize::try_from(other).ok().zip(usize::try_from(at).ok());
                thread.steps.push(Step {
                    action: action.0,
                    from: spot("srcbuf", "srcoff")?,
                    to: spot("dstbuf", "dstoff")?,
                    count: number(step, "cnt")?.max(0) as u64,
                    after,
                });
            }
            own.push(thread);
        }
        let slot = threads
            .get_mut(id)
            .ok_or_else(|| fault(format!("line {}: GPU {id} of {ranks}", place(gpu))))?;
        if slot.replace(own).is_some() {
            return Err(fault(format!("line {}: GPU {id} is named twice", place(gpu))));
        }
    }
    let missing = threads.iter().position(Option::is_none);
    if let Some(missing) = missing {
        return Err(fault(format!("GPU {missing} is missing")));
    }
    let threads: Vec<Vec<Thread>> = threads.into_iter().flatten().collect();
    let collective = match coll.as_str() {
        "allreduce" => Collective::Allreduce,
        "allgather" => Collective::Allgather,
        "reducescatter" | "reduce_scatter" => Collective::ReduceScatter,
        "broadcast" => {
            let root = never(&threads, Action::receives);
            Collective::Broadcast {
                root: root.ok_or_else(|| fault("a broadcast without a root".to_owned()))?,
            }
        }
        "reduce" => {
            let root = never(&threads, Action::sends);
            Collective::Reduce {
                root: root.ok_or_else(|| fault("a reduce without a root".to_owned()))?,
            }
        }
        other => return Err(fault(format!("collective {other:?} is not known here"))),
    };
    Ok(Program { collective, ranks, pieces, in_place: number(algo, "inplace")? == 1, threads })
}

/// The first rank without an action of some kind.
fn never(threads: &[Vec<Thread>], kind: fn(Action) -> bool) -> Option<usize> {
    let lacks = |own: &Vec<Thread>| {
        !own.iter().flat_map(|thread| &thread.steps).any(|step| kind(step.action))
    };
    threads.iter().position(lacks)
}

fn word(action: Action) -> &'static str {
    ACTIONS.iter().find(|(known, _)| *known == action).map_or("nop", |(_, name)| name)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

const ACTIONS: &[(Action, &str)] = &[
    (Action::Send, "s"),
    (Action::Receive, "r"),
    (Action::ReceiveReduce, "rrc"),
    (Action::ReceiveSend, "rcs"),
    (Action::ReceiveReduceSend, "rrs"),
    (Action::ReceiveReduceCopySend, "rrcs"),
    (Action::Copy, "cpy"),
    (Action::Reduce, "re"),
    (Action::Nothing, "nop"),
];

/// MSCCL's executor holds offsets in 16 bits.
const PIECES_MAX: u64 = 1 << 15;
/// NCCL's `MAXCHANNELS`.
const CHANNELS_MAX: usize = 32;
const RANKS_MAX: usize = 1 << 12;
/// RCCL reads attributes of up to 255 bytes; a character takes up to six here.
const NAME_MAX: usize = 40;
/// Collectives without shards.
const WHOLE: [&str; 3] = ["allreduce", "broadcast", "reduce"];
const TEXT_MAX: usize = 64 << 20;
