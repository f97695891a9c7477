//! Faults as data: the schedule of faults is part of a scenario and is reduced by the minimiser.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A process of the simulated system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Process {
    /// The controller.
    Controller,
    /// A further controller, by number.
    Standby(u32),
    /// A switch or a server: its index in the fabric file, switches first.
    Aggregator(u32),
    /// A rank of a job: indices of both in the scenario.
    Rank(u32, u32),
}

/// State of the controller's store at its next start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoreAfter {
    /// All commits: the process was killed.
    Kept,
    /// All but this many of the last commits: the machine lost power.
    Truncated(u32),
    /// Empty: the controller was started without a store, or with another one.
    Lost,
}

/// The packets that a broken link loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkLoss {
    /// All packets.
    All,
    /// Packets with a payload, as on a path with a smaller MTU.
    Large,
    /// This many packets per million.
    Some(u32),
}

/// Directions of a link that are affected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Both directions.
    Both,
    /// From the first end to the second.
    Forward,
    /// From the second end to the first.
    Backward,
}

/// A kind of fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Kills a process. Controllers, switches and servers are restarted when the fault ends; ranks are not.
    Kill {
        /// The process.
        process: Process,
        /// State of a controller's store at its next start.
        store: StoreAfter,
    },
    /// Stops a process with SIGSTOP until SIGCONT.
    Stop {
        /// The process.
        process: Process,
    },
    /// Separates a group of processes from the others on the selected networks.
    Partition {
        /// Processes on one side.
        group: Vec<Process>,
        /// Whether data packets are affected.
        data: bool,
        /// Whether streams with the controller are affected.
        control: bool,
        /// Whether messages between ranks are affected.
        mesh: bool,
    },
    /// A link loses data packets.
    Link {
        /// Index of the link in the fabric file.
        link: u32,
        /// Affected directions.
        direction: Direction,
        /// Lost packets.
        loss: LinkLoss,
    },
    /// Data packets are lost on all links.
    Loss {
        /// Loss rate, per million.
        per_million: u32,
    },
    /// Delays messages of the control plane and of the mesh by a random time up to a limit.
    Delay {
        /// Limit, milliseconds.
        ms: u32,
    },
    /// The stream between a process and the controller breaks; both sides detect it.
    BreakStream {
        /// The end of the stream that is not the controller.
        process: Process,
    },
    /// The controller's store rejects writes.
    DiskFull,
    /// One of several controllers gets no answer from the store; what it writes is made or not.
    StoreSilent {
        /// The controller.
        process: Process,
    },
    /// A process's clock jumps forward, as after its machine was suspended.
    ClockJump {
        /// The process.
        process: Process,
        /// Jump, milliseconds.
        ms: u32,
    },
    /// An operator gives a job new keys.
    RekeyJob {
        /// Index of the job in the scenario.
        job: u32,
    },
    /// An operator ends a job.
    StopJob {
        /// Index of the job in the scenario.
        job: u32,
    },
}

/// A fault and its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Milliseconds after the start.
    pub at_ms: u64,
    /// Duration, milliseconds; `None`: permanent.
    pub for_ms: Option<u64>,
    /// Kind of fault.
    pub kind: Kind,
}

impl Fault {
    /// End, in milliseconds after the start; `None` if the fault is permanent.
    pub fn end_ms(&self) -> Option<u64> {
        Some(self.at_ms + self.for_ms?)
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Process::Controller => f.write_str("the controller"),
            Process::Standby(number) => write!(f, "controller {}", number + 2),
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
            Kind::StoreSilent { process } => write!(f, "the store does not answer {process}"),
            Kind::ClockJump { process, ms } => write!(f, "the clock of {process} jumps by {ms} ms"),
            Kind::RekeyJob { job } => write!(f, "an operator gives job #{job} new keys"),
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
            None => f.write_str("permanently ")?,
        }
        self.kind.fmt(f)
    }
}
