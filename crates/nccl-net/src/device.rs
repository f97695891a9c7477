//! The device that NCCL sees: the interface over which this machine reaches the others.

use std::ffi::{CString, c_char, c_int};
use std::net::IpAddr;
use std::sync::OnceLock;

use netsum_nccl_core::{Failure, Settings, own_address};

/// The one device of this machine.
pub(crate) struct Device {
    /// The interface's name.
    pub(crate) name: CString,
    /// Its address.
    pub(crate) address: IpAddr,
    /// Its folder in /sys, if it is no virtual interface.
    pci_path: Option<CString>,
    pub(crate) speed_mbps: c_int,
}

/// The device. Failures: the environment names a host that this machine is not.
pub(crate) fn device() -> Result<&'static Device, Failure> {
    static DEVICE: OnceLock<Result<Device, Failure>> = OnceLock::new();
    DEVICE.get_or_init(Device::find).as_ref().map_err(Failure::clone)
}

/// Checks the index of a device.
pub(crate) fn check(index: c_int) -> Result<&'static Device, Failure> {
    if index != 0 {
        return Err(Failure::argument(format!("there is no device {index}, only 0")));
    }
    device()
}

impl Device {
    fn find() -> Result<Device, Failure> {
        let address = own_address(&Settings::from_environment()?)?;
        let name = netsum_net::interface_of(address).unwrap_or_else(|| "lo".to_owned());
        let folder = format!("/sys/class/net/{name}");
        let speed = std::fs::read_to_string(format!("{folder}/speed")).unwrap_or_default();
        let speed: c_int = speed.trim().parse().unwrap_or(0);
        let pci_path = std::fs::canonicalize(format!("{folder}/device")).ok();
        let pci_path = pci_path.and_then(|path| CString::new(path.to_string_lossy().as_ref()).ok());
        let name = CString::new(name).unwrap_or_default();
        let speed_mbps = if speed > 0 { speed } else { UNKNOWN_SPEED_MBPS };
        Ok(Device { name, address, pci_path, speed_mbps })
    }

    /// NULL for a virtual interface.
    pub(crate) fn pci_path(&self) -> *const c_char {
        self.pci_path.as_ref().map_or(std::ptr::null(), |path| path.as_ptr())
    }
}

/// What NCCL assumes of its own sockets, too.
const UNKNOWN_SPEED_MBPS: c_int = 10_000;
