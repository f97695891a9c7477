//! What happens to a controller, and what it does about it.

use netsum_wire::tag::JobKey;

use crate::pb;

/// Names one stream of a worker or switch; never reused while the controller lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// Something that happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Somebody wants a job.
    CreateJob {
        /// What it shall be.
        request: pb::CreateJobRequest,
        /// Drawn for it; used unless the fabric is trusted.
        key: JobKey,
    },
    /// Somebody wants a job to end.
    StopJob {
        /// Which.
        job: u32,
        /// What its workers are told.
        reason: String,
    },
    /// A worker opened a stream.
    WorkerJoined {
        /// The stream.
        session: SessionId,
        /// Its first report.
        join: pb::Join,
    },
    /// A worker reported.
    WorkerBeat {
        /// The stream.
        session: SessionId,
        /// Statistics.
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
    },
    /// A switch opened a stream.
    SwitchHello {
        /// The stream.
        session: SessionId,
        /// Its first report.
        hello: pb::SwitchHello,
    },
    /// A switch reported.
    SwitchBeat {
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

/// What must happen.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Write the job to the store, before anything later in the list is done.
    SaveJob(u32),
    /// Likewise one rank of a job.
    SaveMember(u32, u32),
    /// Tell a worker.
    TellWorker(SessionId, pb::worker_event::Event),
    /// Tell a switch.
    TellSwitch(SessionId, pb::switch_command::Command),
    /// End a stream after what was told.
    Close(SessionId),
}

/// The state has changed; this is what follows.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// In order.
    pub actions: Vec<Action>,
    /// For the one who caused the event.
    pub answer: Result<Answer, Refusal>,
}

/// What the one who caused an event is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Nothing in particular.
    Done,
    /// The new job's number.
    Created(u32),
}

/// Why an event was refused; the state is as before. The words name the thing and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A field makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// There is no such job.
    #[error("{0}")]
    Unknown(String),
    /// It was possible once, or is not yet.
    #[error("{0}")]
    State(String),
    /// Somebody else has it.
    #[error("{0}")]
    Taken(String),
}
