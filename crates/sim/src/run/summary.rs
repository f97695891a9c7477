//! The summary of a run, in one file.

use std::path::Path;

use netsum_topo::NodeId;
use serde_json::{Value, json};

use super::simulations::Simulations;
use crate::config::{Built, Config, Fabric};
use crate::job::{ENDLESS, JobSpec, StepRecord};
use crate::network::{Balance, Network};
use crate::simulation::FlowRecord;
use crate::workload::FlowSpec;

/// Figures that are collected during the run.
pub(super) struct Summary {
    name: String,
    seed: u64,
    notes: Vec<String>,
    /// Names of a fabric file's hosts; the names of nodes of a built fabric show their kind.
    hosts: Option<Vec<String>>,
    short_fct_us: Vec<f64>,
    long_gbps: Vec<f64>,
    unfinished: u64,
    /// Jobs with a last step that are not complete.
    unfinished_jobs: usize,
    /// Of each step: its duration, and the time from the first gradient to the last sum.
    step_us: Vec<f64>,
    reduce_us: Vec<f64>,
    hops: u64,
    packets: [u64; 3],
    refused: Vec<String>,
    ended_ps: u64,
}

/// Links of a deadlock that are named.
const STUCK_NAMED: usize = 8;
/// PANAMA's threshold between short and long flows.
const SHORT_BYTES: u64 = 40_000_000;

impl Summary {
    pub(super) fn new(config: &Config, built: &Built) -> Summary {
        let ends = |(_, job): &&(String, JobSpec)| job.steps != ENDLESS;
        let name = |host| built.topology.name(host).to_owned();
        let names = || built.topology.hosts().map(name).collect();
        Summary {
            name: config.name.clone(),
            seed: config.seed,
            notes: built.notes.clone(),
            hosts: matches!(config.fabric, Fabric::File { .. }).then(names),
            short_fct_us: Vec::new(),
            long_gbps: Vec::new(),
            unfinished: 0,
            unfinished_jobs: built.jobs.iter().filter(ends).count(),
            step_us: Vec::new(),
            reduce_us: Vec::new(),
            hops: 0,
            packets: [0; 3],
            refused: Vec::new(),
            ended_ps: 0,
        }
    }

    pub(super) fn flow(&mut self, record: &FlowRecord) {
        let fct_us = record.fct_ps() as f64 / 1e6;
        match record.spec.bytes < SHORT_BYTES {
            true => self.short_fct_us.push(fct_us),
            false => self.long_gbps.push(record.spec.bytes as f64 * 8.0 / fct_us / 1e3),
        }
    }

    /// An incomplete flow: a long one counts with its rate so far, a short one only as incomplete.
    pub(super) fn unfinished(&mut self, spec: &FlowSpec, received: u64, now_ps: u64) {
        self.unfinished += 1;
        if spec.bytes >= SHORT_BYTES && now_ps > spec.start_ps {
            let us = (now_ps - spec.start_ps) as f64 / 1e6;
            self.long_gbps.push(received as f64 * 8.0 / us / 1e3);
        }
    }

    pub(super) fn step(&mut self, record: &StepRecord) {
        self.step_us.push((record.end_ps - record.start_ps) as f64 / 1e6);
        self.reduce_us.push((record.end_ps - record.reduce_start_ps) as f64 / 1e6);
    }

    pub(super) fn job(&mut self, spec: &JobSpec) {
        self.unfinished_jobs -= usize::from(spec.steps != ENDLESS);
    }

    /// A job that does not run by its scheme, with the reason.
    pub(super) fn refused(&mut self, job: u32, reason: &str) {
        self.refused.push(format!("job {job} {reason}"));
    }

    pub(super) fn end(&mut self, simulations: &Simulations) {
        self.ended(simulations.now_ps());
        self.hops += simulations.hops();
        for Balance { sent, delivered, dropped } in simulations.networks().map(Network::balance) {
            let of = [sent, delivered, dropped];
            self.packets.iter_mut().zip(of).for_each(|(sum, (packets, _))| *sum += packets);
        }
        let net = simulations.network_of(0);
        let ends = |link| [link ^ 1, link].map(|l| net.topology().name(NodeId(net.far_end(l))));
        let mut stuck: Vec<u32> = simulations.networks().flat_map(Network::deadlocked).collect();
        stuck.sort_unstable();
        let stuck: Vec<String> = stuck.into_iter().map(|link| ends(link).join(">")).collect();
        if !stuck.is_empty() {
            let (first, more) = stuck.split_at(stuck.len().min(STUCK_NAMED));
            let more = if more.is_empty() { String::new() } else { format!(" and {}", more.len()) };
            let links = first.join(", ");
            self.notes.push(format!(
                "PAUSE deadlock: at the end {links}{more} wait for each other, and none resumes"
            ));
        }
        for (job, what) in simulations.refused() {
            self.refused(job, &what);
        }
    }

    /// The simulated time at which a part of the run ended.
    pub(super) fn ended(&mut self, now_ps: u64) {
        self.ended_ps = self.ended_ps.max(now_ps);
    }

    pub(super) fn write(mut self, path: &Path) -> std::io::Result<()> {
        let json = json!({
            "name": self.name,
            "seed": self.seed,
            "version": env!("CARGO_PKG_VERSION"),
            "notes": self.notes,
            "hosts": self.hosts,
            "simulated_us": self.ended_ps as f64 / 1e6,
            "packet_hops": self.hops,
            "packets": { "sent": self.packets[0], "delivered": self.packets[1], "dropped": self.packets[2] },
            "short_flows": { "below_bytes": SHORT_BYTES, "fct_us": distribution(&mut self.short_fct_us) },
            "long_flows": { "throughput_gbps": distribution(&mut self.long_gbps) },
            "unfinished_flows": self.unfinished,
            "unfinished_jobs": self.unfinished_jobs,
            "steps": { "duration_us": distribution(&mut self.step_us), "reduce_us": distribution(&mut self.reduce_us) },
            "refused": self.refused,
        });
        std::fs::write(path, format!("{json:#}\n"))
    }
}

/// Count, mean and nearest-rank percentiles.
fn distribution(values: &mut [f64]) -> Value {
    values.sort_by(f64::total_cmp);
    let Some(&most) = values.last() else { return json!({ "count": 0 }) };
    let at = |p: f64| values[((p / 100.0 * values.len() as f64).ceil() as usize).max(1) - 1];
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    json!({
        "count": values.len(), "mean": mean, "p50": at(50.0), "p90": at(90.0), "p99": at(99.0), "max": most,
    })
}
