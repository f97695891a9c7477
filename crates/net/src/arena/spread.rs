//! Spreads ranks over the cores that they share, if they need all of them.
//!
//! A waiting rank yields and never sleeps for long, so that to the scheduler no core is idle and every rank has just
//! run: it may leave three ranks on one core and one on the other. Ranks know the others' processors from the slots'
//! marks. A rank on the fullest core moves to the emptiest. It does not stay bound: the scheduler may move it again,
//! and a thread that its user has bound to a core never moves. If other programs run, ranks leave their placement to
//! the scheduler, which knows about those.

#![allow(unsafe_code)]

use std::time::{Duration, Instant};

/// Decides when a rank moves to another core, and to which.
pub(super) struct Spread {
    /// The processors that all ranks may run on; empty if they do not move.
    cpus: Vec<u32>,
    waits: u32,
    /// Processor of each rank.
    ranks: Vec<u32>,
    /// Time of the last check.
    looked: Option<Instant>,
}

impl Spread {
    /// `cpus`: the processors that all ranks may run on; empty to disable moves.
    pub(super) fn new(cpus: Vec<u32>) -> Spread {
        Spread { cpus, waits: 0, ranks: Vec::new(), looked: None }
    }

    /// Whether a waiting rank checks the placement. It counts its own waits: of two ranks on a core each waits in every
    /// other round only.
    #[inline]
    pub(super) fn is_due(&mut self) -> bool {
        self.waits = self.waits.wrapping_add(1);
        self.waits.is_multiple_of(WAITS) && !self.cpus.is_empty()
    }

    /// Moves this thread if it is the one to move. `ranks`: the processor of each; `rank`: this one.
    #[cold]
    pub(super) fn spread(&mut self, rank: usize, ranks: impl Iterator<Item = u32>) {
        self.ranks.clear();
        self.ranks.extend(ranks);
        let Some(cpu) = better(rank, &self.ranks, &self.cpus) else { return };
        let now = Instant::now();
        if self.looked.is_some_and(|looked| now - looked < PAUSE) {
            return;
        }
        self.looked = Some(now);
        let running = std::fs::read_to_string("/proc/loadavg").ok().and_then(|text| running(&text));
        if running.is_none_or(|running| running > self.ranks.len()) {
            return;
        }
        if !move_to(cpu) {
            // Bound since the group was created, or forbidden by the system.
            self.cpus.clear();
        }
    }
}

/// Number of runnable threads of the machine, from the kernel's line "0.42 0.31 0.20 3/467 4711".
fn running(loadavg: &str) -> Option<usize> {
    loadavg.split_whitespace().nth(3)?.split('/').next()?.parse().ok()
}

/// The processor to which a rank should move: the last rank of the fullest core goes to the emptiest, if that balances
/// them. All ranks agree on the mover if they see the same `ranks`.
fn better(rank: usize, ranks: &[u32], cpus: &[u32]) -> Option<u32> {
    let on = |cpu: &u32| ranks.iter().filter(|&of| of == cpu).count();
    let fullest = *cpus.iter().max_by_key(|cpu| on(cpu))?;
    let emptiest = *cpus.iter().min_by_key(|cpu| on(cpu))?;
    let last = ranks.iter().rposition(|&of| of == fullest);
    (last == Some(rank) && on(&fullest) >= on(&emptiest) + 2).then_some(emptiest)
}

/// Moves this thread to a processor, and restores its affinity; returns whether it moved.
fn move_to(cpu: u32) -> bool {
    const LEN: usize = size_of::<libc::cpu_set_t>();
    if cpu as usize >= libc::CPU_SETSIZE as usize {
        return false;
    }
    // SAFETY: the calls concern this thread; they fill and read plain bit sets of the given length, in which `cpu` has
    // a bit, as checked.
    unsafe {
        let mut free: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, LEN, &raw mut free) != 0
            || !libc::CPU_ISSET(cpu as usize, &free)
        {
            return false;
        }
        let mut there: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu as usize, &mut there);
        let moved = libc::sched_setaffinity(0, LEN, &raw const there) == 0;
        moved && libc::sched_setaffinity(0, LEN, &raw const free) == 0
    }
}

/// Number of waits between two checks: a fraction of a millisecond of small sums.
const WAITS: u32 = 64;
/// A move takes some ten microseconds, as does detecting other programs: a small share of the time, even if the
/// scheduler undoes each move or the programs stay.
const PAUSE: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn one_rank_moves_at_a_time_until_cores_are_balanced(
            mut ranks in proptest::collection::vec(0u32..5, 1..40),
        ) {
            // A rank may be on a core that not all may use: it counts for none.
            let cpus = [0, 1, 2, 4];
            for _ in 0..ranks.len() {
                let moves: Vec<(usize, u32)> = (0..ranks.len())
                    .filter_map(|rank| Some((rank, better(rank, &ranks, &cpus)?)))
                    .collect();
                prop_assert!(moves.len() <= 1);
                moves.iter().for_each(|&(rank, cpu)| ranks[rank] = cpu);
            }
            let on = |cpu: &u32| ranks.iter().filter(|&of| of == cpu).count();
            let counts: Vec<usize> = cpus.iter().map(on).collect();
            prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
        }
    }

    #[test]
    fn every_rank_checks_regularly_in_any_pattern_of_waits() {
        let mut spread = Spread::new(vec![0, 1]);
        assert_eq!((0..WAITS).filter(|_| spread.is_due()).count(), 1);
        assert!(!(0..WAITS).any(|_| Spread::new(Vec::new()).is_due()), "it cannot move");
    }

    #[test]
    fn other_programs_are_counted() {
        assert_eq!(running("0.42 0.31 0.20 3/467 4711\n"), Some(3));
        assert_eq!(running("0.42 0.31 0.20"), None);
        let here = std::fs::read_to_string("/proc/loadavg").unwrap();
        assert!(running(&here).is_some_and(|running| running >= 1), "{here}");
    }

    #[test]
    fn a_moved_thread_may_run_where_it_could_before() {
        // Each test has its own thread.
        let allowed = || {
            // SAFETY: as in `move_to`.
            unsafe {
                let mut free: libc::cpu_set_t = std::mem::zeroed();
                libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut free);
                (0..libc::CPU_SETSIZE as usize)
                    .filter(|&cpu| libc::CPU_ISSET(cpu, &free))
                    .collect::<Vec<usize>>()
            }
        };
        let before = allowed();
        for &cpu in &before {
            assert!(move_to(cpu as u32));
            assert_eq!(allowed(), before);
        }
        assert!(!move_to(libc::CPU_SETSIZE as u32));
        let elsewhere =
            (0..libc::CPU_SETSIZE as u32).find(|&cpu| !before.contains(&(cpu as usize)));
        assert!(elsewhere.is_none_or(|cpu| !move_to(cpu)));
        assert_eq!(allowed(), before);
    }
}
