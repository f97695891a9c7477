//! Every event in every state of a slot: the table of docs/protocol-atp.md, row by row.

use netsum_proto::atp::{Claim, Lease};
use netsum_wire::atp::{Flags, Header, Kind, Level};
use netsum_wire::*;

use super::record::Record;
use super::scenarios::{self, OTHER, OWN, PARENT, STRAGGLER_NS, contribution, down, lease};

/// Events that lead to the state: packets of children, or the timer.
enum Past {
    From(JobId, u8),
    Late,
}

fn states() -> Vec<Vec<Past>> {
    let all = |job| (0..3).map(|child| Past::From(job, child)).collect();
    vec![
        vec![],
        vec![Past::From(OWN, 0)],
        vec![Past::From(OWN, 0), Past::From(OWN, 1)],
        all(OWN),
        vec![Past::From(OWN, 0), Past::Late],
        vec![Past::From(OTHER, 0)],
        all(OTHER),
        vec![Past::From(OTHER, 0), Past::Late],
    ]
}

enum Event {
    Packet(u32, Header),
    Timer,
    Revoke,
}

fn events(level: Level) -> Vec<Event> {
    let from = |child: u8, change: &dyn Fn(Header) -> Header| {
        Event::Packet(10 + u32::from(child), change(contribution(level, OWN, child)))
    };
    let resend = Flags { resend: true, ..Flags::default() };
    let part = |h: Header| match level {
        Level::Rack => h,
        Level::Server => Header { workers: 0b01, ..h },
    };
    let from_parent = |kind| Event::Packet(PARENT, down(kind, OWN));
    let addressed = Header { racks: 2, workers: 4, ..down(Kind::Waiting, OWN) };
    vec![
        from(0, &|h| h),
        from(2, &|h| h),
        from(2, &part),
        from(2, &|h| Header { chunk: 8, ..h }),
        from(2, &|h| Header { n_elems: 2, ..h }),
        from(2, &|h| Header { arithmetic: Arithmetic::Float, ..h }),
        from(2, &|h| Header { arithmetic: Arithmetic::Max, ..h }),
        from(2, &|h| Header { parties: Parties::ToOne(1), ..h }),
        from(2, &|h| Header { parties: Parties::FromOne(2), ..h }),
        from(2, &|h| Header { kind: Kind::Ready, parties: Parties::FromOne(0), others: 6, ..h }),
        from(2, &|h| Header { kind: Kind::Ready, parties: Parties::Nobody, n_elems: 0, ..h }),
        from(0, &|h| Header { flags: resend, ..h }),
        from(2, &|h| Header { flags: resend, ..h }),
        from(2, &|h| Header { flags: resend, ..part(h) }),
        from(0, &|h| Header { flags: Flags { ecn: true, overflow: true, ..h.flags }, ..h }),
        from_parent(Kind::Result),
        from_parent(Kind::Done),
        from_parent(Kind::FloatRequest),
        Event::Packet(PARENT, addressed),
        Event::Packet(
            PARENT,
            Header { kind: Kind::Missing, slot: SlotIndex(0), others: 5, ..addressed },
        ),
        from_parent(Kind::Mismatch),
        Event::Packet(10, down(Kind::Result, OWN)),
        Event::Packet(PARENT, contribution(level, OWN, 0)),
        Event::Timer,
        Event::Revoke,
    ]
}

/// Plays all cases; each has leases of its own epoch, so that it starts with empty slots.
pub fn play(record: &mut Record, level: Level) {
    let mut epoch = 0;
    for state in states() {
        for event in events(level) {
            epoch += 1;
            case(record, level, Epoch(epoch), &state, &event);
        }
    }
}

fn case(record: &mut Record, level: Level, epoch: Epoch, state: &[Past], event: &Event) {
    record.wait(10 * STRAGGLER_NS);
    for (job, priority) in [(OWN, 1), (OTHER, 0)] {
        let claim = Claim { priority, ..Claim::default() };
        record.install(&Lease { epoch, claim, ..lease(level, job) });
    }
    let send = |record: &mut Record, port: u32, header: &Header| {
        let header = Header { epoch, ..*header };
        let value = 1i32 << (port % 10) | 0x100;
        let payload = vec![value.to_le_bytes(); header.payload_len() / 4].concat();
        record.packet(port, false, &header, &payload);
    };
    for past in state {
        match *past {
            Past::From(job, child) => {
                let header = contribution(level, job, child);
                send(record, 10 + u32::from(child), &header);
            }
            Past::Late => {
                record.wait(2 * STRAGGLER_NS);
                record.timeout();
            }
        }
    }
    match event {
        Event::Packet(port, header) => send(record, *port, header),
        Event::Timer => {
            record.wait(2 * STRAGGLER_NS);
            record.timeout();
        }
        Event::Revoke => record.revoke(OWN, epoch),
    }
    // The reaction to the last member shows the state that the event has left.
    let last = contribution(level, OWN, 1);
    if !matches!(event, Event::Revoke) {
        send(record, 11, &last);
        send(record, 11, &Header { flags: scenarios::RESEND, ..last });
    }
}
