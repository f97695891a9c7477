//! Swift against its definition: the delay at a bottleneck is the target, whatever the number of flows.

mod common;

use common::bottleneck::bottleneck;
use common::*;
use netsum_sim::tcp::{SwiftConfig, TcpConfig};
use netsum_sim::{Simulation, Switching};

const TARGET_PS: u64 = 100 * US;

fn swift(range_ps: u64) -> TcpConfig {
    let swift = SwiftConfig {
        target_ps: TARGET_PS,
        range_ps,
        increase: 1.0,
        decrease: 0.8,
        decrease_max: 0.5,
    };
    TcpConfig { swift: Some(swift), ..TcpConfig::default() }
}

/// The delay at which windows of n flows, equal and whole, fill the bottleneck with the delay that they aim at: the fixed
/// point of §3.5's target. Picoseconds.
fn balance(n: u32, range_ps: u64) -> f64 {
    let segment_ps = 1502.0 * 800.0;
    let (mut low, mut high) = (TARGET_PS as f64, (TARGET_PS + range_ps) as f64);
    while high - low > 1.0 {
        let delay = (low + high) / 2.0;
        let window = delay / segment_ps / f64::from(n);
        let share = (window.powf(-0.5) - 0.1) / (0.1f64.powf(-0.5) - 0.1);
        let target = TARGET_PS as f64 + range_ps as f64 * share.clamp(0.0, 1.0);
        (low, high) = if target > delay { (delay, high) } else { (low, delay) };
    }
    low
}

#[test]
fn the_queue_is_what_the_target_leaves() {
    // Marks of the shallowest queue, which do not matter.
    let switching = Switching { mark_packets: 1, queue_packets: 1000, ..PLAIN };
    for (n, range_ps) in [(2, 0), (4, 0), (8, 0), (16, 0), (4, 100 * US), (16, 100 * US)] {
        let found = bottleneck(n, switching, swift(range_ps));
        // Six links of 10 µs, three segments, three acknowledgements; the rest of the delay is queueing. The count
        // leaves out two packets.
        let empty_ps = 60 * US + 3 * (1502 + 54) * 800;
        let wanted = (balance(n, range_ps) - empty_ps as f64) / (1502.0 * 800.0) - 2.0;
        // Each window grows by a segment above the target before it is cut.
        let over = found.mean - wanted;
        assert!((-1.0..=1.0 + f64::from(n) / 2.0).contains(&over), "{n} flows: {over} of {wanted}");
        assert!(found.utilisation > 0.9999 && found.fairness > 0.99, "{n} flows");
    }
}

/// A flow alone keeps its own host's link busy, and its queue is there.
#[test]
fn a_flow_alone_fills_its_link() {
    let found = bottleneck(1, PLAIN, swift(0));
    assert!(found.utilisation > 0.9999 && found.most == 0);
}

/// Loss is told from delay: what is lost is sent again, and everything arrives.
#[test]
fn a_short_queue_loses_and_everything_arrives() {
    let switching = Switching { queue_packets: 20, ..PLAIN };
    let mut simulation = Simulation::new(&dumbbell(8), switching, swift(0), 1).unwrap();
    simulation.set_flows((0..8).map(|i| flow(0, i, 8 + i, 1_000_000)));
    simulation.run(2_000 * MS);
    let records = simulation.take_finished();
    assert_eq!(records.len(), 8);
    assert!(records.iter().any(|record| record.resent > 0));
}
