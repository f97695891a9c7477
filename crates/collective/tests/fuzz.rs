//! The fuzz targets on their kept inputs and on random bytes: a bounded version of `make fuzz`.

use std::path::PathBuf;

use proptest::prelude::*;

#[path = "../../../fuzz/src/lib.rs"]
mod targets;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn decode_takes_anything(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        targets::decode(&bytes);
    }

    #[test]
    fn switch_takes_anything(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        targets::switch(&bytes);
    }

    #[test]
    fn worker_takes_anything(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        targets::worker(&bytes);
    }

    #[test]
    fn slots_take_anything(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        targets::slots::decode(&bytes);
        targets::slots::atp(&bytes);
        targets::slots::switchml(&bytes);
    }

    #[test]
    fn sharded_takes_anything(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        targets::sharded::worker(&bytes);
    }

    #[test]
    fn handover_takes_anything(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        targets::handover::handover(&bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    /// Kept inputs of a target with a few bytes changed, removed or repeated.
    #[test]
    fn parsers_take_inputs_that_are_nearly_right(
        which in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        with in prop::collection::vec(any::<u8>(), 0..6),
        removed in 0..6usize,
    ) {
        let inputs = INPUTS.with(Clone::clone);
        let (target, _, mut bytes) = inputs[which.index(inputs.len())].clone();
        let at = at.index(bytes.len() + 1);
        let end = bytes.len().min(at + removed);
        bytes.splice(at..end, with);
        targets::run(&target, &bytes);
    }

    #[test]
    fn parsers_take_anything(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        targets::TARGETS.iter().for_each(|(_, target)| target(&bytes));
    }
}

/// `NETSUM_FUZZ_CASES` sets how many, for long runs without a fuzzer.
fn cases() -> u32 {
    std::env::var("NETSUM_FUZZ_CASES").map_or(500, |cases| cases.parse().expect("a number"))
}

thread_local! {
    static INPUTS: Vec<(String, PathBuf, Vec<u8>)> = inputs();
}

/// Seeds, and what the fuzzer has found: target, file, bytes.
fn inputs() -> Vec<(String, PathBuf, Vec<u8>)> {
    let mut inputs = seeds();
    for (name, _) in targets::TARGETS {
        let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/kept").join(name);
        let all = std::fs::read(&file).unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut rest = all.as_slice();
        while let Some((len, after)) = rest.split_first_chunk() {
            let (bytes, after) = after.split_at(u32::from_le_bytes(*len) as usize);
            inputs.push(((*name).to_owned(), file.clone(), bytes.to_vec()));
            rest = after;
        }
    }
    inputs
}

/// Inputs that people wrote: target, file, bytes.
fn seeds() -> Vec<(String, PathBuf, Vec<u8>)> {
    let seeds = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds");
    let mut inputs = Vec::new();
    for (name, _) in targets::TARGETS {
        let folder = std::fs::read_dir(seeds.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut files: Vec<PathBuf> = folder.map(|entry| entry.unwrap().path()).collect();
        assert!(!files.is_empty(), "{name} has no kept input");
        files.sort();
        let read = |file: PathBuf| ((*name).to_owned(), file.clone(), std::fs::read(file).unwrap());
        inputs.extend(files.into_iter().map(read));
    }
    inputs
}

#[test]
fn every_target_takes_its_kept_inputs() {
    for (number, (target, file, bytes)) in inputs().into_iter().enumerate() {
        println!("{number}: {}", file.display());
        targets::run(&target, &bytes);
    }
}

/// Kept inputs follow the formats: those of leases are leases.
#[test]
fn kept_leases_can_be_used() {
    let leases = seeds().into_iter().filter(|(target, ..)| target == "lease");
    for (_, file, bytes) in leases {
        assert!(netsum_control::fuzzing::lease(&bytes).is_some(), "{}", file.display());
    }
}

#[test]
fn scripts_reach_the_hand_over() {
    // Rank 0 of a led group has a broken path; the others report: sender, length, kind, generation 2, flags, epoch,
    // issued, over, no silent trees, no faults, no progress.
    let report = [&[3][..], &[0; 7], &[2], &[0; 3], &[0; 16], &[0; 9]].concat();
    let from = |rank: u8| [&[rank, report.len() as u8][..], &report].concat();
    let script = [&[1, 0xb0, 0][..], &from(1), &from(2)].concat();
    assert_eq!(targets::handover::handover(&script), 1);
    assert_eq!(targets::handover::handover(&script[..script.len() - 1]), 0);
}

#[test]
fn scripts_reach_the_slots() {
    // Both workers of job 1, through the switch: delivery, kind, flags, sequence, members.
    let both = [[0x0a, 0, 0, 0, 0], [0x0b, 0, 0, 0, 0]].concat();
    assert_eq!(targets::slots::atp(&both), 1);
    assert_eq!(targets::slots::atp(&both[..5]), 0);
    assert_eq!(targets::slots::switchml(&[0, 0, 0, 0, 3, 0, 0, 0]), 1);
}

#[test]
fn scripts_reach_collectives_of_parties() {
    // Answers to the packets in the order of sending.
    let answers: Vec<u8> = (0..40).flat_map(|sent| [sent, 0, 0, 0]).collect();
    assert!(targets::sharded::worker(&answers) > 20);
}

#[test]
fn scripts_reach_the_machines() {
    // Per packet: delivery (port, flags), kind, indices (job, tree, epoch), vid, elements, format and the rest.
    let both = [[0, 0, 1, 0, 8, 0], [0x11, 0, 1, 0, 8, 0]].concat();
    assert_eq!(targets::switch(&both), 1);
    assert_eq!(targets::switch(&both[..6]), 0);
    let random = |seed: u64| {
        let step = |x: u64| x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let bytes = std::iter::successors(Some(seed), |x| Some(step(*x))).map(|x| (x >> 56) as u8);
        targets::switch(&bytes.take(4000).collect::<Vec<_>>())
    };
    let released: u64 = (0..50).map(random).sum();
    assert!(released > 50, "{released} sums");
}
