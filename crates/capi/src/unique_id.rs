//! The unique id of a new communicator: the address of its rendezvous, and a token that only its ranks know.
//!
//! 128 bytes: magic, token, length of the address as text, "address:port", zeros.

use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::time::Duration;

use netsum_collective::rendezvous::{Invitation, Meeting, TOKEN_LEN, Token};
use parking_lot::Mutex;

use crate::comm::BootstrapAddress;
use crate::result::Failure;
use crate::settings::Settings;

/// Bytes of `ncclUniqueId`.
pub(crate) const ID_BYTES: usize = 128;

/// Open rendezvous: they live as long as ranks may still join.
static MEETINGS: Mutex<Vec<Meeting>> = Mutex::new(Vec::new());

/// Opens a rendezvous; returns its address.
pub(crate) fn create() -> Result<BootstrapAddress, Failure> {
    let mut token = Token::default();
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut token));
    read.map_err(|e| Failure::usage(format!("cannot read /dev/urandom: {e}")))?;
    let at = listen_at()?;
    let credentials = Settings::from_environment()?.options.credentials;
    let invitation = Invitation::new(token, credentials.as_deref())?;
    let meeting = Meeting::host(at, invitation, OPEN)?;
    let address = SocketAddr::new(at.ip(), meeting.address().port());
    MEETINGS.lock().push(meeting);
    Ok(BootstrapAddress { at: address.to_string(), ip: at.ip(), token })
}

/// NCCL_COMM_ID, or an address of this machine that others can reach, with any port.
fn listen_at() -> Result<SocketAddr, Failure> {
    let named = |variable: &str, port: &str| {
        let value = std::env::var(variable).ok().filter(|value| !value.trim().is_empty())?;
        let found =
            format!("{}{port}", value.trim()).to_socket_addrs().ok().and_then(|mut all| all.next());
        Some(found.ok_or_else(|| {
            Failure::argument(format!("{variable}={value}: no address of this machine"))
        }))
    };
    if let Some(found) = named("NCCL_COMM_ID", "").or_else(|| named("NETSUM_HOST", ":0")) {
        return found;
    }
    Ok(SocketAddr::new(way_out().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)), 0))
}

/// The source address of this machine's default route; nothing is sent.
fn way_out() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // An address for documentation (RFC 5737): the default route leads there.
    socket.connect("192.0.2.1:9").ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

impl BootstrapAddress {
    pub(crate) fn to_bytes(&self) -> [u8; ID_BYTES] {
        let mut bytes = [0; ID_BYTES];
        let text = self.at.as_bytes();
        let parts = [MAGIC.as_slice(), &self.token, &[text.len() as u8], text].concat();
        bytes[..parts.len()].copy_from_slice(&parts);
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; ID_BYTES]) -> Result<BootstrapAddress, Failure> {
        let place = bytes.strip_prefix(MAGIC).and_then(|rest| {
            let (token, rest) = rest.split_first_chunk::<TOKEN_LEN>()?;
            let (&len, rest) = rest.split_first()?;
            let at = std::str::from_utf8(rest.get(..usize::from(len))?).ok()?;
            let ip = at.parse::<SocketAddr>().ok()?.ip();
            Some(BootstrapAddress { at: at.to_owned(), ip, token: *token })
        });
        place.ok_or_else(|| {
            Failure::argument("the unique id does not come from ncclGetUniqueId of netsum")
        })
    }
}

const MAGIC: &[u8; 8] = b"netsumid";
/// Ranks that load data first may come late.
const OPEN: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_contains_the_address_and_others_are_refused() {
        let place = create().unwrap();
        let bytes = place.to_bytes();
        let read = BootstrapAddress::from_bytes(&bytes).unwrap();
        assert_eq!((read.at, read.token), (place.at, place.token));
        assert!(BootstrapAddress::from_bytes(&[0; ID_BYTES]).is_err());
        let mut long = bytes;
        long[MAGIC.len() + TOKEN_LEN] = 200;
        assert!(BootstrapAddress::from_bytes(&long).is_err());
    }
}
