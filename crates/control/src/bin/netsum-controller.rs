//! The netsum controller: plans aggregation trees for the jobs of one fabric.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use netsum_control::decide::Settings;
use netsum_control::{Config, ControlError, Controller};
use netsum_topo::Fabric;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// Plans aggregation trees for the jobs of one fabric, and keeps them while switches come and go.
///
/// Prints `ready ADDRESS` on stdout when it serves. Logs go to stderr; RUST_LOG=debug shows every
/// event. Killed and started again with the same --store, it disturbs no job.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Fabric file (TOML).
    #[arg(long, value_name = "FILE")]
    fabric: PathBuf,
    /// Serve here instead of at the address in the fabric file.
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<SocketAddr>,
    /// Keep jobs in this SQLite file; without it they are forgotten when the controller ends.
    #[arg(long, value_name = "FILE")]
    store: Option<PathBuf>,
    /// Buffers below this many bytes go from host to host instead of through switches.
    #[arg(long, value_name = "BYTES", default_value_t = Settings::default().min_bytes)]
    min_bytes: u64,
    /// Most fragments in flight of a job on each tree, towards each server, or in its pool.
    #[arg(long, value_name = "N", default_value_t = Settings::default().slots_max)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=16384))]
    window_max: u32,
    /// Log as JSON, a line per event.
    #[arg(long)]
    json_log: bool,
    /// Check the fabric file and exit.
    #[arg(long)]
    check: bool,
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
        let (hosts, switches, links) =
            (fabric.hosts.len(), fabric.switches.len(), fabric.links.len());
        println!(
            "{}: {hosts} hosts, {switches} switches, {links} links; all is well",
            arguments.fabric.display()
        );
        return Ok(());
    }
    log(arguments.json_log);
    let listen = arguments.listen.unwrap_or(fabric.controller);
    let settings = Settings {
        min_bytes: arguments.min_bytes,
        slots_max: arguments.window_max,
        ..Settings::default()
    };
    let mut stop = Stop::new()?;
    let controller =
        Controller::start(Config { fabric, listen, store: arguments.store.clone(), settings })?;
    println!("ready {}", controller.address());
    stop.wait();
    controller.stop();
    Ok(())
}

fn log(json: bool) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if json { builder.json().init() } else { builder.init() }
}

/// SIGINT and SIGTERM, noticed from the moment it is made.
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

    /// Returns at the first of either.
    fn wait(&mut self) {
        self.runtime.block_on(async {
            tokio::select! {
                _ = self.interrupt.recv() => {}
                _ = self.terminate.recv() => {}
            }
        });
    }
}
