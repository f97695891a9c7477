//! C functions for communicators, ids, versions and error texts.

use std::ffi::{c_char, c_int, c_void};

use netsum_nccl_core::{
    Code, Failure, Kind, PLACE_BYTES, SUCCESS, code_of, create_scaled, destroy_scaled,
};

use crate::comm::{self, Handle};
use crate::config::{CommConfig, RawCommConfig};
use crate::group_call::{self, Deed};
use crate::pointers::{Location, read, write};
use crate::result::{self, call};
use crate::unique_id;

/// `ncclUniqueId`, passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId {
    pub(crate) internal: [u8; PLACE_BYTES],
}

exported! {
    /// The interface's version, in NCCL's encoding.
    "pncclGetVersion" fn ncclGetVersion(version: *mut c_int) -> Code {
        call(|| write(version, VERSION, "version"))
    }

    /// The text of a result.
    "pncclGetErrorString" fn ncclGetErrorString(code: c_int) -> *const c_char {
        result::describe(code).as_ptr()
    }

    /// The text of the calling thread's last error.
    "pncclGetLastError" fn ncclGetLastError(_comm: Handle) -> *const c_char {
        result::last()
    }

    /// Nothing: the library writes no log.
    "pncclResetDebugInit" fn ncclResetDebugInit() {
    }

    /// Opens a rendezvous for the ranks that are given the id.
    "pncclGetUniqueId" fn ncclGetUniqueId(id: *mut UniqueId) -> Code {
        call(|| {
            if id.is_null() {
                return Err(Failure::argument("uniqueId is NULL"));
            }
            write(id, UniqueId { internal: unique_id::create()?.to_bytes() }, "uniqueId")
        })
    }

    /// Joins the rendezvous; returns when all ranks have, or at the end of the group.
    "pncclCommInitRank" fn ncclCommInitRank(
        comm: *mut Handle,
        size: c_int,
        id: UniqueId,
        rank: c_int,
    ) -> Code {
        ncclCommInitRankConfig(comm, size, id, rank, std::ptr::null())
    }

    /// Like `ncclCommInitRank`, with a name or without switches.
    "pncclCommInitRankConfig" fn ncclCommInitRankConfig(
        comm: *mut Handle,
        size: c_int,
        id: UniqueId,
        rank: c_int,
        config: *const RawCommConfig,
    ) -> Code {
        call(|| {
            let config = CommConfig::read(config)?;
            join(comm, (rank, size), unique_id::read(&id.internal)?, config)
        })
    }

    /// Like `ncclCommInitRankConfig`, with several ids, of which all ranks meet at the first: a rendezvous of netsum
    /// answers all ranks at once.
    "pncclCommInitRankScalable" fn ncclCommInitRankScalable(
        comm: *mut Handle,
        size: c_int,
        rank: c_int,
        ids: c_int,
        first: *const UniqueId,
        config: *const RawCommConfig,
    ) -> Code {
        call(|| {
            let config = CommConfig::read(config)?;
            if ids < 1 || ids > size {
                return Err(Failure::argument(format!("{ids} ids for {size} ranks")));
            }
            let mut places = Vec::new();
            for at in 0..ids as usize {
                let id = read(first.wrapping_add(at).cast(), PLACE_BYTES, "commIds")?;
                let id = id.first_chunk().ok_or_else(|| Failure::argument("commIds is too short"))?;
                places.push(unique_id::read(id)?);
            }
            join(comm, (rank, size), places.swap_remove(0), config)
        })
    }

    /// Creates all `ndev` ranks of a communicator in this process.
    "pncclCommInitAll" fn ncclCommInitAll(
        comms: *mut Handle,
        ndev: c_int,
        _devlist: *const c_int,
    ) -> Code {
        call(|| {
            if comms.is_null() || ndev < 1 {
                return Err(Failure::argument(format!("comms is NULL, or ndev is {ndev}")));
            }
            let place = unique_id::create()?;
            group_call::start();
            for rank in 0..ndev {
                let target = Location::new(comms.wrapping_add(rank as usize));
                let place = place.clone();
                let connect = move || {
                    let made = comm::connect(&place, (rank, ndev), rank, CommConfig::default())?;
                    target.set(comm::keep(made));
                    Ok(())
                };
                group_call::submit(Ok(Deed::connect(connect)))?;
            }
            group_call::end()
        })
    }

    /// Prepares for `ncclCommDestroy`: every collective has completed when its call returned, and signals are sent now.
    "pncclCommFinalize" fn ncclCommFinalize(comm: Handle) -> Code {
        call(|| comm::usable(comm)?.flush())
    }

    /// Leaves the group, once what was signalled has been sent.
    "pncclCommDestroy" fn ncclCommDestroy(comm: Handle) -> Code {
        call(|| {
            let comm = comm::forget(comm)?;
            let flushed = if comm.group.failure().is_none() { comm.flush() } else { Ok(()) };
            comm.group.close();
            flushed
        })
    }

    /// Fails all operations in progress, here and at all other ranks.
    "pncclCommAbort" fn ncclCommAbort(comm: Handle) -> Code {
        call(|| {
            let comm = comm::forget(comm)?;
            comm.group.abort(&format!("rank {} called ncclCommAbort", comm.rank));
            comm.group.close();
            Ok(())
        })
    }

    /// Whether the group can still be used; a revoked communicator has nothing in progress.
    "pncclCommGetAsyncError" fn ncclCommGetAsyncError(comm: Handle, error: *mut c_int) -> Code {
        call(|| {
            let comm = comm::known(comm)?;
            let failure = if comm.is_revoked() { None } else { comm.group.failure() };
            write(error, failure.as_ref().map_or(SUCCESS, code_of), "asyncError")
        })
    }

    /// Number of ranks.
    "pncclCommCount" fn ncclCommCount(comm: Handle, count: *mut c_int) -> Code {
        call(|| write(count, comm::known(comm)?.size as c_int, "count"))
    }

    /// The index given by `ncclCommInitAll`, or 0.
    "pncclCommCuDevice" fn ncclCommCuDevice(comm: Handle, device: *mut c_int) -> Code {
        call(|| write(device, comm::known(comm)?.device, "device"))
    }

    /// This rank.
    "pncclCommUserRank" fn ncclCommUserRank(comm: Handle, rank: *mut c_int) -> Code {
        call(|| write(rank, comm::known(comm)?.rank as c_int, "rank"))
    }

    /// An operation that multiplies this rank's values by `scalar` before the sum.
    "pncclRedOpCreatePreMulSum" fn ncclRedOpCreatePreMulSum(
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
    "pncclRedOpDestroy" fn ncclRedOpDestroy(op: c_int, comm: Handle) -> Code {
        call(|| {
            comm::known(comm)?;
            destroy_scaled(op)
        })
    }
}

fn join(
    comm: *mut Handle,
    of: (c_int, c_int),
    place: netsum_nccl_core::MeetingPlace,
    config: CommConfig,
) -> Result<(), Failure> {
    write(comm, 0, "comm")?;
    let target = Location::new(comm);
    group_call::submit(Ok(Deed::connect(move || {
        target.set(comm::keep(comm::connect(&place, of, 0, config)?));
        Ok(())
    })))
}

/// NCCL 2.32.3: the newest whose interface is complete here.
const VERSION: c_int = 23203;
