//! Closed forms that the simulator must meet to the picosecond.

mod common;

use common::*;
use netsum_sim::network::{Network, NetworkEvent};
use netsum_sim::packet::{Kind, Packet};
use netsum_sim::tcp::TcpConfig;

/// Arrival times of packets that are all sent at time 0.
fn train(bytes: &[u16]) -> Vec<u64> {
    let mut net = Network::new(&dumbbell(1), PLAIN).unwrap();
    for (seq, &bytes) in bytes.iter().enumerate() {
        let mut packet = Packet::new(Kind::Data, 0, seq as u32, bytes);
        packet = packet.to(1);
        net.send(net.uplink(0), packet);
    }
    let mut times = Vec::new();
    while let Some(event) = net.next(u64::MAX - 1) {
        let NetworkEvent::Packet(_, packet) = event else { panic!("no timer was set") };
        assert_eq!(packet.seq as usize, times.len(), "first in, first out");
        times.push(packet.at_ps);
        net.audit();
    }
    times
}

/// A1, A2: store and forward over three links of 10 Gbit/s and 10 µs.
#[test]
fn a_packet_and_a_train() {
    assert_eq!(train(&[1502]), [33_604_800]);
    assert_eq!(train(&[1502; 10]).last(), Some(&44_419_200));
    // A short packet behind a long one catches up and waits at every switch.
    assert_eq!(train(&[1502, 54]), [33_604_800, 33_604_800 + 43_200]);
}

/// A3: slow start with an acknowledgement per packet and an initial window of 10.
#[test]
fn slow_start() {
    for (bytes, fct_ps) in
        [(100_000, 206_848_000), (1_000_000, 969_345_600), (10_000_000, 8_437_876_800)]
    {
        let tcp = TcpConfig { window_max: 1e9, ..TcpConfig::default() };
        let (records, _) = run(&dumbbell(1), PLAIN, tcp, vec![flow(0, 0, 1, bytes)]);
        assert_eq!(records[0].fct_ps(), fct_ps, "{bytes} bytes");
        assert_eq!(records[0].resent, 0);
    }
}

/// A8: an incast keeps the link busy without a gap.
#[test]
fn incast() {
    let flows = (1..=16).map(|src| flow(0, src, 0, 20_000)).collect();
    let switching = netsum_sim::Switching { latency_ns: 1_000, ..PLAIN };
    let (records, _) = run(&single_switch(17), switching, TcpConfig::default(), flows);
    let last = records.iter().map(|r| r.end_ps).max().unwrap();
    let busy_ps = 16 * (13 * 1502 + 1230) * 800;
    assert_eq!(busy_ps, 265_676_800);
    let bound = 2 * 1_000_000 + 1502 * 800 + busy_ps;
    assert!(last >= bound && last <= bound + bound / 100, "{last} against {bound}");
}
