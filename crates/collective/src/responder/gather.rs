//! Questions of one rank to the others, over the mesh.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, unbounded};
use parking_lot::Mutex;
use serde::de::IgnoredAny;

use crate::core::Core;
use crate::messages::MessageKind;

/// Answers by rank, each JSON; a rank that is not in it has not answered in time.
#[derive(Debug, Default)]
pub(crate) struct Asked(BTreeMap<u32, String>);

impl Asked {
    /// Those of these answers that are JSON.
    pub(crate) fn of(answers: impl Iterator<Item = (u32, String)>) -> Asked {
        Asked(answers.filter(|(_, text)| is_json(text)).collect())
    }

    /// A JSON object.
    pub(crate) fn to_json(&self) -> String {
        let entry = |(rank, answer): (&u32, &String)| format!("\"{rank}\":{answer}");
        let entries: Vec<String> = self.0.iter().map(entry).collect();
        format!("{{{}}}", entries.join(","))
    }
}

/// A rank's answer.
type Answer = (u32, Vec<u8>);

/// A question that waits for answers.
struct Question {
    number: u64,
    group: Arc<Core>,
    answers: Sender<Answer>,
}

static WAITING: Mutex<Vec<Question>> = Mutex::new(Vec::new());
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Asks these ranks of a group, this one included or not, and waits for the answers, at most `patience`.
pub(crate) fn ask(core: &Arc<Core>, ranks: &[u32], patience: Duration) -> Asked {
    let until = Instant::now() + patience;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let (sender, answers) = unbounded();
    WAITING.lock().push(Question { number, group: core.clone(), answers: sender.clone() });
    for &rank in ranks {
        if rank == core.rank {
            let sender = sender.clone();
            super::answer_by(move |answer| drop(sender.send((rank, answer.into_bytes()))));
        } else if rank < core.size {
            core.send(rank, MessageKind::Question, number, Vec::new());
        }
    }
    let mut found = Asked::default();
    while found.0.len() < ranks.len()
        && let Ok((rank, bytes)) = answers.recv_deadline(until)
    {
        if let Ok(text) = String::from_utf8(bytes)
            && is_json(&text)
            && ranks.contains(&rank)
        {
            found.0.insert(rank, text);
        }
    }
    WAITING.lock().retain(|question| question.number != number);
    found
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// Takes a rank's answer from the mesh; one that nobody waits for is dropped.
pub(crate) fn on_answer(group: &str, from: u32, number: u64, bytes: Vec<u8>) {
    if bytes.len() > ANSWER_MAX {
        return;
    }
    let waiting = WAITING.lock();
    let is_asked = |question: &&Question| question.number == number && question.group.name == group;
    if let Some(question) = waiting.iter().find(is_asked) {
        // The asker may have stopped waiting just now.
        let _ = question.answers.send((from, bytes));
    }
}

/// Maximum bytes of an answer.
pub(crate) const ANSWER_MAX: usize = 256 << 10;
