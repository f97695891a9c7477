//! A run: the network, the hosts' flows, and what is recorded of them.

use netsum_topo::Topology;

use crate::error::SimError;
use crate::network::{Happening, Network, Switching};
use crate::routes::PathChoice;
use crate::tcp::TcpConfig;
use crate::transport::{Owner, Progress, RTO, SLOT, Transport};
use crate::workload::FlowSpec;

/// A flow that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRecord {
    /// Place in the workload, from 0.
    pub number: u32,
    /// What was asked for.
    pub spec: FlowSpec,
    /// When the last byte reached the receiver.
    pub end_ps: u64,
    /// Segments sent again.
    pub resent: u64,
    /// Time-outs.
    pub timeouts: u32,
}

impl FlowRecord {
    /// Flow completion time: from the start to the last byte at the receiver.
    pub fn fct_ps(&self) -> u64 {
        self.end_ps - self.spec.start_ps
    }
}

/// Timer classes; see [`crate::transport`] for its own.
const CLASS: u64 = 0x7f << 56;
const FLOW_START: u64 = 1 << 56;

/// One simulation.
pub struct Simulation {
    net: Network,
    transport: Transport,
    arrivals: Box<dyn Iterator<Item = FlowSpec> + Send>,
    upcoming: Option<FlowSpec>,
    /// Flows that were started, by number.
    specs: Vec<FlowSpec>,
    finished: Vec<FlowRecord>,
    checked: bool,
    checks_at_hop: u64,
}

/// Packet-hops between two audits of a checked run.
const AUDIT_HOPS: u64 = 20_000;

impl Simulation {
    /// A simulation at time 0 without anything to do.
    pub fn new(
        topology: &Topology,
        switching: Switching,
        tcp: TcpConfig,
        seed: u64,
    ) -> Result<Simulation, SimError> {
        let spraying = switching.paths == PathChoice::Packet;
        Ok(Simulation {
            net: Network::new(topology, switching)?,
            transport: Transport::new(tcp, seed, spraying),
            arrivals: Box::new(std::iter::empty()),
            upcoming: None,
            specs: Vec::new(),
            finished: Vec::new(),
            checked: cfg!(debug_assertions),
            checks_at_hop: 0,
        })
    }

    /// Checks conservation and order all the time, not only at the end of `run`.
    pub fn check(&mut self) {
        self.checked = true;
    }

    /// Flows in the order of their starts; replaces what was there.
    pub fn set_flows(&mut self, flows: impl Iterator<Item = FlowSpec> + Send + 'static) {
        self.arrivals = Box::new(flows);
        self.announce_next();
    }

    /// The network.
    pub fn network(&self) -> &Network {
        &self.net
    }

    /// The hosts' flows.
    pub fn transport(&self) -> &Transport {
        &self.transport
    }

    /// Flows that have started.
    pub fn started(&self) -> &[FlowSpec] {
        &self.specs
    }

    /// Flows that were completed since the last call.
    pub fn take_finished(&mut self) -> Vec<FlowRecord> {
        std::mem::take(&mut self.finished)
    }

    /// Runs up to and including `until_ps`; true if nothing is left to do. Audits at the end.
    pub fn run(&mut self, until_ps: u64) -> bool {
        while let Some(happening) = self.net.next(until_ps) {
            match happening {
                Happening::Packet(_, packet) => {
                    if let Some(progress) = self.transport.on_packet(&mut self.net, &packet) {
                        self.on_progress(progress);
                    }
                }
                Happening::Timer(key) => self.on_timer(key),
            }
            if self.checked && self.net.hops() >= self.checks_at_hop {
                self.checks_at_hop = self.net.hops() + AUDIT_HOPS;
                self.net.audit();
            }
        }
        self.net.audit();
        self.upcoming.is_none() && self.transport.active == 0
    }

    fn on_timer(&mut self, key: u64) {
        match key & CLASS {
            FLOW_START => self.start_flow(),
            RTO | SLOT => self.transport.on_timer(&mut self.net, key),
            _ => unreachable!("a timer of nobody"),
        }
    }

    fn on_progress(&mut self, progress: Progress) {
        if let Progress::Complete { number, resent, timeouts } = progress {
            self.finished.push(FlowRecord {
                number,
                spec: self.specs[number as usize],
                end_ps: self.net.now_ps(),
                resent,
                timeouts,
            });
        }
    }

    fn announce_next(&mut self) {
        self.upcoming = self.arrivals.next();
        if let Some(spec) = self.upcoming {
            self.net.set_timer(spec.start_ps.max(self.net.now_ps()), FLOW_START);
        }
    }

    fn start_flow(&mut self) {
        let Some(spec) = self.upcoming.take() else { return };
        let number = self.specs.len() as u32;
        self.specs.push(spec);
        let flow = self.transport.open(spec.src, spec.dst, Owner::Workload(number));
        self.transport.submit(&mut self.net, flow, spec.bytes);
        self.announce_next();
    }
}
