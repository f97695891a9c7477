//! `netsum-simulate`: runs, replays and minimises seeds of the whole-system simulation.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write as _};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use netsum_simulate::{Class, Report, Scenario, minimise, run, run_with_trace};
use serde_json::json;

/// Runs the whole system - controller, switches, servers, workers - on simulated time, with faults from seeds.
///
/// Exit codes: 0 all invariants held; 2 wrong arguments; otherwise the worst violation: 3 a crash, 4 a wrong sum or
/// number, 5 an operation or job that does not end, 6 the control plane ended a job, 7 a job not back on its trees in
/// time.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Seeds: one, or a range a..b that includes both.
    #[arg(long, default_value = "1..1000", value_parser = seeds)]
    seeds: RangeInclusive<u64>,
    /// Prints the trace of one run; with one seed or a scenario.
    #[arg(long)]
    trace: bool,
    /// Finds the smallest scenario with the same violation as this seed.
    #[arg(long, value_name = "SEED")]
    minimise: Option<u64>,
    /// Runs a scenario from a file, as `--minimise` and `--show` print it.
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// Prints the scenario of the first seed and exits.
    #[arg(long)]
    show: bool,
    /// Number of threads; each seed runs on one.
    #[arg(long, default_value_t = threads())]
    threads: usize,
    /// Starts no new seed after this many seconds.
    #[arg(long, value_name = "SECONDS")]
    time_limit: Option<u64>,
    /// Stops at the first violation of these classes.
    #[arg(long)]
    fail_fast: bool,
    /// Ignores violations of these classes: control, recovery.
    #[arg(long, value_delimiter = ',')]
    ignore: Vec<String>,
    /// Prints a JSON object instead of text.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(seed) = arguments.minimise {
        return shrink(&arguments, seed);
    }
    let scenario = match scenario(&arguments) {
        Ok(scenario) => scenario,
        Err(problem) => {
            eprintln!("{problem}");
            return ExitCode::from(2);
        }
    };
    if let Some(scenario) = scenario {
        return single(&arguments, &scenario);
    }
    many(&arguments)
}

/// The single scenario selected by the arguments, if any.
fn scenario(arguments: &Arguments) -> Result<Option<Scenario>, String> {
    if let Some(file) = &arguments.scenario {
        let text = std::fs::read_to_string(file)
            .map_err(|error| format!("{}: {error}", file.display()))?;
        let scenario =
            serde_json::from_str(&text).map_err(|error| format!("{}: {error}", file.display()))?;
        return Ok(Some(scenario));
    }
    let one = arguments.seeds.start() == arguments.seeds.end() || arguments.show;
    Ok(one.then(|| Scenario::of_seed(*arguments.seeds.start())))
}

fn single(arguments: &Arguments, scenario: &Scenario) -> ExitCode {
    if arguments.show {
        print_line(&serde_json::to_string_pretty(scenario).expect("a scenario is JSON"));
        return ExitCode::SUCCESS;
    }
    let report = if arguments.trace {
        for fault in &scenario.faults {
            print_line(&format!("fault planned: {fault}"));
        }
        let (report, lines) = run_with_trace(scenario);
        lines.iter().for_each(|line| print_line(line));
        report
    } else {
        run(scenario)
    };
    let mut totals = Totals::default();
    totals.add(&report, &ignored(arguments));
    if arguments.json {
        print_line(&json!({ "runs": 1, "report": report }).to_string());
    } else {
        totals.print(1, Duration::ZERO);
    }
    totals.exit_code()
}

fn many(arguments: &Arguments) -> ExitCode {
    let (start, end) = (*arguments.seeds.start(), *arguments.seeds.end());
    let next = AtomicU64::new(start);
    let stop = AtomicBool::new(false);
    let totals = Mutex::new(Totals::default());
    let begun = Instant::now();
    let ignored = ignored(arguments);
    let limit = arguments.time_limit.map(Duration::from_secs);
    let progress = std::io::stderr().is_terminal() && !arguments.json;
    std::thread::scope(|scope| {
        for _ in 0..arguments.threads.max(1) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) && limit.is_none_or(|l| begun.elapsed() < l) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed > end {
                        return;
                    }
                    let report = run(&Scenario::of_seed(seed));
                    let mut totals = totals.lock().unwrap_or_else(|broken| broken.into_inner());
                    let found = totals.add(&report, &ignored);
                    if found && arguments.fail_fast {
                        stop.store(true, Ordering::Relaxed);
                    }
                    if progress && totals.runs.is_multiple_of(64) {
                        eprint!(
                            "\r{} of {} seeds, {} with a violation ",
                            totals.runs,
                            end - start + 1,
                            totals.seeds.len()
                        );
                    }
                }
            });
        }
    });
    if progress {
        eprint!("\r{:60}\r", "");
    }
    let totals = totals.into_inner().unwrap_or_else(|broken| broken.into_inner());
    let elapsed = begun.elapsed();
    if arguments.json {
        print_line(&totals.to_json(elapsed, arguments.threads).to_string());
    } else {
        totals.print(arguments.threads, elapsed);
    }
    totals.exit_code()
}

fn shrink(arguments: &Arguments, seed: u64) -> ExitCode {
    let scenario = Scenario::of_seed(seed);
    let report = run(&scenario);
    let Some(worst) = report.worst() else {
        print_line(&format!("seed {seed}: all invariants hold"));
        return ExitCode::SUCCESS;
    };
    let limit = Duration::from_secs(arguments.time_limit.unwrap_or(120));
    let begun = Instant::now();
    let (class, rule) = (worst.class, worst.rule);
    let shows = |scenario: &Scenario| {
        run(scenario).violations.iter().any(|v| (v.class, v.rule) == (class, rule))
    };
    let smallest = minimise::minimise(scenario, shows, || begun.elapsed() < limit);
    let report = run(&smallest);
    print_line(&serde_json::to_string_pretty(&smallest).expect("a scenario is JSON"));
    for job in &smallest.jobs {
        eprintln!("job: {} with {} ranks", job.protocol, job.hosts.len());
    }
    smallest.faults.iter().for_each(|fault| eprintln!("fault: {fault}"));
    report.violations.iter().for_each(|violation| eprintln!("{violation}"));
    eprintln!("replay: keep the scenario in FILE, then netsum-simulate --scenario FILE --trace");
    ExitCode::from(class.exit_code())
}

/// A violation: seed, class, broken rule, description.
type Found = (u64, Class, &'static str, String);

/// Totals over runs.
#[derive(Default)]
struct Totals {
    runs: u64,
    events: u64,
    operations: u64,
    on_trees: u64,
    handovers: u64,
    completed: u64,
    failed: u64,
    simulated_ns: u64,
    /// Seeds with a violation, each with its worst.
    seeds: Vec<Found>,
}

impl Totals {
    /// Adds a report; returns whether it has a violation that is not ignored.
    fn add(&mut self, report: &Report, ignored: &[Class]) -> bool {
        self.runs += 1;
        self.events += report.events;
        self.operations += report.operations;
        self.on_trees += report.on_trees;
        self.handovers += report.handovers;
        self.completed += u64::from(report.completed);
        self.failed += u64::from(report.failed);
        self.simulated_ns += report.simulated_ns;
        let worst = report.worst().filter(|worst| !ignored.contains(&worst.class));
        if let Some(worst) = worst {
            self.seeds.push((report.seed, worst.class, worst.rule, worst.to_string()));
        }
        worst.is_some()
    }

    fn by_rule(&self) -> BTreeMap<(Class, &'static str), Vec<&Found>> {
        let mut rules: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for seed in &self.seeds {
            rules.entry((seed.1, seed.2)).or_default().push(seed);
        }
        rules.values_mut().for_each(|seeds| seeds.sort_by_key(|seed| seed.0));
        rules
    }

    fn print(&self, threads: usize, elapsed: Duration) {
        for ((class, rule), seeds) in self.by_rule() {
            print_line(&format!("{} in {} seeds: {rule}", class.name(), seeds.len()));
            for (seed, _, _, what) in seeds.iter().take(SHOWN) {
                print_line(&format!("  seed {seed}: {what}"));
                print_line(&format!("    make simulate SEED={seed} TRACE=1"));
            }
        }
        let seconds = elapsed.as_secs_f64();
        let rate = match seconds > 0.0 {
            true => format!(
                ", {:.0} seeds per thread and hour",
                self.runs as f64 * 3600.0 / seconds / threads as f64
            ),
            false => String::new(),
        };
        print_line(&format!(
            "{} seeds, {} with a violation{rate}; {:.1} h simulated, {} events, {} operations ({} on trees), \
             {} hand-overs, {} ranks completed, {} failed with cause",
            self.runs,
            self.seeds.len(),
            self.simulated_ns as f64 / 3.6e12,
            self.events,
            self.operations,
            self.on_trees,
            self.handovers,
            self.completed,
            self.failed
        ));
    }

    fn to_json(&self, elapsed: Duration, threads: usize) -> serde_json::Value {
        let rules = self.by_rule().into_iter().map(|((class, rule), seeds)| {
            let numbers: Vec<u64> = seeds.iter().map(|seed| seed.0).collect();
            json!({ "class": class, "rule": rule, "seeds": numbers, "first": seeds[0].3 })
        });
        json!({
            "runs": self.runs,
            "seconds": elapsed.as_secs_f64(),
            "threads": threads,
            "events": self.events,
            "operations": self.operations,
            "on_trees": self.on_trees,
            "handovers": self.handovers,
            "completed": self.completed,
            "failed": self.failed,
            "simulated_s": self.simulated_ns as f64 / 1e9,
            "violations": rules.collect::<Vec<_>>(),
        })
    }

    fn exit_code(&self) -> ExitCode {
        let worst = self.seeds.iter().map(|seed| seed.1).min();
        worst.map_or(ExitCode::SUCCESS, |class| ExitCode::from(class.exit_code()))
    }
}

fn ignored(arguments: &Arguments) -> Vec<Class> {
    let named = |class: &Class| arguments.ignore.iter().any(|name| name == class.name());
    [Class::Control, Class::Recovery].into_iter().filter(named).collect()
}

/// Exits silently if standard output is closed, as by `head`.
fn print_line(line: &str) {
    if writeln!(std::io::stdout(), "{line}").is_err() {
        std::process::exit(0);
    }
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn seeds(text: &str) -> Result<RangeInclusive<u64>, String> {
    let number =
        |text: &str| text.trim().parse::<u64>().map_err(|_| format!("{text:?} is no seed"));
    match text.split_once("..") {
        Some((start, end)) => {
            let range = number(start)?..=number(end.trim_start_matches('='))?;
            if range.is_empty() { Err("the range is empty".to_owned()) } else { Ok(range) }
        }
        None => number(text).map(|seed| seed..=seed),
    }
}

/// Number of seeds shown for each rule.
const SHOWN: usize = 5;
