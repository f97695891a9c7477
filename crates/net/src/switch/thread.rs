//! The switch's data thread.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use netsum_proto::hops::{CheckedAhead, Unsealed};
use netsum_proto::panama::{self, BufferId, Memory, Switch, Transmit};
use netsum_proto::policer::{Policer, RateLimit, Verdict};
use netsum_proto::row_machines::Row;
use netsum_proto::{Aggregator, DropReason, Hops, Lease, LeaseKey, PortId, Secrets};
use netsum_wire::panama::{HEADER_LEN, Header};
use netsum_wire::seal::{EXTENSION_LEN, is_sealed};
use netsum_wire::{DecodeError, PacketHeader, Protocol};
use rustc_hash::FxHashSet;

use super::division::Demand;
use super::ports::Ports;
use super::slots::Slots;
use super::steering::Steering;
use super::store::Store;
use super::strays::Strays;
use super::{ChildSnapshot, Command, Role, SwitchSnapshot, ThreadSnapshot, TreeSnapshot};
use crate::NetError;
use crate::clock::{Clock, CpuTime};
use crate::lanes;
use crate::udp::{BatchSpan, Message, SendBatch, Socket, Wake};
use crate::unknown_versions::UnknownVersions;

/// Commands wake the thread, so this only bounds the delay of a lost wake-up.
const SLEEP: Duration = Duration::from_secs(1);
/// After a receive error, so that a broken socket does not burn a core.
const AFTER_ERROR: Duration = Duration::from_millis(100);

pub(super) struct Thread {
    socket: Socket,
    switch: Switch<Store>,
    /// Keys and packet numbers of trees.
    hops: Hops,
    /// Packets of `panama` in `headers` that wait for their tags.
    unsealed: Unsealed<BufferId>,
    slots: Slots,
    policer: Policer,
    ports: Ports,
    inbox: Receiver<Command>,
    wake: Arc<Wake>,
    clock: Clock,
    outbound: SendBatch<Packet>,
    /// Headers of packets that are not stored whole, and encrypted packets, until they are sent.
    headers: Vec<u8>,
    receive_errors: u64,
    unknown_versions: UnknownVersions,
    /// Of a switch with several threads.
    others: Option<Others>,
}

/// What a thread knows of the others of its switch.
struct Others {
    own: usize,
    steering: Steering,
    strays: Strays,
}

/// What a thread begins with.
pub(super) struct Beginning {
    pub(super) socket: Socket,
    /// Aggregation memory, bytes.
    pub(super) memory: u64,
    pub(super) inbox: Receiver<Command>,
    pub(super) wake: Arc<Wake>,
    /// The same for all threads, because tenants' buckets are.
    pub(super) clock: Clock,
}

/// Above this, packets are marked as at a switch's port: 65 packets of 1500 bytes as the system counts them, the
/// threshold of DCTCP at 10 Gbit/s.
const MARK_BYTES: usize = 128 << 10;

/// Above this, encrypted packets are sent before others are made, or they would leave the second-level cache.
const HEADERS_BYTES: usize = 512 << 10;

/// A packet in `outbound`.
#[derive(Clone, Copy)]
enum Packet {
    /// A stored packet of `panama`.
    Stored(BufferId),
    /// The same, sealed: first byte in `headers` of its header and extension.
    Sealed(u32, BufferId),
    /// First byte and length in `headers`, and the row that follows. Encrypted packets are in `headers` as a whole.
    Header(u32, u16, Option<Row>),
}

impl Thread {
    /// The only thread of a switch or server.
    pub(super) fn new(beginning: Beginning, role: Role, interfaces: &[String]) -> Thread {
        let Beginning { socket, memory, inbox, wake, clock } = beginning;
        let slots = Slots::new(role, socket.local_addr(), interfaces);
        let mut hops = Hops::default();
        hops.use_lanes(lanes::detect());
        Thread {
            socket,
            switch: Switch::new(Store::new(memory)).with_firm_leases(),
            hops,
            unsealed: Unsealed::default(),
            slots,
            policer: Policer::new(),
            ports: Ports::default(),
            inbox,
            wake,
            clock,
            outbound: SendBatch::new(),
            headers: Vec::new(),
            receive_errors: 0,
            unknown_versions: UnknownVersions::default(),
            others: None,
        }
    }

    /// The same as thread `own` of several.
    pub(super) fn among(self, own: usize, steering: Steering, strays: Strays) -> Thread {
        Thread { others: Some(Others { own, steering, strays }), ..self }
    }

    /// Whether the in-kernel switch is in use.
    pub(super) fn in_kernel(&self) -> bool {
        self.slots.in_kernel()
    }

    /// Runs until it is stopped.
    pub(super) fn run(mut self) {
        let mut busy = Instant::now();
        loop {
            if self.wake.take() {
                if self.run_commands() {
                    return;
                }
                self.take_strays();
            }
            match self.switch.memory_mut().recv(&self.socket) {
                Ok(0) if busy.elapsed() < self.socket.spin() => std::hint::spin_loop(),
                Ok(0) => {
                    self.policer.drained(self.clock.now());
                    self.thin_out();
                    self.socket.wait(&self.wake, self.until_timeout());
                    self.keep_time();
                }
                Ok(messages) => {
                    self.take(messages);
                    self.keep_time();
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
        if self.policer.is_due(now) {
            self.policer.regulate(now, self.socket.backlog());
            self.thin_out();
        }
        // Bytes sent before this call that have not left yet; the output of the last call may be a burst.
        let congested = !self.slots.is_idle() && self.socket.queued() > MARK_BYTES;
        for message in 0..messages {
            let message = self.switch.memory().batch().message(message);
            let Some(port) = self.ports.find(message.from) else {
                for place in message.packets() {
                    if self.is_stray(&message, place) {
                        continue;
                    }
                    self.policer.stranger(self.switch.memory().batch().bytes(place).len());
                    self.switch.count_drop(DropReason::UnknownSender);
                }
                continue;
            };
            let (mut packets, mut bytes) = (0, 0);
            let mut ahead = CheckedAhead::default();
            let mut places = message.packets();
            while let Some(place) = places.next() {
                let mut checked = ahead.pop();
                if self.is_stray(&message, place) {
                    continue;
                }
                let packet = self.switch.memory().batch().bytes(place);
                packets += 1;
                bytes += packet.len() as u64;
                let ce = match self.policer.admit_packet(now, port, packet) {
                    Verdict::Pass => message.ce,
                    Verdict::Mark => true,
                    Verdict::Drop(reason) => {
                        self.switch.count_drop(reason);
                        continue;
                    }
                };
                let protocol = packet.first().and_then(|&version| Protocol::of_version(version));
                if checked.is_none()
                    && let Some(found) = self.check_ahead(port, protocol, place, places.clone())
                {
                    ahead = found;
                    checked = ahead.pop();
                }
                let packet = self.switch.memory_mut().batch_mut().bytes_mut(place);
                if let Some(protocol) = protocol.filter(|&p| p != Protocol::Panama) {
                    self.slots.take(protocol, now, port, ce || congested, packet, checked);
                    continue;
                }
                let header = match Header::decode(packet) {
                    Ok((header, _)) => header,
                    Err(error) => {
                        let first_byte = packet.first().copied().unwrap_or_default();
                        if error == DecodeError::UnknownVersion {
                            self.unknown_versions.warn("switch", message.from, first_byte);
                        }
                        self.switch.count_decode_error(error);
                        continue;
                    }
                };
                let head_len = Header::head_len(is_sealed(packet));
                let payload = place.after(head_len, header.payload_len());
                let Header { job, tree, .. } = header;
                if let Err(reason) = self.hops.open_checked(job, tree, port, checked, packet) {
                    self.switch.count_drop(reason);
                    continue;
                }
                // The machine counts drops.
                let _ = self.switch.handle(now, port, ce, &header, &payload);
            }
            self.ports.received(port, message.ce, packets, bytes);
        }
        if let Some(others) = &mut self.others {
            others.strays.hand_over();
        }
    }

    /// Whether a packet is another thread's; then that thread gets it.
    #[inline]
    fn is_stray(&mut self, message: &Message, place: BatchSpan) -> bool {
        let Some(others) = &mut self.others else { return false };
        let packet = self.switch.memory().batch().bytes(place);
        let thread = others.steering.of_packet(packet);
        if thread != others.own {
            others.strays.collect(thread, message.from, message.ce, packet);
        }
        thread != others.own
    }

    /// Handles what other threads have received for this one.
    fn take_strays(&mut self) {
        let Some(others) = &mut self.others else { return };
        let packets = self.switch.memory_mut().recv_strays(&mut others.strays);
        if packets > 0 {
            self.take(packets);
            self.keep_time();
        }
    }

    /// Lets the system drop a part of floods.
    #[inline]
    fn thin_out(&mut self) {
        if let Some(thinned) = self.policer.thinned() {
            self.socket.thin_out(&self.ports.senders(&thinned));
        }
    }

    /// Opens a packet and those that follow it in its train together, if that is faster.
    #[inline]
    fn check_ahead(
        &mut self,
        from: PortId,
        protocol: Option<Protocol>,
        place: BatchSpan,
        mut following: impl Iterator<Item = BatchSpan>,
    ) -> Option<CheckedAhead> {
        let places = [place, following.next()?, following.next()?, following.next()?];
        let packets = self.switch.memory_mut().batch_mut().several_mut(places);
        match protocol? {
            Protocol::Panama => self.hops.check_ahead(from, packets),
            _ => self.slots.check_ahead(from, packets),
        }
    }

    /// Handles deadlines, and sends the output of these and of received packets.
    fn keep_time(&mut self) {
        let ports = &mut self.ports;
        self.slots.handle_timeout(self.clock.now(), |address| ports.find(address));
        self.send();
    }

    fn until_timeout(&self) -> Duration {
        let due = self.slots.poll_timeout();
        due.map_or(SLEEP, |due| Duration::from_nanos(due.since(self.clock.now())).min(SLEEP))
    }

    fn send(&mut self) {
        while let Some(transmit) = self.switch.poll_transmit() {
            match transmit {
                Transmit::Data { to, buffer } => {
                    let packet = self.seal(to, buffer);
                    self.outbound.push(to.0 as usize, packet);
                }
                Transmit::Control { to, header } => {
                    let start = self.headers.len();
                    let mut bytes = [0; HEADER_LEN];
                    header.encode(&mut bytes);
                    self.headers.extend(bytes);
                    if let Some(hop) = self.hops.hop(header.job, header.tree, to) {
                        self.headers.extend([0; EXTENSION_LEN]);
                        hop.seal_last(&mut self.headers, start, &[]);
                    }
                    let len = (self.headers.len() - start) as u16;
                    let packet = Packet::Header(start as u32, len, None);
                    self.outbound.push(to.0 as usize, packet);
                }
            }
            if self.headers.len() > HEADERS_BYTES {
                self.send_queued();
            }
        }
        let mut start = self.headers.len();
        while let Some((to, row)) = self.slots.poll_transmit(&mut self.headers) {
            let end = self.headers.len();
            let packet = Packet::Header(start as u32, (end - start) as u16, row);
            self.outbound.push(to.0 as usize, packet);
            start = end;
            if end > HEADERS_BYTES {
                self.send_queued();
                start = 0;
            }
        }
        self.send_queued();
        self.flushed();
    }

    fn send_queued(&mut self) {
        let store = self.switch.memory();
        self.hops.seal_waiting(&mut self.headers, &mut self.unsealed, |buffer| {
            store.header_and_payload(buffer).1
        });
        self.slots.seal_waiting(&mut self.headers);
        let (store, slots, headers) = (self.switch.memory(), &self.slots, &self.headers);
        self.outbound.flush(&self.socket, |packet| match *packet {
            Packet::Stored(buffer) => store.packet(buffer),
            Packet::Sealed(start, buffer) => {
                let header = &headers[start as usize..][..HEADER_LEN + EXTENSION_LEN];
                [header, store.header_and_payload(buffer).1]
            }
            Packet::Header(start, len, row) => {
                let header = &headers[start as usize..start as usize + usize::from(len)];
                [header, row.map_or(&[], |row| slots.payload(row))]
            }
        });
        self.headers.clear();
    }

    /// A stored packet as it is sent to a neighbour: each neighbour's copy has a tag of its own.
    #[inline]
    fn seal(&mut self, to: PortId, buffer: BufferId) -> Packet {
        let (header, payload) = self.switch.memory().header_and_payload(buffer);
        let key = (Header::job_of(header), Header::tree_of(header), to);
        let Some(hop) = self.hops.hop(key.0, key.1, key.2) else { return Packet::Stored(buffer) };
        let start = self.headers.len();
        self.headers.extend_from_slice(header);
        self.headers.extend_from_slice(&[0; EXTENSION_LEN]);
        let payload = (payload, Some(buffer));
        match hop.seal_or_wait(key, &mut self.headers, start, payload, &mut self.unsealed) {
            true => Packet::Header(start as u32, (self.headers.len() - start) as u16, None),
            false => Packet::Sealed(start as u32, buffer),
        }
    }

    fn flushed(&mut self) {
        self.switch.flushed();
        self.slots.flushed();
    }

    fn receive_failed(&mut self, error: &io::Error) {
        self.receive_errors += 1;
        if self.receive_errors.is_power_of_two() {
            let (address, times) = (self.socket.local_addr(), self.receive_errors);
            tracing::error!(%address, %error, times, "receiving failed");
        }
        self.socket.wait(&self.wake, AFTER_ERROR);
    }

    /// Executes commands; true if one of them is to stop.
    fn run_commands(&mut self) -> bool {
        while let Ok(command) = self.inbox.try_recv() {
            // The caller may have gone; then the answer is not needed.
            match command {
                Command::Own(job, owner, rates) => {
                    self.slots.own(job, owner.limit != RateLimit::default());
                    let now = self.clock.now();
                    match rates {
                        Some(rates) => self.policer.own_shared(now, job, owner, rates),
                        None => self.policer.own(now, job, owner),
                    }
                }
                Command::Install(lease, secrets, first, reply) => {
                    let installed = self.install(&lease, secrets.as_ref(), first);
                    if installed.is_ok() {
                        self.police(&lease);
                    }
                    // Ports of the replaced lease, or of this one if it was refused.
                    self.forget_ports();
                    let _ = reply.send(installed);
                }
                Command::Revoke(job, up_to) => {
                    self.switch.revoke(job, up_to);
                    self.slots.revoke(job, up_to);
                    // Nothing is queued, so the leases' memory is free now, not after the next packet, which may never
                    // arrive.
                    self.flushed();
                    self.forget_ports();
                }
                Command::Expire(idle, reply) => {
                    let _ = reply.send(self.expire(idle));
                }
                Command::Snapshot(reply) => {
                    let _ = reply.send(self.snapshot());
                }
                Command::Demand(beside, reply) => {
                    let (bytes, leases) = self.switch.wanted_beside(beside);
                    let _ = reply.send(Demand { bytes, leases });
                }
                Command::Limit(bytes, reply) => {
                    // Nothing is queued, so what leases have given up can go.
                    self.flushed();
                    let _ = reply.send(self.switch.set_memory_limit(bytes));
                }
                Command::Stop => return true,
            }
        }
        false
    }

    fn install(
        &mut self,
        lease: &Lease<SocketAddr>,
        secrets: Option<&Secrets>,
        first: u64,
    ) -> Result<(), NetError> {
        let now = self.clock.now();
        let (ports, outbound) = (&mut self.ports, &mut self.outbound);
        let port = |address| intern(ports, outbound, address);
        match lease {
            Lease::Tree(lease) => {
                let lease = lease.map(port);
                self.switch.install_starting_at(now, lease.clone(), first)?;
                self.hops.install(&Lease::Tree(lease), secrets);
                Ok(())
            }
            lease => self.slots.install(now, lease, secrets, first, port),
        }
    }

    /// Attributes packets of a lease's neighbours to the owner of the job.
    fn police(&mut self, lease: &Lease<SocketAddr>) {
        let ports = &mut self.ports;
        let neighbours = lease.neighbours().into_iter().filter_map(|address| ports.find(address));
        self.policer.lease(self.clock.now(), lease.key().job, neighbours);
    }

    fn expire(&mut self, idle: Duration) -> Vec<LeaseKey> {
        let idle_ns = u64::try_from(idle.as_nanos()).unwrap_or(u64::MAX);
        let now = self.clock.now();
        let trees = self.switch.expire(now, idle_ns);
        let mut expired: Vec<LeaseKey> = trees.iter().map(key).collect();
        expired.append(&mut self.slots.expire(now, idle_ns));
        if !expired.is_empty() {
            self.flushed();
            self.forget_ports();
        }
        expired
    }

    /// Forgets what belongs to leases that are gone.
    fn forget_ports(&mut self) {
        self.hops.retain_leases(self.switch.lease_keys());
        let ports = [self.switch.ports(), self.slots.ports()].concat();
        let leased: FxHashSet<PortId> = ports.into_iter().collect();
        let leases = self.switch.lease_keys().chain(self.slots.lease_keys());
        self.policer.retain(&leases.map(|key| key.job).collect(), &leased);
        let outbound = &self.outbound;
        let sent = |port: PortId| outbound.sent(port.0 as usize);
        self.ports.retain(&leased, sent);
    }

    /// Drops of all protocols, by reason.
    fn drops(&self) -> Vec<(&'static str, u64)> {
        let mut drops = self.switch.drops().clone();
        drops.add(&self.slots.drops());
        drops.iter().collect()
    }

    /// How late children are, in the order of leases.
    fn children(&self) -> Vec<ChildSnapshot> {
        let now = self.clock.now();
        let all = self.switch.lateness(now).chain(self.slots.lateness(now));
        let mut children: Vec<_> = all
            .map(|(lease, port, lateness)| ChildSnapshot {
                lease,
                address: self.ports.address(port),
                lateness,
            })
            .collect();
        // Stable: within a lease, children stay in its order.
        children.sort_by_key(|child| (child.lease.job, child.lease.tree));
        children
    }

    fn snapshot(&self) -> SwitchSnapshot {
        let memory = self.switch.memory().slab();
        // The machine returns all four in the same order.
        let (leases, caps) = (self.switch.leases(), self.switch.window_caps());
        let trees = leases.zip(caps).zip(self.switch.reserved()).zip(self.switch.tree_counters());
        let mut trees: Vec<_> = trees
            .map(|(((lease, (.., window_cap)), (.., memory_reserved)), (.., counters))| {
                TreeSnapshot { lease: key(lease), window_cap, memory_reserved, counters: *counters }
            })
            .collect();
        trees.sort_by_key(|t| (t.lease.job, t.lease.tree));
        let (slots_held, slots_limit) = self.slots.held();
        let cpu = CpuTime::of_this_thread();
        let leases = (self.switch.lease_keys().count() + self.slots.lease_keys().count()) as u64;
        let (handed_over, lost) = self.others.as_ref().map_or((0, 0), |o| o.strays.counts());
        SwitchSnapshot {
            neighbours: self.ports.neighbours(|port| self.outbound.sent(port.0 as usize)),
            trees,
            slots: self.slots.slots(),
            servers: self.slots.servers(),
            pools: self.slots.pools(),
            children: self.children(),
            slots_held,
            slots_limit,
            rows_used: self.slots.rows_used(),
            drops: self.drops(),
            tenants: self
                .policer
                .tenants()
                .map(|(name, counters)| (name.clone(), *counters))
                .collect(),
            failures: self.outbound.failures(),
            memory_used: memory.used(),
            memory_reserved: self.switch.reserved().map(|(.., bytes)| bytes).sum::<u64>()
                + self.slots.memory_reserved(),
            memory_limit: memory.limit(),
            socket: self.socket.report(),
            cpu,
            threads: vec![ThreadSnapshot { leases, handed_over, lost, cpu }],
        }
    }
}

/// The port of an address that a lease names.
fn intern(ports: &mut Ports, outbound: &mut SendBatch<Packet>, address: SocketAddr) -> PortId {
    let (port, new) = ports.intern(address);
    if new {
        outbound.set_destination(port.0 as usize, address);
    }
    port
}

fn key(lease: &panama::Lease) -> LeaseKey {
    LeaseKey { job: lease.job, epoch: lease.epoch, tree: lease.tree }
}
