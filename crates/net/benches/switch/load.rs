//! Four workers in one thread: send as much as the window allows, count every result, and check some.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use netsum_net::udp::{RecvBatch, SendBatch, Socket, SocketOptions, Wake};
use netsum_proto::Hop;
use netsum_wire::panama::{HEADER_LEN, Header, Kind, NO_CAP};
use netsum_wire::seal::{HopKeys, SEALED_HEADER_LEN, TRAILER_LEN, is_encrypted};
use netsum_wire::{
    Dtype, Encoding, Epoch, Format, Input, JobId, PacketHeader, ReduceOp, TreeId, Vid, reduce,
};

pub const WORKERS: usize = 4;
/// Payload of an Ethernet frame without jumbo frames.
pub const FRAGMENT_BYTES: usize = 1408;
pub const ELEMENTS: usize = FRAGMENT_BYTES / 4;
pub const JOB: JobId = JobId(1);

const FORMAT: Format = Format { dtype: Dtype::F32, op: ReduceOp::Sum };
/// Number of different fragments per worker; together more than a first-level cache.
const PAYLOADS: usize = 64;
/// One result in this many is compared bit by bit.
const CHECKED: u32 = 64;
/// Number of packets that a worker sends before the next one: a train, as links of the same rate would deliver them.
const TRAIN: u32 = 44;
/// Time without a result after which everything in flight is sent again.
const STALLED: Duration = Duration::from_millis(50);

/// Counters of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    pub seconds: f64,
    /// Results of all workers: as many as contributions.
    pub packets: u64,
    pub resent: u64,
    pub checked: u64,
}

pub struct Load {
    workers: Vec<Worker>,
    batch: RecvBatch,
    wake: Wake,
    sums: Vec<Vec<u8>>,
    window: u32,
}

struct Worker {
    socket: Socket,
    outbound: SendBatch<u32>,
    payloads: Vec<Vec<u8>>,
    /// Headers, or whole packets if they are encrypted.
    heads: Vec<Vec<u8>>,
    /// Seals packets, if the switch wants that. Of results only those that are compared are opened.
    hop: Option<Hop>,
    received: Vec<bool>,
    /// Lowest vid without a result, and next vid to send.
    base: u32,
    next: u32,
    last_reply: Instant,
}

impl Load {
    /// `keys`: of each worker's hop, if packets are to be sealed.
    pub fn new(near: IpAddr, middle: SocketAddr, window: u16, keys: Option<&[HopKeys]>) -> Load {
        let window = u32::from(window);
        let workers: Vec<Worker> = (0..WORKERS)
            .map(|rank| {
                let hop = keys.map(|keys| Hop::to_parent(keys[rank]));
                Worker::new(rank, near, middle, window, hop)
            })
            .collect();
        let sum = |i: usize| {
            let payloads = workers.iter().map(|w| w.payloads[i].as_slice());
            let inputs: Vec<_> =
                payloads.map(|bytes| Some(Input { bytes, encoding: Encoding::Element })).collect();
            let mut out = vec![0; FRAGMENT_BYTES];
            reduce(FORMAT, &inputs, ELEMENTS, &mut out, Encoding::Element);
            out
        };
        let sums = (0..PAYLOADS).map(sum).collect();
        let wake = Wake::new().expect("an eventfd");
        Load { workers, batch: RecvBatch::new(), wake, sums, window }
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.workers.iter().map(|w| w.socket.local_addr()).collect()
    }

    /// Streams for `time`. `adds`: whether results are sums, of which wrong ones end the benchmark.
    pub fn run(&mut self, time: Duration, adds: bool) -> Counted {
        let start = Instant::now();
        let mut counted = Counted::default();
        while start.elapsed() < time {
            let mut idle = true;
            for worker in &mut self.workers {
                worker.send(self.window);
                let got = self.batch.recv(&worker.socket).expect("the socket works");
                idle &= got == 0;
                if got > 0 {
                    worker.take(&self.batch, adds.then_some(&self.sums), &mut counted);
                } else if worker.last_reply.elapsed() > STALLED {
                    counted.resent += worker.send_again();
                }
            }
            if idle {
                self.workers[0].socket.wait(&self.wake, Duration::from_micros(200));
            }
        }
        counted.seconds = start.elapsed().as_secs_f64();
        counted
    }
}

impl Worker {
    fn new(rank: usize, near: IpAddr, middle: SocketAddr, window: u32, hop: Option<Hop>) -> Worker {
        let options = SocketOptions::default();
        let socket = Socket::bind(SocketAddr::new(near, 0), &options).expect("a free port");
        let mut outbound = SendBatch::new();
        outbound.set_destination(0, middle);
        let ring = window.next_power_of_two() as usize * 2;
        let number = |i: usize, e: usize| ((rank * 7919 + i * 104_729 + e * 31) % 10_007) as f32;
        let payload = |i: usize| -> Vec<u8> {
            (0..ELEMENTS).flat_map(|e| (number(i, e) / 97.0).to_le_bytes()).collect()
        };
        Worker {
            socket,
            outbound,
            payloads: (0..PAYLOADS).map(payload).collect(),
            heads: vec![Vec::with_capacity(SEALED_HEADER_LEN + FRAGMENT_BYTES + TRAILER_LEN); ring],
            hop,
            received: vec![false; ring],
            base: 0,
            next: 0,
            last_reply: Instant::now(),
        }
    }

    fn send(&mut self, window: u32) {
        let end = (self.base + window).min(self.next + TRAIN);
        while self.next < end {
            self.push(self.next, false);
            self.next += 1;
        }
        self.flush();
    }

    fn send_again(&mut self) -> u64 {
        self.last_reply = Instant::now();
        let missing = (self.base..self.next).filter(|vid| !self.received[self.place(*vid)]);
        let missing: Vec<u32> = missing.collect();
        for &vid in &missing {
            self.push(vid, true);
        }
        self.flush();
        missing.len() as u64
    }

    fn push(&mut self, vid: u32, resent: bool) {
        let place = self.place(vid);
        let head = &mut self.heads[place];
        head.clear();
        head.resize(if self.hop.is_some() { SEALED_HEADER_LEN } else { HEADER_LEN }, 0);
        header(vid, resent).encode(head.first_chunk_mut().expect("it is as long"));
        if let Some(hop) = &mut self.hop {
            hop.seal_last(head, 0, &self.payloads[vid as usize % PAYLOADS]);
        }
        self.outbound.push(0, vid);
    }

    fn flush(&mut self) {
        let (heads, payloads) = (&self.heads, &self.payloads);
        let mask = heads.len() - 1;
        self.outbound.flush(&self.socket, |&vid| {
            let head = heads[vid as usize & mask].as_slice();
            let payload = payloads[vid as usize % PAYLOADS].as_slice();
            [head, if is_encrypted(head) { &[] } else { payload }]
        });
    }

    fn take(&mut self, batch: &RecvBatch, sums: Option<&Vec<Vec<u8>>>, counted: &mut Counted) {
        self.last_reply = Instant::now();
        for packet in batch.messages().flat_map(|message| batch.packets(message)) {
            let (header, _) = Header::decode(packet).expect("a packet");
            let vid = header.vid.0;
            let place = self.place(vid);
            let ahead = vid.wrapping_sub(self.base);
            if ahead >= self.next - self.base || self.received[place] {
                continue;
            }
            if let Some(sums) = sums.filter(|_| vid % CHECKED == 0) {
                let mut opened = packet.to_vec();
                if let Some(hop) = &mut self.hop {
                    hop.open(&mut opened).expect("a result under the key");
                }
                let payload = header.payload(&opened);
                assert!(header.kind == Kind::Result && payload == sums[vid as usize % PAYLOADS]);
                counted.checked += 1;
            }
            counted.packets += 1;
            self.received[place] = true;
            while self.base != self.next && self.received[self.place(self.base)] {
                let place = self.place(self.base);
                self.received[place] = false;
                self.base += 1;
            }
        }
    }

    fn place(&self, vid: u32) -> usize {
        vid as usize & (self.received.len() - 1)
    }
}

fn header(vid: u32, resent: bool) -> Header {
    Header {
        kind: Kind::Contribution,
        resent,
        congested_down: false,
        tree: TreeId(0),
        format: FORMAT,
        job: JOB,
        vid: Vid(vid),
        chunk: vid,
        epoch: Epoch(1),
        window_cap: NO_CAP,
        n_elems: ELEMENTS as u16,
        marks: 0,
        missing: 0,
        parties: netsum_wire::Parties::All,
        empty: false,
        asks: false,
        others: 0,
    }
}
