//! What a process holds of the system: descriptors, threads, memory.

use std::time::{Duration, Instant};

use crate::api;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Held {
    files: usize,
    threads: usize,
    /// Bytes of the heap that are in use, those of the library among them.
    pub heap: usize,
}

impl Held {
    fn now() -> Held {
        let entries = |folder| std::fs::read_dir(folder).unwrap().count();
        let (files, threads) = (entries("/proc/self/fd"), entries("/proc/self/task"));
        Held { files, threads, heap: api::heap() }
    }

    /// What is held when descriptors and threads have not changed for a while: those of a closed communicator take some
    /// time to end.
    pub fn at_rest() -> Held {
        let (mut held, mut since) = (Held::now(), Instant::now());
        while since.elapsed() < REST {
            std::thread::sleep(Duration::from_millis(20));
            let now = Held::now();
            if (now.files, now.threads) != (held.files, held.threads) {
                since = Instant::now();
            }
            held = now;
        }
        held
    }

    /// Waits until no more is held than before; returns what is.
    pub fn come_back(self) -> Held {
        let since = Instant::now();
        loop {
            let now = Held::now();
            let heap = self.heap + HEAP_MORE;
            if now.files <= self.files && now.threads <= self.threads && now.heap <= heap {
                return now;
            }
            let late = since.elapsed() >= PATIENCE;
            assert!(!late, "{self:?} after one schedule, {now:?} after all");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

const REST: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(30);
/// What the heap's own caches, tables that have grown, and the log may have more than after one schedule. A request
/// that is kept after each operation is more than that within a thousand schedules.
const HEAP_MORE: usize = 1 << 20;
