//! A switch on the accelerator of `hw/`: the same commands, with sums made by the device.
//!
//! [`device`] accesses the device (registers and lines over a socket, docs/accelerator-device.md); [`frame`] adds
//! Ethernet and IPv4 headers as on wires; [`leases`] assigns table entries and slots to leases, and writes the
//! registers; [`thread`] moves packets between the UDP socket and the lines, and handles what the device leaves to
//! software: fins, and notices from neighbours.

mod device;
mod frame;
mod leases;
mod registers;
mod thread;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use netsum_wire::{JobId, TreeId};

pub(crate) use frame::{build, parse};
pub(crate) use thread::Thread;

/// Why an accelerator cannot be used, or refuses a lease.
#[derive(Debug, thiserror::Error)]
pub enum AcceleratorError {
    /// No device listens at the socket.
    #[error(
        "cannot reach an accelerator at {}: {source}; start the device first, or leave --accelerator out",
        path.display()
    )]
    Connect {
        /// Its socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another device, or another version.
    #[error(
        "{} is no accelerator that this switch can drive: identity {id:#010x}, version {version}; build both from one source",
        path.display()
    )]
    Unknown {
        /// Its socket.
        path: PathBuf,
        /// Value of the register ID.
        id: u32,
        /// Value of the register VERSION.
        version: u32,
    },
    /// The device ended, or does not respond.
    #[error("the accelerator has gone: {what}; start device and switch anew")]
    Gone {
        /// Observed failure.
        what: &'static str,
    },
    /// More neighbours than lines.
    #[error(
        "the lease has {needed} neighbours, the accelerator {lines} lines; use one with more, or the software switch"
    )]
    Lines {
        /// Number of children and parent.
        needed: usize,
        /// Lines of the device.
        lines: usize,
    },
    /// Another lease uses the table entry that this one needs.
    #[error(
        "{job} {tree} needs the place of {other_job} {other_tree} in the accelerator's table; end that job, or use the software switch"
    )]
    Place {
        /// Job of the lease.
        job: JobId,
        /// Tree of the lease.
        tree: TreeId,
        /// Job of the other lease.
        other_job: JobId,
        /// Tree of the other lease.
        other_tree: TreeId,
    },
    /// No free slots.
    #[error("the accelerator's {slots} slots are all given to other leases")]
    Slots {
        /// Slots of the device.
        slots: usize,
    },
    /// Fragments larger than a buffer.
    #[error(
        "fragments of {offered} bytes do not fit into the accelerator's buffers of {limit}; plan for an MTU of 1500"
    )]
    Fragment {
        /// Fragment size of the lease.
        offered: u16,
        /// Limit of the device.
        limit: usize,
    },
    /// A lease of another protocol than `panama`.
    #[error("the accelerator adds for trees of protocol panama alone; use the software switch")]
    Protocol,
    /// A release fraction below 1.
    #[error("the accelerator has no partial synchronisation; set the release fraction to 1")]
    Partial,
    /// A neighbour without an IPv4 address.
    #[error("{address} is not an IPv4 address, and the accelerator knows no other")]
    Address {
        /// Address of a neighbour, or the own one.
        address: SocketAddr,
    },
}
