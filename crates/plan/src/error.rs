//! Why there is no tree, and what is wrong with one. The texts are shown to users as the reason
//! why a job uses the host path.

/// Why no tree could be given.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum PlanError {
    /// Fewer than two ranks.
    #[error("a job of {ranks} rank(s) has nothing to sum in the network")]
    TooFewRanks {
        /// Size of the job.
        ranks: usize,
    },
    /// A rank stands on something that is not a host.
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
    /// Live switches are there, but none reaches all ranks.
    #[error("no live switch reaches the hosts of all ranks: {down} down")]
    NoRoot {
        /// Names of the switches that are down, with the verb.
        down: String,
    },
    /// Trees are there, but they would change the bits of the sums.
    #[error(
        "the trees that are left add in another order than {order}; the host path keeps the bits"
    )]
    OtherOrder {
        /// The job's order.
        order: String,
    },
}

/// Why nothing could be packed.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum PackError {
    /// Nothing to do together.
    #[error("{found} GPU(s): a collective needs at least two; choose more")]
    FewGpus {
        /// How many there are.
        found: usize,
    },
    /// A root that is no GPU of the fabric.
    #[error("root {root} is no rank of {gpus} GPUs; ranks count from 0")]
    Root {
        /// The rank asked for.
        root: usize,
        /// How many ranks there are.
        gpus: usize,
    },
    /// More than the method is made for.
    #[error("{what}: {found} is more than {most}; {advice}")]
    Size {
        /// What there is too much of.
        what: &'static str,
        /// How much there is.
        found: usize,
        /// How much is possible.
        most: usize,
        /// What to do.
        advice: &'static str,
    },
    /// A word that names nothing of the fabric.
    #[error("{word:?} is no GPU, switch or link of this topology; write GPU-GPU, of {names}")]
    NoSuchPart {
        /// The word.
        word: String,
        /// Names of all GPUs and switches.
        names: String,
    },
    /// A link that is not there cannot be lost.
    #[error("there is no link between {a} and {b}")]
    NoLink {
        /// Name of one end.
        a: String,
        /// Name of the other.
        b: String,
    },
    /// There is no plan for what is left.
    #[error("without {lost}: {error}")]
    Left {
        /// What was lost.
        lost: String,
        /// Why there is none.
        error: Box<PackError>,
    },
    /// The topology itself is wrong.
    #[error(transparent)]
    Topology(#[from] netsum_topo::TopoError),
    /// A plan that could not be written in the format asked for.
    #[error("{format}: {problem}")]
    Format {
        /// The format.
        format: &'static str,
        /// What does not fit, and what to do.
        problem: String,
    },
}

/// What is wrong with a tree or a set of trees.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
#[error("tree with root {root:?}: {problem}")]
pub struct Violation {
    /// Name of the tree's root.
    pub root: String,
    /// What is wrong.
    pub problem: String,
}
