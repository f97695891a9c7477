//! A switch or a server: the same loop around either machine.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use netsum_proto::atp::{
    Counters, Lease, Server, ServerCounters, ServerLease, Switch, SwitchConfig, Transmit,
};
use netsum_proto::values::{RowId, Rows, Values};
use netsum_proto::{Drop, PortId, Time};
use netsum_wire::atp::{HEADER_LEN, Header};
use netsum_wire::{DecodeError, Epoch, JobId, TreeId};
use rustc_hash::FxHashSet;

use crate::NetError;
use crate::clock::{Clock, CpuTime};
use crate::switch::Neighbour;
use crate::switch::ports::Ports;
use crate::udp::{RecvBatch, SendBatch, SendFailures, Socket, SocketOptions, Wake};

/// What the thread is started with.
#[derive(Clone, Debug)]
pub struct SlotOptions {
    /// Where neighbours send to.
    pub bind: SocketAddr,
    /// Which machine.
    pub role: SlotRole,
    /// The socket's.
    pub socket: SocketOptions,
}

/// A switch or a server.
#[derive(Clone, Copy, Debug)]
pub enum SlotRole {
    /// Adds what finds a slot.
    Switch(SwitchConfig),
    /// Ends what does not.
    Server {
        /// Largest payload.
        row_bytes: u16,
        /// Fragments that all jobs together may have here: two windows each, and a rank's floats each.
        rows: usize,
    },
}

/// All figures at one moment.
#[derive(Clone, Debug, Default)]
pub struct SlotSnapshot {
    /// By neighbour.
    pub neighbours: Vec<Neighbour>,
    /// Leases of a switch: the slots that each holds, what happened.
    pub switch: Vec<(JobId, TreeId, u32, Counters)>,
    /// Leases of a server.
    pub server: Vec<(JobId, TreeId, ServerCounters)>,
    /// Dropped packets by reason.
    pub drops: Vec<(&'static str, u64)>,
    /// Packets that the system did not take.
    pub failures: SendFailures,
    /// Slots in use.
    pub held: u32,
    /// The data thread's.
    pub cpu: CpuTime,
}

/// A switch or server at work; dropping it stops the thread.
pub struct SlotDriver {
    commands: Sender<Command>,
    wake: Arc<Wake>,
    thread: Option<JoinHandle<()>>,
    local: SocketAddr,
}

enum Command {
    Switch(Lease<SocketAddr>, Sender<Result<(), NetError>>),
    Server(ServerLease<SocketAddr>, Sender<Result<(), NetError>>),
    Revoke(JobId, Epoch),
    Snapshot(Sender<SlotSnapshot>),
    Stop,
}

/// Nothing else bounds the harm of a lost wake-up.
const SLEEP: Duration = Duration::from_secs(1);
/// After a receive error, so that a broken socket does not burn a core.
const AFTER_ERROR: Duration = Duration::from_millis(100);
/// Rows for packets on their way through: what one receiving call can bring.
const TRANSIT_ROWS: usize = 4096;

impl SlotDriver {
    /// Binds the socket and starts the thread.
    pub fn start(options: &SlotOptions) -> Result<SlotDriver, NetError> {
        let socket = Socket::bind(options.bind, &options.socket)?;
        let local = socket.local_addr();
        let wake = Arc::new(Wake::new()?);
        let (commands, inbox) = unbounded();
        let (machine, name) = match options.role {
            SlotRole::Switch(config) => {
                let rows = config.slots as usize + TRANSIT_ROWS;
                let rows = Rows::new(rows, config.row_bytes.into());
                (Machine::Switch(Switch::new(config, rows)), "netsum-slots")
            }
            SlotRole::Server { row_bytes, rows } => {
                let rows = Rows::new(rows + TRANSIT_ROWS, row_bytes.into());
                (Machine::Server(Server::new(row_bytes, rows)), "netsum-server")
            }
        };
        let thread = Thread {
            socket,
            machine,
            ports: Ports::default(),
            inbox,
            wake: wake.clone(),
            clock: Clock::start(),
            outbound: SendBatch::new(),
            headers: Vec::new(),
        };
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || thread.run())
            .map_err(|source| NetError::Thread { name, source })?;
        Ok(SlotDriver { commands, wake, thread: Some(thread), local })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Admits a job at a switch. Errors: `SlotLease` (the reason in words), `Stopped`; `WrongRole` at a
    /// server.
    pub fn install(&self, lease: Lease<SocketAddr>) -> Result<(), NetError> {
        self.ask(|reply| Command::Switch(lease, reply))?
    }

    /// Admits a job at a server. Errors as above, `WrongRole` at a switch.
    pub fn install_server(&self, lease: ServerLease<SocketAddr>) -> Result<(), NetError> {
        self.ask(|reply| Command::Server(lease, reply))?
    }

    /// Takes back a job's leases of epochs up to `up_to`.
    pub fn revoke(&self, job: JobId, up_to: Epoch) -> Result<(), NetError> {
        self.tell(Command::Revoke(job, up_to))
    }

    /// All figures.
    pub fn snapshot(&self) -> Result<SlotSnapshot, NetError> {
        self.ask(Command::Snapshot)
    }

    fn ask<T>(&self, command: impl FnOnce(Sender<T>) -> Command) -> Result<T, NetError> {
        let (reply, answer): (Sender<T>, Receiver<T>) = bounded(1);
        self.tell(command(reply))?;
        answer.recv().map_err(|_| NetError::Stopped)
    }

    fn tell(&self, command: Command) -> Result<(), NetError> {
        self.commands.send(command).map_err(|_| NetError::Stopped)?;
        self.wake.ring();
        Ok(())
    }
}

impl std::ops::Drop for SlotDriver {
    fn drop(&mut self) {
        let _ = self.tell(Command::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

enum Machine {
    Switch(Switch<Rows>),
    Server(Server<Rows>),
}

struct Thread {
    socket: Socket,
    machine: Machine,
    ports: Ports,
    inbox: Receiver<Command>,
    wake: Arc<Wake>,
    clock: Clock,
    outbound: SendBatch<(u32, Option<RowId>)>,
    headers: Vec<[u8; HEADER_LEN]>,
}

impl Thread {
    fn run(mut self) {
        let mut batch = RecvBatch::new();
        let mut errors = 0u64;
        loop {
            if self.wake.take() && self.obey() {
                return;
            }
            let got = batch.recv(&self.socket);
            let messages = *got.as_ref().unwrap_or(&0);
            self.take(&batch, messages);
            self.machine.handle_timeout(self.clock.now());
            self.send();
            if let Err(error) = got {
                errors += 1;
                if errors.is_power_of_two() {
                    tracing::error!(address = %self.socket.local_addr(), %error, errors, "receiving failed");
                }
                self.socket.wait(&self.wake, AFTER_ERROR);
            } else if messages == 0 {
                self.socket.wait(&self.wake, self.until_timeout());
            }
        }
    }

    fn take(&mut self, batch: &RecvBatch, messages: usize) {
        let now = self.clock.now();
        for message in 0..messages {
            let message = batch.message(message);
            let Some(port) = self.ports.find(message.from) else {
                message.packets().for_each(|_| self.machine.count_drop(Drop::UnknownSender));
                continue;
            };
            let (mut packets, mut bytes) = (0, 0);
            for place in message.packets() {
                let packet = batch.bytes(place);
                packets += 1;
                bytes += packet.len() as u64;
                self.machine.handle(now, port, message.ce, Header::decode(packet));
            }
            self.ports.received(port, message.ce, packets, bytes);
        }
    }

    fn send(&mut self) {
        while let Some(Transmit { to, header, payload }) = self.machine.poll_transmit() {
            let mut bytes = [0; HEADER_LEN];
            header.encode(&mut bytes);
            self.outbound.push(to.0 as usize, (self.headers.len() as u32, payload));
            self.headers.push(bytes);
        }
        let (headers, rows) = (&self.headers, self.machine.rows());
        self.outbound.flush(&self.socket, |&(header, row)| {
            [&headers[header as usize][..], row.map_or(&[], |row| rows.get(row))]
        });
        self.machine.flushed();
        self.headers.clear();
    }

    fn until_timeout(&self) -> Duration {
        let due = self.machine.poll_timeout();
        due.map_or(SLEEP, |due| Duration::from_nanos(due.since(self.clock.now())).min(SLEEP))
    }

    /// Does what was asked; true if that is to stop.
    fn obey(&mut self) -> bool {
        while let Ok(command) = self.inbox.try_recv() {
            // Who asked may have gone; then nobody needs the answer.
            match command {
                Command::Switch(lease, reply) => {
                    let lease = lease.map(|address| self.intern(address));
                    let now = self.clock.now();
                    let installed = match &mut self.machine {
                        Machine::Switch(switch) => switch.install(now, lease).map_err(Into::into),
                        Machine::Server(_) => Err(NetError::WrongRole("server")),
                    };
                    // Ports of the lease that this one replaced, or of this one if it was refused.
                    self.forget_ports();
                    let _ = reply.send(installed);
                }
                Command::Server(lease, reply) => {
                    let lease = lease.map(|address| self.intern(address));
                    let now = self.clock.now();
                    let installed = match &mut self.machine {
                        Machine::Server(server) => server.install(now, lease).map_err(Into::into),
                        Machine::Switch(_) => Err(NetError::WrongRole("switch")),
                    };
                    self.forget_ports();
                    let _ = reply.send(installed);
                }
                Command::Revoke(job, up_to) => {
                    match &mut self.machine {
                        Machine::Switch(switch) => switch.revoke(job, up_to),
                        Machine::Server(server) => server.revoke(job, up_to),
                    }
                    self.machine.flushed();
                    self.forget_ports();
                }
                Command::Snapshot(reply) => {
                    let _ = reply.send(self.snapshot());
                }
                Command::Stop => return true,
            }
        }
        false
    }

    fn intern(&mut self, address: SocketAddr) -> PortId {
        let (port, new) = self.ports.intern(address);
        if new {
            self.outbound.set_destination(port.0 as usize, address);
        }
        port
    }

    /// Ports that no lease names are not senders any more.
    fn forget_ports(&mut self) {
        let leased: FxHashSet<PortId> = match &self.machine {
            Machine::Switch(switch) => {
                let of = |l: &Lease| l.members.neighbours().chain([l.parent]).collect::<Vec<_>>();
                switch.leases().flat_map(|(lease, ..)| of(lease)).collect()
            }
            Machine::Server(server) => {
                server.leases().flat_map(|(l, _)| l.neighbours.iter().map(|n| n.port)).collect()
            }
        };
        let outbound = &self.outbound;
        self.ports.retain(&leased, |port| outbound.sent(port.0 as usize));
    }

    fn snapshot(&self) -> SlotSnapshot {
        let mut snapshot = SlotSnapshot {
            neighbours: self.ports.neighbours(|port| self.outbound.sent(port.0 as usize)),
            failures: self.outbound.failures(),
            cpu: CpuTime::of_this_thread(),
            ..SlotSnapshot::default()
        };
        match &self.machine {
            Machine::Switch(switch) => {
                let of = |(l, held, c): (&Lease, u32, &Counters)| (l.job, l.tree, held, *c);
                snapshot.switch = switch.leases().map(of).collect();
                snapshot.drops = switch.drops().iter().collect();
                snapshot.held = switch.held();
            }
            Machine::Server(server) => {
                snapshot.server = server.leases().map(|(l, c)| (l.job, l.tree, *c)).collect();
                snapshot.drops = server.drops().iter().collect();
            }
        }
        snapshot
    }
}

impl Machine {
    /// What is dropped is counted by the machine.
    fn handle(
        &mut self,
        now: Time,
        from: PortId,
        ce: bool,
        decoded: Result<(Header, &[u8]), DecodeError>,
    ) {
        match (self, decoded) {
            (Machine::Switch(m), Ok((header, payload))) => {
                let _ = m.handle(now, from, ce, &header, payload);
            }
            (Machine::Server(m), Ok((header, payload))) => {
                let _ = m.handle(now, from, ce, &header, payload);
            }
            (Machine::Switch(m), Err(error)) => m.count_decode_error(error),
            (Machine::Server(m), Err(error)) => m.count_decode_error(error),
        }
    }

    fn count_drop(&mut self, reason: Drop) {
        match self {
            Machine::Switch(m) => m.count_drop(reason),
            Machine::Server(m) => m.count_drop(reason),
        }
    }

    fn poll_transmit(&mut self) -> Option<Transmit<RowId>> {
        match self {
            Machine::Switch(m) => m.poll_transmit(),
            Machine::Server(m) => m.poll_transmit(),
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        match self {
            Machine::Switch(m) => m.poll_timeout(),
            Machine::Server(_) => None,
        }
    }

    fn handle_timeout(&mut self, now: Time) {
        if let Machine::Switch(m) = self {
            m.handle_timeout(now);
        }
    }

    fn rows(&self) -> &Rows {
        match self {
            Machine::Switch(m) => m.values(),
            Machine::Server(m) => m.values(),
        }
    }

    fn flushed(&mut self) {
        match self {
            Machine::Switch(m) => m.values_mut().flushed(),
            Machine::Server(m) => m.values_mut().flushed(),
        }
    }
}
