//! The driver's interface to the switches and servers of every protocol.

use std::error::Error;

use netsum_wire::{DecodeError, Epoch, JobId, PacketHeader};

use crate::lease::LeaseKey;
use crate::{DropCounters, DropReason, PortId, Time};

/// A switch or server as a state machine.
///
/// Usage: `handle` a packet, drain `poll_transmit`, send, call `flushed`; call `handle_timeout` at `poll_timeout`. The
/// machine counts every dropped packet by reason.
pub trait Aggregator {
    /// Header of its packets.
    type Header: PacketHeader;
    /// Payload of a packet.
    type Payload: ?Sized;
    /// A packet to be sent.
    type Transmit;
    /// A controller's grant to a job at this aggregator.
    type Lease;
    /// Why a lease cannot be installed.
    type Refusal: Error;

    /// Installs a job's lease. A later epoch of the same (job, tree) replaces the older one at once; installing the
    /// same lease again has no effect. An error leaves the state unchanged.
    fn install(&mut self, now: Time, lease: Self::Lease) -> Result<(), Self::Refusal> {
        self.install_starting_at(now, lease, 0)
    }

    /// Like `install`, with workers that start at number `first` ([`WorkerMachine::starting_at`]).
    ///
    /// [`WorkerMachine::starting_at`]: crate::WorkerMachine::starting_at
    fn install_starting_at(
        &mut self,
        now: Time,
        lease: Self::Lease,
        first: u64,
    ) -> Result<(), Self::Refusal>;

    /// Revokes a job's leases of epochs up to `up_to` and frees their memory.
    fn revoke(&mut self, job: JobId, up_to: Epoch);

    /// Revokes leases whose neighbours have been silent for `idle_ns`, and returns them: the memory of a dead job is
    /// freed even if there is no controller.
    fn expire(&mut self, now: Time, idle_ns: u64) -> Vec<Self::Lease>;

    /// Handles a packet from neighbour `from`. `ce`: whether its IP header has the congestion-experienced mark. An
    /// error is the reason why the packet is dropped; it is counted, and the state is unchanged, except that a
    /// retransmission may be answered.
    fn handle(
        &mut self,
        now: Time,
        from: PortId,
        ce: bool,
        header: &Self::Header,
        payload: &Self::Payload,
    ) -> Result<(), DropReason>;

    /// The next packet to send.
    fn poll_transmit(&mut self) -> Option<Self::Transmit>;

    /// Reports that every packet polled so far has been sent.
    fn flushed(&mut self);

    /// When `handle_timeout` must be called next.
    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    /// Handles deadlines up to `now`.
    fn handle_timeout(&mut self, _now: Time) {}

    /// Installed leases.
    fn lease_keys(&self) -> impl Iterator<Item = LeaseKey>;

    /// Number of contributions that each installed lease has accepted.
    fn contributions(&self) -> impl Iterator<Item = (LeaseKey, u64)>;

    /// Neighbours in all leases.
    fn ports(&self) -> Vec<PortId>;

    /// Counts a packet that the driver refused.
    fn count_drop(&mut self, reason: DropReason);

    /// Counts bytes that are not a packet.
    fn count_decode_error(&mut self, error: DecodeError) {
        self.count_drop(error.into());
    }

    /// Dropped packets by reason.
    fn drops(&self) -> &DropCounters;
}
