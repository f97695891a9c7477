//! Schedules with dependencies: what each rank of a job computes, sends, receives and reduces, and what waits for what.
//!
//! One representation of all sources: files of other tools ([`goal`], [`chakra`], [`pytorch`]) and of netsum
//! ([`recorder`]), and jobs described by a few numbers ([`parallel`]). A [`Builder`] takes nodes and dependencies in any order and refuses what
//! cannot run: cycles, messages that nobody receives, collectives on which ranks disagree, ranks that wait for each
//! other. `job::player` runs it.

mod build;
pub mod chakra;
mod error;
pub mod goal;
pub mod observed;
pub mod parallel;
pub mod pytorch;
pub mod recorder;
mod untimed;

pub use build::Builder;
pub use error::{Names, ScheduleError};

/// An operation of all ranks of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collective {
    /// Every rank has the sum of all buffers.
    Allreduce,
    /// Every rank has the shares of all.
    AllGather,
    /// Every rank has its share of the sum.
    ReduceScatter,
    /// Every rank sends each other one a share.
    AllToAll,
    /// Every rank has the buffer of `root`, an index in the group.
    Broadcast {
        /// Index in the group.
        root: u32,
    },
    /// The root has the sum of all buffers.
    Reduce {
        /// Index in the group.
        root: u32,
    },
    /// The root has the shares of all.
    Gather {
        /// Index in the group.
        root: u32,
    },
    /// Every rank has its share of the root's buffer.
    Scatter {
        /// Index in the group.
        root: u32,
    },
    /// Every rank has begun it.
    Barrier,
}

impl Collective {
    /// Whether switches can help: they add for some ranks, or copy what one rank sends to all.
    pub const fn can_be_in_network(self) -> bool {
        !matches!(
            self,
            Collective::AllToAll | Collective::Gather { .. } | Collective::Scatter { .. }
        )
    }
}

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Computes; of the nodes of one unit, one at a time.
    Compute {
        /// How long.
        ps: u64,
        /// The rank's unit: a stream of a GPU, or a core.
        unit: u8,
    },
    /// Sends a message.
    Send {
        /// Receiving rank.
        to: u32,
        /// Payload.
        bytes: u64,
        /// Only a receive with the same tag takes the message.
        tag: u32,
    },
    /// Receives the first message of this rank and tag that no other node has taken.
    Recv {
        /// Sending rank.
        from: u32,
        /// Payload, at least the message's.
        bytes: u64,
        /// Tag of the message.
        tag: u32,
    },
    /// Takes part in an operation of a group. A rank runs those of one group one after the other.
    Collective {
        /// Which one.
        kind: Collective,
        /// Index of the group.
        group: u32,
        /// Bytes of the whole buffer: of what is summed, gathered by all, or sent to all.
        bytes: u64,
        /// Its number among the group's operations, from 0.
        number: u32,
    },
}

/// A node of a rank's graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// What it does.
    pub op: Op,
    /// Its name in the source: a line, or an identifier.
    pub name: u64,
    /// Number of nodes for which it waits.
    pub waits: u32,
}

/// What one rank does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankSchedule {
    /// Nodes in the order of the source.
    pub nodes: Vec<Node>,
    /// Groups of which the rank is a member, in ascending order.
    pub groups: Vec<u32>,
    /// Where the followers of each node begin in `followers`; one more for the end.
    first: Vec<u32>,
    /// Nodes that wait for another one; those with `AT_START` for its start.
    followers: Vec<u32>,
}

/// A follower waits for the start of a node, not for its end.
const AT_START: u32 = 1 << 31;

impl RankSchedule {
    /// Nodes that wait for the start of a node, or for its end.
    pub fn followers(&self, node: u32, at_start: bool) -> impl Iterator<Item = u32> + '_ {
        let range = self.first[node as usize] as usize..self.first[node as usize + 1] as usize;
        let wanted = if at_start { AT_START } else { 0 };
        let all = self.followers[range].iter();
        all.filter(move |&&each| each & AT_START == wanted).map(|&each| each & !AT_START)
    }

    /// Number of units that compute.
    pub fn units(&self) -> usize {
        let units = self.nodes.iter().map(|node| match node.op {
            Op::Compute { unit, .. } => usize::from(unit) + 1,
            _ => 0,
        });
        units.max().unwrap_or(0)
    }
}

/// A schedule that can run: built by a [`Builder`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// By rank.
    pub ranks: Vec<RankSchedule>,
    /// Ranks of each group.
    pub groups: Vec<Vec<u32>>,
    /// Where nodes have their names from.
    pub names: Names,
}

impl Schedule {
    /// Number of operations of a group in one run of the schedule, by group.
    pub fn operations(&self) -> Vec<u32> {
        let mut counts = vec![0; self.groups.len()];
        for node in self.ranks.iter().flat_map(|rank| &rank.nodes) {
            if let Op::Collective { group, number, .. } = node.op {
                counts[group as usize] = counts[group as usize].max(number + 1);
            }
        }
        counts
    }

    /// Whether each group has operations in the network: allreduces, or with `all` any that switches help with.
    pub fn groups_in_network(&self, all: bool) -> Vec<bool> {
        let mut found = vec![false; self.groups.len()];
        for node in self.ranks.iter().flat_map(|rank| &rank.nodes) {
            if let Op::Collective { kind, group, .. } = node.op {
                found[group as usize] |=
                    kind == Collective::Allreduce || all && kind.can_be_in_network();
            }
        }
        found
    }

    /// Multiplies all computing times by `factor`, at least 0.
    pub fn scale(&mut self, factor: f64) {
        for node in self.ranks.iter_mut().flat_map(|rank| &mut rank.nodes) {
            if let Op::Compute { ps, .. } = &mut node.op {
                *ps = ((*ps as f64 * factor).round() as u64).min(COMPUTE_MAX_PS);
            }
        }
    }

    /// Bound of the segments of `segment` bytes that one rank sends.
    pub fn segments_max(&self, segment: u64) -> u64 {
        let of = |node: &Node| match node.op {
            Op::Send { bytes, .. } => bytes / segment + 1,
            // No algorithm sends more than twice the buffer in full shares, or has more than twice as many messages as
            // there are ranks and pieces.
            Op::Collective { bytes, group, .. } => {
                let ranks = self.groups[group as usize].len() as u64;
                let levels = u64::from(ranks.max(2).ilog2() + 1);
                2 * (bytes / segment + 1) * levels + 2 * ranks + 128
            }
            Op::Compute { .. } | Op::Recv { .. } => 0,
        };
        let total = |rank: &RankSchedule| rank.nodes.iter().map(of).fold(0, u64::saturating_add);
        self.ranks.iter().map(total).max().unwrap_or(0)
    }

    /// A node in words: file, rank and name.
    pub fn place(&self, rank: u32, node: u32) -> String {
        self.names.place(rank, self.ranks[rank as usize].nodes[node as usize].name)
    }
}

/// Ranks of a job.
pub const RANKS_MAX: u32 = 1 << 16;
/// Nodes of all ranks: 2 GB with their dependencies.
pub const NODES_MAX: usize = 1 << 24;
/// Dependencies of all ranks.
pub const EDGES_MAX: usize = 1 << 26;
/// Members of all groups.
pub const MEMBERS_MAX: usize = 1 << 24;
/// Size of a message, or of the buffer of a collective: 16 TB.
pub const BYTES_MAX: u64 = 1 << 44;
/// Time of one node: 100,000 s.
pub const COMPUTE_MAX_PS: u64 = 100_000_000_000_000_000;
