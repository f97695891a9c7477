//! The switch's data thread: protocol `panama` on one UDP socket.
//!
//! One thread owns socket and state machine. It takes all that has arrived in one call, feeds the machine
//! packet by packet, and sends what came out as trains; the stored packet's own bytes go to the wire.
//! Everybody else talks to it by commands.

pub(crate) mod ports;
mod store;
mod thread;

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use netsum_proto::panama::TreeCounters;
use netsum_wire::{Epoch, JobId, TreeId};

use crate::NetError;
use crate::accelerator;
use crate::clock::CpuTime;
use crate::udp::{SendFailures, Socket, SocketOptions, SocketReport, Traffic, Wake};

/// What a switch is started with.
#[derive(Clone, Debug)]
pub struct SwitchOptions {
    /// Where workers and other switches send to.
    pub bind: SocketAddr,
    /// Aggregation memory, bytes.
    pub memory: u64,
    /// The socket's.
    pub socket: SocketOptions,
}

/// Grant to one job at this switch: a protocol lease with addresses for neighbours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchLease {
    /// Job.
    pub job: JobId,
    /// Version of the plan.
    pub epoch: Epoch,
    /// Tree.
    pub tree: TreeId,
    /// Who contributes, in the order of additions.
    pub children: Vec<SwitchChild>,
    /// Next switch towards the root; `None` at the root.
    pub parent: Option<SocketAddr>,
    /// The most fragments in flight.
    pub slots: u16,
    /// Largest payload.
    pub fragment_bytes: u16,
    /// Children, in thousandths, that suffice to release a sum.
    pub release_permille: u16,
}

/// One child of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchChild {
    /// Where it sends from and receives.
    pub address: SocketAddr,
    /// Ranks beneath it, a bit each (mod 64).
    pub ranks: u64,
    /// Its bit in `marks`, 0..32.
    pub branch: u8,
}

/// Which lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseKey {
    /// Job.
    pub job: JobId,
    /// Version of the plan.
    pub epoch: Epoch,
    /// Tree.
    pub tree: TreeId,
}

/// A neighbour's traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its address. Port 0 stands for neighbours that this host had under leases long gone.
    pub address: SocketAddr,
    /// From it.
    pub received: Traffic,
    /// To it.
    pub sent: Traffic,
    /// Packets of `received` that the network marked.
    pub marked: u64,
}

/// One lease at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeSnapshot {
    /// Which.
    pub lease: LeaseKey,
    /// Fragments in flight that it may have here now.
    pub window_cap: u16,
    /// Aggregation memory set aside for them, bytes.
    pub memory_reserved: u64,
    /// What happened in it.
    pub counters: TreeCounters,
}

/// All of a switch's figures at one moment.
#[derive(Clone, Debug)]
pub struct SwitchSnapshot {
    /// By neighbour.
    pub neighbours: Vec<Neighbour>,
    /// By lease.
    pub trees: Vec<TreeSnapshot>,
    /// Dropped packets by reason.
    pub drops: Vec<(&'static str, u64)>,
    /// Packets that the system did not take.
    pub failures: SendFailures,
    /// Aggregation memory in use, bytes.
    pub memory_used: u64,
    /// Aggregation memory, bytes.
    pub memory_limit: u64,
    /// What the system gave the socket.
    pub socket: SocketReport,
    /// The data thread's.
    pub cpu: CpuTime,
}

/// A switch at work; dropping it stops the thread.
pub struct SwitchDriver {
    commands: Sender<Command>,
    wake: Arc<Wake>,
    thread: Option<JoinHandle<()>>,
    local: SocketAddr,
    socket: SocketReport,
    fragment_limit: Option<usize>,
}

/// What a thread does, and the largest fragment that it takes.
type Work = (Box<dyn FnOnce() + Send>, Option<usize>);

/// What the thread is asked to do.
pub(crate) enum Command {
    Install(SwitchLease, Sender<Result<(), NetError>>),
    Revoke(JobId, Epoch),
    Expire(Duration, Sender<Vec<LeaseKey>>),
    Snapshot(Sender<SwitchSnapshot>),
    Stop,
}

impl SwitchDriver {
    /// Binds the socket and starts the thread `netsum-switch`.
    pub fn start(options: &SwitchOptions) -> Result<SwitchDriver, NetError> {
        SwitchDriver::with(options, |socket, inbox, wake| {
            let worker = thread::Thread::new(socket, options.memory, inbox, wake);
            Ok((Box::new(move || worker.run()), None))
        })
    }

    /// As `start`, but an accelerator adds: the device that listens at the Unix socket `device`
    /// (docs/accelerator-device.md). Its memory counts, not that of `options`.
    pub fn start_on(options: &SwitchOptions, device: &Path) -> Result<SwitchDriver, NetError> {
        SwitchDriver::with(options, |socket, inbox, wake| {
            let worker = accelerator::Thread::new(socket, device, inbox, wake)?;
            let limit = worker.fragment_limit();
            Ok((Box::new(move || worker.run()), Some(limit)))
        })
    }

    fn with(
        options: &SwitchOptions,
        make: impl FnOnce(Socket, Receiver<Command>, Arc<Wake>) -> Result<Work, NetError>,
    ) -> Result<SwitchDriver, NetError> {
        let socket = Socket::bind(options.bind, &options.socket)?;
        let (local, report) = (socket.local_addr(), socket.report());
        let wake = Arc::new(Wake::new()?);
        let (commands, inbox) = unbounded();
        let (work, fragment_limit) = make(socket, inbox, wake.clone())?;
        let name = "netsum-switch";
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(work)
            .map_err(|source| NetError::Thread { name, source })?;
        let thread = Some(thread);
        Ok(SwitchDriver { commands, wake, thread, local, socket: report, fragment_limit })
    }

    /// The largest fragment that can be added here, bytes; `None`: as large as datagrams are.
    pub fn fragment_limit(&self) -> Option<usize> {
        self.fragment_limit
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// What the system gave the socket.
    pub fn socket(&self) -> SocketReport {
        self.socket
    }

    /// Admits a job's tree, in place of an earlier epoch's. Errors: `DuplicateNeighbour`, `Lease` (the
    /// reason in words), `Stopped`; then everything is as before.
    pub fn install(&self, lease: SwitchLease) -> Result<(), NetError> {
        let mut seen: Vec<SocketAddr> = lease.children.iter().map(|c| c.address).collect();
        seen.extend(lease.parent);
        seen.sort();
        if let Some(twice) = seen.windows(2).find(|w| w[0] == w[1]) {
            return Err(NetError::DuplicateNeighbour { address: twice[0] });
        }
        self.ask(|reply| Command::Install(lease, reply))??;
        Ok(())
    }

    /// Takes back a job's leases of epochs up to `up_to`.
    pub fn revoke(&self, job: JobId, up_to: Epoch) -> Result<(), NetError> {
        self.tell(Command::Revoke(job, up_to))
    }

    /// Takes back leases whose neighbours have all been silent for `idle`, and returns them.
    pub fn expire(&self, idle: Duration) -> Result<Vec<LeaseKey>, NetError> {
        self.ask(|reply| Command::Expire(idle, reply))
    }

    /// All figures.
    pub fn snapshot(&self) -> Result<SwitchSnapshot, NetError> {
        self.ask(Command::Snapshot)
    }

    /// Stops the thread and closes the socket.
    pub fn stop(mut self) {
        self.end();
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

    fn end(&mut self) {
        let _ = self.tell(Command::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for SwitchDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SwitchDriver({})", self.local)
    }
}

impl Drop for SwitchDriver {
    fn drop(&mut self) {
        self.end();
    }
}
