//! Callbacks of the mesh: control messages, and messages whose fingerprint differs.

use std::sync::Arc;

use crossbeam_channel::Sender;
use netsum_net::mesh::{Events, Key, MeshError};

use super::Event;
use crate::ledger::{Ledger, Verdict};
use crate::messages::{ControlMessage, MessageKind};
use crate::responder;

/// Forwards control messages to the coordinator, the responder and the session of a tree plan.
pub(crate) struct MeshHandler {
    /// The group's name.
    pub(crate) group: String,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) events: Sender<Event>,
    /// Messages about tree plans.
    pub(crate) plans: Sender<ControlMessage>,
}

impl Events for MeshHandler {
    fn control(&self, from: u32, key: Key, bytes: Vec<u8>) {
        if key.tag == MessageKind::PlanHandover as u64 {
            // Without a tree plan, no session receives them.
            let _ = self.plans.send(ControlMessage { from, bytes });
            return;
        }
        // Answered even while the coordinator waits.
        match MessageKind::from_tag(key.tag) {
            Some(MessageKind::Question) => {
                responder::on_question(self.group.clone(), from, key.part)
            }
            Some(MessageKind::Answer) => responder::on_answer(&self.group, from, key.part, bytes),
            _ => self.send(Event::Control { from, key, bytes }),
        }
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
        // When a group is closed, the thread ends before the mesh.
        let _ = self.events.send(event);
    }
}
