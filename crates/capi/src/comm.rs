//! Communicators: a netsum group behind each handle, and how they are created.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use netsum_collective::{Buffer, Group, GroupConfig, Options};
use netsum_nccl_core::{Failure, MeetingPlace, Settings};
use parking_lot::Mutex;

/// A rank of a group.
pub(crate) struct Comm {
    pub(crate) group: Group,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// Its index among the ranks that one process created at once; else 0.
    pub(crate) device: c_int,
    pub(crate) timeout: Duration,
    name: String,
    splits: AtomicU64,
}

/// A caller's handle: a number that looks like a pointer and is never dereferenced, so that an invalid one is an error.
pub(crate) type Handle = usize;

static KNOWN: Mutex<Option<HashMap<Handle, Arc<Comm>>>> = Mutex::new(None);
/// Above 0, which is NULL.
static NEXT: AtomicUsize = AtomicUsize::new(1);

/// Stores a communicator; returns its handle.
pub(crate) fn keep(comm: Comm) -> Handle {
    let handle = NEXT.fetch_add(1, Ordering::Relaxed);
    KNOWN.lock().get_or_insert_default().insert(handle, Arc::new(comm));
    handle
}

/// The communicator of a handle.
pub(crate) fn known(handle: Handle) -> Result<Arc<Comm>, Failure> {
    let found = KNOWN.lock().get_or_insert_default().get(&handle).cloned();
    found.ok_or_else(|| Failure::argument("the communicator is NULL, or was destroyed"))
}

/// Removes a handle; returns its communicator.
pub(crate) fn forget(handle: Handle) -> Result<Arc<Comm>, Failure> {
    let found = KNOWN.lock().get_or_insert_default().remove(&handle);
    found.ok_or_else(|| Failure::argument("the communicator is NULL, or was destroyed"))
}

/// Meets the other ranks and connects.
pub(crate) fn connect(
    place: &MeetingPlace,
    rank: c_int,
    size: c_int,
    device: c_int,
) -> Result<Comm, Failure> {
    let (rank, size) = ranks(rank, size)?;
    let settings = Settings::from_environment()?;
    let timeout = settings.timeout;
    let (group, name) = place.join((rank, size), settings)?;
    Ok(Comm { group, rank, size, device, timeout, name, splits: AtomicU64::new(0) })
}

fn ranks(rank: c_int, size: c_int) -> Result<(u32, u32), Failure> {
    match (u32::try_from(rank), u32::try_from(size)) {
        (Ok(rank), Ok(size)) if rank < size => Ok((rank, size)),
        _ => Err(Failure::argument(format!("rank {rank} of {size} ranks is not possible"))),
    }
}

impl Comm {
    /// A communicator of the ranks with the same `color`, ordered by `key` and rank, over the host path; `None` for a
    /// negative color. All ranks must call it.
    pub(crate) fn split(&self, color: c_int, key: c_int) -> Result<Option<Comm>, Failure> {
        let number = self.splits.fetch_add(1, Ordering::Relaxed);
        let mine = [color.to_le_bytes(), key.to_le_bytes()].concat();
        let wishes = self.exchange(&mine)?;
        let mut members: Vec<(i32, u32)> = Vec::new();
        for (rank, wish) in (0..).zip(&wishes) {
            let (Some(&theirs), Some(&key)) = (wish.first_chunk::<4>(), wish.last_chunk::<4>())
            else {
                return Err(Failure::usage(format!("rank {rank} sent no color")));
            };
            if i32::from_le_bytes(theirs) == color {
                members.push((i32::from_le_bytes(key), rank));
            }
        }
        members.sort_unstable();
        if color < 0 {
            self.exchange(&[])?;
            return Ok(None);
        }
        let place = members.iter().position(|&(_, rank)| rank == self.rank);
        let rank = place.map_or(0, |at| at as u32);
        let size = members.len() as u32;
        let settings = Settings::from_environment()?;
        let name = format!("{}/{number}/{color}", self.name);
        let config = GroupConfig {
            rank,
            size,
            name: name.clone(),
            controller: None,
            host: settings.host,
            timeout: self.timeout,
            options: Options {
                rendezvous: settings.options.rendezvous.clone(),
                ..settings.options
            },
            plan: None,
        };
        let group = Group::new(config)?;
        let addresses = self.exchange(&group.address())?;
        let theirs: Vec<Vec<u8>> =
            members.iter().map(|&(_, rank)| addresses[rank as usize].clone()).collect();
        group.connect(&theirs)?;
        let device = self.device;
        let timeout = self.timeout;
        Ok(Some(Comm { group, rank, size, device, timeout, name, splits: AtomicU64::new(0) }))
    }

    /// All ranks' bytes, by rank.
    fn exchange(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, Failure> {
        let empty = |len| Buffer::from_vec(vec![0; len]);
        let lent = |buffers: &mut [Buffer]| buffers.iter_mut().map(Buffer::lend_all).collect();
        let mut lengths: Vec<Buffer> = (0..self.size).map(|_| empty(8)).collect();
        let length = (own.len() as u64).to_le_bytes().to_vec();
        let gathered =
            self.group.allgather(lent(&mut lengths), Buffer::from_vec(length), self.timeout);
        gathered.wait(None)?;
        let mut outs = Vec::new();
        for length in &lengths {
            let mut bytes = [0; 8];
            length.read(0, &mut bytes);
            outs.push(empty(u64::from_le_bytes(bytes) as usize));
        }
        let gathered =
            self.group.allgather(lent(&mut outs), Buffer::from_vec(own.to_vec()), self.timeout);
        gathered.wait(None)?;
        Ok(outs.iter().map(|out| out.slice(0..out.len()).to_vec()).collect())
    }
}
