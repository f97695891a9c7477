//! What a driver knows of every protocol's switches and servers.

use std::error::Error;

use netsum_wire::{DecodeError, Epoch, JobId, PacketHeader};

use crate::lease::LeaseKey;
use crate::{DropCounters, DropReason, PortId, Time};

/// A switch or server as a state machine.
///
/// Drive it so: `handle` a packet, drain `poll_transmit`, send, call `flushed`; call `handle_timeout` when `poll_timeout`
/// says so. Every reason for which a packet is dropped is counted.
pub trait Aggregator {
    /// Header of its packets.
    type Header: PacketHeader;
    /// What a packet carries.
    type Payload: ?Sized;
    /// A packet to be sent.
    type Transmit;
    /// What a controller grants a job here.
    type Lease;
    /// Why a lease cannot be installed.
    type Refusal: Error;

    /// Admits a job. A later epoch of the same (job, tree) replaces the older at once; the same lease again changes
    /// nothing. Errors leave everything as it was.
    fn install(&mut self, now: Time, lease: Self::Lease) -> Result<(), Self::Refusal> {
        self.install_starting_at(now, lease, 0)
    }

    /// As `install`, with workers that start at number `first` ([`WorkerMachine::starting_at`]).
    ///
    /// [`WorkerMachine::starting_at`]: crate::WorkerMachine::starting_at
    fn install_starting_at(
        &mut self,
        now: Time,
        lease: Self::Lease,
        first: u64,
    ) -> Result<(), Self::Refusal>;

    /// Takes back a job's leases of epochs up to `up_to`; what they held is free at once.
    fn revoke(&mut self, job: JobId, up_to: Epoch);

    /// Takes back leases whose neighbours have been silent for `idle_ns`, and returns them: a dead job's memory comes back
    /// even while no controller is there.
    fn expire(&mut self, now: Time, idle_ns: u64) -> Vec<Self::Lease>;

    /// Takes a packet from neighbour `from`. `ce`: its IP header says congestion experienced. Errors are reasons to drop
    /// it; they are counted, and no state changed but where a packet sent again is answered.
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

    /// Everything polled so far is on the wire.
    fn flushed(&mut self);

    /// When `handle_timeout` must be called.
    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    /// Deadlines up to `now` have passed.
    fn handle_timeout(&mut self, _now: Time) {}

    /// Leases at work.
    fn lease_keys(&self) -> impl Iterator<Item = LeaseKey>;

    /// Neighbours that leases name.
    fn ports(&self) -> Vec<PortId>;

    /// Counts a packet that the driver refused.
    fn count_drop(&mut self, reason: DropReason);

    /// Counts bytes that are no packet.
    fn count_decode_error(&mut self, error: DecodeError) {
        self.count_drop(error.into());
    }

    /// Dropped packets by reason.
    fn drops(&self) -> &DropCounters;
}
