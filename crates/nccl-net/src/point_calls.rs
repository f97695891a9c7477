//! C functions of `ncclNet_vN`.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use netsum_nccl_core::Failure;

use crate::call::call;
use crate::device;
use crate::device_calls::MAX_BYTES;
use crate::handles::Table;
use crate::interface::{Code, CommConfig, Handle, Logger, NetAttributes, Profiler};
use crate::log;
use crate::point::{Connecting, Endpoint, Message, PointListener};
use crate::pointers::{buffer, element, place, set_stage, stage, write, write_if};

static LISTENERS: Table<PointListener> = Table::new("listening connection");
static CONNECTING: Table<Connecting> = Table::new("connection that is being made");
static ENDPOINTS: Table<Endpoint> = Table::new("connection");
static MESSAGES: Table<Message> = Table::new("request");

pub(crate) extern "C" fn init(logger: Option<Logger>) -> Code {
    log::set(logger);
    call("init", || {
        let device = device::device()?;
        log::info(&format!(
            "NET/netsum: version {}, messages over TCP, device {} ({}, {} Mbit/s)",
            env!("CARGO_PKG_VERSION"),
            device.name.to_string_lossy(),
            device.address,
            device.speed_mbps
        ));
        Ok(())
    })
}

pub(crate) extern "C" fn init_v10(logger: Option<Logger>, _profiler: Option<Profiler>) -> Code {
    init(logger)
}

pub(crate) extern "C" fn init_v11(
    context: *mut *mut c_void,
    _comm_id: u64,
    _config: *mut CommConfig,
    logger: Option<Logger>,
    _profiler: Option<Profiler>,
) -> Code {
    write_if(context, std::ptr::null_mut());
    init(logger)
}

pub(crate) extern "C" fn devices(ndev: *mut c_int) -> Code {
    call("devices", || write(ndev, 1, "ndev"))
}

pub(crate) extern "C" fn listen(dev: c_int, handle: *mut c_void, listener: *mut Handle) -> Code {
    call("listen", || {
        write(listener, 0, "listenComm")?;
        let (opened, place) = PointListener::open(device::check(dev)?.address)?;
        write(handle.cast(), place.to_bytes(), "handle")?;
        write(listener, LISTENERS.add(Arc::new(opened)), "listenComm")
    })
}

pub(crate) extern "C" fn listen_v11(
    _context: *mut c_void,
    dev: c_int,
    handle: *mut c_void,
    listener: *mut Handle,
) -> Code {
    listen(dev, handle, listener)
}

/// NCCL calls again with the same handle until there is a connection; the handle's last bytes say which one is being
/// made.
pub(crate) extern "C" fn connect(
    dev: c_int,
    handle: *mut c_void,
    sender: *mut Handle,
    _device_handle: *mut *mut c_void,
) -> Code {
    call("connect", || {
        write(sender, 0, "sendComm")?;
        device::check(dev)?;
        let mut number = stage(handle)?;
        if number == 0 {
            number = CONNECTING.add(Arc::new(Connecting::start(&place(handle)?)?));
            set_stage(handle, number)?;
        }
        let made = CONNECTING.get(number)?.advance();
        if !matches!(made, Ok(None)) {
            CONNECTING.remove(number)?;
            set_stage(handle, 0)?;
        }
        match made? {
            Some(endpoint) => write(sender, ENDPOINTS.add(Arc::new(endpoint)), "sendComm"),
            None => Ok(()),
        }
    })
}

pub(crate) extern "C" fn connect_v10(
    dev: c_int,
    _config: *mut CommConfig,
    handle: *mut c_void,
    sender: *mut Handle,
    device_handle: *mut *mut c_void,
) -> Code {
    connect(dev, handle, sender, device_handle)
}

pub(crate) extern "C" fn connect_v11(
    _context: *mut c_void,
    dev: c_int,
    handle: *mut c_void,
    sender: *mut Handle,
    device_handle: *mut *mut c_void,
) -> Code {
    connect(dev, handle, sender, device_handle)
}

pub(crate) extern "C" fn accept(
    listener: Handle,
    receiver: *mut Handle,
    _device_handle: *mut *mut c_void,
) -> Code {
    call("accept", || {
        write(receiver, 0, "recvComm")?;
        match LISTENERS.get(listener)?.accept()? {
            Some(endpoint) => write(receiver, ENDPOINTS.add(Arc::new(endpoint)), "recvComm"),
            None => Ok(()),
        }
    })
}

pub(crate) extern "C" fn isend(
    sender: Handle,
    data: *mut c_void,
    size: usize,
    _tag: c_int,
    _registration: Handle,
    request: *mut Handle,
) -> Code {
    call("isend", || {
        write(request, 0, "request")?;
        let endpoint = ENDPOINTS.get(sender)?;
        started(endpoint.send(buffer(data, limited(size)?, "data")?)?, request)
    })
}

pub(crate) extern "C" fn isend_v8(
    sender: Handle,
    data: *mut c_void,
    size: c_int,
    tag: c_int,
    registration: Handle,
    request: *mut Handle,
) -> Code {
    // A negative size is too large.
    isend(sender, data, usize::try_from(size).unwrap_or(usize::MAX), tag, registration, request)
}

pub(crate) extern "C" fn isend_v10(
    sender: Handle,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    registration: Handle,
    _profiled: *mut c_void,
    request: *mut Handle,
) -> Code {
    isend(sender, data, size, tag, registration, request)
}

/// One receive: `maxRecvs` says so. Messages keep their order, so tags say nothing.
fn receive(
    receiver: Handle,
    count: c_int,
    data: *mut *mut c_void,
    size: impl FnOnce() -> Result<usize, Failure>,
    request: *mut Handle,
) -> Code {
    call("irecv", || {
        write(request, 0, "request")?;
        if count != 1 {
            return Err(Failure::argument(format!("{count} receives at once; maxRecvs is 1")));
        }
        let endpoint = ENDPOINTS.get(receiver)?;
        let memory = buffer(element(data, 0, "data")?, limited(size()?)?, "data")?;
        started(endpoint.receive(memory)?, request)
    })
}

pub(crate) extern "C" fn irecv(
    receiver: Handle,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    _tags: *mut c_int,
    _registrations: *mut Handle,
    request: *mut Handle,
) -> Code {
    receive(receiver, count, data, || element(sizes, 0, "sizes"), request)
}

pub(crate) extern "C" fn irecv_v8(
    receiver: Handle,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut c_int,
    _tags: *mut c_int,
    _registrations: *mut Handle,
    request: *mut Handle,
) -> Code {
    let size = || Ok(usize::try_from(element(sizes, 0, "sizes")?).unwrap_or(usize::MAX));
    receive(receiver, count, data, size, request)
}

#[allow(clippy::too_many_arguments)] // NCCL's signature.
pub(crate) extern "C" fn irecv_v10(
    receiver: Handle,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    registrations: *mut Handle,
    _profiled: *mut *mut c_void,
    request: *mut Handle,
) -> Code {
    irecv(receiver, count, data, sizes, tags, registrations, request)
}

/// Host memory needs no flush: there is no request to wait for.
pub(crate) extern "C" fn iflush(
    receiver: Handle,
    _count: c_int,
    _data: *mut *mut c_void,
    _sizes: *mut c_int,
    _registrations: *mut Handle,
    request: *mut Handle,
) -> Code {
    call("iflush", || {
        ENDPOINTS.get(receiver)?;
        write(request, 0, "request")
    })
}

pub(crate) extern "C" fn test(request: Handle, done: *mut c_int, sizes: *mut c_int) -> Code {
    call("test", || {
        write(done, 0, "done")?;
        let tested = MESSAGES.get(request)?.test();
        if !matches!(tested, Ok(None)) {
            MESSAGES.remove(request)?;
        }
        if let Some(bytes) = tested? {
            write(done, 1, "done")?;
            write_if(sizes, bytes as c_int);
        }
        Ok(())
    })
}

pub(crate) extern "C" fn close(endpoint: Handle) -> Code {
    call("close", || {
        let endpoint = ENDPOINTS.remove(endpoint)?;
        endpoint.close();
        MESSAGES.retain(|message| !message.is_of(&endpoint));
        Ok(())
    })
}

pub(crate) extern "C" fn close_listen(listener: Handle) -> Code {
    call("closeListen", || LISTENERS.remove(listener).map(|_| ()))
}

pub(crate) extern "C" fn get_device_mr(
    _comm: Handle,
    _registration: Handle,
    _device: *mut *mut c_void,
) -> Code {
    call("getDeviceMr", || Err(Failure::usage("the processor of the host does the work here")))
}

pub(crate) extern "C" fn irecv_consumed(
    _receiver: Handle,
    _count: c_int,
    _request: Handle,
) -> Code {
    call("irecvConsumed", || Err(Failure::usage("the processor of the host does the work here")))
}

/// Hints about the traffic, without effect: one connection carries a connection's messages.
pub(crate) extern "C" fn set_attributes(
    _context: *mut c_void,
    _attributes: *mut NetAttributes,
) -> Code {
    call("setNetAttr", || Ok(()))
}

/// Gives NCCL the handle of a request; NULL asks it to call again.
fn started(message: Option<Message>, location: *mut Handle) -> Result<(), Failure> {
    match message {
        Some(message) => write(location, MESSAGES.add(Arc::new(message)), "request"),
        None => Ok(()),
    }
}

fn limited(bytes: usize) -> Result<usize, Failure> {
    if bytes > MAX_BYTES {
        return Err(Failure::argument(format!(
            "{bytes} bytes are more than maxP2pBytes, {MAX_BYTES}"
        )));
    }
    Ok(bytes)
}
