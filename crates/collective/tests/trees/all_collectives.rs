//! Reduce-scatter, all-gather, broadcast, reduce and barrier by switches, on copies of the trees.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use netsum_collective::{
    Buffer, Combine, Dtype, Format, Group, GroupConfig, Options, ReduceOp, Work,
};

use crate::support::{SOON, buffer, bytes, values, with_group};
use crate::world::{RANKS, SUM, World, expected, stats};

fn config(world: &World, rank: u32) -> GroupConfig {
    config_of("panama", world, rank)
}

fn config_of(protocol: &str, world: &World, rank: u32) -> GroupConfig {
    let config = world.config(rank);
    let protocol = protocol.to_owned();
    let options = Options { all_collectives: true, protocol, ..config.options.clone() };
    GroupConfig { options, ..config }
}

/// An operation in progress.
struct Pending {
    what: String,
    work: Work,
    /// What this rank gets.
    result: Buffer,
    expected: Vec<u8>,
    /// What must not change.
    inputs: Vec<Buffer>,
    before: Vec<Vec<u8>>,
}

impl Pending {
    fn check(self) {
        self.work.wait(None).unwrap();
        assert!(bytes(&self.result) == self.expected, "{}", self.what);
        for (input, before) in self.inputs.iter().zip(self.before) {
            assert!(bytes(input) == before, "{} changed its input", self.what);
        }
    }
}

/// First element and elements of every rank's part of `n` elements, some of which are longer.
fn parts(n: usize, salt: u64) -> Vec<(usize, usize)> {
    let even = n / RANKS as usize;
    let longer = if salt.is_multiple_of(2) { 0 } else { even / 3 };
    let mut start = 0;
    let part = |rank: u32| {
        let len = if rank + 1 == RANKS { n - start } else { even - longer };
        start += len;
        (start - len, len)
    };
    (0..RANKS).map(part).collect()
}

fn reduce_scatter(group: &Group, rank: u32, dtype: Dtype, n: usize, salt: u64) -> Pending {
    let (own, parts) = (values(dtype, n, rank, salt), parts(n, salt));
    let place = |(start, len): (usize, usize)| start * dtype.size()..(start + len) * dtype.size();
    let mut inputs: Vec<Buffer> = parts.iter().map(|part| buffer(&own[place(*part)])).collect();
    let sum = expected(dtype, ReduceOp::Sum, n, salt);
    let expected = sum[place(parts[rank as usize])].to_vec();
    let lent = inputs.iter_mut().map(Buffer::lend_all).collect();
    let what = format!("reduce-scatter of {n} {dtype} #{salt} at rank {rank}");
    if salt.is_multiple_of(3) {
        // In place of the own input.
        let work = group.reduce_scatter(None, lent, dtype, SUM, SOON);
        let result = inputs.remove(rank as usize);
        let before = (0..RANKS).filter(|other| *other != rank);
        let before = before.map(|other| own[place(parts[other as usize])].to_vec()).collect();
        return Pending { what, work, result, expected, inputs, before };
    }
    let mut result = buffer(&vec![7; expected.len()]);
    let work = group.reduce_scatter(result.lend_all(), lent, dtype, SUM, SOON);
    let before = parts.iter().map(|part| own[place(*part)].to_vec()).collect();
    Pending { what, work, result, expected, inputs, before }
}

fn allgather(group: &Group, rank: u32, n: usize, salt: u64) -> Pending {
    let parts = parts(n, salt);
    let of = |rank: u32| values(Dtype::I32, parts[rank as usize].1, rank, salt);
    let expected: Vec<u8> = (0..RANKS).flat_map(of).collect();
    let mut result = buffer(&vec![7; expected.len()]);
    let outputs = parts.iter().map(|(start, len)| result.lend_mut(start * 4..(start + len) * 4));
    let (outputs, mut input) = (outputs.collect(), buffer(&of(rank)));
    let work = group.allgather(outputs, input.lend_all(), SOON);
    let what = format!("all-gather of {n} elements #{salt} at rank {rank}");
    Pending { what, work, result, expected, inputs: vec![input], before: vec![of(rank)] }
}

fn broadcast(group: &Group, rank: u32, n: usize, salt: u64) -> Pending {
    let root = salt as u32 % RANKS;
    let of = |rank: u32| values(Dtype::I32, n, rank, salt);
    let mut result = buffer(&of(rank));
    let work = group.broadcast(result.lend_all(), root, SOON);
    let what = format!("broadcast of {n} elements from {root} #{salt} at rank {rank}");
    Pending { what, work, result, expected: of(root), inputs: Vec::new(), before: Vec::new() }
}

fn reduce(group: &Group, rank: u32, dtype: Dtype, n: usize, salt: u64) -> Pending {
    let root = salt as u32 % RANKS;
    let own = values(dtype, n, rank, salt);
    let mut result = buffer(&own);
    let work = group.reduce(result.lend_all(), dtype, SUM, root, SOON);
    let expected = if rank == root { expected(dtype, ReduceOp::Sum, n, salt) } else { own };
    let what = format!("reduce of {n} {dtype} to {root} #{salt} at rank {rank}");
    Pending { what, work, result, expected, inputs: Vec::new(), before: Vec::new() }
}

fn allreduce(group: &Group, rank: u32, dtype: Dtype, n: usize, salt: u64) -> Pending {
    let mut result = buffer(&values(dtype, n, rank, salt));
    let work = group.allreduce(result.lend_all(), dtype, SUM, SOON);
    let expected = expected(dtype, ReduceOp::Sum, n, salt);
    let what = format!("allreduce of {n} elements #{salt} at rank {rank}");
    Pending { what, work, result, expected, inputs: Vec::new(), before: Vec::new() }
}

/// A barrier that must not end before all ranks have begun their `round`th.
fn barrier(group: &Group, come: &AtomicU32, round: u32) {
    come.fetch_add(1, Ordering::SeqCst);
    group.barrier(SOON).wait(None).unwrap();
    let come = come.load(Ordering::SeqCst);
    assert!(come >= round * RANKS, "{come} calls before the end of barrier {round}");
}

#[test]
fn no_rank_leaves_a_barrier_of_switches_before_the_last_has_come() {
    let world = World::new();
    let come = AtomicU32::new(0);
    let traffic = with_group(
        RANKS,
        |rank| config(&world, rank),
        |rank, group| {
            let before = stats(group);
            for round in 1..=40 {
                if round % RANKS == rank {
                    // Whoever does not wait for this rank has time to show it.
                    std::thread::sleep(Duration::from_millis(2));
                }
                barrier(group, &come, round);
            }
            let after = stats(group);
            assert_eq!(after["network_operations"], 40, "{after}");
            let sent = |stats: &serde_json::Value| stats["host_bytes_tx"].as_u64().unwrap();
            sent(&after) - sent(&before)
        },
    );
    assert_eq!(traffic, [0; RANKS as usize], "the ranks send each other nothing");
}

/// On one machine they are measured on request alone.
#[test]
fn ranks_agree_on_measured_costs_and_explain_what_they_choose() {
    let world = World::new();
    let unmeasured =
        with_group(RANKS, |rank| config(&world, rank), |_, group| stats(group)["switches"].clone());
    assert_eq!(unmeasured, vec![serde_json::Value::Null; RANKS as usize]);
    let measured = |rank| {
        let config = config(&world, rank);
        let options = Options { always_measured: true, ..config.options.clone() };
        GroupConfig { options, ..config }
    };
    let come = AtomicU32::new(0);
    let costs = with_group(RANKS, measured, |rank, group| {
        let before = stats(group);
        assert_eq!(before["operations"], 0, "measuring is not counted: {before}");
        let chosen = |operation: &str, bytes: usize| {
            let format = Format { dtype: Dtype::F32, op: ReduceOp::Sum };
            let choice = group.explain(operation, format, bytes).unwrap();
            let of = |name: &str| choice.costs.iter().find(|cost| cost.name == name);
            assert!(of("switches").unwrap().seconds.is_some(), "{choice:?}");
            u64::from(choice.chosen == "switches")
        };
        let mut expected = 0;
        for n in [2, 500, 40_000, 400_000] {
            allreduce(group, rank, Dtype::F32, n, 1).check();
            // Equal parts, as they are explained.
            allgather(group, rank, n * RANKS as usize, 2).check();
            reduce_scatter(group, rank, Dtype::F32, n * RANKS as usize, 2).check();
            broadcast(group, rank, n, 1).check();
            let bytes = 4 * n;
            expected += chosen("allreduce", bytes)
                + chosen("allgather", bytes)
                + chosen("reduce_scatter", bytes * RANKS as usize)
                + chosen("broadcast", bytes);
        }
        barrier(group, &come, 1);
        expected += chosen("barrier", 0);
        let after = stats(group);
        assert_eq!(after["network_operations"], expected, "{after}");
        for operation in ["allreduce", "reduce", "reduce_scatter", "broadcast", "allgather"] {
            for way in ["switches", "hosts"] {
                let curve = after["switches"][operation][way].as_array().unwrap();
                let bytes = |place: usize| curve[place][0].as_u64().unwrap();
                assert!(
                    (0..curve.len() - 1).all(|place| bytes(place) < bytes(place + 1)),
                    "{after}"
                );
                assert!(curve.iter().all(|point| point[1].as_f64().unwrap() > 0.0), "{after}");
            }
        }
        assert_eq!(after["switches"]["barrier"]["switches"].as_array().unwrap().len(), 1);
        after["switches"].clone()
    });
    assert!(costs.iter().all(|cost| *cost == costs[0]), "{costs:?}");
}

#[test]
fn every_rank_gets_its_part_through_switches() {
    let world = World::new();
    with_group(
        RANKS,
        |rank| config(&world, rank),
        |rank, group| {
            let mut operations = 0;
            for dtype in [Dtype::F32, Dtype::Bf16, Dtype::I64] {
                for salt in 0..6 {
                    reduce_scatter(group, rank, dtype, 40_003, salt).check();
                    reduce(group, rank, dtype, 10_007, salt).check();
                    allgather(group, rank, 40_003, salt).check();
                    broadcast(group, rank, 10_007, salt).check();
                    operations += 4;
                }
            }
            let ones = 1.0f32.to_le_bytes().repeat(2000);
            let mut average = buffer(&vec![0; 8000]);
            let given = (0..RANKS).map(|_| buffer(&ones)).collect();
            let how = Combine::ScaledSum(f64::from(rank));
            group
                .reduce_scatter(average.lend_all(), given, Dtype::F32, how, SOON)
                .wait(None)
                .unwrap();
            assert_eq!(bytes(&average), 6.0f32.to_le_bytes().repeat(2000));
            let given = (0..RANKS).map(|_| buffer(&ones)).collect();
            let how = Combine::Average;
            group
                .reduce_scatter(average.lend_all(), given, Dtype::F32, how, SOON)
                .wait(None)
                .unwrap();
            assert_eq!(bytes(&average), ones);
            // Hosts do what packets cannot carry: an odd number of bytes.
            let mut odd = buffer(&[rank as u8; 4001]);
            group.broadcast(odd.lend_all(), 2, SOON).wait(None).unwrap();
            assert_eq!(bytes(&odd), [2; 4001]);
            let stats = stats(group);
            assert_eq!(stats["network_operations"], operations + 2, "{stats}");
            assert_eq!(
                stats["trees"].as_array().unwrap().len(),
                4,
                "two trees and their copies: {stats}"
            );
        },
    );
}

/// All ranks keep operations of all kinds in flight until stopped, and check each.
fn keep_going(group: &Group, rank: u32, enough: &AtomicBool, done: &AtomicU32) {
    keep_adding([Dtype::F32, Dtype::Bf16], group, rank, enough, done);
}

/// The same with sums that slots make exactly.
fn keep_adding_integers(group: &Group, rank: u32, enough: &AtomicBool, done: &AtomicU32) {
    keep_adding([Dtype::I32, Dtype::I32], group, rank, enough, done);
}

fn keep_adding(
    [wide, narrow]: [Dtype; 2],
    group: &Group,
    rank: u32,
    enough: &AtomicBool,
    done: &AtomicU32,
) {
    for round in 0.. {
        // Nobody has come further than this round, and all have ended the last one.
        let ended = done.load(Ordering::SeqCst);
        assert!(ended <= RANKS * (round as u32 + 1), "{ended} rounds have ended in round {round}");
        group.barrier(SOON).wait(None).unwrap();
        let ended = done.load(Ordering::SeqCst);
        assert!(ended >= RANKS * round as u32, "{ended} rounds before the end of barrier {round}");
        let mut stop = buffer(&u32::from(enough.load(Ordering::Relaxed)).to_le_bytes());
        let max = Combine::Plain(ReduceOp::Max);
        group.allreduce(&mut stop, Dtype::I32, max, SOON).wait(None).unwrap();
        if bytes(&stop)[0] == 1 {
            return;
        }
        let n = 30_000 + round as usize % 7;
        let pending = [
            reduce_scatter(group, rank, wide, n, 6 * round),
            allgather(group, rank, n, 6 * round + 1),
            reduce_scatter(group, rank, narrow, n, 6 * round + 1),
            allreduce(group, rank, wide, n, round),
            reduce(group, rank, wide, n / 4, round),
            broadcast(group, rank, n / 4, round),
            allgather(group, rank, n, 6 * round + 2),
        ];
        pending.into_iter().for_each(Pending::check);
        done.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn dead_switches_cost_pauses_and_no_bit() {
    let mut world = World::new();
    let configs = (0..RANKS).map(|rank| config(&world, rank)).collect();
    let stats = world.under_load(configs, keep_going, |world, after| {
        for _ in 0..2 {
            after(5);
            world.kill("spine0");
            after(10);
            world.start(world.index("spine0"));
            world.wait_until_up(6);
        }
        after(5);
        world.kill("rack1");
        after(5);
        world.start(world.index("rack1"));
        world.wait_until_up(6);
        after(10);
    });
    for stats in &stats {
        assert!(stats["pauses"].as_array().unwrap().len() >= 4, "{stats}");
        assert_eq!(stats["path"], "trees", "{stats}");
    }
}

#[test]
fn every_rank_gets_its_part_through_slots_and_servers() {
    get_parts_through_slots("atp", 4);
}

#[test]
fn every_rank_gets_its_part_through_pools() {
    get_parts_through_slots("switchml", 2);
}

/// `trees`: two servers' trees, or the pool, and their copies.
fn get_parts_through_slots(protocol: &'static str, trees: usize) {
    let world = World::new();
    let come = AtomicU32::new(0);
    let reals = with_group(
        RANKS,
        |rank| config_of(protocol, &world, rank),
        |rank, group| {
            for salt in 0..6 {
                reduce_scatter(group, rank, Dtype::I32, 40_003, salt).check();
                reduce(group, rank, Dtype::I32, 10_007, salt).check();
                allgather(group, rank, 40_003, salt).check();
                broadcast(group, rank, 10_007, salt).check();
                allreduce(group, rank, Dtype::I32, 10_007, salt).check();
                barrier(group, &come, 1 + salt as u32);
            }
            // Reals are added as integers: what a rank takes of a reduce-scatter is what an allreduce gives.
            let own = values(Dtype::F32, 40_000, rank, 9);
            let mut all = buffer(&own);
            group.allreduce(all.lend_all(), Dtype::F32, SUM, SOON).wait(None).unwrap();
            let mut parts: Vec<Buffer> = own.chunks(own.len() / 4).map(buffer).collect();
            let lent = parts.iter_mut().map(Buffer::lend_all).collect();
            let mut mine = buffer(&vec![0; own.len() / 4]);
            let work = group.reduce_scatter(mine.lend_all(), lent, Dtype::F32, SUM, SOON);
            work.wait(None).unwrap();
            let stats = stats(group);
            assert_eq!((&stats["protocol"], &stats["path"]), (&protocol.into(), &"trees".into()));
            assert_eq!(stats["network_operations"], 6 * 6 + 2, "{stats}");
            assert_eq!(stats["trees"].as_array().unwrap().len(), trees, "{stats}");
            (bytes(&all), bytes(&mine))
        },
    );
    let parts: Vec<u8> = reals.iter().flat_map(|(_, part)| part.clone()).collect();
    assert!(reals.iter().all(|(all, _)| *all == parts), "reals are the same in every part");
}

#[test]
fn dead_servers_cost_pauses_and_no_bit() {
    let mut world = World::new();
    let configs = (0..RANKS).map(|rank| config_of("atp", &world, rank)).collect();
    let stats = world.under_load(configs, keep_adding_integers, |world, after| {
        for victim in ["server0", "rack1"] {
            after(5);
            world.kill(victim);
            after(5);
            world.start(world.index(victim));
        }
        after(10);
    });
    for stats in &stats {
        assert!(stats["pauses"].as_array().unwrap().len() >= 2, "{stats}");
        assert_eq!((&stats["protocol"], &stats["path"]), (&"atp".into(), &"trees".into()));
    }
}

#[test]
fn hosts_do_the_rest_without_a_controller() {
    let mut world = World::new();
    let configs = (0..RANKS).map(|rank| config(&world, rank)).collect();
    let stats = world.under_load(configs, keep_going, |world, after| {
        after(5);
        world.controller.take().unwrap().kill();
        after(5);
        world.kill("spine1");
        after(5);
    });
    assert!(stats.iter().all(|stats| stats["path"] == "host"), "{}", stats[0]);
}

/// They travel on different trees, and meet at no switch.
#[test]
fn different_calls_are_an_error_at_every_rank() {
    let world = World::new();
    let errors = with_group(
        RANKS,
        |rank| config(&world, rank),
        |rank, group| {
            allgather(group, rank, 40_000, 0).check();
            let pending = match rank {
                1 => reduce_scatter(group, rank, Dtype::F32, 40_000, 1),
                _ => allgather(group, rank, 40_000, 1),
            };
            pending.work.wait(Some(SOON)).unwrap_err().to_string()
        },
    );
    for text in errors {
        assert!(text.contains("rank 1 called reduce_scatter float32"), "{text}");
        assert!(text.contains("called allgather of"), "{text}");
        assert!(text.contains("; rank 1 differs from most ranks"), "{text}");
    }
}
