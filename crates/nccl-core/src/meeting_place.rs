//! Where the ranks of a new communicator meet, as bytes that NCCL or its callers carry to all of them, and how they
//! become a group.
//!
//! 128 bytes: magic, token, length of the address as text, "address:port", zeros.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::time::Duration;

use netsum_collective::rendezvous::{self, Invitation, Meeting, TOKEN_LEN, Token};
use netsum_collective::{Group, GroupConfig};
use socket2::{Domain, Socket, Type};

use crate::failure::{Failure, SYSTEM_ERROR};
use crate::settings::Settings;

/// Bytes of a place: as many as `ncclUniqueId` and the handles of NCCL's plug-ins have.
pub const PLACE_BYTES: usize = 128;

/// Address at which the ranks of one communicator meet, and the token that only they know.
#[derive(Clone, Debug, PartialEq)]
pub struct MeetingPlace {
    at: SocketAddr,
    token: Token,
}

impl MeetingPlace {
    /// Opens a rendezvous at `address`, with any port if that is 0. It is served until all ranks have come, or the
    /// meeting is dropped.
    pub fn open(address: SocketAddr, settings: &Settings) -> Result<(Self, Meeting), Failure> {
        let mut place = MeetingPlace::new(address)?;
        let invitation = Invitation::new(place.token, settings.options.credentials.as_deref())?;
        let meeting = Meeting::host(address, invitation, OPEN)?;
        place.at.set_port(meeting.address().port());
        Ok((place, meeting))
    }

    /// Keeps a port of this machine free for a meeting later on, at the address from which `others` are reached, or
    /// at NETSUM_HOST's.
    pub fn reserve(others: &MeetingPlace, settings: &Settings) -> Result<Reservation, Failure> {
        let ip = match (&settings.host, source_towards(&others.at.to_string())) {
            (None, Some(ip)) => ip,
            _ => own_address(settings)?,
        };
        let problem = |error: std::io::Error| Failure {
            code: SYSTEM_ERROR,
            words: format!("cannot reserve a port of {ip}: {error}"),
        };
        let socket = Socket::new(Domain::for_address((ip, 0).into()), Type::STREAM, None);
        let socket = socket.map_err(problem)?;
        // The meeting's listener binds the same port while this socket holds it.
        socket.set_reuse_address(true).map_err(problem)?;
        socket.bind(&SocketAddr::new(ip, 0).into()).map_err(problem)?;
        let at = socket.local_addr().map_err(problem)?.as_socket();
        let at = at.ok_or_else(|| Failure::argument(format!("{ip} is no address of a network")))?;
        Ok(Reservation { place: MeetingPlace::new(at)?, _port: socket })
    }

    /// All ranks' bytes, by rank: all ranks of a meeting call it with the same place.
    pub fn exchange(
        &self,
        (rank, size): (u32, u32),
        own: &[u8],
        settings: &Settings,
    ) -> Result<Vec<Vec<u8>>, Failure> {
        let invitation = Invitation::new(self.token, settings.options.credentials.as_deref())?;
        let at = self.at.to_string();
        Ok(rendezvous::meet(&at, invitation, (rank, size), own, settings.timeout)?)
    }

    /// A place with a new token, where nobody listens yet.
    pub fn new(at: SocketAddr) -> Result<MeetingPlace, Failure> {
        let mut token = Token::default();
        getrandom::fill(&mut token).map_err(|error| Failure {
            code: SYSTEM_ERROR,
            words: format!("the system has no random numbers: {error}"),
        })?;
        Ok(MeetingPlace { at, token })
    }

    /// Address of whoever listens.
    pub fn address(&self) -> SocketAddr {
        self.at
    }

    /// What whoever comes must show.
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// Meets the other ranks and connects; all ranks call it with the same place. Returns the group, and its name for
    /// users. If a rank cannot take part, all ranks fail at once, with that rank's words.
    pub fn join(
        &self,
        (rank, size): (u32, u32),
        settings: Settings,
    ) -> Result<(Group, String), Failure> {
        let Settings { controller, host, timeout, mut options, label } = settings;
        let invitation = Invitation::new(self.token, options.credentials.as_deref())?;
        options.rendezvous.get_or_insert_with(|| self.at.ip().to_string());
        let name: String = self.token[..4].iter().map(|byte| format!("{byte:02x}")).collect();
        let name = match label {
            Some(label) => format!("nccl-{name}-{label}"),
            None => format!("nccl-{name}"),
        };
        let config = GroupConfig {
            rank,
            size,
            name: name.clone(),
            controller,
            host,
            timeout,
            options,
            plan: None,
        };
        let group = Group::new(config);
        let own = match &group {
            Ok(group) => [&[CAN], group.address().as_slice()].concat(),
            Err(error) => [&[CANNOT], error.to_string().as_bytes()].concat(),
        };
        let told = match size {
            1 => vec![own],
            _ => rendezvous::meet(&self.at.to_string(), invitation, (rank, size), &own, timeout)?,
        };
        let group = group?;
        group.connect(&addresses(told)?)?;
        Ok((group, name))
    }

    /// What the others need in order to find it.
    pub fn to_bytes(&self) -> [u8; PLACE_BYTES] {
        let mut bytes = [0; PLACE_BYTES];
        let text = self.at.to_string();
        let parts = [MAGIC.as_slice(), &self.token, &[text.len() as u8], text.as_bytes()].concat();
        bytes[..parts.len()].copy_from_slice(&parts);
        bytes
    }

    /// `None` if the bytes are not a place's.
    pub fn from_bytes(bytes: &[u8; PLACE_BYTES]) -> Option<MeetingPlace> {
        let (token, rest) = bytes.strip_prefix(MAGIC)?.split_first_chunk::<TOKEN_LEN>()?;
        let (&len, rest) = rest.split_first()?;
        let text = std::str::from_utf8(rest.get(..usize::from(len))?).ok()?;
        Some(MeetingPlace { at: text.parse().ok()?, token: *token })
    }
}

/// A place whose port is kept free until somebody meets there; meetings may follow each other.
pub struct Reservation {
    place: MeetingPlace,
    _port: Socket,
}

impl Reservation {
    /// The place, for the other ranks.
    pub fn place(&self) -> &MeetingPlace {
        &self.place
    }

    /// Opens a meeting there, until all ranks have come or it is dropped.
    pub fn open(&self, settings: &Settings) -> Result<Meeting, Failure> {
        let credentials = settings.options.credentials.as_deref();
        let invitation = Invitation::new(self.place.token, credentials)?;
        Ok(Meeting::host(self.place.at, invitation, settings.timeout)?)
    }
}

/// The ranks' addresses, if all of them can take part.
fn addresses(told: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, Failure> {
    let mut all = Vec::new();
    for (rank, mut words) in told.into_iter().enumerate() {
        if words.first() != Some(&CAN) {
            let words = String::from_utf8_lossy(words.get(1..).unwrap_or_default());
            let words = format!("rank {rank} cannot take part: {words}");
            return Err(Failure { code: SYSTEM_ERROR, words });
        }
        words.remove(0);
        all.push(words);
    }
    Ok(all)
}

/// An address of this machine that the other ranks reach: NETSUM_HOST if that has one, else the one from which the
/// controller is reached, else that of the default route. In a fabric NETSUM_HOST is a name of its file, which need not
/// have an address. Failures: a host without address, outside of a fabric.
pub fn own_address(settings: &Settings) -> Result<IpAddr, Failure> {
    if let Some(host) = &settings.host {
        let found = (host.as_str(), 0).to_socket_addrs().ok().and_then(|mut all| all.next());
        match (found, &settings.controller) {
            (Some(found), _) => return Ok(found.ip()),
            (None, Some(_)) => {}
            (None, None) => {
                let words = format!("NETSUM_HOST={host}: no address of this machine");
                return Err(Failure::argument(words));
            }
        }
    }
    let mut controllers = settings.controller.as_deref().unwrap_or_default().split(',');
    let towards = controllers.find_map(|address| source_towards(address.trim()));
    let way_out = || source_towards(OUTSIDE);
    Ok(towards.or_else(way_out).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)))
}

/// This machine's address on the route to another; nothing is sent.
fn source_towards(address: &str) -> Option<IpAddr> {
    let target = address.to_socket_addrs().ok()?.next()?;
    let any = if target.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(target).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

const MAGIC: &[u8; 8] = b"netsumid";
/// The first byte of what a rank tells the others.
const CAN: u8 = 0;
const CANNOT: u8 = 1;
/// An address for documentation (RFC 5737): the default route leads there.
const OUTSIDE: &str = "192.0.2.1:9";
/// Ranks that load data first may come late.
const OPEN: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(controller: Option<&str>, host: Option<&str>) -> Settings {
        Settings {
            controller: controller.map(str::to_owned),
            host: host.map(str::to_owned),
            timeout: Duration::from_secs(20),
            options: netsum_collective::Options::default(),
            label: None,
        }
    }

    #[test]
    fn a_place_contains_the_address_and_others_are_refused() {
        let here = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
        let (place, _meeting) = MeetingPlace::open(here, &settings(None, None)).unwrap();
        let bytes = place.to_bytes();
        assert_eq!(MeetingPlace::from_bytes(&bytes), Some(place));
        assert_eq!(MeetingPlace::from_bytes(&[0; PLACE_BYTES]), None);
        let mut long = bytes;
        long[MAGIC.len() + TOKEN_LEN] = 200;
        assert_eq!(MeetingPlace::from_bytes(&long), None);
    }

    #[test]
    fn ranks_meet_again_and_again_at_a_reserved_port() {
        let here = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 9);
        let settings = || settings(None, None);
        let others = MeetingPlace::new(here).unwrap();
        let reserved = MeetingPlace::reserve(&others, &settings()).unwrap();
        assert_eq!(reserved.place().at.ip(), here.ip());
        for turn in 0..3u8 {
            let all = std::thread::scope(|scope| {
                let other = scope
                    .spawn(|| reserved.place().exchange((1, 2), &[turn, 1], &settings()).unwrap());
                let _meeting = reserved.open(&settings()).unwrap();
                let all = reserved.place().exchange((0, 2), &[turn, 0], &settings()).unwrap();
                assert_eq!(other.join().unwrap(), all);
                all
            });
            assert_eq!(all, [[turn, 0], [turn, 1]]);
        }
    }

    #[test]
    fn the_name_of_a_host_in_a_fabric_needs_no_address() {
        let of = |controller, host| own_address(&settings(controller, host));
        let nowhere = Some("no-such-host.invalid");
        assert!(of(None, nowhere).unwrap_err().words.contains("NETSUM_HOST=no-such-host.invalid"));
        assert_eq!(of(Some("127.0.0.1:7700"), nowhere).unwrap(), IpAddr::from([127, 0, 0, 1]));
        assert_eq!(of(None, Some("127.0.0.9")).unwrap(), IpAddr::from([127, 0, 0, 9]));
    }

    #[test]
    fn a_rank_that_cannot_take_part_tells_the_others_why() {
        let here = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
        let (place, _meeting) = MeetingPlace::open(here, &settings(None, None)).unwrap();
        let words = std::thread::scope(|scope| {
            let join = |rank: u32| {
                let place = &place;
                scope.spawn(move || {
                    let host = if rank == 1 { "no-such-host.invalid" } else { "127.0.0.1" };
                    place.join((rank, 3), settings(None, Some(host))).err().unwrap().words
                })
            };
            [0, 1, 2].map(join).map(|thread| thread.join().unwrap())
        });
        for rank in [0, 2] {
            assert!(words[rank].contains("rank 1 cannot take part"), "{}", words[rank]);
        }
        assert!(words.iter().all(|words| words.contains("no-such-host.invalid")), "{words:?}");
    }
}
