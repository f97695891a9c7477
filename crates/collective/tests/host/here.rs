//! Operations on their caller's thread, mixed with asynchronous ones of other ranks.

use std::time::{Duration, Instant};

use crate::support::{SOON, buffer, bytes, flat_sum, host_group, values};
use netsum_collective::{Combine, Dtype, Error, ReduceOp, Terms};

const SUM: Combine = Combine::Plain(ReduceOp::Sum);

/// Lengths around all at which the path changes: with the flag, one round, one round of two ranks, one chunk, several
/// chunks.
#[test]
fn sums_of_every_length_have_the_documented_bits_on_any_thread() {
    let lengths = [
        0, 1, 31, 32, 33, 63, 8191, 8192, 8193, 16_384, 16_400, 100_003, 262_144, 600_011,
        1_700_003,
    ];
    for size in [2, 3, 4, 5, 8] {
        host_group(size, |rank, group| {
            for (turn, bytes_about) in lengths.into_iter().enumerate() {
                for (dtype, op) in [
                    (Dtype::F32, ReduceOp::Sum),
                    (Dtype::Bf16, ReduceOp::Sum),
                    (Dtype::I64, ReduceOp::Product),
                    (Dtype::F64, ReduceOp::Min),
                    (Dtype::U8, ReduceOp::BitXor),
                ] {
                    let n = bytes_about / dtype.size();
                    let mut own = buffer(&values(dtype, n, rank, turn as u64));
                    let how = Combine::Plain(op);
                    let work = match (turn as u32 + rank) % 3 {
                        0 => group.allreduce(&mut own, dtype, how, SOON),
                        _ => group.allreduce(&mut own, dtype, how, Terms::here(SOON)),
                    };
                    work.wait(None).unwrap();
                    let all: Vec<Vec<u8>> =
                        (0..size).map(|rank| values(dtype, n, rank, turn as u64)).collect();
                    let right = bytes(&own) == flat_sum(dtype, op, &all);
                    assert!(right, "{n} × {dtype} {} of {size} ranks", op.name());
                }
                group.barrier(Terms::here(SOON)).wait(None).unwrap();
            }
        });
    }
}

#[test]
fn averages_and_scaled_sums_on_the_callers_thread() {
    host_group(2, |rank, group| {
        let ones = || buffer(&1f32.to_le_bytes().repeat(5));
        let mut average = ones();
        let here = || Terms::here(SOON);
        group.allreduce(&mut average, Dtype::F32, Combine::Average, here()).wait(None).unwrap();
        assert_eq!(bytes(&average), bytes(&ones()));
        let mut scaled = ones();
        let factor = Combine::ScaledSum(f64::from(rank + 1));
        group.allreduce(&mut scaled, Dtype::F32, factor, here()).wait(None).unwrap();
        assert_eq!(bytes(&scaled), 3f32.to_le_bytes().repeat(5));
    });
}

#[test]
fn different_calls_are_an_error_after_many_that_agreed() {
    let errors = host_group(3, |rank, group| {
        let sum = |n: usize| {
            let work = group.allreduce(buffer(&vec![0; n]), Dtype::U8, SUM, Terms::here(SOON));
            work.wait(None)
        };
        // A slow rank may learn of it while it still waits for the previous operation.
        let before = (0..3000).try_for_each(|_| sum(8));
        before.and_then(|()| sum(if rank == 2 { 9 } else { 8 })).unwrap_err()
    });
    for error in errors {
        let text = error.to_string();
        assert!(text.contains("rank 2 called allreduce uint8[9] sum"), "{text}");
        assert!(text.contains("called allreduce uint8[8] sum"), "{text}");
        assert!(text.contains("(operation #3000)"), "{text}");
    }
}

#[test]
fn a_missing_rank_is_named_on_the_callers_thread() {
    host_group(3, |rank, group| {
        let here = |ms| Terms::here(Duration::from_millis(ms));
        group.barrier(here(20_000)).wait(None).unwrap();
        if rank == 1 {
            std::thread::sleep(Duration::from_millis(1000));
            return;
        }
        let begun = Instant::now();
        let error = group.barrier(here(300)).wait(None).unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        assert!(error.to_string().contains("rank 1 (host 127.0.0.1, pid "), "{error}");
        assert!(begun.elapsed() >= Duration::from_millis(300));
        let next = group.barrier(here(300)).wait(None).unwrap_err().to_string();
        assert!(next.contains("since this one failed: barrier"), "{next}");
    });
}

/// The recorder keeps the order of calls and the numbers, on any thread.
#[test]
fn quick_operations_are_recorded() {
    host_group(2, |_, group| {
        for _ in 0..5 {
            group.barrier(Terms::here(SOON)).wait(None).unwrap();
            group.barrier(SOON).wait(None).unwrap();
        }
        let recorded: serde_json::Value = serde_json::to_value(group.recorded("")).unwrap();
        let operations = recorded["operations"].as_array().unwrap();
        let numbers: Vec<_> = operations.iter().map(|o| o["number"].as_u64().unwrap()).collect();
        assert_eq!(numbers, (0..10).collect::<Vec<_>>());
        assert!(operations.iter().all(|o| o["seconds"].is_number()), "{recorded}");
        let stats: serde_json::Value = serde_json::to_value(group.stats()).unwrap();
        assert!(stats.to_string().contains("\"operations\":10"), "{stats}");
    });
}

/// With more quick operations than are kept, and others between them, the record has no gap, and each entry its time.
#[test]
fn the_record_of_quick_operations_has_no_gap() {
    host_group(2, |_, group| {
        let here = |count: u64| {
            (0..count).for_each(|_| group.barrier(Terms::here(SOON)).wait(None).unwrap());
        };
        let queued = || group.barrier(SOON).wait(None).unwrap();
        for (count, next) in [(3000, 3000), (700, 3701), (300, 4002), (0, 4003), (20, 4024)] {
            here(count);
            let recorded: serde_json::Value = serde_json::to_value(group.recorded("")).unwrap();
            let operations = recorded["operations"].as_array().unwrap();
            let numbers = operations.iter().map(|o| o["number"].as_u64().unwrap());
            assert_eq!(numbers.collect::<Vec<_>>(), (next - 512..next).collect::<Vec<_>>());
            let times = operations.iter().map(|o| o["called_unix_s"].as_f64().unwrap());
            assert!(times.is_sorted_by(|earlier, later| *earlier < later + 1e-3), "{recorded}");
            queued();
        }
    });
}

#[test]
fn a_closed_group_refuses_operations_on_the_callers_thread() {
    host_group(2, |_, group| {
        group.barrier(Terms::here(SOON)).wait(None).unwrap();
        group.close();
        let error = group.barrier(Terms::here(SOON)).wait(None).unwrap_err();
        assert!(matches!(error, Error::Closed(_)), "{error}");
    });
}
