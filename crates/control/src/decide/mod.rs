//! The controller's decisions as a function of its state: no sockets, no clock, no store. Time is an argument, in
//! milliseconds since the controller's start.
//!
//! [`State::decide`] changes the state and returns the [`Action`]s for the change, in the order in which they must be
//! performed. The engine makes each event and its save one transaction. Source of the design: torchft's
//! `quorum_compute`.

mod event;
mod faults;
mod idle;
mod job;
mod paths;
mod planning;
mod propose;
mod settings;
mod share;
mod slots;
mod state;
mod status;
mod suspicion;
mod switches;
mod workers;

pub use event::{Action, Answer, Decision, Event, Refusal, SessionId};
pub(crate) use job::AUTO;
pub use job::{Job, JobSpec, Member, MemberState, Phase};
pub use settings::Settings;
pub use state::{Loaded, State, SwitchCondition, SwitchState};
