//! The thread of a switch with an accelerator.
//!
//! Packets of neighbours go to the device's lines as frames; the device's frames to a wire go to the neighbour that the
//! frame names; its frames to the switch chip are for software: fins, and notices of neighbours.

use std::borrow::Cow;
use std::io;
use std::net::{SocketAddr, SocketAddrV4};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use netsum_proto::policer::{Policer, Verdict};
use netsum_proto::{DropCounters, DropReason, Hops, Lease, LeaseKey, PortId, Secrets, Time};
use netsum_wire::panama::{HEADER_LEN, Header, Kind};
use netsum_wire::{JobId, TreeId, seal};
use rustc_hash::FxHashSet;

use super::AcceleratorError;
use super::device::{Device, Sent, Side};
use super::frame;
use super::leases::{Leases, up_to, v4};
use super::registers as r;
use crate::NetError;
use crate::clock::{Clock, CpuTime};
use crate::switch::ports::Ports;
use crate::switch::{Command, SwitchSnapshot, ThreadSnapshot};
use crate::udp::{RecvBatch, SendBatch, Socket, Wake};

/// Commands and frames wake the thread, so this only bounds the delay of a lost wake-up.
const SLEEP: Duration = Duration::from_secs(1);
/// After a receive error, so that a broken socket does not burn a core.
const AFTER_ERROR: Duration = Duration::from_millis(100);
/// A fin or a notice, and the line that it goes to.
type Notice = (usize, Header);

pub(crate) struct Thread {
    socket: Socket,
    local: SocketAddrV4,
    device: Device,
    leases: Leases,
    ports: Ports,
    inbox: Receiver<Command>,
    wake: Arc<Wake>,
    batch: RecvBatch,
    outbound: SendBatch<usize>,
    /// Packets that wait in `outbound`.
    packets: Vec<Vec<u8>>,
    /// Keys and packet numbers of trees: the device sees unsealed packets only.
    hops: Hops,
    /// Rates of tenants: packets that are dropped cost neither a tag nor the device.
    policer: Policer,
    clock: Clock,
    drops: DropCounters,
    /// The device's counters at the last reading; they wrap around.
    outcomes: [u32; r::DROPS.len()],
}

impl Thread {
    /// Connects to the device. Errors: `Accelerator`.
    pub(crate) fn new(
        socket: Socket,
        path: &Path,
        inbox: Receiver<Command>,
        wake: Arc<Wake>,
    ) -> Result<Thread, NetError> {
        let local = v4(socket.local_addr())?;
        let mut device = Device::connect(path, wake.clone())?;
        let outcomes = outcomes(&mut device)?;
        let leases = Leases::new(device.shape, local);
        Ok(Thread {
            socket,
            local,
            device,
            leases,
            ports: Ports::default(),
            inbox,
            wake,
            batch: RecvBatch::new(),
            outbound: SendBatch::new(),
            packets: Vec::new(),
            hops: Hops::default(),
            policer: Policer::new(),
            clock: Clock::start(),
            drops: DropCounters::default(),
            outcomes,
        })
    }

    /// The largest fragment that the device supports, in bytes.
    pub(crate) fn fragment_limit(&self) -> usize {
        self.device.shape.buffer_bytes
    }

    /// Runs until it is stopped, or the device fails.
    pub(crate) fn run(mut self) {
        if let Err(error) = self.work() {
            tracing::error!(%error, "the accelerator's thread ends");
        }
    }

    fn work(&mut self) -> Result<(), AcceleratorError> {
        loop {
            if self.wake.take() {
                if self.run_commands()? {
                    return Ok(());
                }
                self.forward()?;
            }
            match self.batch.recv(&self.socket) {
                Ok(0) => {
                    self.policer.drained(self.clock.now());
                    self.thin_out();
                    self.socket.wait(&self.wake, SLEEP);
                }
                Ok(messages) => {
                    let now = self.clock.now();
                    if self.policer.is_due(now) {
                        self.policer.regulate(now, self.socket.backlog());
                        self.thin_out();
                    }
                    for message in 0..messages {
                        self.take(now, message)?;
                    }
                }
                Err(error) => self.receive_failed(&error),
            }
        }
    }

    fn receive_failed(&mut self, error: &io::Error) {
        tracing::error!(address = %self.local, %error, "receiving failed");
        self.socket.wait(&self.wake, AFTER_ERROR);
    }

    /// Lets the system drop a part of floods.
    fn thin_out(&mut self) {
        if let Some(thinned) = self.policer.thinned() {
            self.socket.thin_out(&self.ports.senders(&thinned));
        }
    }

    /// Passes a datagram's packets to the line of their sender.
    fn take(&mut self, now: Time, message: usize) -> Result<(), AcceleratorError> {
        let message = self.batch.message(message);
        let (Some(port), SocketAddr::V4(from)) = (self.ports.find(message.from), message.from)
        else {
            for place in message.packets() {
                self.policer.stranger(self.batch.bytes(place).len());
                self.drops.count(DropReason::UnknownSender);
            }
            return Ok(());
        };
        let (mut packets, mut bytes) = (0, 0);
        for place in message.packets() {
            let packet = self.batch.bytes_mut(place);
            packets += 1;
            bytes += packet.len() as u64;
            let ce = match self.policer.admit_packet(now, port, packet) {
                Verdict::Pass => message.ce,
                Verdict::Mark => true,
                Verdict::Drop(reason) => {
                    self.drops.count(reason);
                    continue;
                }
            };
            let opened = open(&mut self.hops, port, packet);
            let taken =
                opened.and_then(|packet| Ok((line(&mut self.leases, from, &packet)?, packet)));
            match taken {
                Ok((line, packet)) => {
                    let frame = frame::build(from, self.local, ce, &packet);
                    self.device.arrive(line as u8, &frame)?;
                }
                Err(reason) => self.drops.count(reason),
            }
        }
        self.ports.received(port, message.ce, packets, bytes);
        Ok(())
    }

    /// Sends the frames of the device.
    fn forward(&mut self) -> Result<(), AcceleratorError> {
        while let Some(sent) = self.device.next()? {
            match sent.side {
                Side::Wire => self.deliver(sent),
                Side::Chip => self.by_software(&sent)?,
            }
        }
        let packets = &self.packets;
        self.outbound.flush(&self.socket, |&at| [&packets[at], &[]]);
        self.packets.clear();
        Ok(())
    }

    fn deliver(&mut self, sent: Sent) {
        let to = frame::parse(&sent.frame).and_then(|(_, to, packet)| {
            let port = self.ports.find(SocketAddr::V4(to))?;
            let Ok((header, _)) = Header::decode(packet) else {
                return Some((port, packet.to_vec()));
            };
            if let Ok(entry) = self.leases.find(header.job, header.tree)
                && sent.port == 0
                && matches!(header.kind, Kind::Result | Kind::Partial)
            {
                entry.counters.released += u64::from(!header.resent);
            }
            Some((port, self.hops.sealed(header.job, header.tree, port, packet)))
        });
        match to {
            Some((port, packet)) => {
                self.outbound.push(port.0 as usize, self.packets.len());
                self.packets.push(packet);
            }
            // A lease may have been removed while its sum was in progress.
            None => self.drops.count(DropReason::UnknownSender),
        }
    }

    /// Handles a packet that the accelerator leaves to software.
    fn by_software(&mut self, sent: &Sent) -> Result<(), AcceleratorError> {
        let Some((from, _, packet)) = frame::parse(&sent.frame) else {
            self.drops.count(DropReason::TruncatedHeader);
            return Ok(());
        };
        let (header, _) = match Header::decode(packet) {
            Ok(decoded) => decoded,
            Err(error) => {
                self.drops.count(error.into());
                return Ok(());
            }
        };
        let (notices, clears) = match notices(&mut self.leases, from, &header) {
            Ok(found) => found,
            Err(reason) => {
                self.drops.count(reason);
                return Ok(());
            }
        };
        if let Some(key) = clears {
            self.leases.clear(&mut self.device, key)?;
        }
        let Ok(entry) = self.leases.find(header.job, header.tree) else { return Ok(()) };
        for (line, header) in notices {
            let mut packet = [0; HEADER_LEN];
            header.encode(&mut packet);
            let frame = frame::build(self.local, entry.neighbours[line], false, &packet);
            self.device.inject(line as u8, &frame)?;
        }
        Ok(())
    }

    /// Executes commands; true if one of them is to stop.
    fn run_commands(&mut self) -> Result<bool, AcceleratorError> {
        while let Ok(command) = self.inbox.try_recv() {
            // The caller may have gone; then the answer is not needed.
            match command {
                Command::Own(job, owner, _) => self.policer.own(self.clock.now(), job, owner),
                Command::Install(grant, secrets, _, reply) => {
                    let installed = self.install(grant, secrets.as_ref());
                    let _ = reply.send(installed);
                }
                Command::Revoke(job, last) => {
                    let goes = |key: &LeaseKey| key.job == job && up_to(key.epoch, last);
                    self.leases.remove(&mut self.device, |entry| goes(&entry.key))?;
                    self.forget_ports();
                }
                Command::Expire(idle, reply) => {
                    let now = Instant::now();
                    let silent = |last_seen: Instant| now.duration_since(last_seen) >= idle;
                    let gone =
                        self.leases.remove(&mut self.device, |entry| silent(entry.last_seen))?;
                    self.forget_ports();
                    let _ = reply.send(gone);
                }
                Command::Snapshot(reply) => {
                    let snapshot = self.snapshot()?;
                    let _ = reply.send(snapshot);
                }
                // The memory is the device's, and there is one thread.
                Command::Demand(..) | Command::Limit(..) => {}
                Command::Stop => return Ok(true),
            }
        }
        Ok(false)
    }

    fn install(
        &mut self,
        lease: Lease<SocketAddr>,
        secrets: Option<&Secrets>,
    ) -> Result<(), NetError> {
        let Lease::Tree(lease) = lease else { return Err(AcceleratorError::Protocol.into()) };
        self.leases.install(&mut self.device, lease.clone())?;
        let job = lease.job;
        let lease = lease.map(|address| {
            let (port, new) = self.ports.intern(address);
            if new {
                self.outbound.set_destination(port.0 as usize, address);
            }
            port
        });
        let lease = Lease::Tree(lease);
        self.policer.lease(self.clock.now(), job, lease.neighbours().into_iter());
        self.hops.install(&lease, secrets);
        self.forget_ports();
        Ok(())
    }

    /// Forgets what belongs to leases that are gone.
    fn forget_ports(&mut self) {
        self.hops.retain_leases(self.leases.iter().map(|entry| entry.key));
        let addresses = self.leases.iter().flat_map(|entry| entry.neighbours.iter());
        let ports = addresses.filter_map(|address| self.ports.find(SocketAddr::V4(*address)));
        let leased: FxHashSet<PortId> = ports.collect();
        let jobs = self.leases.iter().map(|entry| entry.key.job).collect();
        self.policer.retain(&jobs, &leased);
        let outbound = &self.outbound;
        self.ports.retain(&leased, |port| outbound.sent(port.0 as usize));
    }

    fn snapshot(&mut self) -> Result<SwitchSnapshot, AcceleratorError> {
        let now = outcomes(&mut self.device)?;
        for (at, reason) in r::DROPS.iter().enumerate() {
            if let Some(reason) = *reason {
                (0..now[at].wrapping_sub(self.outcomes[at])).for_each(|_| self.drops.count(reason));
            }
        }
        self.outcomes = now;
        let (memory_used, memory_limit) = self.leases.memory();
        Ok(SwitchSnapshot {
            neighbours: self.ports.neighbours(|port| self.outbound.sent(port.0 as usize)),
            trees: self.leases.snapshots(),
            slots: Vec::new(),
            servers: Vec::new(),
            pools: Vec::new(),
            children: Vec::new(),
            slots_held: 0,
            slots_limit: 0,
            rows_used: 0,
            drops: self.drops.iter().collect(),
            tenants: self
                .policer
                .tenants()
                .map(|(name, counters)| (name.clone(), *counters))
                .collect(),
            failures: self.outbound.failures(),
            memory_used,
            memory_reserved: memory_used,
            memory_limit,
            socket: self.socket.report(),
            cpu: CpuTime::of_this_thread(),
            threads: vec![ThreadSnapshot {
                leases: self.leases.iter().count() as u64,
                cpu: CpuTime::of_this_thread(),
                ..ThreadSnapshot::default()
            }],
        })
    }
}

/// A neighbour's packet as the device takes it, unsealed. Errors: `BadTag`, `Replay`, or what is wrong with the header.
fn open<'a>(
    hops: &mut Hops,
    from: PortId,
    packet: &'a mut [u8],
) -> Result<Cow<'a, [u8]>, DropReason> {
    if !seal::is_sealed(packet) && hops.is_empty() {
        // The device finds out what is wrong with it.
        return Ok(Cow::Borrowed(packet));
    }
    let (header, _) = Header::decode(packet)?;
    hops.open(header.job, header.tree, from, packet)?;
    Ok(seal::unsealed(packet))
}

/// The line of a packet, by job, tree and sender; the device checks the rest.
fn line(leases: &mut Leases, from: SocketAddrV4, packet: &[u8]) -> Result<usize, DropReason> {
    let Some(head) = packet.first_chunk::<12>() else { return Err(DropReason::TruncatedHeader) };
    let number =
        |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let entry = leases.find(JobId(number(4)), TreeId(head[2]))?;
    let line = entry.line(from).ok_or(DropReason::NotANeighbour)?;
    entry.last_seen = Instant::now();
    if line < entry.children() && head[1] & 0x0f <= Kind::Partial as u8 {
        entry.counters.contributions += 1;
        if head[1] & 0x10 != 0 {
            entry.counters.duplicates += 1;
            entry.ask(number(8), line);
        }
    }
    Ok(line)
}

/// The notices that follow from a packet that the device left to software, and a lease to be cleared.
fn notices(
    leases: &mut Leases,
    from: SocketAddrV4,
    header: &Header,
) -> Result<(Vec<Notice>, Option<LeaseKey>), DropReason> {
    let entry = leases.find(header.job, header.tree)?;
    match header.epoch.0.wrapping_sub(entry.key.epoch.0) as i16 {
        0 => {}
        ..0 => return Err(DropReason::StaleEpoch),
        _ => return Err(DropReason::FutureEpoch),
    }
    let sender = entry.line(from).ok_or(DropReason::NotANeighbour)?;
    let (children, all) = (entry.children(), entry.neighbours.len());
    let to = |lines: &mut dyn Iterator<Item = usize>| lines.map(|line| (line, *header)).collect();
    match header.kind {
        Kind::Mismatch => {
            let nameable = entry.nameable(sender).ok_or(DropReason::WrongDirection)?;
            let notice = Header { missing: header.missing & nameable, ..*header };
            let asked = if sender == children { entry.askers(header.vid.0) } else { 0 };
            let news = entry.told.is_news(header.vid.0, notice.missing);
            if !news && asked == 0 {
                return Err(DropReason::Duplicate);
            }
            let told = |line: &usize| *line != sender && (news || asked & 1 << line != 0);
            Ok(((0..all).filter(told).map(|line| (line, notice)).collect(), None))
        }
        Kind::Waiting if sender == children => {
            let asked = entry.askers(header.vid.0);
            Ok((to(&mut (0..children).filter(|line| asked & 1 << line != 0)), None))
        }
        Kind::Fin if sender < children => {
            let last = entry.finish(sender);
            Ok((to(&mut (children..all).filter(|_| last)), last.then_some(entry.key)))
        }
        // Fragments that the device does not support: other formats than float32 and bfloat16, other operations.
        Kind::Contribution | Kind::Partial | Kind::Result => Err(DropReason::UnknownFormat),
        Kind::Acknowledgement | Kind::Waiting | Kind::Fin | Kind::Empties => {
            Err(DropReason::WrongDirection)
        }
    }
}

fn outcomes(device: &mut Device) -> Result<[u32; r::DROPS.len()], AcceleratorError> {
    let mut counts = [0; r::DROPS.len()];
    for (at, count) in counts.iter_mut().enumerate() {
        *count = device.read(r::OUTCOMES + 4 * at as u32)?;
    }
    Ok(counts)
}
