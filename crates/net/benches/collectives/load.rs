//! Four senders in one thread that all-gather: each sends trains of its own fragments, with word that it is ready for
//! those of the others, and counts the copies that arrive. A switch and the bare copier in its place get the same
//! packets.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use netsum_net::udp::{RecvBatch, SendBatch, Socket, SocketOptions, Wake};
use netsum_wire::Parties;
use netsum_wire::panama::{HEADER_LEN, Header, Kind, NO_CAP};
use netsum_wire::{Dtype, Epoch, Format, JobId, ReduceOp, TreeId, Vid};

use crate::{FRAGMENT_BYTES, RANKS};

/// Packets of a sender of which not all copies have arrived.
const WINDOW: u32 = 256;
/// Fragments in flight.
pub(crate) const FRAGMENTS: u16 = RANKS as u16 * WINDOW as u16;
/// A train, as in the copier's and the workers' sockets.
const TRAIN: usize = 44;
const COPIES: u32 = RANKS as u32 - 1;
/// Time without a copy after which something is wrong: nothing is sent again.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) struct Load {
    senders: [Socket; RANKS],
    payload: [u8; FRAGMENT_BYTES as usize],
    /// By sender: packets sent, and copies of them that have arrived.
    sent: [u32; RANKS],
    arrived: [u32; RANKS],
    batch: RecvBatch,
    outbound: SendBatch<usize>,
    idle: Wake,
}

impl Load {
    pub(crate) fn new() -> Load {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let socket = || Socket::bind(any, &SocketOptions::default()).expect("a free port");
        Load {
            senders: [(); RANKS].map(|()| socket()),
            payload: [1; FRAGMENT_BYTES as usize],
            sent: [0; RANKS],
            arrived: [0; RANKS],
            batch: RecvBatch::new(),
            outbound: SendBatch::new(),
            idle: Wake::new().expect("an eventfd"),
        }
    }

    pub(crate) fn addresses(&self) -> [SocketAddr; RANKS] {
        self.senders.each_ref().map(Socket::local_addr)
    }

    /// Sends through `middle` for `time`; returns the number of copies that arrived. Panics if none arrives for long.
    pub(crate) fn run(&mut self, middle: SocketAddr, time: Duration) -> u64 {
        self.outbound.set_destination(0, middle);
        let start = Instant::now();
        let (mut copies, mut last) = (0, start);
        while start.elapsed() < time {
            let mut quiet = true;
            for (number, sender) in self.senders.iter().enumerate() {
                if self.sent[number] + TRAIN as u32 <= self.arrived[number] / COPIES + WINDOW {
                    let headers = [(); TRAIN].map(|()| {
                        self.sent[number] += 1;
                        header(number, self.sent[number] - 1)
                    });
                    (0..TRAIN).for_each(|at| self.outbound.push(0, at));
                    let payload = self.payload.as_slice();
                    self.outbound.flush(sender, |&at| [headers[at].as_slice(), payload]);
                }
                quiet &= self.batch.recv(sender).expect("the socket works") == 0;
                for packet in self.batch.messages().flat_map(|message| self.batch.packets(message))
                {
                    let (header, _) = Header::decode(packet).expect("a copy");
                    let Parties::FromOne(from) = header.parties else { continue };
                    self.arrived[usize::from(from)] += 1;
                    copies += 1;
                }
            }
            if quiet {
                assert!(last.elapsed() < PATIENCE, "copies are lost: {:?}", self.arrived);
                self.senders[0].wait(&self.idle, Duration::from_micros(200));
            } else {
                last = Instant::now();
            }
        }
        copies
    }
}

/// Of the packet that a sender sends as its `number`th. It is ready for the fragments of the others up to its own.
fn header(sender: usize, number: u32) -> [u8; HEADER_LEN] {
    let header = Header {
        kind: Kind::Contribution,
        resent: false,
        congested_down: false,
        tree: TreeId(0),
        format: Format { dtype: Dtype::F32, op: ReduceOp::Sum },
        job: JobId(1),
        vid: Vid(number * RANKS as u32 + sender as u32),
        chunk: number,
        epoch: Epoch(1),
        window_cap: NO_CAP,
        n_elems: FRAGMENT_BYTES / 4,
        marks: 0,
        missing: 0,
        parties: Parties::FromOne(sender as u8),
        empty: false,
        asks: false,
        others: (1 << COPIES) - 1,
    };
    let mut bytes = [0; HEADER_LEN];
    header.encode(&mut bytes);
    bytes
}
