//! Events of the controller, and the resulting actions.

use std::net::IpAddr;

use netsum_wire::tag::JobKey;

use crate::pb;

/// Id of one stream of a worker or switch; never reused while the controller runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// An input of the controller.
#[expect(
    clippy::large_enum_variant,
    reason = "events are handled one at a time, never stored in bulk"
)]
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A client asks for a new job.
    CreateJob {
        /// The request.
        request: pb::CreateJobRequest,
        /// A random key for this job; used unless the fabric is trusted.
        key: JobKey,
        /// The caller's address, if it is known.
        from: Option<IpAddr>,
    },
    /// A client asks for the end of a job.
    StopJob {
        /// The job's number.
        job: u32,
        /// The reason that its workers receive.
        reason: String,
    },
    /// A client asks for a new key of a job.
    RekeyJob {
        /// The job's number.
        job: u32,
        /// A random key.
        key: JobKey,
    },
    /// A worker opened a stream.
    WorkerJoined {
        /// The stream.
        session: SessionId,
        /// Its first report.
        join: pb::Join,
        /// A random key, for a job that the controller has to rebuild from the report.
        key: JobKey,
    },
    /// A worker reported.
    WorkerHeartbeat {
        /// The stream.
        session: SessionId,
        /// The report.
        statistics: pb::WorkerHeartbeat,
    },
    /// A worker left in order.
    WorkerLeft {
        /// The stream.
        session: SessionId,
    },
    /// A worker's stream ended.
    WorkerClosed {
        /// The stream.
        session: SessionId,
        /// Whether the worker's system closed the connection, and the worker had not ended the stream: so ends the
        /// stream of a process that dies. A rank that lives is back within a moment.
        hung_up: bool,
    },
    /// A switch opened a stream.
    SwitchHello {
        /// The stream.
        session: SessionId,
        /// Its first report.
        hello: pb::SwitchHello,
    },
    /// A switch reported.
    SwitchHeartbeat {
        /// The stream.
        session: SessionId,
        /// Counters.
        counters: pb::SwitchHeartbeat,
    },
    /// A switch answered an Install.
    LeaseAck {
        /// The stream.
        session: SessionId,
        /// Its answer.
        ack: pb::LeaseAck,
    },
    /// A switch's stream ended.
    SwitchClosed {
        /// The stream.
        session: SessionId,
    },
    /// Time has passed.
    Tick,
}

impl Event {
    /// Whether the event is a periodic report, which changes only what is not saved and causes no action.
    pub fn is_report(&self) -> bool {
        matches!(self, Event::WorkerHeartbeat { .. } | Event::SwitchHeartbeat { .. })
    }

    /// The newest term of a controller that the peer has seen; 0: none, or not said.
    pub fn term_seen(&self) -> u64 {
        match self {
            Event::WorkerJoined { join, .. } => join.term,
            Event::SwitchHello { hello, .. } => hello.term,
            _ => 0,
        }
    }

    /// Whether its sender can be refused and may retry. Other events are facts, and must take effect eventually.
    pub fn is_request(&self) -> bool {
        matches!(
            self,
            Event::CreateJob { .. }
                | Event::StopJob { .. }
                | Event::RekeyJob { .. }
                | Event::WorkerJoined { .. }
                | Event::SwitchHello { .. }
        )
    }
}

/// An action for the owner of the state.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Write the job to the store, before any message is sent.
    SaveJob(u32),
    /// Write one rank of a job to the store, before any message is sent.
    SaveMember(u32, u32),
    /// Send a message to a worker.
    SendToWorker(SessionId, pb::worker_event::Event),
    /// Send a message to a switch.
    SendToSwitch(SessionId, pb::switch_command::Command),
    /// End a stream after the messages before this.
    Close(SessionId),
}

/// The outcome of one event.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// Actions, in the order in which they must be performed.
    pub actions: Vec<Action>,
    /// The answer to the caller that caused the event.
    pub answer: Result<Answer, Refusal>,
}

/// The answer to a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The event took effect.
    Done,
    /// The new job's number.
    Created(u32),
}

/// Why an event was refused; the state is unchanged. The text names the cause and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A field has an invalid value.
    #[error("{0}")]
    Invalid(String),
    /// There is no such job.
    #[error("{0}")]
    Unknown(String),
    /// The state of the job or of the controller does not allow the event.
    #[error("{0}")]
    State(String),
    /// Another process holds the rank or the address.
    #[error("{0}")]
    Taken(String),
}
