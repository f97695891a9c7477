//! Packets of versions that this process does not know, from processes that it works with.

use std::net::SocketAddr;

/// Counts them, and says so in the log as their number doubles.
#[derive(Debug, Default)]
pub(crate) struct UnknownVersions {
    packets: u64,
}

impl UnknownVersions {
    /// A packet with that first byte. `reader`: what this process is.
    #[cold]
    pub(crate) fn warn(&mut self, reader: &str, from: SocketAddr, first_byte: u8) {
        self.packets += 1;
        if self.packets.is_power_of_two() {
            tracing::warn!(
                %from,
                packets = self.packets,
                "packets of sums begin with byte {first_byte:#04x}, a version or protocol that this {reader} does not \
                 speak; upgrade the older of the two processes"
            );
        }
    }
}
