//! A plan as plain data: circuits and lanes.

use netsum_topo::{Circuit, OcsNode, OcsSpec, Ratio};
use serde::{Deserialize, Serialize};

/// Circuits that stay during the collective, and the lanes that carry the buffer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OcsPlan {
    /// The workers, devices and ports.
    pub spec: OcsSpec,
    /// The circuits; lanes refer to them by index.
    pub circuits: Vec<Circuit>,
    /// The lanes, which carry the buffer in proportion to their shares.
    pub lanes: Vec<Lane>,
}

/// A part of the buffer and its path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Lane {
    /// Summed towards `root`, then sent from it; both stream at the rate `share`.
    Tree {
        /// Rate on each of its circuits, per direction of use.
        share: Ratio,
        /// Where the sum is complete.
        root: OcsNode,
        /// Circuits towards the root.
        reduce: Vec<u32>,
        /// Circuits away from it.
        broadcast: Vec<u32>,
    },
    /// Ring allreduce: N chunks, each summed along N − 1 circuits and spread along as many more.
    Ring {
        /// algbw of the lane; each circuit carries 2(N−1)/N of it.
        share: Ratio,
        /// Circuits in the order of travel.
        circuits: Vec<u32>,
    },
}

impl Lane {
    /// The lane's algbw.
    pub fn share(&self) -> Ratio {
        match self {
            Lane::Tree { share, .. } | Lane::Ring { share, .. } => *share,
        }
    }
}

impl OcsPlan {
    /// The claimed algbw: the sum of all shares.
    pub fn algbw(&self) -> Ratio {
        self.lanes.iter().map(Lane::share).sum()
    }
}
