//! Why a schedule is refused, and how nodes are named in such messages.

/// Where the nodes of a schedule have their names from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Names {
    /// Lines of one file.
    Lines(String),
    /// Identifiers in a file per rank, with the rank between these two parts of its name.
    Ids(String, String),
    /// Identifiers without a file.
    Numbers(String),
}

impl Names {
    /// A node in words.
    pub fn place(&self, rank: u32, name: u64) -> String {
        match self {
            Names::Lines(file) => format!("{file}:{name}: rank {rank}"),
            Names::Ids(before, after) => format!("{before}{rank}{after}: node {name}"),
            Names::Numbers(source) => format!("{source}: rank {rank}, node {name}"),
        }
    }

    /// A rank in words.
    pub fn rank(&self, rank: u32) -> String {
        match self {
            Names::Lines(file) | Names::Numbers(file) => format!("{file}: rank {rank}"),
            Names::Ids(before, after) => format!("{before}{rank}{after}"),
        }
    }

    /// The source as a whole.
    pub fn source(&self) -> String {
        match self {
            Names::Lines(file) | Names::Numbers(file) => file.clone(),
            Names::Ids(before, after) => format!("{before}RANK{after}"),
        }
    }
}

/// Why a schedule is refused: file, rank and node, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {reason}")]
pub struct ScheduleError {
    /// Where.
    pub place: String,
    /// What is wrong.
    pub reason: String,
}

impl ScheduleError {
    /// An error at a place.
    pub fn new(place: impl Into<String>, reason: impl Into<String>) -> ScheduleError {
        ScheduleError { place: place.into(), reason: reason.into() }
    }
}
