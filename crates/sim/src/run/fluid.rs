//! A run with fluid flows: the completion times of packet flows on the same paths if queues, windows and
//! acknowledgements cost nothing.

use std::io;

use netsum_topo::NodeId;

use super::tables::Tables;
use super::{OnProgress, Pace, Part, Progress, SLICES, Summary};
use crate::config::{Built, Config};
use crate::fluid::{Fluid, Use};
use crate::network::{LinkCounters, Network};
use crate::simulation::FlowRecord;
use crate::tcp::TcpConfig;
use crate::transport::Entropies;
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
        flows: Vec::new(),
        net,
    };
    let total_ps = config.duration.ps() + config.drain.ps();
    let mut done = 0;
    let mut entropies = Entropies::new(config.seed);
    let mut waiting = built.flows.iter().peekable();
    let slice_ps = (total_ps / SLICES).max(1);
    for slice in 1.. {
        let until_ps = (slice * slice_ps).min(total_ps);
        loop {
            let starts = waiting.next_if(|spec| spec.start_ps <= until_ps);
            let to_ps = starts.map_or(until_ps, |spec| spec.start_ps);
            while let Some(record) = pipes.next(to_ps) {
                tables.flow(&record)?;
                summary.flow(&record);
                done += 1;
                // Stops between the ends of two flows: a stop at any other time would change the rounding of the
                // fluid's sums.
                if pace.is_due() {
                    tables.flush()?;
                    let done_ps = pipes.fluid.now() as u64;
                    if progress(Progress { done_ps, total_ps, hops: 0, flows: done, steps: 0 })
                        .is_break()
                    {
                        return pipes.end(tables, summary);
                    }
                }
            }
            let Some(spec) = starts else { break };
            pipes.start(*spec, entropies.draw());
        }
        tables.flush()?;
        let next =
            progress(Progress { done_ps: until_ps, total_ps, hops: 0, flows: done, steps: 0 });
        let idle = waiting.peek().is_none() && pipes.fluid.left().next().is_none();
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
    /// By number: specification, path, and the time that packets add to the fluid.
    flows: Vec<(FlowSpec, Box<[Use]>, u64)>,
}

impl Pipes<'_> {
    fn start(&mut self, spec: FlowSpec, entropy: u16) {
        let uses = self.net.parts(spec.src, spec.dst, entropy);
        let more_ps = self.packets_cost_ps(&spec, entropy);
        self.fluid.start(self.flows.len() as u32, self.wire_bytes(&spec), uses.clone());
        self.flows.push((spec, uses, more_ps));
    }

    /// The time that packets add to a fluid at the rate of the slowest link, on an idle path: propagation, and store
    /// and forward at every link.
    fn packets_cost_ps(&self, spec: &FlowSpec, entropy: u16) -> u64 {
        let (net, segment) = (&self.net, u64::from(self.tcp.segment_bytes));
        let header = u64::from(self.tcp.header_bytes);
        let (full, last) = (segment + header, (spec.bytes - 1) % segment + 1 + header);
        let fulls = spec.bytes.div_ceil(segment) - 1;
        let way = net.way(spec.src, spec.dst, entropy).expect("it has parts");
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

    fn wire_bytes(&self, spec: &FlowSpec) -> f64 {
        let segments = spec.bytes.div_ceil(u64::from(self.tcp.segment_bytes));
        (spec.bytes + segments * u64::from(self.tcp.header_bytes)) as f64
    }

    /// The next flow that completes, by `until_ps`.
    fn next(&mut self, until_ps: u64) -> Option<FlowRecord> {
        let number = self.fluid.next(until_ps as f64)?;
        let (spec, uses, more_ps) = &self.flows[number as usize];
        let bytes = self.wire_bytes(spec);
        uses.iter().for_each(|&(link, part)| self.carried[link as usize] += part * bytes);
        let end_ps = self.fluid.now().round() as u64 + more_ps;
        Some(FlowRecord { number, spec: *spec, end_ps, resent: 0, timeouts: 0 })
    }

    fn end(mut self, tables: &mut Tables, summary: &mut Summary) -> io::Result<()> {
        let now_ps = self.fluid.now();
        summary.ended(now_ps as u64);
        let mut left: Vec<(u32, f64)> = self.fluid.left().collect();
        left.sort_by_key(|flow| flow.0);
        for (number, left) in left {
            let (spec, uses, _) = &self.flows[number as usize];
            let bytes = self.wire_bytes(spec);
            uses.iter()
                .for_each(|&(link, part)| self.carried[link as usize] += part * (bytes - left));
            let received = (spec.bytes as f64 * (1.0 - left / bytes)) as u64;
            tables.unfinished(number, spec, received)?;
            summary.unfinished(spec, received, now_ps as u64);
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
