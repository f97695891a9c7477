//! A controller's grant to a job at one aggregator.

use netsum_wire::{Epoch, JobId, TreeId};

use super::slab::buffer_bytes;
use crate::PortId;
use crate::children::ChildSet;
use crate::congestion::INITIAL_WINDOW;
use crate::lease::{Granted, LeaseKey, Superseded};

/// Maximum number of children of a tree node: the width of a set of them.
pub const MAX_CHILDREN: usize = ChildSet::BITS as usize;
/// Bits of a header's `marks`.
pub const MAX_BRANCHES: u8 = 32;
/// Thousandths of the children that are "all".
pub(crate) const ALL: u16 = 1000;

/// Grant to one job at one tree node, for one epoch. `P` names a neighbour: a port number for machines, an address for
/// drivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease<P = PortId> {
    /// Job.
    pub job: JobId,
    /// Version of the plan; a lease of a later epoch replaces this one.
    pub epoch: Epoch,
    /// Tree.
    pub tree: TreeId,
    /// Children (`members`) by child index: their order is the order of additions.
    pub children: Vec<Child<P>>,
    /// Next node towards the root; `None` at the root.
    pub parent: Option<P>,
    /// Maximum number of fragments in flight, independent of memory.
    pub slots: u16,
    /// Largest payload, counted in the type in which elements are added.
    pub fragment_bytes: u16,
    /// Children, in thousandths of all, whose fragments suffice to release a sum; 1000 is full
    /// synchronisation, 880 is the paper's panama-0.88.
    pub release_permille: u16,
}

/// The window of a worker before its first result, which carries the switches' limit, for a lease of `slots`.
/// Every switch retains that many sums, however little memory it has: evicting a sum that a child still needs would
/// make the child retry forever.
pub(crate) fn first_window(slots: u16) -> u16 {
    slots.min(INITIAL_WINDOW)
}

/// Buffers for each fragment in flight at a node: a port buffer per child, the sum under way and one retained sum.
pub fn buffers_per_fragment(children: usize) -> u64 {
    children as u64 + 2
}

/// One child of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Child<P = PortId> {
    /// Neighbour.
    pub port: P,
    /// Ranks beneath it, one bit each (mod 64).
    pub ranks: u64,
    /// Its bit in `marks`, 0..32, unique in trees of at most 32 branches.
    pub branch: u8,
}

/// Why a lease cannot be installed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// No children, or more than an aggregator supports.
    #[error("a tree node needs 1 to {MAX_CHILDREN} children, the lease has {0}")]
    Children(usize),
    /// Two children (or a child and the parent) are the same neighbour.
    #[error("neighbour {0:?} occurs twice in the lease")]
    DuplicateNeighbour(PortId),
    /// Branch number out of range.
    #[error("branch {0} is not below {MAX_BRANCHES}")]
    Branch(u8),
    /// Slot count out of range.
    #[error("a lease of {0} slots is not between 1 and 16384")]
    Slots(u16),
    /// Fraction out of range.
    #[error("release_permille {0} is not between 1 and {ALL}")]
    ReleasePermille(u16),
    /// Invalid size of a fragment.
    #[error("fragments of {0} bytes are not between 64 and 8960, in steps of 8")]
    FragmentBytes(u16),
    /// The lease's epoch is not later than the installed one.
    #[error("epoch {offered} is not after the installed epoch {installed}")]
    Epoch {
        /// Epoch of the lease.
        offered: Epoch,
        /// Installed epoch.
        installed: Epoch,
    },
    /// Not enough memory for one fragment of each child.
    #[error("aggregation memory is full: a tree needs at least {needed} bytes, {free} are free")]
    NoMemory {
        /// Bytes for one fragment in flight, with a buffer per child and one for the sum, and for the sums of a first
        /// window.
        needed: u64,
        /// Bytes that no lease has reserved.
        free: u64,
    },
}

impl<P: Copy> Lease<P> {
    /// The same lease with other names for neighbours.
    pub fn map<Q>(&self, mut name: impl FnMut(P) -> Q) -> Lease<Q> {
        let children = self.children.iter();
        let children =
            children.map(|c| Child { port: name(c.port), ranks: c.ranks, branch: c.branch });
        Lease {
            job: self.job,
            epoch: self.epoch,
            tree: self.tree,
            children: children.collect(),
            parent: self.parent.map(&mut name),
            slots: self.slots,
            fragment_bytes: self.fragment_bytes,
            release_permille: self.release_permille,
        }
    }
}

impl<P> Lease<P> {
    /// Number of buffers that the tree may need at once.
    pub(crate) fn buffers(&self) -> u64 {
        u64::from(self.slots) * buffers_per_fragment(self.children.len())
    }

    /// Aggregation memory that the lease takes of a switch that stores fragments in a [`Slab`](super::Slab).
    pub fn memory_bytes(&self) -> u64 {
        self.buffers() * buffer_bytes(self.fragment_bytes)
    }

    /// Whether sums may be released before all children have contributed.
    pub fn is_partial(&self) -> bool {
        self.release_permille < ALL
    }

    /// Number of children that suffice to release a sum.
    pub(crate) fn needed(&self) -> u32 {
        (self.children.len() as u32 * u32::from(self.release_permille)).div_ceil(u32::from(ALL))
    }
}

impl Lease {
    /// Validates everything that does not depend on the switch.
    pub fn validate(&self) -> Result<(), LeaseError> {
        let n = self.children.len();
        if n == 0 || n > MAX_CHILDREN {
            return Err(LeaseError::Children(n));
        }
        let mut ports: Vec<PortId> = self.children.iter().map(|c| c.port).collect();
        ports.extend(self.parent);
        ports.sort();
        if let Some(twice) = ports.windows(2).find(|w| w[0] == w[1]) {
            return Err(LeaseError::DuplicateNeighbour(twice[0]));
        }
        if let Some(child) = self.children.iter().find(|c| c.branch >= MAX_BRANCHES) {
            return Err(LeaseError::Branch(child.branch));
        }
        if self.slots == 0 || self.slots > 16384 {
            return Err(LeaseError::Slots(self.slots));
        }
        if self.release_permille == 0 || self.release_permille > ALL {
            return Err(LeaseError::ReleasePermille(self.release_permille));
        }
        if !(64..=8960).contains(&self.fragment_bytes) || !self.fragment_bytes.is_multiple_of(8) {
            return Err(LeaseError::FragmentBytes(self.fragment_bytes));
        }
        Ok(())
    }
}

impl Granted for Lease {
    fn key(&self) -> LeaseKey {
        LeaseKey { job: self.job, epoch: self.epoch, tree: self.tree }
    }
}

impl From<Superseded> for LeaseError {
    fn from(Superseded { offered, installed }: Superseded) -> LeaseError {
        LeaseError::Epoch { offered, installed }
    }
}
