//! The in-kernel switch by itself: nanoseconds of one core per contribution, by `BPF_PROG_TEST_RUN`, beside a bare
//! adder in the same hook, which has no leases, senders, epochs or locks (hw/xdp/bench.bpf.c).
//!
//! `cargo bench --profile release -p netsum-net --features xdp --bench xdp -- [--rounds N] [--out FILE]`; needs root.
//! Rounds alternate.

#[cfg(feature = "xdp")]
#[path = "../../../../bench/record.rs"]
mod record;
#[cfg(feature = "xdp")]
mod report;

#[cfg(not(feature = "xdp"))]
fn main() {
    eprintln!(
        "left out: built without the in-kernel switch; `make setup-xdp`, then `make bench NAME=xdp`"
    );
}

#[cfg(feature = "xdp")]
fn main() {
    let arguments: Vec<_> = std::env::args().collect();
    let after = |name: &str| arguments.iter().skip_while(|a| *a != name).nth(1);
    let rounds = after("--rounds").and_then(|n| n.parse().ok()).unwrap_or(9);
    match report::measure(rounds) {
        Ok(cases) => {
            cases.iter().for_each(report::print);
            if let Some(file) = after("--out") {
                report::write(file.as_ref(), &cases);
            }
        }
        Err(reason) => eprintln!("left out: {reason}"),
    }
}
