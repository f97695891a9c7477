//! What the switch's thread does.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use netsum_proto::panama::{BufferId, Child, Lease, LeaseError, Memory, Slab, Switch, Transmit};
use netsum_proto::{Drop, PortId};
use netsum_wire::panama::{HEADER_LEN, Header};
use rustc_hash::FxHashSet;

use super::ports::Ports;
use super::store::Store;
use super::{Command, LeaseKey, SwitchLease, SwitchSnapshot, TreeSnapshot};
use crate::clock::{Clock, CpuTime};
use crate::udp::{SendBatch, Socket, Wake};

/// Commands wake the thread, so this bounds nothing but the harm of a lost wake-up.
const SLEEP: Duration = Duration::from_secs(1);
/// After a receive error, so that a broken socket does not burn a core.
const AFTER_ERROR: Duration = Duration::from_millis(100);

pub(super) struct Thread {
    socket: Socket,
    switch: Switch<Store>,
    ports: Ports,
    inbox: Receiver<Command>,
    wake: Arc<Wake>,
    clock: Clock,
    outbound: SendBatch<Packet>,
    /// Headers of packets that have no payload, until they are sent.
    headers: Vec<[u8; HEADER_LEN]>,
    receive_errors: u64,
}

/// A packet that waits in `outbound`.
#[derive(Clone, Copy)]
enum Packet {
    Stored(BufferId),
    Header(u32),
}

impl Thread {
    pub(super) fn new(
        socket: Socket,
        memory: u64,
        inbox: Receiver<Command>,
        wake: Arc<Wake>,
    ) -> Thread {
        Thread {
            socket,
            switch: Switch::new(Store::new(memory)),
            ports: Ports::default(),
            inbox,
            wake,
            clock: Clock::start(),
            outbound: SendBatch::new(),
            headers: Vec::new(),
            receive_errors: 0,
        }
    }

    /// Works until it is told to stop.
    pub(super) fn run(mut self) {
        let mut busy = Instant::now();
        loop {
            if self.wake.take() && self.obey() {
                return;
            }
            match self.switch.memory_mut().recv(&self.socket) {
                Ok(0) if busy.elapsed() < self.socket.spin() => std::hint::spin_loop(),
                Ok(0) => {
                    self.socket.wait(&self.wake, SLEEP);
                }
                Ok(messages) => {
                    self.take(messages);
                    self.send();
                    if !self.socket.spin().is_zero() {
                        busy = Instant::now();
                    }
                }
                Err(error) => self.receive_failed(&error),
            }
        }
    }

    fn take(&mut self, messages: usize) {
        let now = self.clock.now();
        for message in 0..messages {
            let message = self.switch.memory().batch().message(message);
            let Some(port) = self.ports.find(message.from) else {
                message.packets().for_each(|_| self.switch.count_drop(Drop::UnknownSender));
                continue;
            };
            let (mut packets, mut bytes) = (0, 0);
            for place in message.packets() {
                let packet = self.switch.memory().batch().bytes(place);
                packets += 1;
                bytes += packet.len() as u64;
                match Header::decode(packet) {
                    // What is dropped is counted by the machine.
                    Ok((header, _)) => {
                        let payload = place.after(HEADER_LEN);
                        let _ = self.switch.handle(now, port, message.ce, &header, &payload);
                    }
                    Err(error) => self.switch.count_decode_error(error),
                }
            }
            self.ports.received(port, message.ce, packets, bytes);
        }
    }

    fn send(&mut self) {
        while let Some(transmit) = self.switch.poll_transmit() {
            match transmit {
                Transmit::Data { to, buffer } => {
                    self.outbound.push(to.0 as usize, Packet::Stored(buffer));
                }
                Transmit::Control { to, header } => {
                    let index = self.headers.len() as u32;
                    let mut bytes = [0; HEADER_LEN];
                    header.encode(&mut bytes);
                    self.headers.push(bytes);
                    self.outbound.push(to.0 as usize, Packet::Header(index));
                }
            }
        }
        let (store, headers) = (self.switch.memory(), &self.headers);
        self.outbound.flush(&self.socket, |packet| match *packet {
            Packet::Stored(buffer) => store.packet(buffer),
            Packet::Header(index) => [&headers[index as usize], &[]],
        });
        self.switch.flushed();
        self.headers.clear();
    }

    fn receive_failed(&mut self, error: &io::Error) {
        self.receive_errors += 1;
        if self.receive_errors.is_power_of_two() {
            let (address, times) = (self.socket.local_addr(), self.receive_errors);
            tracing::error!(%address, %error, times, "receiving failed");
        }
        self.socket.wait(&self.wake, AFTER_ERROR);
    }

    /// Does what was asked; true if that is to stop.
    fn obey(&mut self) -> bool {
        while let Ok(command) = self.inbox.try_recv() {
            // Who asked may have gone; then nobody needs the answer.
            match command {
                Command::Install(lease, reply) => {
                    let _ = reply.send(self.install(lease).map_err(Into::into));
                }
                Command::Revoke(job, up_to) => {
                    self.switch.revoke(job, up_to);
                    // Nothing waits to be sent, so what the leases held is free now, not after the
                    // next packet, which may never come.
                    self.switch.flushed();
                    self.forget_ports();
                }
                Command::Expire(idle, reply) => {
                    let _ = reply.send(self.expire(idle));
                }
                Command::Snapshot(reply) => {
                    let _ = reply.send(self.snapshot());
                }
                Command::Stop => return true,
            }
        }
        false
    }

    fn install(&mut self, lease: SwitchLease) -> Result<(), LeaseError> {
        let children = lease.children.iter().map(|child| Child {
            port: self.intern(child.address),
            ranks: child.ranks,
            branch: child.branch,
        });
        let children = children.collect();
        let lease = Lease {
            job: lease.job,
            epoch: lease.epoch,
            tree: lease.tree,
            children,
            parent: lease.parent.map(|address| self.intern(address)),
            slots: lease.slots,
            fragment_bytes: lease.fragment_bytes,
            release_permille: lease.release_permille,
        };
        let installed = self.switch.install(self.clock.now(), lease);
        // Ports of the lease that this one replaced, or of this one if it was refused.
        self.forget_ports();
        installed
    }

    fn intern(&mut self, address: std::net::SocketAddr) -> PortId {
        let (port, new) = self.ports.intern(address);
        if new {
            self.outbound.set_destination(port.0 as usize, address);
        }
        port
    }

    fn expire(&mut self, idle: Duration) -> Vec<LeaseKey> {
        let idle_ns = u64::try_from(idle.as_nanos()).unwrap_or(u64::MAX);
        let expired = self.switch.expire(self.clock.now(), idle_ns);
        if !expired.is_empty() {
            self.switch.flushed();
            self.forget_ports();
        }
        expired.iter().map(LeaseKey::of).collect()
    }

    fn forget_ports(&mut self) {
        let ports = |lease: &Lease| {
            let children = lease.children.iter().map(|c| c.port);
            children.chain(lease.parent).collect::<Vec<_>>()
        };
        let leased: FxHashSet<PortId> = self.switch.leases().flat_map(ports).collect();
        let outbound = &self.outbound;
        let sent = |port: PortId| outbound.sent(port.0 as usize);
        self.ports.retain(&leased, sent);
    }

    fn snapshot(&self) -> SwitchSnapshot {
        let memory = self.switch.memory().slab();
        // The machine gives all three in the same order.
        let (leases, caps) = (self.switch.leases(), self.switch.window_caps());
        let trees = leases.zip(caps).zip(self.switch.tree_counters());
        let mut trees: Vec<_> = trees
            .map(|((lease, (_, _, window_cap)), (.., counters))| TreeSnapshot {
                lease: LeaseKey::of(lease),
                window_cap,
                memory_reserved: reserved(memory, lease, window_cap),
                counters: *counters,
            })
            .collect();
        trees.sort_by_key(|t| (t.lease.job, t.lease.tree));
        SwitchSnapshot {
            neighbours: self.ports.neighbours(|port| self.outbound.sent(port.0 as usize)),
            trees,
            drops: self.switch.drops().iter().collect(),
            failures: self.outbound.failures(),
            memory_used: memory.used(),
            memory_limit: memory.limit(),
            socket: self.socket.report(),
            cpu: CpuTime::of_this_thread(),
        }
    }
}

/// A slot holds a fragment of every child, the sum, and the sum in the making.
fn reserved(memory: &Slab, lease: &Lease, window_cap: u16) -> u64 {
    let fragments = lease.children.len() as u64 + 2;
    u64::from(window_cap) * fragments * memory.cost(lease.fragment_bytes)
}

impl LeaseKey {
    fn of(lease: &Lease) -> LeaseKey {
        LeaseKey { job: lease.job, epoch: lease.epoch, tree: lease.tree }
    }
}
