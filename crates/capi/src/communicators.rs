//! C functions for communicators, ids, versions and error texts.

use std::ffi::{c_char, c_int, c_uint, c_void};

use netsum_nccl_core::{
    Code, Failure, Kind, PLACE_BYTES, SUCCESS, code_of, create_scaled, destroy_scaled,
};

use crate::comm::{self, Comm, Handle};
use crate::group_call::{self, Deed};
use crate::pointers::{read, write};
use crate::result::{self, call};
use crate::unique_id;

/// `ncclUniqueId`, passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId {
    internal: [u8; PLACE_BYTES],
}

/// `ncclConfig_t`: accepted without effect.
#[repr(C)]
pub struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
}

/// The interface's version, in NCCL's encoding.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetVersion(version: *mut c_int) -> Code {
    call(|| write(version, VERSION, "version"))
}

/// The text of a result.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(code: c_int) -> *const c_char {
    result::describe(code).as_ptr()
}

/// The text of the calling thread's last error.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(_comm: Handle) -> *const c_char {
    result::last()
}

/// Opens a rendezvous for the ranks that are given the id.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> Code {
    call(|| {
        if id.is_null() {
            return Err(Failure::argument("uniqueId is NULL"));
        }
        write(id, UniqueId { internal: unique_id::create()?.to_bytes() }, "uniqueId")
    })
}

/// Joins the rendezvous; returns when all ranks have, or at the end of the group.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommInitRank(
    comm: *mut Handle,
    size: c_int,
    id: UniqueId,
    rank: c_int,
) -> Code {
    call(|| {
        write(comm, 0, "comm")?;
        let place = unique_id::read(&id.internal)?;
        let target = Target(comm);
        group_call::submit(Ok(Deed::Connect(Box::new(move || {
            target.set(comm::connect(&place, rank, size, 0)?);
            Ok(())
        }))))
    })
}

/// Like `ncclCommInitRank`; the configuration is checked and has no effect.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommInitRankConfig(
    comm: *mut Handle,
    size: c_int,
    id: UniqueId,
    rank: c_int,
    config: *const Config,
) -> Code {
    match call(|| check_config(config)) {
        SUCCESS => ncclCommInitRank(comm, size, id, rank),
        code => code,
    }
}

/// Creates all `ndev` ranks of a communicator in this process.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommInitAll(comms: *mut Handle, ndev: c_int, _devlist: *const c_int) -> Code {
    call(|| {
        if comms.is_null() || ndev < 1 {
            return Err(Failure::argument(format!("comms is NULL, or ndev is {ndev}")));
        }
        let place = unique_id::create()?;
        group_call::start();
        for rank in 0..ndev {
            let (target, place) = (Target(comms.wrapping_add(rank as usize)), place.clone());
            let connect = move || {
                target.set(comm::connect(&place, rank, ndev, rank)?);
                Ok(())
            };
            group_call::submit(Ok(Deed::Connect(Box::new(connect))))?;
        }
        group_call::end()
    })
}

/// A communicator of the ranks with the same color; all ranks must call it.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommSplit(
    comm: Handle,
    color: c_int,
    key: c_int,
    newcomm: *mut Handle,
    config: *const Config,
) -> Code {
    call(|| {
        let parent = comm::known(comm)?;
        check_config(config)?;
        write(newcomm, 0, "newcomm")?;
        if color < NO_COLOR {
            return Err(Failure::argument(format!(
                "color {color} is negative and not NCCL_SPLIT_NOCOLOR"
            )));
        }
        let target = Target(newcomm);
        group_call::submit(Ok(Deed::Connect(Box::new(move || {
            if let Some(made) = parent.split(color, key)? {
                target.set(made);
            }
            Ok(())
        }))))
    })
}

/// Prepares for `ncclCommDestroy`: every call has completed when it returned, so there is nothing to wait for.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommFinalize(comm: Handle) -> Code {
    call(|| comm::known(comm).map(|_| ()))
}

/// Leaves the group.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommDestroy(comm: Handle) -> Code {
    call(|| {
        comm::forget(comm)?.group.close();
        Ok(())
    })
}

/// Fails all operations in progress, here and at all other ranks.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommAbort(comm: Handle) -> Code {
    call(|| {
        let comm = comm::forget(comm)?;
        comm.group.abort(&format!("rank {} called ncclCommAbort", comm.rank));
        comm.group.close();
        Ok(())
    })
}

/// Whether the group can still be used.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommGetAsyncError(comm: Handle, error: *mut c_int) -> Code {
    call(|| {
        let failure = comm::known(comm)?.group.failure();
        write(error, failure.as_ref().map_or(SUCCESS, code_of), "asyncError")
    })
}

/// Number of ranks.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommCount(comm: Handle, count: *mut c_int) -> Code {
    call(|| write(count, comm::known(comm)?.size as c_int, "count"))
}

/// The index given by `ncclCommInitAll`, or 0.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommCuDevice(comm: Handle, device: *mut c_int) -> Code {
    call(|| write(device, comm::known(comm)?.device, "device"))
}

/// This rank.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommUserRank(comm: Handle, rank: *mut c_int) -> Code {
    call(|| write(rank, comm::known(comm)?.rank as c_int, "rank"))
}

/// An operation that multiplies this rank's values by `scalar` before the sum.
#[unsafe(no_mangle)]
pub extern "C" fn ncclRedOpCreatePreMulSum(
    op: *mut c_int,
    scalar: *const c_void,
    datatype: c_int,
    residence: c_int,
    comm: Handle,
) -> Code {
    call(|| {
        comm::known(comm)?;
        if !(0..=1).contains(&residence) {
            return Err(Failure::argument(format!("residence {residence} does not exist")));
        }
        let bytes = read(scalar.cast(), Kind::of(datatype)?.bytes(1)?, "scalar")?;
        write(op, create_scaled(datatype, &bytes)?, "op")
    })
}

/// Destroys an operation that the caller created.
#[unsafe(no_mangle)]
pub extern "C" fn ncclRedOpDestroy(op: c_int, comm: Handle) -> Code {
    call(|| {
        comm::known(comm)?;
        destroy_scaled(op)
    })
}

/// A caller's location for a handle.
struct Target(*mut Handle);

// SAFETY: NCCL's contract leaves the location to the library until the call or the group has ended, and only the thread
// that connects this communicator writes to it.
unsafe impl Send for Target {}

impl Target {
    fn set(&self, made: Comm) {
        // SAFETY: its creator checked for NULL, and as above.
        unsafe { self.0.write(comm::keep(made)) };
    }
}

fn check_config(config: *const Config) -> Result<(), Failure> {
    if config.is_null() {
        return Ok(());
    }
    let head = read(config.cast(), size_of::<Config>(), "config")?;
    let magic = head.get(size_of::<usize>()..).and_then(|rest| rest.first_chunk::<4>());
    if magic.copied().map(u32::from_le_bytes) != Some(CONFIG_MAGIC) {
        return Err(Failure::argument("the configuration was not made by NCCL_CONFIG_INITIALIZER"));
    }
    Ok(())
}

/// NCCL 2.18.5: the newest whose interface is complete here.
const VERSION: c_int = 21805;
const CONFIG_MAGIC: u32 = 0xcafe_beef;
/// NCCL_SPLIT_NOCOLOR.
const NO_COLOR: c_int = -1;
