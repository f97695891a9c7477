//! The reaction of an `atp` switch to every packet in every state of a slot, as a table. A change of the protocol
//! changes the table: `cargo insta review`, or INSTA_UPDATE=always.

use std::fmt::Write;

use netsum_proto::atp::*;
use netsum_proto::values::{Rows, Values};
use netsum_proto::{PortId, Time};
use netsum_wire::atp::{Flags, Header, Kind, Level};
use netsum_wire::*;

const PARENT: u32 = 99;
const STRAGGLER_NS: u64 = 1_000_000;
/// The job of the fragment in the table, and another one that competes for the slot.
const OWN: JobId = JobId(1);
const OTHER: JobId = JobId(2);

fn members(level: Level) -> Members {
    let port = |i: u32| PortId(10 + i);
    match level {
        Level::Rack => Members::Rack { workers: (0..3).map(port).collect(), rack: 1, racks: 2 },
        Level::Server => {
            Members::Server { racks: (0..3).map(|i| Rack { port: port(i), workers: 2 }).collect() }
        }
    }
}

fn switch(level: Level, policy: Policy) -> Switch<Rows> {
    let config = SwitchConfig { slots: 1, row_bytes: 8, policy, straggler_ns: STRAGGLER_NS };
    let mut switch = Switch::new(config, Rows::new(64, 8));
    for (job, priority) in [(OWN, 1), (OTHER, 0)] {
        let lease = Lease {
            job,
            epoch: Epoch(1),
            tree: TreeId(0),
            members: members(level),
            parent: PortId(PARENT),
            window: 4,
            fragment_bytes: 8,
            claim: Claim { priority, ..Claim::default() },
        };
        switch.install(Time(0), lease).unwrap();
    }
    switch
}

/// Child `child`'s contribution: a worker's at a rack switch, a whole rack's at the server's.
fn contribution(level: Level, job: JobId, child: u8) -> Header {
    let (workers, racks, fan_ins) = match level {
        Level::Rack => (1 << child, 1 << 1, (3, 2)),
        Level::Server => (0b11, 1 << child, (2, 3)),
    };
    Header {
        kind: Kind::Contribution,
        level,
        flags: Flags::default(),
        arithmetic: Arithmetic::Wrapping,
        tree: TreeId(0),
        job,
        sequence: Sequence(0),
        chunk: 7,
        epoch: Epoch(1),
        n_elems: 1,
        rack_fan_in: fan_ins.0,
        server_fan_in: fan_ins.1,
        slot: SlotIndex(5),
        others: 0,
        workers,
        racks,
        next_slot: SlotIndex(0),
        parties: Parties::All,
    }
}

fn down(kind: Kind, job: JobId) -> Header {
    let n_elems = if kind.has_payload() { 1 } else { 0 };
    Header { kind, n_elems, workers: 0, racks: 0, ..contribution(Level::Server, job, 0) }
}

type Act = Box<dyn Fn(&mut Switch<Rows>, Level) -> Result<(), netsum_proto::DropReason>>;

fn send(from: u32, header: impl Fn(Level) -> Header + 'static) -> Act {
    Box::new(move |switch, level| {
        let header = header(level);
        let payload = [1u8, 0, 0, 0];
        let payload = if header.kind.has_payload() { &payload[..] } else { &[] };
        switch.handle(Time(10), PortId(from), false, &header, payload)
    })
}

fn resent(level: Level, child: u8) -> Header {
    let flags = Flags { resend: true, ..Flags::default() };
    Header { flags, ..contribution(level, OWN, child) }
}

fn states() -> Vec<(&'static str, Vec<Act>)> {
    let from = |job, child: u8| send(10 + u32::from(child), move |l| contribution(l, job, child));
    let late = || -> Act {
        Box::new(|switch, _| {
            switch.handle_timeout(Time(2 * STRAGGLER_NS));
            Ok(())
        })
    };
    vec![
        ("empty", vec![]),
        ("own, child 0 in", vec![from(OWN, 0)]),
        ("own, children 0 and 1 in", vec![from(OWN, 0), from(OWN, 1)]),
        ("own, complete", vec![from(OWN, 0), from(OWN, 1), from(OWN, 2)]),
        ("vacated by own", vec![from(OWN, 0), late()]),
        ("other, child 0 in", vec![from(OTHER, 0)]),
        ("other, complete", vec![from(OTHER, 0), from(OTHER, 1), from(OTHER, 2)]),
        ("vacated by other", vec![from(OTHER, 0), late()]),
    ]
}

fn events() -> Vec<(&'static str, Act)> {
    let timer: Act = Box::new(|switch, _| {
        switch.handle_timeout(Time(4 * STRAGGLER_NS));
        Ok(())
    });
    let expire: Act = Box::new(|switch, _| {
        switch.revoke(OWN, Epoch(1));
        Ok(())
    });
    vec![
        ("contribution of child 0", send(10, |l| contribution(l, OWN, 0))),
        ("contribution of child 2", send(12, |l| contribution(l, OWN, 2))),
        ("part of child 2's rack", {
            let part = |l| match l {
                Level::Rack => contribution(l, OWN, 2),
                Level::Server => Header { workers: 0b01, ..contribution(l, OWN, 2) },
            };
            send(12, part)
        }),
        ("child 2, in disagreement", {
            send(12, |l| Header { chunk: 8, ..contribution(l, OWN, 2) })
        }),
        ("child 2, in float", {
            send(12, |l| Header { arithmetic: Arithmetic::Float, ..contribution(l, OWN, 2) })
        }),
        ("child 2, for another taker", {
            send(12, |l| Header { parties: Parties::ToOne(1), ..contribution(l, OWN, 2) })
        }),
        ("child 2, alone", {
            send(12, |l| Header { parties: Parties::FromOne(2), ..contribution(l, OWN, 2) })
        }),
        ("child 2, without elements", {
            let parties = Parties::FromOne(0);
            send(12, move |l| Header { kind: Kind::Ready, parties, ..contribution(l, OWN, 2) })
        }),
        ("child 0 again, resend", send(10, |l| resent(l, 0))),
        ("child 2, resend", send(12, |l| resent(l, 2))),
        ("result", send(PARENT, |_| down(Kind::Result, OWN))),
        ("done", send(PARENT, |_| down(Kind::Done, OWN))),
        ("float request", send(PARENT, |_| down(Kind::FloatRequest, OWN))),
        ("waiting for rack 1, worker 2", {
            send(PARENT, |_| Header { racks: 2, workers: 4, ..down(Kind::Waiting, OWN) })
        }),
        ("missing of rack 1, worker 2", {
            let others = |h| Header { slot: SlotIndex(0), others: 1, ..h };
            send(PARENT, move |_| {
                others(Header { racks: 2, workers: 4, ..down(Kind::Missing, OWN) })
            })
        }),
        ("mismatch", send(PARENT, |_| down(Kind::Mismatch, OWN))),
        ("result from a child", send(10, |_| down(Kind::Result, OWN))),
        ("straggler timer", timer),
        ("lease revoked", expire),
    ]
}

/// Description of the packets sent.
fn sent(switch: &mut Switch<Rows>) -> String {
    let mut text = Vec::new();
    while let Some(Transmit { to, header, payload }) = switch.poll_transmit() {
        let value = payload.map(|row| switch.values().get(row)[0]);
        if to == PortId(PARENT) {
            let who = match header.racks.count_ones() {
                1 => format!("{:b} of rack {}", header.workers, header.racks.trailing_zeros()),
                _ => format!("racks {:b}", header.racks),
            };
            let flag = |set: bool, name: &str| if set { format!(" {name}") } else { String::new() };
            let flags =
                [flag(header.flags.resend, "resend"), flag(header.flags.collision, "collision")];
            let what = value.map_or(format!("{:?}", header.kind).to_lowercase(), |v| v.to_string());
            text.push(format!("up {what} ({who}){}", flags.concat()));
        } else {
            text.push(format!("{:?} to {}", header.kind, to.0 - 10).to_lowercase());
        }
    }
    switch.values_mut().flushed();
    text.join(", ")
}

fn name(state: SlotState) -> String {
    let whose = |job| if job == OWN { "own" } else { "other" };
    match state {
        SlotState::Empty => "empty".into(),
        SlotState::Vacated(job, ..) => format!("vacated by {}", whose(job)),
        SlotState::Filling(job, .., arrived) => format!("{} {arrived:b}", whose(job)),
        SlotState::Complete(job, ..) => format!("{} complete", whose(job)),
    }
}

fn table(level: Level, policy: Policy) -> String {
    let mut table = String::new();
    for (state, history) in states() {
        writeln!(table, "{state}").unwrap();
        for (event, act) in events() {
            let mut switch = switch(level, policy);
            history.iter().for_each(|past| past(&mut switch, level).unwrap());
            sent(&mut switch);
            let outcome = act(&mut switch, level);
            let did = match (outcome, sent(&mut switch)) {
                (Err(reason), text) if text.is_empty() => format!("drop: {reason}"),
                (Err(reason), text) => format!("drop: {reason}; {text}"),
                (Ok(()), text) if text.is_empty() => "-".into(),
                (Ok(()), text) => text,
            };
            let next = name(switch.slots().next().unwrap());
            writeln!(table, "  {event:<29} {did:<46} => {next}").unwrap();
            let held = u32::from(next.starts_with("own ") || next.starts_with("other "));
            assert_eq!((switch.held(), switch.values().used() as u32), (held, held));
        }
    }
    table
}

#[test]
fn a_rack_switch_implements_the_table() {
    insta::assert_snapshot!("rack_first_come", table(Level::Rack, Policy::FirstCome));
}

#[test]
fn a_servers_switch_implements_the_table() {
    insta::assert_snapshot!("server_first_come", table(Level::Server, Policy::FirstCome));
}

#[test]
fn a_stronger_job_takes_the_slot() {
    let preempt = Policy::Preempt { patience_ns: u64::MAX };
    insta::assert_snapshot!("rack_preempt", table(Level::Rack, preempt));
}
