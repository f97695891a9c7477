//! Limit of a worker's bytes in the host's own output queue.
//!
//! In a FIFO queue, flows share a link in proportion to what each has queued. TCP keeps one or two milliseconds of its
//! rate queued, and some full packets at least (TCP small queues); a worker that queued its whole window left a TCP
//! flow of the same host a tenth of the link. A worker therefore queues about as much as TCP, and keeps the rest of its
//! window.

use netsum_proto::Time;

/// Duration of the queue at the measured rate: the time until a data thread is scheduled again.
const QUEUE_NS: u64 = 2_000_000;
/// Two trains: 10 ms at 100 Mbit/s, which a busy host's threads need to be scheduled again (with half of it, a machine
/// of two cores lost a tenth of a full link). With a quarter, TCP flows of the same host took most of such a link: the
/// bytes they queue grow with their share.
const LEAST: usize = 128 << 10;
/// One measurement of the rate.
const PERIOD_NS: u64 = 20_000_000;
/// The rate is the maximum of this many measurements, so that pauses between operations do not count.
const PERIODS: usize = 50;

/// Limit of a worker's bytes in its host's output queue, as the system counts them.
pub(super) struct SmallQueue {
    most: usize,
    bytes: usize,
    /// Bytes that are known to fit; asking the system costs a system call.
    room: usize,
    since: Time,
    received: u64,
    /// Bytes received in each of the last periods.
    periods: [u64; PERIODS],
    next: usize,
}

impl SmallQueue {
    /// `initial` and `most`, in bytes.
    pub(super) fn new(now: Time, initial: usize, most: usize) -> SmallQueue {
        let bytes = initial.min(most);
        SmallQueue { most, bytes, room: 0, since: now, received: 0, periods: [0; PERIODS], next: 0 }
    }

    /// Whether to send now. `writable` asks the system, which returns true when the queue is half empty.
    pub(super) fn has_room(&mut self, writable: impl FnOnce() -> bool) -> bool {
        if self.room == 0 && writable() {
            self.room = self.bytes / 2;
        }
        self.room > 0
    }

    /// Records bytes put into the queue.
    pub(super) fn fill(&mut self, bytes: usize) {
        self.room = self.room.saturating_sub(bytes);
    }

    /// The new limit, if it has changed; `received` counts bytes of results since the start: they arrive as fast as
    /// contributions leave, independent of queues.
    pub(super) fn measure(&mut self, now: Time, received: u64) -> Option<usize> {
        let elapsed = now.since(self.since);
        if elapsed < PERIOD_NS {
            return None;
        }
        let bytes = (received - self.received) * PERIOD_NS / elapsed;
        (self.since, self.received) = (now, received);
        self.periods[self.next] = bytes;
        self.next = (self.next + 1) % PERIODS;
        let best = self.periods.into_iter().max().unwrap_or(0);
        let wanted = (best * QUEUE_NS / PERIOD_NS) as usize;
        let wanted = wanted.max(LEAST).min(self.most);
        if best == 0 || wanted.abs_diff(self.bytes) <= self.bytes / 4 {
            return None;
        }
        self.bytes = wanted;
        self.room = 0;
        Some(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `bytes_per_s` for `ms` milliseconds; returns the final limit.
    fn run(queue: &mut SmallQueue, from_ms: u64, ms: u64, bytes_per_s: u64) -> usize {
        let mut received = queue.received;
        for at in from_ms..from_ms + ms {
            received += bytes_per_s / 1000;
            queue.measure(Time(at * 1_000_000), received);
        }
        queue.bytes
    }

    #[test]
    fn holds_two_milliseconds_of_the_best_rate_of_a_second() {
        let mut queue = SmallQueue::new(Time(0), 256 << 10, 16 << 20);
        assert_eq!(run(&mut queue, 0, 100, 12_500_000), LEAST, "100 Mbit/s");
        let fast = run(&mut queue, 100, 100, 1_250_000_000);
        assert!((2_000_000..=2_500_000).contains(&fast), "10 Gbit/s: {fast}");
        assert_eq!(run(&mut queue, 200, 500, 0), fast, "a pause is not a slow path");
        assert_eq!(run(&mut queue, 700, 1200, 125_000_000), 250_000, "1 Gbit/s, a second later");
    }

    #[test]
    fn queries_the_system_only_after_half_the_limit() {
        let mut queue = SmallQueue::new(Time(0), 128 << 10, 16 << 20);
        assert!(!queue.has_room(|| false));
        assert!(queue.has_room(|| true));
        queue.fill(60_000);
        assert!(queue.has_room(|| unreachable!("there is room")));
        queue.fill(60_000);
        assert!(!queue.has_room(|| false));
    }

    #[test]
    fn the_limit_is_bounded_and_stays_without_results() {
        let mut queue = SmallQueue::new(Time(0), 128 << 10, 1 << 20);
        assert_eq!(run(&mut queue, 0, 500, 0), 128 << 10);
        assert_eq!(run(&mut queue, 500, 100, 5_000_000_000), 1 << 20);
    }
}
