//! `netsum-switch`: see `--help`.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::Parser;
use netsum_sandbox::{Daemon as Kind, SandboxArguments};
use netsum_switch::{Arguments, Config, Daemon, LogFormat, SwitchError};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    log(arguments.log);
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("netsum-switch: {error}");
            ExitCode::FAILURE
        }
    }
}

fn log(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => builder.json().init(),
    }
}

fn run(arguments: Arguments) -> Result<(), SwitchError> {
    let options = arguments.sandbox.clone();
    let config = Config::new(arguments)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|source| SwitchError::System { what: "cannot start a runtime", source })?;
    runtime.block_on(async {
        let name = config.name.clone();
        let shutdown = shutdown()?;
        let daemon =
            Daemon::start_confined(config, |in_kernel| confine(&options, in_kernel)).await?;
        announce(&name, &daemon);
        daemon.run(shutdown).await
    })
}

/// Gives up what the daemon does not need.
fn confine(options: &SandboxArguments, in_kernel: bool) -> Result<(), SwitchError> {
    let kind = if in_kernel { Kind::InKernelSwitch } else { Kind::Switch };
    match options.sandbox(kind)? {
        Some(sandbox) => Ok(sandbox.enter()?),
        None => Ok(()),
    }
}

/// Tells the parent process that the data socket is open. A closed stdout is no reason to stop.
fn announce(name: &str, daemon: &Daemon) {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "ready {name} {}", daemon.local_addr());
    let _ = out.flush();
}

/// Completes on SIGTERM or SIGINT.
fn shutdown() -> Result<impl Future<Output = ()>, SwitchError> {
    let handler = |kind| {
        let what = "cannot handle signals";
        signal(kind).map_err(|source| SwitchError::System { what, source })
    };
    let (mut terminate, mut interrupt) =
        (handler(SignalKind::terminate())?, handler(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping");
    })
}
