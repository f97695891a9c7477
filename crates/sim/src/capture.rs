//! Packets of aggregation as a pcapng file, for Wireshark and its dissector.
//!
//! A packet is recorded where it arrives at a worker, a switch or a server, by an interface of that node's name. On
//! links it is a handle, so its headers are made here: Ethernet, IPv4 (10.0.0.0/8 by the node's number, marks as on the
//! link), UDP, and the protocol's own. Payloads are counts, or belong to the sender: they are cut off, as a capture with
//! a snapshot length does.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// An end of a packet's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Node of the network.
    pub node: u32,
    /// UDP port.
    pub port: u16,
}

/// A capture file.
#[derive(Debug)]
pub struct Capture {
    out: BufWriter<File>,
    /// Interfaces by node, numbered in the order of their first packets.
    interfaces: HashMap<u32, u32>,
    names: Vec<String>,
    packets: u64,
    /// The first error: nothing is written after it.
    error: Option<io::Error>,
}

impl Capture {
    /// A new file. `names`: of the nodes.
    pub fn create(path: &Path, names: Vec<String>) -> io::Result<Capture> {
        let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
        let mut header = Vec::new();
        header.extend(BYTE_ORDER_MAGIC.to_le_bytes());
        header.extend([1, 0, 0, 0]); // version 1.0
        header.extend(u64::MAX.to_le_bytes()); // length of the section: unknown
        block(&mut out, SECTION_HEADER, &header)?;
        Ok(Capture { out, interfaces: HashMap::new(), names, packets: 0, error: None })
    }

    /// Records a packet that arrives now. `content`: the protocol's header; `len`: bytes of header and payload.
    pub(crate) fn packet(
        &mut self,
        now_ps: u64,
        ends: [Place; 2],
        ce: bool,
        content: &[u8],
        len: usize,
    ) {
        if self.error.is_none()
            && let Err(error) = self.write(now_ps, ends, ce, content, len)
        {
            self.error = Some(error);
        }
    }

    /// Completes the file; returns the number of packets. Errors: the first one of the whole run.
    pub fn finish(mut self) -> io::Result<u64> {
        match self.error.take() {
            Some(error) => Err(error),
            None => self.out.flush().map(|()| self.packets),
        }
    }

    fn write(
        &mut self,
        now_ps: u64,
        [from, to]: [Place; 2],
        ce: bool,
        content: &[u8],
        len: usize,
    ) -> io::Result<()> {
        let interface = self.interface(to.node)?;
        let whole = (HEADERS + len) as u32;
        let captured = (HEADERS + content.len()) as u32;
        let nanoseconds = now_ps / 1000;
        let mut body = Vec::with_capacity(20 + captured as usize + 4);
        for word in [interface, (nanoseconds >> 32) as u32, nanoseconds as u32, captured, whole] {
            body.extend(word.to_le_bytes());
        }
        headers(&mut body, from, to, ce, len);
        body.extend(content);
        self.packets += 1;
        block(&mut self.out, ENHANCED_PACKET, &body)
    }

    /// The interface of a node; it is described before its first packet.
    fn interface(&mut self, node: u32) -> io::Result<u32> {
        let next = self.interfaces.len() as u32;
        if let Some(known) = self.interfaces.get(&node) {
            return Ok(*known);
        }
        self.interfaces.insert(node, next);
        let mut body = Vec::new();
        body.extend(ETHERNET.to_le_bytes());
        body.extend([0, 0]);
        body.extend(0_u32.to_le_bytes()); // no snapshot length
        let name = self.names.get(node as usize).map_or("?", String::as_str);
        option(&mut body, IF_NAME, name.as_bytes());
        option(&mut body, IF_TSRESOL, &[9]); // nanoseconds
        option(&mut body, END_OF_OPTIONS, &[]);
        block(&mut self.out, INTERFACE_DESCRIPTION, &body)?;
        Ok(next)
    }
}

/// Ethernet, IPv4 and UDP.
fn headers(out: &mut Vec<u8>, from: Place, to: Place, ce: bool, len: usize) {
    for place in [to, from] {
        // A locally administered address.
        out.extend([2, 0]);
        out.extend(place.node.to_be_bytes());
    }
    out.extend([8, 0]);
    let at = out.len();
    let ecn = if ce { CE } else { ECT0 };
    out.extend([0x45, DSCP << 2 | ecn]);
    out.extend(((IP + UDP + len) as u16).to_be_bytes());
    out.extend([0, 0, 0x40, 0, TTL, UDP_PROTOCOL, 0, 0]);
    for place in [from, to] {
        let [_, a, b, c] = place.node.to_be_bytes();
        out.extend([10, a, b, c]);
    }
    let sum: u32 =
        out[at..].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = !((folded & 0xffff) + (folded >> 16)) as u16;
    out[at + 10..at + 12].copy_from_slice(&folded.to_be_bytes());
    for place in [from, to] {
        out.extend(place.port.to_be_bytes());
    }
    out.extend(((UDP + len) as u16).to_be_bytes());
    out.extend([0, 0]); // no checksum, which IPv4 allows
}

fn block(out: &mut impl Write, kind: u32, body: &[u8]) -> io::Result<()> {
    let padding = body.len().next_multiple_of(4) - body.len();
    let len = (12 + body.len() + padding) as u32;
    out.write_all(&kind.to_le_bytes())?;
    out.write_all(&len.to_le_bytes())?;
    out.write_all(body)?;
    out.write_all(&[0; 3][..padding])?;
    out.write_all(&len.to_le_bytes())
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    out.extend(code.to_le_bytes());
    out.extend((value.len() as u16).to_le_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// UDP ports of switches and of servers, which the dissector knows.
pub(crate) const SWITCH_PORT: u16 = 7701;
/// See [`SWITCH_PORT`].
pub(crate) const SERVER_PORT: u16 = 7801;

/// The UDP port of a worker: one for each, as far as ports go.
pub(crate) fn worker_port(worker: u32) -> u16 {
    20_000 + (worker % 40_000) as u16
}

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const END_OF_OPTIONS: u16 = 0;
const ETHERNET: u16 = 1;
const IP: usize = 20;
const UDP: usize = 8;
/// Bytes before the protocol's own header.
const HEADERS: usize = 14 + IP + UDP;
/// As daemons send.
const DSCP: u8 = 56;
const ECT0: u8 = 2;
const CE: u8 = 3;
const TTL: u8 = 64;
const UDP_PROTOCOL: u8 = 17;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_whole_and_headers_right() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.pcapng");
        let mut capture = Capture::create(&path, vec!["h0".into(), "rack0".into()]).unwrap();
        let ends = [Place { node: 0, port: 20_000 }, Place { node: 1, port: SWITCH_PORT }];
        capture.packet(5_000_000, ends, true, &[1, 2, 3], 100);
        capture.packet(6_000_000, [ends[1], ends[0]], false, &[4; 8], 8);
        assert_eq!(capture.finish().unwrap(), 2);
        let bytes = std::fs::read(&path).unwrap();
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let (mut at, mut kinds) = (0, Vec::new());
        while at < bytes.len() {
            let len = word(at + 4) as usize;
            assert_eq!(len % 4, 0);
            assert_eq!(word(at + len - 4) as usize, len, "a block says its length twice");
            kinds.push((word(at), at));
            at += len;
        }
        let order: Vec<u32> = kinds.iter().map(|&(kind, _)| kind).collect();
        assert_eq!(order, [SECTION_HEADER, INTERFACE_DESCRIPTION, 6, INTERFACE_DESCRIPTION, 6]);
        let first = kinds[2].1 + 8;
        let words: Vec<u32> = (0..5).map(|n| word(first + 4 * n)).collect();
        assert_eq!(words, [0, 0, 5_000, 45, 142]);
        let ip = &bytes[first + 20 + 14..][..IP];
        assert_eq!(ip[1] & 3, CE);
        let sum: u32 = ip.chunks(2).map(|p| u32::from(u16::from_be_bytes([p[0], p[1]]))).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "the checksum makes the sum all ones");
        assert_eq!((&ip[12..16], &ip[16..20]), (&[10, 0, 0, 0][..], &[10, 0, 0, 1][..]));
    }
}
