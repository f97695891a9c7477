//! What hosts do: flows, jobs, and what arrives at workers. One thread does it, in the order in which it happens.

use crate::aggregation::{Local, NODE, Payload};
use crate::job::{BUCKET, JOB_START, Jobs};
use crate::network::{NetworkEvent, Region};
use crate::packet::Kind;
use crate::tcp::TcpConfig;
use crate::timer::CLASS;
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

/// Timer classes; [`crate::transport`], [`crate::job`] and [`crate::aggregation`] have more. Faults have the least keys: what
/// starts in the instant of a fault starts after it.
pub(crate) const FAULT: u64 = 0;
const FLOW_START: u64 = 1 << 56;

/// Flows and jobs.
pub(crate) struct Hosts {
    pub transport: Transport,
    pub jobs: Jobs,
    /// Jobs that were announced, and that have not started.
    pub announced_jobs: u32,
    pub waiting_jobs: u32,
    /// Jobs that are over and had something in the network.
    pub ended_jobs: Vec<u32>,
    arrivals: Box<dyn Iterator<Item = FlowSpec> + Send>,
    pub upcoming: Option<FlowSpec>,
    /// Flows that were started, by number.
    pub specs: Vec<FlowSpec>,
    pub finished: Vec<FlowRecord>,
    pub stop_with_jobs: bool,
    /// The last moment of the run, once it is known.
    pub stop_at_ps: u64,
}

impl Hosts {
    pub(crate) fn new(tcp: TcpConfig, seed: u64, spraying: bool) -> Hosts {
        Hosts {
            transport: Transport::new(tcp, seed, spraying),
            jobs: Jobs::default(),
            announced_jobs: 0,
            waiting_jobs: 0,
            ended_jobs: Vec::new(),
            arrivals: Box::new(std::iter::empty()),
            upcoming: None,
            specs: Vec::new(),
            finished: Vec::new(),
            stop_with_jobs: false,
            stop_at_ps: u64::MAX,
        }
    }

    /// Flows in the order of their starts; replaces what was there.
    pub(crate) fn set_flows(
        &mut self,
        net: &mut Region,
        flows: impl Iterator<Item = FlowSpec> + Send + 'static,
    ) {
        self.arrivals = Box::new(flows);
        self.announce_next(net);
    }

    /// Whether there were jobs, and all are complete.
    pub(crate) fn jobs_are_over(&self) -> bool {
        self.announced_jobs > 0 && self.waiting_jobs + self.jobs.active == 0
    }

    /// Whether nothing is left to do.
    pub(crate) fn are_idle(&self) -> bool {
        let busy = self.transport.active + self.jobs.active + self.waiting_jobs;
        self.upcoming.is_none() && busy == 0
    }

    fn announce_next(&mut self, net: &mut Region) {
        self.upcoming = self.arrivals.next();
        if let Some(spec) = self.upcoming {
            net.set_timer(spec.start_ps.max(net.now_ps()), FLOW_START);
        }
    }

    fn start_flow(&mut self, net: &mut Region) {
        let Some(spec) = self.upcoming.take() else { return };
        let number = self.specs.len() as u32;
        self.specs.push(spec);
        let flow = self.transport.open(spec.src, spec.dst, Owner::Workload(number), true);
        self.transport.submit(net, flow, spec.bytes);
        self.announce_next(net);
    }

    fn on_progress(&mut self, net: &mut Region, progress: Progress) {
        match progress {
            Progress::Complete { number, resent, timeouts } => self.finished.push(FlowRecord {
                number,
                spec: self.specs[number as usize],
                end_ps: net.now_ps(),
                resent,
                timeouts,
            }),
            Progress::Messages(Owner::Job(job, stream), count) => {
                self.jobs.on_messages(net, &mut self.transport, (job, stream, count));
            }
            Progress::Messages(..) => {}
        }
    }
}

/// The hosts, and the region in which they are.
pub(crate) struct HostSide<'a, P: Payload> {
    pub local: Local<'a, P>,
    pub hosts: &'a mut Hosts,
}

impl<P: Payload> HostSide<'_, P> {
    /// Goes on up to and including `until_ps`, or to the first timer that concerns the whole: its key.
    pub(crate) fn run(&mut self, until_ps: u64) -> Option<u64> {
        self.settle();
        while let Some(event) = self.local.net.next(until_ps.min(self.hosts.stop_at_ps)) {
            match event {
                NetworkEvent::Packet(_, packet) if packet.kind() == Kind::Tree => {
                    self.local.on_packet(&packet);
                }
                NetworkEvent::Packet(_, packet) => {
                    let (net, hosts) = (&mut *self.local.net, &mut *self.hosts);
                    if let Some(progress) = hosts.transport.on_packet(net, &packet) {
                        hosts.on_progress(net, progress);
                    }
                }
                NetworkEvent::Timer(key) if is_control(key) => return Some(key),
                NetworkEvent::Timer(key) => self.on_timer(key),
            }
            self.settle();
            self.local.check();
        }
        None
    }

    /// Rings the hosts' timers that are due at this moment, up to the first that concerns the whole: its key. Timers of nodes
    /// come after these, and packets after all timers.
    pub(crate) fn run_timers(&mut self) -> Option<u64> {
        self.settle();
        while let Some(key) = self.local.net.timer_now(NODE) {
            if is_control(key) {
                return Some(key);
            }
            self.on_timer(key);
            self.settle();
        }
        None
    }

    fn on_timer(&mut self, key: u64) {
        let hosts = &mut *self.hosts;
        match key & CLASS {
            FLOW_START => hosts.start_flow(self.local.net),
            RTO | SLOT => hosts.transport.on_timer(self.local.net, key),
            BUCKET => hosts.jobs.on_bucket(&mut self.local, &mut hosts.transport, key),
            _ => self.local.on_timer(key),
        }
    }

    /// Passes on what machines have said in the meantime.
    #[inline]
    fn settle(&mut self) {
        self.local.forget_lost();
        let Hosts { transport, jobs, ended_jobs, .. } = &mut *self.hosts;
        while let Some(done) = self.local.pop_done() {
            if jobs.on_done(self.local.net, done.job, done.rank) {
                self.local.end_job(done.job);
                ended_jobs.push(done.job);
                jobs.remove(self.local.net, transport, done.job);
            }
        }
        if self.hosts.stop_with_jobs && self.hosts.jobs_are_over() {
            // As far as others may have come who have not heard of it.
            let last_ps = self.local.net.now_ps() + self.local.net.lookahead_ps().saturating_sub(1);
            self.hosts.stop_at_ps = self.hosts.stop_at_ps.min(last_ps);
        }
    }
}

/// Jobs that start and faults touch hosts and switches in one moment.
fn is_control(key: u64) -> bool {
    matches!(key & CLASS, FAULT | JOB_START)
}
