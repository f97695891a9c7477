//! ncclGroupStart and ncclGroupEnd: the calls of a thread between them start together, and complete together; or they
//! are not made, and ncclGroupSimulateEnd says how long they would take.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use netsum_collective::{Buffer, Dtype, Format, ReduceOp, Terms, Work};
use netsum_nccl_core::Failure;

use crate::comm::Comm;

/// A deferred call.
pub(crate) enum Deed {
    /// An operation of a communicator, and what it costs.
    Operation(Arc<Comm>, Cost, Start),
    /// A message to the own rank, which matches a receive of the same group.
    SendToSelf(Arc<Comm>, Buffer),
    /// The receive that it matches.
    ReceiveFromSelf(Arc<Comm>, Buffer),
    /// Something that ends at once.
    Act(Box<dyn FnOnce() -> Result<(), Failure>>),
    /// Something that waits for the other ranks' acts.
    Await(Box<dyn FnOnce() -> Result<(), Failure>>),
    /// Something on which ranks agree, such as a new communicator. What belongs to one communicator keeps its order;
    /// all else of a group is concurrent, since each waits for other ranks, which may be threads of this process.
    Agree(Option<Arc<Comm>>, Agreement),
}

type Agreement = Box<dyn FnOnce() -> Result<(), Failure> + Send>;

impl Deed {
    /// Something on which the ranks of a communicator agree.
    pub(crate) fn agree(
        comm: Arc<Comm>,
        run: impl FnOnce() -> Result<(), Failure> + Send + 'static,
    ) -> Deed {
        Deed::Agree(Some(comm), Box::new(run))
    }

    /// A new communicator.
    pub(crate) fn connect(run: impl FnOnce() -> Result<(), Failure> + Send + 'static) -> Deed {
        Deed::Agree(None, Box::new(run))
    }
}

/// What the time of an operation depends on.
#[derive(Clone, Copy)]
pub(crate) struct Cost {
    /// Its name in netsum's options; "" for a message.
    pub(crate) operation: &'static str,
    pub(crate) format: Format,
    /// Bytes of a rank.
    pub(crate) bytes: usize,
}

impl Cost {
    /// Of an operation that only moves bytes.
    pub(crate) fn moved(operation: &'static str, bytes: usize) -> Cost {
        Cost { operation, format: Format { dtype: Dtype::U8, op: ReduceOp::Sum }, bytes }
    }

    /// By the cost model of the hosts' algorithms; a message: its latency and its bytes.
    fn seconds(self, comm: &Comm) -> Result<f64, Failure> {
        let link = comm.group.link()?;
        let message = link.latency_s + self.bytes as f64 / link.bytes_per_s;
        if self.operation.is_empty() || comm.size == 1 {
            return Ok(message);
        }
        let choice = comm.group.explain(self.operation, self.format, self.bytes)?;
        let chosen = choice.costs.iter().find(|cost| cost.name == choice.chosen);
        // Where the choice does not depend on the size, every rank exchanges a message with every other.
        let rounds = f64::from(comm.size.saturating_sub(1));
        Ok(chosen.and_then(|cost| cost.seconds).unwrap_or(rounds * message))
    }
}

/// Starts an operation.
type Start = Box<dyn FnOnce(&Comm, Terms) -> Started>;

/// A started operation, and the postprocessing of its memory.
pub(crate) struct Started {
    pub(crate) work: Work,
    pub(crate) finish: Box<dyn FnOnce()>,
}

#[derive(Default)]
struct Open {
    depth: usize,
    deeds: Vec<Deed>,
    /// A refused call of the group: the group fails as a whole.
    refused: Option<Failure>,
}

thread_local! {
    static OPEN: RefCell<Open> = RefCell::default();
}

pub(crate) fn start() {
    OPEN.with(|open| open.borrow_mut().depth += 1);
}

/// At the outermost end, runs everything since the outermost start.
pub(crate) fn end() -> Result<(), Failure> {
    match close()? {
        None => Ok(()),
        Some(Open { refused: Some(failure), .. }) => Err(failure),
        Some(Open { deeds, .. }) => run(deeds),
    }
}

/// Like `end`, but runs nothing: at the outermost end, returns the seconds that the operations would take one after the
/// other.
pub(crate) fn simulate() -> Result<Option<f64>, Failure> {
    match close()? {
        None => Ok(None),
        Some(Open { refused: Some(failure), .. }) => Err(failure),
        Some(Open { deeds, .. }) => {
            let seconds = |deed: &Deed| match deed {
                Deed::Operation(comm, cost, _) => cost.seconds(comm),
                _ => Ok(0.0),
            };
            deeds.iter().map(seconds).sum::<Result<f64, Failure>>().map(Some)
        }
    }
}

fn close() -> Result<Option<Open>, Failure> {
    OPEN.with(|open| {
        let mut open = open.borrow_mut();
        if open.depth == 0 {
            return Err(Failure::usage("ncclGroupEnd without ncclGroupStart"));
        }
        open.depth -= 1;
        Ok((open.depth == 0).then(|| std::mem::take(&mut *open)))
    })
}

/// Runs a call now, or at the end of the thread's group.
pub(crate) fn submit(made: Result<Deed, Failure>) -> Result<(), Failure> {
    let now = OPEN.with(|open| {
        let mut open = open.borrow_mut();
        if open.depth == 0 {
            return made.map(Some);
        }
        match made {
            Ok(deed) => open.deeds.push(deed),
            Err(failure) => {
                open.refused.get_or_insert_with(|| failure.clone());
                return Err(failure);
            }
        }
        Ok(None)
    })?;
    now.map_or(Ok(()), |deed| run(vec![deed]))
}

fn run(deeds: Vec<Deed>) -> Result<(), Failure> {
    let mut outcome = Ok(());
    let mut started = Vec::new();
    let mut awaited = Vec::new();
    let mut agreements: Vec<(Option<Arc<Comm>>, Vec<Agreement>)> = Vec::new();
    let mut to_self: HashMap<*const Comm, (Vec<Buffer>, Vec<Buffer>)> = HashMap::new();
    let last = deeds.len().saturating_sub(1);
    for (place, deed) in deeds.into_iter().enumerate() {
        match deed {
            Deed::Operation(comm, _, start) => {
                // After the last one this thread only waits.
                let here = place == last;
                let terms = if here { Terms::here(comm.timeout) } else { comm.timeout.into() };
                started.push(start(&comm, terms));
            }
            Deed::SendToSelf(comm, buffer) => {
                to_self.entry(Arc::as_ptr(&comm)).or_default().0.push(buffer)
            }
            Deed::ReceiveFromSelf(comm, buffer) => {
                to_self.entry(Arc::as_ptr(&comm)).or_default().1.push(buffer);
            }
            Deed::Act(act) => outcome = outcome.and(act()),
            Deed::Await(wait) => awaited.push(wait),
            Deed::Agree(comm, run) => {
                let same = |other: &&mut (Option<Arc<Comm>>, _)| match (&other.0, &comm) {
                    (Some(other), Some(comm)) => Arc::ptr_eq(other, comm),
                    _ => false,
                };
                match agreements.iter_mut().find(same) {
                    Some((_, runs)) => runs.push(run),
                    None => agreements.push((comm, vec![run])),
                }
            }
        }
    }
    for (sends, mut receives) in to_self.into_values() {
        outcome = outcome.and(meet(&sends, &mut receives));
    }
    // The memory belongs to the caller when this returns: waits for everything, whatever fails.
    for Started { work, finish } in started {
        let ended = work.wait(None).map_err(Failure::from);
        if ended.is_ok() {
            finish();
        }
        outcome = outcome.and(ended);
    }
    for wait in awaited {
        outcome = outcome.and(wait());
    }
    outcome.and(agree_all(agreements.into_iter().map(|(_, runs)| runs).collect()))
}

/// Copies messages of a rank to itself, in order.
fn meet(sends: &[Buffer], receives: &mut [Buffer]) -> Result<(), Failure> {
    if sends.len() != receives.len() {
        let words = format!(
            "{} sends of a rank to itself, {} receives in the group",
            sends.len(),
            receives.len()
        );
        return Err(Failure::usage(words));
    }
    for (send, receive) in sends.iter().zip(receives) {
        if send.len() != receive.len() {
            let words =
                format!("a rank sends itself {} bytes and receives {}", send.len(), receive.len());
            return Err(Failure::usage(words));
        }
        // The two may overlap.
        let message = send.slice(0..send.len()).to_vec();
        receive.write(0, &message);
    }
    Ok(())
}

/// Runs all agreements: those of one list one after the other, all lists at once.
fn agree_all(lists: Vec<Vec<Agreement>>) -> Result<(), Failure> {
    std::thread::scope(|scope| {
        let in_order = |runs: Vec<Agreement>| runs.into_iter().try_for_each(|run| run());
        let threads: Vec<_> =
            lists.into_iter().map(|runs| scope.spawn(move || in_order(runs))).collect();
        let ended = threads.into_iter().map(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err(Failure::usage("a thread that connects has panicked")))
        });
        ended.fold(Ok(()), Result::and)
    })
}
