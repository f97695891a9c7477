//! Socket addresses in the system's format.

#![allow(unsafe_code)]

use std::mem::{self, MaybeUninit};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Address and length for `msg_name`.
pub(super) type RawAddress = (libc::sockaddr_storage, libc::socklen_t);

/// Zeroed storage, family unspecified.
pub(super) fn unspecified() -> libc::sockaddr_storage {
    // SAFETY: every field is an integer or an array of integers, for which zero is a value.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// `address` in the system's format.
pub(super) fn encode(address: SocketAddr) -> RawAddress {
    let raw = socket2::SockAddr::from(address);
    let mut storage = unspecified();
    // SAFETY: a `SockAddr` is `len` valid bytes at `as_ptr`, and no longer than the storage type.
    unsafe {
        std::ptr::copy_nonoverlapping(
            raw.as_ptr().cast::<u8>(),
            (&raw mut storage).cast::<u8>(),
            raw.len() as usize,
        );
    }
    (storage, raw.len())
}

/// The address in `storage`; 0.0.0.0:0, which no neighbour has, if it is not an IP address.
pub(super) fn decode(storage: &libc::sockaddr_storage) -> SocketAddr {
    const _: () =
        assert!(mem::size_of::<libc::sockaddr_storage>() >= mem::size_of::<libc::sockaddr_in6>());
    match libc::c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says so, and the storage is larger and at least as aligned.
            let v4 = unsafe { *(&raw const *storage).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            SocketAddr::new(IpAddr::V4(ip), u16::from_be(v4.sin_port))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says so, and the storage is larger and at least as aligned.
            let v6 = unsafe { *(&raw const *storage).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            SocketAddr::new(IpAddr::V6(ip), u16::from_be(v6.sin6_port))
        }
        _ => SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_system_form() {
        for text in ["127.77.2.1:7701", "[fd00::7]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(decode(&encode(address).0), address);
        }
        assert_eq!(decode(&unspecified()), "0.0.0.0:0".parse().unwrap());
    }
}
