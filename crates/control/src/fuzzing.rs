//! Parsers of messages from the network, for fuzz targets (`fuzz/` at the root of the repository). Each function takes
//! any bytes, and panics if a parser or a decision breaks its promises.

use netsum_proto::handover::Plan as _;
use netsum_proto::{Lease, PortId};
use netsum_topo::{Addressing, Fabric, Rate, leaf_spine};
use netsum_wire::tag::{JobKey, Mac};
use prost::Message;

use crate::convert::Bounded;
use crate::decide::{Event, SessionId, Settings};
use crate::{ControllerPlan, Engine, JobPlan, MemoryStore, lease_from_message, pb};

/// A lease as a switch receives it, if it can be used, with its neighbours as numbers.
pub fn lease(bytes: &[u8]) -> Option<Lease> {
    let message = pb::Lease::decode(bytes).ok()?;
    let _ = message.secrets();
    let lease = lease_from_message(&message).ok()?;
    let all = lease.neighbours();
    let number = |neighbour| all.iter().position(|one| *one == neighbour).unwrap_or(0);
    Some(lease.map(|neighbour| PortId(number(neighbour) as u32)))
}

/// A plan as ranks receive it, from the controller and from each other: what is accepted is written and read again.
pub fn plan(bytes: &[u8]) {
    for size in [1, 2, 5] {
        let Ok(plan) = ControllerPlan::decode(bytes, size) else { continue };
        let mut again = Vec::new();
        plan.encode(&mut again);
        assert_eq!(ControllerPlan::decode(&again, size).as_ref(), Ok(&plan));
        (0..size).for_each(|rank| uses(&plan.0, rank));
    }
}

fn uses(plan: &JobPlan, rank: u32) {
    plan.attachments(rank).expect("validated");
    if plan.plan.protocol == netsum_topo::Protocol::Atp {
        plan.places(rank).expect("validated");
    }
}

/// Interprets bytes as messages to a controller of two racks and two spines: per message its kind, its stream, its
/// length, and its bytes. The state stays consistent enough to be shown, and what the controller sends can be encoded.
pub fn controller(bytes: &[u8]) {
    let mut engine = Engine::new(fabric(), Settings::default(), MemoryStore::new(7))
        .expect("an empty store can be read");
    let (mut script, mut now_ms) = (bytes, 0);
    while let Some((&[kind, stream, len], rest)) = script.split_first_chunk::<3>() {
        let (body, rest) = rest.split_at(usize::from(len).min(rest.len()));
        script = rest;
        now_ms += 1 + 100 * u64::from(kind >> 4);
        let session = SessionId(u64::from(stream & 7));
        let Some(event) = event(kind & 15, session, body) else { continue };
        let outcome = engine.handle(now_ms, event, 1e9);
        drop(outcome.answer);
    }
    let _ = engine.status(now_ms).encode_to_vec();
    engine.handle(now_ms + 1_000_000, Event::Tick, 1e9);
}

/// The event that the service makes of a message, if it lets the message pass.
fn event(kind: u8, session: SessionId, body: &[u8]) -> Option<Event> {
    Some(match kind {
        0 | 1 => Event::CreateJob {
            request: checked(body)?,
            key: JobKey::new(Mac::SipHash, [1; 16]),
            from: None,
        },
        2 => {
            let request: pb::StopJobRequest = checked(body)?;
            Event::StopJob { job: request.job, reason: request.reason }
        }
        3 | 4 => {
            let key = JobKey::new(Mac::SipHash, [2; 16]);
            Event::WorkerJoined { session, join: checked(body)?, key }
        }
        5 => Event::WorkerHeartbeat { session, statistics: checked(body)? },
        6 => Event::WorkerLeft { session },
        7 => {
            Event::WorkerClosed { session, hung_up: body.first().is_some_and(|byte| byte & 1 == 1) }
        }
        8 | 9 => Event::SwitchHello { session, hello: checked(body)? },
        10 => Event::SwitchHeartbeat { session, counters: checked(body)? },
        11 => Event::LeaseAck { session, ack: checked(body)? },
        12 => Event::SwitchClosed { session },
        13 => {
            let job = body.first().copied().unwrap_or_default().into();
            Event::RekeyJob { job, key: JobKey::new(Mac::SipHash, [3; 16]) }
        }
        _ => Event::Tick,
    })
}

fn checked<M: Message + Default + Bounded>(body: &[u8]) -> Option<M> {
    let message = M::decode(body).ok()?;
    message.check_sizes().is_ok().then_some(message)
}

fn fabric() -> Fabric {
    let rate = Rate(10_000_000_000);
    leaf_spine(2, 2, 2, rate, rate, Addressing::default()).expect("a small fabric")
}
