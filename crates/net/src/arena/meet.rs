//! Setting up an arena between the ranks of a host: the lowest rank makes the memory and passes it to the others.
//!
//! All or none: a rank that has mapped the memory reports it, and waits for the confirmation that all have. A rank that
//! cannot map it (no Unix sockets, no memory, another container) makes all use another transport instead of failing.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use super::Arena;
use super::memory::Memory;
use super::spread::Spread;
use crate::deadline::left;
use crate::mesh::SECRET_LEN;
use crate::names::unguessable_name;
use crate::stream::pass;

/// A rank's part of the set-up, for the other ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArenaSeat {
    /// Equal for processes that may share memory: an id of boot and network namespace, in which `name` is valid.
    pub machine: String,
    /// Name of the Unix socket.
    pub name: String,
    /// Processors that the rank may run on.
    pub cpus: Vec<usize>,
}

/// A rank's socket for setting up shared memory.
#[derive(Debug)]
pub struct ArenaPort {
    listener: UnixListener,
    seat: ArenaSeat,
}

impl ArenaPort {
    /// Listens for processes of this machine and network namespace.
    pub fn open() -> io::Result<ArenaPort> {
        let name = unguessable_name("netsum-arena")?;
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        listener.set_nonblocking(true)?;
        let seat = ArenaSeat { machine: machine()?, name, cpus: cpus()? };
        Ok(ArenaPort { listener, seat })
    }

    /// The seat, for the other ranks.
    pub fn seat(&self) -> &ArenaSeat {
        &self.seat
    }

    /// Sets up the arena with all `seats`, by rank, of which `rank` is the own; `None` if one of them cannot.
    ///
    /// `around`: seats of all ranks of the group that may be on this machine, including other emulated hosts, which
    /// compete for its cores. `secret`: of the lowest rank, known only to readers of the rendezvous.
    pub fn meet(
        self,
        rank: usize,
        seats: &[ArenaSeat],
        around: &[ArenaSeat],
        secret: &[u8; SECRET_LEN],
        patience: Duration,
    ) -> Option<Arena> {
        let ranks = seats.len();
        let oversubscribed = oversubscribed(&self.seat, around);
        let slot_bytes = slot_bytes(ranks);
        let make = || Memory::create(ranks, slot_bytes);
        let open = |fd: &OwnedFd| Memory::open(fd, ranks, slot_bytes);
        let memory = self.share(rank, seats, secret, patience, make, open);
        let spread = Spread::new(shared_cpus(seats));
        memory.map(|memory| Arena::new(memory, rank, ranks, oversubscribed, spread))
    }

    /// Memory that the ranks of all `seats` share, made by the lowest and opened by the others; `None` if one of them
    /// cannot.
    pub(super) fn share<M>(
        &self,
        rank: usize,
        seats: &[ArenaSeat],
        secret: &[u8; SECRET_LEN],
        patience: Duration,
        make: impl FnOnce() -> io::Result<(M, OwnedFd)>,
        open: impl FnOnce(&OwnedFd) -> io::Result<M>,
    ) -> Option<M> {
        let memory = match rank {
            0 => self.lead(seats.len(), secret, patience, make),
            _ => follow(rank, &seats[0], secret, patience, open),
        };
        let warn = |error: &_| tracing::warn!(%error, rank, "no shared memory with the ranks of this host");
        memory.inspect_err(warn).ok()
    }

    fn lead<M>(
        &self,
        ranks: usize,
        secret: &[u8; SECRET_LEN],
        patience: Duration,
        make: impl FnOnce() -> io::Result<(M, OwnedFd)>,
    ) -> io::Result<M> {
        let until = Instant::now() + patience;
        let mut members: Vec<Option<UnixStream>> = (0..ranks).map(|_| None).collect();
        let mut hellos = Vec::new();
        while members[1..].iter().any(Option::is_none) {
            left(until)?;
            match self.listener.accept() {
                Ok((socket, _)) if hellos.len() < HELLOS_MAX => {
                    hellos.push(Hello::new(socket)?);
                    continue;
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            let known = members.iter().flatten().count();
            hellos = read_hellos(hellos, secret, &mut members);
            if members.iter().flatten().count() == known {
                std::thread::sleep(TICK);
            }
        }
        drop(hellos);
        let (memory, fd) = make()?;
        let members = || members.iter().flatten();
        let agreed =
            members().try_for_each(|socket| pass::send(socket, secret, &fd)).and_then(|()| {
                members().try_for_each(|mut socket| {
                    socket.set_read_timeout(Some(left(until)?))?;
                    socket.read_exact(&mut [0])
                })
            });
        if agreed.is_ok() {
            // A rank that does not receive it has died, which its connections reveal.
            members().for_each(|mut socket| drop(socket.write_all(&[1])));
        }
        agreed.map(|()| memory)
    }
}

/// A connection with an incomplete hello. All of them are read concurrently: a slow one does not delay others.
struct Hello {
    socket: UnixStream,
    bytes: [u8; HELLO],
    /// Number of `bytes` received.
    have: usize,
    until: Instant,
}

impl Hello {
    fn new(socket: UnixStream) -> io::Result<Hello> {
        socket.set_nonblocking(true)?;
        let until = Instant::now() + HELLO_PATIENCE;
        Ok(Hello { socket, bytes: [0; HELLO], have: 0, until })
    }

    /// Reads available bytes; returns whether the hello is complete. Errors: it will not be complete, or not in time.
    fn read(&mut self) -> io::Result<bool> {
        while self.have < HELLO {
            match (&self.socket).read(&mut self.bytes[self.have..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.have += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return left(self.until).map(|_| false);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// The rank in the hello, if it is valid and the secret matches.
    fn rank(&self, ranks: usize, secret: &[u8; SECRET_LEN]) -> Option<usize> {
        let [a, b, c, d, known @ ..] = &self.bytes;
        let rank = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
        ((1..ranks).contains(&rank) && known == secret).then_some(rank)
    }
}

/// The rank in a hello of these bytes, if it is complete, valid, and has the secret; for fuzz targets.
pub(crate) fn rank_in_hello(
    bytes: &[u8],
    ranks: usize,
    secret: &[u8; SECRET_LEN],
) -> io::Result<Option<usize>> {
    let (ours, theirs) = UnixStream::pair()?;
    (&theirs).write_all(bytes)?;
    drop(theirs);
    let mut hello = Hello::new(ours)?;
    Ok(matches!(hello.read(), Ok(true)).then(|| hello.rank(ranks, secret)).flatten())
}

/// Makes members of connections with a complete hello; returns the others.
fn read_hellos(
    hellos: Vec<Hello>,
    secret: &[u8; SECRET_LEN],
    members: &mut [Option<UnixStream>],
) -> Vec<Hello> {
    let mut unfinished = Vec::new();
    for mut hello in hellos {
        match hello.read() {
            Ok(false) => unfinished.push(hello),
            Ok(true) => {
                if let Some(rank) = hello.rank(members.len(), secret)
                    && hello.socket.set_nonblocking(false).is_ok()
                {
                    members[rank] = Some(hello.socket);
                }
            }
            Err(_) => {}
        }
    }
    unfinished
}

fn follow<M>(
    rank: usize,
    leader: &ArenaSeat,
    secret: &[u8; SECRET_LEN],
    patience: Duration,
    open: impl FnOnce(&OwnedFd) -> io::Result<M>,
) -> io::Result<M> {
    // The leader decides; the others wait for its decision a little longer.
    let until = Instant::now() + 2 * patience;
    let address = SocketAddr::from_abstract_name(&leader.name)?;
    let mut socket = UnixStream::connect_addr(&address)?;
    let mut hello = [0; HELLO];
    hello[..4].copy_from_slice(&(rank as u32).to_le_bytes());
    hello[4..].copy_from_slice(secret);
    socket.write_all(&hello)?;
    socket.set_read_timeout(Some(left(until)?))?;
    let mut answer = [0; SECRET_LEN];
    let fd = pass::receive(&socket, &mut answer)?;
    let memory = open(&fd)?;
    socket.write_all(&[1])?;
    socket.set_read_timeout(Some(left(until)?))?;
    socket.read_exact(&mut [0])?;
    Ok(memory)
}

/// Whether the machine of `own` has fewer cores than ranks.
pub(super) fn oversubscribed(own: &ArenaSeat, around: &[ArenaSeat]) -> bool {
    let boot = |seat: &ArenaSeat| seat.machine.split('/').next().map(str::to_owned);
    let here = || around.iter().filter(|seat| boot(seat) == boot(own));
    let mut cpus: Vec<usize> = here().flat_map(|seat| seat.cpus.clone()).collect();
    cpus.sort_unstable();
    cpus.dedup();
    here().count() > cpus.len()
}

/// The processors that all of `seats` may run on, if all of them are needed; none if ranks are bound to different ones,
/// because a user chose them.
fn shared_cpus(seats: &[ArenaSeat]) -> Vec<u32> {
    let alike = seats.iter().all(|seat| seat.cpus == seats[0].cpus);
    if alike && seats[0].cpus.len() <= seats.len() {
        seats[0].cpus.iter().map(|&cpu| cpu as u32).collect()
    } else {
        Vec::new()
    }
}

/// An id of the machine and network namespace.
fn machine() -> io::Result<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let namespace = std::fs::metadata("/proc/self/ns/net")?;
    Ok(format!("{}/{}", boot.trim(), namespace.ino()))
}

/// Processors that this process may run on, from the kernel's list, as "0-3,8".
fn cpus() -> io::Result<Vec<usize>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let cpus = list.and_then(|list| parse_cpus(list.trim()));
    cpus.ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, "/proc/self/status has no processors")
    })
}

fn parse_cpus(list: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    Some(cpus)
}

/// Room for a chunk and a rank's share of another chunk's sums. Larger chunks mean fewer waits, and fewer context
/// switches if ranks share a core; with many ranks the arena stays small enough for a last-level cache.
fn slot_bytes(ranks: usize) -> usize {
    let chunk = (CHUNK_BYTES_ALL / ranks).clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX);
    // A share may be an element larger than others.
    (chunk + chunk.div_ceil(ranks)).next_multiple_of(64) + 64
}

const CHUNK_BYTES_MAX: usize = 256 << 10;
const CHUNK_BYTES_MIN: usize = 32 << 10;
const CHUNK_BYTES_ALL: usize = 2 << 20;
const HELLO: usize = 4 + SECRET_LEN;
const TICK: Duration = Duration::from_micros(200);
/// Time-out of a hello, which is sent as soon as its rank has connected.
const HELLO_PATIENCE: Duration = Duration::from_secs(1);
/// Maximum number of connections with an incomplete hello, twice the length of the listener's queue; more are closed.
const HELLOS_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::{ArenaSeat, oversubscribed, parse_cpus, shared_cpus};

    #[test]
    fn ranks_of_other_namespaces_compete_for_the_same_cores() {
        let seat = |machine: &str, cpus: &[usize]| ArenaSeat {
            machine: machine.to_owned(),
            name: String::new(),
            cpus: cpus.to_vec(),
        };
        let around = [seat("a/1", &[0, 1]), seat("a/2", &[1, 2]), seat("b/1", &[0])];
        assert!(!oversubscribed(&around[0], &around));
        assert!(oversubscribed(
            &around[0],
            &[&around[..], &[seat("a/3", &[2]), seat("a/3", &[0])]].concat()
        ));
        assert!(!oversubscribed(&around[2], &around));
        assert!(shared_cpus(&around).is_empty());
        assert_eq!(shared_cpus(&[seat("a/1", &[0, 2]), seat("a/1", &[0, 2])]), [0, 2]);
        assert!(shared_cpus(&[seat("a/1", &[0, 1, 2]), seat("a/1", &[0, 1, 2])]).is_empty());
    }

    #[test]
    fn lists_of_processors() {
        assert_eq!(parse_cpus("0-2,5"), Some(vec![0, 1, 2, 5]));
        assert_eq!(parse_cpus("7"), Some(vec![7]));
        assert_eq!(parse_cpus("a"), None);
    }
}
