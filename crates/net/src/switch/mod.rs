//! The data thread of a switch or server: all protocols on one UDP socket.
//!
//! One thread owns socket and state machines. It receives everything that has arrived in one call, passes each packet
//! to the machine of its protocol, and sends the output as trains. Other threads send commands. Protocol `panama`
//! stores packets ready to send in buffers; the others store rows.

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
use netsum_proto::policer::Owner;
use netsum_proto::{Lease, LeaseKey, Secrets};
use netsum_wire::{Epoch, JobId};

pub use netsum_proto::row_machines::Role;
pub use snapshot::{
    ChildSnapshot, Neighbour, PoolSnapshot, ServerSnapshot, SlotSnapshot, SwitchSnapshot,
    TreeSnapshot,
};

use crate::NetError;
use crate::accelerator;
use crate::udp::{Socket, SocketOptions, SocketReport, Wake};

/// Options of a switch.
#[derive(Clone, Debug)]
pub struct SwitchOptions {
    /// Listening address.
    pub bind: SocketAddr,
    /// Aggregation memory of `panama`'s trees, bytes.
    pub memory: u64,
    /// Role for packets of `atp`.
    pub role: Role,
    /// Options of the socket.
    pub socket: SocketOptions,
}

/// A running switch; dropping it stops the thread.
pub struct SwitchDriver {
    commands: Sender<Command>,
    wake: Arc<Wake>,
    thread: Option<JoinHandle<()>>,
    local: SocketAddr,
    socket: SocketReport,
    fragment_limit: Option<usize>,
    in_kernel: bool,
}

/// Body of the thread, the largest fragment that it supports, and whether the kernel adds.
struct DriverThread {
    run: Box<dyn FnOnce() + Send>,
    fragment_limit: Option<usize>,
    in_kernel: bool,
}

/// Commands to the thread.
pub(crate) enum Command {
    /// With the number at which workers start.
    Install(Lease<SocketAddr>, Option<Secrets>, u64, Sender<Result<(), NetError>>),
    /// Of a job whose leases follow.
    Own(JobId, Owner),
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

    /// The same, with the in-kernel switch of `atp` attached to the drivers of these interfaces, for the leases that it
    /// supports. If it cannot work, a warning gives the reason, and user space does everything.
    pub fn start_behind(
        options: &SwitchOptions,
        interfaces: &[String],
    ) -> Result<SwitchDriver, NetError> {
        SwitchDriver::start_confined(options, interfaces, |_| Ok::<(), NetError>(()))
    }

    /// The same; once the socket is open and the in-kernel switch attached, `confine` restricts the calling thread, and
    /// so the thread that it starts. `confine` is told whether the in-kernel switch is at work. Errors: also those of
    /// `confine`.
    pub fn start_confined<E: From<NetError>>(
        options: &SwitchOptions,
        interfaces: &[String],
        confine: impl FnOnce(bool) -> Result<(), E>,
    ) -> Result<SwitchDriver, E> {
        SwitchDriver::with(options, |socket, inbox, wake| {
            let worker = thread::Thread::new(socket, options, interfaces, inbox, wake);
            confine(worker.in_kernel())?;
            let in_kernel = worker.in_kernel();
            Ok(DriverThread {
                run: Box::new(move || worker.run()),
                fragment_limit: None,
                in_kernel,
            })
        })
    }

    /// Like `start`, with an accelerator that adds: the device that listens at the Unix socket `device`
    /// (docs/accelerator-device.md). Its memory replaces that of `options`.
    pub fn start_on(options: &SwitchOptions, device: &Path) -> Result<SwitchDriver, NetError> {
        SwitchDriver::start_confined_on(options, device, || Ok::<(), NetError>(()))
    }

    /// The same; once the socket is open, and before the device is connected, `confine` restricts the calling thread, and
    /// so all that it starts. Errors: also those of `confine`.
    pub fn start_confined_on<E: From<NetError>>(
        options: &SwitchOptions,
        device: &Path,
        confine: impl FnOnce() -> Result<(), E>,
    ) -> Result<SwitchDriver, E> {
        SwitchDriver::with(options, |socket, inbox, wake| {
            confine()?;
            let worker = accelerator::Thread::new(socket, device, inbox, wake)?;
            let fragment_limit = Some(worker.fragment_limit());
            Ok(DriverThread {
                run: Box::new(move || worker.run()),
                fragment_limit,
                in_kernel: false,
            })
        })
    }

    fn with<E: From<NetError>>(
        options: &SwitchOptions,
        make: impl FnOnce(Socket, Receiver<Command>, Arc<Wake>) -> Result<DriverThread, E>,
    ) -> Result<SwitchDriver, E> {
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

    /// The largest fragment that can be added here, in bytes; `None`: limited by datagrams only.
    pub fn fragment_limit(&self) -> Option<usize> {
        self.fragment_limit
    }

    /// Listening address.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Whether the in-kernel switch is in front of this one.
    pub fn in_kernel(&self) -> bool {
        self.in_kernel
    }

    /// Socket settings granted by the system.
    pub fn socket(&self) -> SocketReport {
        self.socket
    }

    /// Installs a lease, replacing an earlier epoch's. Errors: `DuplicateNeighbour`, `Lease`, `SlotLease`, `PoolLease`
    /// (with the reason as text), `WrongRole`, `Stopped`; the state is then unchanged.
    pub fn install(&self, lease: impl Into<Lease<SocketAddr>>) -> Result<(), NetError> {
        self.install_with(lease, None)
    }

    /// The same for a job whose packets carry tags under `secrets`; `None`: no tags.
    pub fn install_with(
        &self,
        lease: impl Into<Lease<SocketAddr>>,
        secrets: Option<Secrets>,
    ) -> Result<(), NetError> {
        self.install_starting_at(lease, secrets, 0)
    }

    /// Like `install_with`, for workers that start at number `first` ([`netsum_proto::Worker::starting_at`]). An
    /// accelerator always starts at 0.
    pub fn install_starting_at(
        &self,
        lease: impl Into<Lease<SocketAddr>>,
        secrets: Option<Secrets>,
        first: u64,
    ) -> Result<(), NetError> {
        let lease = lease.into();
        let mut seen = lease.neighbours();
        seen.sort();
        if let Some(twice) = seen.windows(2).find(|w| w[0] == w[1]) {
            return Err(NetError::DuplicateNeighbour { address: twice[0] });
        }
        self.ask(|reply| Command::Install(lease, secrets, first, reply))?
    }

    /// Sets whom the packets of a job count for, before its first lease. Without that, the job stands for itself.
    pub fn own(&self, job: JobId, owner: Owner) -> Result<(), NetError> {
        self.send_command(Command::Own(job, owner))
    }

    /// Revokes a job's leases of epochs up to `up_to`.
    pub fn revoke(&self, job: JobId, up_to: Epoch) -> Result<(), NetError> {
        self.send_command(Command::Revoke(job, up_to))
    }

    /// Revokes leases whose neighbours have all been silent for `idle`, and returns them.
    pub fn expire(&self, idle: Duration) -> Result<Vec<LeaseKey>, NetError> {
        self.ask(|reply| Command::Expire(idle, reply))
    }

    /// All statistics.
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
