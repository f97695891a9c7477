//! The bare copier: each packet goes to all other senders.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use netsum_net::CpuTime;
use netsum_net::udp::{RecvBatch, SendBatch, Socket, SocketOptions, Wake};

use crate::load::Load;
use crate::{CORES, Counted, cores};

pub(crate) fn run(time: Duration) -> Counted {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let middle = Socket::bind(any, &SocketOptions::default()).expect("a free port");
    let mut load = Load::new();
    let (stop, wake) = (AtomicBool::new(false), Wake::new().expect("an eventfd"));
    let addresses = load.addresses();
    std::thread::scope(|scope| {
        let copier = scope.spawn(|| {
            cores::pin(CORES[1]);
            copy(&middle, &addresses, &stop, &wake)
        });
        cores::pin(CORES[0]);
        load.run(middle.local_addr(), time);
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
