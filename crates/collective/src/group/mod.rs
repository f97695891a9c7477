//! A group of ranks: what a framework calls.

mod connected;
mod joining;
mod operations;
mod quick;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use crossbeam_channel::{Receiver, Sender, unbounded};
use netsum_net::Process;
use netsum_net::arena::ArenaPort;
use netsum_net::mesh::{Listener, Rings};
use netsum_net::worker::{self, WorkerDriver};
use parking_lot::Mutex;

use crate::address::{self, Address, FirstPlan};
use crate::coordinator::{Coordinator, Ear, Event};
use crate::core::{Core, deadline};
use crate::hosts::Hosts;
use crate::lane::{Desk, Lane, Quick};
use crate::ledger::Ledger;
use crate::pace::{self, Paces};
use crate::planned::session::{ControlMessage, Session, SessionConfig};
use crate::planned::{Origin, Patience, PlanSource, Ports};
use crate::recorder::Recorded;
use crate::shared::Shared;
use crate::status::{GroupStats, Status};
use crate::{Choice, Error, Format, GroupConfig, Link, Order, explain};
pub(crate) use connected::Connected;
use joining::{create_job, place_in_fabric};
pub(crate) use operations::{conclude, prepare};

/// One rank's handle to its group. Operations return soon, whoever is late; ranks must call collectives in the same order.
pub struct Group {
    maker: Process,
    config: GroupConfig,
    address: Address,
    /// What was opened before the others are known.
    opened: Mutex<Option<Opened>>,
    connected: ArcSwapOption<Connected>,
    /// Of the connected group; it is here for operations that end while their caller stands at it.
    desk: Arc<Mutex<Desk>>,
}

struct Opened {
    listener: Listener,
    ports: Option<Ports>,
    memory: Option<ArenaPort>,
    data: Option<(Arc<WorkerDriver>, Receiver<worker::Event>)>,
}

impl Group {
    /// Opens this rank's sockets; rank 0 registers the job. Errors name the address and say what to do.
    pub fn new(config: GroupConfig) -> Result<Group, Error> {
        if config.size == 0 || config.rank >= config.size {
            let GroupConfig { rank, size, .. } = config;
            return Err(Error::Unsupported(format!("rank {rank} in a group of {size}")));
        }
        if config.plan.is_some() && config.controller.is_some() {
            let problem = "a group has a tree plan or a controller, not both; unset one of them";
            return Err(Error::Unsupported(problem.to_owned()));
        }
        let connect = |e: netsum_net::NetError| Error::Connect {
            group: config.name.clone(),
            reason: e.to_string(),
        };
        let (ip, host, job, data) = match config.fabric_controller() {
            None => {
                let (ip, host) = address::local(&config)?;
                (ip, host, None, None)
            }
            Some(controller) => {
                let (ip, host) = place_in_fabric(&config, controller)?;
                let job = match config.rank {
                    0 => Some(create_job(&config, controller)?),
                    _ => None,
                };
                let (driver, events) = WorkerDriver::start(ip).map_err(connect)?;
                (ip, host, job, Some((Arc::new(driver), events)))
            }
        };
        let listener = Listener::bind(ip, config.options.network).map_err(connect)?;
        let memory = memory_port(&config);
        let seat = memory.as_ref().map(ArenaPort::seat);
        let reached = (listener.address(), listener.network_address());
        let (address, ports) = Address::new(&config, reached, host, job, seat)?;
        let opened = Mutex::new(Some(Opened { listener, ports, memory, data }));
        let (connected, desk) = (ArcSwapOption::empty(), Arc::default());
        Ok(Group { maker: Process::this(), config, address, opened, connected, desk })
    }

    /// This process's index.
    pub fn rank(&self) -> u32 {
        self.config.rank
    }

    /// What the other ranks must be given; opaque.
    pub fn address(&self) -> Vec<u8> {
        self.address.to_bytes()
    }

    /// Connects to all ranks, given everybody's address by rank; with a controller, waits for the first plan.
    pub fn connect(&self, addresses: &[Vec<u8>]) -> Result<(), Error> {
        self.check_process()?;
        let opened = self.opened.lock().take();
        let opened = opened.ok_or_else(|| Error::Closed(self.config.name.clone()))?;
        let all = address::read_all(&self.address, addresses)?;
        let until = deadline(self.config.timeout);
        let connected = Arc::new(self.build(opened, &all, until)?);
        if connected.silent {
            self.desk.lock().allow(Quick::new(&connected));
        }
        self.connected.store(Some(connected));
        Ok(())
    }

    /// What the group has done and how it stands; `None` if it is not connected.
    pub fn stats(&self) -> Option<GroupStats> {
        self.connected.load_full().map(|connected| connected.stats())
    }

    /// What the group's messages cost, by the values that all ranks agree on.
    pub fn link(&self) -> Result<Link, Error> {
        let connected = self.connected.load_full();
        let connected = connected.ok_or_else(|| Error::Closed(self.config.name.clone()))?;
        Ok(connected.link())
    }

    /// The algorithm that the hosts' path takes for an operation of `bytes` per rank, and why; see [`crate::explain`].
    pub fn explain(&self, operation: &str, format: Format, bytes: usize) -> Result<Choice, Error> {
        let link = self.link()?;
        let order = self.connected.load().as_ref().map(|c| c.core.order.load_full());
        let wanted = self.config.options.algorithms.get(operation).map(String::as_str);
        explain(&link, operation, format, bytes, order, wanted)
    }

    /// The group and its last operations, oldest first; `None` if it is not connected. `why`: what gave rise to it.
    pub fn recorded(&self, why: &str) -> Option<Recorded> {
        self.connected.load_full().map(|connected| connected.core.recorded(why))
    }

    /// Writes [`Group::recorded`] into a folder; the path of the file.
    pub fn dump(&self, folder: &Path, why: &str) -> Result<PathBuf, Error> {
        self.check_process()?;
        let connected = self.connected.load_full();
        let connected = connected.ok_or_else(|| Error::Closed(self.config.name.clone()))?;
        let problem = |e| Error::Unsupported(format!("cannot write to {}: {e}", folder.display()));
        connected.core.dump(folder, why).map_err(problem)
    }

    /// Why the group cannot be used any more, if so.
    pub fn failure(&self) -> Option<Error> {
        if let Err(error) = self.check_process() {
            return Some(error);
        }
        let Some(connected) = self.connected.load_full() else {
            return Some(Error::Closed(self.config.name.clone()));
        };
        connected.core.failure()
    }

    /// Fails everything that is under way, and every later call.
    pub fn abort(&self, reason: &str) {
        if !self.maker.is_this() {
            return;
        }
        if let Some(connected) = self.connected.load_full() {
            let error = Error::Aborted(reason.to_owned());
            connected.core.fail(error.clone());
            connected.coordinator.tell(Event::Fail(error));
            connected.core.mesh.abort(reason);
        }
    }

    /// Leaves the group in good order. What is under way fails; messages that were sent arrive. In a process that was forked
    /// nothing happens: the group is its parent's.
    pub fn close(&self) {
        if !self.maker.is_this() {
            return;
        }
        self.opened.lock().take();
        let Some(connected) = self.connected.swap(None) else { return };
        connected.core.fail(Error::Closed(self.config.name.clone()));
        connected.coordinator.close();
        connected.lane.close();
        if let Some(session) = &connected.session {
            session.close();
        }
        connected.core.mesh.leave(LEAVE_PATIENCE);
    }

    fn check_process(&self) -> Result<(), Error> {
        if self.maker.is_this() { Ok(()) } else { Err(Error::Forked { process: self.maker.id() }) }
    }

    fn build(&self, opened: Opened, all: &[Address], until: Instant) -> Result<Connected, Error> {
        let (events, heard) = unbounded();
        let ledger = Arc::new(Ledger::default());
        let (plans, controls) = unbounded();
        let ear = Arc::new(Ear { ledger: ledger.clone(), events: events.clone(), plans });
        let roster = address::roster(&self.address, all);
        let silence = self.config.timeout.clamp(SILENCE_MIN, SILENCE_MAX);
        let (mut opened, mut memory) = (opened, None);
        let meet = || {
            let port = opened.memory.take();
            let rings = self.meet(port.as_ref(), all)?;
            // Those who cannot share one memory cannot share another, and have waited for each other long enough.
            memory = port;
            Some(rings)
        };
        let mesh = opened.listener.connect_on_hosts(&roster, until, silence, ear, meet);
        let mesh = mesh.map_err(|e| Error::Connect {
            group: self.config.name.clone(),
            reason: e.to_string(),
        })?;
        let places = all.iter().map(Address::place).collect();
        let GroupConfig { name, options, .. } = &self.config;
        let desk = self.desk.clone();
        let core = Core::new(name.clone(), options, mesh, ledger, desk, places, events.clone());
        let core = Arc::new(core);
        let (hosts, shared) = self.share(&core, memory, all, until)?;
        if options.order == Order::Hosts {
            core.order.store(Arc::new(hosts.order()));
        }
        // Nobody else sets it. Where all share memory, no message's cost is ever asked for.
        let _ = core.paces.set(match hosts.is_one() {
            true => Paces::default(),
            false => pace::measure(&core, options, &hosts, until)?,
        });
        let _ = core.hosts.set(hosts.clone());
        let lane = Lane::start(core.clone(), "netsum-host", Some((hosts, shared)))?;
        let status = Arc::new(Mutex::new(Status {
            reason: "there is no controller".to_owned(),
            ..Status::default()
        }));
        let driver = opened.data.as_ref().map(|(driver, _)| driver.clone());
        let fabric = opened.data.map(|data| self.join(data, all, &status)).transpose()?;
        let waits = fabric.is_some();
        let channel: (Sender<Event>, Receiver<Event>) = (events.clone(), heard);
        let (coordinator, settled) =
            Coordinator::start(core.clone(), channel, fabric, status.clone())?;
        let interfaces = |source: &PlanSource| matches!(source.origin, Origin::Networks(_));
        let together =
            !address::are_apart(all) && self.config.plan.as_ref().is_some_and(interfaces);
        if together {
            let reason = "several interfaces at once are for one rank per host";
            tracing::info!(reason, "sums go over one interface");
            status.lock().reason = reason.to_owned();
        }
        let session = opened
            .ports
            .filter(|_| !together)
            .map(|ports| self.plan_session(&core, ports, all, controls, events, status.clone()));
        let session = session.transpose().inspect_err(|_| {
            coordinator.close();
            lane.close();
        })?;
        let shared_memory = core.hosts.get().is_some_and(|hosts| hosts.is_one());
        let silent = shared_memory && options.algorithms.is_empty() && !waits && session.is_none();
        let connected = Connected { core, lane, session, coordinator, driver, status, silent };
        if waits {
            let first_plan = settled.recv_deadline(until).unwrap_or_else(|_| {
                let seconds = self.config.timeout.as_secs_f64();
                Err(Error::Controller(format!(
                    "the controller at {} gave no plan within {seconds} s",
                    self.config.controller.as_deref().unwrap_or_default()
                )))
            });
            if let Err(error) = first_plan {
                connected.coordinator.close();
                connected.lane.close();
                return Err(error);
            }
        }
        Ok(connected)
    }

    /// The ranks of our host, with the memory through which their messages go.
    fn meet(&self, port: Option<&ArenaPort>, all: &[Address]) -> Option<(Rings, Vec<u32>)> {
        let hosts = address::hosts(all);
        let (host, place) = hosts.place(self.config.rank);
        let ranks = &hosts.all()[host];
        let seats = address::seats(all, ranks).filter(|_| ranks.len() > 1)?;
        let (secret, around) = (all[ranks[0] as usize].secret(), address::all_seats(all));
        let patience = self.config.timeout.min(MEET_PATIENCE);
        let rings = port?.rings(place, &seats, &around, secret, patience)?;
        Some((rings, ranks.clone()))
    }

    /// The ranks of each host come to share memory; the answer is the same at all ranks.
    fn share(
        &self,
        core: &Arc<Core>,
        port: Option<ArenaPort>,
        all: &[Address],
        until: Instant,
    ) -> Result<(Arc<Hosts>, Option<Shared>), Error> {
        let hosts = address::hosts(all);
        let (host, place) = hosts.place(self.config.rank);
        let ranks = hosts.all()[host].clone();
        let seats = address::seats(all, &ranks).filter(|_| ranks.len() > 1);
        let arena = seats.zip(port).and_then(|(seats, port)| {
            let secret = all[ranks[0] as usize].secret();
            let around = address::all_seats(all);
            port.meet(place, &seats, &around, secret, self.config.timeout.min(MEET_PATIENCE))
        });
        let works = arena.is_some() || ranks.len() == 1;
        // The ranks of one host know of each other whether it works.
        let agreed = match hosts.are_mixed() {
            true => pace::all_agree(core, works, until)?,
            false => works,
        };
        let Some(arena) = arena.filter(|_| agreed) else {
            let hosts = if agreed { hosts } else { Hosts::apart(self.config.size) };
            return Ok((Arc::new(hosts), None));
        };
        // Nobody else sets it.
        let _ = core.alarm.set(arena.alarm());
        Ok((Arc::new(hosts), Some(Shared::new(arena, ranks))))
    }

    /// Allreduces over the plan that rank 0 has read.
    fn plan_session(
        &self,
        core: &Arc<Core>,
        ports: Ports,
        all: &[Address],
        controls: Receiver<ControlMessage>,
        coordinator: Sender<Event>,
        status: Arc<Mutex<Status>>,
    ) -> Result<Session, Error> {
        let wrong = |reason: String| Error::Connect { group: self.config.name.clone(), reason };
        let source = self.config.plan.clone();
        let source = source.ok_or_else(|| Error::Internal("ports without a plan".to_owned()))?;
        let FirstPlan { plan, from_bytes, sharing } = all[0].plan().map_err(wrong)?;
        let peers = all.iter().enumerate();
        let peers = peers.filter_map(|(rank, a)| Some((rank, a.port.clone()?))).collect();
        let timeout = self.config.timeout;
        let patience = Patience {
            connect: timeout,
            timeout,
            silence: source.silence,
            measure: source.measure,
            sharing,
        };
        let core = core.clone();
        Session::start(SessionConfig {
            core,
            source,
            plan,
            from_bytes,
            ports,
            peers,
            patience,
            controls,
            coordinator,
            status,
        })
    }
}

/// A port for ranks of this host, if they are to share memory and can.
fn memory_port(config: &GroupConfig) -> Option<ArenaPort> {
    if config.size < 2 || !config.options.shared_memory {
        return None;
    }
    let port = ArenaPort::open();
    port.inspect_err(|error| tracing::warn!(%error, "ranks of this host will not share memory"))
        .ok()
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.maker.is_this() {
            // Its ends would be waited for by threads that are not here, and be heard by the parent's peers.
            std::mem::forget((self.connected.swap(None), self.opened.get_mut().take()));
        }
        self.close();
    }
}

/// A peer's thread answers whatever its training does: more than this is a frozen machine.
const SILENCE_MAX: Duration = Duration::from_secs(30);
const SILENCE_MIN: Duration = Duration::from_secs(2);
/// All ranks are connected when they meet to share memory.
const MEET_PATIENCE: Duration = Duration::from_secs(10);
/// Peers answer a goodbye at once unless they are gone, too.
const LEAVE_PATIENCE: Duration = Duration::from_secs(3);
