//! Reduces a scenario while it still has the same violation: fewer faults, jobs, ranks, less noise.
//!
//! Faults are reduced by delta debugging (Zeller and Hildebrandt, 2002): halves, then quarters and so on are removed
//! while the violation persists. Then everything else is simplified one property at a time until nothing helps.

use crate::fault::{Fault, Kind, Process};
use crate::scenario::{Noise, Scenario};

/// The smallest scenario found. `shows`: whether a scenario has the violation; `goes_on`: whether time is left.
pub fn minimise(
    scenario: Scenario,
    shows: impl Fn(&Scenario) -> bool,
    goes_on: impl Fn() -> bool,
) -> Scenario {
    let mut best = scenario;
    loop {
        let before = best.clone();
        best = fewer_faults(best, &shows, &goes_on);
        for simpler in simplifications(&best) {
            if !goes_on() {
                return best;
            }
            // The candidates derive from the previous scenario; the next round derives new ones from an accepted
            // candidate.
            if simpler != best && shows(&simpler) {
                best = simpler;
                break;
            }
        }
        if best == before || !goes_on() {
            return best;
        }
    }
}

fn fewer_faults(
    scenario: Scenario,
    shows: &impl Fn(&Scenario) -> bool,
    goes_on: &impl Fn() -> bool,
) -> Scenario {
    let mut faults = scenario.faults.clone();
    let with = |faults: &[Fault]| Scenario { faults: faults.to_vec(), ..scenario.clone() };
    let mut parts = 2;
    while !faults.is_empty() && goes_on() {
        let size = faults.len().div_ceil(parts);
        let without = (0..faults.len()).step_by(size).find_map(|start| {
            let end = (start + size).min(faults.len());
            let rest = [&faults[..start], &faults[end..]].concat();
            (goes_on() && shows(&with(&rest))).then_some(rest)
        });
        match without {
            Some(rest) => (faults, parts) = (rest, 2),
            None if size == 1 => break,
            None => parts = (parts * 2).min(faults.len()),
        }
    }
    with(&faults)
}

/// Simplified scenarios, the simplest first.
fn simplifications(scenario: &Scenario) -> Vec<Scenario> {
    let mut list = Vec::new();
    for job in 0..scenario.jobs.len() {
        if scenario.jobs.len() > 1 {
            list.push(without_job(scenario, job));
        }
        if scenario.jobs[job].hosts.len() > 2 {
            list.push(changed(scenario, |s| {
                let half = (s.jobs[job].hosts.len() / 2).max(2);
                s.jobs[job].hosts.truncate(half);
            }));
            list.push(changed(scenario, |s| _ = s.jobs[job].hosts.pop()));
        }
        list.push(changed(scenario, |s| s.jobs[job].elements = s.jobs[job].elements.div_ceil(4)));
        list.push(changed(scenario, |s| s.jobs[job].depth = 1));
        list.push(changed(scenario, |s| s.jobs[job].starts_ms = 0));
        list.push(changed(scenario, |s| s.jobs[job].gap_ms = (s.jobs[job].gap_ms * 3).min(1000)));
        list.push(changed(scenario, |s| s.jobs[job].max_trees = 1));
        list.push(changed(scenario, |s| s.jobs[job].scale = 0));
        list.push(changed(scenario, |s| s.jobs[job].congestion = "none".to_owned()));
        list.push(changed(scenario, |s| s.jobs[job].encrypt = false));
        list.push(changed(scenario, |s| s.jobs[job].all_collectives = false));
    }
    let calm = Noise {
        loss: 0,
        duplication: 0,
        corruption: 0,
        marking: 0,
        jitter_us: 0,
        slow: 0,
        message_jitter_us: 0,
        drift_permille: 0,
    };
    list.insert(0, changed(scenario, |s| s.noise = calm.clone()));
    list.push(changed(scenario, |s| s.adversary = None));
    list.push(changed(scenario, |s| s.adversary.iter_mut().for_each(|one| one.job = None)));
    list.push(changed(scenario, |s| s.noise.loss = 0));
    list.push(changed(scenario, |s| s.noise.duplication = 0));
    list.push(changed(scenario, |s| s.noise.corruption = 0));
    list.push(changed(scenario, |s| s.noise.marking = 0));
    list.push(changed(scenario, |s| s.noise.jitter_us = 0));
    list.push(changed(scenario, |s| s.noise.slow = 0));
    list.push(changed(scenario, |s| s.noise.message_jitter_us = 0));
    list.push(changed(scenario, |s| s.noise.drift_permille = 0));
    list.push(changed(scenario, |s| s.fabric.trusted = true));
    list.push(changed(scenario, |s| (s.first_number, s.first_job) = (0, None)));
    list.push(changed(scenario, |s| {
        (s.fabric.memory, s.fabric.slots, s.fabric.receive_buffer) = (4 << 20, 512, 16 << 20);
    }));
    for fault in 0..scenario.faults.len() {
        list.push(changed(scenario, |s| {
            if let Kind::Partition { group, .. } = &mut s.faults[fault].kind
                && group.len() > 1
            {
                group.pop();
            }
        }));
        list.push(changed(scenario, |s| {
            if let Some(ms) = &mut s.faults[fault].for_ms {
                *ms = *ms * 2 / 3;
            }
        }));
        list.push(changed(scenario, |s| {
            let at = &mut s.faults[fault].at_ms;
            *at = *at / 500 * 500;
        }));
    }
    list
}

fn changed(scenario: &Scenario, change: impl FnOnce(&mut Scenario)) -> Scenario {
    let mut scenario = scenario.clone();
    change(&mut scenario);
    scenario
}

/// Removes a job and its faults, and renumbers the faults of later jobs.
fn without_job(scenario: &Scenario, gone: usize) -> Scenario {
    let mut scenario = scenario.clone();
    scenario.jobs.remove(gone);
    let gone = gone as u32;
    let renumber = |process: &mut Process| match process {
        Process::Rank(job, _) if *job == gone => false,
        Process::Rank(job, _) => {
            *job -= u32::from(*job > gone);
            true
        }
        _ => true,
    };
    if let Some(adversary) = &mut scenario.adversary {
        adversary.job =
            adversary.job.filter(|&job| job != gone).map(|job| job - u32::from(job > gone));
    }
    scenario.faults.retain_mut(|fault| match &mut fault.kind {
        Kind::Kill { process, .. }
        | Kind::Stop { process }
        | Kind::BreakStream { process }
        | Kind::ClockJump { process, .. } => renumber(process),
        Kind::Partition { group, .. } => {
            group.retain_mut(renumber);
            !group.is_empty()
        }
        Kind::StopJob { job } | Kind::RekeyJob { job } => {
            let keep = *job != gone;
            *job -= u32::from(*job > gone);
            keep
        }
        _ => true,
    });
    scenario
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::StoreAfter;

    #[test]
    fn irrelevant_faults_are_removed() {
        let mut scenario = Scenario::of_seed(3);
        let process = Process::Aggregator(0);
        let fault = |at_ms, kind| Fault { at_ms, for_ms: Some(2_000), kind };
        scenario.faults = (0..20).map(|i| fault(100 * i, Kind::Stop { process })).collect();
        scenario.faults[7].kind = Kind::DiskFull;
        scenario.faults[13].kind = Kind::Kill { process, store: StoreAfter::Kept };
        let shows = |scenario: &Scenario| {
            let has =
                |wanted: &dyn Fn(&Kind) -> bool| scenario.faults.iter().any(|f| wanted(&f.kind));
            has(&|kind| *kind == Kind::DiskFull) && has(&|kind| matches!(kind, Kind::Kill { .. }))
        };
        let smallest = minimise(scenario, shows, || true);
        assert_eq!((smallest.faults.len(), smallest.jobs.len()), (2, 1));
        assert_eq!(smallest.jobs[0].hosts.len(), 2);
        assert_eq!((smallest.noise.loss, smallest.jobs[0].elements), (0, 1));
    }

    #[test]
    fn faults_are_removed_with_their_job() {
        let mut scenario = Scenario::of_seed(3);
        let job = scenario.jobs[0].clone();
        scenario.jobs = vec![job.clone(), job.clone(), job];
        let of = |job| Fault { at_ms: 0, for_ms: Some(0), kind: Kind::StopJob { job } };
        scenario.faults = vec![of(0), of(1), of(2)];
        assert_eq!(without_job(&scenario, 1).faults, [of(0), of(1)]);
    }
}
