//! Behaviour of switches: paths, PAUSE, loss; and repeatability of runs.

mod common;

use std::fmt::Write;

use common::*;
use netsum_sim::network::{Network, NetworkEvent};
use netsum_sim::packet::{Kind, Packet};
use netsum_sim::tcp::TcpConfig;
use netsum_sim::workload::{FlowSizes, permutation, poisson};
use netsum_sim::{HostQueue, PathChoice, Pause, SharedBuffer, Simulation, Switching};

const FABRIC: Switching = Switching {
    mark_packets: 85,
    queue_packets: 250,
    shared: None,
    pause: None,
    host_queue: HostQueue::Fifo,
    host_mark_ps: u64::MAX,
    paths: PathChoice::Flow,
    latency_ns: 1_000,
};

/// Links that a packet crosses between two hosts, with the configured choice of paths.
fn crossed(net: &mut Network, src: u32, dst: u32, entropy: u16) -> u64 {
    let before = net.hops();
    let mut packet = Packet::new(Kind::Ack, 0, 0, 64);
    packet = packet.to(dst);
    packet.entropy = entropy;
    net.send(net.uplink(src), packet);
    let Some(NetworkEvent::Packet(link, _)) = net.next(u64::MAX - 1) else { panic!("lost") };
    assert_eq!(net.far_end(link), dst);
    net.hops() - before
}

#[test]
fn every_path_is_a_shortest_path() {
    for paths in [PathChoice::Flow, PathChoice::Destination, PathChoice::Packet] {
        let mut net = Network::new(&fat_tree(4), Switching { paths, ..FABRIC }).unwrap();
        for src in 0..16 {
            for dst in (0..16).filter(|&d| d != src) {
                let links = match (src / 2 == dst / 2, src / 4 == dst / 4) {
                    (true, _) => 2,
                    (_, true) => 4,
                    _ => 6,
                };
                for entropy in 0..8 {
                    assert_eq!(crossed(&mut net, src, dst, entropy), links);
                }
            }
        }
        net.audit();
    }
}

#[test]
fn flows_spread_over_all_paths() {
    let mut net = Network::new(&fat_tree(8), FABRIC).unwrap();
    for entropy in 0..4000u16 {
        crossed(&mut net, 0, 127, entropy.wrapping_mul(37));
    }
    let graph = fat_tree(8);
    let cores = (0..net.link_count())
        .filter(|&l| graph.name(netsum_topo::NodeId(net.far_end(l))).starts_with("core"));
    let carried: Vec<u64> = cores.map(|l| net.carried_bytes(l) / 64).filter(|&n| n > 0).collect();
    assert_eq!(carried.len(), 16, "16 cores, one way up to each from this host's pod");
    assert!(carried.iter().all(|&n| (180..=320).contains(&n)), "{carried:?}");
}

/// Timers (PAUSE is one) by key, then arrivals by link, in whatever order they were set.
#[test]
fn simultaneous_events_have_one_order() {
    let mut net = Network::new(&single_switch(8), FABRIC).unwrap();
    let senders = [3u32, 0, 2, 1];
    for src in senders {
        let mut packet = Packet::new(Kind::Ack, 0, 0, 64);
        packet = packet.to(4 + src);
        net.send(net.uplink(src), packet);
    }
    let arrival_ps = 2 * (net.serialisation_ps(0, 64) + 1_000_000);
    for key in [9, 5, 7] {
        net.set_timer(arrival_ps, key);
    }
    let mut order = Vec::new();
    while let Some(event) = net.next(u64::MAX - 1) {
        assert_eq!(net.now_ps(), arrival_ps);
        order.push(match event {
            NetworkEvent::Timer(key) => ("timer", key),
            NetworkEvent::Packet(link, _) => ("packet", u64::from(link)),
        });
    }
    let links = (4..8).map(|host| ("packet", u64::from(net.uplink(host) ^ 1)));
    let expected: Vec<_> = [5, 7, 9].map(|key| ("timer", key)).into_iter().chain(links).collect();
    assert_eq!(order, expected);
}

/// Two packets arrive within a bucket of the calendar, so that both were looked at ahead of time. After the first one the
/// routes change.
#[test]
fn what_was_looked_up_ahead_of_a_change_of_routes_is_forgotten() {
    for entropy in 0..8 {
        let mut net = Network::new(&fat_tree(4), FABRIC).unwrap();
        net.always_look_ahead();
        let packet = |dst, bytes| {
            let mut packet = Packet::new(Kind::Ack, 0, 0, bytes);
            packet.entropy = entropy;
            packet.to(dst)
        };
        // Only what waits beyond the current bucket is looked at.
        net.send(net.uplink(3) ^ 1, packet(3, 64));
        net.send(net.uplink(1) ^ 1, packet(1, 1_499));
        net.send(net.uplink(0), packet(2, 1_500));
        for host in [3, 1] {
            let event = net.next(u64::MAX - 1);
            let Some(NetworkEvent::Packet(link, _)) = event else { panic!("{event:?}") };
            assert_eq!(net.far_end(link), host);
        }
        let rack = net.far_end(net.uplink(0));
        let way = (0..net.link_count()).find(|&link| {
            let graph = net.topology();
            let is_up = graph.name(netsum_topo::NodeId(net.far_end(link))).starts_with("agg");
            net.far_end(link ^ 1) == rack && is_up
        });
        net.set_alive(way.unwrap() / 2, false);
        net.reroute();
        let Some(NetworkEvent::Packet(link, _)) = net.next(u64::MAX - 1) else { panic!("lost") };
        assert_eq!(net.far_end(link), 2);
        net.audit();
    }
}

/// Eight hosts send to one, with windows far beyond the queue: PAUSE stops the senders, and nothing is lost.
#[test]
fn pause_prevents_loss_in_an_incast() {
    let pause = Some(Pause { high_packets: 15, low_packets: 12 });
    let tcp = TcpConfig { window_initial: 500.0, ecn: false, ..TcpConfig::default() };
    let flows = || (1..=8).map(|src| flow(0, src, 0, 2_000_000)).collect();
    let lossy = Switching { queue_packets: 100, mark_packets: u32::MAX, ..FABRIC };
    let (records, _) = run(&single_switch(9), lossy, tcp, flows());
    assert!(records.iter().map(|r| r.resent).sum::<u64>() > 100, "without PAUSE there is loss");
    let (records, simulation) = run(&single_switch(9), Switching { pause, ..lossy }, tcp, flows());
    assert!(records.iter().all(|r| r.resent == 0 && r.timeouts == 0));
    let net = simulation.network();
    let uplinks: Vec<_> = (1..=8).map(|host| net.counters(net.uplink(host))).collect();
    assert!(uplinks.iter().all(|c| c.pauses > 10 && c.paused_ps > 0));
    // Eight inputs of at most 15 packets, and the packets in flight when each was paused.
    let most = net.counters(link(net, "rack0", "h0")).waiting_max;
    assert!(most <= 8 * (15 + 4), "{most} packets waited");
    // The bottleneck is never idle: payload and headers back to back.
    let wire_ps = 8 * (1381 * 1502 + 1369 - 1448 + 1502 - 1448 + 54) * 800u64;
    let last = records.iter().map(|r| r.end_ps).max().unwrap();
    assert!(last < wire_ps + wire_ps / 100, "{last} against {wire_ps}");
}

/// Five switches in a ring, each with a host that sends to the host two further: packets wait for the next switch all
/// the way round. In the other direction, too, nothing waits for ever without PAUSE, or where routes have no circle.
#[test]
fn a_deadlock_of_pause_is_named() {
    let mut ring = "name = \"ring\"\ncontroller = \"10.0.0.9:1\"\n".to_owned();
    for i in 0..5 {
        let next = (i + 1) % 5;
        write!(
            ring,
            "[[switch]]\nname = \"s{i}\"\naddress = \"10.0.1.{i}:1\"\nmemory = \"1MiB\"\n\
             [[host]]\nname = \"h{i}\"\naddress = \"10.0.0.{i}\"\n\
             [[link]]\nends = [\"h{i}\", \"s{i}\"]\nrate = \"10Gbit/s\"\n\
             [[link]]\nends = [\"s{i}\", \"s{next}\"]\nrate = \"10Gbit/s\"\n"
        )
        .unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("ring.toml"), ring).unwrap();
    let notes = |fabric: &str, pause: &str, away: u32| {
        let mut text = format!(
            "duration = \"1ms\"\ndrain = \"200ms\"\n[fabric]\n{fabric}\n\
             [switch]\nmark_packets = 1000\n{pause}\n[tcp]\ninitial_window = 1000\n"
        );
        for src in 0..5 {
            let dst = (src + away) % 5;
            write!(text, "[[flows]]\nkind = \"one\"\nstart = \"0us\"\nsrc = {src}\ndst = {dst}\n")
                .unwrap();
            text += "bytes = 3000000\n";
        }
        let mut found = [1, 2].map(|threads| {
            let files = files(&text, folder.path(), |config| config.threads = threads);
            let summary: serde_json::Value =
                serde_json::from_slice(&files["summary.json"]).unwrap();
            let of = |key: &str| summary[key].clone();
            (of("notes").to_string(), of("unfinished_flows").as_u64().unwrap())
        });
        assert_eq!(found[0], found[1]);
        std::mem::take(&mut found[0])
    };
    let (ring, pause) = (
        "kind = \"file\"\npath = \"ring.toml\"",
        "pause = { high_packets = 15, low_packets = 12 }",
    );
    let (said, unfinished) = notes(ring, pause, 2);
    let named = (0..5).all(|i| said.contains(&format!("s{i}>s{}", (i + 1) % 5)));
    assert!(said.contains("PAUSE deadlock") && named && unfinished == 5, "{said}");
    for (fabric, pause, away) in
        [(ring, "", 2), (ring, pause, 1), ("kind = \"fat-tree\"\nk = 4", pause, 2)]
    {
        let (said, unfinished) = notes(fabric, pause, away);
        assert!(!said.contains("deadlock") && unfinished == 0, "{said}");
    }
}

/// Drop-tail loss everywhere, and time-outs: every byte arrives once.
#[test]
fn loss_is_repaired() {
    for (paths, seed) in [(PathChoice::Flow, 1), (PathChoice::Packet, 2), (PathChoice::Flow, 3)] {
        let switching = Switching { queue_packets: 8, mark_packets: u32::MAX, paths, ..FABRIC };
        let tcp = TcpConfig { ecn: false, reordering: 16, ..TcpConfig::default() };
        let (records, simulation) =
            run(&fat_tree(4), switching, tcp, permutation(16, 3_000_000, seed));
        let drops = simulation.network().balance().dropped.0;
        assert!(drops > 100, "{drops} drops are no test");
        assert!(records.iter().map(|r| r.resent).sum::<u64>() > 100);
    }
}

#[test]
fn runs_repeat_with_the_same_seed_only() {
    let run = |seed, checked| {
        let sizes = FlowSizes::named("web-search").unwrap();
        let flows = poisson(16, TEN_GBIT.0, 0.6, sizes, seed).take_while(|f| f.start_ps < 20 * MS);
        let mut simulation =
            Simulation::new(&fat_tree(4), FABRIC, TcpConfig::default(), seed).unwrap();
        if checked {
            simulation.check();
        }
        simulation.set_flows(flows);
        assert!(simulation.run(20_000 * MS));
        (simulation.take_finished(), simulation.network().hops())
    };
    let first = run(1, true);
    assert!(first.0.len() > 20);
    assert_eq!(first, run(1, false));
    assert_ne!(first, run(2, true));
}

/// A run in slices equals a run in one piece.
#[test]
fn a_run_may_be_interrupted() {
    let flows = || permutation(16, 500_000, 4).into_iter();
    let mut whole = Simulation::new(&fat_tree(4), FABRIC, TcpConfig::default(), 1).unwrap();
    whole.set_flows(flows());
    whole.run(100 * MS);
    let mut sliced = Simulation::new(&fat_tree(4), FABRIC, TcpConfig::default(), 1).unwrap();
    sliced.set_flows(flows());
    (1..=10_000).for_each(|step| {
        sliced.run(step * 10 * US + step % 7);
    });
    assert_eq!(whole.take_finished(), sliced.take_finished());
}

/// Each of n queues that stay full holds alpha / (1 + n · alpha) of the memory; a single one holds half at alpha 1.
#[test]
fn queues_share_a_memory_by_dynamic_thresholds() {
    const BYTES: u64 = 1_000;
    for (alpha, outputs) in [(1.0, 1u64), (1.0, 3), (4.0, 2), (0.25, 2), (0.25, 1)] {
        let memory = 400 * BYTES;
        let shared = Some(SharedBuffer { bytes: memory, alpha });
        let switching =
            Switching { shared, queue_packets: u32::MAX, mark_packets: u32::MAX, ..FABRIC };
        // Four hosts send to each output at once: more than four times its capacity.
        let mut net = Network::new(&single_switch(16), switching).unwrap();
        for turn in 0..1_000 {
            for output in 0..outputs {
                for sender in 0..4 {
                    let src = 4 + 4 * output + sender;
                    let mut packet = Packet::new(Kind::Data, 0, turn, BYTES as u16);
                    packet = packet.to(output as u32);
                    net.send(net.uplink(src as u32), packet);
                }
            }
        }
        let mut most = vec![0; outputs as usize];
        let to_output: Vec<u32> = (0..outputs as u32).map(|host| net.uplink(host) ^ 1).collect();
        // Until the last packet has left its sender.
        while net.now_ps() < 700 * US {
            net.next(net.now_ps() + US / 4);
            let held: Vec<u64> = to_output
                .iter()
                .map(|&link| net.backlog_ps(link) / net.serialisation_ps(link, 1))
                .collect();
            assert!(held.iter().sum::<u64>() <= memory);
            most.iter_mut().zip(&held).for_each(|(most, &held)| *most = held.max(*most));
        }
        net.audit();
        let expected = alpha / (1.0 + outputs as f64 * alpha) * memory as f64;
        for held in most {
            let packets = (held as f64 - expected) / BYTES as f64;
            assert!(packets.abs() <= 4.0, "alpha {alpha}, {outputs} outputs: {held} of {expected}");
        }
    }
}
