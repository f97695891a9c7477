//! Streams between ranks with credentials: what an eavesdropper reads, what changed bytes do, and who is refused. That
//! bytes arrive is tested with all other media (`crate::stream`).

use std::io::{self, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::secure_tests::{Place, Worker, seats, tenant};
use super::*;
use crate::stream::{Connection, Tls, read_exact, write_all};

const SOON: Duration = Duration::from_secs(20);
const HELLO: &[u8] = b"stream 3 of epoch 1, from 1 to 0";
const ANSWER: [u8; SECRET_LEN] = [9; SECRET_LEN];

/// Streams of ranks 0 and 1, and of a third worker that is no rank.
fn streams(workers: [&Worker; 3]) -> [Streams; 3] {
    let listeners = workers.map(Worker::listen);
    let seats = seats(&listeners[..2]);
    let roster = |rank| Roster { group: 7, rank, seats: seats.clone() };
    let of = |rank: usize| listeners[rank].streams(&roster(rank.min(1) as u32)).unwrap();
    [of(0), of(1), of(2)]
}

/// Accepts one connection, as rank 0 does that expects rank 1.
fn answer(streams: &Streams, stream: TcpStream) -> io::Result<Tls> {
    stream.set_nonblocking(true)?;
    let until = Instant::now() + SOON;
    let mut answering = streams.answering(stream, HELLO.len()).unwrap();
    while answering.advance()?.is_none() {
        if Instant::now() >= until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(answering.advance()?, Some(HELLO));
    answering.admit(streams, 1, &ANSWER, until).map(|(_, tls)| tls)
}

type Both = (io::Result<Tls>, io::Result<Tls>);

/// Connects `caller` with rank 0, over a relay that sees and changes the bytes; returns the caller's end and rank 0's.
fn connect(
    streams: &Streams,
    relay: impl Relay,
    caller: impl FnOnce(TcpStream) -> io::Result<Tls> + Send,
) -> Both {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let near = TcpStream::connect(relay.before(listener.local_addr().unwrap())).unwrap();
    let far = listener.accept().unwrap().0;
    thread::scope(|scope| {
        let called = scope.spawn(|| caller(near));
        let answered = answer(streams, far);
        (called.join().unwrap(), answered)
    })
}

fn call(streams: &Streams) -> impl FnOnce(TcpStream) -> io::Result<Tls> + Send {
    |stream| streams.call(stream, 0, HELLO, &ANSWER, Instant::now() + SOON)
}

trait Relay {
    /// The address to connect to instead of `address`.
    fn before(self, address: std::net::SocketAddr) -> std::net::SocketAddr;
}

struct Direct;

impl Relay for Direct {
    fn before(self, address: std::net::SocketAddr) -> std::net::SocketAddr {
        address
    }
}

/// What happens to the bytes from the caller once the ranks are connected.
#[derive(Clone, Copy, PartialEq)]
enum Harm {
    None,
    Flip,
    Cut,
}

/// Reports all bytes from the caller, and does the harm when it is told to.
struct Between {
    heard: Sender<Vec<u8>>,
    harm: Receiver<Harm>,
}

impl Relay for Between {
    fn before(self, address: std::net::SocketAddr) -> std::net::SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let at = listener.local_addr().unwrap();
        thread::spawn(move || {
            let near = listener.accept().unwrap().0;
            let far = TcpStream::connect(address).unwrap();
            let (mut from_far, mut to_near) = (far.try_clone().unwrap(), near.try_clone().unwrap());
            thread::spawn(move || io::copy(&mut from_far, &mut to_near));
            let mut bytes = vec![0; 4096];
            while let Ok(count @ 1..) = near.read(&mut bytes) {
                match self.harm.try_recv().unwrap_or(Harm::None) {
                    Harm::None => {}
                    Harm::Flip => bytes[count / 2] ^= 1,
                    Harm::Cut => break,
                }
                let _ = self.heard.send(bytes[..count].to_vec());
                if (&far).write_all(&bytes[..count]).is_err() {
                    break;
                }
            }
            let _ = far.shutdown(Shutdown::Write);
        });
        at
    }
}

fn over_relay() -> (Between, Receiver<Vec<u8>>, Sender<Harm>) {
    let ((heard, hearing), (harming, harm)) = (unbounded(), unbounded());
    (Between { heard, harm }, hearing, harming)
}

/// Both ends of a stream, for the tests of all media.
pub(crate) fn connected() -> (Arc<dyn Connection>, Arc<dyn Connection>) {
    let [low, high, _] = streams([tenant(); 3]);
    let (caller, answerer) = connect(&low, Direct, call(&high));
    (Arc::new(caller.unwrap()), Arc::new(answerer.unwrap()))
}

#[test]
fn an_eavesdropper_reads_nothing_of_hello_secret_or_values() {
    let [low, high, _] = streams([tenant(); 3]);
    let (relay, heard, _harm) = over_relay();
    let (caller, answerer) = connect(&low, relay, call(&high));
    let (caller, answerer) = (caller.unwrap(), answerer.unwrap());
    let secret = [0x5a; 50_000];
    write_all(&caller, &secret).unwrap();
    caller.end();
    let mut found = vec![0; secret.len()];
    read_exact(&answerer, &mut found).unwrap();
    assert!(found == secret);
    assert_eq!(answerer.read(&mut found).unwrap(), 0, "the caller has ended the stream");
    let wire: Vec<u8> = heard.iter().flatten().collect();
    assert!(wire.len() > secret.len());
    for part in [&secret[..8], &HELLO[..8], &ANSWER[..8]] {
        assert!(!wire.windows(part.len()).any(|bytes| bytes == part), "{part:?} is readable");
    }
}

#[test]
fn changed_and_missing_bytes_end_the_stream() {
    for (harm, words) in [(Harm::Flip, "decrypt"), (Harm::Cut, "unexpected end")] {
        let [low, high, _] = streams([tenant(); 3]);
        let (relay, _heard, harming) = over_relay();
        let (caller, answerer) = connect(&low, relay, call(&high));
        let (caller, answerer) = (caller.unwrap(), answerer.unwrap());
        write_all(&caller, b"before").unwrap();
        let mut found = [0; 6];
        read_exact(&answerer, &mut found).unwrap();
        assert_eq!(&found, b"before");
        harming.send(harm).unwrap();
        write_all(&caller, &[1; 1000]).unwrap();
        let error = answerer.read(&mut [0; 1000]).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

/// Errors of the caller and of rank 0.
fn refused((caller, answerer): Both) -> [String; 2] {
    [caller, answerer].map(|outcome| outcome.err().expect("refused").to_string())
}

/// It has the certificate of all ranks and knows what the hello says.
#[test]
fn a_member_cannot_call_for_another() {
    let [low, _, thief] = streams([tenant(); 3]);
    let [_, answered] = refused(connect(&low, Direct, call(&thief)));
    assert!(answered.contains("it has not the key that this rank has announced"), "{answered}");
}

#[test]
fn a_member_cannot_answer_for_another() {
    let [_, high, thief] = streams([tenant(); 3]);
    let (caller, _) = connect(&thief, Direct, call(&high));
    let error = caller.err().expect("refused").to_string();
    assert!(error.contains("it has not the key that this rank has announced"), "{error}");
}

#[test]
fn a_proof_is_for_one_hello() {
    let [low, high, _] = streams([tenant(); 3]);
    let until = Instant::now() + SOON;
    let other = HELLO.to_ascii_uppercase();
    let call = |stream: TcpStream| high.call(stream, 0, &other, &ANSWER, until);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    far.set_nonblocking(true).unwrap();
    thread::scope(|scope| {
        let called = scope.spawn(|| call(near));
        let mut answering = low.answering(far, HELLO.len()).unwrap();
        while answering.advance().unwrap().is_none() {
            thread::sleep(Duration::from_millis(1));
        }
        // The hello changes on its way: the proof is not for it.
        answering.replace_hello(HELLO);
        let error = answering.admit(&low, 1, &ANSWER, until).err().expect("refused");
        assert!(error.to_string().contains("it has not the key"), "{error}");
        assert!(called.join().unwrap().is_err());
    });
}

#[test]
fn whoever_is_not_of_the_fabric_or_speaks_no_tls_is_refused() {
    let place = Place::new();
    let authority = place.authority("ca");
    let [a, viewer] = ["tenant/a", "viewer"].map(|role| place.issue(&authority, role));
    let stranger = place.issue(&place.authority("other"), "operator");
    for (worker, words) in [(&viewer, "workers have the certificate of a host"), (&stranger, "")] {
        let [low, _, outsider] = streams([&a, &a, worker]);
        let [_, answered] = refused(connect(&low, Direct, call(&outsider)));
        assert!(answered.contains(words), "{answered}");
    }
    let [low, _, _] = streams([tenant(); 3]);
    let plainly = |mut stream: TcpStream| {
        stream.write_all(HELLO)?;
        let _ = stream.read(&mut [0; 64]);
        Err(io::Error::other("no answer"))
    };
    let [_, answered] = refused(connect(&low, Direct, plainly));
    assert!(!answered.is_empty());
}
