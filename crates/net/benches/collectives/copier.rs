//! The bare copier: each packet goes to all other senders. Its load counts what arrives, so that nothing is lost.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use netsum_net::CpuTime;
use netsum_net::udp::{RecvBatch, SendBatch, Socket, SocketOptions, Wake};
use netsum_wire::panama::HEADER_LEN;

use crate::{CORES, Counted, FRAGMENT_BYTES, RANKS, cores};

const PACKET: usize = HEADER_LEN + FRAGMENT_BYTES as usize;
/// Packets of a sender that have not arrived everywhere.
const WINDOW: u64 = 256;
const TRAIN: u64 = 44;

pub(crate) fn run(time: Duration) -> Counted {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let socket = || Socket::bind(any, &SocketOptions::default()).expect("a free port");
    let (middle, senders) = (socket(), [(); RANKS].map(|()| socket()));
    let (stop, wake) = (AtomicBool::new(false), Wake::new().expect("an eventfd"));
    let addresses = senders.each_ref().map(Socket::local_addr);
    std::thread::scope(|scope| {
        let copier = scope.spawn(|| {
            cores::pin(CORES[1]);
            copy(&middle, &addresses, &stop, &wake)
        });
        cores::pin(CORES[0]);
        load(&senders, middle.local_addr(), time);
        stop.store(true, Ordering::Release);
        wake.ring();
        copier.join().expect("the copier ends")
    })
}

fn copy(socket: &Socket, senders: &[SocketAddr], stop: &AtomicBool, wake: &Wake) -> Counted {
    let (mut batch, mut outbound) = (RecvBatch::new(), SendBatch::new());
    for (number, sender) in senders.iter().enumerate() {
        outbound.set_destination(number, *sender);
    }
    let mut packets = 0;
    let before = CpuTime::of_this_thread();
    while !stop.load(Ordering::Acquire) {
        if batch.recv(socket).expect("the socket works") == 0 {
            socket.wait(wake, Duration::from_secs(1));
            continue;
        }
        for message in batch.messages() {
            for place in message.packets() {
                for (to, _) in senders.iter().enumerate().filter(|(_, s)| **s != message.from) {
                    outbound.push(to, place);
                    packets += 1;
                }
            }
        }
        outbound.flush(socket, |&place| [batch.bytes(place), &[]]);
    }
    let after = CpuTime::of_this_thread();
    Counted { packets, cpu: after.user + after.system - before.user - before.system }
}

/// Every sender has up to WINDOW packets on the way.
fn load(senders: &[Socket; RANKS], middle: SocketAddr, time: Duration) {
    let packets = [0, 1, 2, 3].map(|sender: u8| [sender; PACKET]);
    let mut batch = RecvBatch::new();
    let mut outbound = SendBatch::new();
    outbound.set_destination(0, middle);
    // By sender: packets sent, and copies of them that have arrived.
    let (mut sent, mut arrived) = ([0; RANKS], [0; RANKS]);
    let (start, idle) = (Instant::now(), Wake::new().expect("an eventfd"));
    while start.elapsed() < time {
        let mut quiet = true;
        for (number, sender) in senders.iter().enumerate() {
            if sent[number] + TRAIN <= arrived[number] / (RANKS as u64 - 1) + WINDOW {
                (0..TRAIN).for_each(|_| outbound.push(0, number));
                outbound.flush(sender, |&number| [&packets[number], &[]]);
                sent[number] += TRAIN;
            }
            quiet &= batch.recv(sender).expect("the socket works") == 0;
            for packet in batch.messages().flat_map(|message| batch.packets(message)) {
                arrived[usize::from(packet[0])] += 1;
            }
        }
        if quiet {
            senders[0].wait(&idle, Duration::from_micros(200));
        }
    }
}
