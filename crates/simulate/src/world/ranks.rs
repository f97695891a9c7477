//! Rank processes: the application that starts operations, the hand-over machine, the data plane, the controller
//! client.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use netsum_control::pb::worker_event::Event as FromController;
use netsum_control::{ControllerPlan, epoch, pb};
use netsum_lease::{JobPlan, RankKeys, worker_config, worker_secrets};
use netsum_proto::departure::Departure;
use netsum_proto::handover::{
    Action, Frozen, Handover, Mode, Path, PendingOperation as Begun, Resume, Settings,
};
use netsum_proto::operations::{Fragments, Submission};
use netsum_proto::{Pattern, PortId, Time, supports};
use netsum_topo::{Host, SumOrder};
use netsum_wire::Rank;

use super::client::{Client, ClientState};
use super::clock::{MS, Nanos};
use super::host_path::HostPath;
use super::mesh::Message;
use super::streams::Up;
use super::{Place, Timer, World};
use crate::dataplane::{Accepted, DataPlane, Event, TreeOperation};
use crate::report::Class;
use crate::scenario::Scenario;

pub(super) struct RankProcess {
    pub job: usize,
    pub rank: u32,
    pub host: String,
    pub address: SocketAddr,
    pub client: Client,
    pub handover: Handover<ControllerPlan>,
    pub hosts: HostPath,
    /// How the rank ended.
    pub outcome: Option<Result<(), Failure>>,
    /// Whether the first plan is in use.
    pub ready: bool,
    data: DataPlane,
    /// Operations that are done here and contribute again.
    repeated: BTreeSet<u64>,
    /// Operations in progress: deadline and path.
    operations: BTreeMap<u64, UnderWay>,
    /// Number of the next operation.
    pub next: u64,
    /// Whether the limit of concurrent operations delayed the next one.
    blocked: bool,
    byes: BTreeSet<Place>,
    departure: Departure,
    leaving: bool,
    known_epoch: u32,
    /// The last plan received from the controller, without its trees and keys.
    known_plan: Option<pb::Plan>,
    /// The rank's own keys.
    pub rank_keys: RankKeys,
    /// Ranks whose connection has ended.
    unreachable: Vec<u32>,
    /// The last report to the controller: silent trees, unreachable ranks, the plan in use, whether the plan works.
    news: (Vec<u32>, Vec<u32>, u32, bool),
    armed: Option<Time>,
    group_armed: Option<Time>,
    network_operations: u64,
}

struct UnderWay {
    deadline: Time,
    on_trees: bool,
}

/// Why a rank ended in an error.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    /// Whether the control plane ended the job.
    pub by_controller: bool,
    /// Description.
    pub reason: String,
}

impl RankProcess {
    pub(super) fn new(
        job: usize,
        rank: u32,
        size: u32,
        scenario: &Scenario,
        host: &Host,
        port: u16,
    ) -> RankProcess {
        let settings = Settings {
            rank: Rank(rank),
            size,
            mode: Mode::Leaderless,
            timeout_ns: scenario.operation_timeout_ms * MS,
        };
        RankProcess {
            job,
            rank,
            host: host.name.clone(),
            address: (host.address, port).into(),
            client: Client::default(),
            handover: Handover::new(settings),
            hosts: HostPath::default(),
            outcome: None,
            ready: false,
            data: DataPlane::default(),
            repeated: BTreeSet::new(),
            operations: BTreeMap::new(),
            next: 0,
            blocked: false,
            byes: BTreeSet::new(),
            departure: Departure::new(Rank(rank), size),
            leaving: false,
            known_epoch: 0,
            known_plan: None,
            rank_keys: RankKeys::default(),
            unreachable: Vec::new(),
            news: (Vec::new(), Vec::new(), 0, false),
            armed: None,
            group_armed: None,
            network_operations: 0,
        }
    }

    /// Operations that have started and not completed.
    pub(super) fn under_way(&self) -> Vec<u64> {
        self.operations.keys().copied().collect()
    }
}

impl World {
    fn rank(&mut self, place: Place) -> &mut RankProcess {
        &mut self.ranks[place - self.first_rank]
    }

    /// Starts the ranks of a job that has a number.
    pub(super) fn start_ranks(&mut self, job: usize) {
        let (first, size) = (self.jobs[job].first, self.jobs[job].size as usize);
        for place in first..first + size {
            if self.rank(place).outcome.is_some() {
                continue;
            }
            let process = &mut self.processes[place];
            process.alive = true;
            process.incarnation += 1;
            let wait = process.random.below(50 * MS);
            self.after(place, wait, Timer::Connect);
            self.after(place, GROUP_TICK, Timer::Group);
        }
    }

    pub(super) fn join(&self, place: Place) -> pb::Join {
        let rank = &self.ranks[place - self.first_rank];
        pb::Join {
            job: self.jobs[rank.job].id.unwrap_or(0),
            rank: rank.rank,
            host: rank.host.clone(),
            udp_address: rank.address.to_string(),
            mesh_address: String::new(),
            pid: place as u32 + 1000,
            mtu: self.scenario.fabric.mtu,
            known_epoch: rank.known_epoch,
            incarnation: self.jobs[rank.job].incarnation,
            description: Some(self.description(rank.job)),
            plan: rank.known_plan.clone(),
            term: rank.client.fence.term(),
            packets: None,
        }
    }

    pub(super) fn statistics(&self, place: Place) -> pb::WorkerHeartbeat {
        let rank = &self.ranks[place - self.first_rank];
        let trees = rank.handover.plan().map_or(0, |plan| plan.0.plan.trees.len());
        let tree = |tree| pb::WorkerTree {
            tree: tree as u32,
            results: rank.data.results(tree),
            ..Default::default()
        };
        pb::WorkerHeartbeat {
            trees: (0..trees).map(tree).collect(),
            operations: rank.next,
            network_operations: rank.network_operations,
            plan_epoch: rank.handover.plan().map_or(0, |plan| plan.0.plan.epoch.into()),
            silent_trees: rank.handover.silent_trees().into_iter().map(u32::from).collect(),
            unreachable_ranks: rank.unreachable.clone(),
            ..Default::default()
        }
    }

    /// Reports changes that the controller must act upon at once.
    fn report_news(&mut self, place: Place) {
        let statistics = self.statistics(place);
        let pb::WorkerHeartbeat { silent_trees, unreachable_ranks, plan_epoch, .. } = &statistics;
        let works = statistics.trees.iter().any(|tree| tree.results > 0);
        let news = (silent_trees.clone(), unreachable_ranks.clone(), *plan_epoch, works);
        let rank = self.rank(place);
        if rank.news != news {
            rank.news = news;
            if let ClientState::Open(stream) = rank.client.state {
                let report = pb::worker_report::Report::Heartbeat(statistics);
                self.send_up(stream, Up::Worker(report));
            }
        }
    }

    /// Handles an event of the controller.
    pub(super) fn rank_on_event(&mut self, place: Place, event: FromController) {
        match event {
            FromController::Plan(plan) => self.plan_arrives(place, plan),
            FromController::RankKey(message) => {
                let key = message.key.and_then(|key| key.key().ok()).expect("a valid key");
                let rank = self.rank(place);
                rank.rank_keys.insert(message.key_id, key);
                // Another rank may have handed the plan on before.
                let plan = rank.handover.plan();
                if let Some(secrets) =
                    plan.and_then(|plan| worker_secrets(&plan.0, &rank.rank_keys))
                {
                    rank.data.secure(secrets);
                }
            }
            FromController::PeerLost(lost) => {
                let reason = format!("rank {} is lost: {}", lost.rank, lost.reason);
                self.rank_fails(place, Failure { by_controller: true, reason });
            }
            FromController::JobFailed(failed) => {
                self.rank(place).client.state = ClientState::Ended;
                let reason = failed.reason;
                self.rank_fails(place, Failure { by_controller: true, reason });
            }
            // People ask what a rank is doing; nobody is here.
            FromController::Question(_) => {}
        }
    }

    fn plan_arrives(&mut self, place: Place, message: pb::Plan) {
        let rank = &self.ranks[place - self.first_rank];
        let job = &self.jobs[rank.job];
        let plan = JobPlan::try_from(&message).map_err(|error| error.to_string());
        let plan = plan.and_then(|plan| match plan.validate(job.size) {
            Ok(()) if Some(plan.plan.job) == job.id => Ok(plan),
            Ok(()) => Err(format!("the plan is for job {}", plan.plan.job)),
            Err(error) => Err(error.to_string()),
        });
        let plan = match plan {
            Ok(plan) => plan,
            Err(problem) => {
                let what = format!("{}: {problem}", self.processes[place].name);
                return self.violation(Class::Correctness, "plans make sense", what);
            }
        };
        let epoch = u32::from(plan.plan.epoch);
        if !epoch::is_newer(epoch, rank.known_epoch) {
            return;
        }
        let (trees, reason) = (plan.plan.trees.len(), &plan.plan.reason);
        self.log(place, format_args!("receives plan {epoch} with {trees} trees {reason}"));
        self.rank(place).known_epoch = epoch;
        self.rank(place).known_plan = Some(pb::Plan { trees: Vec::new(), key_id: 0, ..message });
        let now = self.local(place);
        self.rank(place).handover.handle_plan(now, ControllerPlan(Arc::new(plan)));
        self.pump_rank(place);
    }

    /// Handles a refusal by the controller.
    pub(super) fn rank_refused(&mut self, place: Place, reason: String) {
        if !self.rank(place).ready {
            self.rank_fails(place, Failure { by_controller: true, reason });
        }
    }

    /// Handles a data packet.
    pub(super) fn rank_on_packet(&mut self, from: Place, place: Place, ce: bool, bytes: &mut [u8]) {
        let now = self.local(place);
        match self.rank(place).data.take(now, PortId(from as u32), ce, bytes) {
            Ok(Some(accepted)) => self.check_accepted(place, &accepted, "accepts"),
            Ok(None) => {}
            Err(reason) => self.trace.note(self.queue.now(), 3, reason as u64),
        }
        self.pump_rank(place);
    }

    pub(super) fn rank_timeout(&mut self, place: Place) {
        let now = self.local(place);
        let rank = self.rank(place);
        rank.armed = None;
        if rank.data.poll_timeout().is_some_and(|due| due <= now) {
            rank.data.handle_timeout(now);
        }
        self.pump_rank(place);
    }

    /// Runs periodically, and at deadlines of the hand-over.
    pub(super) fn group_timeout(&mut self, place: Place) {
        let now = self.local(place);
        let rank = self.rank(place);
        rank.group_armed = None;
        for tree in rank.handover.silent_trees() {
            let results = rank.data.results(tree.into());
            rank.handover.handle_results(tree, results);
        }
        if rank.handover.poll_timeout().is_some_and(|due| due <= now) {
            rank.handover.handle_timeout(now);
        }
        let late = rank.operations.iter().find(|(_, under_way)| under_way.deadline <= now);
        if let Some((&operation, _)) = late {
            let reason = format!("operation {operation} took longer than its time-out");
            self.rank_fails(place, Failure { by_controller: false, reason });
        }
        self.pump_rank(place);
        self.at_local(place, now.after(GROUP_TICK), Timer::Group);
    }

    /// Handles a message of another rank.
    pub(super) fn rank_receives(&mut self, from: Place, place: Place, message: Message) {
        if self.rank(place).outcome.is_some() {
            return;
        }
        match message {
            Message::Handover(bytes) => {
                let now = self.local(place);
                let peer = Rank(self.rank(from).rank);
                if let Err(error) = self.rank(place).handover.handle_message(now, peer, &bytes) {
                    let reason = error.to_string();
                    self.rank_fails(place, Failure { by_controller: false, reason });
                }
                self.pump_rank(place);
            }
            Message::Elements { operation, ranges, bytes } => {
                self.elements_arrive(from, place, operation, ranges, bytes);
            }
            Message::Departure(bytes) => {
                let peer = Rank(self.rank(from).rank);
                if self.rank(place).departure.handle_message(peer, &bytes).is_err() {
                    let what = format!("a message of {} about leaving", self.processes[from].name);
                    self.violation(Class::Correctness, "ranks send valid messages", what);
                }
                self.depart(place);
            }
            Message::Bye => {
                let peer = Rank(self.rank(from).rank);
                let rank = self.rank(place);
                rank.byes.insert(from);
                rank.departure.handle_gone(peer);
                self.depart(place);
            }
            Message::Closed if self.rank(place).byes.contains(&from) => {}
            Message::Closed => {
                let reason = format!("the connection to {} has ended", self.processes[from].name);
                let lost = self.rank(from).rank;
                self.rank(place).unreachable.push(lost);
                self.report_news(place);
                self.rank_fails(place, Failure { by_controller: false, reason });
            }
        }
    }

    /// Executes the outputs of the machines until there are none.
    fn pump_rank(&mut self, place: Place) {
        loop {
            let mut idle = true;
            while let Some(event) = self.rank(place).data.poll_event() {
                idle = false;
                self.data_event(place, event);
            }
            while let Some(action) = self.rank(place).handover.poll_action() {
                idle = false;
                self.perform(place, action);
            }
            if idle {
                break;
            }
        }
        while let Some(transmit) = self.rank(place).handover.poll_transmit() {
            let job = self.rank(place).job;
            let to = self.jobs[job].first + transmit.to.0 as usize;
            self.mesh_send(place, to, Message::Handover(transmit.bytes));
        }
        let now = self.local(place);
        while let Some((to, bytes)) = self.rank(place).data.poll_transmit(now) {
            self.send(place, to.0 as usize, bytes);
        }
        let rank = self.rank(place);
        let due = rank.data.poll_timeout();
        if due.is_some() && due != rank.armed {
            rank.armed = due;
            self.at_local(place, due.unwrap_or_default(), Timer::Machine);
        }
    }

    fn data_event(&mut self, place: Place, event: Event) {
        match event {
            Event::Done(operation) => {
                self.operation_ends(place, operation.submission.id, operation.buffer, true);
                self.report_news(place);
            }
            Event::Mismatch(_) if self.is_spoiled(self.ranks[place - self.first_rank].job) => {}
            Event::Mismatch(operation) => {
                let what = format!("{}: operation {operation}", self.processes[place].name);
                self.violation(Class::Correctness, "ranks agree on what they reduce", what);
            }
            Event::Silent(tree, for_ns) => {
                let ms = for_ns / MS;
                self.log(place, format_args!("tree {tree} has been silent for {ms} ms"));
                let now = self.local(place);
                let rank = self.rank(place);
                let results = rank.data.results(tree.0.into());
                rank.handover.handle_silence(now, tree.0, for_ns, results);
            }
        }
    }

    fn perform(&mut self, place: Place, action: Action<ControllerPlan>) {
        let now = self.local(place);
        match action {
            Action::Freeze => {
                let rank = self.rank(place);
                let submitted = rank.data.submitted();
                let progress = rank.data.freeze();
                self.log(place, format_args!("stops its trees: {}", summary(&progress)));
                let frozen = Frozen::Fragments { progress, submitted };
                self.rank(place).handover.handle_frozen(now, frozen);
            }
            Action::Fetch(fragments) => {
                let rank = self.rank(place);
                let results = fragments.iter().map(|&g| rank.data.fetch(g)).collect();
                rank.handover.handle_fetched(now, results);
                self.log(place, format_args!("serves results {fragments:?}"));
            }
            Action::Deliver(results) => {
                for (g, bytes) in results {
                    if let Some(accepted) = self.rank(place).data.deliver(g, &bytes) {
                        self.check_accepted(place, &accepted, "is served");
                    }
                }
            }
            Action::Resume(resume) => self.resume(place, *resume),
            Action::Run { sequence, path } => {
                if self.rank(place).operations.contains_key(&sequence) {
                    let operation = self.whole(place, sequence);
                    self.give(place, operation, path);
                }
            }
            Action::SilentTrees(trees) => {
                self.log(place, format_args!("trees that do not answer: {trees:?}"));
                self.report_news(place);
            }
            Action::Fail(error) => {
                let reason = error.to_string();
                self.rank_fails(place, Failure { by_controller: false, reason });
            }
            Action::Plan { .. }
            | Action::Faults { .. }
            | Action::Exchange { .. }
            | Action::Over { .. } => {
                let what = "an action of the led mode".to_owned();
                self.violation(Class::Correctness, "the leaderless mode stays leaderless", what);
            }
        }
    }

    /// Switches to the agreed plan.
    fn resume(&mut self, place: Place, resume: Resume<ControllerPlan>) {
        self.report.handovers += 1;
        let now = self.local(place);
        let number = self.rank(place).job;
        let fragment_bytes = self.fragment_bytes(place);
        let epoch = resume.plan.as_ref().map(|plan| plan.0.plan.epoch);
        self.log(
            place,
            format_args!("hand-over {}: plan {epoch:?}, {:?}", resume.generation, resume.path),
        );
        let rest = match &resume.finished {
            Some(finished) => self.rank(place).data.resolve(finished),
            None => Vec::new(),
        };
        // Completions are reported after the remaining operations are on the new path: the application may start the
        // next.
        if let Some(plan) = &resume.plan {
            if !self.jobs[number].oracle.set_order(&plan.0.plan.order) {
                let epoch = plan.0.plan.epoch;
                let what = format!("plan {epoch} of job #{number} adds in another order");
                return self.violation(Class::Correctness, "the order of additions is fixed", what);
            }
            if resume.path == Path::Network {
                let (rank, size) = (self.rank(place).rank, self.jobs[number].size);
                let (config, switches) =
                    worker_config(&plan.0, rank, size).expect("the plan is validated");
                let switches = switches.into_iter().map(|address| self.port(address)).collect();
                let first = self.scenario.first_number;
                let secrets = worker_secrets(&plan.0, &self.rank(place).rank_keys);
                self.rank(place).data.begin(now, config, switches, secrets, first);
            }
        }
        for operation in rest {
            let sequence = operation.submission.id;
            let rank = self.rank(place);
            if !rank.operations.contains_key(&sequence) {
                // It is done here, and contributes again.
                rank.repeated.insert(sequence);
            }
            if resume.rest == Path::Network && self.carries(place, &operation.submission) {
                self.give(place, operation, Path::Network);
            } else {
                // Some ranks may have it all, without fragments.
                let submission = &operation.submission;
                let places = match submission.is_whole(fragment_bytes) {
                    true => submission.whole().places(WHOLE),
                    false => submission.places(fragment_bytes),
                };
                if let Some(under_way) = self.rank(place).operations.get_mut(&sequence) {
                    under_way.on_trees = false;
                }
                self.begin_on_hosts(place, sequence, places, operation.buffer);
            }
        }
        self.report_news(place);
        if !std::mem::replace(&mut self.rank(place).ready, true) {
            self.after(place, MS, Timer::Application);
        }
    }

    /// Submits an operation to a path.
    fn give(&mut self, place: Place, operation: TreeOperation, path: Path) {
        let on_trees = path == Path::Network && self.carries(place, &operation.submission);
        let sequence = operation.submission.id;
        if let Some(under_way) = self.rank(place).operations.get_mut(&sequence) {
            under_way.on_trees = on_trees;
        }
        if on_trees {
            self.rank(place).data.submit(operation);
        } else {
            let all = operation.submission.places(WHOLE);
            self.begin_on_hosts(place, sequence, all, operation.buffer);
        }
    }

    fn whole(&mut self, place: Place, sequence: u64) -> TreeOperation {
        let RankProcess { job, rank, .. } = *self.rank(place);
        let known = self.jobs[job].oracle.operation(sequence);
        let numel = known.numel as u64;
        let submission = Submission {
            id: sequence,
            format: known.format,
            numel,
            fingerprint: (sequence as u32).wrapping_mul(0x9e37_79b9) ^ numel as u32,
            fragments: Fragments::All,
            pattern: known.pattern.clone(),
        };
        TreeOperation { submission, buffer: known.contributions[rank as usize].clone() }
    }

    fn carries(&mut self, place: Place, submission: &Submission) -> bool {
        let job = self.rank(place).job;
        let ranks = self.jobs[job].size;
        let Some(plan) = self.rank(place).handover.plan().map(|plan| &plan.0.plan) else {
            return false;
        };
        let does = submission.pattern == Pattern::Allreduce || plan.copies;
        does && supports(plan.protocol, submission.format, ranks)
    }

    /// Fragment size of the plan in use, which is the same for all plans of the job.
    fn fragment_bytes(&mut self, place: Place) -> u16 {
        self.rank(place).handover.plan().map_or(0, |plan| plan.0.plan.fragment_bytes as u16)
    }

    /// Bytes per element of an operation.
    pub(super) fn element_bytes(&mut self, place: Place, operation: u64) -> usize {
        let job = self.rank(place).job;
        self.jobs[job].oracle.operation(operation).format.dtype.size()
    }

    /// The rank's order of additions.
    pub(super) fn order_of(&mut self, place: Place) -> SumOrder {
        let job = self.rank(place).job;
        let size = self.jobs[job].size;
        let plan = self.rank(place).handover.plan();
        plan.map_or_else(|| SumOrder::flat(size), |plan| plan.0.plan.order.clone())
    }

    /// Runs the application: starts the next operation.
    pub(super) fn application(&mut self, place: Place) {
        let shape = &self.scenario.jobs[self.ranks[place - self.first_rank].job];
        let (gap, depth) = (shape.gap_ms * MS, shape.depth as usize);
        let random = &mut self.processes[place].random;
        let wait = if random.chance(10_000) { 20 * gap } else { random.below(2 * gap) + MS };
        self.after(place, wait, Timer::Application);
        let rank = self.rank(place);
        if rank.outcome.is_some() || rank.leaving {
            return;
        }
        if rank.operations.len() >= depth {
            rank.blocked = true;
            return;
        }
        self.begin_operation(place);
    }

    fn begin_operation(&mut self, place: Place) {
        let rank = &self.ranks[place - self.first_rank];
        let (number, sequence) = (rank.job, rank.next);
        if self.jobs[number].last.is_some_and(|last| sequence >= last) {
            return self.leave_if_done(place);
        }
        let now = self.local(place);
        let deadline = now.after(self.scenario.operation_timeout_ms * MS);
        let elements = self.jobs[number].oracle.operation(sequence).numel as u64;
        let rank = self.rank(place);
        rank.next += 1;
        rank.operations.insert(sequence, UnderWay { deadline, on_trees: false });
        self.log(place, format_args!("begins operation {sequence} of {elements} elements"));
        let begun = Begun { sequence, elements, deadline };
        self.rank(place).handover.handle_operation(begun);
        self.pump_rank(place);
    }

    /// Completes an operation: all sums are in the rank's buffer.
    pub(super) fn operation_ends(
        &mut self,
        place: Place,
        operation: u64,
        buffer: Vec<u8>,
        on_trees: bool,
    ) {
        if self.rank(place).repeated.remove(&operation) {
            return self.log(place, format_args!("has contributed to operation {operation} again"));
        }
        let RankProcess { job: number, rank, .. } = *self.rank(place);
        let known = self.jobs[number].oracle.operation(operation);
        let sum = self.jobs[number].oracle.expected(operation, rank);
        let wrong = (0..buffer.len()).find(|&at| buffer[at] != sum[at]);
        if let Some(at) = wrong.filter(|_| !self.is_spoiled(number)) {
            let element = at / known.format.dtype.size();
            let what = format!(
                "{}: element {element} of operation {operation} ({} {}) is wrong",
                self.processes[place].name,
                known.format.dtype,
                if on_trees { "from trees" } else { "from hosts" },
            );
            return self.violation(Class::Correctness, "sums are exact", what);
        }
        self.log(place, format_args!("has all sums of operation {operation}"));
        self.trace.note(self.queue.now(), 4, operation);
        self.report.operations += 1;
        self.report.on_trees += u64::from(on_trees);
        let rank = self.rank(place);
        if rank.operations.remove(&operation).is_none() {
            let what = format!("{}: operation {operation}", self.processes[place].name);
            return self.violation(Class::Correctness, "an operation ends once", what);
        }
        rank.network_operations += u64::from(on_trees);
        if operation.is_multiple_of(FORGET_EVERY) {
            self.forget_operations(number);
        }
        let rank = self.rank(place);
        if std::mem::replace(&mut rank.blocked, false) {
            self.begin_operation(place);
        } else {
            self.leave_if_done(place);
        }
        self.depart(place);
    }

    /// Drops operations that all ranks have completed.
    fn forget_operations(&mut self, number: usize) {
        let first = self.jobs[number].first - self.first_rank;
        let ranks = &self.ranks[first..first + self.jobs[number].size as usize];
        let oldest =
            |rank: &RankProcess| rank.under_way().first().map_or(rank.next, |&first| first);
        let oldest = ranks.iter().map(oldest).min().unwrap_or(0);
        self.jobs[number].oracle.forget_below(oldest);
    }

    /// Wants to leave after the last operation.
    pub(super) fn leave_if_done(&mut self, place: Place) {
        let rank = &self.ranks[place - self.first_rank];
        let last = self.jobs[rank.job].last;
        let over = last.is_some_and(|last| rank.next >= last) && rank.operations.is_empty();
        if !over || rank.outcome.is_some() || !self.processes[place].alive {
            return;
        }
        if !std::mem::replace(&mut self.rank(place).leaving, true) {
            let deadline = self.local(place).after(LINGER);
            let rank = self.rank(place);
            rank.departure.handle_ended(rank.next);
            rank.departure.leave(deadline);
            self.after(place, LINGER, Timer::Goodbye);
        }
        self.depart(place);
    }

    /// Tells ranks that leave that this one has their last sums, and leaves when no other rank needs this one.
    fn depart(&mut self, place: Place) {
        let now = self.local(place);
        let rank = self.rank(place);
        if rank.outcome.is_some() || !rank.departure.is_under_way() {
            return;
        }
        let ended = rank.operations.keys().next().copied().unwrap_or(rank.next);
        rank.departure.handle_ended(ended);
        let job = rank.job;
        let first = self.jobs[job].first;
        while let Some(transmit) = self.rank(place).departure.poll_transmit() {
            let to = first + transmit.to.0 as usize;
            self.mesh_send(place, to, Message::Departure(transmit.bytes));
        }
        if self.rank(place).departure.may_leave(now) {
            self.complete(place);
        }
    }

    /// The other ranks have had enough time.
    pub(super) fn goodbye_timeout(&mut self, place: Place) {
        if self.rank(place).outcome.is_none() {
            self.complete(place);
        }
    }

    fn complete(&mut self, place: Place) {
        self.log(place, format_args!("has completed all operations"));
        for peer in self.peers(place) {
            self.mesh_send(place, peer, Message::Bye);
        }
        self.rank(place).outcome = Some(Ok(()));
        self.report.completed += 1;
        self.rank(place).data.finish();
        self.pump_rank(place);
        self.after(place, MS, Timer::Exit);
        self.rank_ended();
    }

    /// Ends a rank with an error.
    pub(super) fn rank_fails(&mut self, place: Place, failure: Failure) {
        if self.rank(place).outcome.is_some() {
            return;
        }
        self.log(place, format_args!("FAILS: {}", failure.reason));
        self.check_failure(place, &failure);
        let rank = self.rank(place);
        rank.outcome = Some(Err(failure));
        rank.data.cancel();
        rank.operations.clear();
        self.report.failed += 1;
        self.after(place, 10 * MS, Timer::Exit);
        self.rank_ended();
    }

    /// Ends the process normally.
    pub(super) fn exit(&mut self, place: Place) {
        if let ClientState::Open(stream) = self.client(place).state {
            let leave = pb::worker_report::Report::Leave(pb::Leave {});
            self.send_up(stream, Up::Worker(leave));
        }
        self.client(place).state = ClientState::Ended;
        self.close_all_of(place);
        self.close_mesh_of(place);
        self.processes[place].alive = false;
        self.log(place, format_args!("exits"));
    }

    /// Checks a result that was written into a rank's buffer.
    fn check_accepted(&mut self, place: Place, accepted: &Accepted, how: &str) {
        let Accepted { id, elements } = accepted;
        self.log(place, format_args!("{how} elements {elements:?} of operation {id}"));
        self.trace.note(self.queue.now(), 5, id << 32 | elements.start);
        let RankProcess { job: number, rank, .. } = *self.rank(place);
        let known = self.jobs[number].oracle.operation(*id);
        let sum = self.jobs[number].oracle.expected(*id, rank);
        let bytes = known.bytes(elements);
        let Some(here) = self.rank(place).data.peek(*id, elements) else { return };
        if *here != sum[bytes] && !self.is_spoiled(number) {
            let what = format!(
                "{} {how} wrong sums: elements {elements:?} of operation {id} ({} {:?})",
                self.processes[place].name, known.format.dtype, known.format.op
            );
            self.violation(Class::Correctness, "sums are exact", what);
        }
    }
}

fn summary(progress: &netsum_proto::handover::Progress) -> String {
    let tree = |tree: &netsum_proto::handover::TreeProgress| {
        let above = tree.above.iter().filter(|&&here| here).count();
        format!("{} and {above} above", tree.base)
    };
    progress.trees.iter().map(tree).collect::<Vec<_>>().join(", ")
}

/// As the group's: a rank that may lack a sum is waited for this long.
const LINGER: Nanos = 10_000 * MS;
/// Number of operations between two calls of `forget_operations`.
const FORGET_EVERY: u64 = 16;
const GROUP_TICK: Nanos = 50 * MS;
/// Size of the fragments of a whole operation between hosts, which do not cut it.
const WHOLE: u16 = 1 << 14;
