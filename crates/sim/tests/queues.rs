//! A switch's output queue against queueing theory: waiting times of random arrivals at one link.

mod common;

use common::*;
use netsum_sim::Switching;
use netsum_sim::network::{Network, NetworkEvent};
use netsum_sim::packet::{Kind, Packet};
use netsum_sim::random::Random;

/// Waiting times, in seconds, at a link from a switch to a host, with random arrivals and sizes.
struct Waits {
    mean_s: f64,
    /// Share of packets that do not wait.
    none: f64,
    variance: f64,
    /// Mean and mean square of the service times, and load, of the drawn packets.
    service_s: [f64; 2],
    load: f64,
}

/// `draw`: picoseconds until the next packet, and its bytes.
fn waits(packets: u32, mut draw: impl FnMut(u32) -> (u64, u16)) -> Waits {
    let switching = Switching { latency_ns: 0, ..PLAIN };
    let mut net = Network::new(&single_switch(2), switching).unwrap();
    let link = net.uplink(0) ^ 1;
    let (mut due, mut drawn) = (0u64, 0u32);
    let mut came = Vec::with_capacity(packets as usize);
    let mut next = |net: &mut Network, drawn: &mut u32| {
        let (gap, bytes) = draw(*drawn);
        due += gap;
        *drawn += 1;
        net.set_timer(due, u64::from(bytes));
    };
    next(&mut net, &mut drawn);
    let (mut sum, mut squares, mut none) = (0.0, 0.0, 0u32);
    let mut service = [0.0, 0.0];
    let mut last = 0;
    while let Some(event) = net.next(u64::MAX - 1) {
        match event {
            NetworkEvent::Timer(bytes) => {
                net.send(link, Packet::new(Kind::Ack, 0, came.len() as u32, bytes as u16));
                came.push(net.now_ps());
                if drawn < packets {
                    next(&mut net, &mut drawn);
                }
            }
            NetworkEvent::Packet(_, packet) => {
                let wire = net.serialisation_ps(link, u64::from(packet.bytes));
                let wait = net.now_ps() - came[packet.seq as usize] - wire;
                let (wait_s, wire_s) = (wait as f64 * 1e-12, wire as f64 * 1e-12);
                sum += wait_s;
                squares += wait_s * wait_s;
                none += u32::from(wait == 0);
                service[0] += wire_s;
                service[1] += wire_s * wire_s;
                last = net.now_ps();
            }
        }
    }
    net.audit();
    let count = f64::from(packets);
    let mean_s = sum / count;
    Waits {
        mean_s,
        none: f64::from(none) / count,
        variance: squares / count - mean_s * mean_s,
        service_s: service.map(|sum| sum / count),
        load: service[0] / (last as f64 * 1e-12),
    }
}

/// Pollaczek and Khinchine: W = λ E[S²] / 2 (1 − ρ).
fn pollaczek_khinchine(waits: &Waits) -> f64 {
    let [mean, square] = waits.service_s;
    waits.load / mean * square / (2.0 * (1.0 - waits.load))
}

fn about(found: f64, expected: f64, tolerance: f64, what: &str) {
    let off = (found / expected - 1.0).abs();
    assert!(off <= tolerance, "{what}: {found:e} against {expected:e}, {:.2} %", off * 100.0);
}

const PACKETS: u32 = 10_000_000;

/// A4, M/D/1 at 80 % with 1,500 bytes at 10 Gbit/s: 1.2 µs on the wire, 2.4 µs in the queue.
#[test]
fn equal_packets_at_random() {
    let mut random = Random::new(1);
    let mean_ps = 1_200_000.0 / 0.8;
    let waits = waits(PACKETS, |_| (random.exponential(mean_ps).round() as u64, 1500));
    about(waits.mean_s, 2.4e-6, 0.01, "mean wait");
    about(waits.none, 0.2, 0.01, "no wait");
    let (load, wire) = (0.8f64, 1.2e-6f64);
    let once = load / (2.0 * (1.0 - load));
    let variance = wire * wire * (load / (3.0 * (1.0 - load)) + once * once);
    about(waits.variance, variance, 0.02, "variance of waits");
}

/// A5, M/M/1 and M/G/1: sizes that are exponential, and two sizes as of data and acknowledgements.
#[test]
fn packets_of_random_sizes() {
    let (mut random, mut sizes) = (Random::new(2), Random::new(3));
    // Sizes are whole bytes and fit a packet; the theoretical value uses the drawn sizes.
    let exponential = |sizes: &mut Random| sizes.exponential(1000.0).ceil().min(65_535.0) as u16;
    let mean_ps = 1000.5 * 800.0 / 0.7;
    let found =
        waits(PACKETS, |_| (random.exponential(mean_ps).round() as u64, exponential(&mut sizes)));
    about(found.mean_s, pollaczek_khinchine(&found), 0.01, "M/M/1");
    about(found.load, 0.7, 0.005, "load");
    let two = |sizes: &mut Random| if sizes.below(3) == 0 { 64 } else { 1502 };
    let mean_ps = (64.0 + 2.0 * 1502.0) / 3.0 * 800.0 / 0.7;
    let found = waits(PACKETS, |_| (random.exponential(mean_ps).round() as u64, two(&mut sizes)));
    about(found.mean_s, pollaczek_khinchine(&found), 0.01, "M/G/1");
}

/// D/D/1: a packet that arrives when the previous one has just left does not wait; one that arrives a picosecond
/// earlier does.
#[test]
fn a_clockwork() {
    assert_eq!(waits(100_000, |_| (1_200_000, 1500)).mean_s, 0.0);
    let late = waits(1_001, |_| (1_199_999, 1500));
    about(late.mean_s, 500e-12, 1e-9, "a picosecond more each");
}

/// N·D/D/1: sources of one period each, in random phase, against the recursion of Lindley on the same arrivals.
#[test]
fn many_clockworks() {
    const SOURCES: u64 = 40;
    const PERIOD_PS: u64 = 60_000_000;
    let mut random = Random::new(4);
    let mut phases: Vec<u64> = (0..SOURCES).map(|_| random.below(PERIOD_PS)).collect();
    phases.sort_unstable();
    let at = |number: u64| phases[(number % SOURCES) as usize] + number / SOURCES * PERIOD_PS;
    let gap = |n: u32| if n == 0 { at(0) } else { at(u64::from(n)) - at(u64::from(n) - 1) };
    let found = waits(40_000, |number| (gap(number), 1500));
    let (mut wait, mut sum) = (0u64, 0u64);
    for number in 1..40_000u32 {
        wait = (wait + 1_200_000).saturating_sub(gap(number));
        sum += wait;
    }
    assert!(sum > 0);
    about(found.mean_s, sum as f64 * 1e-12 / 40_000.0, 1e-9, "N·D/D/1");
}
