//! Light clients: the children of one job, which cost their core far less than the switch costs its own.
//!
//! Of a train of results a client reads the first header alone, whose number says that all before it are done: results
//! of a tree come in order. Contributions are sent as trains of prepared payloads. Nothing is compared or sent again:
//! tests do the first, and the benchmark ends if nothing moves.

#![allow(unsafe_code)]

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};

use netsum_net::udp::{SendBatch, Socket, SocketOptions};
use netsum_proto::panama::{Child, Lease};
use netsum_wire::Parties;
use netsum_wire::panama::{HEADER_LEN, Header, Kind, NO_CAP};
use netsum_wire::{Dtype, Epoch, Format, JobId, ReduceOp, TreeId, Vid};

pub const CHILDREN: usize = 4;
pub const FRAGMENT_BYTES: usize = 1408;
/// Fragments in flight of a job.
pub const WINDOW: u16 = 512;
/// Packets of a child before the next one sends.
const TRAIN: u32 = 44;

/// A job of one tree.
pub struct Job {
    id: JobId,
    dtype: Dtype,
    children: Vec<Client>,
    payload: Vec<u8>,
}

struct Client {
    socket: Socket,
    outbound: SendBatch<u32>,
    heads: Vec<[u8; HEADER_LEN]>,
    /// Lowest number that may be without result, and the next to be sent.
    base: u32,
    next: u32,
}

impl Job {
    pub fn new(number: u32, near: IpAddr, switch: SocketAddr, dtype: Dtype) -> Job {
        let id = JobId(number);
        let children = (0..CHILDREN).map(|_| Client::new(near, switch, id, dtype)).collect();
        Job { id, dtype, children, payload: vec![0; FRAGMENT_BYTES] }
    }

    /// The switch is the root of its tree.
    pub fn lease(&self) -> Lease<SocketAddr> {
        let child = |(number, client): (usize, &Client)| Child {
            port: client.socket.local_addr(),
            ranks: 1 << number,
            branch: number as u8,
        };
        Lease {
            job: self.id,
            epoch: Epoch(1),
            tree: TreeId(0),
            children: self.children.iter().enumerate().map(child).collect(),
            parent: None,
            slots: WINDOW,
            fragment_bytes: (elements(self.dtype) * self.dtype.accumulator_size()) as u16,
            release_permille: 1000,
        }
    }

    /// Takes results and sends what the window allows; false if there was nothing to do.
    pub fn turn(&mut self) -> bool {
        let mut busy = false;
        for client in &mut self.children {
            client.take();
            busy |= client.send(&self.payload);
        }
        busy
    }

    /// A socket to wait at.
    pub fn socket(&self) -> &Socket {
        &self.children[0].socket
    }
}

impl Client {
    fn new(near: IpAddr, switch: SocketAddr, job: JobId, dtype: Dtype) -> Client {
        let socket = Socket::bind(SocketAddr::new(near, 0), &SocketOptions::default());
        let socket = socket.expect("a free port");
        let mut outbound = SendBatch::new();
        outbound.set_destination(0, switch);
        let mut head = [0; HEADER_LEN];
        header(job, dtype).encode(&mut head);
        let heads = vec![head; usize::from(WINDOW).next_power_of_two()];
        Client { socket, outbound, heads, base: 0, next: 0 }
    }

    fn take(&mut self) {
        let mut head = [0u8; HEADER_LEN];
        loop {
            let fd = self.socket.as_fd().as_raw_fd();
            // SAFETY: the descriptor is open, and the call writes at most the header's length; it drops the rest.
            let got =
                unsafe { libc::recv(fd, head.as_mut_ptr().cast(), HEADER_LEN, libc::MSG_DONTWAIT) };
            if got < HEADER_LEN as isize {
                return;
            }
            let vid = u32::from_be_bytes([head[8], head[9], head[10], head[11]]);
            if vid.wrapping_sub(self.base) <= self.next.wrapping_sub(self.base) {
                self.base = vid;
            }
        }
    }

    fn send(&mut self, payload: &[u8]) -> bool {
        let end = (self.base + u32::from(WINDOW)).min(self.next + TRAIN);
        // Whole trains only: the switch is never out of work, as the window holds many.
        if end < self.next + TRAIN {
            return false;
        }
        let mask = self.heads.len() - 1;
        while self.next < end {
            let head = &mut self.heads[self.next as usize & mask];
            head[8..12].copy_from_slice(&self.next.to_be_bytes());
            head[12..16].copy_from_slice(&self.next.to_be_bytes());
            self.outbound.push(0, self.next);
            self.next += 1;
        }
        let heads = &self.heads;
        self.outbound.flush(&self.socket, |&vid| [&heads[vid as usize & mask][..], payload]);
        true
    }
}

fn elements(dtype: Dtype) -> usize {
    FRAGMENT_BYTES / dtype.size()
}

fn header(job: JobId, dtype: Dtype) -> Header {
    Header {
        kind: Kind::Contribution,
        resent: false,
        congested_down: false,
        tree: TreeId(0),
        format: Format { dtype, op: ReduceOp::Sum },
        job,
        vid: Vid(0),
        chunk: 0,
        epoch: Epoch(1),
        window_cap: NO_CAP,
        n_elems: elements(dtype) as u16,
        marks: 0,
        missing: 0,
        parties: Parties::All,
        empty: false,
        asks: false,
        others: 0,
    }
}
