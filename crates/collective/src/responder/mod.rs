//! Answers "what are you doing?" for this process, while its program computes, waits or hangs.
//!
//! The answer ([`Evidence`]) consists of what the process knows anyway: the last operations of its groups, the system's
//! accounts of its threads, and the call stacks of its interpreter. Whoever may ask does so by one of three ways: a rank
//! over the mesh, the controller over the rank's session, and the user over a Unix socket in a folder of the user's own.
//! Threads of the responder take no interpreter lock, so a program that is stuck does not stop the answer. Nothing runs
//! between questions.

mod evidence;
mod gather;
mod local;
mod process;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use netsum_net::Process;
use parking_lot::Mutex;

pub use evidence::Evidence;
pub(crate) use gather::{Asked, ask, on_answer};
pub use local::{ask_process, socket_folder};

use crate::Recorded;
use crate::group::Connected;
use crate::messages::MessageKind;

/// Produces the call stacks of the program's interpreter as JSON, within the given time. It runs on any thread and must
/// not wait for longer.
pub type Stacks = Box<dyn Fn(Duration) -> Option<serde_json::Value> + Send + Sync>;

/// A group that is not netsum's, of which this process can say what it does: a communicator of another library.
pub trait OtherGroup: Send + Sync {
    /// Its last operations. Called on any thread; must not wait.
    fn recorded(&self) -> Recorded;
}

struct Responder {
    /// A forked process has none of its parent's threads.
    process: Process,
    groups: Vec<Weak<Connected>>,
    others: Vec<Weak<dyn OtherGroup>>,
}

static RESPONDER: Mutex<Option<Responder>> = Mutex::new(None);
static STACKS: Mutex<Option<Arc<Stacks>>> = Mutex::new(None);
/// Answers in progress.
static BUSY: AtomicUsize = AtomicUsize::new(0);

/// Sets the source of call stacks.
pub fn set_stacks(stacks: Stacks) {
    *STACKS.lock() = Some(Arc::new(stacks));
}

/// Includes a group in this process's answers; the first one opens the process's socket.
pub(crate) fn register(group: &Arc<Connected>) {
    let group = Arc::downgrade(group);
    add(|this| this.groups.push(group));
}

/// Includes a group of another library in this process's answers, until it is dropped.
pub fn include(group: &Arc<dyn OtherGroup>) {
    let group = Arc::downgrade(group);
    add(|this| this.others.push(group));
}

fn add(add: impl FnOnce(&mut Responder)) {
    let mut responder = RESPONDER.lock();
    let this = responder.take().filter(|responder| responder.process.is_this());
    let is_first = this.is_none();
    let new = || Responder { process: Process::this(), groups: Vec::new(), others: Vec::new() };
    let mut this = this.unwrap_or_else(new);
    this.groups.retain(|group| group.strong_count() > 0);
    this.others.retain(|group| group.strong_count() > 0);
    add(&mut this);
    *responder = Some(this);
    drop(responder);
    if is_first && let Err(error) = local::serve() {
        tracing::info!(%error, "this process cannot be asked over a socket; its peers and the controller can ask it");
    }
}

/// The groups of this process.
fn groups() -> Vec<Arc<Connected>> {
    let responder = RESPONDER.lock();
    let this = responder.as_ref().filter(|responder| responder.process.is_this());
    this.map_or(Vec::new(), |this| this.groups.iter().filter_map(Weak::upgrade).collect())
}

fn others() -> Vec<Arc<dyn OtherGroup>> {
    let responder = RESPONDER.lock();
    let this = responder.as_ref().filter(|responder| responder.process.is_this());
    this.map_or(Vec::new(), |this| this.others.iter().filter_map(Weak::upgrade).collect())
}

/// Answers on a thread of its own, which calls `reply` with the JSON; too many questions at once get no answer.
pub(crate) fn answer_by(reply: impl FnOnce(String) + Send + 'static) {
    if BUSY.fetch_add(1, Ordering::Relaxed) >= BUSY_MAX {
        BUSY.fetch_sub(1, Ordering::Relaxed);
        return;
    }
    let body = move || {
        reply(answer());
        BUSY.fetch_sub(1, Ordering::Relaxed);
    };
    if std::thread::Builder::new().name("netsum-why".to_owned()).spawn(body).is_err() {
        BUSY.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Answers a rank of the group of that name.
pub(crate) fn on_question(group: String, from: u32, number: u64) {
    answer_by(move |answer| {
        let asked = groups().into_iter().find(|known| known.core.name == group);
        if let Some(asked) = asked.filter(|_| answer.len() <= gather::ANSWER_MAX) {
            asked.core.send(from, MessageKind::Answer, number, answer.into_bytes());
        }
    });
}

/// What this process knows, as JSON.
pub(crate) fn answer() -> String {
    let stacks = STACKS.lock().clone();
    let evidence = Evidence::collect(&groups(), &others(), stacks.as_deref());
    serde_json::to_string(&evidence).unwrap_or_default()
}

/// Questions answered at once: a mesh of ranks that all time out asks as many at the same moment, and each answer takes
/// a tenth of a second of waiting.
const BUSY_MAX: usize = 64;
