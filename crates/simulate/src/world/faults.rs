//! Start and end of faults.

use super::clock::MS;
use super::{CONTROLLER, Place, World};
use crate::fault::{Direction, Kind, LinkLoss, Process, StoreAfter};

/// Active faults that do not belong to a single process.
#[derive(Default)]
pub(super) struct Active {
    cuts: Vec<(usize, Cut)>,
    links: Vec<(usize, (u32, Direction, LinkLoss))>,
    losses: Vec<(usize, u32)>,
    delays: Vec<(usize, u32)>,
    full: u32,
}

/// An active partition.
pub(super) struct Cut {
    group: Vec<Place>,
    pub data: bool,
    pub control: bool,
    pub mesh: bool,
}

impl Active {
    /// Whether a partition separates two processes on the network selected by `of`.
    pub(super) fn separated(&self, a: Place, b: Place, of: impl Fn(&Cut) -> bool) -> bool {
        self.cuts.iter().any(|(_, cut)| of(cut) && cut.group.contains(&a) != cut.group.contains(&b))
    }

    pub(super) fn links(&self) -> impl Iterator<Item = (u32, Direction, LinkLoss)> + '_ {
        self.links.iter().map(|(_, link)| *link)
    }

    /// Loss rate of all links, per million.
    pub(super) fn loss(&self) -> u32 {
        self.losses.iter().map(|(_, loss)| *loss).max().unwrap_or(0)
    }

    pub(super) fn disk_is_full(&self) -> bool {
        self.full > 0
    }

    /// Maximum additional delay of messages, milliseconds.
    pub(super) fn delay_ms(&self) -> u64 {
        self.delays.iter().map(|(_, ms)| u64::from(*ms)).max().unwrap_or(0)
    }
}

impl World {
    pub(super) fn place(&self, process: Process) -> Option<Place> {
        match process {
            Process::Controller => Some(CONTROLLER),
            Process::Standby(number) => Some(self.first_standby + number as usize)
                .filter(|&place| place < self.processes.len()),
            Process::Aggregator(number) => {
                Some(1 + number as usize).filter(|&place| place < self.first_rank)
            }
            Process::Rank(job, rank) => {
                let job = self.jobs.get(job as usize)?;
                (rank < job.size).then_some(job.first + rank as usize)
            }
        }
    }

    pub(super) fn fault_begins(&mut self, number: usize) {
        let fault = self.scenario.faults[number].clone();
        self.trace.log(self.queue.now(), &"FAULT", format_args!("{}", fault.kind));
        self.excuse(&fault);
        let of = |world: &World, process: Process| world.place(process);
        match fault.kind {
            Kind::Kill { process, .. } => {
                let Some(place) = of(self, process) else { return };
                self.kill(place);
            }
            Kind::Stop { process } => {
                let Some(place) = of(self, process) else { return };
                self.processes[place].stopped += 1;
            }
            Kind::Partition { group, data, control, mesh } => {
                let group = group.iter().filter_map(|&process| of(self, process)).collect();
                self.active.cuts.push((number, Cut { group, data, control, mesh }));
            }
            Kind::Link { link, direction, loss } => {
                let ends = self
                    .network
                    .ends(link)
                    .map(|(a, b)| format!("{} - {}", self.topology.name(a), self.topology.name(b)));
                let ends = ends.unwrap_or_default();
                self.trace.log(self.queue.now(), &"FAULT", format_args!("link {link} is {ends}"));
                self.active.links.push((number, (link, direction, loss)));
            }
            Kind::Loss { per_million } => self.active.losses.push((number, per_million)),
            Kind::Delay { ms } => self.active.delays.push((number, ms)),
            Kind::BreakStream { process } => {
                let Some(place) = of(self, process) else { return };
                self.break_streams(place);
            }
            Kind::DiskFull => {
                self.active.full += 1;
                self.set_disk_full(true);
            }
            Kind::StoreSilent { process } => self.silence_store(process, true),
            Kind::ClockJump { process, ms } => {
                let Some(place) = of(self, process) else { return };
                self.processes[place].clock.jump(u64::from(ms) * MS);
                self.clock_jumped(place);
            }
            Kind::RekeyJob { job } => {
                if (job as usize) < self.jobs.len() {
                    self.rekey_job(job as usize);
                }
            }
            Kind::StopJob { job } => {
                if (job as usize) < self.jobs.len() {
                    self.stop_job(job as usize);
                }
            }
        }
        self.streams_changed();
        self.mesh_changed();
    }

    pub(super) fn fault_ends(&mut self, number: usize) {
        let kind = self.scenario.faults[number].kind.clone();
        self.trace.log(self.queue.now(), &"FAULT ENDS", format_args!("{kind}"));
        let own = |entry: &usize| *entry == number;
        match kind {
            Kind::Kill { process, store } => {
                let Some(place) = self.place(process) else { return };
                self.start_again(place, store);
            }
            Kind::Stop { process } => {
                let Some(place) = self.place(process) else { return };
                self.unstop(place);
            }
            Kind::Partition { .. } => self.active.cuts.retain(|(entry, _)| !own(entry)),
            Kind::Link { .. } => self.active.links.retain(|(entry, _)| !own(entry)),
            Kind::Loss { .. } => self.active.losses.retain(|(entry, _)| !own(entry)),
            Kind::Delay { .. } => self.active.delays.retain(|(entry, _)| !own(entry)),
            Kind::DiskFull => {
                self.active.full -= 1;
                self.set_disk_full(self.active.disk_is_full());
            }
            Kind::StoreSilent { process } => self.silence_store(process, false),
            Kind::BreakStream { .. }
            | Kind::ClockJump { .. }
            | Kind::RekeyJob { .. }
            | Kind::StopJob { .. } => {}
        }
        self.streams_changed();
        self.mesh_changed();
    }

    fn kill(&mut self, place: Place) {
        if !self.processes[place].alive {
            if (self.first_rank..self.first_standby).contains(&place) {
                // The rank dies before its start.
                self.rank_dies(place);
            }
            return;
        }
        self.processes[place].alive = false;
        self.processes[place].held.clear();
        self.log(place, format_args!("is killed"));
        self.close_all_of(place);
        match place {
            _ if self.controller_index(place).is_some() => self.controller_stops(place),
            _ if place < self.first_rank => self.aggregators[place - 1].machine = None,
            _ => {
                self.close_mesh_of(place);
                self.rank_dies(place);
            }
        }
    }

    fn start_again(&mut self, place: Place, store: StoreAfter) {
        // Kills may overlap: the first restart counts.
        if self.processes[place].alive {
            return;
        }
        match place {
            _ if place == CONTROLLER || place >= self.first_standby => {
                let index = self.controller_index(place).unwrap_or_default();
                self.start_controller(index, store);
            }
            _ if place < self.first_rank => self.start_aggregator(place),
            _ => {}
        }
    }

    /// Handles SIGCONT: events held meanwhile are delivered.
    fn unstop(&mut self, place: Place) {
        let process = &mut self.processes[place];
        process.stopped = process.stopped.saturating_sub(1);
        if process.stopped == 0 {
            for event in std::mem::take(&mut process.held) {
                self.queue.after(1000, event);
            }
        }
    }

    /// Handles deadlines that a clock jump has passed.
    fn clock_jumped(&mut self, place: Place) {
        if !self.processes[place].alive || self.controller_index(place).is_some() {
            return;
        }
        self.after(place, 1, super::Timer::Machine);
    }
}
