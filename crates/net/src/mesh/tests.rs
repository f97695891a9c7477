use super::*;
use crate::Buffer;
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};

struct Ear {
    control: Sender<(u32, Vec<u8>)>,
    failed: Sender<MeshError>,
}

impl Events for Ear {
    fn control(&self, from: u32, _: Key, bytes: Vec<u8>) {
        let _ = self.control.send((from, bytes));
    }
    fn admit(&self, _: u32, _: Key, fingerprint: u32) -> bool {
        fingerprint != REFUSED
    }
    fn failed(&self, reason: &MeshError) {
        let _ = self.failed.send(reason.clone());
    }
}

struct Member {
    mesh: Mesh,
    control: Receiver<(u32, Vec<u8>)>,
    failed: Receiver<MeshError>,
}

const REFUSED: u32 = 666;
const LOCAL: Ipv4Addr = Ipv4Addr::LOCALHOST;
const SOON: Duration = Duration::from_secs(20);

fn roster(listeners: &[Listener], rank: u32) -> Roster {
    let seat = |(i, l): (usize, &Listener)| Seat {
        address: l.address(),
        secret: [i as u8; 16],
        ucx: l.ucx_address().map(<[u8]>::to_vec),
    };
    Roster { group: 7, rank, seats: listeners.iter().enumerate().map(seat).collect() }
}

/// TCP, and UCX where its library is.
fn networks() -> Vec<Network> {
    match Listener::bind(LOCAL.into(), Network::Ucx) {
        Ok(_) => vec![Network::Tcp, Network::Ucx],
        Err(error) => {
            println!("skipped over UCX: {error}");
            vec![Network::Tcp]
        }
    }
}

fn members(network: Network, size: u32, silence: Duration) -> Vec<Member> {
    let bind = |_| Listener::bind(LOCAL.into(), network).unwrap();
    let listeners: Vec<_> = (0..size).map(bind).collect();
    let rosters: Vec<_> = (0..size).map(|rank| roster(&listeners, rank)).collect();
    let join = |(listener, roster): (Listener, Roster)| {
        let (control, heard) = unbounded();
        let (failed, failures) = unbounded();
        std::thread::spawn(move || {
            let ear = Arc::new(Ear { control, failed });
            let mesh = listener.connect(&roster, Instant::now() + SOON, silence, ear).unwrap();
            Member { mesh, control: heard, failed: failures }
        })
    };
    let threads: Vec<_> = listeners.into_iter().zip(rosters).map(join).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

fn key(tag: u64) -> Key {
    Key { channel: Channel::PointToPoint, tag, part: 0 }
}

fn message(key: Key, payload: Payload) -> Outgoing {
    Outgoing { key, fingerprint: 0, payload, deadline: None }
}

fn wanted(from: Option<u32>, key: Key) -> Wanted {
    Wanted { from, key, fingerprint: 0 }
}

fn bytes(max: usize) -> Target {
    Target::Bytes { max }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

fn soon() -> Option<Instant> {
    Some(Instant::now() + SOON)
}

#[test]
fn messages_of_every_size_arrive_whole() {
    for network in networks() {
        let m = members(network, 3, SOON);
        for len in [0, 1, 39, 100_000, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 9 << 20] {
            let want = pattern(len);
            let buffer = Buffer::from_vec(want.clone());
            for to in [0, 1] {
                let payload = Payload::Buffer(buffer.clone(), 0..len);
                m[2].mesh.send(to, message(key(len as u64), payload), None);
            }
            for to in [0, 1] {
                let got =
                    m[to].mesh.receive(wanted(Some(2), key(len as u64)), bytes(len), soon()).wait();
                assert!(got.unwrap().bytes == want, "{len} bytes");
            }
            let target = Buffer::from_vec(vec![0; len + 2]);
            let into = Target::Buffer { buffer: target.clone(), at: 1, len };
            let posted = m[1].mesh.receive(wanted(None, key(0)), into, soon());
            m[0].mesh.send(1, message(key(0), Payload::Bytes(want.clone())), None);
            assert_eq!(posted.wait().unwrap().from, 0);
            assert!(target.slice(1..len + 1) == want.as_slice());
            assert_eq!((target.slice(0..1), target.slice(len + 1..len + 2)), (&[0][..], &[0][..]));
        }
    }
}

#[test]
fn a_flood_that_nobody_wants_blocks_nothing_else() {
    for network in networks() {
        let m = members(network, 2, SOON);
        let big = Buffer::from_vec(vec![1; 1 << 20]);
        for _ in 0..200 {
            m[0].mesh.send(1, message(key(1), Payload::Buffer(big.clone(), 0..1 << 20)), None);
        }
        m[0].mesh.send(1, message(key(2), Payload::Bytes(b"small".to_vec())), None);
        let control = Key { channel: Channel::Control, tag: 0, part: 0 };
        m[0].mesh.send(1, message(control, Payload::Bytes(vec![9; 3 << 20])), None);
        let small = m[1].mesh.receive(wanted(Some(0), key(2)), bytes(5), soon()).wait().unwrap();
        assert_eq!(small.bytes, b"small");
        assert_eq!(m[1].control.recv_timeout(SOON).unwrap(), (0, vec![9; 3 << 20]));
        for _ in 0..200 {
            m[1].mesh.receive(wanted(Some(0), key(1)), bytes(1 << 20), soon()).wait().unwrap();
        }
    }
}

#[test]
fn short_messages_beyond_the_allowance_keep_their_order() {
    for network in networks() {
        let m = members(network, 2, SOON);
        // Those behind the first 95,325 are announced.
        for number in 0..120_000_u64 {
            let payload = Payload::Bytes(number.to_le_bytes().to_vec());
            m[0].mesh.send(1, message(key(1), payload), None);
        }
        for number in 0..120_000_u64 {
            let got = m[1].mesh.receive(wanted(Some(0), key(1)), bytes(8), soon()).wait();
            assert_eq!(got.unwrap().bytes, number.to_le_bytes());
        }
    }
}

#[test]
fn wrong_sizes_and_deadlines_are_errors_of_one_receive() {
    for network in networks() {
        let m = members(network, 2, SOON);
        let late = Some(Instant::now() + Duration::from_millis(100));
        let never = m[0].mesh.receive(wanted(Some(1), key(9)), bytes(1), late);
        assert_eq!(never.wait(), Err(MeshError::Timeout));
        for len in [10, 3 << 20] {
            m[1].mesh.send(0, message(key(1), Payload::Bytes(vec![0; len])), None);
            let wrong = m[0].mesh.receive(wanted(Some(1), key(1)), bytes(4), soon()).wait();
            let expected = MeshError::Size { rank: 1, sent: len as u64, expected: 4 };
            assert_eq!(wrong, Err(expected));
        }
        m[1].mesh.send(0, message(key(1), Payload::Bytes(vec![5; 4])), None);
        let right = m[0].mesh.receive(wanted(Some(1), key(1)), bytes(4), soon()).wait().unwrap();
        assert_eq!(right, Received { from: 1, bytes: vec![5; 4] });
        let nobody = m[0].mesh.receive(wanted(Some(5), key(1)), bytes(4), None).wait();
        assert_eq!(nobody, Err(MeshError::NoSuchRank { rank: 5, size: 2 }));
    }
}

#[test]
fn a_sender_that_is_not_wanted_is_told_when_its_deadline_passes() {
    for network in networks() {
        let m = members(network, 2, SOON);
        let (told, hear) = unbounded();
        let payload = Payload::Bytes(vec![0; 2 << 20]);
        let deadline = Some(Instant::now() + Duration::from_millis(100));
        let outgoing = Outgoing { key: key(1), fingerprint: 0, payload, deadline };
        m[0].mesh.send(1, outgoing, Some(Box::new(move |outcome| told.send(outcome).unwrap())));
        assert_eq!(hear.recv_timeout(SOON).unwrap(), Err(MeshError::Timeout));
    }
}

#[test]
fn ended_operations_free_their_memory_and_refused_messages_vanish() {
    for network in networks() {
        let m = members(network, 2, SOON);
        let op = |part| Key { channel: Channel::Collective, tag: 4, part };
        let owner = Buffer::from_vec(vec![0; 4 << 20]);
        let (told, hear) = unbounded();
        let done: OnSent = Box::new(move |outcome| told.send(outcome).unwrap());
        let payload = Payload::Buffer(owner.clone(), 0..4 << 20);
        m[0].mesh.send(1, message(op(0), payload), Some(done));
        m[0].mesh.end(Channel::Collective, 4);
        assert_eq!(hear.try_recv().unwrap(), Err(MeshError::Cancelled));
        let refused =
            Outgoing { fingerprint: REFUSED, ..message(op(1), Payload::Bytes(vec![1; 8])) };
        m[0].mesh.send(1, refused, None);
        m[0].mesh.send(1, message(op(1), Payload::Bytes(vec![2; 8])), None);
        let got = m[1].mesh.receive(wanted(Some(0), op(1)), bytes(8), soon()).wait().unwrap();
        assert_eq!(got.bytes, [2; 8]);
    }
}

#[test]
fn a_lost_peer_fails_everybody_at_once() {
    for network in networks() {
        let mut m = members(network, 3, SOON);
        let waiting = m[0].mesh.receive(wanted(Some(1), key(1)), bytes(1), None);
        drop(m.remove(2));
        assert!(matches!(waiting.wait(), Err(MeshError::PeerLost { rank: 2, .. })));
        assert!(matches!(m[1].failed.recv_timeout(SOON), Ok(MeshError::PeerLost { rank: 2, .. })));
        let after = m[0].mesh.receive(wanted(Some(1), key(1)), bytes(1), None).wait();
        assert!(matches!(after, Err(MeshError::PeerLost { rank: 2, .. })));
    }
}

#[test]
fn who_says_goodbye_is_no_loss_and_its_last_messages_arrive() {
    for network in networks() {
        let mut m = members(network, 3, SOON);
        let left = m.remove(2);
        left.mesh.send(0, message(key(3), Payload::Bytes(vec![4; 1000])), None);
        let started = Instant::now();
        left.mesh.leave(SOON);
        assert!(started.elapsed() < Duration::from_secs(5), "peers answer a goodbye");
        let last = m[0].mesh.receive(wanted(Some(2), key(3)), bytes(1000), soon()).wait().unwrap();
        assert_eq!(last.bytes, vec![4; 1000]);
        let more = m[0].mesh.receive(wanted(Some(2), key(3)), bytes(1000), soon()).wait();
        assert_eq!(more, Err(MeshError::Left { rank: 2 }));
        m[0].mesh.send(1, message(key(1), Payload::Bytes(vec![1])), None);
        assert!(m[1].mesh.receive(wanted(Some(0), key(1)), bytes(1), soon()).wait().is_ok());
    }
}

#[test]
fn a_peer_that_falls_silent_is_lost_and_a_quiet_one_is_not() {
    for network in networks() {
        let listeners: Vec<_> =
            (0..2).map(|_| Listener::bind(LOCAL.into(), Network::Tcp).unwrap()).collect();
        let (low, high) = (roster(&listeners, 0), roster(&listeners, 1));
        let address = listeners[0].address();
        let (failed, failures) = unbounded();
        let ear = Arc::new(Ear { control: unbounded().0, failed });
        let frozen = std::thread::spawn(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(&connect_hello(&high)).unwrap();
            stream.read_exact(&mut [0; 16]).unwrap();
            stream
        });
        let listener = listeners.into_iter().next().unwrap();
        let silence = Duration::from_millis(400);
        let mesh = listener.connect(&low, Instant::now() + SOON, silence, ear).unwrap();
        let _stream = frozen.join().unwrap();
        let lost = failures.recv_timeout(SOON).unwrap();
        assert!(
            matches!(&lost, MeshError::PeerLost { rank: 1, reason } if reason.contains("not a byte"))
        );
        drop(mesh);

        let quiet = members(network, 2, silence);
        std::thread::sleep(silence * 3);
        assert_eq!(quiet[0].mesh.failure(), None);
    }
}

#[test]
fn connections_are_not_paced_by_bbr() {
    for peer in members(Network::Tcp, 3, SOON)[0].mesh.shared.peers.iter().flatten() {
        let name = socket2::SockRef::from(&peer.stream).tcp_congestion().unwrap();
        assert!(!name.starts_with(b"bbr"), "{}", String::from_utf8_lossy(&name));
    }
}

#[test]
fn strangers_are_turned_away_and_absent_ranks_are_named() {
    let listeners: Vec<_> =
        (0..2).map(|_| Listener::bind(LOCAL.into(), Network::Tcp).unwrap()).collect();
    let mut roster = roster(&listeners, 0);
    roster.seats.truncate(2);
    let address: SocketAddr = listeners[0].address();
    let mut wrong = connect_hello(&Roster { rank: 1, ..roster.clone() });
    wrong[47] ^= 1;
    let stranger = std::thread::spawn(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&wrong).unwrap();
        stream.read(&mut [0; 16])
    });
    let ear = Arc::new(Ear { control: unbounded().0, failed: unbounded().0 });
    let deadline = Instant::now() + Duration::from_millis(500);
    let listener = listeners.into_iter().next().unwrap();
    let error = listener.connect(&roster, deadline, SOON, ear).err().unwrap().to_string();
    assert!(error.starts_with("ranks [1] have not connected within 0.5"), "{error}");
    assert!(matches!(stranger.join().unwrap(), Ok(0) | Err(_)));
}

/// What rank 1 says to rank 0.
fn connect_hello(roster: &Roster) -> [u8; 48] {
    let mut h = [0; 48];
    h[..16].copy_from_slice(b"netsum mesh   1\n");
    h[16..24].copy_from_slice(&roster.group.to_be_bytes());
    h[24..28].copy_from_slice(&1u32.to_be_bytes());
    h[32..].copy_from_slice(&roster.seats[0].secret);
    h
}
