//! Which thread of a switch has a lease, and so its packets.
//!
//! Trees of `panama` are divided by job and tree, in turn: successive jobs and the trees of a job go to different threads.
//! The other protocols share one table of slots, which one thread has: the first.

use netsum_proto::Lease;
use netsum_wire::{JOB_AT, JobId, TreeId, job_of, panama};

/// The threads of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Steering {
    threads: u32,
}

/// The first half of the first byte names the protocol, the second whether packets are sealed or encrypted.
const PROTOCOL: u8 = 0xf0;
/// A packet must have a job, or the first thread counts it as a bad one.
const LEAST_LEN: usize = JOB_AT + 4;

impl Steering {
    pub(super) fn new(threads: usize) -> Steering {
        Steering { threads: u32::try_from(threads).unwrap_or(u32::MAX).max(1) }
    }

    /// The thread of a packet.
    #[inline]
    pub(super) fn of_packet(self, packet: &[u8]) -> usize {
        match job_of(packet) {
            Some(job) if packet[0] & PROTOCOL == panama::VERSION & PROTOCOL => {
                self.of_tree(job, TreeId(packet[panama::TREE_AT]))
            }
            _ => 0,
        }
    }

    /// The thread of a lease.
    pub(super) fn of_lease<P>(self, lease: &Lease<P>) -> usize {
        match lease {
            Lease::Tree(lease) => self.of_tree(lease.job, lease.tree),
            Lease::Slots(_) | Lease::Server(_) | Lease::Pool(_) => 0,
        }
    }

    #[inline]
    fn of_tree(self, job: JobId, tree: TreeId) -> usize {
        (job.0.wrapping_add(tree.0.into()) % self.threads) as usize
    }

    /// The same decision as a filter of the system, which returns the number of the thread.
    pub(super) fn filter(self) -> [libc::sock_filter; 12] {
        let op = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
        let load = |size: u32, at: usize| op(libc::BPF_LD | size | libc::BPF_ABS, at as u32);
        let constant = |code: u32, k: u32| op(libc::BPF_ALU | code | libc::BPF_K, k);
        // Goes on with the next line, or with the last one if that is not so.
        let or_last = |line: u8, code: u32, k: u32| libc::sock_filter {
            jf: LINES - 2 - line,
            ..op(libc::BPF_JMP | code | libc::BPF_K, k)
        };
        const LINES: u8 = 12;
        [
            op(libc::BPF_LD | libc::BPF_W | libc::BPF_LEN, 0),
            or_last(1, libc::BPF_JGE, LEAST_LEN as u32),
            load(libc::BPF_B, 0),
            constant(libc::BPF_AND, PROTOCOL.into()),
            or_last(4, libc::BPF_JEQ, (panama::VERSION & PROTOCOL).into()),
            load(libc::BPF_B, panama::TREE_AT),
            op(libc::BPF_MISC | libc::BPF_TAX, 0),
            load(libc::BPF_W, JOB_AT),
            op(libc::BPF_ALU | libc::BPF_ADD | libc::BPF_X, 0),
            constant(libc::BPF_MOD, self.threads),
            op(libc::BPF_RET | libc::BPF_A, 0),
            op(libc::BPF_RET | libc::BPF_K, 0),
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::net::UdpSocket;

    use netsum_wire::{atp, switchml};
    use proptest::prelude::*;

    use super::*;
    use crate::udp::{RecvBatch, Socket, SocketOptions};

    /// Packets of any protocol and form, cut anywhere, and nonsense.
    fn packets() -> impl Strategy<Value = Vec<u8>> {
        let version = prop_oneof![
            Just(panama::VERSION),
            Just(panama::SEALED_VERSION),
            Just(panama::ENCRYPTED_VERSION),
            Just(atp::VERSION),
            Just(switchml::ENCRYPTED_VERSION),
            any::<u8>(),
        ];
        let job = prop_oneof![0..20u32, any::<u32>()];
        let rest = prop::collection::vec(any::<u8>(), 0..60);
        (version, any::<u8>(), job, rest, 0..70usize).prop_map(|(version, tree, job, rest, len)| {
            let mut packet = vec![version, 0, tree, 0];
            packet.extend(job.to_be_bytes());
            packet.extend(rest);
            packet.truncate(len);
            packet
        })
    }

    #[test]
    fn the_filter_of_the_system_decides_alike() {
        let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
        for threads in [2, 3, 7] {
            let steering = Steering::new(threads);
            let options = SocketOptions::default();
            let sockets = Socket::bind_group(any, &options, threads, &mut steering.filter());
            let sockets = sockets.unwrap();
            let sender = UdpSocket::bind(any).unwrap();
            let batch = RefCell::new(RecvBatch::new());
            proptest!(|(packet in packets())| {
                sender.send_to(&packet, sockets[0].local_addr()).unwrap();
                let wanted = steering.of_packet(&packet);
                for (number, socket) in sockets.iter().enumerate() {
                    let got = batch.borrow_mut().recv(socket).unwrap();
                    prop_assert_eq!(got, usize::from(number == wanted), "thread {}", number);
                }
            });
        }
    }

    #[test]
    fn the_trees_of_a_job_and_jobs_in_a_row_are_spread() {
        let steering = Steering::new(4);
        let thread = |job, tree| steering.of_tree(JobId(job), TreeId(tree));
        assert_eq!([0, 1, 2, 3, 4].map(|tree| thread(9, tree)), [1, 2, 3, 0, 1]);
        assert_eq!([5, 6, 7, 8].map(|job| thread(job, 0)), [1, 2, 3, 0]);
        assert_eq!(thread(u32::MAX, 1), 0, "the sum wraps around");
    }
}
