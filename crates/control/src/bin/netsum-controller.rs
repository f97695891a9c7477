//! The netsum controller: plans aggregation trees for the jobs of one fabric.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use netsum_control::client::is_local;
use netsum_control::decide::Settings;
use netsum_control::{
    Config, ControlError, Controller, EtcdCredentials, EtcdStore, MemoryStore, Security,
    SharedStore, SqliteStore, Store,
};
use netsum_sandbox::{Daemon, Privilege, SandboxArguments};
use netsum_topo::Fabric;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// Plans aggregation trees for the jobs of one fabric, and maintains them while switches fail and return.
///
/// Prints `ready ADDRESS` on stdout when it serves. Logs go to stderr; RUST_LOG=debug shows every event. A controller
/// that is killed and restarted with the same store disturbs no job.
#[derive(Parser)]
#[command(name = "netsum-controller", version)]
struct Arguments {
    /// Fabric file (TOML).
    #[arg(long, value_name = "FILE")]
    fabric: PathBuf,
    /// Serve here instead of at the address in the fabric file.
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<SocketAddr>,
    /// Keep jobs in this SQLite file; "none": in memory, until the controller ends; "etcd://HOST:PORT,HOST:PORT": in an
    /// etcd cluster, which several controllers share, of which one leads. Without the option:
    /// $STATE_DIRECTORY/FABRIC.db, else $XDG_STATE_HOME/netsum/FABRIC.db, else ~/.local/state/netsum/FABRIC.db.
    #[arg(long, value_name = "FILE|none|etcd://…")]
    store: Option<PathBuf>,
    /// Folder with a certificate for the etcd cluster (identity.pem, identity-key.pem) and its authority (ca.pem).
    #[arg(long, value_name = "FOLDER")]
    etcd_credentials: Option<PathBuf>,
    /// Where clients reach this one of several controllers, if not at its listening address.
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Copy the store to a new file, and exit. Controllers with a store in etcd go on; one with a SQLite file must be
    /// stopped.
    #[arg(long, value_name = "FILE")]
    backup: Option<PathBuf>,
    /// Fill the store, which must have no jobs, from a backup, and exit. No controller may run.
    #[arg(long, value_name = "FILE", conflicts_with = "backup")]
    restore: Option<PathBuf>,
    /// Buffers below this many bytes use the host path instead of switches.
    #[arg(long, value_name = "BYTES", default_value_t = Settings::default().min_bytes)]
    min_bytes: u64,
    /// Maximum number of fragments in flight of a job on each tree, towards each server, or in its pool.
    #[arg(long, value_name = "N", default_value_t = Settings::default().slots_max)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=16384))]
    window_max: u32,
    #[command(flatten)]
    times: Times,
    /// Folder with the controller's certificate (identity.pem, identity-key.pem, ca.pem, ca.crl): connections are
    /// encrypted, and clients need certificates, too. Without it, whoever reaches the port may do everything.
    #[arg(long, value_name = "FOLDER", env = "NETSUM_CREDENTIALS")]
    credentials: Option<OsString>,
    /// Form of the log: for people, or one JSON object per event, with job, tree and epoch as fields.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log: LogFormat,
    /// The same as --log json.
    #[arg(long)]
    json_log: bool,
    #[command(flatten)]
    sandbox: SandboxArguments,
    /// Check the fabric file and exit.
    #[arg(long)]
    check: bool,
}

/// Form of the log.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

/// Grace periods and waiting times, in seconds.
#[derive(clap::Args)]
struct Times {
    /// How long a worker's stream may be disconnected before its peers decide whether the rank is lost.
    #[arg(long, value_name = "S", default_value_t = seconds(Settings::default().worker_grace_ms))]
    worker_grace: f64,
    /// The same after a start of the controller.
    #[arg(long, value_name = "S", default_value_t = seconds(Settings::default().restart_grace_ms))]
    restart_grace: f64,
    /// A job is over if no rank is connected and no switch counts its packets for this long.
    #[arg(long, value_name = "S", default_value_t = seconds(Settings::default().abandon_ms))]
    abandon_after: f64,
    /// The same if the connections of all ranks ended as those of killed processes do.
    #[arg(long, value_name = "S", default_value_t = seconds(Settings::default().vanish_ms))]
    vanish_after: f64,
    /// All ranks must have joined within this time.
    #[arg(long, value_name = "S", default_value_t = seconds(Settings::default().join_timeout_ms))]
    join_timeout: f64,
    /// A switch that reports nothing for this long is down.
    #[arg(long, value_name = "S", default_value_t = seconds(Settings::default().switch_silence_ms))]
    switch_silence: f64,
    /// How long plans wait after a start for switches that are not connected yet.
    #[arg(long, value_name = "S", default_value_t = seconds(Settings::default().switch_expected_ms))]
    switch_wait: f64,
    /// A switch must confirm a lease within this time.
    #[arg(long, value_name = "S", default_value_t = seconds(Settings::default().lease_timeout_ms))]
    lease_timeout: f64,
    /// How long a switch that refused a job's lease is not asked again.
    #[arg(long, value_name = "S", default_value_t = seconds(Settings::default().refusal_ms))]
    refusal_hold: f64,
    /// A switch is used again so long after its death at the earliest, longer if it keeps dying.
    #[arg(long, value_name = "S", default_value_t = seconds(Settings::default().return_hold_ms))]
    return_hold: f64,
    /// Maximum time until a suspected switch is tried again.
    #[arg(long, value_name = "S", default_value_t = seconds(Settings::default().trial_max_ms))]
    trial_interval: f64,
    /// A job whose trees have carried nothing for this long yields its leases to jobs that find no room.
    #[arg(long, value_name = "S", default_value_t = seconds(Settings::default().idle_yield_ms))]
    idle_yield: f64,
    /// How long a switch must keep a lease without packets and without a controller.
    #[arg(long, value_name = "S", default_value_t = Settings::default().idle_expiry_s)]
    lease_idle_expiry: u32,
}

impl Times {
    fn settings(&self) -> Settings {
        let ms = |seconds: f64| (seconds.max(0.0) * 1e3) as u64;
        Settings {
            worker_grace_ms: ms(self.worker_grace),
            restart_grace_ms: ms(self.restart_grace),
            abandon_ms: ms(self.abandon_after),
            vanish_ms: ms(self.vanish_after),
            join_timeout_ms: ms(self.join_timeout),
            switch_silence_ms: ms(self.switch_silence),
            switch_expected_ms: ms(self.switch_wait),
            lease_timeout_ms: ms(self.lease_timeout),
            refusal_ms: ms(self.refusal_hold),
            return_hold_ms: ms(self.return_hold),
            trial_max_ms: ms(self.trial_interval),
            idle_yield_ms: ms(self.idle_yield),
            idle_expiry_s: self.lease_idle_expiry,
            ..Settings::default()
        }
    }
}

fn counted(number: usize, one: &str, several: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { several })
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1e3
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("netsum-controller: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), ControlError> {
    let fabric = Fabric::load(&arguments.fabric)?;
    if arguments.check {
        let parts = [
            counted(fabric.hosts.len(), "host", "hosts"),
            counted(fabric.switches.len(), "switch", "switches"),
            counted(fabric.links.len(), "link", "links"),
        ];
        println!("{}: {}; all is well", arguments.fabric.display(), parts.join(", "));
        return Ok(());
    }
    log(arguments.json_log || arguments.log == LogFormat::Json);
    let place = store_place(arguments, &fabric.name)?;
    if let Some(file) = &arguments.backup {
        let copied = netsum_control::backup(place.open()?.as_mut(), &fabric.name, file)?;
        println!("{}: {} jobs, {} ranks", file.display(), copied.jobs, copied.ranks);
        return Ok(());
    }
    if let Some(file) = &arguments.restore {
        let copied = netsum_control::restore(place.open()?.as_mut(), &fabric.name, file)?;
        println!("{} jobs, {} ranks are restored", copied.jobs, copied.ranks);
        return Ok(());
    }
    let listen = match arguments.listen {
        Some(listen) => listen,
        None => own_address(&fabric)?,
    };
    let settings = Settings {
        min_bytes: arguments.min_bytes,
        slots_max: arguments.window_max,
        ..arguments.times.settings()
    };
    let security = Security::of_folder(credentials(arguments))?;
    let mut stop = Stop::new()?;
    confine(&arguments.sandbox, listen, place.file())?;
    let store = place.file().map(Path::to_owned);
    let config = Config { fabric, listen, store, settings, security };
    let controller = match place {
        StorePlace::Etcd { endpoints, credentials, .. } => {
            let advertise = arguments.advertise.clone();
            Controller::start_in_cluster(config, SharedStore { endpoints, credentials, advertise })
        }
        StorePlace::File(_) | StorePlace::Memory => Controller::start(config),
    }?;
    println!("ready {}", controller.address());
    stop.wait();
    controller.stop();
    Ok(())
}

/// Where the store is.
enum StorePlace {
    Memory,
    File(PathBuf),
    Etcd { endpoints: String, credentials: Option<EtcdCredentials>, fabric: String },
}

impl StorePlace {
    fn file(&self) -> Option<&Path> {
        match self {
            StorePlace::File(file) => Some(file),
            StorePlace::Memory | StorePlace::Etcd { .. } => None,
        }
    }

    fn open(&self) -> Result<Box<dyn Store>, ControlError> {
        Ok(match self {
            StorePlace::Memory => Box::new(MemoryStore::drawn()?),
            StorePlace::File(file) => Box::new(SqliteStore::open(file)?),
            StorePlace::Etcd { endpoints, credentials, fabric } => {
                Box::new(EtcdStore::open(endpoints, credentials.clone(), fabric)?)
            }
        })
    }
}

fn store_place(arguments: &Arguments, fabric: &str) -> Result<StorePlace, ControlError> {
    let given = arguments.store.as_deref();
    let Some(endpoints) = given.and_then(Path::to_str).and_then(|url| url.strip_prefix("etcd://"))
    else {
        let file = store_file(given, fabric)?;
        return Ok(file.map_or(StorePlace::Memory, StorePlace::File));
    };
    let credentials =
        arguments.etcd_credentials.as_deref().map(EtcdCredentials::open).transpose()?;
    let (endpoints, fabric) = (endpoints.to_owned(), fabric.to_owned());
    Ok(StorePlace::Etcd { endpoints, credentials, fabric })
}

/// The address of this machine among those of the fabric's controllers.
fn own_address(fabric: &Fabric) -> Result<SocketAddr, ControlError> {
    if fabric.standbys.is_empty() {
        return Ok(fabric.controller);
    }
    let all = std::iter::once(fabric.controller).chain(fabric.standbys.iter().copied());
    let own: Vec<SocketAddr> = all.filter(|address| is_local(address.ip())).collect();
    match own[..] {
        [address] => Ok(address),
        _ => Err(ControlError::Listen {
            address: fabric.controllers(),
            reason: format!(
                "this machine has {} of these addresses; choose one by --listen",
                own.len()
            ),
        }),
    }
}

/// Gives up what the controller does not need. Its port is opened later, by the user that it has become.
fn confine(
    options: &SandboxArguments,
    listen: SocketAddr,
    store: Option<&Path>,
) -> Result<(), ControlError> {
    let confined = options.sandbox(Daemon::Controller).and_then(|sandbox| {
        let Some(mut sandbox) = sandbox else { return Ok(()) };
        if (1..FIRST_FREE_PORT).contains(&listen.port()) {
            sandbox.keep.push(Privilege::NET_BIND_SERVICE);
        }
        // Beside the store's file SQLite keeps its log.
        let folder =
            store.and_then(Path::parent).map(|folder| match folder.as_os_str().is_empty() {
                true => Path::new("."),
                false => folder,
            });
        sandbox.writable.extend(folder.map(Path::to_owned));
        sandbox.enter()
    });
    confined.map_err(|error| ControlError::Sandbox { problem: error.to_string() })
}

/// Lower ports are for privileged processes; 0 lets the system choose a higher one.
const FIRST_FREE_PORT: u16 = 1024;

/// The folder of the credentials. An empty variable is an absent one.
fn credentials(arguments: &Arguments) -> Option<&Path> {
    arguments.credentials.as_deref().filter(|folder| !folder.is_empty()).map(Path::new)
}

/// The file of the store; `None`: in memory.
fn store_file(given: Option<&Path>, fabric: &str) -> Result<Option<PathBuf>, ControlError> {
    match given {
        Some(file) if file == Path::new("none") => return Ok(None),
        Some(file) => return Ok(Some(file.to_owned())),
        None => {}
    }
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    // systemd separates several directories by colons; the first one is used.
    let first = |value: OsString| {
        PathBuf::from(value.to_string_lossy().split(':').next().unwrap_or_default())
    };
    let folder = variable("STATE_DIRECTORY")
        .map(first)
        .or_else(|| variable("XDG_STATE_HOME").map(|state| Path::new(&state).join("netsum")))
        .or_else(|| variable("HOME").map(|home| Path::new(&home).join(".local/state/netsum")));
    let fail = |file: PathBuf, problem: String| ControlError::Store { file, problem };
    let Some(folder) = folder else {
        let problem = "there is no home directory for it; give a file, or none, with --store";
        return Err(fail(PathBuf::from("default"), problem.to_owned()));
    };
    let name = fabric.replace(|c: char| !(c.is_alphanumeric() || "-_.".contains(c)), "_");
    let file = folder.join(format!("{name}.db"));
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
    made.map_err(|error| {
        fail(file.clone(), format!("its folder cannot be made: {error}; give a file with --store"))
    })?;
    Ok(Some(file))
}

fn log(json: bool) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if json { builder.json().init() } else { builder.init() }
}

/// Receives SIGINT and SIGTERM from its creation on.
struct Stop {
    runtime: Runtime,
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    fn new() -> Result<Stop, ControlError> {
        let failed = |source| ControlError::System { what: "cannot wait for signals", source };
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let entered = runtime.enter();
        let interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let terminate = signal(SignalKind::terminate()).map_err(failed)?;
        drop(entered);
        Ok(Stop { runtime, interrupt, terminate })
    }

    /// Returns when either arrives.
    fn wait(&mut self) {
        self.runtime.block_on(async {
            tokio::select! {
                _ = self.interrupt.recv() => {}
                _ = self.terminate.recv() => {}
            }
        });
    }
}
