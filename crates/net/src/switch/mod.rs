//! The data thread of a switch or server: every protocol side by side on one UDP socket.
//!
//! One thread owns socket and state machines. It takes all that has arrived in one call, feeds the machine of
//! each packet's protocol, and sends what came out as trains. Everybody else talks to it by commands.
//! Protocol `panama` has memory in buffers that are packets ready to send; the others have rows.

#[cfg_attr(not(feature = "xdp"), path = "no_kernel_offload.rs")]
mod kernel_offload;
pub(crate) mod ports;
mod slots;
mod snapshot;
mod store;
mod thread;

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use netsum_proto::{Lease, LeaseKey, atp};
use netsum_wire::tag::JobKey;
use netsum_wire::{Epoch, JobId};

pub use snapshot::{
    Neighbour, PoolSnapshot, ServerSnapshot, SlotSnapshot, SwitchSnapshot, TreeSnapshot,
};

use crate::NetError;
use crate::accelerator;
use crate::udp::{Socket, SocketOptions, SocketReport, Wake};

/// What a switch is started with.
#[derive(Clone, Debug)]
pub struct SwitchOptions {
    /// Where workers and other switches send to.
    pub bind: SocketAddr,
    /// Aggregation memory of `panama`'s trees, bytes.
    pub memory: u64,
    /// What it does with packets of `atp`.
    pub role: Role,
    /// The socket's.
    pub socket: SocketOptions,
}

/// A switch or a server of protocol `atp`; servers hold no other leases.
#[derive(Clone, Copy, Debug)]
pub enum Role {
    /// Adds what finds a slot. Static pools have as many rounds as there are slots, twice.
    Switch(atp::SwitchConfig),
    /// Ends what does not.
    Server {
        /// Largest payload.
        row_bytes: u16,
        /// Fragments that all jobs together may have here: two windows each, and a rank's floats each.
        rows: usize,
    },
}

/// A switch at work; dropping it stops the thread.
pub struct SwitchDriver {
    commands: Sender<Command>,
    wake: Arc<Wake>,
    thread: Option<JoinHandle<()>>,
    local: SocketAddr,
    socket: SocketReport,
    fragment_limit: Option<usize>,
    in_kernel: bool,
}

/// What a thread does, the largest fragment that it takes, and whether the kernel adds.
struct DriverThread {
    run: Box<dyn FnOnce() + Send>,
    fragment_limit: Option<usize>,
    in_kernel: bool,
}

/// What the thread is asked to do.
pub(crate) enum Command {
    /// With the number that workers start at.
    Install(Lease<SocketAddr>, Option<JobKey>, u64, Sender<Result<(), NetError>>),
    Revoke(JobId, Epoch),
    Expire(Duration, Sender<Vec<LeaseKey>>),
    Snapshot(Sender<SwitchSnapshot>),
    Stop,
}

impl SwitchDriver {
    /// Binds the socket and starts the thread `netsum-switch`.
    pub fn start(options: &SwitchOptions) -> Result<SwitchDriver, NetError> {
        SwitchDriver::start_behind(options, &[])
    }

    /// The same, with the in-kernel switch of `atp` in the drivers of these interfaces, which serves the leases that it can.
    /// Where it cannot work a warning says why, and user space does everything.
    pub fn start_behind(
        options: &SwitchOptions,
        interfaces: &[String],
    ) -> Result<SwitchDriver, NetError> {
        SwitchDriver::with(options, |socket, inbox, wake| {
            let worker = thread::Thread::new(socket, options, interfaces, inbox, wake);
            let in_kernel = worker.in_kernel();
            Ok(DriverThread {
                run: Box::new(move || worker.run()),
                fragment_limit: None,
                in_kernel,
            })
        })
    }

    /// As `start`, but an accelerator adds: the device that listens at the Unix socket `device`
    /// (docs/accelerator-device.md). Its memory counts, not that of `options`.
    pub fn start_on(options: &SwitchOptions, device: &Path) -> Result<SwitchDriver, NetError> {
        SwitchDriver::with(options, |socket, inbox, wake| {
            let worker = accelerator::Thread::new(socket, device, inbox, wake)?;
            let fragment_limit = Some(worker.fragment_limit());
            Ok(DriverThread {
                run: Box::new(move || worker.run()),
                fragment_limit,
                in_kernel: false,
            })
        })
    }

    fn with(
        options: &SwitchOptions,
        make: impl FnOnce(Socket, Receiver<Command>, Arc<Wake>) -> Result<DriverThread, NetError>,
    ) -> Result<SwitchDriver, NetError> {
        let socket = Socket::bind(options.bind, &options.socket)?;
        let (local, report) = (socket.local_addr(), socket.report());
        let wake = Arc::new(Wake::new()?);
        let (commands, inbox) = unbounded();
        let work = make(socket, inbox, wake.clone())?;
        let (fragment_limit, in_kernel) = (work.fragment_limit, work.in_kernel);
        let name = "netsum-switch";
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(work.run)
            .map_err(|source| NetError::Thread { name, source })?;
        Ok(SwitchDriver {
            commands,
            wake,
            thread: Some(thread),
            local,
            socket: report,
            fragment_limit,
            in_kernel,
        })
    }

    /// The largest fragment that can be added here, bytes; `None`: as large as datagrams are.
    pub fn fragment_limit(&self) -> Option<usize> {
        self.fragment_limit
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Whether the in-kernel switch stands in front of this one.
    pub fn in_kernel(&self) -> bool {
        self.in_kernel
    }

    /// What the system gave the socket.
    pub fn socket(&self) -> SocketReport {
        self.socket
    }

    /// Admits a job, in place of an earlier epoch's lease. Errors: `DuplicateNeighbour`, `Lease`, `SlotLease`,
    /// `PoolLease` (the reason in words), `WrongRole`, `Stopped`; then everything is as before.
    pub fn install(&self, lease: impl Into<Lease<SocketAddr>>) -> Result<(), NetError> {
        self.install_with(lease, None)
    }

    /// The same for a job whose packets carry tags under `key`; `None`: they carry none. Protocol `panama` has no tags.
    pub fn install_with(
        &self,
        lease: impl Into<Lease<SocketAddr>>,
        key: Option<JobKey>,
    ) -> Result<(), NetError> {
        self.install_starting_at(lease, key, 0)
    }

    /// As `install_with`, for workers that start at number `first` ([`netsum_proto::Worker::starting_at`]). An
    /// accelerator starts at 0 whatever is asked.
    pub fn install_starting_at(
        &self,
        lease: impl Into<Lease<SocketAddr>>,
        key: Option<JobKey>,
        first: u64,
    ) -> Result<(), NetError> {
        let lease = lease.into();
        let mut seen = lease.neighbours();
        seen.sort();
        if let Some(twice) = seen.windows(2).find(|w| w[0] == w[1]) {
            return Err(NetError::DuplicateNeighbour { address: twice[0] });
        }
        self.ask(|reply| Command::Install(lease, key, first, reply))?
    }

    /// Takes back a job's leases of epochs up to `up_to`.
    pub fn revoke(&self, job: JobId, up_to: Epoch) -> Result<(), NetError> {
        self.send_command(Command::Revoke(job, up_to))
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
        self.send_command(command(reply))?;
        answer.recv().map_err(|_| NetError::Stopped)
    }

    fn send_command(&self, command: Command) -> Result<(), NetError> {
        self.commands.send(command).map_err(|_| NetError::Stopped)?;
        self.wake.ring();
        Ok(())
    }

    fn end(&mut self) {
        let _ = self.send_command(Command::Stop);
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
