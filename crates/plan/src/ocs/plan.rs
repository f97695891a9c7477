//! A plan as plain data: circuits, and what flows along them.

use netsum_topo::{Circuit, OcsNode, OcsSpec};
use serde::{Deserialize, Serialize};

use super::Rational;

/// A rate or a share, exact; written as `"16/15"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(pub Rational);

/// Circuits that stay while the buffer is summed, and the lanes that carry it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OcsPlan {
    /// What there was to be joined.
    pub spec: OcsSpec,
    /// What is joined. Lanes name circuits by their index here.
    pub circuits: Vec<Circuit>,
    /// The buffer is split among them in proportion to their shares.
    pub lanes: Vec<Lane>,
}

/// A part of the buffer and its way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Lane {
    /// Summed towards `root`, then spread from it; both stream at the rate `share`.
    Tree {
        /// Rate on each of its circuits, per direction of use.
        share: Share,
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
        share: Share,
        /// In the order of travel.
        circuits: Vec<u32>,
    },
}

impl Lane {
    /// Its algbw.
    pub fn share(&self) -> Rational {
        match self {
            Lane::Tree { share, .. } | Lane::Ring { share, .. } => share.0,
        }
    }
}

impl OcsPlan {
    /// The claimed algbw: the sum of all shares.
    pub fn algbw(&self) -> Rational {
        self.lanes.iter().map(Lane::share).sum()
    }
}

impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl Serialize for Share {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Share, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong =
            || serde::de::Error::custom(format!("{text:?} is no share; write it like \"16/15\""));
        let (above, below) = text.split_once('/').unwrap_or((&text, "1"));
        let number = |part: &str| part.parse::<i64>().map_err(|_| wrong());
        let (above, below) = (number(above)?, number(below)?);
        if below < 1 {
            return Err(wrong());
        }
        Ok(Share(Rational::new(above.into(), below.into())))
    }
}
