//! What the controller does about each event, as a function of its state: no sockets, no clock, no
//! store. Time is handed in as milliseconds since the controller's start.
//!
//! [`State::decide`] changes the state and returns the [`Action`]s that make the world follow it, in
//! the order in which they must happen. Source of the shape: torchft's `quorum_compute`.

mod event;
mod job;
mod planning;
mod propose;
mod share;
mod slots;
mod state;
mod status;
mod switches;
mod ways;
mod workers;

pub use event::{Action, Answer, Decision, Event, Refusal, SessionId};
pub(crate) use job::AUTO;
pub use job::{Job, JobSpec, Member, MemberState, Phase};
pub use state::{Settings, State, SwitchCondition, SwitchState};
