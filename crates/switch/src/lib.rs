//! The aggregation daemon `netsum-switch`.
//!
//! Owns: the process around [`netsum_net::switch::SwitchDriver`]: its configuration, its session with the controller,
//! its metrics. Must not know: how trees are planned, the meaning of packets, frameworks. Start reading at [`Daemon`].

mod config;
mod convert;
mod daemon;
mod error;
mod exposition;
mod http;
mod metrics;

pub use config::{Arguments, Config, Dataplane, LogFormat, Role};
pub use daemon::Daemon;
pub use error::SwitchError;
