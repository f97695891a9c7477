//! Training jobs: steps of computing and reducing, over trees or between hosts, or of a schedule with dependencies.

mod host;
mod models;
mod player;
mod steps;

use std::collections::{BTreeMap, VecDeque};

use host::HostReducer;
pub use models::{MODELS, Model};
pub(crate) use player::RANK;
pub use player::{Local as LocalLinks, Work};
use player::{Player, Wire};
use rustc_hash::FxHashMap;
pub use steps::{HostAlgorithm, Step, step_of, steps_of};

use crate::aggregation::{
    Done, Kind, Local, Operation, Payload, PoolConfig, SlotConfig, TreeConfig, begin_order,
};
use crate::network::Region;
use crate::transport::Transport;
use crate::visit::{Progress, View, Visitor};

/// Timer classes: a worker's next bucket is ready; a job starts.
pub(crate) const BUCKET: u64 = 4 << 56;
pub(crate) const JOB_START: u64 = 6 << 56;

/// Numbers of leases that groups of a schedule hold begin here; jobs have lower numbers.
pub(crate) const LEASES: u32 = 1 << 24;

/// Number of steps of a job that runs until the end.
pub const ENDLESS: u32 = u32::MAX;

/// How a job reduces; every scheme is one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// In switches, on at most `trees` trees that share no link between switches.
    Trees {
        /// Maximum number of trees.
        trees: u8,
        /// Configuration of the trees.
        config: TreeConfig,
    },
    /// In slots of the racks' switches, and at servers.
    Slots {
        /// Number of servers, on hosts of the job unless it names others.
        servers: u8,
        /// Configuration of slots.
        config: SlotConfig,
    },
    /// In a pool of one switch.
    Pool(PoolConfig),
    /// Between hosts.
    Hosts {
        /// Sequence of messages.
        algorithm: HostAlgorithm,
        /// Whether its connections react to marks.
        ecn: bool,
        /// How many times it runs at once, each time for a share of the bytes and over connections of its own.
        rings: u8,
    },
}

impl Scheme {
    /// Whether trees, servers or pools have copies, for all collectives of a schedule.
    pub fn copies(&self) -> bool {
        match self {
            Scheme::Trees { config, .. } => config.copies,
            Scheme::Slots { config, .. } => config.copies,
            Scheme::Pool(config) => config.copies,
            Scheme::Hosts { .. } => false,
        }
    }

    /// The same scheme with copies, or without.
    pub(crate) fn with_copies(mut self, copies: bool) -> Scheme {
        match &mut self {
            Scheme::Trees { config, .. } => config.copies = copies,
            Scheme::Slots { config, .. } => config.copies = copies,
            Scheme::Pool(config) => config.copies = copies,
            Scheme::Hosts { .. } => {}
        }
        self
    }
}

/// A part of the gradients that is reduced by one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Time since the start of the step at which the bucket is ready.
    pub ready_ps: u64,
    /// Size in bytes.
    pub bytes: u64,
}

/// A job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSpec {
    /// When it starts.
    pub start_ps: u64,
    /// Host of each rank, at least one.
    pub placement: Vec<u32>,
    /// Number of steps; a step ends when all buckets are reduced, and the next one begins. [`ENDLESS`]: until the run
    /// ends.
    pub steps: u32,
    /// Minimum time between the starts of a worker's steps; 0: no minimum.
    pub period_ps: u64,
    /// Buckets in the order of `ready_ps`, at least one.
    pub buckets: Vec<Bucket>,
    /// How it reduces.
    pub scheme: Scheme,
    /// Nodes of switches at which trees are rooted if possible; empty: those with the least load.
    pub roots: Vec<u32>,
    /// Hosts of `atp`'s servers; empty: hosts of the job, far from each other.
    pub servers: Vec<u32>,
    /// What a step is in place of the buckets, of which there is then an empty one; ranks may then share hosts. Only
    /// operations of groups with a host per rank are in switches, and only allreduces unless the scheme has copies.
    pub work: Option<Work>,
}

/// A completed step of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepRecord {
    /// Job.
    pub job: u32,
    /// Step, from 0.
    pub step: u32,
    /// When the first worker began the step.
    pub start_ps: u64,
    /// When the first worker submitted its first bucket.
    pub reduce_start_ps: u64,
    /// When the last worker received its last sum.
    pub end_ps: u64,
}

/// A completed job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobRecord {
    /// Job.
    pub job: u32,
    /// When it started.
    pub start_ps: u64,
    /// When its last worker completed.
    pub end_ps: u64,
}

pub(crate) struct Job {
    spec: JobSpec,
    reducer: Reducer,
    ranks: Vec<RankState>,
    /// Steps that some worker has begun and not all have ended, from `first_step` on.
    open_steps: VecDeque<OpenStep>,
    first_step: u32,
    finished: u32,
}

enum Reducer {
    Network {
        kind: Kind,
        first_worker: u32,
    },
    Hosts(HostReducer),
    /// The protocol is that of its groups with leases.
    Schedule(Box<Player>, Option<Kind>),
}

/// What a job has in the network.
pub(crate) enum Installed {
    Nothing,
    /// A worker per rank, from this number on.
    Workers(Kind, u32),
    /// Of a schedule, by group.
    Groups(Vec<Option<Lease>>),
}

/// What a group of a schedule has in the network.
pub(crate) struct Lease {
    /// From [`LEASES`] on.
    pub number: u32,
    pub kind: Kind,
    pub first_worker: u32,
    /// The group as a job.
    pub spec: JobSpec,
}

#[derive(Clone, Copy, Default)]
struct RankState {
    step: u32,
    began_ps: u64,
    /// Slowdown factor of computing in this step.
    slowness: f64,
    /// Buckets submitted in this step.
    submitted: u32,
    reduced: u32,
}

struct OpenStep {
    start_ps: u64,
    reduce_start_ps: u64,
    ended: u32,
}

impl RankState {
    fn ready_ps(&self, bucket: &Bucket) -> u64 {
        self.began_ps + (bucket.ready_ps as f64 * self.slowness) as u64
    }
}

/// All jobs.
#[derive(Default)]
pub(crate) struct Jobs {
    jobs: Vec<Option<Job>>,
    /// Slowdown factors of hosts that compute more slowly.
    pub slow: FxHashMap<u32, f64>,
    pub steps: Vec<StepRecord>,
    pub finished: Vec<JobRecord>,
    pub active: u32,
    /// The view in which a state may repeat an earlier one now: a job has begun to reduce, or the first rank of a
    /// schedule another run of it (`Step`); or its first worker has begun another step of an operation (`Round`).
    pub moment: Option<View>,
    /// The same records as in `steps`, for those who look for repetitions; `None` if nobody does.
    pub noted: Option<Vec<StepRecord>>,
    /// By number, the leases of groups, each with its job and group.
    leases: BTreeMap<u32, (u32, u32, Lease)>,
    /// Leases of completed jobs.
    pub ended_leases: Vec<u32>,
    /// Operations of groups: protocol, worker, operation.
    pub submissions: VecDeque<(Kind, u32, Operation)>,
}

impl Jobs {
    /// Starts a job whose workers are installed in the network, or which reduces between hosts.
    pub(crate) fn begin(
        &mut self,
        net: &mut Region,
        number: u32,
        spec: JobSpec,
        installed: Installed,
    ) {
        let on_hosts = |algorithm, ecn, rings| {
            Reducer::Hosts(HostReducer::new(algorithm, ecn, rings, number, &spec.placement))
        };
        let (algorithm, ecn, rings) = match spec.scheme {
            Scheme::Hosts { algorithm, ecn, rings } => (algorithm, ecn, rings),
            _ => (HostAlgorithm::Ring, true, 1),
        };
        let reducer = match (&spec.work, installed) {
            (Some(work), installed) => {
                let leases = match installed {
                    Installed::Groups(leases) => leases,
                    _ => work.schedule.groups.iter().map(|_| None).collect(),
                };
                let kind = leases.iter().flatten().map(|lease| lease.kind).next();
                let first = |lease: &Option<Lease>| lease.as_ref().map(|l| l.first_worker);
                let workers = (leases.iter().map(first).collect(), spec.scheme.copies());
                let held = (0..).zip(leases).filter_map(|(group, lease)| Some((group, lease?)));
                let held = held.map(|(group, lease)| (lease.number, (number, group, lease)));
                self.leases.extend(held);
                let way = (algorithm, ecn);
                let player = Player::new(work.clone(), way, number, &spec.placement, workers);
                Reducer::Schedule(Box::new(player), kind)
            }
            (None, Installed::Workers(kind, first_worker)) => {
                Reducer::Network { kind, first_worker }
            }
            (None, _) => on_hosts(algorithm, ecn, rings),
        };
        let ranks = vec![RankState::default(); spec.placement.len()];
        let (open_steps, count) = (VecDeque::new(), ranks.len() as u32);
        let numbers = self.jobs.len().max(number as usize + 1);
        self.jobs.resize_with(numbers, || None);
        let job = Job { spec, reducer, ranks, open_steps, first_step: 0, finished: 0 };
        self.jobs[number as usize] = Some(job);
        self.active += 1;
        (0..count).for_each(|rank| self.begin_step(net, number, rank));
    }

    /// A job, or a group with a lease, that reduces in the network: its specification and its first worker.
    pub(crate) fn in_network(&self, number: u32) -> Option<(&JobSpec, u32)> {
        if let Some((.., lease)) = self.leases.get(&number) {
            return Some((&lease.spec, lease.first_worker));
        }
        let job = self.jobs.get(number as usize)?.as_ref()?;
        match job.reducer {
            Reducer::Network { first_worker, .. } => Some((&job.spec, first_worker)),
            Reducer::Hosts(_) | Reducer::Schedule(..) => None,
        }
    }

    /// Id of the first operation, of a job or of a group with a lease, of the first step that not all workers have
    /// ended.
    pub(crate) fn first_operation(&self, number: u32) -> u64 {
        let lease = self.leases.get(&number);
        let job = lease.map_or(number, |&(job, ..)| job);
        let Some(Some(job)) = self.jobs.get(job as usize) else { return 0 };
        let each = match (&job.reducer, lease) {
            (Reducer::Schedule(player, _), Some(&(_, group, _))) => player.operations_of(group),
            _ => job.spec.buckets.len() as u32,
        };
        u64::from(job.first_step) * u64::from(each)
    }

    /// Leases that the groups of a job's schedule hold.
    pub(crate) fn leases_of(&self, job: u32) -> impl Iterator<Item = u32> {
        self.leases.iter().filter(move |(_, lease)| lease.0 == job).map(|(&number, _)| number)
    }

    /// Whether groups of schedules have leases.
    pub(crate) fn has_leases(&self) -> bool {
        !self.leases.is_empty()
    }

    /// Where a job's schedule waits for what never comes.
    pub(crate) fn stuck(&self, number: u32) -> Option<String> {
        match &self.jobs.get(number as usize)?.as_ref()?.reducer {
            Reducer::Schedule(player, _) => player.stuck(),
            _ => None,
        }
    }

    /// Jobs that have started and are not complete, by number.
    pub(crate) fn at_work(&self) -> impl Iterator<Item = (u32, &JobSpec)> {
        let numbered = (0..).zip(&self.jobs);
        numbered.filter_map(|(number, job)| Some((number, &job.as_ref()?.spec)))
    }

    /// How far each job is, in steps and in steps of an operation.
    pub(crate) fn progress(&self, view: View) -> Vec<Progress> {
        let of = |job: &Option<Job>| match (job, view) {
            (None, _) => Progress::default(),
            (Some(job), View::Step) => Progress { step: job.first_step, round: 0 },
            (Some(Job { reducer: Reducer::Hosts(reducer), .. }), View::Round) => {
                Progress { step: 0, round: reducer.round().unwrap_or(0) }
            }
            (Some(_), View::Round) => Progress::default(),
        };
        self.jobs.iter().map(of).collect()
    }

    /// How often all jobs can make the progress `by` again without an end of an operation (`Round`), or of a job
    /// (`Step`).
    pub(crate) fn repetitions(&self, view: View, by: &[Progress]) -> u64 {
        let of = |(job, by): (&Option<Job>, &Progress)| {
            let Some(job) = job else { return u64::MAX };
            let furthest = job.ranks.iter().map(|rank| rank.step).max().unwrap_or(0);
            let (left, each) = match (view, &job.reducer) {
                (View::Step, _) => (job.spec.steps - 1 - furthest.min(job.spec.steps - 1), by.step),
                (View::Round, Reducer::Hosts(reducer)) => {
                    (reducer.rounds_left().saturating_sub(1), by.round)
                }
                // Its workers know how far their operation goes. A schedule is where it was.
                (View::Round, Reducer::Network { .. } | Reducer::Schedule(..)) => (u32::MAX, 0),
            };
            left.checked_div(each).map_or(u64::MAX, u64::from)
        };
        self.jobs.iter().zip(by).map(of).min().unwrap_or(0)
    }

    /// Visits the state; `progress` is what `progress` returns, `base` as in
    /// [`Packet::visit`](crate::packet::Packet::visit).
    pub(crate) fn visit(
        &mut self,
        v: &mut impl Visitor,
        view: View,
        (progress, base): (&[Progress], &[u32]),
    ) {
        let Jobs {
            jobs,
            // Faults change it.
            slow: _,
            // Results.
            steps: _,
            finished: _,
            active,
            moment: _,
            noted: _,
            // They change with the jobs.
            leases: _,
            ended_leases,
            submissions,
        } = self;
        v.both(jobs.len() as u32, *active);
        v.both(ended_leases.len() as u32, submissions.len() as u32);
        for (job, progress) in jobs.iter_mut().zip(progress) {
            v.same(job.is_some().into());
            let Some(Job { spec, reducer, ranks, open_steps, first_step, finished }) = job else {
                continue;
            };
            v.both(*first_step - progress.step, *finished);
            v.both(ranks.len() as u32, open_steps.len() as u32);
            for RankState { step, began_ps, slowness, submitted, reduced } in ranks {
                v.same((*step - *first_step).into());
                view.time(v, began_ps);
                v.same(slowness.to_bits());
                v.both(*submitted, *reduced);
            }
            for OpenStep { start_ps, reduce_start_ps, ended } in open_steps {
                view.time(v, start_ps);
                view.time(v, reduce_start_ps);
                v.same((*ended).into());
            }
            let first_id = u64::from(*first_step) * spec.buckets.len() as u64;
            match reducer {
                Reducer::Hosts(reducer) => reducer.visit(v, first_id, progress.round),
                Reducer::Network { kind, first_worker } => v.both(*kind as u32, *first_worker),
                Reducer::Schedule(player, kind) => {
                    v.same(kind.map_or(u64::MAX, |kind| kind as u64));
                    player.visit(v, (view, *first_step), base);
                }
            }
        }
    }

    /// Counts the jobs on by `by`, `times` times. `records`: the steps that were completed once; they are completed
    /// again, each time `period_ps` later.
    pub(crate) fn skip(
        &mut self,
        (by, records): (&[Progress], &[StepRecord]),
        times: u64,
        period_ps: u64,
    ) {
        for (job, by) in self.jobs.iter_mut().zip(by) {
            let Some(job) = job else { continue };
            let steps = by.step * times as u32;
            let buckets = job.spec.buckets.len() as u64;
            job.first_step += steps;
            job.ranks.iter_mut().for_each(|rank| rank.step += steps);
            match &mut job.reducer {
                Reducer::Hosts(reducer) => {
                    reducer.skip(u64::from(steps) * buckets, by.round * times as u32);
                }
                Reducer::Schedule(player, _) => player.skip(steps),
                Reducer::Network { .. } => {}
            }
        }
        for time in 1..=times {
            let later = |ps: u64| ps + time * period_ps;
            self.steps.extend(records.iter().map(|record| {
                let StepRecord { job, step, start_ps, reduce_start_ps, end_ps } = *record;
                StepRecord {
                    job,
                    step: step + by[job as usize].step * time as u32,
                    start_ps: later(start_ps),
                    reduce_start_ps: later(reduce_start_ps),
                    end_ps: later(end_ps),
                }
            }));
        }
    }

    /// Numbers of jobs that have started, and of leases.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> {
        (0..self.jobs.len() as u32).chain(self.leases.keys().copied())
    }

    /// Handles the timer of a bucket that is ready.
    pub(crate) fn on_bucket<P: Payload>(
        &mut self,
        local: &mut Local<P>,
        transport: &mut Transport,
        key: u64,
    ) {
        let (number, rank) = ((key >> 16) as u32 & 0xff_ffff, key as u32 & 0xffff);
        let Some(job) = &mut self.jobs[number as usize] else { return };
        let state = &mut job.ranks[rank as usize];
        let bucket = job.spec.buckets[state.submitted as usize];
        let id = u64::from(state.step) * job.spec.buckets.len() as u64 + u64::from(state.submitted);
        let submitted = state.submitted;
        state.submitted += 1;
        if let Some(next) = job.spec.buckets.get(state.submitted as usize) {
            local.net.set_timer(state.ready_ps(next), key);
        }
        let open = &mut job.open_steps[(state.step - job.first_step) as usize];
        let before_ps = open.reduce_start_ps;
        open.reduce_start_ps = before_ps.min(local.net.now_ps());
        match &mut job.reducer {
            Reducer::Network { kind, first_worker } => {
                if rank == 0 && submitted == 0 && *kind == Kind::Trees {
                    begin_order(local.net, job.spec.placement[0]);
                    self.moment = Some(View::Step);
                }
                let what = Operation::allreduce(id, bucket.bytes);
                local.submit(*kind, *first_worker + rank, what);
            }
            Reducer::Hosts(reducer) => {
                if rank == 0 && submitted == 0 {
                    begin_order(local.net, job.spec.placement[0]);
                    self.moment = Some(View::Step);
                }
                reducer.submit(local.net, transport, rank, id, bucket.bytes);
            }
            Reducer::Schedule(player, _) => {
                // Set by the first message.
                open.reduce_start_ps = before_ps;
                if rank == 0 {
                    begin_order(local.net, job.spec.placement[0]);
                    self.moment = Some(View::Step);
                }
                let wire = &mut Wire { net: local.net, transport };
                player.begin(wire, rank, id, job.ranks[rank as usize].slowness);
            }
        }
        self.collect(local.net, transport, number);
    }

    /// Handles a timer of a schedule.
    pub(crate) fn on_rank(&mut self, net: &mut Region, transport: &mut Transport, key: u64) {
        let number = (key >> 24) as u32 & 0x7fff_ffff;
        self.play(net, transport, number, |player, wire| player.on_timer(wire, key));
    }

    /// Handles the acknowledgement for which a job's stream has asked.
    pub(crate) fn on_acknowledged(
        &mut self,
        net: &mut Region,
        transport: &mut Transport,
        (number, stream): (u32, u32),
    ) {
        self.play(net, transport, number, |player, wire| player.on_acknowledged(wire, stream));
    }

    /// Handles an operation of a group that is complete at a worker in the network.
    pub(crate) fn on_reduced(&mut self, net: &mut Region, transport: &mut Transport, done: Done) {
        let Some(&(number, group, _)) = self.leases.get(&done.job) else { return };
        self.play(net, transport, number, |player, wire| {
            player.on_reduced(wire, group, done.rank, done.id);
        });
    }

    /// Lets something happen to a job's schedule.
    fn play(
        &mut self,
        net: &mut Region,
        transport: &mut Transport,
        number: u32,
        event: impl FnOnce(&mut Player, &mut Wire),
    ) {
        if let Some(Some(Job { reducer: Reducer::Schedule(player, _), .. })) =
            self.jobs.get_mut(number as usize)
        {
            event(player, &mut Wire { net, transport });
            self.collect(net, transport, number);
        }
    }

    /// Handles messages of a job's stream.
    pub(crate) fn on_messages(
        &mut self,
        net: &mut Region,
        transport: &mut Transport,
        (number, stream, count): (u32, u32, u32),
    ) {
        let Some(job) = &mut self.jobs[number as usize] else { return };
        match &mut job.reducer {
            Reducer::Hosts(reducer) => {
                reducer.on_messages(net, transport, stream, count);
                if std::mem::take(&mut reducer.stepped) && reducer.round().is_some() {
                    self.moment = Some(View::Round);
                }
            }
            Reducer::Schedule(player, _) => {
                player.on_messages(&mut Wire { net, transport }, stream, count);
            }
            Reducer::Network { .. } => {}
        }
        self.collect(net, transport, number);
    }

    /// Handles a worker's completed operation; true if the job is complete, too.
    pub(crate) fn on_done(&mut self, net: &mut Region, number: u32, rank: u32) -> bool {
        let Some(job) = &mut self.jobs[number as usize] else { return false };
        let buckets = job.spec.buckets.len() as u32;
        let state = &mut job.ranks[rank as usize];
        state.reduced += 1;
        if state.reduced < buckets {
            return false;
        }
        let step = state.step;
        let began_ps = state.began_ps;
        *state = RankState { step: step + 1, began_ps, ..RankState::default() };
        let (ranks, last) = (job.ranks.len() as u32, step + 1 == job.spec.steps);
        job.open_steps[(step - job.first_step) as usize].ended += 1;
        while job.open_steps.front().is_some_and(|s| s.ended == ranks) {
            let open = job.open_steps.pop_front().expect("it is there");
            let record = StepRecord {
                job: number,
                step: job.first_step,
                start_ps: open.start_ps,
                // Of a schedule in which nobody communicates, its end.
                reduce_start_ps: open.reduce_start_ps.min(net.now_ps()),
                end_ps: net.now_ps(),
            };
            self.steps.push(record);
            self.noted.iter_mut().for_each(|noted| noted.push(record));
            job.first_step += 1;
        }
        if !last {
            self.begin_step(net, number, rank);
            return false;
        }
        job.finished += 1;
        if job.finished < ranks {
            return false;
        }
        let (start_ps, end_ps) = (job.spec.start_ps, net.now_ps());
        self.finished.push(JobRecord { job: number, start_ps, end_ps });
        self.active -= 1;
        true
    }

    /// Removes a completed job.
    pub(crate) fn remove(&mut self, net: &mut Region, transport: &mut Transport, number: u32) {
        match self.jobs[number as usize].take().map(|job| job.reducer) {
            Some(Reducer::Hosts(mut reducer)) => reducer.close(net, transport),
            Some(Reducer::Schedule(mut player, _)) => {
                player.close(net, transport);
                let ended: Vec<u32> = self.leases_of(number).collect();
                ended.iter().for_each(|lease| _ = self.leases.remove(lease));
                self.ended_leases.extend(ended);
            }
            Some(Reducer::Network { .. }) | None => {}
        }
    }

    fn collect(&mut self, net: &mut Region, transport: &mut Transport, number: u32) {
        let Some(job) = &mut self.jobs[number as usize] else { return };
        let done = match &mut job.reducer {
            Reducer::Hosts(reducer) => std::mem::take(&mut reducer.done),
            Reducer::Schedule(player, kind) => {
                for run in player.begun.drain(..) {
                    let open = &mut job.open_steps[(run - u64::from(job.first_step)) as usize];
                    open.reduce_start_ps = open.reduce_start_ps.min(net.now_ps());
                }
                let kind = *kind;
                let submissions = player.submissions.drain(..);
                self.submissions
                    .extend(submissions.filter_map(|(worker, what)| Some((kind?, worker, what))));
                std::mem::take(&mut player.done)
            }
            Reducer::Network { .. } => return,
        };
        let mut over = false;
        for (rank, _) in done {
            over |= self.on_done(net, number, rank);
        }
        if over {
            self.remove(net, transport, number);
        }
    }

    fn begin_step(&mut self, net: &mut Region, number: u32, rank: u32) {
        let job = self.jobs[number as usize].as_mut().expect("a job that begins a step exists");
        let step = job.ranks[rank as usize].step;
        let host = job.spec.placement[rank as usize];
        let state = &mut job.ranks[rank as usize];
        let earliest_ps = if step == 0 { 0 } else { state.began_ps + job.spec.period_ps };
        state.began_ps = earliest_ps.max(net.now_ps());
        state.slowness = self.slow.get(&host).copied().unwrap_or(1.0);
        let at_ps = state.ready_ps(&job.spec.buckets[0]);
        if (step - job.first_step) as usize == job.open_steps.len() {
            let start_ps = job.ranks[rank as usize].began_ps;
            job.open_steps.push_back(OpenStep { start_ps, reduce_start_ps: u64::MAX, ended: 0 });
        }
        net.set_timer(at_ps, BUCKET | u64::from(number) << 16 | u64::from(rank));
    }
}
