//! The simulations of a run: one of everything, or of some islands alone. Together they look like one.

use super::islands::{Islands, Work};
use crate::aggregation::Violation;
use crate::config::{Built, Config};
use crate::faults::Fault;
use crate::job::{JobRecord, StepRecord};
use crate::network::Network;
use crate::simulation::{FlowRecord, Simulation};
use crate::workload::FlowSpec;

/// At most this many islands are simulated alone: each simulation has all links of the network.
const ALONE_MAX: u32 = 32;

/// Simulations that do not affect each other.
pub(super) struct Simulations {
    /// The one of all islands that are not simulated alone, and those of islands 1, 2 and so on.
    all: Vec<Simulation>,
    islands: Islands,
    stop_with_jobs: bool,
    /// Steps of simulations that have skipped further than the others are.
    ahead: Vec<StepRecord>,
}

impl Simulations {
    /// The simulations of this work; `new` makes one in which nothing happens. `apart`: islands may be simulated alone.
    pub(super) fn of(
        work: &Work,
        (config, built): (&Config, &Built),
        apart: bool,
        new: impl Fn() -> Simulation,
    ) -> Simulations {
        let islands = Islands::find(work, built, &new);
        let alone = if apart { islands.last().min(ALONE_MAX) } else { 0 };
        let simulation = |here: &dyn Fn(u32) -> bool| {
            let mut simulation = new();
            announce(&mut simulation, work, (config, built), &islands, here);
            simulation
        };
        let mut rest = simulation(&|island| island == 0 || island > alone);
        rest.set_islands(&islands.by_link);
        let others = (1..=alone).map(|island| simulation(&|other| other == island));
        let mut all: Vec<Simulation> = std::iter::once(rest).chain(others).collect();
        all.iter_mut().for_each(|each| each.share_memory(alone as usize + 1));
        let stop_with_jobs = config.stop_with_jobs;
        Simulations { all, islands, stop_with_jobs, ahead: Vec::new() }
    }

    /// Nothing is looked at before `until_ps`.
    pub(super) fn may_skip_to(&mut self, until_ps: u64) {
        self.all.iter_mut().for_each(|each| each.may_skip_to(until_ps));
    }

    /// Runs up to and including `until_ps`, or until the run is over; true in the latter case.
    pub(super) fn run(&mut self, until_ps: u64) -> bool {
        let jobs_over_ps = if self.stop_with_jobs { self.run_to_ends(until_ps) } else { None };
        let mut idle = true;
        for each in &mut self.all {
            idle &= each.run(until_ps);
        }
        idle || jobs_over_ps.is_some()
    }

    /// Runs the simulations with jobs as far as `until_ps` or the end of their own last job. The last of these ends is
    /// that of all simulations, and is returned once it is known.
    fn run_to_ends(&mut self, until_ps: u64) -> Option<u64> {
        let with_jobs = self.all.iter_mut().filter(|each| each.has_jobs());
        let ends = with_jobs.map(|each| {
            if each.jobs_over_ps().is_none() {
                each.run(until_ps);
            }
            each.jobs_over_ps()
        });
        let ends: Vec<Option<u64>> = ends.collect();
        let last = ends.into_iter().collect::<Option<Vec<u64>>>().and_then(|e| e.into_iter().max());
        let ended = |each: &&mut Simulation| !each.has_jobs() || each.jobs_over_ps().is_some();
        let ended = self.all.iter_mut().filter(ended);
        ended.for_each(|each| each.end_at(last.unwrap_or(u64::MAX)));
        last
    }

    /// Flows completed since the last call, by time.
    pub(super) fn take_finished(&mut self) -> Vec<FlowRecord> {
        let mut flows: Vec<_> = self.all.iter_mut().flat_map(Simulation::take_finished).collect();
        flows.sort_unstable_by_key(|record| (record.end_ps, record.number));
        flows
    }

    /// Steps completed since the last call and up to `until_ps`, by time.
    pub(super) fn take_steps(&mut self, until_ps: u64) -> Vec<StepRecord> {
        let mut steps = std::mem::take(&mut self.ahead);
        steps.extend(self.all.iter_mut().flat_map(Simulation::take_steps));
        steps.sort_unstable_by_key(|record| (record.end_ps, record.job, record.step));
        self.ahead = steps.split_off(steps.partition_point(|record| record.end_ps <= until_ps));
        steps
    }

    /// Jobs completed since the last call, by time.
    pub(super) fn take_jobs(&mut self) -> Vec<JobRecord> {
        let mut jobs: Vec<_> = self.all.iter_mut().flat_map(Simulation::take_jobs).collect();
        jobs.sort_unstable_by_key(|record| (record.end_ps, record.job));
        jobs
    }

    /// Flows that have started and are not complete, each with the payload bytes received; by number.
    pub(super) fn unfinished(&self) -> Vec<(u32, FlowSpec, u64)> {
        let mut flows: Vec<_> = self.all.iter().flat_map(Simulation::unfinished).collect();
        flows.sort_unstable_by_key(|&(number, ..)| number);
        flows
    }

    /// Jobs that do not run by their scheme, with the reason; by number.
    pub(super) fn refused(&self) -> Vec<(u32, String)> {
        let mut jobs: Vec<_> = self.all.iter().flat_map(Simulation::refused).collect();
        jobs.sort_by_key(|&(number, _)| number);
        jobs
    }

    pub(super) fn violations(&mut self) -> Vec<Violation> {
        self.all.iter_mut().flat_map(|each| each.aggregation().violations()).collect()
    }

    /// The networks of all simulations, which are equal but for what has happened in them.
    pub(super) fn networks(&self) -> impl Iterator<Item = &Network> {
        self.all.iter().map(Simulation::network)
    }

    /// The network in which a link carries packets, if any does.
    pub(super) fn network_of(&self, link: u32) -> &Network {
        self.all[self.at(link)].network()
    }

    /// Packet-hops so far.
    pub(super) fn hops(&self) -> u64 {
        self.networks().map(Network::hops).sum()
    }

    /// When the run ended: all simulations end at the same time.
    pub(super) fn now_ps(&self) -> u64 {
        self.all[0].network().now_ps()
    }

    /// Checks the invariants. Panics if one is violated.
    pub(super) fn audit(&mut self) {
        self.all.iter_mut().for_each(Simulation::audit);
        for (at, net) in self.networks().enumerate() {
            let mut others = (0..net.link_count()).filter(|&link| self.at(link) != at);
            let strayed = others.find(|&link| net.carried_bytes(link) > 0);
            assert_eq!(strayed, None, "a packet has left its island");
        }
    }

    /// The simulation of a link.
    fn at(&self, link: u32) -> usize {
        let island = self.islands.of_link(link) as usize;
        if island < self.all.len() { island } else { 0 }
    }
}

/// Announces what happens on some islands.
fn announce(
    simulation: &mut Simulation,
    work: &Work,
    (config, built): (&Config, &Built),
    islands: &Islands,
    here: &dyn Fn(u32) -> bool,
) {
    let is_here = |host: u32| here(islands.of_host(host));
    for &(at_ps, fault) in &built.faults {
        // Loss elsewhere would prevent skips.
        match fault {
            Fault::Loss { link, .. } if !here(islands.of_link(link)) => {}
            _ => simulation.add_fault(at_ps, fault),
        }
    }
    let drops = built.drops.iter().filter(|(link, _)| here(islands.of_link(*link)));
    drops.for_each(|(link, packets)| simulation.drop_packets(*link, packets));
    if config.stop_with_jobs {
        simulation.stop_with_jobs();
    }
    let flows = (0..).zip(work.flows.iter().copied()).filter(|(_, flow)| is_here(flow.src));
    simulation.set_numbered_flows(flows.collect::<Vec<_>>().into_iter());
    let jobs = work.jobs().filter(|(_, job)| is_here(job.placement[0]));
    jobs.for_each(|(number, job)| simulation.add_numbered_job(number, job.clone()));
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{Part, Source, simulations};

    const MS: u64 = 1_000_000_000;

    /// A job in the first pod of a fat tree, and flows from the second to the third.
    fn text(scheme: &str, more: &str) -> String {
        format!(
            "duration = \"200ms\"\ndrain = \"1s\"\n[fabric]\nkind = \"fat-tree\"\nk = 4\n{more}\n\
             [[jobs]]\nhosts = [0, 1, 2, 3]\ncompute = \"100us\"\nbytes = 400000\nsteps = 60\n\
             scheme = {{ {scheme} }}\n\
             [[flows]]\nkind = \"one\"\nsrc = 4\ndst = 8\nbytes = 1000000\n\
             [[flows]]\nkind = \"one\"\nsrc = 5\ndst = 8\nbytes = 100000000\n"
        )
    }

    /// The share of packet-hops that each simulation skips. Steps of jobs begin together.
    fn skipped(text: &str) -> Vec<f64> {
        let (config, mut built) = crate::config::parse(text, "run.toml", Path::new("."))
            .unwrap_or_else(|e| panic!("{e}"));
        built.jobs.iter_mut().for_each(|(_, job)| job.period_ps = 2 * MS);
        let source = Source { config: &config, built: &built, recording: None };
        let mut simulations = simulations(&source, Part::All);
        simulations.may_skip_to(1_000 * MS);
        assert!(simulations.run(1_000 * MS));
        simulations.audit();
        let share =
            |each: &super::Simulation| each.skipped().hops as f64 / each.network().hops() as f64;
        simulations.all.iter().map(share).collect()
    }

    const RING: &str = "kind = \"ring\"";

    #[test]
    fn a_job_on_its_own_links_is_skipped_as_if_it_were_alone() {
        let destination = "[switch]\npaths = \"destination\"";
        for (scheme, more) in
            [(RING, ""), ("kind = \"panama\", window = 6", ""), (RING, destination)]
        {
            let text = text(scheme, more);
            let [flows, job] = skipped(&text)[..] else { panic!("not two: {text}") };
            let alone = skipped(text.split("[[flows]]").next().unwrap());
            assert_eq!((flows, vec![job]), (0.0, alone), "{text}");
            assert!(job > 0.7, "{text}: {job}");
        }
        let step = "parallel = { data = 4, layers = 2, forward = \"50us\", parameters = \"60kB\", \
                    sharding = \"full\" }";
        let text = text(RING, "").replace("compute = \"100us\"\nbytes = 400000", step);
        let [flows, job] = skipped(&text)[..] else { panic!("not two: {text}") };
        assert_eq!(flows, 0.0);
        assert!(job > 0.9, "{text}: {job}");
    }

    /// Numbers of simulations, of which the first is of what is on no island of a job.
    #[test]
    fn what_may_meet_is_simulated_together() {
        let flow = "[[flows]]\nkind = \"one\"\nsrc = 9\ndst = 2\nbytes = 1000\n";
        let job = |hosts: &str, scheme: &str| {
            format!(
                "[[jobs]]\nhosts = {hosts}\ncompute = \"100us\"\nbytes = 400000\nscheme = {{ {scheme} }}\n"
            )
        };
        let (atp, later) = ("kind = \"atp\"", "start = \"1ms\"\n");
        let small = "[switch]\nslots = { count = 1 }";
        let plain = text(RING, "");
        let racks = plain.replace("[0, 1, 2, 3]", "[0, 1]").replace("4\ndst = 8", "2\ndst = 3");
        let cores = |memory| text(RING, memory).replace("[0, 1, 2, 3]", "[0, 12]");
        for (what, text, count) in [
            ("a flow to a worker", plain.clone() + flow, 1),
            ("any path", text(RING, "[switch]\npaths = \"packet\""), 1),
            ("racks of a pod", racks, 2),
            ("links of the same core switches", cores(""), 2),
            ("memory of the same core switches", cores("[switch.shared]\nbytes = \"1MB\""), 1),
            ("flows up from the pod of a job", plain.clone() + &job("[12, 6]", RING), 3),
            ("slots beside a ring", plain.clone() + &job("[12, 13]", atp), 3),
            ("slots beside slots", text(atp, "") + &job("[12, 13]", atp), 2),
            ("rings for lack of memory", text(atp, small) + &job("[12, 13]", atp), 2),
            ("slots that begin later", text(atp, "") + &job("[12, 13]", atp) + later, 1),
        ] {
            assert_eq!(skipped(&text).len(), count, "{what}: {text}");
        }
    }
}
