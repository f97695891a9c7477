//! C functions of `ncclProfiler_vN`.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;

use netsum_collective::RecordedData;
use netsum_nccl_core::{Failure, Settings};

use crate::call::call;
use crate::handles::Table;
use crate::interface::{Code, Event, Handle, Logger, ProfiledCollective, ProfiledMessage};
use crate::log;
use crate::pointers::{element, write};
use crate::profiler::{Open, Profiled};

static PROFILED: Table<Profiled> = Table::new("profiled communicator");
static EVENTS: Table<Open> = Table::new("event");

#[allow(clippy::too_many_arguments)] // NCCL's signature.
pub(crate) extern "C" fn init(
    context: *mut Handle,
    comm_id: u64,
    mask: *mut c_int,
    name: *const c_char,
    _nodes: c_int,
    ranks: c_int,
    rank: c_int,
    logger: Option<Logger>,
) -> Code {
    log::set(logger);
    call("init of the profiler", || {
        write(context, 0, "context")?;
        let folder = Settings::from_environment()?.options.recorder;
        let place = match (u32::try_from(rank), u32::try_from(ranks)) {
            (Ok(rank), Ok(ranks)) if rank < ranks => (rank, ranks),
            _ => {
                return Err(Failure::argument(format!(
                    "rank {rank} of {ranks} ranks is not possible"
                )));
            }
        };
        let group = match text(name) {
            Some(name) if !name.is_empty() => format!("nccl-{name}-{comm_id:x}"),
            _ => format!("nccl-{comm_id:x}"),
        };
        let version = env!("CARGO_PKG_VERSION");
        let written = match &folder {
            Some(folder) => format!(", and its operations go to {}", folder.display()),
            None => String::new(),
        };
        log::info(&format!(
            "PROFILER/netsum: version {version}, netsum why knows {group}{written}"
        ));
        write(mask, COLLECTIVE | MESSAGE | PROXY_OPERATION, "eActivationMask")?;
        write(context, PROFILED.add(Profiled::new(group, place, folder)), "context")
    })
}

#[allow(clippy::too_many_arguments)] // NCCL's signature.
pub(crate) extern "C" fn init_v4(
    context: *mut Handle,
    mask: *mut c_int,
    name: *const c_char,
    comm_id: u64,
    nodes: c_int,
    ranks: c_int,
    rank: c_int,
    logger: Option<Logger>,
) -> Code {
    init(context, comm_id, mask, name, nodes, ranks, rank, logger)
}

/// Starts an event. Its first members are at the same place in all versions; `KIND` says which bits of the first are its
/// kind.
pub(crate) extern "C" fn start<const KIND: u64>(
    context: Handle,
    handle: *mut Handle,
    event: *const c_void,
) -> Code {
    call("startEvent", || {
        write(handle, 0, "eHandle")?;
        let kind = element(event.cast::<u64>(), 0, "eDescr")? & KIND;
        let parent = element(event.cast::<Handle>(), PARENT, "eDescr")?;
        let of = event.cast::<u8>().wrapping_add(std::mem::offset_of!(Event, of));
        let (open, oldest) = match kind as c_int {
            COLLECTIVE => {
                let profiled = PROFILED.get(context)?;
                let of: ProfiledCollective = element(of.cast(), 0, "eDescr")?;
                let (call, data) = collective(&of);
                profiled.start(call, Some(data))
            }
            MESSAGE => {
                let profiled = PROFILED.get(context)?;
                let of: ProfiledMessage = element(of.cast(), 0, "eDescr")?;
                profiled.start(message(&of), None)
            }
            // Part of an operation of this process, or of none that is known.
            PROXY_OPERATION => match EVENTS.get(parent) {
                Ok(parent) => (parent.part(), None),
                Err(_) => return Ok(()),
            },
            _ => return Ok(()),
        };
        if let Some(oldest) = oldest {
            let _ = EVENTS.remove(oldest);
        }
        let open = Arc::new(open);
        let made = EVENTS.add(open.clone());
        open.keep(made);
        write(handle, made, "eHandle")
    })
}

pub(crate) extern "C" fn stop(event: Handle) -> Code {
    call("stopEvent", || {
        // Of what is not recorded, or not any more, the end is of no interest. An operation is kept: its parts may
        // begin after it has ended for the thread that called it.
        if let Ok(open) = EVENTS.get(event) {
            open.stop();
            if open.is_part {
                let _ = EVENTS.remove(event);
            }
        }
        Ok(())
    })
}

pub(crate) extern "C" fn state(_event: Handle, _state: c_int, _arguments: *mut c_void) -> Code {
    netsum_nccl_core::SUCCESS
}

pub(crate) extern "C" fn finalize(context: Handle) -> Code {
    call("finalize of the profiler", || {
        if context == 0 {
            return Ok(());
        }
        let profiled = PROFILED.remove(context)?;
        for handle in profiled.handles() {
            let _ = EVENTS.remove(handle);
        }
        if let Some(path) = profiled.write("NCCL's communicator ended")? {
            log::info(&format!("PROFILER/netsum: wrote {}", path.display()));
        }
        Ok(())
    })
}

/// A collective as netsum's recorder writes its own.
fn collective(of: &ProfiledCollective) -> (String, RecordedData) {
    let (name, element) = element_type(of.datatype);
    let function = text(of.function).unwrap_or_default().to_lowercase();
    let mut call = format!("{function} {name}[{}]", of.count);
    if let (Some(algorithm), Some(protocol)) = (text(of.algorithm), text(of.protocol)) {
        call += &format!(" by {algorithm}, {protocol}");
    }
    if matches!(function.as_str(), "broadcast" | "reduce") {
        call += &format!(" root {}", of.root);
    }
    let bytes = (of.count as u64).saturating_mul(element);
    (call, RecordedData { dtype: Some(name), bytes })
}

/// A message, in the words by which `netsum recorder` finds the other end.
fn message(of: &ProfiledMessage) -> String {
    let (_, element) = element_type(of.datatype);
    let bytes = (of.count as u64).saturating_mul(element);
    match text(of.function).unwrap_or_default().as_str() {
        "Recv" => format!("receive of {bytes} bytes from rank {} (tag 0)", of.peer),
        _ => format!("send of {bytes} bytes to rank {} (tag 0)", of.peer),
    }
}

/// Netsum's name of a type and its bytes, by NCCL's name.
fn element_type(name: *const c_char) -> (&'static str, u64) {
    match text(name).unwrap_or_default().as_str() {
        "ncclInt8" => ("int8", 1),
        "ncclUint8" => ("uint8", 1),
        "ncclInt32" => ("int32", 4),
        "ncclUint32" => ("uint32", 4),
        "ncclInt64" => ("int64", 8),
        "ncclUint64" => ("uint64", 8),
        "ncclFloat16" => ("float16", 2),
        "ncclFloat32" => ("float32", 4),
        "ncclFloat64" => ("float64", 8),
        "ncclBfloat16" => ("bfloat16", 2),
        "ncclFloat8e4m3" => ("float8_e4m3", 1),
        "ncclFloat8e5m2" => ("float8_e5m2", 1),
        _ => ("elements", 1),
    }
}

fn text(start: *const c_char) -> Option<String> {
    if start.is_null() {
        return None;
    }
    // SAFETY: not NULL; by the interface it is a C string that outlives the call.
    Some(unsafe { CStr::from_ptr(start) }.to_string_lossy().into_owned())
}

/// `ncclProfileColl`, `ncclProfileP2p` and `ncclProfileProxyOp`.
const COLLECTIVE: c_int = 1 << 1;
const MESSAGE: c_int = 1 << 2;
const PROXY_OPERATION: c_int = 1 << 3;
/// The place of an event's parent, in words.
const PARENT: usize = std::mem::offset_of!(Event, parent) / size_of::<Handle>();
/// Bits of an event that are its kind.
pub(crate) const BYTE: u64 = 0xff;
pub(crate) const WORD: u64 = u64::MAX;
