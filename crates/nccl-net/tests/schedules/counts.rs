//! How much the ranks of a test have done.

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::fabric::RANKS;
use crate::schedule::Communicator;

/// Of a rank.
#[derive(Default)]
pub struct Counts {
    communicators: AtomicU64,
    /// Operations whose results were compared.
    operations: AtomicU64,
    cancelled: AtomicU64,
    messages: AtomicU64,
}

impl Counts {
    pub fn communicators(&self) -> u64 {
        self.communicators.load(Ordering::Relaxed)
    }

    pub fn operation(&self) {
        self.operations.fetch_add(1, Ordering::Relaxed);
    }

    /// A communicator whose operations have ended, but for some that it cancels.
    pub fn communicator(&self, plan: &Communicator, cancelled: usize) {
        self.communicators.fetch_add(1, Ordering::Relaxed);
        self.cancelled.fetch_add(cancelled as u64, Ordering::Relaxed);
        self.messages.fetch_add(plan.messages.len() as u64, Ordering::Relaxed);
    }

    /// Writes them where [`Sums::of`] reads them. `more`: operations in switches and by hosts, bytes that the heap has
    /// grown by.
    pub fn write(&self, meeting: &Path, rank: usize, more: [u64; 3]) {
        let Counts { communicators, operations, cancelled, messages } = self;
        let counts = [communicators, operations, cancelled, messages];
        let counts = counts.map(|count| count.load(Ordering::Relaxed));
        let words: Vec<String> = counts.iter().chain(&more).map(u64::to_string).collect();
        std::fs::write(file(meeting, rank), words.join(" ")).unwrap();
    }
}

fn file(meeting: &Path, rank: usize) -> std::path::PathBuf {
    meeting.with_file_name(format!("counts-{rank}"))
}

/// Of all ranks.
pub struct Sums([u64; 7]);

impl Sums {
    pub fn of(meeting: &Path) -> Sums {
        let mut sums = [0; 7];
        for rank in 0..RANKS {
            let words = std::fs::read_to_string(file(meeting, rank)).unwrap();
            let numbers = words.split(' ').map(|word| word.parse::<u64>().unwrap());
            sums.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
        }
        Sums(sums)
    }
}

impl fmt::Display for Sums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [communicators, operations, cancelled, messages, in_switches, by_hosts, heap] = self.0;
        write!(
            f,
            "{communicators} communicators of ranks, {operations} results compared, {cancelled} cancelled, \
             {in_switches} in switches, {by_hosts} by hosts, {messages} messages, {} KiB more of heap",
            heap >> 10
        )
    }
}
