//! The unique id of a new communicator: where its ranks meet.

use std::net::{SocketAddr, ToSocketAddrs};

use netsum_collective::rendezvous::Meeting;
use netsum_nccl_core::{Failure, MeetingPlace, PLACE_BYTES, Settings, own_address};
use parking_lot::Mutex;

/// Open rendezvous: they live as long as ranks may still join.
static MEETINGS: Mutex<Vec<Meeting>> = Mutex::new(Vec::new());

/// Opens a rendezvous at NCCL_COMM_ID, or at an address of this machine that others can reach; returns its address.
pub(crate) fn create() -> Result<MeetingPlace, Failure> {
    let settings = Settings::from_environment()?;
    let named = std::env::var("NCCL_COMM_ID").ok().filter(|value| !value.trim().is_empty());
    let at = match named {
        Some(value) => {
            let found = value.trim().to_socket_addrs().ok().and_then(|mut all| all.next());
            found.ok_or_else(|| {
                Failure::argument(format!("NCCL_COMM_ID={value}: no address of this machine"))
            })?
        }
        None => SocketAddr::new(own_address(&settings)?, 0),
    };
    let (place, meeting) = MeetingPlace::open(at, &settings)?;
    MEETINGS.lock().push(meeting);
    Ok(place)
}

/// The place in an id.
pub(crate) fn read(bytes: &[u8; PLACE_BYTES]) -> Result<MeetingPlace, Failure> {
    MeetingPlace::from_bytes(bytes).ok_or_else(|| {
        Failure::argument("the unique id does not come from ncclGetUniqueId of netsum")
    })
}
