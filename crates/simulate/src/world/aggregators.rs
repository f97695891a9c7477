//! Switch and server processes.

use std::net::SocketAddr;

use netsum_control::pb::switch_command::Command;
use netsum_control::pb::switch_report::Report;
use netsum_control::{lease_from_message, pb};
use netsum_proto::{PortId, Time};
use netsum_topo::{Fabric, Protocol};
use netsum_wire::{Epoch, HEADERS_MAX, JobId};

use super::client::{Client, ClientState};
use super::clock::{Nanos, SECOND};
use super::streams::{StreamId, Up};
use super::{Place, Timer, World};
use crate::aggregator::{Aggregator, Config};
use crate::scenario::Scenario;

pub(super) struct AggregatorProcess {
    pub name: String,
    pub address: SocketAddr,
    pub client: Client,
    pub config: Config,
    pub machine: Option<Aggregator>,
    /// The deadline of the running timer.
    armed: Option<Time>,
    /// When the connection to the controller was lost.
    away_since: Option<Time>,
    /// Incarnation of the controller that granted the leases; 0 before the first.
    incarnation: u64,
    /// The longest idle expiry of all leases.
    idle_expiry: Option<Nanos>,
}

impl AggregatorProcess {
    /// All aggregators of a fabric, in the order of the fabric file.
    pub(super) fn all(scenario: &Scenario, fabric: &Fabric) -> Vec<AggregatorProcess> {
        let shape = &scenario.fabric;
        let config = |server, memory, slots, policy| Config {
            server,
            memory,
            slots,
            policy,
            first_number: scenario.first_number,
            row_bytes: row_bytes(shape.mtu),
        };
        let new = |name: &String, address, config| AggregatorProcess {
            name: name.clone(),
            address,
            client: Client::default(),
            config,
            machine: None,
            armed: None,
            away_since: None,
            incarnation: 0,
            idle_expiry: None,
        };
        let switches = fabric
            .switches
            .iter()
            .map(|s| new(&s.name, s.address, config(false, s.memory.0, s.slots, s.policy)));
        let servers = fabric
            .servers
            .iter()
            .map(|s| new(&s.name, s.address, config(true, s.memory.0, 0, Default::default())));
        switches.chain(servers).collect()
    }
}

impl World {
    pub(super) fn start_aggregator(&mut self, place: Place) {
        let process = &mut self.processes[place];
        process.alive = true;
        process.incarnation += 1;
        let now = self.local(place);
        let aggregator = &mut self.aggregators[place - 1];
        aggregator.machine = Some(Aggregator::new(aggregator.config.clone()));
        (aggregator.client, aggregator.armed) = (Client::default(), None);
        (aggregator.away_since, aggregator.idle_expiry) = (Some(now), None);
        aggregator.incarnation = 0;
        self.log(place, format_args!("starts"));
        let wait = self.processes[place].random.below(20_000_000);
        self.after(place, wait, Timer::Connect);
        self.after(place, SECOND, Timer::Tick);
    }

    pub(super) fn hello(&self, place: Place) -> pb::SwitchHello {
        let aggregator = &self.aggregators[place - 1];
        let config = &aggregator.config;
        let leases = aggregator.machine.as_ref().map(Aggregator::leases).unwrap_or_default();
        let incarnation = aggregator.incarnation;
        let lease = |(job, tree, epoch)| pb::InstalledLease { job, tree, epoch, incarnation };
        pb::SwitchHello {
            name: aggregator.name.clone(),
            udp_address: aggregator.address.to_string(),
            memory_bytes: config.memory,
            receive_buffer_bytes: self.scenario.fabric.receive_buffer,
            mtu: self.scenario.fabric.mtu,
            installed: leases.into_iter().map(lease).collect(),
            server: config.server,
            slots: config.slots,
            slot_bytes: config.row_bytes.into(),
            policy: config.policy.to_string(),
            instance: self.processes[place].incarnation.into(),
            aes: place.is_multiple_of(2),
            encrypts: !place.is_multiple_of(5),
            all_collectives: !place.is_multiple_of(7),
            term: aggregator.client.fence.term(),
            packets: None,
        }
    }

    /// The heartbeat with the counters of a switch's leases.
    pub(super) fn switch_report(&self, place: Place) -> pb::SwitchHeartbeat {
        let machine = self.aggregators[place - 1].machine.as_ref();
        let counters = machine.map(Aggregator::counters).unwrap_or_default();
        let tree = |((job, tree, epoch), protocol, contributions): (_, Protocol, u64)| {
            let protocol = protocol.to_string();
            pb::SwitchTree { job, tree, epoch, protocol, contributions, ..Default::default() }
        };
        pb::SwitchHeartbeat {
            trees: counters.into_iter().map(tree).collect(),
            ..Default::default()
        }
    }

    pub(super) fn connected(&mut self, place: Place) {
        if place < self.first_rank {
            self.aggregators[place - 1].away_since = None;
        }
        self.log(place, format_args!("is connected to the controller"));
    }

    pub(super) fn disconnected(&mut self, place: Place) {
        if place < self.first_rank {
            let now = self.local(place);
            self.aggregators[place - 1].away_since.get_or_insert(now);
        }
    }

    pub(super) fn aggregator_tick(&mut self, place: Place) {
        self.after(place, SECOND, Timer::Tick);
        let now = self.local(place);
        let aggregator = &mut self.aggregators[place - 1];
        if let (Some(since), Some(idle)) = (aggregator.away_since, aggregator.idle_expiry)
            && now.since(since) >= idle
            && let Some(machine) = &mut aggregator.machine
        {
            machine.expire(now, idle);
        }
        self.check_aggregator(place);
    }

    pub(super) fn aggregator_on_command(
        &mut self,
        place: Place,
        stream: StreamId,
        command: Command,
    ) {
        let now = self.local(place);
        let addresses = &self.addresses;
        let port = |address: SocketAddr| {
            PortId(addresses.get(&address).map_or(u32::MAX, |&place| place as u32))
        };
        let aggregator = &mut self.aggregators[place - 1];
        let Some(machine) = &mut aggregator.machine else { return };
        match command {
            Command::Install(lease) => {
                let outcome = lease.secrets().and_then(|secrets| {
                    machine.install(now, &lease_from_message(&lease)?, secrets.as_ref(), port)
                });
                if outcome.is_ok() && lease.idle_expiry_s > 0 {
                    let idle = u64::from(lease.idle_expiry_s) * SECOND;
                    aggregator.idle_expiry = aggregator.idle_expiry.max(Some(idle));
                }
                let (job, tree, epoch) = (lease.job, lease.tree, lease.epoch);
                let (ok, reason) = (outcome.is_ok(), outcome.err().unwrap_or_default());
                let verb = if ok { "installs" } else { "refuses" };
                self.log(
                    place,
                    format_args!("{verb} a lease: job {job}, tree {tree}, epoch {epoch} {reason}"),
                );
                let ack = pb::LeaseAck { job, tree, epoch, ok, reason };
                if matches!(self.client(place).state, ClientState::Open(_)) {
                    self.send_up(stream, Up::Switch(Report::LeaseAck(ack)));
                }
            }
            Command::Hello(hello) => {
                // Leases of another incarnation are void: the new controller may allocate their job numbers again.
                let before = std::mem::replace(&mut aggregator.incarnation, hello.incarnation);
                if before != 0 && before != hello.incarnation {
                    for (job, _, epoch) in machine.leases() {
                        machine.revoke(JobId(job), Epoch(epoch as u16));
                    }
                    self.log(place, format_args!("drops the leases of another controller"));
                }
            }
            Command::Revoke(revoke) => {
                let epoch = Epoch(revoke.epoch as u16);
                machine.revoke(JobId(revoke.job), epoch);
                let job = revoke.job;
                self.log(place, format_args!("revokes job {job} up to epoch {epoch}"));
            }
        }
        self.pump_aggregator(place);
    }

    pub(super) fn aggregator_on_packet(
        &mut self,
        from: Place,
        place: Place,
        ce: bool,
        bytes: &mut [u8],
    ) {
        let now = self.local(place);
        let Some(machine) = &mut self.aggregators[place - 1].machine else { return };
        machine.take(now, PortId(from as u32), ce, bytes);
        self.pump_aggregator(place);
    }

    pub(super) fn aggregator_timeout(&mut self, place: Place) {
        let now = self.local(place);
        let aggregator = &mut self.aggregators[place - 1];
        aggregator.armed = None;
        if let Some(machine) = &mut aggregator.machine
            && machine.poll_timeout().is_some_and(|due| due <= now)
        {
            machine.handle_timeout(now);
        }
        self.pump_aggregator(place);
    }

    fn pump_aggregator(&mut self, place: Place) {
        let mut packets = Vec::new();
        let aggregator = &mut self.aggregators[place - 1];
        let Some(machine) = &mut aggregator.machine else { return };
        while let Some(packet) = machine.poll_transmit() {
            packets.push(packet);
        }
        machine.flushed();
        let due = machine.poll_timeout();
        if due.is_some() && aggregator.armed != due {
            aggregator.armed = due;
            self.at_local(place, due.unwrap_or_default(), Timer::Machine);
        }
        for (to, bytes) in packets {
            self.send(place, to.0 as usize, bytes);
        }
        self.check_aggregator(place);
    }
}

/// The largest payload of slot protocols that fits into a packet.
fn row_bytes(mtu: u32) -> u16 {
    (mtu.saturating_sub(HEADERS_MAX) / 4 * 4).max(4) as u16
}
