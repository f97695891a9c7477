//! Asynchronous sums that begin, and often complete, on their caller's thread.

use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use crate::support::{SOON, buffer, bytes, flat_sum, host_group, values};
use netsum_collective::{Combine, Dtype, Error, ReduceOp, Terms};

const SUM: Combine = Combine::Plain(ReduceOp::Sum);

/// Bytes of float32 values around all sizes at which the path changes: with the flag, one round, one round of two
/// ranks, one chunk, several chunks, the queue.
const LENGTHS: [usize; 10] =
    [0, 4, 1024, 8192, 8196, 16_384, 16_388, 246_824, 1 << 20, (1 << 20) + 4];

/// All sums complete in the order of calls, each with its bits in place by then, for any delays of ranks and any number
/// in flight.
#[test]
fn asynchronous_sums_complete_in_order_with_their_values() {
    for size in [2, 3] {
        host_group(size, |rank, group| {
            let ended: Arc<Mutex<Vec<(usize, bool)>>> = Arc::default();
            let mut works = Vec::new();
            for turn in 0..120 {
                let n = LENGTHS[turn * 7 % LENGTHS.len()] / 4;
                let salt = turn as u64;
                let mut own = buffer(&values(Dtype::F32, n, rank, salt));
                let all: Vec<Vec<u8>> =
                    (0..size).map(|rank| values(Dtype::F32, n, rank, salt)).collect();
                let right = flat_sum(Dtype::F32, ReduceOp::Sum, &all);
                // Each rank is early at times, by less and by more than the others poll.
                let late = Duration::from_micros((turn as u64 * 37 + u64::from(rank) * 61) % 150);
                let until = Instant::now() + late;
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
                let work = group.allreduce(&mut own, Dtype::F32, SUM, SOON);
                let ended = ended.clone();
                work.on_done(move || ended.lock().unwrap().push((turn, bytes(&own) == right)));
                works.push(work);
                if turn % 5 == 4 {
                    works.drain(..).for_each(|work| work.wait(None).unwrap());
                }
                if turn % 11 == 10 {
                    group.barrier(Terms::here(SOON)).wait(None).unwrap();
                }
            }
            works.into_iter().for_each(|work| work.wait(None).unwrap());
            // The last callback may still be running.
            group.barrier(SOON).wait(None).unwrap();
            let ended = ended.lock().unwrap();
            assert_eq!(*ended, (0..120).map(|turn| (turn, true)).collect::<Vec<_>>());
        });
    }
}

/// An early rank continues with its own work, and the last one has the sum when its call returns.
#[test]
fn the_call_does_not_wait_for_late_ranks() {
    if available_parallelism().is_ok_and(|cores| cores.get() < 2) {
        return;
    }
    for bytes_of_sum in [64, 8192, 16_384, 246_824, 1 << 20] {
        let (called, early_called) = mpsc::channel::<()>();
        let early_called = Mutex::new(early_called);
        host_group(2, |rank, group| {
            let mut own = buffer(&1f32.to_le_bytes().repeat(bytes_of_sum / 4));
            // On this thread: the queue may report a barrier's end shortly before it is free for the next operation.
            group.barrier(Terms::here(SOON)).wait(None).unwrap();
            if rank == 0 {
                let work = group.allreduce(&mut own, Dtype::F32, SUM, SOON);
                assert!(!work.is_done(), "the other has not called it");
                called.send(()).unwrap();
                work.wait(None).unwrap();
            } else {
                early_called.lock().unwrap().recv_timeout(SOON).unwrap();
                let work = group.allreduce(&mut own, Dtype::F32, SUM, SOON);
                assert!(work.is_done(), "{bytes_of_sum} bytes");
                work.wait(None).unwrap();
            }
            assert!(bytes(&own) == 2f32.to_le_bytes().repeat(bytes_of_sum / 4));
            group.barrier(SOON).wait(None).unwrap();
        });
    }
}

#[test]
fn a_sum_that_was_begun_and_handed_over_has_its_timeout() {
    host_group(2, |rank, group| {
        group.barrier(SOON).wait(None).unwrap();
        if rank == 1 {
            std::thread::sleep(Duration::from_millis(800));
            return;
        }
        let sum = |n: usize| {
            group.allreduce(buffer(&vec![0; n]), Dtype::U8, SUM, Duration::from_millis(300))
        };
        let (begun, work) = (Instant::now(), sum(30_000));
        let error = work.wait(None).unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        assert!(error.to_string().contains("rank 1 (host 127.0.0.1, pid "), "{error}");
        assert!(begun.elapsed() >= Duration::from_millis(300));
        let next = sum(8).wait(None).unwrap_err().to_string();
        assert!(next.contains("since this one failed: allreduce uint8[30000] sum"), "{next}");
    });
}

#[test]
fn different_asynchronous_sums_are_an_error() {
    for (mine, theirs) in [(8, 9), (9_000, 8), (246_824, 246_820), (1 << 20, (1 << 20) + 1)] {
        let errors = host_group(2, |rank, group| {
            let sum = |n: usize| {
                let work = group.allreduce(buffer(&vec![0; n]), Dtype::U8, SUM, SOON);
                work.wait(None)
            };
            let before = (0..20).try_for_each(|turn| sum(turn * 1000));
            before.and_then(|()| sum(if rank == 0 { mine } else { theirs })).unwrap_err()
        });
        for error in errors {
            let text = error.to_string();
            assert!(text.contains(&format!("called allreduce uint8[{mine}] sum")), "{text}");
            assert!(text.contains(&format!("called allreduce uint8[{theirs}] sum")), "{text}");
            assert!(text.contains("(operation #20)"), "{text}");
        }
    }
}

#[test]
fn averages_scaled_sums_and_the_record_of_asynchronous_sums() {
    host_group(2, |rank, group| {
        for turn in 0..40 {
            let n = LENGTHS[turn % LENGTHS.len()] / 4;
            let ones = || buffer(&1f32.to_le_bytes().repeat(n));
            let (mut average, mut scaled) = (ones(), ones());
            let factor = Combine::ScaledSum(f64::from(rank + 1));
            let works = [
                group.allreduce(&mut average, Dtype::F32, Combine::Average, SOON),
                group.allreduce(&mut scaled, Dtype::F32, factor, SOON),
            ];
            works.iter().for_each(|work| work.wait(None).unwrap());
            assert!(bytes(&average) == bytes(&ones()), "{n}");
            assert!(bytes(&scaled) == 3f32.to_le_bytes().repeat(n), "{n}");
        }
        let recorded: serde_json::Value = serde_json::to_value(group.recorded("")).unwrap();
        let operations = recorded["operations"].as_array().unwrap();
        let numbers: Vec<_> = operations.iter().map(|o| o["number"].as_u64().unwrap()).collect();
        assert_eq!(numbers, (0..80).collect::<Vec<_>>());
        assert!(operations.iter().all(|o| o["seconds"].is_number()), "{recorded}");
        let stats: serde_json::Value = serde_json::to_value(group.stats()).unwrap();
        assert!(stats.to_string().contains("\"operations\":80"), "{stats}");
    });
}
