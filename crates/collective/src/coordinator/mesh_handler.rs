//! What the mesh calls when messages about the group come, and before it stores a message of an operation.

use std::sync::Arc;

use crossbeam_channel::Sender;
use netsum_net::mesh::{Events, Key, MeshError};

use super::Event;
use crate::ledger::{Ledger, Verdict};
use crate::messages::{ControlMessage, MessageKind};

/// Passes on what comes to the coordinator and to the session of a tree plan.
pub(crate) struct MeshHandler {
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) events: Sender<Event>,
    /// Messages about tree plans.
    pub(crate) plans: Sender<ControlMessage>,
}

impl Events for MeshHandler {
    fn control(&self, from: u32, key: Key, bytes: Vec<u8>) {
        if key.tag == MessageKind::PlanHandover as u64 {
            // A group without a tree plan has no session that receives them.
            let _ = self.plans.send(ControlMessage { from, bytes });
            return;
        }
        self.send(Event::Control { from, key, bytes });
    }

    fn admit(&self, _: u32, key: Key, fingerprint: u32) -> bool {
        match self.ledger.judge(key.tag, fingerprint) {
            Verdict::Keep => true,
            Verdict::Stale => false,
            Verdict::Differs => {
                self.send(Event::Differs(key.tag));
                false
            }
        }
    }

    fn failed(&self, reason: &MeshError) {
        self.send(Event::MeshFailed(reason.clone()));
    }
}

impl MeshHandler {
    fn send(&self, event: Event) {
        // The thread ends before the mesh does when a group is closed.
        let _ = self.events.send(event);
    }
}
