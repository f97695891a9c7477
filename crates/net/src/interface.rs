//! Properties of the interface of an address.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::net::IpAddr;

use socket2::SockAddr;

/// MTU in bytes of the interface that has `address`; `None` if this machine has no such address.
///
/// Every loopback address belongs to the loopback interface, whether it is configured or not.
pub fn mtu_of(address: IpAddr) -> Option<u32> {
    let name = if address.is_loopback() { "lo".to_owned() } else { interface_of(address)? };
    let mtu = std::fs::read_to_string(format!("/sys/class/net/{name}/mtu")).ok()?;
    mtu.trim().parse().ok()
}

/// Name of the interface that has `address`; `None` if this machine has no such address.
pub fn interface_of(address: IpAddr) -> Option<String> {
    let is_it = |name: &str, raw| (ip_of(raw) == Some(address)).then(|| name.to_owned());
    each_address(is_it).into_iter().next()
}

/// An address of the interface with that name, preferably IPv4; not a link-local one.
pub fn address_of(name: &str) -> Option<IpAddr> {
    let own = |other: &str, raw| if other == name { ip_of(raw) } else { None };
    let mut found = each_address(own);
    found.retain(|ip| !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local()));
    found.sort_by_key(IpAddr::is_ipv6);
    found.into_iter().next()
}

/// A network interface.
#[cfg(feature = "xdp")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) ifindex: u32,
    pub(crate) mac: [u8; 6],
}

/// Every interface of the calling thread's network namespace.
#[cfg(feature = "xdp")]
pub(crate) fn links() -> Vec<Interface> {
    each_address(|name, raw| {
        // SAFETY: made by the system.
        if i32::from(unsafe { (*raw).sa_family }) != libc::AF_PACKET {
            return None;
        }
        // SAFETY: the family says so.
        let link = unsafe { raw.cast::<libc::sockaddr_ll>().read_unaligned() };
        let mac = *link.sll_addr.first_chunk()?;
        Some(Interface {
            name: name.to_owned(),
            ifindex: u32::try_from(link.sll_ifindex).ok()?,
            mac,
        })
    })
}

/// Calls `of` for each address of each interface; returns its results.
fn each_address<T>(of: impl Fn(&str, *const libc::sockaddr) -> Option<T>) -> Vec<T> {
    let mut list = std::ptr::null_mut();
    // SAFETY: the list is written on success only, and freed below.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Vec::new();
    }
    let (mut entry, mut found) = (list, Vec::new());
    while !entry.is_null() {
        // SAFETY: an entry of the list, which lives until `freeifaddrs`.
        let this = unsafe { &*entry };
        // SAFETY: the name is a C string with the same lifetime.
        let name = unsafe { CStr::from_ptr(this.ifa_name) };
        if let (false, Ok(name)) = (this.ifa_addr.is_null(), name.to_str()) {
            found.extend(of(name, this.ifa_addr));
        }
        entry = this.ifa_next;
    }
    // SAFETY: `getifaddrs` made it; no reference to it is left.
    unsafe { libc::freeifaddrs(list) };
    found
}

/// The IP address in a socket address of the interface list.
fn ip_of(raw: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: not null (the caller checked), and the system wrote the structure that the family names.
    let len = match i32::from(unsafe { (*raw).sa_family }) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        _ => return None,
    };
    // SAFETY: `len` bytes of `raw` are valid, and the closure writes them into zeroed storage that is larger.
    let made = unsafe {
        SockAddr::try_init(|storage, storage_len| {
            std::ptr::copy_nonoverlapping(raw.cast::<u8>(), storage.cast::<u8>(), len);
            *storage_len = len as libc::socklen_t;
            Ok(())
        })
    };
    let ((), address) = made.ok()?;
    Some(address.as_socket()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_an_mtu_and_an_unknown_address_has_none() {
        assert!(mtu_of("127.77.1.1".parse().unwrap()).unwrap() >= 1500);
        assert_eq!(mtu_of("192.0.2.1".parse().unwrap()), None);
        assert!(address_of("lo").unwrap().is_loopback());
        assert_eq!(address_of("no-such-interface"), None);
    }

    #[test]
    fn configured_addresses_are_found() {
        // The list contains the loopback address, too, under its own name.
        if std::path::Path::new("/sys/class/net/lo").exists() {
            assert_eq!(interface_of("127.0.0.1".parse().unwrap()).as_deref(), Some("lo"));
        }
    }
}
