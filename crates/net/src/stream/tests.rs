use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::half::{ReceiveHalf, SendHalf, end, refuse};
use super::{Connection, SharedMemory, read_exact, write_all};
use crate::futex::model::ModelWord;
use crate::ring::Bytes;
use crate::ring::tests::{LoomRing, limited_preemptions};

const PATIENCE: Duration = Duration::from_secs(10);

fn shared(patience: Duration) -> (Arc<dyn Connection>, Arc<dyn Connection>) {
    let (a, b) = UnixStream::pair().unwrap();
    let offered = SharedMemory::offer(a, b"hello", patience).unwrap();
    let mut hello = [0; 5];
    let taken = SharedMemory::take(b, &mut hello, patience).unwrap();
    assert_eq!(&hello, b"hello");
    (Arc::new(offered), Arc::new(taken))
}

fn tcp() -> (Arc<dyn Connection>, Arc<dyn Connection>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (Arc::new(ours), Arc::new(listener.accept().unwrap().0))
}

/// Bytes that depend on their position.
fn pattern(at: usize, len: usize) -> Vec<u8> {
    (at..at + len).map(|i| (i % 251) as u8).collect()
}

#[test]
fn streams_carry_bytes_both_ways_in_order() {
    for (a, b) in [shared(PATIENCE), tcp(), crate::mesh::streams_tests::connected()] {
        // More than a ring holds, in pieces that do not divide it.
        let total = 5_000_011;
        let one_way = |from: Arc<dyn Connection>, to: Arc<dyn Connection>, step: usize| {
            let writer = thread::spawn(move || {
                for at in (0..total).step_by(step) {
                    write_all(&*from, &pattern(at, step.min(total - at))).unwrap();
                }
                from.end();
            });
            let reader = thread::spawn(move || {
                let mut found = Vec::new();
                let mut bytes = vec![0; 70_001];
                loop {
                    let count = to.read(&mut bytes).unwrap();
                    if count == 0 {
                        return found;
                    }
                    found.extend_from_slice(&bytes[..count]);
                }
            });
            (writer, reader)
        };
        let both = [one_way(a.clone(), b.clone(), 65_537), one_way(b.clone(), a.clone(), 9_999)];
        for (writer, reader) in both {
            writer.join().unwrap();
            assert!(reader.join().unwrap() == pattern(0, total));
        }
    }
}

#[test]
fn a_dropped_peer_ends_reads_and_writes() {
    let (a, b) = shared(PATIENCE);
    write_all(&*a, b"last words").unwrap();
    drop(a);
    let mut words = [0; 10];
    read_exact(&*b, &mut words).unwrap();
    assert_eq!(&words, b"last words");
    assert_eq!(read_exact(&*b, &mut words).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(write_all(&*b, b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
}

#[test]
fn close_wakes_a_reader() {
    let (a, _b) = shared(PATIENCE);
    let reader = thread::spawn({
        let a = a.clone();
        move || a.read(&mut [0; 8])
    });
    thread::sleep(Duration::from_millis(50));
    a.close();
    assert_eq!(reader.join().unwrap().unwrap(), 0);
}

#[test]
fn a_write_to_a_peer_that_reads_nothing_times_out() {
    let (a, _b) = shared(Duration::from_millis(100));
    let begun = Instant::now();
    let error = write_all(&*a, &vec![0; 4 << 20]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert!(begun.elapsed() < PATIENCE);
}

#[test]
fn anything_but_sealed_shared_memory_is_refused() {
    let take = |socket: UnixStream| {
        SharedMemory::take(socket, &mut [0; 5], PATIENCE).err().expect("refused").kind()
    };
    // Bytes without memory.
    let (a, b) = UnixStream::pair().unwrap();
    std::io::Write::write_all(&mut &a, b"hello").unwrap();
    assert_eq!(take(b), io::ErrorKind::InvalidData);
    // A file of the right message that is not sealed.
    let (a, b) = UnixStream::pair().unwrap();
    let file = std::fs::File::open("/dev/zero").unwrap();
    super::pass::send(&a, b"hello", &file.into()).unwrap();
    assert_eq!(take(b), io::ErrorKind::InvalidData);
    // Nothing at all.
    let (a, b) = UnixStream::pair().unwrap();
    drop(a);
    assert_eq!(take(b), io::ErrorKind::InvalidData);
}

/// A writer of more bytes than the ring holds and its reader, which sleep when idle: every byte is read once and in
/// order, the end after them, and no wake-up is lost (loom reports a deadlock).
#[test]
fn bytes_and_the_end_wake_a_sleeping_side() {
    limited_preemptions(|| {
        let ring = LoomRing::new(ModelWord::new);
        let writing = loom::thread::spawn({
            let (mut half, ring) = (SendHalf::new(ring.clone()), ring.clone());
            move || {
                let mut left = &[1, 2, 3][..];
                while !left.is_empty() {
                    let count = half.write(left, Duration::MAX, 0, || false).unwrap();
                    left = &left[count..];
                }
                end(ring.positions());
            }
        });
        let (mut half, mut found) = (ReceiveHalf::new(ring), Vec::new());
        let mut bytes = [0; 3];
        while let count @ 1.. = half.read(&mut bytes, 0, || false).unwrap() {
            found.extend_from_slice(&bytes[..count]);
        }
        assert_eq!(found, [1, 2, 3]);
        writing.join().unwrap();
    });
}

/// A writer that sleeps for lack of room, and a reader that stops reading: the writer is woken.
#[test]
fn a_refusal_wakes_a_sleeping_writer() {
    loom::model(|| {
        let ring = LoomRing::new(ModelWord::new);
        let mut half = SendHalf::new(ring.clone());
        assert_eq!(half.write(&[1, 2], Duration::MAX, 0, || false).unwrap(), 2);
        let refusing = loom::thread::spawn(move || refuse(ring.positions()));
        let refused = half.write(&[3], Duration::MAX, 0, || false).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::BrokenPipe);
        refusing.join().unwrap();
    });
}
