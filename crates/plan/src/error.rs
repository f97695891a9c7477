//! Errors of planning. Users see the texts as the reason why a job uses the host path.

/// Why no tree was found.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum PlanError {
    /// The job has fewer than two ranks.
    #[error("a job of {ranks} rank(s) has nothing to sum in the network")]
    TooFewRanks {
        /// Size of the job.
        ranks: usize,
    },
    /// A rank is placed on a node that is not a host.
    #[error("rank {rank} is placed on {node:?}, which is not a host")]
    NotAHost {
        /// The rank.
        rank: usize,
        /// Name of the node.
        node: String,
    },
    /// All switches at a host are down.
    #[error("host {host:?} has no live switch: {down} down")]
    HostCutOff {
        /// Name of the host.
        host: String,
        /// Names of its switches, with the verb: `rack0 is`.
        down: String,
    },
    /// No live switch reaches all ranks.
    #[error("no live switch reaches the hosts of all ranks: {down} down")]
    NoRoot {
        /// Names of the switches that are down, with the verb.
        down: String,
    },
    /// The only trees possible would change the bits of the sums.
    #[error(
        "the trees that are left add in another order than {order}; the host path keeps the bits"
    )]
    OtherOrder {
        /// The job's order.
        order: String,
    },
}

/// Why no packing was found.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum PackError {
    /// Fewer than two GPUs.
    #[error("{found} GPU(s): a collective needs at least two; choose more")]
    FewGpus {
        /// Number of GPUs.
        found: usize,
    },
    /// The root is not a rank.
    #[error("root {root} is no rank of {gpus} GPUs; ranks count from 0")]
    Root {
        /// The requested root.
        root: usize,
        /// Number of ranks.
        gpus: usize,
    },
    /// The input exceeds a limit of the method.
    #[error("{what}: {found} is more than {most}; {advice}")]
    Size {
        /// What exceeds the limit.
        what: &'static str,
        /// The amount.
        found: usize,
        /// The limit.
        most: usize,
        /// The remedy.
        advice: &'static str,
    },
    /// A word that names no part of the fabric.
    #[error("{word:?} is no GPU, switch or link of this topology; write GPU-GPU, of {names}")]
    NoSuchPart {
        /// The word.
        word: String,
        /// Names of all GPUs and switches.
        names: String,
    },
    /// A lost link that does not exist.
    #[error("there is no link between {a} and {b}")]
    NoLink {
        /// Name of one end.
        a: String,
        /// Name of the other.
        b: String,
    },
    /// The root of a broadcast or a reduce is lost.
    #[error("{name} is the root, and no plan can do without it")]
    RootLost {
        /// Name of the root.
        name: String,
    },
    /// There is no plan for the rest of the fabric.
    #[error("without {lost}: {error}")]
    Left {
        /// The lost parts.
        lost: String,
        /// Why there is no plan.
        error: Box<PackError>,
    },
    /// The topology is invalid.
    #[error(transparent)]
    Topology(#[from] netsum_topo::TopoError),
    /// The plan cannot be written in the requested format.
    #[error("{format}: {problem}")]
    Format {
        /// The format.
        format: &'static str,
        /// What the format does not support, and the remedy.
        problem: String,
    },
}

/// An invalid tree or set of trees.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
#[error("tree with root {root:?}: {problem}")]
pub struct Violation {
    /// Name of the tree's root.
    pub root: String,
    /// What is wrong.
    pub problem: String,
}
