//! What can go wrong, as data: a schedule of faults is part of a scenario, and the minimiser cuts it down.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A process of the simulated system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Process {
    /// The controller.
    Controller,
    /// A switch or a server: its place in the fabric file, switches first.
    Aggregator(u32),
    /// A rank of a job: numbers of both in the scenario.
    Rank(u32, u32),
}

/// What the controller finds of its store when it starts again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoreAfter {
    /// All that was committed: the process died.
    Kept,
    /// All but the last commits: the machine lost its power.
    Truncated(u32),
    /// Nothing: it was started without a store, or with another.
    Lost,
}

/// Which packets a broken link loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkLoss {
    /// All.
    All,
    /// Those with a payload: a path with a smaller MTU.
    Large,
    /// So many of a million.
    Some(u32),
}

/// Directions of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Both.
    Both,
    /// From its first end to its second.
    Forward,
    /// From its second end to its first.
    Backward,
}

/// A kind of fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A process dies. Controllers, switches and servers are started again when the fault ends; ranks are not.
    Kill {
        /// Which.
        process: Process,
        /// What a controller finds when it starts again.
        store: StoreAfter,
    },
    /// A process does nothing: SIGSTOP and SIGCONT.
    Stop {
        /// Which.
        process: Process,
    },
    /// These processes cannot be reached by the others, on the networks that are named.
    Partition {
        /// One side.
        group: Vec<Process>,
        /// Packets of sums.
        data: bool,
        /// Streams with the controller.
        control: bool,
        /// Messages between ranks.
        mesh: bool,
    },
    /// A link loses packets of sums.
    Link {
        /// Its place in the fabric file.
        link: u32,
        /// Which way.
        direction: Direction,
        /// Which packets.
        loss: LinkLoss,
    },
    /// Packets of sums are lost everywhere: so many of a million.
    Loss {
        /// Of a million.
        per_million: u32,
    },
    /// Messages of the control plane and of the mesh take up to so much longer.
    Delay {
        /// Milliseconds.
        ms: u32,
    },
    /// The stream between a process and the controller breaks; both sides see it.
    BreakStream {
        /// The side that is not the controller.
        process: Process,
    },
    /// The controller's store takes no writes.
    DiskFull,
    /// A process's clock jumps forward, as after its machine was suspended.
    ClockJump {
        /// Which.
        process: Process,
        /// Milliseconds.
        ms: u32,
    },
    /// An operator ends a job.
    StopJob {
        /// Its number in the scenario.
        job: u32,
    },
}

/// A fault at its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Milliseconds after the start.
    pub at_ms: u64,
    /// Milliseconds until it ends; `None`: it does not.
    pub for_ms: Option<u64>,
    /// What it is.
    pub kind: Kind,
}

impl Fault {
    /// When it has ended; `None` if it does not end.
    pub fn end_ms(&self) -> Option<u64> {
        Some(self.at_ms + self.for_ms?)
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Process::Controller => f.write_str("the controller"),
            Process::Aggregator(number) => write!(f, "aggregator {number}"),
            Process::Rank(job, rank) => write!(f, "rank {rank} of job #{job}"),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Kill { process: Process::Controller, store } => {
                let store = match store {
                    StoreAfter::Kept => "and starts again with its store".to_owned(),
                    StoreAfter::Truncated(n) => {
                        format!("and starts again without its last {n} commits")
                    }
                    StoreAfter::Lost => "and starts again without its store".to_owned(),
                };
                write!(f, "the controller is killed {store}")
            }
            Kind::Kill { process, .. } => write!(f, "{process} is killed"),
            Kind::Stop { process } => write!(f, "{process} is stopped"),
            Kind::Partition { group, data, control, mesh } => {
                let names: Vec<String> = group.iter().map(Process::to_string).collect();
                let planes: Vec<&str> = [(*data, "data"), (*control, "control"), (*mesh, "mesh")]
                    .into_iter()
                    .filter_map(|(cut, name)| cut.then_some(name))
                    .collect();
                write!(f, "{} cut off ({})", names.join(", "), planes.join(", "))
            }
            Kind::Link { link, direction, loss } => {
                let which = match loss {
                    LinkLoss::All => "all packets".to_owned(),
                    LinkLoss::Large => "packets with a payload".to_owned(),
                    LinkLoss::Some(per_million) => format!("{per_million} of a million packets"),
                };
                write!(f, "link {link} loses {which} ({direction:?})")
            }
            Kind::Loss { per_million } => {
                write!(f, "{per_million} of a million packets are lost everywhere")
            }
            Kind::Delay { ms } => write!(f, "control and mesh messages take up to {ms} ms longer"),
            Kind::BreakStream { process } => {
                write!(f, "the stream between {process} and the controller breaks")
            }
            Kind::DiskFull => f.write_str("the controller's disk is full"),
            Kind::ClockJump { process, ms } => write!(f, "the clock of {process} jumps by {ms} ms"),
            Kind::StopJob { job } => write!(f, "an operator ends job #{job}"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {:.3} s ", self.at_ms as f64 / 1e3)?;
        match self.for_ms {
            Some(0) => {}
            Some(ms) => write!(f, "for {:.3} s ", ms as f64 / 1e3)?,
            None => f.write_str("for ever ")?,
        }
        self.kind.fmt(f)
    }
}
