//! Communicators: a netsum group behind each handle, what may be done with it, and how it is created.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use netsum_collective::{Buffer, Group};
use netsum_nccl_core::{Failure, MeetingPlace, PLACE_BYTES, Reservation, Settings};
use parking_lot::Mutex;

use crate::config::CommConfig;
use crate::handle;
pub(crate) use crate::handle::Handle;
use crate::signals::Signals;
use crate::windows::Windows;

/// A rank of a group.
pub(crate) struct Comm {
    pub(crate) group: Group,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// Its index among the ranks that one process created at once; else 0.
    pub(crate) device: c_int,
    pub(crate) timeout: Duration,
    pub(crate) name: String,
    pub(crate) config: CommConfig,
    /// Communicators that were made from this one.
    pub(crate) made: AtomicU64,
    /// Whether `ncclCommRevoke` was called.
    revoked: AtomicBool,
    /// Whether it is between `ncclCommSuspend` and `ncclCommResume`.
    suspended: AtomicBool,
    /// Whether an id of `ncclCommGetUniqueId` waits for `ncclCommGrow`.
    pub(crate) growing: AtomicBool,
    pub(crate) windows: Windows,
    pub(crate) signals: Signals,
    /// Where ranks can meet at each rank when the group cannot be used any more; this rank's own port is reserved.
    pub(crate) places: Vec<MeetingPlace>,
    pub(crate) reserved: Reservation,
}

static KNOWN: Mutex<Option<HashMap<Handle, Arc<Comm>>>> = Mutex::new(None);

/// Stores a communicator; returns its handle.
pub(crate) fn keep(comm: Comm) -> Handle {
    let handle = handle::number();
    KNOWN.lock().get_or_insert_default().insert(handle, Arc::new(comm));
    handle
}

/// The communicator of a handle.
pub(crate) fn known(handle: Handle) -> Result<Arc<Comm>, Failure> {
    let found = KNOWN.lock().get_or_insert_default().get(&handle).cloned();
    found.ok_or_else(|| Failure::argument("the communicator is NULL, or was destroyed"))
}

/// The communicator of a handle, which can be used for operations.
pub(crate) fn usable(handle: Handle) -> Result<Arc<Comm>, Failure> {
    let comm = known(handle)?;
    if comm.is_revoked() {
        return Err(Failure::usage(
            "the communicator was revoked: it can be split, shrunk or destroyed",
        ));
    }
    if comm.suspended.load(Ordering::Relaxed) {
        return Err(Failure::usage("the communicator is suspended: call ncclCommResume"));
    }
    Ok(comm)
}

/// Removes a handle; returns its communicator.
pub(crate) fn forget(handle: Handle) -> Result<Arc<Comm>, Failure> {
    let found = KNOWN.lock().get_or_insert_default().remove(&handle);
    found.ok_or_else(|| Failure::argument("the communicator is NULL, or was destroyed"))
}

/// Meets the other ranks and connects.
pub(crate) fn connect(
    place: &MeetingPlace,
    (rank, size): (c_int, c_int),
    device: c_int,
    config: CommConfig,
) -> Result<Comm, Failure> {
    let (rank, size) = ranks(rank, size)?;
    let settings = config.apply(Settings::from_environment()?);
    let timeout = settings.timeout;
    let (group, name) = place.join((rank, size), settings)?;
    Comm::new(group, name, (rank, size), (device, timeout, config), place)
}

fn ranks(rank: c_int, size: c_int) -> Result<(u32, u32), Failure> {
    match (u32::try_from(rank), u32::try_from(size)) {
        (Ok(rank), Ok(size)) if rank < size => Ok((rank, size)),
        _ => Err(Failure::argument(format!("rank {rank} of {size} ranks is not possible"))),
    }
}

impl Comm {
    /// A communicator of a connected group; the ranks tell each other where they can meet later on. `met`: a place that
    /// this machine reaches.
    pub(crate) fn new(
        group: Group,
        name: String,
        (rank, size): (u32, u32),
        (device, timeout, config): (c_int, Duration, CommConfig),
        met: &MeetingPlace,
    ) -> Result<Comm, Failure> {
        let reserved = MeetingPlace::reserve(met, &Settings::from_environment()?)?;
        let mut told: Vec<Buffer> =
            (0..size).map(|_| Buffer::from_vec(vec![0; PLACE_BYTES])).collect();
        let own = Buffer::from_vec(reserved.place().to_bytes().to_vec());
        group
            .allgather(told.iter_mut().map(Buffer::lend_all).collect(), own, timeout)
            .wait(None)?;
        let place = |(rank, told): (usize, &Buffer)| {
            let mut bytes = [0; PLACE_BYTES];
            told.read(0, &mut bytes);
            MeetingPlace::from_bytes(&bytes)
                .ok_or_else(|| Failure::usage(format!("rank {rank} sent no place to meet")))
        };
        let places = told.iter().enumerate().map(place).collect::<Result<_, Failure>>()?;
        Ok(Comm {
            group,
            rank,
            size,
            device,
            timeout,
            name,
            config,
            made: AtomicU64::new(0),
            revoked: AtomicBool::new(false),
            suspended: AtomicBool::new(false),
            growing: AtomicBool::new(false),
            windows: Windows::default(),
            signals: Signals::default(),
            places,
            reserved,
        })
    }

    pub(crate) fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Relaxed)
    }

    /// Ends all operations, here and at the other ranks. What is left is to make other communicators from this one.
    pub(crate) fn revoke(&self) {
        self.revoked.store(true, Ordering::Relaxed);
        self.group.abort(&format!("rank {} called ncclCommRevoke", self.rank));
    }

    pub(crate) fn is_suspended(&self) -> bool {
        self.suspended.load(Ordering::Relaxed)
    }

    /// Suspends or resumes; false if it was so already.
    pub(crate) fn suspend(&self, suspended: bool) -> bool {
        self.suspended.swap(suspended, Ordering::Relaxed) != suspended
    }
}
