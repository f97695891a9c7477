//! C functions of `ncclCollNet_vN`.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use netsum_collective::Buffer;
use netsum_nccl_core::{Failure, Kind, Reduction, Settings};

use crate::call::call;
use crate::collnet::{Communicator, Listening, Request, Window};
use crate::device;
use crate::device_calls::MAX_BYTES;
use crate::handles::Table;
use crate::interface::{Code, Handle, Logger, PartV8, PartV9};
use crate::log;
use crate::pointers::{buffer, element, place, write, write_if};

static LISTENING: Table<Listening> = Table::new("listening communicator");
static COMMUNICATORS: Table<Communicator> = Table::new("communicator");
static REQUESTS: Table<Request> = Table::new("request");

pub(crate) extern "C" fn init(logger: Option<Logger>) -> Code {
    log::set(logger);
    call("init of CollNet", || {
        let settings = Settings::from_environment()?;
        let device = device::device()?.name.to_string_lossy();
        let version = env!("CARGO_PKG_VERSION");
        match settings.controller {
            Some(controller) => log::info(&format!(
                "COLLNET/netsum: version {version}, sums in the switches of the controller at {controller}, device \
                 {device}"
            )),
            None => log::info(&format!(
                "COLLNET/netsum: version {version}, no device: NETSUM_CONTROLLER does not say whose switches add"
            )),
        }
        Ok(())
    })
}

pub(crate) extern "C" fn init_v11(
    context: *mut *mut c_void,
    _comm_id: u64,
    logger: Option<Logger>,
) -> Code {
    write_if(context, std::ptr::null_mut());
    init(logger)
}

/// One device in a fabric. Without a controller none: NCCL's own algorithms are better than sums of hosts.
pub(crate) extern "C" fn devices(ndev: *mut c_int) -> Code {
    call("devices of CollNet", || {
        let controller = Settings::from_environment()?.controller;
        write(ndev, c_int::from(controller.is_some()), "ndev")
    })
}

pub(crate) extern "C" fn listen(dev: c_int, handle: *mut c_void, listening: *mut Handle) -> Code {
    call("listen of CollNet", || {
        write(listening, 0, "listenComm")?;
        let device = device::check(dev)?;
        let (opened, place) = Listening::open(device.address)?;
        write(handle.cast(), place.to_bytes(), "handle")?;
        write(listening, LISTENING.add(Arc::new(opened)), "listenComm")
    })
}

pub(crate) extern "C" fn listen_v11(
    _context: *mut c_void,
    dev: c_int,
    handle: *mut c_void,
    listening: *mut Handle,
) -> Code {
    listen(dev, handle, listening)
}

/// Returns when all ranks have come. If it fails, NCCL goes on without CollNet, and does not close what listened.
pub(crate) extern "C" fn connect(
    handles: *mut *mut c_void,
    ranks: c_int,
    rank: c_int,
    listening: Handle,
    communicator: *mut Handle,
) -> Code {
    let code = call("connect of CollNet", || {
        write(communicator, 0, "collComm")?;
        LISTENING.get(listening)?;
        let (rank, size) = match (u32::try_from(rank), u32::try_from(ranks)) {
            (Ok(rank), Ok(size)) if rank < size => (rank, size),
            _ => {
                let words = format!("rank {rank} of {ranks} ranks is not possible");
                return Err(Failure::argument(words));
            }
        };
        let first = place(element(handles, 0, "handles")?)?;
        let joined = Communicator::join(&first, (rank, size))?;
        log::info(&format!("COLLNET/netsum: joined as {}", joined.summary()));
        write(communicator, COMMUNICATORS.add(Arc::new(joined)), "collComm")
    });
    if code != netsum_nccl_core::SUCCESS {
        let _ = LISTENING.remove(listening);
    }
    code
}

/// Whether switches can combine such elements. What they cannot, NCCL does better by itself.
pub(crate) extern "C" fn reduce_support(datatype: c_int, op: c_int, supported: *mut c_int) -> Code {
    call("reduceSupport", || {
        let in_network = |reduction: Reduction| {
            let op = reduction.how.reduce_op();
            reduction.kind.dtype.in_network() && op.in_network()
        };
        let can = Reduction::of(op, datatype).is_ok_and(in_network);
        write(supported, c_int::from(can), "supported")
    })
}

#[allow(clippy::too_many_arguments)] // NCCL's signature.
pub(crate) extern "C" fn iallreduce(
    communicator: Handle,
    send: *mut c_void,
    receive: *mut c_void,
    count: usize,
    datatype: c_int,
    op: c_int,
    _send_registration: Handle,
    _receive_registration: Handle,
    request: *mut Handle,
) -> Code {
    call("iallreduce", || {
        write(request, 0, "request")?;
        let communicator = COMMUNICATORS.get(communicator)?;
        let reduction = Reduction::of(op, datatype)?;
        let bytes = limited(reduction.kind.bytes(count)?)?;
        let mut result = buffer(receive, bytes, "recvData")?;
        copy(send, &mut result)?;
        started(communicator.allreduce(result, reduction), request)
    })
}

#[allow(clippy::too_many_arguments)] // NCCL's signature.
pub(crate) extern "C" fn iallreduce_v8(
    communicator: Handle,
    send: *mut c_void,
    receive: *mut c_void,
    count: c_int,
    datatype: c_int,
    op: c_int,
    send_registration: Handle,
    receive_registration: Handle,
    request: *mut Handle,
) -> Code {
    // A negative count is too large.
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let (sent, received) = (send_registration, receive_registration);
    iallreduce(communicator, send, receive, count, datatype, op, sent, received, request)
}

/// The only part of a window, in any version.
pub(crate) trait Part: Copy {
    fn memory(self) -> (*mut c_void, usize);
}

impl Part for PartV8 {
    fn memory(self) -> (*mut c_void, usize) {
        (self.address, self.size as usize)
    }
}

impl Part for PartV9 {
    fn memory(self) -> (*mut c_void, usize) {
        (self.address, self.size)
    }
}

#[allow(clippy::too_many_arguments)] // NCCL's signature.
pub(crate) extern "C" fn iallgather<P: Part>(
    communicator: Handle,
    send: *mut c_void,
    count: c_int,
    parts: *mut P,
    bytes_per_rank: usize,
    offset: usize,
    bytes: usize,
    _registration: Handle,
    request: *mut Handle,
) -> Code {
    call("iallgather", || {
        write(request, 0, "request")?;
        let communicator = COMMUNICATORS.get(communicator)?;
        let window = Window { bytes_per_rank, offset, bytes: limited(bytes)? };
        let (rank, size) = communicator.place();
        let ranges = window.parts(size)?;
        let own_bytes = ranges[rank].len();
        let target = whole(count, parts, bytes, "recvParts")?;
        let mut outputs = Vec::new();
        for range in &ranges {
            let start = target.cast::<u8>().wrapping_add(range.start).cast();
            outputs.push(buffer(start, range.len(), "recvParts")?);
        }
        // In place: what is read and written at once is copied.
        let into = target.cast::<u8>().wrapping_add(ranges[rank].start);
        let own = if overlap(send.cast(), own_bytes, target.cast(), bytes) {
            if send.cast() != into && own_bytes > 0 {
                copy(send, &mut outputs[rank])?;
            }
            Buffer::from_vec(outputs[rank].slice(0..own_bytes).to_vec())
        } else {
            buffer(send, own_bytes, "sendData")?
        };
        started(communicator.allgather(own, outputs), request)
    })
}

#[allow(clippy::too_many_arguments)] // NCCL's signature.
pub(crate) extern "C" fn ireducescatter<P: Part>(
    communicator: Handle,
    count: c_int,
    parts: *mut P,
    receive: *mut c_void,
    bytes_per_rank: usize,
    offset: usize,
    bytes: usize,
    datatype: c_int,
    op: c_int,
    _registration: Handle,
    request: *mut Handle,
) -> Code {
    call("ireducescatter", || {
        write(request, 0, "request")?;
        let communicator = COMMUNICATORS.get(communicator)?;
        let reduction = Reduction::of(op, datatype)?;
        let window = Window { bytes_per_rank, offset, bytes: limited(bytes)? };
        let (rank, size) = communicator.place();
        let ranges = window.parts(size)?;
        check_elements(reduction.kind, window)?;
        let source = whole(count, parts, bytes, "sendParts")?;
        let in_place = overlap(source.cast(), bytes, receive.cast(), ranges[rank].len());
        let mut inputs = Vec::new();
        for range in &ranges {
            let start = source.cast::<u8>().wrapping_add(range.start).cast();
            let input = buffer(start, range.len(), "sendParts")?;
            // In place: what is read and written at once is copied.
            inputs.push(if in_place {
                Buffer::from_vec(input.slice(0..range.len()).to_vec())
            } else {
                input
            });
        }
        let result = buffer(receive, ranges[rank].len(), "recvData")?;
        started(communicator.reduce_scatter(result, inputs, reduction), request)
    })
}

/// Host memory needs no flush: there is no request to wait for.
pub(crate) extern "C" fn iflush(
    communicator: Handle,
    _data: *mut c_void,
    _size: c_int,
    _registration: Handle,
    request: *mut Handle,
) -> Code {
    call("iflush of CollNet", || {
        COMMUNICATORS.get(communicator)?;
        write(request, 0, "request")
    })
}

pub(crate) extern "C" fn test(request: Handle, done: *mut c_int, size: *mut c_int) -> Code {
    call("test of CollNet", || {
        write(done, 0, "done")?;
        let tested = REQUESTS.get(request)?.test();
        if !matches!(tested, Ok(None)) {
            REQUESTS.remove(request)?;
        }
        if let Some(bytes) = tested? {
            write(done, 1, "done")?;
            write_if(size, bytes as c_int);
        }
        Ok(())
    })
}

pub(crate) extern "C" fn close_coll(communicator: Handle) -> Code {
    call("closeColl", || {
        let communicator = COMMUNICATORS.remove(communicator)?;
        log::info(&format!("COLLNET/netsum: {}", communicator.summary()));
        // Of this communicator alone: another one's may be in its own `test` just now.
        let ended = communicator.close();
        REQUESTS.retain(|request| !ended.iter().any(|ended| std::ptr::eq(&**ended, request)));
        Ok(())
    })
}

pub(crate) extern "C" fn close_listen(listening: Handle) -> Code {
    call("closeListen of CollNet", || LISTENING.remove(listening).map(|_| ()))
}

/// Gives NCCL the handle of a request; NULL asks it to call again.
fn started(request: Option<Arc<Request>>, location: *mut Handle) -> Result<(), Failure> {
    match request {
        Some(request) => write(location, REQUESTS.add(request), "request"),
        None => Ok(()),
    }
}

fn limited(bytes: usize) -> Result<usize, Failure> {
    if bytes > MAX_BYTES {
        let words = format!("{bytes} bytes are more than maxCollBytes, {MAX_BYTES}");
        return Err(Failure::argument(words));
    }
    Ok(bytes)
}

/// The memory of a window. NCCL passes one part, which its header allows to be several.
fn whole<P: Part>(
    count: c_int,
    parts: *mut P,
    bytes: usize,
    name: &str,
) -> Result<*mut c_void, Failure> {
    if count != 1 {
        return Err(Failure::argument(format!("{name} has {count} parts; this plug-in takes one")));
    }
    let (address, size) = element(parts, 0, name)?.memory();
    if size < bytes {
        let words = format!("{name} has {size} bytes, the window {bytes}");
        return Err(Failure::argument(words));
    }
    Ok(address)
}

fn check_elements(kind: Kind, window: Window) -> Result<(), Failure> {
    let Window { bytes_per_rank, offset, bytes } = window;
    let element = kind.dtype.size();
    if [bytes_per_rank, offset, bytes].iter().any(|bytes| bytes % element != 0) {
        let words = format!("{window:?} cuts elements of {element} bytes");
        return Err(Failure::argument(words));
    }
    Ok(())
}

/// Copies NCCL's values into the result, unless they are there; the two may overlap.
fn copy(from: *mut c_void, result: &mut Buffer) -> Result<(), Failure> {
    let bytes = result.len();
    let target = result.slice(0..bytes).as_ptr();
    if bytes == 0 || from.cast_const().cast() == target {
        return Ok(());
    }
    let values = buffer(from, bytes, "sendData")?;
    if overlap(from.cast(), bytes, target, bytes) {
        let apart = values.slice(0..bytes).to_vec();
        drop(values);
        result.write(0, &apart);
    } else {
        result.write(0, values.slice(0..bytes));
    }
    Ok(())
}

fn overlap(a: *const u8, a_bytes: usize, b: *const u8, b_bytes: usize) -> bool {
    let (a, b) = (a as usize, b as usize);
    a < b.saturating_add(b_bytes) && b < a.saturating_add(a_bytes)
}
