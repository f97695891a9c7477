//! The in-kernel switch alone: nanoseconds of one core per contribution, by `BPF_PROG_TEST_RUN`, compared with a bare
//! adder in the same hook, which has no leases, senders, epochs or locks (hw/xdp/bench.bpf.c). Then both on veth, with
//! live frames.
//!
//! `cargo bench --profile release -p netsum-net --features xdp --bench xdp -- [--rounds N] [--out FILE]`; needs root.
//! Rounds alternate.

#[cfg(feature = "xdp")]
#[path = "../../../../bench/record.rs"]
mod record;
#[cfg(feature = "xdp")]
mod report;
#[cfg(feature = "xdp")]
mod wires;

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
    let measured = report::measure(rounds).and_then(|cases| {
        cases.iter().for_each(report::print);
        report::print_ratios(&cases);
        Ok((cases, wires::measure(rounds)?))
    });
    match measured {
        Ok((cases, wired)) => {
            wired.iter().for_each(report::print_wired);
            if let Some(file) = after("--out") {
                report::write(file.as_ref(), &cases, &wired);
            }
        }
        Err(reason) => eprintln!("left out: {reason}"),
    }
}
