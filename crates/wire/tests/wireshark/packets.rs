//! Packets of all kinds, and malformed ones.

use netsum_wire::seal::{SealKey, TRAILER_LEN, is_encrypted, with_room};
use netsum_wire::{Dtype, Protocol};

/// The first bytes of all packets that the decoders know.
const VERSIONS: [u8; 9] = [0x11, 0x12, 0x13, 0x21, 0x22, 0x23, 0x31, 0x32, 0x33];

/// SplitMix64 (Steele, Lea and Flood, 2014).
pub struct Random(u64);

impl Random {
    /// From the seed of the property tests.
    pub fn from_environment() -> Random {
        let seed = std::env::var("PROPTEST_RNG_SEED").ok().and_then(|seed| seed.parse().ok());
        Random(seed.unwrap_or(1))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// A byte.
    pub fn byte(&mut self) -> u8 {
        self.next() as u8
    }
}

/// A packet of any protocol and version, in two of three cases a well-formed one or one with a small fault.
pub fn packet(random: &mut Random) -> Vec<u8> {
    let version = VERSIONS[random.below(VERSIONS.len())];
    let mut packet: Vec<u8> = (0..54).map(|_| random.byte()).collect();
    packet[0] = version;
    match Protocol::of_version(version).unwrap() {
        Protocol::Panama => plausible_panama(random, &mut packet),
        Protocol::Atp => plausible_atp(random, &mut packet),
        Protocol::Switchml => plausible_switchml(random, &mut packet),
    }
    match random.below(6) {
        0 => fault(random, &mut packet),
        1 => drop(packet.splice(random.below(packet.len()).., [random.byte()])),
        _ => {}
    }
    packet
}

fn fault(random: &mut Random, packet: &mut [u8]) {
    let at = random.below(packet.len().min(46));
    packet[at] =
        if random.below(2) == 0 { random.byte() } else { packet[at] ^ 1 << random.below(8) };
}

/// Cuts the header to its length and appends elements: `size` bytes each, `n` of them; and the rest of a tag.
fn finish(random: &mut Random, packet: &mut Vec<u8>, header: usize, size: usize, n: u16) {
    packet.truncate(header);
    let trailer = if is_encrypted(packet) { TRAILER_LEN } else { 0 };
    packet.extend((0..size * usize::from(n) + trailer).map(|_| random.byte()));
}

fn plausible_panama(random: &mut Random, packet: &mut Vec<u8>) {
    let (kind, n) = (random.below(8) as u8, random.below(40) as u16);
    let dtypes: Vec<Dtype> = Dtype::ALL.into_iter().filter(|dtype| dtype.in_network()).collect();
    let dtype = dtypes[random.below(dtypes.len())];
    let operation = random.below(3) as u8;
    packet[1] = kind | (random.byte() & 0x30);
    packet[3] = (dtype as u8) << 4 | operation;
    packet[20..22].copy_from_slice(&n.to_be_bytes());
    packet[34..38].fill(0);
    if random.below(2) == 0 {
        packet[34] = random.below(66) as u8;
        packet[35] = random.below(4) as u8 | (random.byte() & 0x70);
    }
    let carries = kind < 3 && packet[35] & 0x10 == 0;
    let copied = packet[35] & 0x0f == 2;
    let size = match kind {
        0 if dtype.is_narrow() && !copied => 1,
        1 if !copied => dtype.accumulator_size(),
        _ => dtype.size(),
    };
    let header = if packet[0] & 15 >= 2 { 54 } else { 38 };
    finish(random, packet, header, if carries { size } else { 0 }, n);
}

/// Bytes of parties: all, or others that exist and some that do not.
fn parties(random: &mut Random) -> (u8, u8) {
    if random.below(2) == 0 {
        return (0, 0);
    }
    let code = random.below(5) as u8;
    (code, if matches!(code, 1 | 2) { random.below(66) as u8 } else { random.below(2) as u8 })
}

fn plausible_atp(random: &mut Random, packet: &mut Vec<u8>) {
    let (kind, n) = (random.below(9) as u8, random.below(40) as u16);
    if random.below(2) == 0 {
        packet[34..38].fill(0);
        (packet[35], packet[34]) = parties(random);
    }
    packet[1] = kind | (random.byte() & 0x10);
    packet[2] = (random.below(5) as u8) << 4 | random.byte() & 15;
    packet[18..20].copy_from_slice(&n.to_be_bytes());
    // One rack, and some of its workers; or any bits, which are rarely possible.
    if random.below(4) > 0 {
        packet[20] = 32 - random.below(2) as u8;
        packet[21] = 32;
        packet[26] &= 0x7f;
        packet[30..34].copy_from_slice(&(1_u32 << random.below(32)).to_be_bytes());
    }
    if random.below(4) > 0 {
        packet[38..46].fill(0);
    }
    let header = if packet[0] & 15 >= 2 { 54 } else { 46 };
    finish(random, packet, header, if kind < 2 { 4 } else { 0 }, n);
}

fn plausible_switchml(random: &mut Random, packet: &mut Vec<u8>) {
    let (kind, n) = (random.below(6) as u8, random.below(40) as u16);
    packet[1] = kind | (random.byte() & 0x10);
    packet[2] = random.below(4) as u8;
    packet[20..22].copy_from_slice(&n.to_be_bytes());
    packet[24] = random.below(2) as u8;
    packet[25..38].fill(0);
    (packet[25], packet[26]) = parties(random);
    let header = if packet[0] & 15 >= 2 { 54 } else { 38 };
    finish(random, packet, header, if kind < 2 { 4 } else { 0 }, n);
}

/// A packet of version 1 as one of version 2 or 3.
pub fn sealed(key: &SealKey, number: u64, packet: &[u8]) -> Vec<u8> {
    let mut sealed = with_room(packet);
    let payload = sealed.split_off(54);
    if !key.seal_last(number, &mut sealed, 0, &payload) {
        sealed.extend(payload);
    }
    sealed
}
