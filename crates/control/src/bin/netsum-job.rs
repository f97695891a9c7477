//! `netsum-job`: ends jobs by their names, without Python. Schedulers run it when a job of theirs is over.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use netsum_control::ControlError;
use netsum_control::client::{ControllerEndpoint, list_jobs, stop_job};

/// Ends jobs of a fabric by their names.
#[derive(Parser)]
#[command(name = "netsum-job", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// End all jobs whose names begin with a text; their leases are free at once. No such job is no error.
    Stop(Stop),
}

#[derive(Args)]
struct Stop {
    /// Address of the controller, as 10.0.0.1:7700; of several all, separated by commas
    #[arg(long, value_name = "ADDR", env = "NETSUM_CONTROLLER")]
    controller: String,
    /// Folder of a tenant's or an operator's certificate, if the controller demands one
    #[arg(long, value_name = "FOLDER", env = "NETSUM_CREDENTIALS")]
    credentials: Option<OsString>,
    /// With what the names begin, as slurm-12.
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    name: String,
    /// What the ranks of the jobs are told
    #[arg(long, value_name = "TEXT", default_value = "the scheduler says that the job is over")]
    reason: String,
    /// Print nothing but errors
    #[arg(long)]
    quiet: bool,
}

fn main() -> ExitCode {
    let Command::Stop(stop) = Arguments::parse().command;
    match run(&stop) {
        Ok(stopped) => {
            if !stop.quiet {
                stopped.iter().for_each(|(job, name)| println!("job {job} '{name}' is stopped"));
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("netsum-job: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Number and name of each job that was stopped. A job that somebody else ends at the same time is no error.
fn run(stop: &Stop) -> Result<Vec<(u32, String)>, ControlError> {
    let credentials = stop.credentials.as_deref().filter(|folder| !folder.is_empty());
    let controller =
        ControllerEndpoint::with_credentials(&stop.controller, credentials.map(Path::new))?;
    let mut stopped = Vec::new();
    for (job, name) in live(&controller, &stop.name)? {
        match stop_job(&controller, job, &stop.reason, ANSWER) {
            Ok(()) => stopped.push((job, name)),
            Err(error) if live(&controller, &name)?.iter().any(|(other, _)| *other == job) => {
                return Err(error);
            }
            Err(_) => {}
        }
    }
    Ok(stopped)
}

/// Number and name of each job that is not over and whose name begins with `name`.
fn live(controller: &ControllerEndpoint, name: &str) -> Result<Vec<(u32, String)>, ControlError> {
    let jobs = list_jobs(controller, false, ANSWER)?.jobs.into_iter();
    Ok(jobs.map(|job| (job.job, job.name)).filter(|(_, own)| own.starts_with(name)).collect())
}

/// How long the controller may take to answer.
const ANSWER: Duration = Duration::from_secs(10);
