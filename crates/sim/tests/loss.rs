//! Loss recovery against measurements of ns-3 3.44: one flow through one switch, 10 Gbit/s and 10 µs per link, that
//! loses certain packets. ns-3's clock of one nanosecond makes a packet take 1,202 ns in place of 1,201.6.

mod common;

use common::*;
use netsum_sim::Simulation;
use netsum_sim::Switching;
use netsum_sim::simulation::FlowRecord;
use netsum_sim::tcp::TcpConfig;

/// A flow of `segments` full segments; `data` and `acks` are the numbers of the packets that its host's link loses.
fn lossy(segments: u64, data: &[u64], acks: &[u64]) -> FlowRecord {
    let switching = Switching { mark_packets: 86, queue_packets: 1000, ..PLAIN };
    let tcp = TcpConfig::default();
    let mut simulation = Simulation::new(&single_switch(2), switching, tcp, 1).unwrap();
    simulation.check();
    let uplink = simulation.network().uplink(0);
    simulation.drop_packets(uplink, data);
    simulation.drop_packets(uplink ^ 1, acks);
    simulation.set_flows(std::iter::once(flow(0, 0, 1, segments * 1448)));
    assert!(simulation.run(60_000 * MS), "the flow does not end");
    simulation.take_finished()[0]
}

fn numbers(range: std::ops::Range<u64>) -> Vec<u64> {
    range.collect()
}

#[test]
fn a_flow_recovers_as_in_ns3() {
    for (what, segments, data, acks, ns3_us) in [
        ("nothing", 100, vec![], vec![], 190.353),
        ("the first segment", 10, vec![0], vec![], 68.557),
        ("the last segment", 10, vec![9], vec![], 10_074.6),
        ("the first window", 20, numbers(0..10), vec![], 10_236.06),
        ("the second half", 100, numbers(50..100), vec![], 10_406.8),
        ("one of many", 700, vec![300], vec![], 912.8),
        ("two of many", 700, vec![300, 330], vec![], 914.0),
        ("thirty of many", 700, numbers(300..330), vec![], 947.6),
        ("the first acknowledgements", 100, vec![], numbers(0..8), 200.0),
    ] {
        let record = lossy(segments, &data, &acks);
        let us = record.fct_ps() as f64 / 1e6;
        assert!((us / ns3_us - 1.0).abs() < 0.001, "{what}: {us:.3} µs, in ns-3 {ns3_us} µs");
        assert_eq!(record.resent, data.len() as u64, "{what}");
    }
}

/// The same segment is lost with all its repetitions: time-outs double, and the window then grows to the threshold that
/// the first of them set, 5, not to 2.
#[test]
fn a_repeated_time_out_keeps_the_threshold() {
    let record = lossy(20, &numbers(0..11), &[]);
    assert_eq!(record.timeouts, 2);
    // 10 ms and 20 ms, then 20 segments in windows of 1, 2, 4 and 6 and the rest. With a threshold of 2 it would be a
    // round trip of 41 µs more, which is what ns-3 takes.
    let us = record.fct_ps() as f64 / 1e6;
    assert!((us - 30_236.1).abs() < 5.0, "{us} µs");
}

/// Four flows that fill one queue are in step with it, so that their packets arrive together: none of them always gets
/// the free place, and each is as likely to lose.
#[test]
fn flows_that_fill_a_queue_lose_alike() {
    let switching = Switching { queue_packets: 100, latency_ns: 1_000, ..PLAIN };
    let tcp = TcpConfig { ecn: false, ..TcpConfig::default() };
    let (mut resent, mut waited) = ([0; 4], 0);
    for draw in 0..8 {
        let start = |src: u32| u64::from((7 * src + 3 * draw) % 20) * US;
        let mut flows: Vec<_> = (0..4).map(|src| flow(start(src), src, 4, 1_000_000)).collect();
        flows.sort_by_key(|flow| flow.start_ps);
        for record in run(&single_switch(5), switching, tcp, flows).0 {
            resent[record.spec.src as usize] += record.resent;
            waited += u32::from(record.timeouts > 0);
        }
    }
    let sum: u64 = resent.iter().sum();
    assert!(
        resent.iter().all(|&each| 100 * each > 15 * sum && 100 * each < 35 * sum),
        "{resent:?}"
    );
    assert!(waited <= 16, "{waited} of 32 flows waited for a time-out");
}
