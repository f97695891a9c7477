//! What ranks tell each other about plans, through the mesh.

use std::ops::Range;

use netsum_topo::links::TreePlan;
use serde::{Deserialize, Serialize};

use super::super::LostLink;

/// Rank 0 leads: it says when to stop, hears how far everybody is, and says how to go on.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Word {
    /// To rank 0, of the epoch in use: a lane does not work. `lost`: links of which that is certain.
    Suspect { lost: Vec<LostLink>, reason: String },
    /// To all: the epoch that is to come; nobody uses the old one from here on.
    Freeze,
    /// To rank 0: how far we are.
    Frozen(Frozen),
    /// To all: how to go on.
    Go(Go),
    /// To all, where sums go over the hosts: the operation stays there, so no other plan comes before it.
    OnHosts { sequence: u64 },
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Frozen {
    /// The operation that is under way.
    pub(super) sequence: Option<u64>,
    /// Its elements that have everybody's values here.
    pub(super) finals: Vec<Range<usize>>,
    /// One more than the last operation that is over.
    pub(super) over: u64,
    pub(super) lost: Vec<LostLink>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Go {
    /// `None`: over the hosts.
    pub(super) plan: Option<TreePlan>,
    /// Why, in words.
    pub(super) reason: String,
    /// Operations below are over at some rank, so all their results are everywhere.
    pub(super) over: u64,
    /// The operation that is gone on with, and its finished elements by rank.
    pub(super) sequence: Option<u64>,
    pub(super) finals: Vec<Vec<Range<usize>>>,
}

/// A word as it came.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) from: u32,
    pub(crate) epoch: u64,
    pub(crate) bytes: Vec<u8>,
}
