//! Sending: packets are queued per destination and sent as trains, many trains per call.

#![allow(unsafe_code)]

use std::io;
use std::net::SocketAddr;
use std::ops::AddAssign;
use std::time::Duration;

use super::address::{self, RawAddress};
use super::socket::Socket;

/// Minimum limit of kernels with `UDP_SEGMENT`; newer ones allow 128.
const TRAIN_PACKETS: usize = 64;
/// Below the 65,507 bytes of the largest datagram.
const TRAIN_BYTES: usize = 65_000;
/// Messages per call; the system's limit is 1,024.
const CALL_MESSAGES: usize = 512;
/// A worker's send buffer empties in milliseconds; after this time the path is stuck, and dropped packets are recovered
/// by the protocol's time-out.
const BLOCKED_AT_MOST: Duration = Duration::from_millis(200);

/// Packets and their bytes (without IP and UDP headers) sent to one destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Packets that the system refused, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendFailures {
    /// The send buffer or the device's queue stayed full.
    pub no_room: u64,
    /// Larger than the path's MTU.
    pub too_big: u64,
    /// No route, a firewall, a dead device.
    pub refused: u64,
}

impl AddAssign for SendFailures {
    fn add_assign(&mut self, other: SendFailures) {
        self.no_room += other.no_room;
        self.too_big += other.too_big;
        self.refused += other.refused;
    }
}

/// Packets to be sent, by destination.
///
/// `P` names a packet without holding it; [`SendBatch::flush`] asks for its bytes. Nothing is copied, and no pointer
/// outlives the call.
pub struct SendBatch<P> {
    queues: Vec<Queue<P>>,
    /// Destinations with queued packets.
    busy: Vec<usize>,
    failures: SendFailures,
    scratch: Scratch,
}

struct Queue<P> {
    to: RawAddress,
    /// Whether the system has refused trains to this destination: its packets are sent one by one. Others keep trains.
    apart: bool,
    packets: Vec<P>,
    sent: Sent,
}

/// Buffers of a flush, kept for reuse.
#[derive(Default)]
struct Scratch {
    vectors: Vec<libc::iovec>,
    trains: Vec<Train>,
    headers: Vec<libc::mmsghdr>,
    control: Vec<Control>,
}

// SAFETY: pointers in it are only used within `flush`, which wrote them.
unsafe impl Send for Scratch {}

/// Packets of one destination and size (the last may be shorter) that are sent as one message.
#[derive(Clone, Copy)]
struct Train {
    queue: usize,
    first_vector: usize,
    vectors: usize,
    packets: usize,
    bytes: usize,
    /// Bytes of every packet but the last.
    segment: usize,
}

/// One control message with a u16: its header's 16 bytes, the value, padding.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; 24]);

impl<P> SendBatch<P> {
    /// A batch without destinations.
    pub fn new() -> SendBatch<P> {
        SendBatch {
            queues: Vec::new(),
            busy: Vec::new(),
            failures: SendFailures::default(),
            scratch: Scratch::default(),
        }
    }

    /// Sets destination `index` to `to`, with an empty queue and zero counters.
    pub fn set_destination(&mut self, index: usize, to: SocketAddr) {
        let queue = || Queue {
            to: address::encode(to),
            apart: false,
            packets: Vec::new(),
            sent: Sent::default(),
        };
        while self.queues.len() <= index {
            self.queues.push(queue());
        }
        self.busy.retain(|busy| *busy != index);
        self.queues[index] = queue();
    }

    /// Queues a packet. Panics if the destination was not set.
    #[inline]
    pub fn push(&mut self, index: usize, packet: P) {
        let queue = &mut self.queues[index];
        if queue.packets.is_empty() {
            self.busy.push(index);
        }
        queue.packets.push(packet);
    }

    /// Whether nothing is queued.
    pub fn is_empty(&self) -> bool {
        self.busy.is_empty()
    }

    /// Drops queued packets.
    pub fn clear(&mut self) {
        for index in self.busy.drain(..) {
            self.queues[index].packets.clear();
        }
    }

    /// Traffic sent to destination `index`.
    pub fn sent(&self, index: usize) -> Sent {
        self.queues[index].sent
    }

    /// Packets that were not sent.
    pub fn failures(&self) -> SendFailures {
        self.failures
    }

    /// Sends all queued packets; packets to one destination keep their order.
    ///
    /// `bytes_of` returns a packet's bytes in two parts (either may be empty). Waits at most 200 ms for a full send
    /// buffer; then the rest is dropped and counted, as are packets that the system refuses.
    pub fn flush<'a>(&mut self, socket: &Socket, bytes_of: impl Fn(&P) -> [&'a [u8]; 2]) {
        if self.is_empty() {
            return;
        }
        let joined = socket.segments_on_send();
        self.scratch.vectors.clear();
        self.scratch.trains.clear();
        for &queue in &self.busy {
            let Queue { packets, apart, .. } = &self.queues[queue];
            self.scratch.build(queue, packets.iter().map(&bytes_of), joined && !apart);
        }
        self.transmit(socket);
        self.clear();
    }

    fn transmit(&mut self, socket: &Socket) {
        self.address_messages();
        let mut done = 0;
        while done < self.scratch.trains.len() {
            match send_some(socket, &mut self.scratch.headers[done..]) {
                Ok(taken) => {
                    for train in &self.scratch.trains[done..done + taken] {
                        count(&mut self.queues[train.queue].sent, train);
                    }
                    done += taken;
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EAGAIN) => {
                        if !socket.wait_writable(BLOCKED_AT_MOST) {
                            let left = &self.scratch.trains[done..];
                            self.failures.no_room += packets(left);
                            return;
                        }
                    }
                    Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE)
                        if self.scratch.trains[done].packets > 1 =>
                    {
                        self.transmit_apart(socket, done, &error);
                        done += 1;
                    }
                    _ => {
                        let train = self.scratch.trains[done];
                        self.fail(&error, train.packets as u64);
                        done += 1;
                    }
                },
            }
        }
    }

    /// Sends a refused train packet by packet; if that works, this destination gets no trains.
    fn transmit_apart(&mut self, socket: &Socket, train: usize, reason: &io::Error) {
        let train = self.scratch.trains[train];
        let vectors = &self.scratch.vectors[train.first_vector..][..train.vectors];
        let queue = &mut self.queues[train.queue];
        let mut refused = Vec::new();
        let mut from = 0;
        while from < vectors.len() {
            let mut bytes = 0;
            let mut to = from;
            while to < vectors.len() && bytes < train.segment {
                bytes += vectors[to].iov_len;
                to += 1;
            }
            match send_one(socket, &queue.to, &vectors[from..to]) {
                Ok(()) => {
                    if !std::mem::replace(&mut queue.apart, true) {
                        socket.warn_of_segments(&queue.to, reason);
                    }
                    queue.sent.packets += 1;
                    queue.sent.bytes += bytes as u64;
                }
                Err(error) => refused.push(error),
            }
            from = to;
        }
        for error in &refused {
            self.fail(error, 1);
        }
    }

    /// Writes a message header per train.
    fn address_messages(&mut self) {
        let Scratch { vectors, trains, headers, control } = &mut self.scratch;
        headers.clear();
        control.clear();
        control.extend(trains.iter().map(Train::control));
        for (train, control) in trains.iter().zip(control.iter_mut()) {
            let to = &mut self.queues[train.queue].to;
            // SAFETY: integers and pointers, for which zero is a value.
            let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
            header.msg_hdr.msg_name = (&raw mut to.0).cast();
            header.msg_hdr.msg_namelen = to.1;
            header.msg_hdr.msg_iov = vectors[train.first_vector..].as_mut_ptr();
            header.msg_hdr.msg_iovlen = train.vectors as _;
            if train.packets > 1 {
                header.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
                header.msg_hdr.msg_controllen = control.0.len() as _;
            }
            headers.push(header);
        }
    }

    fn fail(&mut self, error: &io::Error, packets: u64) {
        let counter = match error.raw_os_error() {
            Some(libc::ENOBUFS | libc::ENOMEM | libc::EAGAIN) => &mut self.failures.no_room,
            Some(libc::EMSGSIZE) => &mut self.failures.too_big,
            _ => &mut self.failures.refused,
        };
        if *counter == 0 {
            tracing::warn!(%error, "packets could not be sent; this is said once per reason and then counted");
        }
        *counter += packets;
    }
}

impl<P> Default for SendBatch<P> {
    fn default() -> Self {
        SendBatch::new()
    }
}

impl Scratch {
    /// Appends one destination's trains.
    fn build<'a>(
        &mut self,
        queue: usize,
        packets: impl Iterator<Item = [&'a [u8]; 2]>,
        joined: bool,
    ) {
        let mut open = false;
        for parts in packets {
            let len = parts[0].len() + parts[1].len();
            let last = self.trains.last_mut().filter(|_| open);
            let train = match last.filter(|train| joined && train.takes(len)) {
                Some(train) => train,
                None => {
                    self.trains.push(Train {
                        queue,
                        first_vector: self.vectors.len(),
                        vectors: 0,
                        packets: 0,
                        bytes: 0,
                        segment: len,
                    });
                    open = true;
                    self.trains.last_mut().expect("just pushed")
                }
            };
            for part in parts.iter().filter(|part| !part.is_empty()) {
                self.vectors.push(libc::iovec {
                    iov_base: part.as_ptr().cast_mut().cast(),
                    iov_len: part.len(),
                });
                train.vectors += 1;
            }
            train.packets += 1;
            train.bytes += len;
        }
    }
}

impl Train {
    /// Whether another packet of `len` bytes may follow: none follows a shorter one.
    fn takes(&self, len: usize) -> bool {
        len > 0
            && len <= self.segment
            && self.bytes == self.packets * self.segment
            && self.packets < TRAIN_PACKETS
            && self.bytes + len <= TRAIN_BYTES
    }

    /// The control message with the segment size.
    fn control(&self) -> Control {
        let mut control = Control([0; 24]);
        // SAFETY: numbers, and with musl padding; zero is valid.
        let mut header: libc::cmsghdr = unsafe { std::mem::zeroed() };
        // SAFETY: computes a length.
        header.cmsg_len = unsafe { libc::CMSG_LEN(2) } as _;
        header.cmsg_level = libc::SOL_UDP;
        header.cmsg_type = libc::UDP_SEGMENT;
        let value = (self.segment as u16).to_ne_bytes();
        let data = size_of::<libc::cmsghdr>();
        control.0[data..data + 2].copy_from_slice(&value);
        // SAFETY: the memory is aligned for a control header and larger than one.
        unsafe {
            control.0.as_mut_ptr().cast::<libc::cmsghdr>().write(header);
        }
        control
    }
}

fn packets(trains: &[Train]) -> u64 {
    trains.iter().map(|train| train.packets as u64).sum()
}

fn count(sent: &mut Sent, train: &Train) {
    sent.packets += train.packets as u64;
    sent.bytes += train.bytes as u64;
}

/// One call; returns the number of messages sent, at least one.
fn send_some(socket: &Socket, headers: &mut [libc::mmsghdr]) -> io::Result<usize> {
    let messages = headers.len().min(CALL_MESSAGES) as libc::c_uint;
    // SAFETY: `address_messages` made every header point at vectors, control and address that live, and are
    // not touched, until the flush ends; the vectors point at bytes that `flush` borrows.
    let taken = unsafe {
        libc::sendmmsg(socket.fd(), headers.as_mut_ptr(), messages, libc::MSG_DONTWAIT as _)
    };
    usize::try_from(taken).map_err(|_| io::Error::last_os_error())
}

/// Sends one packet.
fn send_one(socket: &Socket, to: &RawAddress, vectors: &[libc::iovec]) -> io::Result<()> {
    // SAFETY: integers and pointers, for which zero is a value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_name = (&raw const to.0).cast_mut().cast();
    header.msg_namelen = to.1;
    header.msg_iov = vectors.as_ptr().cast_mut();
    header.msg_iovlen = vectors.len() as _;
    // SAFETY: address and vectors live through the call, which only reads them; the vectors point at bytes
    // that `flush` borrows.
    let taken = unsafe { libc::sendmsg(socket.fd(), &header, libc::MSG_DONTWAIT) };
    if taken < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::udp::SocketOptions;

    #[test]
    fn a_destination_that_refuses_trains_leaves_others_theirs() {
        let any = "127.0.0.1:0".parse().unwrap();
        let [from, to] = [(); 2].map(|()| Socket::bind(any, &SocketOptions::default()).unwrap());
        let packets = [[1u8; 100], [2; 100]];
        let mut batch = SendBatch::new();
        for index in 0..2 {
            batch.set_destination(index, to.local_addr());
        }
        // Returns the number of messages; the system has refused the first destination's train.
        let trains = |batch: &mut SendBatch<usize>, refuses: bool| {
            batch.scratch.vectors.clear();
            batch.scratch.trains.clear();
            for queue in 0..2 {
                let joined = !batch.queues[queue].apart;
                let bytes = packets.iter().map(|packet| [packet.as_slice(), &[]]);
                batch.scratch.build(queue, bytes, joined);
            }
            if refuses {
                batch.transmit_apart(&from, 0, &io::ErrorKind::InvalidInput.into());
            }
            batch.scratch.trains.iter().map(|train| train.packets).collect::<Vec<_>>()
        };
        assert_eq!(trains(&mut batch, true), [2, 2]);
        assert_eq!(trains(&mut batch, false), [1, 1, 2]);
        assert!(from.report().segments_on_send);
        // A destination with another address begins anew.
        batch.set_destination(0, to.local_addr());
        assert_eq!(trains(&mut batch, false), [2, 2]);
    }
}
