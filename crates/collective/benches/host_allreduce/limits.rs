//! Lower bounds of a host's cores: the latency between two cores, and the rate of transfers between them.
//!
//! Every rank must receive as many bytes of the other's values or sums as its buffer has, so an allreduce of two ranks
//! takes at least the time in which a core copies that from the other's cache while the other does the same; and at
//! least the time in which both read their values and write the sums in place, which matters if those are in memory.
//! More ranks than cores need not send more from core to core, but read and write more on each. The bound does not
//! include that ranks cannot access each other's buffers, so that all but one copy what they add.

use std::hint::{black_box, spin_loop};
use std::sync::RwLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use crate::record::median;

/// Seconds until a line of memory written on one core is seen on another; the minimum of several rounds, because two
/// threads may begin on one core.
pub fn hop() -> f64 {
    let line = AtomicUsize::new(0);
    let hops = |core: usize| {
        let round = |round: usize| {
            let first = round * HOPS;
            let start = Instant::now();
            for turn in (first + core..first + HOPS).step_by(2) {
                await_count(&line, turn);
                line.store(turn + 1, Ordering::Release);
            }
            start.elapsed().as_secs_f64() / HOPS as f64
        };
        vec![(0..ROUNDS / 10).map(round).fold(f64::INFINITY, f64::min)]
    };
    both(&hops)
}

/// The lower bound of an allreduce of `bytes`, in seconds.
///
/// Partial sums must reach the core that completes them, and the sums all other cores. The ranks of a core read their
/// values and write the sums one after the other.
pub fn least(ranks: usize, bytes: usize) -> f64 {
    let cores = thread::available_parallelism().map_or(1, usize::from).min(ranks);
    let of_a_core = ranks.div_ceil(cores) * bytes;
    let crossing = 2.0 * (cores - 1) as f64 / cores as f64 * bytes as f64 * taking();
    let in_place = of_a_core as f64 * changing(of_a_core.min(CHANGED_MAX));
    crossing.max(in_place) / PIECE as f64
}

/// Seconds in which each of two cores copies a piece from the other's cache at the same time.
fn taking() -> f64 {
    let pieces = [(); 2].map(|()| RwLock::new(vec![0; PIECE]));
    let arrived = AtomicUsize::new(0);
    both(&|core| {
        let mut to = vec![0; PIECE];
        let round = |round: usize| {
            pieces[core].write().expect("nobody panics").fill(round as u8);
            meet(&arrived, 2 * round);
            let from = pieces[1 - core].read().expect("nobody panics");
            // Otherwise the copy is optimised away.
            let seconds = seconds(|| black_box(&mut to).copy_from_slice(&from));
            drop(from);
            meet(&arrived, 2 * round + 1);
            seconds
        };
        (0..ROUNDS).map(round).collect()
    })
}

/// Seconds in which each of two cores reads and writes a piece in place at the same time, in buffers of `bytes`.
fn changing(bytes: usize) -> f64 {
    let arrived = AtomicUsize::new(0);
    let rounds = (ROUNDS * PIECE / bytes).clamp(3, ROUNDS);
    let seconds = both(&|_| {
        let mut values = vec![1u64; bytes / size_of::<u64>()];
        let round = |round| {
            meet(&arrived, round);
            seconds(|| black_box(&mut values).iter_mut().for_each(|value| *value += 1))
        };
        (0..rounds).map(round).collect()
    });
    seconds * PIECE as f64 / bytes as f64
}

fn seconds(body: impl FnOnce()) -> f64 {
    let start = Instant::now();
    body();
    start.elapsed().as_secs_f64()
}

/// The median over rounds of the slower core's seconds.
fn both(core: &(dyn Fn(usize) -> Vec<f64> + Sync)) -> f64 {
    let [first, second] = thread::scope(|scope| {
        [0, 1].map(|index| scope.spawn(move || core(index))).map(|t| t.join().expect("it ends"))
    });
    median(&first.iter().zip(&second).map(|(a, b)| a.max(*b)).collect::<Vec<_>>())
}

/// Waits until both have arrived for the `round`th time.
fn meet(arrived: &AtomicUsize, round: usize) {
    arrived.fetch_add(1, Ordering::AcqRel);
    await_count(arrived, 2 * round + 2);
}

fn await_count(word: &AtomicUsize, least: usize) {
    for look in 0.. {
        if word.load(Ordering::Acquire) >= least {
            return;
        }
        if look < 10_000 { spin_loop() } else { thread::yield_now() }
    }
}

/// Larger than all caches.
const CHANGED_MAX: usize = 256 << 20;
/// Half of what two ranks exchange at a time.
const PIECE: usize = 128 << 10;
const ROUNDS: usize = 300;
/// Even, so that every round begins with the same core.
const HOPS: usize = 1000;
