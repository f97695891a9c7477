//! One end of a connection, and its messages.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;

use netsum_collective::Buffer;
use netsum_nccl_core::{Failure, INVALID_USAGE, REMOTE_ERROR};
use parking_lot::Mutex;

use super::line::Line;
use super::queue::{Direction, Outcome, Queue};

/// A sending or a receiving end.
pub(crate) struct Endpoint {
    peer: SocketAddr,
    direction: Direction,
    state: Mutex<State>,
}

struct State {
    line: Box<dyn Line>,
    queue: Queue,
    /// Why the connection cannot be used any more.
    failure: Option<Failure>,
}

/// A message, until NCCL knows that it is done.
pub(crate) struct Message {
    endpoint: Arc<Endpoint>,
    outcome: Arc<Outcome>,
}

impl Endpoint {
    pub(super) fn sender(line: Box<dyn Line>, peer: SocketAddr) -> Endpoint {
        Endpoint::new(line, peer, Direction::Send)
    }

    pub(super) fn receiver(line: Box<dyn Line>, peer: SocketAddr) -> Endpoint {
        Endpoint::new(line, peer, Direction::Receive)
    }

    fn new(line: Box<dyn Line>, peer: SocketAddr, direction: Direction) -> Endpoint {
        let state = State { line, queue: Queue::new(direction), failure: None };
        Endpoint { peer, direction, state: Mutex::new(state) }
    }

    /// Sends the bytes of `memory`; `None` if so many messages wait that NCCL has to ask again.
    pub(crate) fn send(self: &Arc<Endpoint>, memory: Buffer) -> Result<Option<Message>, Failure> {
        self.start(memory, Direction::Send)
    }

    /// Receives a message of at most the memory's bytes. `None`: as for `send`.
    pub(crate) fn receive(
        self: &Arc<Endpoint>,
        memory: Buffer,
    ) -> Result<Option<Message>, Failure> {
        self.start(memory, Direction::Receive)
    }

    fn start(
        self: &Arc<Endpoint>,
        memory: Buffer,
        direction: Direction,
    ) -> Result<Option<Message>, Failure> {
        if direction != self.direction {
            return Err(Failure::usage(
                "a receiving connection cannot send, nor a sending one receive",
            ));
        }
        let mut state = self.state.lock();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        if state.queue.len() >= MESSAGES_MAX {
            return Ok(None);
        }
        let outcome = state.queue.push(memory);
        // An error appears in the tests of this message, and of all others.
        let _ = self.advance(&mut state);
        Ok(Some(Message { endpoint: self.clone(), outcome }))
    }

    fn advance(&self, state: &mut State) -> Result<(), Failure> {
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        let State { line, queue, .. } = state;
        let advanced = queue.advance(line.as_mut());
        advanced.map_err(|error| {
            let failure = self.explain(&error);
            state.failure = Some(failure.clone());
            state.queue.clear();
            failure
        })
    }

    fn explain(&self, error: &io::Error) -> Failure {
        let code = match error.kind() {
            ErrorKind::InvalidData => INVALID_USAGE,
            _ => REMOTE_ERROR,
        };
        let direction = if self.direction == Direction::Send { "to" } else { "from" };
        Failure { code, words: format!("a message {direction} {}: {error}", self.peer) }
    }

    /// Ends the connection; its messages do not use NCCL's memory any more.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.queue.clear();
        state.failure.get_or_insert_with(|| Failure::usage("the connection is closed"));
    }
}

impl Message {
    /// The bytes that were moved, if it is done.
    pub(crate) fn test(&self) -> Result<Option<usize>, Failure> {
        if self.outcome.bytes().is_none() {
            let mut state = self.endpoint.state.lock();
            self.endpoint.advance(&mut state)?;
        }
        Ok(self.outcome.bytes())
    }

    pub(crate) fn is_of(&self, endpoint: &Arc<Endpoint>) -> bool {
        Arc::ptr_eq(&self.endpoint, endpoint)
    }
}

/// `NCCL_NET_MAX_REQUESTS`.
const MESSAGES_MAX: usize = 32;
