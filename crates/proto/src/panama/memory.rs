//! Storage of a switch's fragments: real numbers in a daemon, counts in the simulator.

use netsum_wire::panama::Header;

/// Aggregation memory.
///
/// A machine holds only handles, so that the same machine runs on real payload (`Slab`) and on any payload of a
/// simulator or a test. Buffers that were returned by `poll_transmit` stay readable until `flushed`, even if they were
/// freed in between.
pub trait Memory {
    /// Payload of a packet.
    type Payload: ?Sized;
    /// Handle of a stored packet.
    type Buffer: Copy;

    /// Stores a packet; `None` if the memory is full.
    fn store(&mut self, header: &Header, payload: &Self::Payload) -> Option<Self::Buffer>;

    /// Whether a stored packet has that payload, bit by bit.
    fn holds(&self, buffer: Self::Buffer, payload: &Self::Payload) -> bool;

    /// Adds the packets of all present positions, in the order that `netsum_wire::reduce` documents, into a new packet
    /// with header `header`; `None` if the memory is full. `arriving` is a packet that was not stored, and its
    /// position.
    fn reduce(
        &mut self,
        header: &Header,
        stored: &[Option<Self::Buffer>],
        arriving: Option<(usize, &Header, &Self::Payload)>,
    ) -> Option<Self::Buffer>;

    /// Sets the `resent` flag of a stored packet.
    fn mark_resent(&mut self, buffer: Self::Buffer);

    /// Frees a buffer.
    fn free(&mut self, buffer: Self::Buffer);

    /// Reports that every returned buffer has been sent: freed buffers may be reused.
    fn flushed(&mut self);

    /// Bytes that a stored fragment of at most `fragment_bytes` takes.
    fn cost(&self, fragment_bytes: u16) -> u64;

    /// Maximum bytes of all stored fragments.
    fn limit(&self) -> u64;
}

/// Memory whose limit may change, as where several machines have parts of one memory.
pub trait Divisible: Memory {
    /// Changes the limit, down to what is in use at least; returns the new one.
    fn set_limit(&mut self, bytes: u64) -> u64;
}
