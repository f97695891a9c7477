//! The in-kernel switch on veth: packets per second that one core makes, sends, adds and receives.

#![allow(unsafe_code)]

use std::process::Command;

use netsum_net::xdp::WhyNot;
use netsum_net::xdp::stream::{Adder, Stream, WORKERS};
use netsum_wire::Arithmetic;

#[path = "../switch/cores.rs"]
mod cores;

/// Half a second's contributions: the system sends live frames between ticks of its clock.
const CONTRIBUTIONS: u32 = 2_000_000;

/// Fragments of one size and arithmetic.
pub struct Case {
    pub name: String,
    /// Contributions per second, by round.
    pub ours: Vec<f64>,
    /// The bare adder's.
    pub bare: Vec<f64>,
    /// Share of our fragments that were summed: those that a full device drops are not.
    pub summed: f64,
}

/// Measures on one core, in a thread with its own network namespace.
pub fn measure(rounds: usize) -> Result<Vec<Case>, WhyNot> {
    let thread = std::thread::spawn(move || inside(rounds));
    thread.join().expect("the bench does not panic")
}

/// Calls `what` with an interface for each worker, in a namespace of its own.
pub fn with_ports<T: Send>(
    what: impl FnOnce(&[u32]) -> Result<T, WhyNot> + Send,
) -> Result<T, WhyNot> {
    let inside = || {
        enter_namespace()?;
        let mut ports = Vec::new();
        for worker in 0..WORKERS {
            let index = 100 + worker;
            let (name, text) = (format!("port{worker}"), index.to_string());
            ip(&["link", "add", &name, "index", &text, "type", "veth"])?;
            ports.push(index);
        }
        what(&ports)
    };
    std::thread::scope(|scope| scope.spawn(inside).join().expect("the bench does not panic"))
}

fn enter_namespace() -> Result<(), WhyNot> {
    // SAFETY: affects this thread only, and accesses no memory.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        let error = std::io::Error::last_os_error();
        return Err(WhyNot::System("making a network namespace", error));
    }
    Ok(())
}

fn inside(rounds: usize) -> Result<Vec<Case>, WhyNot> {
    cores::pin(0);
    enter_namespace()?;
    let wires: Vec<(String, String)> =
        (0..=WORKERS).map(|i| (format!("near{i}"), format!("far{i}"))).collect();
    for (near, far) in &wires {
        ip(&["link", "add", near, "type", "veth", "peer", "name", far])?;
        ip(&["link", "set", near, "up"])?;
        ip(&["link", "set", far, "up"])?;
    }
    let mut cases = Vec::new();
    for (name, arithmetic) in
        [("wrapping", Arithmetic::Wrapping), ("saturating", Arithmetic::Saturating)]
    {
        for elements in [64, 128, 256] {
            let mut stream = Stream::on_wires(arithmetic, elements, &wires)?;
            let mut case = Case {
                name: format!("{name}-{elements}"),
                ours: Vec::new(),
                bare: Vec::new(),
                summed: 1.0,
            };
            let bare = Adder::Bare { saturating: arithmetic == Arithmetic::Saturating };
            for round in 0..=rounds {
                for adder in [Adder::Switch, bare] {
                    stream.attach(adder, &wires)?;
                    let before = stream.completed()?;
                    let seconds = stream.send(adder, CONTRIBUTIONS)?.as_secs_f64();
                    // The first round warms the caches.
                    if round == 0 {
                        continue;
                    }
                    if let Adder::Switch = adder {
                        let added = f64::from(WORKERS) * (stream.completed()? - before) as f64;
                        case.summed = case.summed.min(added / f64::from(CONTRIBUTIONS));
                        case.ours.push(added / seconds);
                    } else {
                        case.bare.push(f64::from(CONTRIBUTIONS) / seconds);
                    }
                }
            }
            cases.push(case);
        }
    }
    Ok(cases)
}

fn ip(arguments: &[&str]) -> Result<(), WhyNot> {
    let done = Command::new("ip").args(arguments).output();
    let done = done.map_err(|error| WhyNot::System("starting `ip` (iproute2)", error))?;
    if done.status.success() {
        return Ok(());
    }
    let error = std::io::Error::other(String::from_utf8_lossy(&done.stderr).trim().to_owned());
    Err(WhyNot::System("making a pair of devices", error))
}
