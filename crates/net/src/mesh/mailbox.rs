//! Matches messages to receives, in the order in which each sender sent them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rustc_hash::FxHashMap;

use super::error::MeshError;
use super::frame::{Channel, Key};
use super::limits::{ALLOWANCE, ANNOUNCED_MAX, CONTROL_HELD_MAX, CONTROLS_MAX, CREDIT, cost};
use super::receive::Slot;

pub(super) struct Mailbox {
    posted: FxHashMap<Key, VecDeque<Posted>>,
    stored: FxHashMap<Key, VecDeque<Stored>>,
    /// Announced messages that were requested, by sender and id.
    incoming: FxHashMap<(u32, u64), Incoming>,
    peers: Vec<Peer>,
    failed: Option<MeshError>,
    /// Whether nothing is posted or stored: set by a check of both, cleared by new entries.
    empty: Arc<AtomicBool>,
}

struct Posted {
    /// `None` accepts a message from any rank.
    from: Option<u32>,
    slot: Arc<Slot>,
}

struct Stored {
    from: u32,
    fingerprint: u32,
    what: Message,
}

enum Message {
    Whole(Vec<u8>),
    Announced { id: u64, len: u64 },
}

struct Incoming {
    slot: Arc<Slot>,
    left: u64,
    /// Bytes that count against [`CONTROL_HELD_MAX`]; `None`: of a message for which a receive was posted.
    control: Option<u64>,
}

#[derive(Default, Clone)]
struct Peer {
    /// Bytes of eager messages of this peer that are stored here.
    held: u64,
    /// Freed bytes that have not been reported to the peer.
    freed: u64,
    /// Announced messages without a receive.
    announced: usize,
    /// Announced control messages that have not arrived, and their bytes.
    controls: usize,
    control_bytes: u64,
    gone: Option<MeshError>,
}

/// Action for a receive that was just posted.
pub(super) enum Match {
    /// The receive waits.
    Waiting,
    /// The message has arrived.
    Deliver { from: u32, bytes: Vec<u8> },
    /// Request message `id` of `len` bytes from `from`.
    Ask { from: u32, id: u64, len: u64 },
    /// The receive can never be served.
    Never(MeshError),
}

impl Mailbox {
    pub(super) fn new(size: u32) -> Mailbox {
        Mailbox {
            posted: FxHashMap::default(),
            stored: FxHashMap::default(),
            incoming: FxHashMap::default(),
            peers: vec![Peer::default(); size as usize],
            failed: None,
            empty: Arc::default(),
        }
    }

    /// Takes the first stored message that matches, or stores the receive. A message with another fingerprint does not
    /// match and stays.
    pub(super) fn post(
        &mut self,
        from: Option<u32>,
        key: Key,
        fingerprint: u32,
        slot: Arc<Slot>,
    ) -> Match {
        if let Some(stored) = self.take_stored(from, key, fingerprint) {
            return self.serve(stored, slot);
        }
        if let Some(reason) = self.failed.clone().or_else(|| self.closed_error(from)) {
            return Match::Never(reason);
        }
        self.empty.store(false, Ordering::Release);
        self.posted.entry(key).or_default().push_back(Posted { from, slot });
        Match::Waiting
    }

    /// Begins an eager message: its bytes count until they are freed. `Err` closes the stream.
    pub(super) fn hold(&mut self, from: u32, len: usize) -> Result<(), &'static str> {
        let peer = &mut self.peers[from as usize];
        peer.held += cost(len);
        if peer.held > ALLOWANCE { Err("more bytes at once than allowed") } else { Ok(()) }
    }

    /// Whether neither a message nor a receive is stored for that key.
    pub(super) fn has_no_entry(&self, key: Key) -> bool {
        if self.posted.is_empty() && self.stored.is_empty() {
            self.empty.store(true, Ordering::Release);
            return true;
        }
        !self.stored.contains_key(&key) && !self.posted.contains_key(&key)
    }

    /// Whether the mailbox is known to be empty for all keys, without a check.
    pub(super) fn empty(&self) -> Arc<AtomicBool> {
        self.empty.clone()
    }

    /// The receive that matches an eager message, if there is one already.
    pub(super) fn take_eager(&mut self, from: u32, key: Key, len: usize) -> Option<Arc<Slot>> {
        let slot = self.take_posted(from, key)?;
        self.free(from, len);
        Some(slot)
    }

    /// Delivers a complete eager message to a receive posted since, or stores it.
    pub(super) fn store(
        &mut self,
        from: u32,
        key: Key,
        fingerprint: u32,
        bytes: Vec<u8>,
    ) -> Option<(Arc<Slot>, Vec<u8>)> {
        if let Some(slot) = self.take_posted(from, key) {
            self.free(from, bytes.len());
            return Some((slot, bytes));
        }
        let what = Message::Whole(bytes);
        self.empty.store(false, Ordering::Release);
        self.stored.entry(key).or_default().push_back(Stored { from, fingerprint, what });
        None
    }

    /// Handles an announcement; true if the message is to be requested now. `Err` closes the stream.
    pub(super) fn announce(
        &mut self,
        from: u32,
        key: Key,
        fingerprint: u32,
        id: u64,
        len: u64,
    ) -> Result<bool, &'static str> {
        self.check_new(from, id)?;
        if let Some(slot) = self.take_posted(from, key) {
            self.expect(from, id, len, slot, None);
            return Ok(true);
        }
        let peer = &mut self.peers[from as usize];
        peer.announced += 1;
        if peer.announced > ANNOUNCED_MAX {
            return Err("more announced messages than allowed");
        }
        let what = Message::Announced { id, len };
        self.empty.store(false, Ordering::Release);
        self.stored.entry(key).or_default().push_back(Stored { from, fingerprint, what });
        Ok(false)
    }

    /// Expects control message `id` of `from` in that slot. `Err` closes the stream.
    pub(super) fn expect_control(
        &mut self,
        from: u32,
        id: u64,
        len: u64,
        slot: Arc<Slot>,
    ) -> Result<(), &'static str> {
        self.check_new(from, id)?;
        let peer = &mut self.peers[from as usize];
        peer.controls += 1;
        peer.control_bytes = peer.control_bytes.saturating_add(len);
        if peer.controls > CONTROLS_MAX || peer.control_bytes > CONTROL_HELD_MAX {
            return Err("more control messages at once than allowed");
        }
        self.expect(from, id, len, slot, Some(len));
        Ok(())
    }

    /// Expects message `id` of `from`, which no other message has, in that slot.
    fn expect(&mut self, from: u32, id: u64, len: u64, slot: Arc<Slot>, control: Option<u64>) {
        let slot = if slot.accept(from, len) { slot } else { Slot::discarding() };
        self.incoming.insert((from, id), Incoming { slot, left: len, control });
    }

    /// The receive of a message whose number is given to another would never end.
    fn check_new(&self, from: u32, id: u64) -> Result<(), &'static str> {
        match self.incoming.contains_key(&(from, id)) {
            true => Err(TWICE),
            false => Ok(()),
        }
    }

    /// The slot for the next `len` bytes of message `id`, and whether they are the last.
    pub(super) fn data(
        &mut self,
        from: u32,
        id: u64,
        len: usize,
    ) -> Result<(Arc<Slot>, bool), &'static str> {
        let entry = self.incoming.get_mut(&(from, id)).ok_or("bytes that were not asked for")?;
        entry.left = entry.left.checked_sub(len as u64).ok_or("more bytes than announced")?;
        let (slot, last, control) = (entry.slot.clone(), entry.left == 0, entry.control);
        if last {
            self.incoming.remove(&(from, id));
            if let Some(bytes) = control {
                let peer = &mut self.peers[from as usize];
                peer.controls -= 1;
                peer.control_bytes -= bytes;
            }
        }
        Ok((slot, last))
    }

    /// Frees the bytes of an eager message that was refused or delivered.
    pub(super) fn free(&mut self, from: u32, len: usize) {
        let peer = &mut self.peers[from as usize];
        peer.held -= cost(len);
        peer.freed += cost(len);
    }

    /// Freed bytes to be reported to the peer now.
    pub(super) fn take_credit(&mut self, peer: u32) -> Option<u64> {
        let freed = &mut self.peers[peer as usize].freed;
        (*freed >= CREDIT).then(|| std::mem::take(freed))
    }

    /// Senders and fingerprints of the stored messages with that tag.
    pub(super) fn stored(&self, channel: Channel, tag: u64) -> Vec<(u32, u32)> {
        let of_tag = |key: &Key| key.channel == channel && key.tag == tag;
        let queues = self.stored.iter().filter(|(key, _)| of_tag(key));
        queues.flat_map(|(_, queue)| queue.iter().map(|s| (s.from, s.fingerprint))).collect()
    }

    /// Removes all messages and receives with that tag; returns the receives.
    pub(super) fn discard(&mut self, channel: Channel, tag: u64) -> Vec<Arc<Slot>> {
        let of_tag = |key: &Key| key.channel == channel && key.tag == tag;
        let stored = self.stored.extract_if(|key, _| of_tag(key));
        let dropped: Vec<Stored> = stored.flat_map(|(_, queue)| queue).collect();
        for Stored { from, what, .. } in dropped {
            match what {
                Message::Whole(bytes) => self.free(from, bytes.len()),
                Message::Announced { .. } => self.peers[from as usize].announced -= 1,
            }
        }
        let posted = self.posted.extract_if(|key, _| of_tag(key));
        posted.flat_map(|(_, queue)| queue).map(|posted| posted.slot).collect()
    }

    /// Receives whose deadline has passed.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<Arc<Slot>> {
        let mut expired = self.take_posted_if(|p| p.slot.is_late(now) || p.slot.is_finished());
        let incoming = self.incoming.values().filter(|i| i.slot.is_late(now));
        expired.extend(incoming.map(|i| i.slot.clone()));
        expired
    }

    /// Why no more messages will come from that peer, or from any.
    fn closed_error(&self, from: Option<u32>) -> Option<MeshError> {
        let Some(from) = from else {
            // One of the peers is this rank itself.
            let mut gone = self.peers.iter().filter_map(|peer| peer.gone.as_ref());
            return gone.nth(self.peers.len().checked_sub(2)?).cloned();
        };
        self.peers[from as usize].gone.clone()
    }

    /// Removes a peer; returns the receives that only it could have served, or that it was the last to serve.
    pub(super) fn peer_gone(&mut self, peer: u32, reason: &MeshError) -> Vec<Arc<Slot>> {
        self.peers[peer as usize].gone = Some(reason.clone());
        let last = self.closed_error(None).is_some();
        let mut gone = self.take_posted_if(|p| p.from.map_or(last, |from| from == peer));
        let lost = self.incoming.extract_if(|&(from, _), _| from == peer);
        gone.extend(lost.map(|(_, incoming)| incoming.slot));
        gone
    }

    /// Fails the mailbox; returns all receives.
    pub(super) fn fail(&mut self, reason: &MeshError) -> Vec<Arc<Slot>> {
        self.failed.get_or_insert_with(|| reason.clone());
        let mut all = self.take_posted_if(|_| true);
        all.extend(self.incoming.drain().map(|(_, incoming)| incoming.slot));
        all
    }

    fn serve(&mut self, stored: Stored, slot: Arc<Slot>) -> Match {
        let from = stored.from;
        match stored.what {
            Message::Whole(bytes) => {
                self.free(from, bytes.len());
                Match::Deliver { from, bytes }
            }
            Message::Announced { id, len } => {
                self.peers[from as usize].announced -= 1;
                match self.failed.as_ref().or(self.peers[from as usize].gone.as_ref()) {
                    Some(reason) => Match::Never(reason.clone()),
                    None if self.check_new(from, id).is_err() => {
                        Match::Never(MeshError::PeerLost { rank: from, reason: TWICE.to_owned() })
                    }
                    None => {
                        self.expect(from, id, len, slot, None);
                        Match::Ask { from, id, len }
                    }
                }
            }
        }
    }

    fn take_stored(&mut self, from: Option<u32>, key: Key, fingerprint: u32) -> Option<Stored> {
        let queue = self.stored.get_mut(&key)?;
        let fits =
            |s: &Stored| s.fingerprint == fingerprint && from.is_none_or(|from| from == s.from);
        let at = queue.iter().position(fits)?;
        let stored = queue.remove(at);
        if queue.is_empty() {
            self.stored.remove(&key);
        }
        stored
    }

    fn take_posted(&mut self, from: u32, key: Key) -> Option<Arc<Slot>> {
        let queue = self.posted.get_mut(&key)?;
        while queue.front().is_some_and(|p| p.slot.is_finished()) {
            queue.pop_front();
        }
        // Cancelled receives further back are removed when deadlines are checked.
        let serves = |p: &Posted| p.from.is_none_or(|wanted| wanted == from);
        let at = queue.iter().position(|p| serves(p) && !p.slot.is_finished());
        let posted = at.and_then(|at| queue.remove(at));
        if queue.is_empty() {
            self.posted.remove(&key);
        }
        posted.map(|posted| posted.slot)
    }

    fn take_posted_if(&mut self, which: impl Fn(&Posted) -> bool) -> Vec<Arc<Slot>> {
        let mut taken = Vec::new();
        self.posted.retain(|_, queue| {
            for posted in std::mem::take(queue) {
                if which(&posted) { taken.push(posted.slot) } else { queue.push_back(posted) }
            }
            !queue.is_empty()
        });
        taken
    }
}

const TWICE: &str = "a message announced under the number of another";

#[cfg(test)]
mod tests {
    use super::super::receive::Target;
    use super::*;

    const KEY: Key = Key { channel: Channel::PointToPoint, tag: 5, part: 0 };

    fn receive() -> Arc<Slot> {
        Slot::new(Target::Bytes { max: 100 }, None, None)
    }

    fn eager(mailbox: &mut Mailbox, from: u32, bytes: &[u8]) {
        mailbox.hold(from, bytes.len()).unwrap();
        if let Some(slot) = mailbox.take_eager(from, KEY, bytes.len()) {
            slot.fill(bytes);
            slot.complete(from);
        } else if let Some((slot, bytes)) = mailbox.store(from, KEY, 0, bytes.to_vec()) {
            slot.fill(&bytes);
            slot.complete(from);
        }
    }

    #[test]
    fn messages_of_one_sender_keep_their_order() {
        let mut mailbox = Mailbox::new(3);
        eager(&mut mailbox, 1, b"first");
        assert!(!mailbox.announce(1, KEY, 0, 9, 50).unwrap());
        eager(&mut mailbox, 2, b"other");
        let first = mailbox.post(Some(1), KEY, 0, receive());
        assert!(matches!(first, Match::Deliver { from: 1, bytes } if bytes == b"first"));
        let second = mailbox.post(None, KEY, 0, receive());
        assert!(matches!(second, Match::Ask { from: 1, id: 9, len: 50 }));
        let third = mailbox.post(None, KEY, 0, receive());
        assert!(matches!(third, Match::Deliver { from: 2, .. }));
        assert!(matches!(mailbox.post(None, KEY, 0, receive()), Match::Waiting));
    }

    #[test]
    fn receives_are_served_in_the_order_of_posting() {
        let mut mailbox = Mailbox::new(3);
        let (a, b, c) = (receive(), receive(), receive());
        mailbox.post(Some(2), KEY, 0, a.clone());
        mailbox.post(None, KEY, 0, b.clone());
        mailbox.post(Some(1), KEY, 0, c.clone());
        eager(&mut mailbox, 1, b"x");
        eager(&mut mailbox, 1, b"y");
        eager(&mut mailbox, 2, b"z");
        assert_eq!(b.wait().unwrap().bytes, b"x");
        assert_eq!(c.wait().unwrap().bytes, b"y");
        assert_eq!(a.wait().unwrap().bytes, b"z");
    }

    #[test]
    fn a_cancelled_receive_takes_no_message() {
        let mut mailbox = Mailbox::new(2);
        let (a, b) = (receive(), receive());
        mailbox.post(Some(1), KEY, 0, a.clone());
        mailbox.post(Some(1), KEY, 0, b.clone());
        a.cancel();
        eager(&mut mailbox, 1, b"x");
        assert_eq!(b.wait().unwrap().bytes, b"x");
    }

    #[test]
    fn a_peer_that_exceeds_its_allowance_is_refused() {
        let mut mailbox = Mailbox::new(2);
        let len = 1 << 20;
        let refused = (0..9).find_map(|_| mailbox.hold(1, len).err());
        assert_eq!(refused, Some("more bytes at once than allowed"));
        assert!(mailbox.data(1, 77, 1).is_err());
        mailbox.expect(1, 77, 10, receive(), None);
        assert!(!mailbox.data(1, 77, 9).unwrap().1);
        assert_eq!(mailbox.data(1, 77, 2).err(), Some("more bytes than announced"));
    }

    #[test]
    fn a_number_announced_twice_takes_no_receive_from_another() {
        let mut mailbox = Mailbox::new(2);
        let first = receive();
        mailbox.post(Some(1), KEY, 0, first.clone());
        assert_eq!(mailbox.announce(1, KEY, 0, 7, 5), Ok(true));
        mailbox.post(Some(1), KEY, 0, receive());
        assert_eq!(mailbox.announce(1, KEY, 0, 7, 5), Err(TWICE));
        let reason = MeshError::Left { rank: 1 };
        assert_eq!(mailbox.fail(&reason).len(), 2, "both receives have an outcome");
        // Both announced before their receives are posted.
        let mut mailbox = Mailbox::new(2);
        assert_eq!(mailbox.announce(1, KEY, 0, 7, 5), Ok(false));
        assert_eq!(mailbox.announce(1, KEY, 0, 7, 5), Ok(false));
        assert!(matches!(mailbox.post(None, KEY, 0, receive()), Match::Ask { id: 7, .. }));
        let second = mailbox.post(None, KEY, 0, receive());
        assert!(matches!(second, Match::Never(MeshError::PeerLost { rank: 1, .. })));
    }

    #[test]
    fn a_message_announced_before_a_failure_is_not_awaited_after_it() {
        let mut mailbox = Mailbox::new(2);
        assert_eq!(mailbox.announce(1, KEY, 0, 7, 5), Ok(false));
        let reason = MeshError::Aborted("over".to_owned());
        mailbox.fail(&reason);
        assert!(matches!(mailbox.post(None, KEY, 0, receive()), Match::Never(r) if r == reason));
    }

    #[test]
    fn control_messages_that_never_arrive_are_bounded() {
        let mut mailbox = Mailbox::new(2);
        let refused = |mailbox: &mut Mailbox, ids: std::ops::Range<u64>, len: u64| {
            ids.into_iter().find_map(|id| mailbox.expect_control(1, id, len, receive()).err())
        };
        let limit = Some("more control messages at once than allowed");
        assert_eq!(refused(&mut mailbox, 0..CONTROLS_MAX as u64, 1), None);
        assert_eq!(refused(&mut mailbox, 9999..10_000, 1), limit);
        let mut mailbox = Mailbox::new(2);
        assert_eq!(refused(&mut mailbox, 0..1, CONTROL_HELD_MAX), None);
        assert!(mailbox.data(1, 0, CONTROL_HELD_MAX as usize).unwrap().1);
        assert_eq!(refused(&mut mailbox, 1..2, CONTROL_HELD_MAX), None, "the first has arrived");
        assert_eq!(refused(&mut mailbox, 2..3, 1), limit);
    }

    #[test]
    fn receives_from_a_lost_peer_are_returned() {
        let mut mailbox = Mailbox::new(3);
        let reason = MeshError::Left { rank: 1 };
        mailbox.post(Some(1), KEY, 0, receive());
        mailbox.post(Some(2), KEY, 0, receive());
        assert_eq!(mailbox.peer_gone(1, &reason).len(), 1);
        assert!(matches!(mailbox.post(Some(1), KEY, 0, receive()), Match::Never(r) if r == reason));
        assert_eq!(mailbox.fail(&reason).len(), 1);
    }

    #[test]
    fn receives_from_any_rank_wait_until_all_ranks_have_left() {
        let mut mailbox = Mailbox::new(3);
        let left = |rank| MeshError::Left { rank };
        let all = [receive(), receive(), receive()];
        all.iter().for_each(|slot| {
            mailbox.post(None, KEY, 0, slot.clone());
        });
        eager(&mut mailbox, 2, b"taken");
        assert!(mailbox.peer_gone(2, &left(2)).is_empty());
        assert!(matches!(mailbox.post(None, KEY, 0, receive()), Match::Waiting));
        eager(&mut mailbox, 1, b"taken");
        assert_eq!(mailbox.peer_gone(1, &left(1)).len(), 2);
        let never = mailbox.post(None, KEY, 0, receive());
        assert!(matches!(never, Match::Never(MeshError::Left { .. })));
    }
}
