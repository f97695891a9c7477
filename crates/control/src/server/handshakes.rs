//! Places for handshakes in progress, shared fairly by the hosts that begin them.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The handshakes in progress. If all places are taken, the source with the most handshakes yields its oldest to a source
/// with fewer: a newcomer always finds a place, however many places a few hosts hold.
#[derive(Debug, Clone)]
pub(super) struct Handshakes {
    most: usize,
    open: Arc<Mutex<Open>>,
}

#[derive(Debug, Default)]
struct Open {
    count: usize,
    next: u64,
    /// Oldest first.
    of: HashMap<Source, VecDeque<Place>>,
}

#[derive(Debug)]
struct Place {
    number: u64,
    evicted: Arc<Notify>,
}

/// A handshake in progress.
#[derive(Debug)]
pub(super) struct Handshake {
    source: Source,
    number: u64,
    evicted: Arc<Notify>,
    open: Arc<Mutex<Open>>,
}

/// Who shares places: an IPv4 address, or the 64 leading bits of an IPv6 address, which one host may have to itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Source(IpAddr);

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Source {
        match address.to_canonical() {
            IpAddr::V4(address) => Source(address.into()),
            IpAddr::V6(address) => {
                Source(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into())
            }
        }
    }
}

impl Handshakes {
    /// `most`: number of places.
    pub fn new(most: usize) -> Handshakes {
        Handshakes { most, open: Arc::default() }
    }

    /// A place until the result is dropped; `None`: no source has more than this one, or this one has half of all.
    pub fn begin(&self, address: IpAddr) -> Option<Handshake> {
        let source = Source::from(address);
        let mut open = lock(&self.open);
        let own = open.of.get(&source).map_or(0, VecDeque::len);
        if own >= self.most / 2 || open.count >= self.most && !open.evict(own + 1) {
            return None;
        }
        let (number, evicted) = (open.next, Arc::<Notify>::default());
        open.next += 1;
        open.count += 1;
        open.of.entry(source).or_default().push_back(Place { number, evicted: evicted.clone() });
        Some(Handshake { source, number, evicted, open: self.open.clone() })
    }
}

impl Open {
    /// Evicts the oldest handshake of the source with the most, if these are more than `than`.
    fn evict(&mut self, than: usize) -> bool {
        let most = self.of.iter().max_by_key(|(_, places)| places.len());
        let Some(source) = most.filter(|(_, places)| places.len() > than).map(|(&s, _)| s) else {
            return false;
        };
        if let Some(oldest) = self.of.get(&source).and_then(|places| places.front()) {
            oldest.evicted.notify_one();
            self.remove(source, oldest.number);
        }
        true
    }

    /// Frees a place, unless its handshake was evicted.
    fn remove(&mut self, source: Source, number: u64) {
        let Entry::Occupied(mut entry) = self.of.entry(source) else { return };
        let before = entry.get().len();
        entry.get_mut().retain(|place| place.number != number);
        self.count -= before - entry.get().len();
        if entry.get().is_empty() {
            entry.remove();
        }
    }
}

impl Handshake {
    /// Completes when the handshake must make room for another host's.
    pub async fn evicted(&self) {
        self.evicted.notified().await;
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        lock(&self.open).remove(self.source, self.number);
    }
}

fn lock(open: &Mutex<Open>) -> MutexGuard<'_, Open> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_does_not_take_all_places() {
        let handshakes = Handshakes::new(4);
        let [one, other] = ["192.0.2.1", "192.0.2.2"].map(|address| address.parse().unwrap());
        let mut held: Vec<_> = (0..2).map(|_| handshakes.begin(one).unwrap()).collect();
        assert!(handshakes.begin(one).is_none());
        held.extend((0..2).map(|_| handshakes.begin(other).unwrap()));
        assert!(handshakes.begin(other).is_none(), "the other has no fewer");
        held.remove(0);
        assert!(handshakes.begin(one).is_some());
        held.clear();
        assert!(lock(&handshakes.open).of.is_empty());
    }

    #[test]
    fn a_newcomer_finds_a_place_whatever_others_hold() {
        let handshakes = Handshakes::new(8);
        let address = |last| IpAddr::from([192, 0, 2, last]);
        let mut hostile: Vec<_> =
            (0..8).map(|n| handshakes.begin(address(n % 2)).unwrap()).collect();
        let places: Vec<_> = (2..6).map(|n| handshakes.begin(address(n)).unwrap()).collect();
        assert_eq!(lock(&handshakes.open).count, 8);
        let evicted = |handshake: &Handshake| {
            let open = lock(&handshakes.open);
            let held = open.of.get(&handshake.source);
            !held.is_some_and(|held| held.iter().any(|place| place.number == handshake.number))
        };
        assert!(hostile[..4].iter().all(evicted), "the oldest");
        assert!(!hostile[4..].iter().any(evicted) && !places.iter().any(evicted));
        // The end of an evicted handshake frees no place a second time.
        hostile.drain(..4);
        assert_eq!(lock(&handshakes.open).count, 8);
        hostile.clear();
        assert_eq!(lock(&handshakes.open).count, 4);
    }

    #[test]
    fn addresses_of_one_network_of_ipv6_are_one_source() {
        let source = |text: &str| Source::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:0:1"));
        assert_ne!(source("2001:db8:0:1::1"), source("2001:db8::1"));
        assert_eq!(source("::ffff:192.0.2.1"), source("192.0.2.1"));
    }
}
