//! A configured run: slices of simulated time, and results that are streamed to files.
//!
//! The files depend only on configuration and version: they contain no clock time, path or thread count.

mod fluid;
mod islands;
mod pace;
mod simulations;
mod summary;
mod table;
mod tables;

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use islands::Work;
use netsum_topo::NodeId;
use pace::Pace;
use simulations::Simulations;

use crate::aggregation::SharedCapture;
use crate::capture::Capture;
use crate::config::{Built, Config, SchemeKind};
use crate::job::Scheme;
use crate::partition::Threads;
use crate::simulation::Simulation;
use summary::Summary;
use tables::{Tables, us};

/// Progress of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Simulated time so far, in picoseconds.
    pub done_ps: u64,
    /// Maximum simulated time.
    pub total_ps: u64,
    /// Packet-hops so far.
    pub hops: u64,
    /// Flows that were completed.
    pub flows: u64,
    /// Steps of jobs that were completed.
    pub steps: u64,
}

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A result could not be written.
    #[error("cannot write the results into {folder}: {source}")]
    Write {
        /// Where.
        folder: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The capture could not be written.
    #[error("cannot write the packets into {file}: {source}")]
    Capture {
        /// Where.
        file: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The progress callback ended the run.
    #[error("interrupted after {at_us:.3} µs of simulated time; the tables in {folder} end there")]
    Interrupted {
        /// When.
        at_us: f64,
        /// Where the tables are.
        folder: String,
    },
    /// The protocol violated its guarantees.
    #[error("{count} violations of the protocol; the first, at {at_us:.3} µs in job {job}: {what}")]
    Violations {
        /// Number of violations.
        count: usize,
        /// Time of the first one.
        at_us: f64,
        /// Job of the first one.
        job: u32,
        /// Description of the first one.
        what: String,
    },
}

/// Runs a configuration into `folder`, which is created if necessary; results of an earlier run are replaced.
/// `summary.json` is written last: if it exists, the run is complete. `progress` decides whether to continue; if not,
/// the tables contain the results so far. `capture`: a pcapng file for the packets of aggregation; the run then has one
/// thread.
pub fn run(
    config: &Config,
    built: Built,
    folder: &Path,
    capture: Option<&Path>,
    progress: impl FnMut(Progress) -> ControlFlow<()>,
) -> Result<(), RunError> {
    paced(config, built, folder, capture, Pace::default(), progress)
}

fn paced(
    config: &Config,
    built: Built,
    folder: &Path,
    capture: Option<&Path>,
    mut pace: Pace,
    mut progress: impl FnMut(Progress) -> ControlFlow<()>,
) -> Result<(), RunError> {
    let write = |source| RunError::Write { folder: folder.display().to_string(), source };
    let mut tables = Tables::create(folder, config).map_err(write)?;
    let mut summary = Summary::new(config, &built);
    let mut stopped_ps = None;
    let mut on = |p: Progress| {
        let next = progress(p);
        stopped_ps = next.is_break().then_some(p.done_ps);
        next
    };
    let outcome = match capture.map(|path| Recording::create(path, &built)).transpose() {
        Ok(recording) => {
            let source = Source { config, built: &built, recording: recording.as_ref() };
            let outcome = all(&source, &mut tables, &mut summary, &mut pace, &mut on);
            outcome.and_then(|()| recording.map_or(Ok(()), Recording::finish))
        }
        Err(failure) => Err(failure),
    };
    // Tables of a failed run are readable too.
    tables.finish().map_err(write)?;
    outcome.map_err(|error| match error {
        Failure::Write(source) => write(source),
        Failure::Run(error) => error,
    })?;
    match stopped_ps {
        None => summary.write(&folder.join("summary.json")).map_err(write),
        Some(ps) => {
            let folder = folder.display().to_string();
            Err(RunError::Interrupted { at_us: us(ps), folder })
        }
    }
}

/// Receives the progress of a run and decides whether to continue.
type OnProgress<'a> = &'a mut dyn FnMut(Progress) -> ControlFlow<()>;

/// What a run simulates.
#[derive(Clone, Copy)]
struct Source<'a> {
    config: &'a Config,
    built: &'a Built,
    recording: Option<&'a Recording>,
}

/// The capture of a run.
struct Recording {
    path: PathBuf,
    capture: SharedCapture,
}

impl Recording {
    fn create(path: &Path, built: &Built) -> Result<Recording, Failure> {
        let graph = &built.topology;
        let names = graph.nodes().map(|(_, node)| node.name.clone()).collect();
        let capture = Capture::create(path, names).map_err(|source| capture_error(path, source))?;
        Ok(Recording { path: path.to_owned(), capture: Arc::new(Mutex::new(capture)) })
    }

    fn finish(self) -> Result<(), Failure> {
        let capture = Arc::into_inner(self.capture).expect("simulations are over");
        let capture = capture.into_inner().unwrap_or_else(PoisonError::into_inner);
        capture.finish().map(drop).map_err(|source| capture_error(&self.path, source))
    }
}

fn capture_error(path: &Path, source: io::Error) -> Failure {
    Failure::Run(RunError::Capture { file: path.display().to_string(), source })
}

fn all(
    source: &Source<'_>,
    tables: &mut Tables,
    summary: &mut Summary,
    pace: &mut Pace,
    progress: OnProgress,
) -> Result<(), Failure> {
    let Source { config, built, .. } = *source;
    let parts: &[Part] = match config.scheme.kind {
        SchemeKind::Fluid => {
            return Ok(fluid::run(config, built, tables, summary, pace, progress)?);
        }
        SchemeKind::Ideal => &[Part::Flows, Part::Jobs],
        _ => &[Part::All],
    };
    for (index, &part) in parts.iter().enumerate() {
        let mut next = ControlFlow::Continue(());
        let mut on = |p: Progress| {
            let total_ps = p.total_ps * parts.len() as u64;
            let done_ps = p.total_ps * index as u64 + p.done_ps;
            next = progress(Progress { done_ps, total_ps, ..p });
            next
        };
        one(source, part, tables, summary, pace, &mut on)?;
        if next.is_break() {
            break;
        }
    }
    Ok(())
}

/// What takes part in a simulation; scheme `ideal` runs two simulations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    All,
    Flows,
    Jobs,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::All => "all",
            Part::Flows => "flows",
            Part::Jobs => "jobs",
        }
    }
}

enum Failure {
    Write(io::Error),
    Run(RunError),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Write(error)
    }
}

/// What is to be simulated.
fn simulations(source: &Source<'_>, part: Part) -> Simulations {
    let Source { config, built, recording } = *source;
    let work = Work {
        flows: if part == Part::Jobs { &[] } else { &built.flows },
        jobs: if part == Part::Flows { &[] } else { &built.jobs },
    };
    // Packets are recorded in the order of their times.
    let threads = if recording.is_some() { 1 } else { config.threads.into() };
    let sums = work.jobs().any(|(_, job)| !matches!(job.scheme, Scheme::Hosts { .. }));
    // Otherwise islands would be simulated alone without need.
    let apart = config.skip_repeats && threads == 1 && recording.is_none();
    Simulations::of(&work, (config, built), apart, || {
        let simulation = Simulation::on_threads(
            &built.topology,
            built.switching,
            built.tcp,
            config.seed,
            config.switch.memory.0.0,
            Threads { count: threads, sums },
        );
        let mut simulation: Simulation = simulation.expect("a configuration's fabric was checked");
        simulation.aggregation().sharing = built.sharing;
        if let Some(recording) = recording {
            simulation.aggregation().capture(&recording.capture);
        }
        if config.checked {
            simulation.check();
        }
        if !config.skip_repeats {
            simulation.simulate_repeats();
        }
        simulation
    })
}

fn one(
    source: &Source<'_>,
    part: Part,
    tables: &mut Tables,
    summary: &mut Summary,
    pace: &mut Pace,
    progress: OnProgress,
) -> Result<(), Failure> {
    let Source { config, built, .. } = *source;
    let mut simulations = simulations(source, part);
    let until_ps = config.duration.ps() + config.drain.ps();
    let every_ps = config.samples.as_ref().map_or(u64::MAX, |s| s.every.ps());
    let slice_ps = (until_ps / SLICES).max(1);
    let (mut flows, mut steps) = (0, 0);
    let (mut sample_at, mut slice_at) = (every_ps, slice_ps);
    let mut look_at = pace.look(0);
    loop {
        let at_ps = sample_at.min(slice_at).min(look_at).min(until_ps);
        // Only samples look into the simulation.
        simulations.may_skip_to(sample_at.min(until_ps));
        let idle = simulations.run(at_ps);
        let (sampled, sliced) = (at_ps == sample_at, at_ps == slice_at);
        if sampled {
            sample(&simulations, built, part, tables)?;
            sample_at += every_ps;
        }
        // Progress checks must not affect where the run ends: that time is in the results.
        let over = at_ps == until_ps || idle && (sampled || sliced);
        if at_ps < look_at && !sliced && !over {
            continue;
        }
        if sliced {
            slice_at += slice_ps;
        }
        for record in simulations.take_finished() {
            tables.flow(&record)?;
            summary.flow(&record);
            flows += 1;
        }
        for record in simulations.take_steps(at_ps) {
            tables.step(&record)?;
            summary.step(&record);
            steps += 1;
        }
        for record in simulations.take_jobs() {
            let job = &built.jobs[record.job as usize];
            tables.job(&record, job)?;
            summary.job(&job.1);
        }
        tables.flush()?;
        let hops = simulations.hops();
        let next = progress(Progress { done_ps: at_ps, total_ps: until_ps, hops, flows, steps });
        if over || next.is_break() {
            break;
        }
        look_at = pace.look(at_ps);
    }
    simulations.audit();
    let violations = simulations.violations();
    if let Some(first) = violations.first() {
        return Err(Failure::Run(RunError::Violations {
            count: violations.len(),
            at_us: us(first.at_ps),
            job: first.job,
            what: first.what.clone(),
        }));
    }
    for (number, spec, received) in simulations.unfinished() {
        tables.unfinished(number, &spec, received)?;
        summary.unfinished(&spec, received, simulations.now_ps());
    }
    links(&simulations, part, tables)?;
    summary.end(&simulations);
    Ok(())
}

fn sample(
    simulations: &Simulations,
    built: &Built,
    part: Part,
    tables: &mut Tables,
) -> io::Result<()> {
    let graph = &built.topology;
    for &(from, to) in &built.samples {
        let edge = graph.edge_between(NodeId(from), NodeId(to)).expect("it was checked");
        let link = crate::routes::outgoing(graph, edge.0, NodeId(from));
        let names = [from, to].map(|node| graph.name(NodeId(node)));
        let net = simulations.network_of(link);
        tables.sample(part, net.now_ps(), names, net.carried_bytes(link), net.waiting(link))?;
    }
    Ok(())
}

fn links(simulations: &Simulations, part: Part, tables: &mut Tables) -> io::Result<()> {
    let count = simulations.network_of(0).link_count();
    for link in 0..count {
        let net = simulations.network_of(link);
        let names = [link ^ 1, link].map(|l| net.topology().name(NodeId(net.far_end(l))));
        let busy_ps = net.serialisation_ps(link, net.carried_bytes(link));
        let utilisation = busy_ps as f64 / net.now_ps() as f64;
        tables.link(part, names, net.carried_bytes(link), utilisation, net.counters(link))?;
    }
    Ok(())
}

/// Minimum number of times per run that results are flushed and progress is reported.
const SLICES: u64 = 200;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const RUN: &str = r#"
duration = "1ms"
drain = "5s"
[fabric]
kind = "fat-tree"
k = 4
[[flows]]
kind = "poisson"
load = 0.3
sizes = "web-search"
[[jobs]]
compute = "100us"
bytes = 400000
workers = 6
steps = 3
[samples]
every = "300us"
links = ["rack0.0>agg0.1"]
"#;

    /// Number of progress reports, and the files of the run by name.
    fn left(text: &str, pace: Pace) -> (usize, Vec<(String, String)>) {
        let folder = tempfile::tempdir().unwrap();
        let (config, built) = crate::config::parse(text, "run.toml", Path::new(".")).unwrap();
        let mut reports = 0;
        paced(&config, built, folder.path(), None, pace, |_| {
            reports += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
        let paths = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let text = |path: &Path| std::fs::read_to_string(path).unwrap();
        let mut all: Vec<_> = paths.map(|path| (path.display().to_string(), text(&path))).collect();
        all.sort();
        all.iter_mut().for_each(|file| file.0 = file.0.rsplit('/').next().unwrap().to_owned());
        (reports, all)
    }

    /// With the run's 200 fixed slices, a slice is 25 ms here, more than the whole run.
    #[test]
    fn results_do_not_depend_on_progress_checks() {
        let extra = "[scheme]\nkind = \"ideal\"\n";
        let fluid = RUN.split("[[jobs]]").next().unwrap().to_owned() + "[scheme]\nkind = \"fluid\"";
        let two_threads = format!("threads = 2\n{RUN}");
        for text in [RUN, &two_threads, &format!("{RUN}{extra}"), &fluid] {
            let (often, fine) = left(text, Pace::new(Duration::ZERO..Duration::ZERO));
            let (seldom, coarse) = left(text, Pace::new(Duration::MAX..Duration::MAX));
            assert!(often > 4 * seldom, "{often} and {seldom} looks");
            assert_eq!(fine, coarse);
        }
    }
}
