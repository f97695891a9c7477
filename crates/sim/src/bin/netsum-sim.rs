//! The simulator as a process: `netsum-sim run CONFIG.toml --out FOLDER`. `netsum sim` calls it.

use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use clap::{Parser, Subcommand};
use netsum_sim::config::{self, Config, Format, SchemeKind};
use netsum_sim::run::{self, RunError};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

#[derive(Parser)]
#[command(version, about = "Packet-level simulation of networks that aggregate")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check a configuration and write the effective one to standard output.
    Check {
        /// TOML file.
        config: PathBuf,
    },
    /// Run a configuration.
    Run {
        /// TOML file.
        config: PathBuf,
        /// Folder for the results; created if it does not exist.
        #[arg(long)]
        out: PathBuf,
        /// Format of the tables, in place of the configured one.
        #[arg(long, value_parser = parse_format)]
        format: Option<Format>,
        /// Maximum number of threads, in place of the configured one; the results are the same.
        #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
        threads: Option<u16>,
        /// Write the packets of aggregation into this pcapng file, for Wireshark; the run then has one thread.
        #[arg(long)]
        pcapng: Option<PathBuf>,
        /// Report progress as lines of JSON on standard error.
        #[arg(long)]
        progress_json: bool,
    },
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Check { config } => check(&config),
        Command::Run { config, out, format, threads, pcapng, progress_json } => {
            let adjust = |config: &mut Config| {
                config.format = format.unwrap_or(config.format);
                config.threads = threads.unwrap_or(config.threads);
            };
            simulate(&config, &out, pcapng.as_deref(), adjust, progress_json)
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err((code, message)) => {
            eprintln!("error: {message}");
            ExitCode::from(code)
        }
    }
}

/// Exit code: the configuration is invalid.
const REFUSED: u8 = 2;
/// Exit code: the run failed.
const FAILED: u8 = 1;
/// Exit code: interrupted, as shells report Ctrl-C.
const INTERRUPTED: u8 = 130;

type Outcome = Result<(), (u8, String)>;

fn check(path: &Path) -> Outcome {
    let (config, built) = config::load(path).map_err(|error| (REFUSED, error.to_string()))?;
    let text = toml::to_string_pretty(&config).map_err(|error| (FAILED, error.to_string()))?;
    built.notes.iter().for_each(|note| println!("# {note}"));
    print!("{text}");
    Ok(())
}

fn parse_format(text: &str) -> Result<Format, String> {
    let known = || Format::ALL.map(Format::name).join(" or ");
    Format::ALL.into_iter().find(|format| format.name() == text).ok_or_else(known)
}

/// The first Ctrl-C or SIGTERM ends the run at the next progress check, with readable tables; the second ends it at
/// once.
fn watch_signals() -> std::io::Result<Arc<AtomicBool>> {
    let wanted = Arc::new(AtomicBool::new(false));
    flag::register_conditional_shutdown(SIGINT, INTERRUPTED.into(), wanted.clone())?;
    flag::register(SIGINT, wanted.clone())?;
    flag::register(SIGTERM, wanted.clone())?;
    Ok(wanted)
}

fn simulate(
    path: &Path,
    out: &Path,
    pcapng: Option<&Path>,
    adjust: impl Fn(&mut Config),
    json: bool,
) -> Outcome {
    let (mut config, built) = config::load(path).map_err(|error| (REFUSED, error.to_string()))?;
    adjust(&mut config);
    if pcapng.is_some() && config.scheme.kind == SchemeKind::Fluid {
        return Err((REFUSED, "--pcapng: scheme \"fluid\" has no packets".to_owned()));
    }
    let stop = watch_signals().map_err(|error| (FAILED, error.to_string()))?;
    if json {
        let line = serde_json::json!({ "notes": built.notes });
        eprintln!("{line}");
    } else {
        built.notes.iter().for_each(|note| eprintln!("{note}"));
    }
    let start = Instant::now();
    let bar = std::io::stderr().is_terminal() && !json;
    let ended = run::run(&config, built, out, pcapng, |progress| {
        let elapsed_s = start.elapsed().as_secs_f64();
        let share = progress.done_ps as f64 / progress.total_ps as f64;
        let left_s = elapsed_s * (1.0 - share) / share.max(1e-9);
        let rate = progress.hops as f64 / elapsed_s.max(1e-9);
        let ms = progress.done_ps as f64 / 1e9;
        if json {
            let line = serde_json::json!({
                "share": share, "simulated_ms": ms, "elapsed_s": elapsed_s, "left_s": left_s,
                "hops": progress.hops, "hops_per_s": rate, "flows": progress.flows, "steps": progress.steps,
            });
            eprintln!("{line}");
        } else if bar {
            eprint!(
                "\r{:3.0} %  {ms:.3} ms simulated  {:.2} M hops/s  {} flows  {} steps  {left_s:.0} s left \x1b[K",
                share * 100.0,
                rate / 1e6,
                progress.flows,
                progress.steps,
            );
            let _ = std::io::stderr().flush();
        }
        match stop.load(Ordering::Relaxed) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    if bar {
        eprintln!();
    }
    ended.map_err(|error| match error {
        RunError::Interrupted { .. } => (INTERRUPTED, error.to_string()),
        _ => (FAILED, error.to_string()),
    })
}
