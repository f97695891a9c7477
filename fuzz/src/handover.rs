//! Hand-over messages from arbitrary peers.

use netsum_proto::Time;
use netsum_proto::handover::{
    Action, Frozen, Handover, Mode, PendingOperation, Plan, Progress, Settings, TreeProgress,
};
use netsum_wire::{Epoch, Rank};

/// A plan that consists of its epoch.
#[derive(Clone, Debug, PartialEq)]
struct Bare(u16);

impl Plan for Bare {
    fn epoch(&self) -> Epoch {
        Epoch(self.0)
    }

    fn has_trees(&self) -> bool {
        self.0 % 4 != 3
    }

    fn continues(&self, before: &Bare) -> bool {
        self.0 % 2 == before.0 % 2
    }

    fn patience_ns(&self) -> u64 {
        1000
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.0.to_be_bytes());
    }

    fn decode(bytes: &[u8], _: u32) -> Result<Bare, String> {
        let bytes = <[u8; 2]>::try_from(bytes).map_err(|_| "no plan".to_owned())?;
        Ok(Bare(u16::from_be_bytes(bytes)))
    }
}

/// Interprets bytes as messages to one rank of three: first the mode of the group, then per message its sender, its
/// length, and its bytes without the version. The driver answers all requests of the machine. Returns the number of
/// completed hand-overs.
pub fn handover(bytes: &[u8]) -> u64 {
    let Some((&head, mut script)) = bytes.split_first() else { return 0 };
    let mode = if head & 1 == 0 { Mode::Leaderless } else { Mode::Led };
    let rank = Rank(u32::from(head >> 1) % SIZE);
    let settings = Settings { rank, size: SIZE, mode, timeout_ns: 1_000_000 };
    let mut machine: Handover<Bare> = Handover::new(settings);
    let mut ended = 0;
    let mut now = 0;
    while let Some((&[from, len], rest)) = script.split_first_chunk::<2>() {
        let (body, rest) = rest.split_at(usize::from(len).min(rest.len()));
        script = rest;
        now += 100;
        match from {
            0x80.. => local(&mut machine, from, now),
            from => {
                let message = [&[1], body].concat();
                let taken = machine.handle_message(Time(now), Rank(from.into()), &message);
                assert!(taken.is_ok() || taken.is_err_and(|e| e.from == Rank(from.into())));
            }
        }
        ended += drain(&mut machine, now);
        machine.handle_timeout(Time(now));
        ended += drain(&mut machine, now);
    }
    ended
}

/// An input from this rank's own driver.
fn local(machine: &mut Handover<Bare>, what: u8, now: u64) {
    let now = Time(now);
    let number = u64::from(what & 15);
    match what >> 4 & 7 {
        0 => machine.handle_plan(now, Bare(number as u16)),
        1 => machine.handle_silence(now, number as u8, 10, 0),
        2 => machine.handle_results(number as u8, 1),
        3 => machine.request_plan(now, "it is broken", vec![vec![what]]),
        4 => machine.handle_over(now, number),
        _ => {
            let deadline = now.after(50_000);
            machine.handle_operation(PendingOperation { sequence: number, elements: 16, deadline });
        }
    }
}

fn drain(machine: &mut Handover<Bare>, now: u64) -> u64 {
    let mut ended = 0;
    loop {
        while machine.poll_transmit().is_some() {}
        let Some(action) = machine.poll_action() else { return ended };
        answer(machine, &action, Time(now));
        ended += u64::from(matches!(action, Action::Resume(_)));
    }
}

fn answer(machine: &mut Handover<Bare>, action: &Action<Bare>, now: Time) {
    match action {
        Action::Freeze if machine.plan().is_some() => {
            let tree = TreeProgress { base: 5, above: vec![false, true], untaken: vec![6] };
            let progress = Progress { trees: vec![tree; 2] };
            machine.handle_frozen(now, Frozen::Fragments { progress, submitted: 20 });
        }
        Action::Freeze => {
            let finals = std::iter::once(2..9).collect();
            machine.handle_frozen(now, Frozen::Elements { finals, faults: Vec::new() });
        }
        Action::Fetch(fragments) => {
            machine.handle_fetched(now, vec![Some(vec![1]); fragments.len()]);
        }
        Action::Plan { .. } => machine.handle_planned(now, Some(Bare(1)), "again".to_owned()),
        Action::Exchange { .. } => machine.handle_exchanged(now),
        Action::Resume(resume) => machine.handle_opened(resume.generation),
        _ => {}
    }
}

const SIZE: u32 = 3;
