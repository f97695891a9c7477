//! The socket, its batches and its fall-backs on loopback.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use netsum_net::udp::{RecvBatch, SendBatch, Socket, SocketOptions, Wake};

fn socket(segmentation: bool) -> Socket {
    let options = SocketOptions { segmentation, ..SocketOptions::default() };
    Socket::bind("127.0.0.1:0".parse().unwrap(), &options).unwrap()
}

/// Packets of these sizes, each with its own bytes.
fn packets(sizes: &[usize]) -> Vec<Vec<u8>> {
    let byte = |i: usize, j: usize| (i * 31 + j) as u8;
    let packet = |(i, size): (usize, &usize)| (0..*size).map(|j| byte(i, j)).collect();
    sizes.iter().enumerate().map(packet).collect()
}

fn send(from: &Socket, to: SocketAddr, packets: &[Vec<u8>]) -> SendBatch<usize> {
    let mut batch = SendBatch::new();
    batch.set_destination(3, to);
    for i in 0..packets.len() {
        batch.push(3, i);
    }
    batch.flush(from, |i| {
        let packet = &packets[*i];
        let cut = packet.len().min(38);
        [&packet[..cut], &packet[cut..]]
    });
    batch
}

struct Received {
    packets: Vec<Vec<u8>>,
    datagrams: usize,
    marked: usize,
    from: Vec<SocketAddr>,
}

fn receive(at: &Socket, count: usize) -> Received {
    let wake = Wake::new().unwrap();
    let mut batch = RecvBatch::new();
    let mut got = Received { packets: Vec::new(), datagrams: 0, marked: 0, from: Vec::new() };
    let end = Instant::now() + Duration::from_secs(5);
    while got.packets.len() < count && Instant::now() < end {
        at.wait(&wake, Duration::from_millis(50));
        got.datagrams += batch.recv(at).unwrap();
        for message in batch.messages() {
            got.marked += usize::from(message.ce);
            got.from.push(message.from);
            got.packets.extend(batch.packets(message).map(<[u8]>::to_vec));
        }
    }
    got
}

#[test]
fn trains_arrive_as_the_packets_that_were_queued() {
    for (sender, receiver) in [(true, true), (true, false), (false, true), (false, false)] {
        let (a, b) = (socket(sender), socket(receiver));
        // Full trains, a short last packet, a larger one after it, single ones, empty payloads.
        let mut sizes = vec![1446; 150];
        sizes.extend([700, 1446, 38, 38, 38, 1, 9000, 9000]);
        let sent = packets(&sizes);
        let batch = send(&a, b.local_addr(), &sent);
        let got = receive(&b, sent.len());
        assert_eq!(got.packets, sent, "cut {sender}, joined {receiver}");
        assert!(got.from.iter().all(|from| *from == a.local_addr()));
        assert_eq!(batch.sent(3).packets, sent.len() as u64);
        assert_eq!(batch.sent(3).bytes, sizes.iter().sum::<usize>() as u64);
        assert_eq!(batch.failures(), Default::default());
        if b.report().joins_on_receipt && a.report().segments_on_send {
            assert!(got.datagrams < 15, "{} datagrams", got.datagrams);
        }
    }
}

#[test]
fn empty_and_largest_datagrams_are_one_packet_each() {
    let (a, b) = (UdpSocket::bind("127.0.0.1:0").unwrap(), socket(true));
    a.send_to(&[], b.local_addr()).unwrap();
    a.send_to(&[7; 65_507], b.local_addr()).unwrap();
    let got = receive(&b, 2);
    assert_eq!(got.packets, [vec![], vec![7; 65_507]]);
}

#[test]
fn congestion_marks_are_seen() {
    let (plain, ours) = (UdpSocket::bind("127.0.0.1:0").unwrap(), socket(true));
    assert!(ours.report().sees_ecn);
    for (class, marked) in [(0u32, 0), (2, 0), (1, 0), (3, 1), (226, 0), (227, 1)] {
        socket2::SockRef::from(&plain).set_tos_v4(class).unwrap();
        plain.send_to(b"x", ours.local_addr()).unwrap();
        assert_eq!(receive(&ours, 1).marked, marked, "class {class}");
    }
}

#[test]
fn oversized_packets_are_counted_and_others_are_sent() {
    let (a, b) = (socket(true), socket(true));
    let sent = packets(&[100, 65_508, 100]);
    let batch = send(&a, b.local_addr(), &sent);
    assert_eq!(batch.failures().too_big, 1);
    assert_eq!(receive(&b, 2).packets, [sent[0].clone(), sent[2].clone()]);
    assert!(a.report().segments_on_send, "one bad packet is no reason to give trains up");
}

#[test]
fn a_busy_port_is_named_with_advice() {
    let taken = socket(true);
    let error = Socket::bind(taken.local_addr(), &SocketOptions::default()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&taken.local_addr().to_string()), "{text}");
    assert!(text.contains("choose another port"), "{text}");
    let error = Socket::bind("192.0.2.1:0".parse().unwrap(), &SocketOptions::default());
    assert!(error.unwrap_err().to_string().contains("not one of this machine's"));
}

#[test]
fn a_ring_ends_a_sleep_and_a_timeout_does_too() {
    let wake = std::sync::Arc::new(Wake::new().unwrap());
    let ringer = wake.clone();
    let start = Instant::now();
    let thread = std::thread::spawn(move || ringer.ring());
    assert!(!socket(true).wait(&wake, Duration::from_secs(5)));
    assert!(wake.take() && start.elapsed() < Duration::from_secs(4));
    thread.join().unwrap();
    assert!(!socket(true).wait(&wake, Duration::from_millis(20)));
    assert!(!wake.take());
}
