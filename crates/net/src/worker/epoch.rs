//! A plan and its operations.

use std::net::SocketAddr;
use std::ops::Range;

use netsum_proto::{Secrets, Time, Worker, WorkerTags};
use netsum_wire::TreeId;

use super::retained::Retained;
use super::{TreeOperation, WorkerPlan};

/// A plan in use.
pub(super) struct Epoch {
    pub(super) worker: Worker,
    pub(super) retained: Retained,
    /// Whether sending and accepting have stopped.
    pub(super) frozen: bool,
    pub(super) tags: WorkerTags,
    /// Senders of the results of each tree.
    pub(super) switches: Vec<SocketAddr>,
    /// Each switch once, in order: trees to one switch share trains.
    destinations: Vec<SocketAddr>,
    /// Index in `destinations`, by tree.
    places: Vec<usize>,
}

/// An active operation.
pub(super) struct Active {
    pub(super) operation: TreeOperation,
    /// Ranks (mod 64) that are missing in some result.
    pub(super) missing: u64,
    element_bytes: u64,
}

impl Epoch {
    pub(super) fn new(now: Time, plan: WorkerPlan, secrets: Option<Secrets>, first: u64) -> Epoch {
        let WorkerPlan { config, switches } = plan;
        let mut destinations = switches.clone();
        destinations.sort();
        destinations.dedup();
        let place = |s: &SocketAddr| destinations.binary_search(s).expect("it is among them");
        let settings = config.settings();
        Epoch {
            places: switches.iter().map(place).collect(),
            retained: Retained::new(settings.retained, settings.fragment_bytes.into()),
            worker: Worker::starting_at(now, config, first),
            frozen: false,
            tags: WorkerTags::new(secrets),
            switches,
            destinations,
        }
    }

    /// Takes keys into use that have arrived after the plan.
    pub(super) fn secure(&mut self, secrets: Secrets) {
        self.tags.secure(secrets);
    }

    /// Every switch of the plan, once.
    pub(super) fn destinations(&self) -> &[SocketAddr] {
        &self.destinations
    }

    /// Whether a sender is one of them.
    #[inline]
    pub(super) fn expects(&self, from: SocketAddr) -> bool {
        self.destinations.binary_search(&from).is_ok()
    }

    /// Index of a tree's switch in `destinations`.
    #[inline]
    pub(super) fn destination(&self, tree: TreeId) -> usize {
        self.places[usize::from(tree.0)]
    }
}

impl Active {
    pub(super) fn new(operation: TreeOperation) -> Active {
        let element_bytes = operation.submission.format.dtype.size() as u64;
        Active { operation, missing: 0, element_bytes }
    }

    /// Bytes of the buffer that hold these elements.
    #[inline]
    pub(super) fn bytes(&self, elements: &Range<u64>) -> Range<usize> {
        let at = |element: u64| (element * self.element_bytes) as usize;
        at(elements.start)..at(elements.end)
    }
}
