//! Exhaustive model of how ranks prove their seats. One of three ranks is hostile: it has its own key, the certificate
//! that all ranks have, all secrets, and the network: it calls whom it wants, and answers in anybody's place. TLS holds:
//! what is said on a connection is read and written by its two ends only, and each connection has a value of its own.
//!
//! Honest ranks keep nothing between connections, so what the hostile one can reach depends only on the proofs that it
//! has heard. The model gives it all of them, from connections of now and of an earlier run, in every combination with
//! every hello, until it learns nothing new.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::*;

const RANKS: u32 = 3;

/// What the hostile rank can do beyond that, to see that the model finds it.
#[derive(Clone, Copy, PartialEq)]
enum Weakness {
    None,
    /// All connections have the same value, as if proofs were bound to none.
    OneValue,
    /// It has the key of an honest rank.
    StolenKey,
}

/// A connection: its number, or 0 for all.
struct Connection {
    number: u64,
    identity: Identity,
}

impl Channel for Connection {
    fn export(&self, context: &[u8]) -> io::Result<[u8; EXPORT_LEN]> {
        let mut value = [0; EXPORT_LEN];
        let mut hasher = DefaultHasher::new();
        (self.number, context).hash(&mut hasher);
        value[..8].copy_from_slice(&hasher.finish().to_be_bytes());
        Ok(value)
    }

    fn peer(&self) -> Option<Identity> {
        Some(self.identity.clone())
    }
}

type Proof = [u8; SEAT_PROOF_LEN];

struct World {
    hostile: u32,
    weakness: Weakness,
    identity: Identity,
    keys: Vec<SeatKey>,
    rosters: Vec<Roster>,
}

impl World {
    fn new(hostile: u32, weakness: Weakness) -> World {
        let identity = Identity::new("lab", "tenant/research".parse().unwrap()).unwrap();
        let keys: Vec<SeatKey> = (0..RANKS).map(|_| SeatKey::draw().unwrap()).collect();
        let seat = |(rank, key): (u32, &SeatKey)| Seat {
            address: ([127, 0, 0, 1], 1).into(),
            secret: [rank as u8; SECRET_LEN],
            network_address: None,
            occupant: Some(Occupant { identity: identity.clone(), key: key.public() }),
        };
        let seats: Vec<Seat> = (0..).zip(&keys).map(seat).collect();
        let roster = |rank| Roster { group: 7, rank, seats: seats.clone() };
        let rosters = (0..RANKS).map(roster).collect();
        World { hostile, weakness, identity, keys, rosters }
    }

    fn connection(&self, number: u64) -> Connection {
        let number = if self.weakness == Weakness::OneValue { 0 } else { number };
        Connection { number, identity: self.identity.clone() }
    }

    fn honest(&self) -> impl Iterator<Item = u32> + '_ {
        (0..RANKS).filter(|&rank| rank != self.hostile)
    }

    /// Keys that the hostile rank has.
    fn known_keys(&self) -> Vec<&SeatKey> {
        let stolen = self.honest().next().filter(|_| self.weakness == Weakness::StolenKey);
        let ranks = [Some(self.hostile), stolen];
        ranks.into_iter().flatten().map(|rank| &self.keys[rank as usize]).collect()
    }

    /// What it can sign about a connection of its own.
    fn own_proofs(&self, channel: &Connection) -> Vec<Proof> {
        let mut proofs = Vec::new();
        for (from, to) in pairs() {
            let hello = hello(&self.rosters[0], from, to);
            for side in [Side::Caller, Side::Answerer] {
                let statement = statement(channel, side, &hello[NAMES]).unwrap();
                proofs.extend(self.known_keys().iter().map(|key| key.prove(&statement)));
            }
        }
        proofs
    }

    /// It calls an honest rank, with any hello and proof; every time it is let in is in the result, with the seat.
    fn call(
        &self,
        honest: u32,
        channel: &Connection,
        heard: &BTreeSet<Proof>,
    ) -> Vec<(u32, Proof)> {
        let (key, roster) = (&self.keys[honest as usize], &self.rosters[honest as usize]);
        let mut let_in = Vec::new();
        let own = self.own_proofs(channel);
        for (from, to) in pairs() {
            for proof in heard.iter().chain(&own) {
                let mut offer = [0; OFFER_LEN];
                offer[..HELLO_LEN].copy_from_slice(&hello(roster, from, to));
                offer[HELLO_LEN..].copy_from_slice(proof);
                if let Ok((rank, answer)) = admit(key, channel, roster, &offer) {
                    let_in.push((rank, *answer.last_chunk().unwrap()));
                }
            }
        }
        let_in
    }

    /// An honest rank calls another, and reaches the hostile one: what it says, and whether any answer convinces it.
    fn is_called(
        &self,
        (honest, wanted): (u32, u32),
        channel: &Connection,
        heard: &BTreeSet<Proof>,
    ) -> (Proof, bool) {
        let (key, roster) = (&self.keys[honest as usize], &self.rosters[honest as usize]);
        let offer = offer(key, channel, roster, wanted).unwrap();
        let proof = *offer.last_chunk().unwrap();
        let own = self.own_proofs(channel);
        let heard = heard.iter().chain([&proof]).chain(&own);
        let convinced = heard.into_iter().any(|proof| {
            (0..RANKS).any(|secret| {
                let mut answer = [secret as u8; ANSWER_LEN];
                answer[SECRET_LEN..].copy_from_slice(proof);
                confirm(channel, roster, wanted, &answer).is_ok()
            })
        });
        (proof, convinced)
    }

    /// Lets the hostile rank do everything until it learns nothing new. Error: what it has achieved.
    fn explore(&self) -> Result<usize, String> {
        let mut heard = BTreeSet::new();
        loop {
            let before = heard.len();
            // The second of each kind stands for an earlier run, whose proofs were kept.
            for run in [1000, 2000] {
                for honest in self.honest() {
                    let channel = self.connection(run + u64::from(honest));
                    for (rank, proof) in self.call(honest, &channel, &heard) {
                        if rank != self.hostile {
                            return Err(format!("rank {honest} takes it for rank {rank}"));
                        }
                        heard.insert(proof);
                    }
                    for wanted in 0..honest {
                        let number = run + u64::from(100 + 10 * honest + wanted);
                        let channel = self.connection(number);
                        let (proof, convinced) = self.is_called((honest, wanted), &channel, &heard);
                        if convinced != (wanted == self.hostile) {
                            return Err(format!(
                                "rank {honest} takes it for rank {wanted}: {convinced}"
                            ));
                        }
                        heard.insert(proof);
                    }
                }
            }
            if heard.len() == before {
                return Ok(heard.len());
            }
        }
    }
}

/// Every pair of ranks that a hello can name.
fn pairs() -> impl Iterator<Item = (u32, u32)> {
    (0..RANKS).flat_map(|from| (0..RANKS).map(move |to| (from, to)))
}

#[test]
fn no_member_reaches_another_rank_in_a_third_ones_place() {
    for hostile in 0..RANKS {
        let learnt = World::new(hostile, Weakness::None).explore();
        assert!(learnt.as_ref().is_ok_and(|&proofs| proofs >= 4), "{hostile}: {learnt:?}");
    }
}

#[test]
fn honest_ranks_find_each_other() {
    let world = World::new(2, Weakness::None);
    let channel = world.connection(1);
    let offer = offer(&world.keys[1], &channel, &world.rosters[1], 0).unwrap();
    let (rank, answer) = admit(&world.keys[0], &channel, &world.rosters[0], &offer).unwrap();
    assert_eq!(rank, 1);
    confirm(&channel, &world.rosters[1], 0, &answer).unwrap();
}

#[test]
fn the_model_finds_planted_faults() {
    for weakness in [Weakness::OneValue, Weakness::StolenKey] {
        let found = |hostile: &u32| World::new(*hostile, weakness).explore().is_err();
        assert!((0..RANKS).any(|hostile| found(&hostile)), "it finds nothing");
    }
}
