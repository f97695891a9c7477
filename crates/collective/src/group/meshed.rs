//! A rank that is connected to all ranks by the mesh, and to none in another way yet.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use netsum_net::arena::ArenaPort;
use parking_lot::Mutex;

use super::connected::Connected;
use super::context::Context;
use super::joining::{Data, join};
use crate::address::{self, FirstPlan};
use crate::coordinator::{Coordinator, Event};
use crate::core::Core;
use crate::hosts::Hosts;
use crate::messages::ControlMessage;
use crate::planned::session::{Session, SessionConfig};
use crate::planned::{Origin, Patience, PlanSource, Ports};
use crate::queue::{OpQueue, QueueState};
use crate::shared::Shared;
use crate::status::Status;
use crate::{Error, Order, pace};

pub(super) struct Meshed {
    pub(super) core: Core,
    pub(super) state: Arc<Mutex<QueueState>>,
    /// The coordinator's event channel; some events may have arrived already.
    pub(super) channel: (Sender<Event>, Receiver<Event>),
    /// Control messages about tree plans.
    pub(super) controls: Receiver<ControlMessage>,
    pub(super) ports: Option<Ports>,
    pub(super) memory: Option<ArenaPort>,
    pub(super) data: Option<Data>,
}

impl Meshed {
    /// Sets up shared memory within hosts, measures the links, and starts the group's threads; with a controller, waits
    /// for the first plan.
    pub(super) fn connect(self, context: &Context<'_>) -> Result<Connected, Error> {
        let Context { config, all, until, .. } = *context;
        let Meshed { mut core, state, channel, controls, ports, memory, data } = self;
        let (hosts, shared) = Meshed::share(&mut core, memory, context)?;
        if config.options.order == Order::Hosts {
            core.order.store(Arc::new(hosts.order()));
        }
        // If all ranks share memory, costs of messages are never needed.
        if !hosts.is_one() {
            core.paces = pace::measure(&core, &config.options, &hosts, until)?;
        }
        let core = Arc::new(core);
        let memory = Some((hosts.clone(), shared));
        let queue = Arc::new(OpQueue::start(core.clone(), state, "netsum-host", memory)?);
        let status = Arc::new(Mutex::new(Status {
            reason: "there is no controller".to_owned(),
            ..Status::default()
        }));
        let driver = data.as_ref().map(|data| data.driver.clone());
        let fabric = data.map(|data| join(context, data, &status)).transpose()?;
        let waits = fabric.is_some();
        let (coordinator, settled) =
            Coordinator::start(core.clone(), channel, fabric, status.clone())?;
        let interfaces = |source: &PlanSource| matches!(source.origin, Origin::Networks(_));
        let together = !address::are_apart(all) && config.plan.as_ref().is_some_and(interfaces);
        if together {
            let reason = "several interfaces at once are for one rank per host";
            tracing::info!(reason, "sums go over one interface");
            status.lock().reason = reason.to_owned();
        }
        let session = ports.filter(|_| !together).map(|ports| {
            Meshed::plan_session(core.clone(), ports, controls, status.clone(), context)
        });
        let session = session.transpose().inspect_err(|_| {
            coordinator.close();
            queue.close();
        })?;
        let by_default = config.options.algorithms.is_empty() && !waits && session.is_none();
        let silent = hosts.is_one() && by_default;
        let all_collectives = waits && config.options.all_collectives;
        let mut connected = Connected {
            core,
            queue,
            hosts,
            session,
            coordinator,
            driver,
            status,
            all_collectives,
            switch_cost: None,
            silent,
        };
        if waits {
            let first_plan = settled.recv_deadline(until).unwrap_or_else(|_| {
                let seconds = config.timeout.as_secs_f64();
                Err(Error::Controller(format!(
                    "the controller at {} gave no plan within {seconds} s",
                    config.controller.as_deref().unwrap_or_default()
                )))
            });
            let measured = first_plan.and_then(|()| connected.measure_switches(context));
            match measured {
                Ok(cost) => connected.switch_cost = cost,
                Err(error) => {
                    connected.coordinator.close();
                    connected.queue.close();
                    return Err(error);
                }
            }
        }
        Ok(connected)
    }

    /// Sets up shared memory among the ranks of each host; the outcome is the same at all ranks.
    fn share(
        core: &mut Core,
        port: Option<ArenaPort>,
        context: &Context<'_>,
    ) -> Result<(Arc<Hosts>, Option<Shared>), Error> {
        let Context { config, all, until, .. } = *context;
        let hosts = address::hosts(all);
        let (host, place) = hosts.place(config.rank);
        let ranks = hosts.all()[host].clone();
        let seats = address::seats(all, &ranks).filter(|_| ranks.len() > 1);
        let arena = seats.zip(port).and_then(|(seats, port)| {
            let secret = all[ranks[0] as usize].secret();
            let around = address::all_seats(all);
            port.meet(place, &seats, &around, secret, config.timeout.min(MEET_PATIENCE))
        });
        let works = arena.is_some() || ranks.len() == 1;
        // The ranks of one host know each other's outcome.
        let agreed = match hosts.are_mixed() {
            true => pace::all_agree(core, works, until)?,
            false => works,
        };
        let Some(arena) = arena.filter(|_| agreed) else {
            let hosts = if agreed { hosts } else { Hosts::apart(config.size) };
            return Ok((Arc::new(hosts), None));
        };
        core.alarm = Some(arena.alarm());
        Ok((Arc::new(hosts), Some(Shared::new(arena, ranks))))
    }

    /// Starts the session for rank 0's tree plan.
    fn plan_session(
        core: Arc<Core>,
        ports: Ports,
        controls: Receiver<ControlMessage>,
        status: Arc<Mutex<Status>>,
        context: &Context<'_>,
    ) -> Result<Session, Error> {
        let Context { config, all, .. } = *context;
        let wrong = |reason: String| Error::Connect { group: config.name.clone(), reason };
        let source = config.plan.clone();
        let source = source.ok_or_else(|| Error::Internal("ports without a plan".to_owned()))?;
        let FirstPlan { plan, from_bytes, sharing } = all[0].plan().map_err(wrong)?;
        let peers = all.iter().enumerate();
        let peers = peers.filter_map(|(rank, a)| Some((rank, a.port.clone()?))).collect();
        let timeout = config.timeout;
        let patience = Patience {
            connect: timeout,
            timeout,
            silence: source.silence,
            measure: source.measure,
            sharing,
        };
        Session::start(SessionConfig {
            core,
            source,
            plan,
            from_bytes,
            ports,
            peers,
            patience,
            controls,
            status,
        })
    }
}

/// All ranks are connected when they set up shared memory.
pub(super) const MEET_PATIENCE: Duration = Duration::from_secs(10);
