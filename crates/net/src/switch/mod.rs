//! The data threads of a switch or server: all protocols on one UDP address.
//!
//! A thread owns a socket and the state machines of its leases. It receives everything that has arrived in one call,
//! passes each packet to the machine of its protocol, and sends the output as trains. Other threads send commands.
//! Protocol `panama` stores packets ready to send in buffers; the others store rows.
//!
//! Usually there is one thread. Several have a socket each, among which the system divides packets by job and tree
//! (`steering.rs`); they share nothing while packets pass, but for the buckets of tenants with a rate (`rates.rs`). Parts of
//! the memory move between them when leases come and go (`division.rs`).

mod division;
#[cfg_attr(not(feature = "xdp"), path = "no_kernel_offload.rs")]
mod kernel_offload;
pub(crate) mod ports;
mod rates;
mod slots;
mod snapshot;
mod steering;
mod store;
mod strays;
mod thread;

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use netsum_proto::atp::SwitchConfig;
use netsum_proto::policer::{Owner, SharedRates};
use netsum_proto::{Lease, LeaseKey, Secrets, panama};
use netsum_wire::{Epoch, JobId, TreeId};

use self::division::{Demand, Division};
use self::rates::TenantRates;
use self::steering::Steering;
use self::strays::{Letterbox, Strays};
use self::thread::Beginning;

pub use netsum_proto::row_machines::Role;
pub use snapshot::{
    ChildSnapshot, Neighbour, PoolSnapshot, ServerSnapshot, SlotSnapshot, SwitchSnapshot,
    ThreadSnapshot, TreeSnapshot,
};

use crate::NetError;
use crate::accelerator;
use crate::clock::Clock;
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
    /// Options of the socket; of several threads each has one.
    pub socket: SocketOptions,
    /// Data threads, from 1 to [`THREADS_MOST`]. More than one are for switches without an accelerator and without an
    /// in-kernel switch. They divide the trees of `panama`; the first has all slots.
    pub threads: usize,
}

/// The most data threads of a switch.
pub const THREADS_MOST: usize = 64;

/// A running switch; dropping it stops its threads.
pub struct SwitchDriver {
    threads: Vec<DataThread>,
    steering: Steering,
    /// Where there are several threads. A lease is installed under this lock, so that the memory for it stays.
    division: Mutex<Division>,
    rates: Mutex<TenantRates>,
    clock: Clock,
    local: SocketAddr,
    socket: SocketReport,
    fragment_limit: Option<usize>,
    in_kernel: bool,
}

/// The way to a thread.
struct DataThread {
    commands: Sender<Command>,
    wake: Arc<Wake>,
    handle: JoinHandle<()>,
}

/// The other ends, before the thread starts.
struct Post {
    commands: Sender<Command>,
    inbox: Receiver<Command>,
    wake: Arc<Wake>,
}

/// Bodies of the threads, the largest fragment that they support, and whether the kernel adds.
struct Bodies {
    bodies: Vec<Box<dyn FnOnce() + Send>>,
    fragment_limit: Option<usize>,
    in_kernel: bool,
}

/// Commands to a thread.
pub(crate) enum Command {
    /// With the number at which workers start.
    Install(Lease<SocketAddr>, Option<Secrets>, u64, Sender<Result<(), NetError>>),
    /// Of a job whose leases follow, with the buckets of its tenant if other threads use them.
    Own(JobId, Owner, Option<Arc<dyn SharedRates>>),
    Revoke(JobId, Epoch),
    Expire(Duration, Sender<Vec<LeaseKey>>),
    Snapshot(Sender<SwitchSnapshot>),
    /// What the leases of `panama` want, but for that of a job and tree.
    Demand(Option<(JobId, TreeId)>, Sender<Demand>),
    /// Sets the aggregation memory; the answer is what it is then.
    Limit(u64, Sender<u64>),
    Stop,
}

impl SwitchDriver {
    /// Binds the address and starts the threads: `netsum-switch`, of several `netsum-switch0` and so on. Errors: also
    /// `Threads`.
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

    /// The same; once the sockets are open and the in-kernel switch attached, `confine` restricts the calling thread, and
    /// so the threads that it starts. `confine` is told whether the in-kernel switch is at work. Errors: also those of
    /// `confine`.
    pub fn start_confined<E: From<NetError>>(
        options: &SwitchOptions,
        interfaces: &[String],
        confine: impl FnOnce(bool) -> Result<(), E>,
    ) -> Result<SwitchDriver, E> {
        let alone = match options.role {
            Role::Server { .. } => Some("a server"),
            Role::Switch(_) if !interfaces.is_empty() => Some("the in-kernel switch"),
            Role::Switch(_) => None,
        };
        let make = |sockets: Vec<Socket>, posts: &[Post], memory: &[u64], clock| {
            let threads = data_threads(options, interfaces, sockets, posts, memory, clock);
            let in_kernel = threads.iter().any(thread::Thread::in_kernel);
            confine(in_kernel)?;
            let body = |thread: thread::Thread| -> Box<dyn FnOnce() + Send> {
                Box::new(move || thread.run())
            };
            let bodies = threads.into_iter().map(body).collect();
            Ok(Bodies { bodies, fragment_limit: None, in_kernel })
        };
        SwitchDriver::with(options, alone, make)
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
        let make = |mut sockets: Vec<Socket>, posts: &[Post], _: &[u64], _| {
            confine()?;
            let (socket, post) = (sockets.remove(0), &posts[0]);
            let worker =
                accelerator::Thread::new(socket, device, post.inbox.clone(), post.wake.clone())?;
            let fragment_limit = Some(worker.fragment_limit());
            let bodies: Vec<Box<dyn FnOnce() + Send>> = vec![Box::new(move || worker.run())];
            Ok(Bodies { bodies, fragment_limit, in_kernel: false })
        };
        SwitchDriver::with(options, Some("an accelerator"), make)
    }

    /// `alone`: what has one thread only.
    fn with<E: From<NetError>>(
        options: &SwitchOptions,
        alone: Option<&'static str>,
        make: impl FnOnce(Vec<Socket>, &[Post], &[u64], Clock) -> Result<Bodies, E>,
    ) -> Result<SwitchDriver, E> {
        let most = alone.map_or(THREADS_MOST, |_| 1);
        if !(1..=most).contains(&options.threads) {
            let what = alone.unwrap_or("a switch");
            return Err(NetError::Threads { what, most, wanted: options.threads }.into());
        }
        let steering = Steering::new(options.threads);
        let sockets = match options.threads {
            1 => vec![Socket::bind(options.bind, &options.socket)?],
            n => Socket::bind_group(options.bind, &options.socket, n, &mut steering.filter())?,
        };
        let (local, socket) = (sockets[0].local_addr(), sockets[0].report());
        let posts = sockets.iter().map(|_| Post::new());
        let posts = posts.collect::<Result<Vec<Post>, NetError>>()?;
        let division = Division::new(options.memory, options.threads);
        let clock = Clock::start();
        let work = make(sockets, &posts, division.parts(), clock)?;
        let mut driver = SwitchDriver {
            threads: Vec::new(),
            steering,
            division: Mutex::new(division),
            rates: Mutex::default(),
            clock,
            local,
            socket,
            fragment_limit: work.fragment_limit,
            in_kernel: work.in_kernel,
        };
        for (number, (body, post)) in work.bodies.into_iter().zip(posts).enumerate() {
            let name = "netsum-switch";
            let full = match options.threads {
                1 => name.to_owned(),
                _ => format!("{name}{number}"),
            };
            let handle = std::thread::Builder::new()
                .name(full)
                .spawn(body)
                .map_err(|source| NetError::Thread { name, source })?;
            let Post { commands, wake, .. } = post;
            driver.threads.push(DataThread { commands, wake, handle });
        }
        Ok(driver)
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
        let thread = self.steering.of_lease(&lease);
        let _room = match &lease {
            Lease::Tree(lease) if self.threads.len() > 1 => Some(self.make_room(thread, lease)?),
            _ => None,
        };
        self.ask(thread, |reply| Command::Install(lease, secrets, first, reply))?
    }

    /// Sets whom the packets of a job count for, before its first lease. Without that, the job stands for itself.
    pub fn own(&self, job: JobId, owner: Owner) -> Result<(), NetError> {
        let rates = (self.threads.len() > 1).then(|| {
            let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
            rates.of(self.clock.now(), job, &owner)
        });
        for thread in 0..self.threads.len() {
            let rates = rates.clone().map(|rates| rates as Arc<dyn SharedRates>);
            self.send_command(thread, Command::Own(job, owner.clone(), rates))?;
        }
        Ok(())
    }

    /// Revokes a job's leases of epochs up to `up_to`.
    pub fn revoke(&self, job: JobId, up_to: Epoch) -> Result<(), NetError> {
        (0..self.threads.len())
            .try_for_each(|thread| self.send_command(thread, Command::Revoke(job, up_to)))
    }

    /// Revokes leases whose neighbours have all been silent for `idle`, and returns them.
    pub fn expire(&self, idle: Duration) -> Result<Vec<LeaseKey>, NetError> {
        Ok(self.ask_all(|reply| Command::Expire(idle, reply))?.concat())
    }

    /// All statistics.
    pub fn snapshot(&self) -> Result<SwitchSnapshot, NetError> {
        if self.threads.len() == 1 {
            return self.ask(0, Command::Snapshot);
        }
        let memory = {
            let mut division = self.division();
            if division.is_unsettled() {
                self.settle(&mut division, None)?;
            }
            division.memory()
        };
        Ok(SwitchSnapshot::sum(self.ask_all(Command::Snapshot)?, memory))
    }

    /// Stops the threads and closes the sockets.
    pub fn stop(mut self) {
        self.end();
    }

    /// Divides the memory anew, so that the thread has room for the lease if there is any. The room stays until the
    /// answer is dropped.
    fn make_room(
        &self,
        thread: usize,
        lease: &panama::Lease<SocketAddr>,
    ) -> Result<MutexGuard<'_, Division>, NetError> {
        let mut division = self.division();
        self.settle(&mut division, Some((thread, lease)))?;
        Ok(division)
    }

    /// Divides the memory by what leases want, `coming` included.
    fn settle(
        &self,
        division: &mut Division,
        coming: Option<(usize, &panama::Lease<SocketAddr>)>,
    ) -> Result<(), NetError> {
        let replaced = coming.map(|(_, lease)| (lease.job, lease.tree));
        let mut demands = self.ask_all(|reply| Command::Demand(replaced, reply))?;
        if let Some((thread, lease)) = coming {
            demands[thread].bytes += lease.memory_bytes();
            demands[thread].leases += 1;
        }
        division.settle(&demands, |thread, bytes| {
            self.ask(thread, |reply| Command::Limit(bytes, reply))
        })
    }

    fn division(&self) -> MutexGuard<'_, Division> {
        self.division.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask<T>(
        &self,
        thread: usize,
        command: impl FnOnce(Sender<T>) -> Command,
    ) -> Result<T, NetError> {
        let (reply, answer): (Sender<T>, Receiver<T>) = bounded(1);
        self.send_command(thread, command(reply))?;
        answer.recv().map_err(|_| NetError::Stopped)
    }

    /// Asks all threads at once; the answers are in their order.
    fn ask_all<T>(&self, command: impl Fn(Sender<T>) -> Command) -> Result<Vec<T>, NetError> {
        let ask = |thread| {
            let (reply, answer): (Sender<T>, Receiver<T>) = bounded(1);
            self.send_command(thread, command(reply)).map(|()| answer)
        };
        let answers = (0..self.threads.len()).map(ask).collect::<Result<Vec<_>, NetError>>()?;
        answers.into_iter().map(|answer| answer.recv().map_err(|_| NetError::Stopped)).collect()
    }

    fn send_command(&self, thread: usize, command: Command) -> Result<(), NetError> {
        let thread = &self.threads[thread];
        thread.commands.send(command).map_err(|_| NetError::Stopped)?;
        thread.wake.ring();
        Ok(())
    }

    fn end(&mut self) {
        for thread in 0..self.threads.len() {
            let _ = self.send_command(thread, Command::Stop);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.handle.join();
        }
    }
}

impl Post {
    fn new() -> Result<Post, NetError> {
        let (commands, inbox) = unbounded();
        Ok(Post { commands, inbox, wake: Arc::new(Wake::new()?) })
    }
}

/// The threads of a switch or server, not yet running. The first has the slots.
fn data_threads(
    options: &SwitchOptions,
    interfaces: &[String],
    sockets: Vec<Socket>,
    posts: &[Post],
    memory: &[u64],
    clock: Clock,
) -> Vec<thread::Thread> {
    let steering = Steering::new(sockets.len());
    let boxes: Arc<[Letterbox]> =
        posts.iter().map(|post| Letterbox::new(post.wake.clone())).collect();
    let several = sockets.len() > 1;
    let each = sockets.into_iter().zip(posts).zip(memory).enumerate();
    let thread = |(number, ((socket, post), &memory)): (usize, ((Socket, &Post), &u64))| {
        let (inbox, wake) = (post.inbox.clone(), post.wake.clone());
        let role = if number == 0 { options.role } else { without_slots(options.role) };
        let beginning = Beginning { socket, memory, inbox, wake, clock };
        let thread = thread::Thread::new(beginning, role, interfaces);
        match several {
            true => thread.among(number, steering, Strays::new(number, boxes.clone())),
            false => thread,
        }
    };
    each.map(thread).collect()
}

/// The role of a thread to which no slots belong.
fn without_slots(role: Role) -> Role {
    match role {
        Role::Switch(config) => Role::Switch(SwitchConfig { slots: 0, ..config }),
        server @ Role::Server { .. } => server,
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
