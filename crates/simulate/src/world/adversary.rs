//! An adversary on the network, which hears every packet of sums and sends any packet under any address.
//!
//! It has no key, or is a member of one job and has that rank's keys: that job's sums may be spoiled and the job may end,
//! and nothing else. Packets without a tag are left alone: whoever sends them trusts the network.

use netsum_lease::worker_secrets;
use netsum_proto::Secrets;
use netsum_wire::seal::{SEALED_HEADER_LEN, SealKey, is_sealed};
use netsum_wire::{Epoch, JobId, Protocol};

use super::clock::{MS, Nanos, SECOND};
use super::{Event, Place, World};
use crate::random::Random;
use crate::scenario::{AdversaryShape, Scenario};

/// The adversary of a run.
pub(super) struct Adversary {
    shape: AdversaryShape,
    random: Random,
    /// Some of the packets so far, from any time.
    heard: Vec<Heard>,
    count: u64,
}

/// The rank that the adversary is.
struct Member {
    job: JobId,
    place: Place,
    secrets: Secrets,
}

#[derive(Clone, Debug)]
struct Heard {
    from: Place,
    to: Place,
    bytes: Vec<u8>,
}

impl Adversary {
    pub(super) fn new(scenario: &Scenario) -> Option<Adversary> {
        let shape = scenario.adversary.clone()?;
        let random = Random::of(scenario.seed, &[31]);
        (!scenario.fabric.trusted).then(|| Adversary { shape, random, heard: Vec::new(), count: 0 })
    }

    /// Keeps a packet in place of a random one, so that some are as old as the run.
    fn keep(&mut self, heard: Heard) {
        self.count += 1;
        if self.heard.len() < HEARD {
            self.heard.push(heard);
        } else if self.random.below(8) == 0 {
            let place = self.random.below(HEARD as u64) as usize;
            self.heard[place] = heard;
        }
    }

    /// A hostile packet, and when it arrives. `places`: number of processes.
    fn forge(&mut self, member: Option<&Member>, places: Place) -> (Heard, Nanos) {
        let mut forged = self.random.pick(&self.heard);
        let after = match self.random.below(3) {
            0 => self.random.below(MS),
            1 => self.random.below(50 * MS),
            _ => self.random.below(5 * SECOND),
        };
        let place = self.random.below(places as u64) as usize;
        match self.random.below(9) {
            // As it was.
            0..=2 => {}
            3 => forged.from = place,
            4 => forged.to = place,
            5 => flip(&mut self.random, &mut forged.bytes),
            6 => renumber(&mut self.random, &mut forged.bytes),
            7 => forged.bytes.truncate(self.random.below(forged.bytes.len() as u64 + 1) as usize),
            _ => {
                flip(&mut self.random, &mut forged.bytes);
                renumber(&mut self.random, &mut forged.bytes);
                if let Some(member) = member {
                    self.sign(member, &mut forged);
                }
            }
        }
        if let Some(member) = member
            && job_of(&forged.bytes) == Some(member.job)
            && self.random.chance(500_000)
        {
            // A member sends anything in its own job.
            flip(&mut self.random, &mut forged.bytes);
            self.sign(member, &mut forged);
        }
        (forged, after)
    }

    /// Seals a packet as a member of a job.
    fn sign(&self, member: &Member, forged: &mut Heard) {
        let keys = tree_of(&forged.bytes).and_then(|tree| member.secrets.get(usize::from(tree)));
        let Some(key) = keys.map(|keys| SealKey::new(&keys.up)) else { return };
        let room = SEALED_HEADER_LEN + key.trailer_len();
        if is_sealed(&forged.bytes) && forged.bytes.len() >= room {
            forged.from = member.place;
            key.seal(SERIAL + self.count, &mut forged.bytes, &[]);
        }
    }
}

impl World {
    /// Lets the adversary hear a packet; sends what it makes of those that it has heard.
    pub(super) fn overhear(&mut self, from: Place, to: Place, bytes: &[u8]) {
        let Some(mut adversary) = self.adversary.take() else { return };
        if is_sealed(bytes) {
            adversary.keep(Heard { from, to, bytes: bytes.to_vec() });
            if adversary.random.chance(adversary.shape.per_million) {
                let member = adversary.shape.job.and_then(|job| self.member_of(job as usize));
                let (forged, after) = adversary.forge(member.as_ref(), self.first_standby);
                let Heard { from, to, bytes } = forged;
                let ce = adversary.random.chance(100_000);
                self.report.forged += 1;
                if to != super::CONTROLLER {
                    self.queue.after(after, Event::Packet { from, to, ce, bytes });
                }
            }
        }
        self.adversary = Some(adversary);
    }

    /// The first rank of a job of the scenario, if it has a number and keys.
    fn member_of(&self, job: usize) -> Option<Member> {
        let job = self.jobs.get(job)?;
        let rank = &self.ranks[job.first - self.first_rank];
        let secrets = worker_secrets(&rank.handover.plan()?.0, &rank.rank_keys)?;
        Some(Member { job: JobId(job.id?), place: job.first, secrets })
    }

    /// Whether the adversary is a member of that job, whose sums it may spoil.
    pub(super) fn is_spoiled(&self, job: usize) -> bool {
        let shape = self.scenario.adversary.as_ref().filter(|_| !self.scenario.fabric.trusted);
        shape.is_some_and(|shape| shape.job == Some(job as u32))
    }
}

/// The tree in a packet.
fn tree_of(bytes: &[u8]) -> Option<u8> {
    match Protocol::of_version(*bytes.first()?)? {
        Protocol::Panama => bytes.get(2).copied(),
        Protocol::Atp => bytes.get(3).copied(),
        Protocol::Switchml => bytes.get(24).copied(),
    }
}

/// The job in a packet: at the same place in all protocols.
fn job_of(bytes: &[u8]) -> Option<JobId> {
    let bytes = bytes.get(4..8)?.try_into().ok()?;
    Some(JobId(u32::from_be_bytes(bytes)))
}

fn flip(random: &mut Random, bytes: &mut [u8]) {
    if !bytes.is_empty() {
        let bit = random.below(8 * bytes.len() as u64) as usize;
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

/// Moves a packet to a near fragment, or to a near epoch.
fn renumber(random: &mut Random, bytes: &mut [u8]) {
    let near = |random: &mut Random| random.within(1..=4) as u32;
    if let Some(number) = bytes.get_mut(8..12) {
        let old = u32::from_be_bytes([number[0], number[1], number[2], number[3]]);
        number.copy_from_slice(&old.wrapping_add(near(random)).wrapping_sub(2).to_be_bytes());
    }
    if let Some(epoch) = bytes.get_mut(16..18).filter(|_| random.chance(300_000)) {
        let Epoch(old) = Epoch(u16::from_be_bytes([epoch[0], epoch[1]]));
        epoch.copy_from_slice(&old.wrapping_add(near(random) as u16).wrapping_sub(2).to_be_bytes());
    }
}

/// Packets that the adversary remembers.
const HEARD: usize = 200;
/// Numbers of the adversary's sealed packets begin here, beyond those of the rank itself.
const SERIAL: u64 = 1 << 40;
