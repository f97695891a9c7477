//! C functions that make communicators from others, stop them, or change what they may do.

use std::ffi::{c_char, c_int, c_uint};
use std::sync::atomic::Ordering;

use netsum_nccl_core::{Code, Failure, PLACE_BYTES};

use crate::comm::{self, Handle};
use crate::communicators::UniqueId;
use crate::config::{CommConfig, RawCommConfig};
use crate::group_call::{self, Deed};
use crate::pointers::{Location, read, write};
use crate::result::call;
use crate::unique_id;

/// `ncclSimInfo_t`.
#[repr(C)]
pub struct SimulationInfo {
    size: usize,
    magic: c_uint,
    version: c_uint,
    /// Microseconds.
    estimated_time: f32,
}

/// `ncclEncryptionConfig_t`.
#[repr(C)]
pub struct EncryptionConfig {
    size: usize,
    magic: c_uint,
    version: c_uint,
    mode: c_int,
    psk: *const c_char,
}

exported! {
    /// A communicator of the ranks with the same color; all ranks must call it.
    "pncclCommSplit" fn ncclCommSplit(
        comm: Handle,
        color: c_int,
        key: c_int,
        newcomm: *mut Handle,
        config: *const RawCommConfig,
    ) -> Code {
        call(|| {
            let parent = comm::known(comm)?;
            let config = inherited(&parent, config)?;
            write(newcomm, 0, "newcomm")?;
            if color < NO_COLOR {
                return Err(Failure::argument(format!(
                    "color {color} is negative and not NCCL_SPLIT_NOCOLOR"
                )));
            }
            let target = Location::new(newcomm);
            group_call::submit(Ok(Deed::agree(parent.clone(), move || {
                if let Some(made) = parent.split((color, key), config)? {
                    target.set(comm::keep(made));
                }
                Ok(())
            })))
        })
    }

    /// A communicator without some ranks; exactly the others call it.
    "pncclCommShrink" fn ncclCommShrink(
        comm: Handle,
        excluded: *const c_int,
        count: c_int,
        newcomm: *mut Handle,
        config: *const RawCommConfig,
        flags: c_int,
    ) -> Code {
        call(|| {
            let parent = comm::known(comm)?;
            let config = inherited(&parent, config)?;
            write(newcomm, 0, "newcomm")?;
            let count = usize::try_from(count).ok().filter(|&count| count < parent.size as usize);
            let count = count.ok_or_else(|| {
                Failure::argument(format!("some of {} ranks are excluded, and not all", parent.size))
            })?;
            let excluded = match count {
                0 => Vec::new(),
                _ => read(excluded.cast(), count * size_of::<c_int>(), "excludeRanksList")?,
            };
            let excluded: Vec<c_int> =
                excluded.as_chunks().0.iter().map(|rank| c_int::from_le_bytes(*rank)).collect();
            match flags {
                SHRINK_DEFAULT => {}
                SHRINK_ABORT => parent.group.abort(&format!(
                    "rank {} shrinks the communicator without ranks {excluded:?}", parent.rank
                )),
                _ => return Err(Failure::argument(format!("shrinkFlags {flags:#x} do not exist"))),
            }
            let target = Location::new(newcomm);
            group_call::submit(Ok(Deed::agree(parent.clone(), move || {
                target.set(comm::keep(parent.shrink(&excluded, config)?));
                Ok(())
            })))
        })
    }

    /// An id for the ranks that join by `ncclCommGrow`; one at a time.
    "pncclCommGetUniqueId" fn ncclCommGetUniqueId(comm: Handle, id: *mut UniqueId) -> Code {
        call(|| {
            let comm = comm::usable(comm)?;
            if id.is_null() {
                return Err(Failure::argument("uniqueId is NULL"));
            }
            if comm.growing.swap(true, Ordering::Relaxed) {
                return Err(Failure::usage("the communicator's last id was not used by ncclCommGrow"));
            }
            let place = unique_id::create().inspect_err(|_| comm.growing.store(false, Ordering::Relaxed));
            write(id, UniqueId { internal: place?.to_bytes() }, "uniqueId")
        })
    }

    /// A communicator with more ranks. The ranks of `comm` keep their places; new ones pass NULL for it.
    "pncclCommGrow" fn ncclCommGrow(
        comm: Handle,
        size: c_int,
        id: *const UniqueId,
        rank: c_int,
        newcomm: *mut Handle,
        config: *const RawCommConfig,
    ) -> Code {
        call(|| {
            let place = match id.is_null() {
                true => None,
                false => {
                    let bytes = read(id.cast(), PLACE_BYTES, "uniqueId")?;
                    bytes.first_chunk().map(unique_id::read).transpose()?
                }
            };
            if comm == 0 {
                let config = CommConfig::read(config)?;
                write(newcomm, 0, "newcomm")?;
                let place = place.ok_or_else(|| Failure::argument("a new rank needs uniqueId"))?;
                let target = Location::new(newcomm);
                return group_call::submit(Ok(Deed::connect(move || {
                    target.set(comm::keep(comm::connect(&place, (rank, size), 0, config)?));
                    Ok(())
                })));
            }
            let parent = comm::usable(comm)?;
            let config = inherited(&parent, config)?;
            write(newcomm, 0, "newcomm")?;
            if rank != SAME_RANK || size <= parent.size as c_int {
                return Err(Failure::argument(format!(
                    "a rank of the communicator passes rank -1, not {rank}, and more than {} ranks, not {size}",
                    parent.size
                )));
            }
            let target = Location::new(newcomm);
            group_call::submit(Ok(Deed::agree(parent.clone(), move || {
                target.set(comm::keep(parent.grow(place, size, config)?));
                Ok(())
            })))
        })
    }

    /// Ends all operations, here and at the other ranks. The communicator can be split, shrunk and destroyed.
    "pncclCommRevoke" fn ncclCommRevoke(comm: Handle, flags: c_int) -> Code {
        call(|| {
            let comm = comm::known(comm)?;
            if flags != 0 {
                return Err(Failure::argument(format!("revokeFlags is {flags}, not NCCL_REVOKE_DEFAULT")));
            }
            comm.revoke();
            Ok(())
        })
    }

    /// Refuses operations until `ncclCommResume`. There is no memory of a GPU to release.
    "pncclCommSuspend" fn ncclCommSuspend(comm: Handle, flags: c_int) -> Code {
        call(|| {
            let comm = comm::usable(comm)?;
            if flags != SUSPEND_MEMORY {
                return Err(Failure::argument(format!("flags are {flags:#x}, not NCCL_SUSPEND_MEM")));
            }
            comm.suspend(true);
            Ok(())
        })
    }

    /// Allows operations again.
    "pncclCommResume" fn ncclCommResume(comm: Handle) -> Code {
        call(|| match comm::known(comm)?.suspend(false) {
            true => Ok(()),
            false => Err(Failure::usage("the communicator is not suspended")),
        })
    }

    /// Bytes of a GPU's memory that the communicator has: none.
    "pncclCommMemStats" fn ncclCommMemStats(comm: Handle, statistic: c_int, value: *mut u64) -> Code {
        call(|| {
            let comm = comm::known(comm)?;
            let found = match statistic {
                STATISTIC_SUSPENDED => u64::from(comm.is_suspended()),
                0 | 2 | 3 => 0,
                _ => return Err(Failure::argument(format!("statistic {statistic} does not exist"))),
            };
            write(value, found, "value")
        })
    }

    /// Defers the following calls of this thread until `ncclGroupEnd`.
    "pncclGroupStart" fn ncclGroupStart() -> Code {
        call(|| {
            group_call::start();
            Ok(())
        })
    }

    /// The outermost one starts everything since the outermost `ncclGroupStart`, and returns when it is done.
    "pncclGroupEnd" fn ncclGroupEnd() -> Code {
        call(group_call::end)
    }

    /// Ends a group without running it. The outermost one writes the time that its operations would take by the cost
    /// model.
    "pncclGroupSimulateEnd" fn ncclGroupSimulateEnd(info: *mut SimulationInfo) -> Code {
        call(|| {
            let known = match info.is_null() {
                true => Ok(()),
                false => check(info.cast(), SIMULATION_MAGIC, size_of::<SimulationInfo>(), "simInfo"),
            };
            let seconds = group_call::simulate()?;
            known?;
            match seconds {
                Some(seconds) if !info.is_null() => {
                    // The head was checked above, so that the caller's structure has this member.
                    let time = info.cast::<u8>().wrapping_add(ESTIMATED_TIME).cast();
                    write(time, (seconds * 1e6) as f32, "simInfo")
                }
                _ => Ok(()),
            }
        })
    }

    /// Accepts no encryption, and refuses one by a shared key: netsum encrypts by certificates.
    "pncclSetEncryption" fn ncclSetEncryption(config: *const EncryptionConfig) -> Code {
        call(|| {
            check(config.cast(), CONFIG_MAGIC, size_of::<EncryptionConfig>(), "config")?;
            let bytes = read(config.cast(), size_of::<EncryptionConfig>(), "config")?;
            match bytes[16..].first_chunk().map(|mode| c_int::from_le_bytes(*mode)) {
                Some(0) => Ok(()),
                Some(1) => Err(Failure::usage(
                    "connections are not encrypted by a shared key but by certificates: set NETSUM_CREDENTIALS",
                )),
                mode => Err(Failure::argument(format!("encryption mode {mode:?} does not exist"))),
            }
        })
    }
}

/// A communicator that is made without a configuration has its parent's, but for the name.
fn inherited(parent: &comm::Comm, config: *const RawCommConfig) -> Result<CommConfig, Failure> {
    match config.is_null() {
        true => Ok(CommConfig { name: None, ..parent.config.clone() }),
        false => CommConfig::read(config),
    }
}

/// Checks the size and magic number of a structure of the caller.
fn check(start: *const u8, magic: c_uint, size: usize, name: &str) -> Result<(), Failure> {
    let head = read(start, HEAD, name)?;
    let theirs = head[8..].first_chunk().map(|magic| c_uint::from_le_bytes(*magic));
    let long = head.first_chunk().map_or(0, |size| usize::from_le_bytes(*size));
    match theirs == Some(magic) && long >= size {
        true => Ok(()),
        false => Err(Failure::argument(format!("{name} was not made by NCCL's initializer"))),
    }
}

/// NCCL_SPLIT_NOCOLOR.
const NO_COLOR: c_int = -1;
/// NCCL_SHRINK_DEFAULT and NCCL_SHRINK_ABORT.
const SHRINK_DEFAULT: c_int = 0;
const SHRINK_ABORT: c_int = 1;
/// The rank that the ranks of a growing communicator pass.
const SAME_RANK: c_int = -1;
/// NCCL_SUSPEND_MEM.
const SUSPEND_MEMORY: c_int = 1;
/// `ncclStatGpuMemSuspended`.
const STATISTIC_SUSPENDED: c_int = 1;
const CONFIG_MAGIC: c_uint = 0xcafe_beef;
/// Of NCCL_SIM_INFO_INITIALIZER.
const SIMULATION_MAGIC: c_uint = 0x7468_5283;
const ESTIMATED_TIME: usize = 16;
/// Size, magic and version.
const HEAD: usize = 16;
