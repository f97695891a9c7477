//! A run with fluid flows: the completion times of packet flows on the same paths, and the steps of jobs, if queues,
//! windows and acknowledgements cost nothing.

mod jobs;

use std::io;
use std::sync::Arc;

use netsum_topo::NodeId;

use self::jobs::Jobs;
use super::tables::Tables;
use super::{OnProgress, Pace, Part, Progress, SLICES, Summary};
use crate::config::{Built, Config};
use crate::fluid::{Fluid, Use};
use crate::network::{LinkCounters, Network};
use crate::simulation::FlowRecord;
use crate::tcp::TcpConfig;
use crate::transport::{self, Entropies};
use crate::workload::FlowSpec;

/// A flow's time is that of its packets, with their headers, as a fluid, plus the store-and-forward cost on an idle
/// path: for a flow alone on the fabric, the sum equals the time of a train of packets to the picosecond.
pub(super) fn run(
    config: &Config,
    built: &Built,
    tables: &mut Tables,
    summary: &mut Summary,
    pace: &mut Pace,
    progress: OnProgress,
) -> io::Result<()> {
    let net = Network::new(&built.topology, built.switching)
        .expect("a configuration's fabric was checked");
    // Bytes per picosecond.
    let capacity =
        (0..net.link_count()).map(|link| 1e6 / net.serialisation_ps(link, 1_000_000) as f64);
    let mut pipes = Pipes {
        tcp: &built.tcp,
        fluid: Fluid::new(capacity.collect()),
        carried: vec![0.0; net.link_count() as usize],
        streams: Vec::new(),
        flows: 0,
        net,
    };
    let mut jobs = Jobs::new(&built.jobs, config.seed);
    let total_ps = config.duration.ps() + config.drain.ps();
    let (mut done, mut steps) = (0, 0);
    let entropies = Entropies::new(config.seed);
    let mut waiting = built.flows.iter().peekable();
    let slice_ps = (total_ps / SLICES).max(1);
    for slice in 1.. {
        let until_ps = (slice * slice_ps).min(total_ps);
        loop {
            let start_ps = waiting.peek().map_or(u64::MAX, |spec| spec.start_ps);
            let to_ps = start_ps.min(jobs.next_ps()).min(until_ps);
            if let Some(ended) = pipes.next(to_ps) {
                match ended {
                    Ended::Flow(record) => {
                        tables.flow(&record)?;
                        summary.flow(&record);
                        done += 1;
                    }
                    Ended::Part(job) => jobs.on_part(&pipes, job),
                }
                // Stops between the ends of two flows: a stop at any other time would change the rounding of the
                // fluid's sums.
                if pace.is_due() {
                    tables.flush()?;
                    let done_ps = pipes.fluid.now() as u64;
                    if progress(Progress { done_ps, total_ps, hops: 0, flows: done, steps })
                        .is_break()
                    {
                        return pipes.end(tables, summary);
                    }
                }
                continue;
            }
            if let Some(spec) = waiting.next_if(|spec| spec.start_ps <= to_ps) {
                let owner = transport::Owner::Workload(pipes.flows);
                pipes.start(*spec, entropies.of(owner));
            } else if jobs.next_ps() <= to_ps {
                jobs.on_timer(&mut pipes);
                for (job, reason) in jobs.refused.drain(..) {
                    summary.refused(job, &reason);
                }
                for record in jobs.steps.drain(..) {
                    tables.step(&record)?;
                    summary.step(&record);
                    steps += 1;
                }
                for record in jobs.finished.drain(..) {
                    let job = &built.jobs[record.job as usize];
                    tables.job(&record, job)?;
                    summary.job(&job.1);
                }
                if config.stop_with_jobs && jobs.are_over() {
                    return pipes.end(tables, summary);
                }
            } else {
                break;
            }
        }
        tables.flush()?;
        let next = progress(Progress { done_ps: until_ps, total_ps, hops: 0, flows: done, steps });
        let idle = waiting.peek().is_none()
            && jobs.next_ps() == u64::MAX
            && pipes.fluid.left().next().is_none();
        if idle || until_ps == total_ps || next.is_break() {
            return pipes.end(tables, summary);
        }
    }
    unreachable!("the last slice ends the run")
}

/// The fluid, and its view of flows and links.
struct Pipes<'a> {
    tcp: &'a TcpConfig,
    net: Network,
    fluid: Fluid,
    /// By link, bytes of completed flows.
    carried: Vec<f64>,
    /// What flows in the fluid, or has flowed there, by its number there.
    streams: Vec<Stream>,
    /// Number of flows of hosts that have started.
    flows: u32,
}

/// What flows in the fluid.
struct Stream {
    of: Owner,
    uses: Arc<[Use]>,
    /// On the wire.
    bytes: f64,
}

enum Owner {
    /// A flow's number and specification, and the time that packets add to the fluid.
    Flow(u32, FlowSpec, u64),
    /// A part of an operation of the job with this number.
    Job(u32),
}

/// What is complete in the fluid.
enum Ended {
    Flow(FlowRecord),
    Part(u32),
}

impl Pipes<'_> {
    fn start(&mut self, spec: FlowSpec, entropy: u16) {
        let uses = self.net.parts(spec.src, spec.dst, entropy);
        let way = self.net.way(spec.src, spec.dst, entropy).expect("it has parts");
        let more_ps = self.packets_cost_ps(&way, spec.bytes);
        let bytes = self.wire_bytes(spec.bytes);
        self.pour(Owner::Flow(self.flows, spec, more_ps), uses.into(), bytes);
        self.flows += 1;
    }

    /// Starts a part of an operation of a job: `bytes` on the wire.
    fn start_part(&mut self, job: u32, uses: &Arc<[Use]>, bytes: f64) {
        self.pour(Owner::Job(job), Arc::clone(uses), bytes);
    }

    fn pour(&mut self, of: Owner, uses: Arc<[Use]>, bytes: f64) {
        self.fluid.start(self.streams.len() as u32, bytes, Arc::clone(&uses));
        self.streams.push(Stream { of, uses, bytes });
    }

    /// The time that the packets of `bytes` add to a fluid at the rate of the slowest link, on an idle path:
    /// propagation, and store and forward at every link.
    fn packets_cost_ps(&self, way: &[u32], bytes: u64) -> u64 {
        let (net, segment) = (&self.net, u64::from(self.tcp.segment_bytes));
        let header = u64::from(self.tcp.header_bytes);
        let (full, last) = (segment + header, (bytes - 1) % segment + 1 + header);
        let fulls = bytes.div_ceil(segment) - 1;
        let propagation: u64 = way.iter().map(|&link| net.propagation_ps(link)).sum();
        let at = |bytes| way.iter().map(move |&link| net.serialisation_ps(link, bytes));
        // The last packet may be shorter: up to some link it waits for the full packets before it, from there on it
        // does not.
        let (mut before, mut slowest, mut after) = (0, 0, at(last).sum::<u64>());
        let mut train = after;
        for (full, last) in at(full).zip(at(last)).filter(|_| fulls > 0) {
            before += full;
            slowest = slowest.max(full);
            train = train.max(before + (fulls - 1) * slowest + after);
            after -= last;
        }
        train + propagation - fulls * slowest - at(last).max().unwrap_or(0)
    }

    fn wire_bytes(&self, bytes: u64) -> f64 {
        let segments = bytes.div_ceil(u64::from(self.tcp.segment_bytes));
        (bytes + segments * u64::from(self.tcp.header_bytes)) as f64
    }

    /// What completes next, by `until_ps`.
    fn next(&mut self, until_ps: u64) -> Option<Ended> {
        let Stream { of, uses, bytes } = &self.streams[self.fluid.next(until_ps as f64)? as usize];
        uses.iter().for_each(|&(link, part)| self.carried[link as usize] += part * bytes);
        Some(match *of {
            Owner::Flow(number, spec, more_ps) => {
                let end_ps = self.now_ps() + more_ps;
                Ended::Flow(FlowRecord { number, spec, end_ps, resent: 0, timeouts: 0 })
            }
            Owner::Job(job) => Ended::Part(job),
        })
    }

    fn now_ps(&self) -> u64 {
        self.fluid.now().round() as u64
    }

    fn end(mut self, tables: &mut Tables, summary: &mut Summary) -> io::Result<()> {
        let now_ps = self.fluid.now();
        summary.ended(now_ps as u64);
        let mut left: Vec<(u32, f64)> = self.fluid.left().collect();
        left.sort_by_key(|flow| flow.0);
        for (number, left) in left {
            let Stream { of, uses, bytes } = &self.streams[number as usize];
            uses.iter()
                .for_each(|&(link, part)| self.carried[link as usize] += part * (bytes - left));
            if let Owner::Flow(number, spec, _) = of {
                let received = (spec.bytes as f64 * (1.0 - left / bytes)) as u64;
                tables.unfinished(*number, spec, received)?;
                summary.unfinished(spec, received, now_ps as u64);
            }
        }
        for link in 0..self.net.link_count() {
            let names =
                [link ^ 1, link].map(|l| self.net.topology().name(NodeId(self.net.far_end(l))));
            let carried = self.carried[link as usize].round() as u64;
            let utilisation = self.net.serialisation_ps(link, carried) as f64 / now_ps;
            tables.link(Part::All, names, carried, utilisation, LinkCounters::default())?;
        }
        Ok(())
    }
}
