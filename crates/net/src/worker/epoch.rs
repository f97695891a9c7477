//! A plan and its operations.

use std::net::SocketAddr;
use std::ops::Range;

use netsum_proto::{Secrets, Time, Worker, WorkerConfig, WorkerTags};

use super::retained::Retained;
use super::{TreeOperation, WorkerPlan};

/// A plan in use.
pub(super) struct Epoch {
    pub(super) worker: Worker,
    pub(super) retained: Retained,
    /// Whether sending and accepting have stopped.
    pub(super) frozen: bool,
    /// Whether no packet matters while no operation is active. Servers of other protocols ask for contributions to what
    /// is done here, and switches that do not wait for all ranks send sums of what is not submitted yet.
    pub(super) quiet: bool,
    pub(super) tags: WorkerTags,
    /// Senders of the results of each tree, to which its packets go. Each tree has trains of its own, also where several
    /// have the same switch: it may have a thread for each.
    pub(super) switches: Vec<SocketAddr>,
    /// Each switch once, in order.
    senders: Vec<SocketAddr>,
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
        let mut senders = switches.clone();
        senders.sort();
        senders.dedup();
        let settings = config.settings();
        let quiet = matches!(&config, WorkerConfig::Panama(config) if !config.partial);
        Epoch {
            retained: Retained::new(settings.retained, settings.fragment_bytes.into()),
            worker: Worker::starting_at(now, config, first),
            frozen: false,
            quiet,
            tags: WorkerTags::new(secrets),
            switches,
            senders,
        }
    }

    /// Takes keys into use that have arrived after the plan.
    pub(super) fn secure(&mut self, secrets: Secrets) {
        self.tags.secure(secrets);
    }

    /// Whether a sender is a switch of the plan.
    #[inline]
    pub(super) fn expects(&self, from: SocketAddr) -> bool {
        self.senders.binary_search(&from).is_ok()
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
