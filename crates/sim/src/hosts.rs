//! Hosts: their flows, their jobs, and packets that arrive at workers. One thread runs all hosts, in order of time.

use crate::aggregation::{Local, NODE, Payload, WORKER};
use crate::job::{BUCKET, JOB_START, Jobs, LEASES, RANK};
use crate::network::{NetworkEvent, OWN_TIMER, Region};
use crate::packet::Kind;
use crate::tcp::TcpConfig;
use crate::timer::CLASS;
use crate::transport::{Owner, Progress, RTO, SLOT, Transport};
use crate::visit::{Pending, Progress as JobProgress, View, Visitor};
use crate::workload::FlowSpec;

/// A flow that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRecord {
    /// Index in the workload, from 0.
    pub number: u32,
    /// Specification of the flow.
    pub spec: FlowSpec,
    /// When the last byte reached the receiver.
    pub end_ps: u64,
    /// Number of segments sent again.
    pub resent: u64,
    /// Number of time-outs.
    pub timeouts: u32,
}

impl FlowRecord {
    /// Flow completion time: from the start to the last byte at the receiver.
    pub fn fct_ps(&self) -> u64 {
        self.end_ps - self.spec.start_ps
    }
}

/// Timer classes; [`crate::transport`], [`crate::job`] and [`crate::aggregation`] define more. Faults have the lowest
/// keys: what starts in the instant of a fault starts after it.
pub(crate) const FAULT: u64 = 0;
const FLOW_START: u64 = 1 << 56;
/// The key of no timer: a state may repeat an earlier one.
pub(crate) const MOMENT: u64 = u64::MAX;

/// The part that a timer has in what may repeat.
pub(crate) fn pending(view: View, key: u64) -> Pending {
    if key & OWN_TIMER != 0 {
        return Pending::Part;
    }
    match key & CLASS {
        FAULT | FLOW_START | JOB_START | SLOT => Pending::Beyond,
        // Deadlines are part of the state; these are earlier, and without effect before the deadline.
        RTO | WORKER | NODE => Pending::Follows,
        BUCKET | RANK if view == View::Round => Pending::Beyond,
        _ => Pending::Part,
    }
}

/// Flows and jobs.
pub(crate) struct Hosts {
    pub transport: Transport,
    pub jobs: Jobs,
    /// Jobs that were announced and have not started.
    pub announced_jobs: u32,
    pub waiting_jobs: u32,
    /// Completed jobs that had leases in the network.
    pub ended_jobs: Vec<u32>,
    arrivals: Box<dyn Iterator<Item = (u32, FlowSpec)> + Send>,
    upcoming: Option<(u32, FlowSpec)>,
    /// Flows that have started, each with its number, which ascend.
    started: Vec<(u32, FlowSpec)>,
    pub finished: Vec<FlowRecord>,
    /// Whether the run ends with the last job.
    pub stop_with_jobs: bool,
    /// With the last job a run could end at this time.
    pub jobs_over_ps: u64,
    /// Whether `HostSide::run` returns when a state may repeat an earlier one.
    pub watched: bool,
    /// End of the run, once it is known.
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
            started: Vec::new(),
            finished: Vec::new(),
            stop_with_jobs: false,
            jobs_over_ps: u64::MAX,
            watched: false,
            stop_at_ps: u64::MAX,
        }
    }

    /// Sets the workload: flows in order of their starts, with their numbers.
    pub(crate) fn set_flows(
        &mut self,
        net: &mut Region,
        flows: impl Iterator<Item = (u32, FlowSpec)> + Send + 'static,
    ) {
        self.arrivals = Box::new(flows);
        self.announce_next(net);
    }

    /// A flow that has started.
    pub(crate) fn spec(&self, number: u32) -> FlowSpec {
        let at = self.started.binary_search_by_key(&number, |&(number, _)| number);
        self.started[at.expect("the flow has started")].1
    }

    /// Whether there were jobs and all are complete.
    pub(crate) fn jobs_are_over(&self) -> bool {
        self.announced_jobs > 0 && self.waiting_jobs + self.jobs.active == 0
    }

    /// Whether nothing is left to do.
    pub(crate) fn are_idle(&self) -> bool {
        let busy = self.transport.active + self.jobs.active + self.waiting_jobs;
        self.upcoming.is_none() && busy == 0
    }

    /// Visits the state of the hosts; `base` as in [`Packet::visit`](crate::packet::Packet::visit).
    pub(crate) fn visit(
        &mut self,
        v: &mut impl Visitor,
        view: View,
        (progress, base): (&[JobProgress], &[u32]),
    ) {
        let Hosts {
            transport,
            jobs,
            announced_jobs: _,
            waiting_jobs,
            ended_jobs,
            // The next flow has a timer beyond what repeats.
            arrivals: _,
            upcoming: _,
            started,
            // Results.
            finished: _,
            stop_with_jobs: _,
            // Beyond it there is no job, and nothing repeats.
            jobs_over_ps: _,
            watched: _,
            stop_at_ps,
        } = self;
        v.both(*waiting_jobs, ended_jobs.len() as u32);
        v.both(started.len() as u32, 0);
        v.same(*stop_at_ps);
        transport.visit(v);
        jobs.visit(v, view, (progress, base));
    }

    fn announce_next(&mut self, net: &mut Region) {
        self.upcoming = self.arrivals.next();
        if let Some((_, spec)) = self.upcoming {
            net.set_timer(spec.start_ps.max(net.now_ps()), FLOW_START);
        }
    }

    fn start_flow(&mut self, net: &mut Region) {
        let Some((number, spec)) = self.upcoming.take() else { return };
        self.started.push((number, spec));
        let flow = self.transport.open(spec.src, spec.dst, Owner::Workload(number), true);
        self.transport.submit(net, flow, spec.bytes);
        self.announce_next(net);
    }

    fn on_progress(&mut self, net: &mut Region, progress: Progress) {
        match progress {
            Progress::Complete { number, resent, timeouts } => self.finished.push(FlowRecord {
                number,
                spec: self.spec(number),
                end_ps: net.now_ps(),
                resent,
                timeouts,
            }),
            Progress::Messages(Owner::Job(job, stream), count) => {
                self.jobs.on_messages(net, &mut self.transport, (job, stream, count));
            }
            Progress::Acknowledged(Owner::Job(job, stream)) => {
                self.jobs.on_acknowledged(net, &mut self.transport, (job, stream));
            }
            Progress::Messages(..) | Progress::Acknowledged(_) => {}
        }
    }
}

/// The hosts, and the region in which they are.
pub(crate) struct HostSide<'a, P: Payload> {
    pub local: Local<'a, P>,
    pub hosts: &'a mut Hosts,
}

impl<P: Payload> HostSide<'_, P> {
    /// Runs up to and including `until_ps`, or to the first control timer; returns that timer's key. If hosts are
    /// watched, runs no further than to the next moment at which a state may repeat an earlier one; returns `MOMENT`.
    pub(crate) fn run(&mut self, until_ps: u64) -> Option<u64> {
        self.settle();
        while let Some(event) = self.local.net.next(until_ps.min(self.hosts.stop_at_ps)) {
            match event {
                NetworkEvent::Packet(_, packet) if packet.kind() == Kind::Tree => {
                    self.local.on_packet(&packet);
                }
                NetworkEvent::Packet(_, packet) => {
                    let (net, hosts) = (&mut *self.local.net, &mut *self.hosts);
                    if !net.expected.is_empty() {
                        hosts.transport.look_ahead(&net.expected);
                        net.expected.clear();
                    }
                    if let Some(progress) = hosts.transport.on_packet(net, &packet) {
                        hosts.on_progress(net, progress);
                    }
                }
                NetworkEvent::Timer(key) if is_control(key) => return Some(key),
                NetworkEvent::Timer(key) => self.on_timer(key),
            }
            self.settle();
            self.local.check();
            if self.local.take_round() {
                self.hosts.jobs.moment = Some(View::Round);
            }
            if self.hosts.watched && self.hosts.jobs.moment.is_some() {
                return Some(MOMENT);
            }
        }
        None
    }

    /// Runs the hosts' timers that are due now, up to the first control timer; returns that timer's key. Timers of
    /// nodes come after these, and packets after all timers.
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
            RANK => hosts.jobs.on_rank(self.local.net, &mut hosts.transport, key),
            _ => self.local.on_timer(key),
        }
    }

    /// Sends the packets that machines have produced since.
    #[inline]
    fn settle(&mut self) {
        self.local.forget_lost();
        let Hosts { transport, jobs, ended_jobs, .. } = &mut *self.hosts;
        loop {
            while let Some(done) = self.local.pop_done() {
                if done.job >= LEASES {
                    jobs.on_reduced(self.local.net, transport, done);
                } else if jobs.on_done(self.local.net, done.job, done.rank) {
                    self.local.end_job(done.job);
                    ended_jobs.push(done.job);
                    jobs.remove(self.local.net, transport, done.job);
                }
            }
            let Some((kind, worker, what)) = jobs.submissions.pop_front() else { break };
            self.local.submit(kind, worker, what);
        }
        for lease in jobs.ended_leases.drain(..) {
            self.local.end_job(lease);
            ended_jobs.push(lease);
        }
        let hosts = &mut *self.hosts;
        if hosts.stop_with_jobs && hosts.jobs_over_ps == u64::MAX && hosts.jobs_are_over() {
            // Other regions may have advanced this far without learning of the end.
            let last_ps = self.local.net.now_ps() + self.local.net.lookahead_ps().saturating_sub(1);
            (hosts.jobs_over_ps, hosts.stop_at_ps) = (last_ps, last_ps);
        }
    }
}

/// Whether a timer starts a job or a fault, which touch hosts and switches in one moment.
fn is_control(key: u64) -> bool {
    matches!(key & CLASS, FAULT | JOB_START)
}
