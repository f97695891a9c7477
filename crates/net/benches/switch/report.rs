//! Rounds as a table and as a file for scripts.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use netsum_net::CpuTime;
use serde_json::{Value, json};

use crate::load::{Counted, FRAGMENT_BYTES, WORKERS};
use crate::record::{self, commit, machine};

/// One side, one round.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// Packets into the switch per second.
    pub pps: f64,
    /// Packets into the switch per second of its processor time.
    pub pps_cpu: f64,
    /// Share of one core that the switch used.
    pub busy: f64,
    /// Share of that in the kernel.
    pub kernel: f64,
    /// Share of one core that the workers used.
    pub workers_busy: f64,
    pub resent: u64,
    pub checked: u64,
}

impl Round {
    pub fn new(
        counted: Counted,
        before: CpuTime,
        after: CpuTime,
        own_before: CpuTime,
        own_after: CpuTime,
    ) -> Round {
        let seconds = |a: Duration, b: Duration| (b - a).as_secs_f64();
        let (user, system) =
            (seconds(before.user, after.user), seconds(before.system, after.system));
        let own =
            seconds(own_before.user, own_after.user) + seconds(own_before.system, own_after.system);
        let packets = counted.packets as f64;
        Round {
            pps: packets / counted.seconds,
            pps_cpu: packets / (user + system),
            busy: (user + system) / counted.seconds,
            kernel: system / (user + system),
            workers_busy: own / counted.seconds,
            resent: counted.resent,
            checked: counted.checked,
        }
    }
}

/// Gradient bits per second.
fn gbit(pps: f64) -> f64 {
    pps * FRAGMENT_BYTES as f64 * 8.0 / 1e9
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.3} Mpps in, {:5.2} Gbit/s in, {:4.2} per worker | core {:3.0} % busy, {:2.0} % of it kernel, \
             {:.3} Mpps per CPU second | workers' core {:3.0} % | {} resent, {} checked",
            self.pps / 1e6,
            gbit(self.pps),
            gbit(self.pps) / WORKERS as f64,
            self.busy * 100.0,
            self.kernel * 100.0,
            self.pps_cpu / 1e6,
            self.workers_busy * 100.0,
            self.resent,
            self.checked,
        )
    }
}

/// The rounds of each side.
pub struct Sides<'a> {
    pub ours: &'a [Round],
    pub sealed: &'a [Round],
    pub encrypted: &'a [Round],
    pub bare: &'a [Round],
}

pub struct Report {
    path: &'static str,
    json: Value,
}

impl Report {
    pub fn new(
        path: &'static str,
        window: u16,
        Sides { ours, sealed, encrypted, bare }: Sides<'_>,
    ) -> Report {
        let of = |rounds: &[Round], value: fn(&Round) -> f64| {
            let mut all: Vec<f64> = rounds.iter().map(value).collect();
            all.sort_by(f64::total_cmp);
            json!({ "median": all[all.len() / 2], "best": all[all.len() - 1] })
        };
        let ratio = |one: &[Round], other: &[Round], value: fn(&Round) -> f64| {
            let median = |rounds| of(rounds, value)["median"].as_f64().unwrap_or(f64::NAN);
            median(one) / median(other)
        };
        let side = |rounds: &[Round]| {
            json!({
                "packets_per_second": of(rounds, |r| r.pps),
                "gradient_gbit_per_second": of(rounds, |r| gbit(r.pps)),
                "goodput_per_worker_gbit_per_second": of(rounds, |r| gbit(r.pps) / WORKERS as f64),
                "packets_per_cpu_second": of(rounds, |r| r.pps_cpu),
                "core_busy": of(rounds, |r| r.busy),
                "kernel_share_of_busy": of(rounds, |r| r.kernel),
                "workers_core_busy": of(rounds, |r| r.workers_busy),
                "resent": rounds.iter().map(|r| r.resent).sum::<u64>(),
            })
        };
        let median = |value| of(ours, value)["median"].as_f64().unwrap_or(f64::NAN) * 100.0;
        let json = json!({
            "name": "switch",
            "unit": "packets/s into the switch",
            "higher_is_better": true,
            "ours": of(ours, |r| r.pps),
            "peers": { "forwarder": of(bare, |r| r.pps) },
            "ratio": { "forwarder": ratio(ours, bare, |r| r.pps) },
            "ratio_per_cpu_second": { "forwarder": ratio(ours, bare, |r| r.pps_cpu) },
            "sealed_per_unsealed": {
                "packets_per_second": ratio(sealed, ours, |r| r.pps),
                "packets_per_cpu_second": ratio(sealed, ours, |r| r.pps_cpu),
            },
            "encrypted_per_unsealed": {
                "packets_per_second": ratio(encrypted, ours, |r| r.pps),
                "packets_per_cpu_second": ratio(encrypted, ours, |r| r.pps_cpu),
            },
            "limit": format!(
                "{path}: the workers' core is {:.0} % busy, the switch's {:.0} %, {:.0} % of that in the kernel",
                median(|r| r.workers_busy), median(|r| r.busy), median(|r| r.kernel)
            ),
            "machine": machine(),
            "commit": commit(),
            "path": path,
            "window": window,
            "workers": WORKERS,
            "fragment_bytes": FRAGMENT_BYTES,
            "rounds": ours.len(),
            "detail": {
                "ours": side(ours),
                "sealed": side(sealed),
                "encrypted": side(encrypted),
                "forwarder": side(bare),
            },
        });
        Report { path, json }
    }

    pub fn write(&self, file: &Path) {
        record::write(file, &self.json);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number =
            |path: &str| self.json.pointer(path).and_then(Value::as_f64).unwrap_or(f64::NAN);
        writeln!(
            f,
            "{}: switch {:.3} Mpps (best {:.3}), forwarder {:.3} (best {:.3}): ratio {:.2}",
            self.path,
            number("/ours/median") / 1e6,
            number("/ours/best") / 1e6,
            number("/peers/forwarder/median") / 1e6,
            number("/peers/forwarder/best") / 1e6,
            number("/ratio/forwarder"),
        )?;
        writeln!(
            f,
            "per second of switch CPU: {:.3} and {:.3} Mpps: ratio {:.2}",
            number("/detail/ours/packets_per_cpu_second/median") / 1e6,
            number("/detail/forwarder/packets_per_cpu_second/median") / 1e6,
            number("/ratio_per_cpu_second/forwarder"),
        )?;
        writeln!(
            f,
            "sealed packets: {:.3} Mpps, {:.3} per second of switch CPU: ratio to unsealed {:.2} and {:.2}",
            number("/detail/sealed/packets_per_second/median") / 1e6,
            number("/detail/sealed/packets_per_cpu_second/median") / 1e6,
            number("/sealed_per_unsealed/packets_per_second"),
            number("/sealed_per_unsealed/packets_per_cpu_second"),
        )?;
        writeln!(
            f,
            "encrypted packets: {:.3} Mpps, {:.3} per second of switch CPU: ratio to unsealed {:.2} and {:.2}",
            number("/detail/encrypted/packets_per_second/median") / 1e6,
            number("/detail/encrypted/packets_per_cpu_second/median") / 1e6,
            number("/encrypted_per_unsealed/packets_per_second"),
            number("/encrypted_per_unsealed/packets_per_cpu_second"),
        )?;
        write!(f, "limit: {}", self.json["limit"].as_str().unwrap_or_default())
    }
}
