//! A rank with open sockets that does not know the other ranks yet.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::unbounded;
use netsum_identity::Credentials;
use netsum_net::NetError;
use netsum_net::arena::ArenaPort;
use netsum_net::mesh::{Listener, Rings};
use netsum_net::worker::WorkerDriver;
use parking_lot::Mutex;

use super::context::Context;
use super::joining::{Data, create_job, place_in_fabric};
use super::meshed::{MEET_PATIENCE, Meshed};
use crate::address::{self, Address};
use crate::coordinator::MeshHandler;
use crate::core::{Core, CoreParts};
use crate::ledger::Ledger;
use crate::planned::Ports;
use crate::queue::QueueState;
use crate::recorder::Recorder;
use crate::{Error, GroupConfig, membership};

pub(super) struct Opened {
    listener: Listener,
    ports: Option<Ports>,
    memory: Option<ArenaPort>,
    data: Option<Data>,
}

impl Opened {
    /// Opens this rank's sockets; rank 0 registers the job. Errors name the address and the remedy.
    pub(super) fn open(config: &GroupConfig) -> Result<(Opened, Address), Error> {
        let connect = |e: netsum_net::NetError| Error::Connect {
            group: config.name.clone(),
            reason: e.to_string(),
        };
        let (ip, host, job, data) = match config.fabric_controller()? {
            None => {
                let (ip, host) = address::local(config)?;
                (ip, host, None, None)
            }
            Some(controller) => {
                let (ip, host) = place_in_fabric(config, &controller)?;
                let job = match config.rank {
                    0 => Some(create_job(config, &controller)?),
                    _ => None,
                };
                let (driver, events) = WorkerDriver::start(ip).map_err(connect)?;
                let driver = Arc::new(driver);
                (ip, host, job, Some(Data { controller, driver, events }))
            }
        };
        let listener = Listener::bind(ip, config.options.network);
        let listener = listener.and_then(|bound| secured(bound, config)).map_err(connect)?;
        let memory = memory_port(config);
        let seat = memory.as_ref().map(ArenaPort::seat);
        let (address, ports) = Address::new(config, &listener, host, job, seat)?;
        Ok((Opened { listener, ports, memory, data }, address))
    }

    /// Connects the mesh of all ranks.
    pub(super) fn mesh(
        self,
        context: &Context<'_>,
        state: &Arc<Mutex<QueueState>>,
    ) -> Result<Meshed, Error> {
        let Context { config, address, all, until } = *context;
        let Opened { listener, ports, memory: mut port, data } = self;
        let (events, received) = unbounded();
        let ledger = Arc::new(Ledger::default());
        let (plans, controls) = unbounded();
        let (ledger_of_mesh, events_of_mesh) = (ledger.clone(), events.clone());
        let group = config.name.clone();
        let handler = MeshHandler { group, ledger: ledger_of_mesh, events: events_of_mesh, plans };
        membership::check(config, all)?;
        let roster = address::roster(address, all);
        let ports = ports.map(|ports| ports.secured(listener.streams(&roster)));
        let silence = config.timeout.clamp(SILENCE_MIN, SILENCE_MAX);
        let mut memory = None;
        let meet = || {
            let port = port.take();
            let rings = Opened::meet(port.as_ref(), context)?;
            // Ranks that cannot share this memory cannot share another, and have waited long enough.
            memory = port;
            Some(rings)
        };
        let mesh = listener.connect_on_hosts(&roster, until, silence, Arc::new(handler), meet);
        let mesh =
            mesh.map_err(|e| Error::Connect { group: config.name.clone(), reason: e.to_string() })?;
        let core = Core::new(CoreParts {
            name: config.name.clone(),
            mesh,
            ledger,
            places: all.iter().map(Address::place).collect(),
            processes: all.iter().map(|address| (address.host.clone(), address.pid)).collect(),
            algorithms: config.options.algorithms.clone(),
            digest_every: config.options.digest_every,
            recorder: Recorder::new(config.options.recorder.clone()),
            unrecorded: state.clone(),
            events: Arc::new(events.clone()),
        });
        let (channel, state) = ((events, received), state.clone());
        Ok(Meshed { core, state, channel, controls, ports, memory, data })
    }

    /// Meets the ranks of this host; returns the shared memory for their messages.
    fn meet(port: Option<&ArenaPort>, context: &Context<'_>) -> Option<(Rings, Vec<u32>)> {
        let Context { config, all, .. } = *context;
        let hosts = address::hosts(all);
        let (host, place) = hosts.place(config.rank);
        let ranks = &hosts.all()[host];
        let seats = address::seats(all, ranks).filter(|_| ranks.len() > 1)?;
        let (secret, around) = (all[ranks[0] as usize].secret(), address::all_seats(all));
        let patience = config.timeout.min(MEET_PATIENCE);
        let rings = port?.rings(place, &seats, &around, secret, patience)?;
        Some((rings, ranks.clone()))
    }
}

/// With the credentials of this process, if it has any.
fn secured(listener: Listener, config: &GroupConfig) -> Result<Listener, NetError> {
    match &config.options.credentials {
        Some(folder) => listener.secured(Arc::new(Credentials::open(folder)?)),
        None => Ok(listener),
    }
}

/// A port for the ranks of this host, if options and system allow shared memory.
fn memory_port(config: &GroupConfig) -> Option<ArenaPort> {
    if config.size < 2 || !config.options.shared_memory {
        return None;
    }
    let port = ArenaPort::open();
    port.inspect_err(|error| tracing::warn!(%error, "ranks of this host will not share memory"))
        .ok()
}

/// A peer's thread answers even while its training is busy: longer silence means a frozen machine.
const SILENCE_MAX: Duration = Duration::from_secs(30);
const SILENCE_MIN: Duration = Duration::from_secs(2);
