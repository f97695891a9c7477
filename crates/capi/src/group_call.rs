//! ncclGroupStart and ncclGroupEnd: the calls of a thread between them start together, and complete together.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use netsum_collective::{Buffer, Terms, Work};
use netsum_nccl_core::Failure;

use crate::comm::Comm;

/// A deferred call.
pub(crate) enum Deed {
    /// An operation of a communicator.
    Operation(Arc<Comm>, Start),
    /// A message to the own rank, which matches a receive of the same group.
    SendToSelf(Arc<Comm>, Buffer),
    /// The receive that it matches.
    ReceiveFromSelf(Arc<Comm>, Buffer),
    /// A communicator to be created; all of a group concurrently, since each waits for the others.
    Connect(Box<dyn FnOnce() -> Result<(), Failure> + Send>),
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
    let done = OPEN.with(|open| {
        let mut open = open.borrow_mut();
        if open.depth == 0 {
            return Err(Failure::usage("ncclGroupEnd without ncclGroupStart"));
        }
        open.depth -= 1;
        Ok((open.depth == 0).then(|| std::mem::take(&mut *open)))
    })?;
    match done {
        None => Ok(()),
        Some(Open { refused: Some(failure), .. }) => Err(failure),
        Some(Open { deeds, .. }) => run(deeds),
    }
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
    let mut started = Vec::new();
    let mut connects = Vec::new();
    let mut to_self: HashMap<*const Comm, (Vec<Buffer>, Vec<Buffer>)> = HashMap::new();
    let last = deeds.len().saturating_sub(1);
    for (place, deed) in deeds.into_iter().enumerate() {
        match deed {
            Deed::Operation(comm, start) => {
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
            Deed::Connect(connect) => connects.push(connect),
        }
    }
    let mut outcome = Ok(());
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
    outcome.and(connect_all(connects))
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

fn connect_all(
    connects: Vec<Box<dyn FnOnce() -> Result<(), Failure> + Send>>,
) -> Result<(), Failure> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = connects.into_iter().map(|connect| scope.spawn(connect)).collect();
        let ended = threads.into_iter().map(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err(Failure::usage("a thread that connects has panicked")))
        });
        ended.fold(Ok(()), Result::and)
    })
}
