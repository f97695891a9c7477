//! Reads and validates a configuration; errors name file, line and reason.

use std::path::Path;

use super::build::{Built, build};
use super::scheme::SLOTS_MAX;
use super::source::{ConfigError, Source, TOML_MAX, from_toml, read};
use super::{Config, Flows, SchemeKind};
use crate::aggregation::OVERHEAD_BYTES;
use crate::workload::FlowSizes;

/// Reads and checks a configuration file, and builds the inputs of the run.
pub fn load(path: &Path) -> Result<(Config, Built), ConfigError> {
    let text = read(path, TOML_MAX)?;
    let folder = path.parent().unwrap_or(Path::new("."));
    parse(&text, &path.display().to_string(), folder)
}

/// Checks the text of a configuration; `file` names it in errors, other files are relative to `folder`.
pub fn parse(text: &str, file: &str, folder: &Path) -> Result<(Config, Built), ConfigError> {
    let config: Config = from_toml(text, file)?;
    let source = Source { text, file, folder };
    source.check(&config)?;
    let built = build(&source, &config)?;
    Ok((config, built))
}

impl Source<'_> {
    fn check(&self, config: &Config) -> Result<(), ConfigError> {
        if config.duration.0.0 == 0 {
            return Err(
                self.invalid("duration", "nothing happens in no time; write one like \"10ms\"")
            );
        }
        if config.duration.0.0.saturating_add(config.drain.0.0) > RUN_MAX_NS {
            let key = if config.duration.0.0 > RUN_MAX_NS { "duration" } else { "drain" };
            return Err(
                self.invalid(key, "with its drain a run has at most an hour of simulated time")
            );
        }
        if config.flows.is_empty() && config.jobs.is_empty() && config.mix.is_none() {
            return Err(self.invalid(
                "flows",
                "there is nothing to simulate; add [[flows]], [[jobs]] or [mix]",
            ));
        }
        if config.threads == 0 {
            return Err(self.invalid("threads", "a run has at least one thread"));
        }
        if config.stop_with_jobs && (config.jobs.is_empty() || config.mix.is_some()) {
            let reason =
                "only a run whose jobs are all in [[jobs]] can end with them: those of a mix go on";
            return Err(self.invalid("stop_with_jobs", reason));
        }
        self.check_switch(config)?;
        if config.host.ce_threshold.is_some_and(|time| time.0.0 == 0) {
            let reason = "every packet would be marked; give a time like \"100us\"";
            return Err(self.invalid("host.ce_threshold", reason));
        }
        self.check_tcp(config)?;
        self.check_schemes(config)?;
        self.check_fluid(config)?;
        self.check_loads(config)
    }

    fn check_switch(&self, config: &Config) -> Result<(), ConfigError> {
        let switch = &config.switch;
        if switch.queue_packets == 0 {
            return Err(self.invalid(
                "switch.queue_packets",
                "a queue of 0 packets drops whatever must wait; give it room",
            ));
        }
        if switch.slots.count.is_some_and(|count| count == 0 || count > SLOTS_MAX) {
            let reason = format!("a switch has 1 to {SLOTS_MAX} slots");
            return Err(self.invalid("switch.slots.count", reason));
        }
        if switch.slots.straggler.0.0 == 0 || switch.slots.patience.0.0 == 0 {
            let field = if switch.slots.straggler.0.0 == 0 { "straggler" } else { "patience" };
            let reason = "no sum would ever be complete; write a time like \"20ms\"";
            return Err(self.invalid(&format!("switch.slots.{field}"), reason));
        }
        if let Some(shared) = &switch.shared {
            let largest = u64::from(config.tcp.segment_bytes) + u64::from(config.tcp.header_bytes);
            let problem = if !shared.alpha.is_finite() || shared.alpha <= 0.0 {
                Some(("alpha", "alpha is above 0; switches have 1/128 to 8".to_owned()))
            } else if shared.bytes.0.0 < largest {
                Some(("bytes", format!("the memory is smaller than one packet of {largest} bytes")))
            } else if switch.pause.is_some() {
                let reason = "with PAUSE nothing is dropped; leave one of shared and pause out";
                Some(("bytes", reason.to_owned()))
            } else {
                None
            };
            if let Some((field, reason)) = problem {
                return Err(self.invalid(&format!("switch.shared.{field}"), reason));
            }
        }
        if let Some(pause) = &switch.pause
            && (pause.high_packets == 0 || pause.low_packets >= pause.high_packets)
        {
            return Err(self.invalid(
                "switch.pause",
                "low_packets must be below high_packets, or nobody is told to go on",
            ));
        }
        Ok(())
    }

    fn check_tcp(&self, config: &Config) -> Result<(), ConfigError> {
        let tcp = &config.tcp;
        let wire = u32::from(tcp.segment_bytes) + u32::from(tcp.header_bytes);
        if tcp.segment_bytes == 0 || wire > u32::from(u16::MAX) {
            return Err(
                self.invalid("tcp.segment_bytes", "with its header a segment has 1 to 65535 bytes")
            );
        }
        if tcp.initial_window == 0 || tcp.socket.0.0 < u64::from(tcp.segment_bytes) {
            let key = if tcp.initial_window == 0 { "tcp.initial_window" } else { "tcp.socket" };
            return Err(self.invalid(key, "not even one segment could be sent"));
        }
        let gain_is_sound = tcp.gain > 0.0 && tcp.gain <= 1.0;
        if !gain_is_sound || !(0.0..=1.0).contains(&tcp.alpha) {
            let key = if gain_is_sound { "tcp.alpha" } else { "tcp.gain" };
            return Err(self.invalid(key, "DCTCP's gain and estimate are shares, from 0 to 1"));
        }
        if tcp.reordering == 0 {
            return Err(
                self.invalid("tcp.reordering", "every segment would count as lost; TCP has 3")
            );
        }
        if let Some(swift) = &tcp.swift {
            let share = |value: f64| value > 0.0 && value <= 1.0;
            let wrong = [
                ("target", swift.target.0.0 == 0, "a time above 0"),
                (
                    "increase",
                    !(swift.increase > 0.0 && swift.increase <= 1e6),
                    "more than 0 segments",
                ),
                ("decrease", !share(swift.decrease), "a share above 0, at most 1"),
                (
                    "decrease_max",
                    !share(swift.decrease_max) || swift.decrease_max == 1.0,
                    "above 0, below 1",
                ),
            ];
            if let Some((key, _, expected)) = wrong.iter().find(|(_, is_wrong, _)| *is_wrong) {
                return Err(self.invalid(&format!("tcp.swift.{key}"), format!("write {expected}")));
            }
        }
        if tcp.min_rto.0.0 == 0 {
            return Err(
                self.invalid("tcp.min_rto", "a time-out of nothing resends everything at once")
            );
        }
        Ok(())
    }

    fn check_schemes(&self, config: &Config) -> Result<(), ConfigError> {
        let of_jobs = config.jobs.iter().enumerate();
        let of_jobs =
            of_jobs.filter_map(|(i, job)| Some((format!("jobs.{i}.scheme"), job.scheme.as_ref()?)));
        for (key, scheme) in std::iter::once(("scheme".to_owned(), &config.scheme)).chain(of_jobs) {
            let fail =
                |field: &str, reason: &str| Err(self.invalid(&format!("{key}.{field}"), reason));
            if scheme.kind == SchemeKind::Ideal && key != "scheme" {
                return fail(
                    "kind",
                    "\"ideal\" is of the whole run: every class alone; write it in [scheme]",
                );
            }
            if scheme.kind == SchemeKind::Fluid && key != "scheme" {
                return fail("kind", "\"fluid\" is of the whole run; write it in [scheme]");
            }
            if scheme.trees == 0 || scheme.trees > 64 {
                return fail("trees", "a job has 1 to 64 trees");
            }
            if scheme.rings == 0 || scheme.rings > 64 {
                return fail("rings", "a job has 1 to 64 rings");
            }
            let is_ring = matches!(scheme.kind, SchemeKind::Ring | SchemeKind::RingNoEcn);
            if scheme.rings > 1 && (!is_ring || config.scheme.kind == SchemeKind::Fluid) {
                return fail(
                    "rings",
                    "only \"ring\" and \"ring-no-ecn\", in packets, have several rings",
                );
            }
            if scheme.has_copies() && !scheme.can_have_copies() {
                return fail(
                    "collectives",
                    "\"all\" needs trees without partial sums, servers or a pool: \"panama\", \"panama-per-branch\", \"panama-coupled\", \"switchml*\", \"atp\", \"atp-no-control\" or \"switchml\"",
                );
            }
            if scheme.has_copies() && scheme.trees > 32 {
                return fail("trees", "with collectives = \"all\" a job has 1 to 32 trees");
            }
            if scheme.window == 0 || scheme.window > 16384 {
                return fail("window", "a window has 1 to 16384 fragments");
            }
            if scheme.servers == 0 || scheme.servers > 32 {
                return fail("servers", "a job has 1 to 32 servers");
            }
            let bytes = scheme.fragment_bytes;
            if !(64..=8960).contains(&bytes) || !bytes.is_multiple_of(8) {
                return fail("fragment_bytes", "a fragment has 64 to 8960 bytes, in steps of 8");
            }
            // Memory of the smallest aggregator: one child's contribution, the sum under way and one retained sum.
            let slot = 3 * (u64::from(bytes) + u64::from(OVERHEAD_BYTES));
            if config.switch.memory.0.0 < slot {
                let reason = format!(
                    "memory smaller than one fragment's slot, {slot} bytes; give switches more"
                );
                return Err(self.invalid("switch.memory", reason));
            }
        }
        Ok(())
    }

    fn check_fluid(&self, config: &Config) -> Result<(), ConfigError> {
        if config.scheme.kind != SchemeKind::Fluid {
            return Ok(());
        }
        let others =
            [("scenario", config.scenario.is_some()), ("samples", config.samples.is_some())];
        if let Some((key, _)) = others.into_iter().find(|other| other.1) {
            let reason = "the scheme \"fluid\" knows no faults and no queues to sample";
            return Err(self.invalid(key, reason));
        }
        for (i, job) in config.jobs.iter().enumerate() {
            if job.scheme.as_ref().is_some_and(|scheme| !scheme.can_flow()) {
                let reason = "what slots and pools do depends on packets; a fluid knows trees and algorithms of hosts";
                return Err(self.invalid(&format!("jobs.{i}.scheme.kind"), reason));
            }
            let scheduled =
                [("replay", job.replay.is_some()), ("parallel", job.parallel.is_some())];
            if let Some((key, _)) = scheduled.into_iter().find(|scheduled| scheduled.1) {
                let reason = "schedules are not simulated as fluids; give the job compute and bytes, or layers";
                return Err(self.invalid(&format!("jobs.{i}.{key}"), reason));
            }
        }
        Ok(())
    }

    fn check_loads(&self, config: &Config) -> Result<(), ConfigError> {
        let mut sum = 0.0;
        for (i, flows) in config.flows.iter().enumerate() {
            let Flows::Poisson { load, sizes } = flows else { continue };
            self.add_load(&format!("flows.{i}.load"), *load, &mut sum)?;
            if FlowSizes::named(sizes).is_none() && !self.folder.join(sizes).is_file() {
                let known = FlowSizes::NAMES.join(", ");
                let reason = format!("{sizes:?} is neither a file nor one of {known}");
                return Err(self.invalid(&format!("flows.{i}.sizes"), reason));
            }
        }
        if let Some(mix) = &config.mix {
            self.add_load("mix.load", mix.load, &mut sum)?;
            if !(0.0..=100.0).contains(&mix.pace) {
                return Err(self.invalid("mix.pace", "a pace is from 0 to 100"));
            }
            if !(mix.scale > 0.0 && mix.scale <= 1.0) {
                return Err(self.invalid("mix.scale", "a scale is above 0 and at most 1"));
            }
        }
        Ok(())
    }

    fn add_load(&self, key: &str, load: f64, sum: &mut f64) -> Result<(), ConfigError> {
        if !(load > 0.0 && load <= 1.0) {
            return Err(self.invalid(key, format!("a load of {load} is not above 0 and at most 1")));
        }
        *sum += load;
        if *sum > 1.0 {
            return Err(self.invalid(
                key,
                format!("all loads together are {sum:.3}: more than the hosts' links carry"),
            ));
        }
        Ok(())
    }
}

/// An hour.
const RUN_MAX_NS: u64 = 3_600_000_000_000;
