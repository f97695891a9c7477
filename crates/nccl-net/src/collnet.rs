//! Communicators of CollNet: groups of netsum, and their requests.
//!
//! Every rank listens at a place of its own before it knows its rank; all meet at that of rank 0.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use netsum_collective::rendezvous::Meeting;
use netsum_collective::{Buffer, Group, Work};
use netsum_nccl_core::{Failure, MeetingPlace, Reduction, Settings};
use parking_lot::Mutex;

/// A place where ranks may meet, until this is dropped.
pub(crate) struct Listening {
    _meeting: Meeting,
}

impl Listening {
    /// Opens a place; returns it for the other ranks.
    pub(crate) fn open(address: std::net::IpAddr) -> Result<(Listening, MeetingPlace), Failure> {
        let settings = Settings::from_environment()?;
        let (place, meeting) = MeetingPlace::open((address, 0).into(), &settings)?;
        Ok((Listening { _meeting: meeting }, place))
    }
}

/// A rank of a communicator.
pub(crate) struct Communicator {
    group: Group,
    /// Of the group, for users.
    name: String,
    rank: usize,
    size: usize,
    timeout: Duration,
    /// Operations that NCCL has not seen done.
    running: Mutex<Vec<Arc<Request>>>,
}

/// An operation that was started.
pub(crate) struct Request {
    work: Work,
    /// What is left to do with the result once the operation is done.
    conclusion: Mutex<Option<Conclusion>>,
    /// Bytes of the result.
    bytes: usize,
    communicator: Mutex<Option<Arc<Communicator>>>,
}

struct Conclusion {
    reduction: Reduction,
    result: Buffer,
}

/// Which bytes of all ranks' an all-gather or a reduce-scatter is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// Bytes of each rank.
    pub(crate) bytes_per_rank: usize,
    /// First byte.
    pub(crate) offset: usize,
    /// Bytes of the window, which may end in the middle of a rank's.
    pub(crate) bytes: usize,
}

impl Window {
    /// The parts of the window that belong to each of `ranks` ranks, relative to its begin; some are empty. Failures: a
    /// window that ends after the last rank's bytes.
    pub(crate) fn parts(self, ranks: usize) -> Result<Vec<Range<usize>>, Failure> {
        let Window { bytes_per_rank, offset, bytes } = self;
        let (end, all) = (offset.checked_add(bytes), bytes_per_rank.checked_mul(ranks));
        let (Some(end), Some(all)) = (end, all) else {
            return Err(Failure::argument("a window with more bytes than memory has"));
        };
        if end > all {
            let words = format!(
                "bytes {offset} to {end} of {ranks} ranks with {bytes_per_rank} bytes each"
            );
            return Err(Failure::argument(words));
        }
        let part = |rank: usize| {
            let begin = (rank * bytes_per_rank).clamp(offset, end);
            let end = ((rank + 1) * bytes_per_rank).clamp(offset, end);
            begin - offset..end - offset
        };
        Ok((0..ranks).map(part).collect())
    }
}

impl Communicator {
    /// Meets the other ranks at rank 0's place and connects.
    pub(crate) fn join(
        place: &MeetingPlace,
        (rank, size): (u32, u32),
    ) -> Result<Communicator, Failure> {
        let settings = Settings::from_environment()?;
        let timeout = settings.timeout;
        let (group, name) = place.join((rank, size), settings)?;
        let (rank, size) = (rank as usize, size as usize);
        let running = Mutex::default();
        Ok(Communicator { group, name, rank, size, timeout, running })
    }

    /// Combines all ranks' values in `result`, which holds this rank's.
    pub(crate) fn allreduce(
        self: &Arc<Communicator>,
        mut result: Buffer,
        reduction: Reduction,
    ) -> Option<Arc<Request>> {
        let bytes = result.len();
        self.start(bytes, || {
            reduction.before(result.slice_mut(0..bytes));
            let (dtype, how) = (reduction.kind.dtype, reduction.how);
            let work = self.group.allreduce(&mut result, dtype, how, self.timeout);
            (work, Some(Conclusion { reduction, result }))
        })
    }

    /// Copies all ranks' parts of the window to `window`; `own` is this rank's.
    pub(crate) fn allgather(
        self: &Arc<Communicator>,
        own: Buffer,
        parts: Vec<Buffer>,
    ) -> Option<Arc<Request>> {
        let bytes = parts.iter().map(Buffer::len).sum();
        self.start(bytes, || (self.group.allgather(parts, own, self.timeout), None))
    }

    /// Combines all ranks' values of this rank's part of the window in `result`. `parts`: this rank's values for each
    /// rank.
    pub(crate) fn reduce_scatter(
        self: &Arc<Communicator>,
        mut result: Buffer,
        mut parts: Vec<Buffer>,
        reduction: Reduction,
    ) -> Option<Arc<Request>> {
        let bytes = result.len();
        self.start(bytes, || {
            if reduction.changes_input() {
                for part in &mut parts {
                    let mut copy = part.slice(0..part.len()).to_vec();
                    reduction.before(&mut copy);
                    *part = Buffer::from_vec(copy);
                }
            }
            let (dtype, how) = (reduction.kind.dtype, reduction.how);
            let own = result.lend_all();
            let work = self.group.reduce_scatter(own, parts, dtype, how, self.timeout);
            (work, Some(Conclusion { reduction, result }))
        })
    }

    /// Where its operations ran, for the log.
    pub(crate) fn summary(&self) -> String {
        let Communicator { name, rank, size, .. } = self;
        let counts =
            |hosts: netsum_collective::HostStats| (hosts.operations, hosts.network_operations);
        let stats = self.group.stats();
        let (all, network) = stats.map_or((0, 0), |stats| counts(stats.hosts));
        let hosts = all.saturating_sub(network);
        format!(
            "rank {rank} of {size} in group {name}: {network} operations in switches, {hosts} by hosts"
        )
    }

    /// This rank and the number of ranks.
    pub(crate) fn place(&self) -> (usize, usize) {
        (self.rank, self.size)
    }

    /// Starts an operation; `None` if so many run that NCCL has to ask again.
    fn start(
        self: &Arc<Communicator>,
        bytes: usize,
        go: impl FnOnce() -> (Work, Option<Conclusion>),
    ) -> Option<Arc<Request>> {
        let mut running = self.running.lock();
        if running.len() >= REQUESTS_MAX {
            return None;
        }
        let (work, conclusion) = go();
        let communicator = Mutex::new(Some(self.clone()));
        let conclusion = Mutex::new(conclusion);
        let request = Arc::new(Request { work, conclusion, bytes, communicator });
        running.push(request.clone());
        Some(request)
    }

    /// Leaves the group, once no other rank needs this one for a sum. Operations that still run fail, here and at the
    /// other ranks; none uses NCCL's memory when this returns. Returns the requests that NCCL has not seen done.
    pub(crate) fn close(&self) -> Vec<Arc<Request>> {
        let running = std::mem::take(&mut *self.running.lock());
        if running.iter().any(|request| !request.work.is_done()) {
            self.group.abort("NCCL closed a communicator with operations that were not done");
        }
        self.group.close();
        for request in &running {
            // Its outcome is of no interest to anybody.
            let _ = request.work.wait(None);
            *request.conclusion.lock() = None;
            *request.communicator.lock() = None;
        }
        running
    }
}

impl Request {
    /// The bytes of the result, if the operation is done.
    pub(crate) fn test(self: &Arc<Request>) -> Result<Option<usize>, Failure> {
        if !self.work.is_done() {
            return Ok(None);
        }
        let conclusion = self.conclusion.lock().take();
        if let Some(communicator) = self.communicator.lock().take() {
            communicator.running.lock().retain(|other| !Arc::ptr_eq(other, self));
            self.work.outcome()?;
            if let Some(Conclusion { reduction, mut result }) = conclusion {
                let all = 0..result.len();
                reduction.after(result.slice_mut(all), communicator.size as u32);
            }
        }
        Ok(Some(self.bytes))
    }
}

/// `NCCL_NET_MAX_REQUESTS`.
const REQUESTS_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_cut_at_the_ends_of_ranks() {
        let parts = |offset, bytes| Window { bytes_per_rank: 10, offset, bytes }.parts(3);
        assert_eq!(parts(0, 30).unwrap(), [0..10, 10..20, 20..30]);
        assert_eq!(parts(4, 8).unwrap(), [0..6, 6..8, 8..8]);
        assert_eq!(parts(20, 10).unwrap(), [0..0, 0..0, 0..10]);
        assert!(parts(25, 6).unwrap_err().words.contains("bytes 25 to 31 of 3 ranks"));
        assert!(parts(usize::MAX, 1).is_err());
        assert!(Window { bytes_per_rank: usize::MAX, offset: 0, bytes: 0 }.parts(2).is_err());
    }
}
