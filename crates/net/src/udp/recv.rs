//! Receiving: many datagrams per call, each possibly a train of packets.

#![allow(unsafe_code)]

use std::io;
use std::net::SocketAddr;

use super::address;
use super::socket::Socket;

/// Maximum number of datagrams per call.
const MESSAGES: usize = 32;
/// Minimum number of datagrams per call, and target for the bytes per call: copied bytes should still be in a
/// second-level cache when they are read. (Calls of 2 MB cost the switch a quarter more time per packet.)
const MESSAGES_AT_LEAST: usize = 4;
const CALL_BYTES: usize = 256 << 10;
/// Maximum size of a train, so nothing is ever truncated.
const MESSAGE_BYTES: usize = 65_536;
/// Room for the segment size and the traffic class.
const CONTROL_BYTES: usize = 64;
/// Congestion experienced, in the ECN bits.
const CE: u8 = 0b11;

#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL_BYTES]);

/// Memory for one receiving call, allocated once.
pub struct RecvBatch {
    payload: Box<[u8]>,
    names: Box<[libc::sockaddr_storage]>,
    control: Box<[Control]>,
    vectors: Box<[libc::iovec]>,
    headers: Box<[libc::mmsghdr]>,
    filled: usize,
    /// In place of the datagrams of a call: packets that were handed over.
    handed: Vec<Message>,
    /// Number of datagrams to request, by the size of the last ones.
    wanted: usize,
}

// SAFETY: its pointers point into its own boxes, which move with it.
unsafe impl Send for RecvBatch {}

/// A datagram: packets of one sender and one ECN mark.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// The sender.
    pub from: SocketAddr,
    /// Whether the network marked congestion.
    pub ce: bool,
    place: BatchSpan,
    segment: u32,
}

/// A range of bytes in a batch, valid until its next call.
#[derive(Clone, Copy, Debug, Default)]
pub struct BatchSpan {
    start: u32,
    len: u32,
}

impl BatchSpan {
    /// Whether the range is empty.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The `len` bytes after the first `bytes` bytes.
    #[inline]
    pub fn after(self, bytes: usize, len: usize) -> BatchSpan {
        let skipped = (bytes as u32).min(self.len);
        BatchSpan { start: self.start + skipped, len: (len as u32).min(self.len - skipped) }
    }
}

impl Message {
    /// The range of its packets, at least one; an empty datagram is one empty packet.
    #[inline]
    pub fn packets(self) -> impl Iterator<Item = BatchSpan> + Clone {
        let BatchSpan { start, len } = self.place;
        (0..len.max(1)).step_by(self.segment as usize).map(move |offset| BatchSpan {
            start: start + offset,
            len: self.segment.min(len - offset),
        })
    }
}

impl RecvBatch {
    /// A batch with two megabytes.
    pub fn new() -> RecvBatch {
        // SAFETY: integers and pointers, for which zero is a value; no pointer is used before `prepare`.
        let header: libc::mmsghdr = unsafe { std::mem::zeroed() };
        let vector = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let mut batch = RecvBatch {
            payload: vec![0; MESSAGES * MESSAGE_BYTES].into(),
            names: vec![address::unspecified(); MESSAGES].into(),
            control: vec![Control([0; CONTROL_BYTES]); MESSAGES].into(),
            vectors: vec![vector; MESSAGES].into(),
            headers: vec![header; MESSAGES].into(),
            filled: MESSAGES,
            handed: Vec::new(),
            wanted: MESSAGES_AT_LEAST,
        };
        batch.prepare();
        batch
    }

    /// Receives what has arrived, without waiting; returns the number of datagrams.
    pub fn recv(&mut self, socket: &Socket) -> io::Result<usize> {
        self.prepare();
        // SAFETY: `prepare` made every header point at this batch's own memory with its true lengths.
        let got = unsafe {
            libc::recvmmsg(
                socket.fd(),
                self.headers.as_mut_ptr(),
                self.wanted as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        if let Ok(got) = usize::try_from(got) {
            self.filled = got;
            let bytes: usize = self.headers[..got].iter().map(|h| h.msg_len as usize).sum();
            let mean = (bytes / got.max(1)).max(1);
            self.wanted = (CALL_BYTES / mean).clamp(MESSAGES_AT_LEAST, MESSAGES);
            return Ok(got);
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            // An error of an earlier send (the peer is gone) is no reason to stop.
            io::ErrorKind::WouldBlock
            | io::ErrorKind::Interrupted
            | io::ErrorKind::ConnectionRefused => Ok(0),
            _ => Err(error),
        }
    }

    /// Takes packets that another thread has received, as if a call had brought them: as many as there is room for, of
    /// which it returns the number. A packet has a sender, a mark of congestion and bytes.
    pub fn take_over<'a>(
        &mut self,
        packets: impl Iterator<Item = (SocketAddr, bool, &'a [u8])>,
    ) -> usize {
        self.prepare();
        let mut end = 0;
        for (from, ce, bytes) in packets {
            let start = end;
            end += bytes.len();
            let Some(place) = self.payload.get_mut(start..end) else { break };
            place.copy_from_slice(bytes);
            let place = BatchSpan { start: start as u32, len: bytes.len() as u32 };
            let segment = place.len.max(1);
            self.handed.push(Message { from, ce, place, segment });
        }
        self.handed.len()
    }

    /// The datagrams of the last call.
    pub fn messages(&self) -> impl Iterator<Item = Message> {
        (0..self.filled.max(self.handed.len())).map(|i| self.message(i))
    }

    /// Datagram `i` of the last call.
    pub fn message(&self, i: usize) -> Message {
        if let Some(message) = self.handed.get(i) {
            return *message;
        }
        assert!(i < self.filled, "datagram {i} of {}", self.filled);
        let header = &self.headers[i];
        let len = (header.msg_len as usize).min(MESSAGE_BYTES);
        let (segment, class) = notes(&header.msg_hdr);
        Message {
            from: address::decode(&self.names[i]),
            ce: class & CE == CE,
            place: BatchSpan { start: (i * MESSAGE_BYTES) as u32, len: len as u32 },
            segment: if segment == 0 { len.max(1) } else { segment } as u32,
        }
    }

    /// The packets of a datagram.
    pub fn packets(&self, message: Message) -> impl Iterator<Item = &[u8]> {
        message.packets().map(|place| self.bytes(place))
    }

    /// The bytes of a range that the last call filled.
    #[inline]
    pub fn bytes(&self, place: BatchSpan) -> &[u8] {
        &self.payload[place.start as usize..][..place.len as usize]
    }

    /// The same, for a packet that is decrypted in its place.
    #[inline]
    pub fn bytes_mut(&mut self, place: BatchSpan) -> &mut [u8] {
        &mut self.payload[place.start as usize..][..place.len as usize]
    }

    /// The same, of several packets. Panics if they overlap.
    #[inline]
    pub fn several_mut<const N: usize>(&mut self, places: [BatchSpan; N]) -> [&mut [u8]; N] {
        let ranges = places.map(|BatchSpan { start, len }| start as usize..(start + len) as usize);
        self.payload.get_disjoint_mut(ranges).expect("packets do not overlap")
    }

    /// Resets what the last call wrote.
    fn prepare(&mut self) {
        for i in 0..self.filled {
            self.vectors[i] = libc::iovec {
                iov_base: self.payload[i * MESSAGE_BYTES..].as_mut_ptr().cast(),
                iov_len: MESSAGE_BYTES,
            };
            let header = &mut self.headers[i].msg_hdr;
            header.msg_name = (&raw mut self.names[i]).cast();
            header.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            header.msg_iov = &raw mut self.vectors[i];
            header.msg_iovlen = 1;
            header.msg_control = (&raw mut self.control[i]).cast();
            header.msg_controllen = CONTROL_BYTES as _;
            header.msg_flags = 0;
        }
        self.filled = 0;
        self.handed.clear();
    }
}

impl Default for RecvBatch {
    fn default() -> Self {
        RecvBatch::new()
    }
}

/// Segment size (0 if there is none) and traffic class from a received header's control messages.
fn notes(header: &libc::msghdr) -> (usize, u8) {
    let (mut segment, mut class) = (0, 0);
    // SAFETY: control pointer and length are as `prepare` set them or as the system shortened them.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !next.is_null() {
        // SAFETY: not null, so a whole message header lies within the control memory; the system wrote a
        // value of the type that level and type name (the unaligned reads cost nothing).
        unsafe {
            let data = libc::CMSG_DATA(next);
            match ((*next).cmsg_level, (*next).cmsg_type) {
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    let size = data.cast::<libc::c_int>().read_unaligned();
                    segment = usize::try_from(size).unwrap_or(0);
                }
                (libc::IPPROTO_IP, libc::IP_TOS) => class = *data,
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    class = data.cast::<libc::c_int>().read_unaligned() as u8;
                }
                _ => {}
            }
            next = libc::CMSG_NXTHDR(header, next);
        }
    }
    (segment, class)
}
