//! The accelerator of `hw/` under a switch: the same commands, the sums made by the device.
//!
//! [`device`] speaks with the device (registers and lines over a socket, docs/accelerator-device.md); [`frame`] puts
//! Ethernet and IPv4 around packets as the wires would have them; [`leases`] keeps which lease has which place and
//! slots, and writes the registers; [`thread`] moves packets between the UDP socket and the lines, and does what the
//! device leaves to software: fins, and notices from neighbours.

mod device;
mod frame;
mod leases;
mod registers;
mod thread;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use netsum_wire::{JobId, TreeId};

pub(crate) use thread::Thread;

/// Why an accelerator cannot be used, or cannot take a lease.
#[derive(Debug, thiserror::Error)]
pub enum AcceleratorError {
    /// Nobody listens there.
    #[error(
        "cannot reach an accelerator at {}: {source}; start the device first, or leave --accelerator out",
        path.display()
    )]
    Connect {
        /// Its socket.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// What answers is something else, or of another version.
    #[error(
        "{} is no accelerator that this switch can drive: identity {id:#010x}, version {version}; build both from one source",
        path.display()
    )]
    Unknown {
        /// Its socket.
        path: PathBuf,
        /// Of the register ID.
        id: u32,
        /// Of the register VERSION.
        version: u32,
    },
    /// The device ended, or does not answer.
    #[error("the accelerator has gone: {what}; start device and switch anew")]
    Gone {
        /// How that showed.
        what: &'static str,
    },
    /// More neighbours than lines.
    #[error(
        "the lease has {needed} neighbours, the accelerator {lines} lines; use one with more, or the software switch"
    )]
    Lines {
        /// Children, and the parent.
        needed: usize,
        /// Of the device.
        lines: usize,
    },
    /// Another lease has the place that this one must have.
    #[error(
        "{job} {tree} needs the place of {other_job} {other_tree} in the accelerator's table; end that job, or use the software switch"
    )]
    Place {
        /// Of the lease.
        job: JobId,
        /// Of the lease.
        tree: TreeId,
        /// Who is there.
        other_job: JobId,
        /// Who is there.
        other_tree: TreeId,
    },
    /// All slots are given away.
    #[error("the accelerator's {slots} slots are all given to other leases")]
    Slots {
        /// Of the device.
        slots: usize,
    },
    /// Fragments larger than a buffer.
    #[error(
        "fragments of {offered} bytes do not fit into the accelerator's buffers of {limit}; plan for an MTU of 1500"
    )]
    Fragment {
        /// Of the lease.
        offered: u16,
        /// Of the device.
        limit: usize,
    },
    /// A lease of another protocol than `panama`.
    #[error("the accelerator adds for trees of protocol panama alone; use the software switch")]
    Protocol,
    /// A release fraction below 1.
    #[error("the accelerator has no partial synchronisation; set the release fraction to 1")]
    Partial,
    /// The accelerator speaks IPv4.
    #[error("{address} is not an IPv4 address, and the accelerator knows no other")]
    Address {
        /// Of a neighbour, or ours.
        address: SocketAddr,
    },
}
