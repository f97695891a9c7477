//! The reaction of a `switchml` switch to every packet in every state of a slot, as a table.

use std::fmt::Write;

use netsum_proto::switchml::*;
use netsum_proto::values::{Rows, Values};
use netsum_proto::{PortId, Time};
use netsum_wire::switchml::{Header, Kind};
use netsum_wire::*;

fn contribution(worker: u8, round: u32) -> Header {
    Header {
        tree: TreeId(0),
        parties: Parties::All,
        kind: Kind::Contribution,
        resent: false,
        arithmetic: Arithmetic::Wrapping,
        worker,
        job: JobId(1),
        round,
        chunk: 7,
        epoch: Epoch(1),
        slot: 0,
        n_elems: 1,
        next_exponent: worker.into(),
    }
}

/// Description of a packet's effect.
fn act(switch: &mut Switch<Rows>, header: &Header) -> String {
    let outcome = switch.handle(
        Time(0),
        PortId(header.worker.into()),
        false,
        header,
        &[1 << header.worker, 0, 0, 0],
    );
    let mut text: Vec<String> =
        outcome.err().map(|drop| format!("drop: {drop}")).into_iter().collect();
    while let Some(Transmit { to, header, payload }) = switch.poll_transmit() {
        let sum = payload.map_or(0, |row| switch.values().get(row)[0]);
        let what = format!("{:?} {sum} exponent {}", header.kind, header.next_exponent);
        text.push(format!("{} to {}", what.to_lowercase(), to.0));
    }
    switch.values_mut().flushed();
    if text.is_empty() { "-".into() } else { text.join(", ") }
}

#[test]
fn a_switch_implements_the_table() {
    let all = |round| (0..3).map(move |w| contribution(w, round));
    let states: Vec<(&str, Vec<Header>)> = vec![
        ("nothing", vec![]),
        ("round 0: worker 0", vec![contribution(0, 0)]),
        ("round 0: workers 0 and 1", all(0).take(2).collect()),
        ("round 0: complete", all(0).collect()),
        ("round 0: complete, round 1: worker 0", all(0).chain(all(1).take(1)).collect()),
        ("rounds 0 and 1: complete", all(0).chain(all(1)).collect()),
        (
            "round 1: complete, round 2: worker 0",
            all(0).chain(all(1)).chain(all(2).take(1)).collect(),
        ),
    ];
    let resent = |header| Header { resent: true, ..header };
    let mut events: Vec<(String, Header)> = Vec::new();
    for round in 0..4 {
        events.push((format!("worker 0, round {round}"), contribution(0, round)));
        events.push((format!("worker 0, round {round}, again"), resent(contribution(0, round))));
        events.push((format!("worker 2, round {round}"), contribution(2, round)));
        let other = Header { chunk: 8, ..contribution(2, round) };
        events.push((format!("worker 2, round {round}, in disagreement"), other));
    }
    let mut table = String::new();
    for (state, history) in states {
        writeln!(table, "{state}").unwrap();
        for (event, header) in &events {
            let mut switch = Switch::new(2, 4, Rows::new(3, 4));
            let workers = (0..3).map(PortId).collect();
            let (job, epoch) = (JobId(1), Epoch(1));
            let lease = Lease { tree: TreeId(0), job, epoch, workers, slots: 1, fragment_bytes: 4 };
            switch.install(Time(0), lease).unwrap();
            for past in &history {
                act(&mut switch, past);
            }
            writeln!(table, "  {event:<35} {}", act(&mut switch, header)).unwrap();
        }
    }
    insta::assert_snapshot!("switch", table);
}
