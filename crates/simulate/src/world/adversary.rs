//! An adversary on the network, which hears every packet of sums and sends any packet under any address.
//!
//! It has no key, or those of one job, of which it is then a member: that job's sums may be spoiled and the job may end,
//! and nothing else. Packets without a tag are left alone: whoever sends them trusts the network.

use netsum_wire::tag::JobKey;
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

    /// A hostile packet, and when it arrives. `key`: that of the job of which the adversary is a member. `places`:
    /// number of processes.
    fn forge(&mut self, key: Option<&(JobId, JobKey)>, places: Place) -> (Heard, Nanos) {
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
                if let Some((_, key)) = key {
                    key.seal(&mut forged.bytes, &[]);
                }
            }
        }
        if let Some((job, key)) = key
            && job_of(&forged.bytes) == Some(*job)
            && self.random.chance(500_000)
        {
            // A member sends anything in its own job.
            flip(&mut self.random, &mut forged.bytes);
            key.seal(&mut forged.bytes, &[]);
        }
        (forged, after)
    }
}

impl World {
    /// Lets the adversary hear a packet; sends what it makes of those that it has heard.
    pub(super) fn overhear(&mut self, from: Place, to: Place, bytes: &[u8]) {
        let Some(mut adversary) = self.adversary.take() else { return };
        if has_tag(bytes) {
            adversary.keep(Heard { from, to, bytes: bytes.to_vec() });
            if adversary.random.chance(adversary.shape.per_million) {
                let key = adversary.shape.job.and_then(|job| self.key_of(job as usize));
                let (forged, after) = adversary.forge(key.as_ref(), self.processes.len());
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

    /// Number and key of a job of the scenario, if it has them.
    fn key_of(&self, job: usize) -> Option<(JobId, JobKey)> {
        let job = self.jobs.get(job)?;
        let plan = self.ranks[job.first - self.first_rank].handover.plan()?;
        Some((JobId(job.id?), plan.0.key?))
    }

    /// Whether the adversary is a member of that job, whose sums it may spoil.
    pub(super) fn is_spoiled(&self, job: usize) -> bool {
        let shape = self.scenario.adversary.as_ref().filter(|_| !self.scenario.fabric.trusted);
        shape.is_some_and(|shape| shape.job == Some(job as u32))
    }
}

fn has_tag(bytes: &[u8]) -> bool {
    let protocol = bytes.first().and_then(|&version| Protocol::of_version(version));
    protocol.is_some_and(|protocol| {
        let layout = protocol.layout();
        let tag = layout.tag.and_then(|at| bytes.get(at..at + 8));
        tag.is_some_and(|tag| tag != [0; 8])
    })
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
