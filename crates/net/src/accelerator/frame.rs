//! Ethernet, IPv4 and UDP headers around packets, as on the accelerator's lines.
//!
//! The system strips the headers of the hosts' real frames at a UDP socket. MAC addresses are derived from IPv4
//! addresses: the device does not compare them.

use std::net::{Ipv4Addr, SocketAddrV4};

/// Bytes of headers before a packet.
pub(super) const HEADERS: usize = 42;
/// Bytes of these headers (and two of the packet, which are 0) in a lease's template.
pub(super) const TEMPLATE: usize = 44;
/// DSCP 56, with the ECN field of an unmarked and of a marked packet.
const ECT0: u8 = 56 << 2 | 0b10;
const CE: u8 = 56 << 2 | 0b11;

fn mac(ip: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = ip.octets();
    [0x02, 0x5e, a, b, c, d]
}

fn headers(
    from: SocketAddrV4,
    to: SocketAddrV4,
    payload: Option<usize>,
    ce: bool,
) -> [u8; HEADERS] {
    let mut h = [0; HEADERS];
    h[..6].copy_from_slice(&mac(*to.ip()));
    h[6..12].copy_from_slice(&mac(*from.ip()));
    h[12..14].copy_from_slice(&[0x08, 0x00]);
    h[14] = 0x45;
    h[15] = if ce { CE } else { ECT0 };
    h[20] = 0x40; // don't fragment
    h[22] = 64;
    h[23] = 17;
    h[26..30].copy_from_slice(&from.ip().octets());
    h[30..34].copy_from_slice(&to.ip().octets());
    h[34..36].copy_from_slice(&from.port().to_be_bytes());
    h[36..38].copy_from_slice(&to.port().to_be_bytes());
    if let Some(bytes) = payload {
        h[16..18].copy_from_slice(&((28 + bytes) as u16).to_be_bytes());
        h[38..40].copy_from_slice(&((8 + bytes) as u16).to_be_bytes());
    }
    let sum = !ones_sum(&h[14..34]);
    h[24..26].copy_from_slice(&sum.to_be_bytes());
    h
}

/// Ones' complement sum of 16-bit words.
fn ones_sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// Builds a frame with a packet.
pub(crate) fn build(from: SocketAddrV4, to: SocketAddrV4, ce: bool, packet: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEADERS + packet.len());
    frame.extend_from_slice(&headers(from, to, Some(packet.len()), ce));
    frame.extend_from_slice(packet);
    frame
}

/// The template of a lease: all headers but lengths and identification.
pub(super) fn template(from: SocketAddrV4, to: SocketAddrV4) -> [u8; TEMPLATE] {
    let mut bytes = [0; TEMPLATE];
    bytes[..HEADERS].copy_from_slice(&headers(from, to, None, false));
    bytes
}

/// Sender, receiver and packet of a frame; `None` if the frame is not an aggregation packet or its checksum is wrong.
pub(crate) fn parse(frame: &[u8]) -> Option<(SocketAddrV4, SocketAddrV4, &[u8])> {
    let (h, packet) = frame.split_first_chunk::<HEADERS>()?;
    let address = |ip: usize, port: usize| {
        let ip = Ipv4Addr::new(h[ip], h[ip + 1], h[ip + 2], h[ip + 3]);
        SocketAddrV4::new(ip, u16::from_be_bytes([h[port], h[port + 1]]))
    };
    let ours = h[12..15] == [0x08, 0x00, 0x45]
        && h[23] == 17
        && ones_sum(&h[14..34]) == 0xffff
        && usize::from(u16::from_be_bytes([h[16], h[17]])) == 28 + packet.len();
    ours.then(|| (address(26, 34), address(30, 36), packet))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_parse_as_built_and_others_are_refused() {
        let from = SocketAddrV4::new(Ipv4Addr::new(10, 1, 2, 3), 4000);
        let to = SocketAddrV4::new(Ipv4Addr::new(10, 1, 2, 255), 7701);
        let frame = build(from, to, true, b"a packet");
        assert_eq!(frame[15] & 0b11, 0b11);
        assert_eq!(parse(&frame), Some((from, to, &b"a packet"[..])));
        for at in [12, 13, 14, 15, 16, 17, 22, 23, 26, 33] {
            let mut wrong = frame.clone();
            wrong[at] ^= 1;
            assert_eq!(parse(&wrong), None, "byte {at}");
        }
        assert_eq!(parse(&frame[..41]), None);
        assert_eq!(parse(&frame[..frame.len() - 1]), None);
    }

    #[test]
    fn a_template_fits_any_length_with_its_complement_as_identification() {
        let from = SocketAddrV4::new(Ipv4Addr::new(127, 77, 2, 1), 7701);
        let to = SocketAddrV4::new(Ipv4Addr::new(127, 77, 1, 9), 50123);
        for bytes in [0u16, 1, 38, 1446, 8870] {
            let mut frame = template(from, to)[..HEADERS].to_vec();
            frame[16..18].copy_from_slice(&(28 + bytes).to_be_bytes());
            frame[18..20].copy_from_slice(&(!(28 + bytes)).to_be_bytes());
            frame.extend(vec![7; usize::from(bytes)]);
            assert_eq!(
                parse(&frame).map(|(a, b, p)| (a, b, p.len())),
                Some((from, to, usize::from(bytes)))
            );
        }
    }
}
