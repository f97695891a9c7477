//! How gRPC handlers reach the owner of the state.

use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc, oneshot};
use tonic::Status;

use super::actor::{Message, Reply};
use super::refusal::failed;
use crate::decide::Event;
use crate::engine::Snapshot;
use crate::limits::{CALLS_MAX, MESSAGES_MAX};

/// Sends messages to the owner. Calls and new streams take few of the places in its queue, so that reports of open
/// streams never wait behind a storm of them.
#[derive(Debug, Clone)]
pub(super) struct Owner {
    queue: mpsc::Sender<Message>,
    calls: Arc<Semaphore>,
}

impl Owner {
    /// The owner's queue: its two ends.
    pub fn queue() -> (Owner, mpsc::Receiver<Message>) {
        let (queue, inbox) = mpsc::channel(MESSAGES_MAX);
        (Owner { queue, calls: Arc::new(Semaphore::new(CALLS_MAX)) }, inbox)
    }

    /// Asks on behalf of a caller, and waits for the answer.
    pub async fn ask<T>(
        &self,
        message: impl FnOnce(oneshot::Sender<T>) -> Message,
    ) -> Result<T, Status> {
        let _place = self.calls.acquire().await.map_err(|_| stopping())?;
        let (reply, answer) = oneshot::channel();
        self.queue.send(message(reply)).await.map_err(|_| stopping())?;
        answer.await.map_err(|_| stopping())
    }

    /// The state now.
    pub async fn snapshot(&self) -> Result<Snapshot, Status> {
        self.ask(Message::Snapshot).await?.map_err(failed)
    }

    /// Reports an event of an open stream, and waits for the answer. Errors: the owner has stopped.
    pub async fn report(&self, event: Event) -> Result<Reply, Status> {
        let (reply, answer) = oneshot::channel();
        let message = Message::Event(event, reply);
        self.queue.send(message).await.map_err(|_| stopping())?;
        answer.await.map_err(|_| stopping())
    }
}

fn stopping() -> Status {
    Status::unavailable("the controller is stopping")
}
