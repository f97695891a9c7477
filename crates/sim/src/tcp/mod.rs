//! Hosts' transport: DCTCP (RFC 8257) or Swift over TCP's loss recovery, in whole segments.
//!
//! Each segment is acknowledged: an acknowledgement names the segment and the next expected one, which together are
//! equivalent to SACK. A flow carries messages, so that the completion of a collective's step is known; a plain flow is
//! one message. Connections are established; there is no handshake.

mod receiver;
mod sender;
mod swift;

pub use receiver::Receiver;
pub(crate) use sender::Estimates;
pub use sender::Sender;
pub use swift::SwiftConfig;

/// Parameters of all flows. Windows are counted in segments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TcpConfig {
    /// Payload of a full segment.
    pub segment_bytes: u16,
    /// Added to each segment on the wire.
    pub header_bytes: u16,
    /// An acknowledgement on the wire.
    pub ack_bytes: u16,
    /// Initial window.
    pub window_initial: f64,
    /// Maximum window, by the size of the socket buffer.
    pub window_max: f64,
    /// DCTCP's initial estimate (RFC 8257 §3.3: 1).
    pub alpha_initial: f64,
    /// DCTCP's gain g (RFC 8257 §3.3: 1/16).
    pub gain: f64,
    /// Whether the sender reacts to marks; without, it is a TCP that reacts to loss only.
    pub ecn: bool,
    /// Minimum time-out.
    pub rto_min_ps: u64,
    /// Number of segments acknowledged above a missing one after which it counts as lost (RFC 5681, 6675: 3).
    pub reordering: u32,
    /// The window follows delays instead of marks.
    pub swift: Option<SwiftConfig>,
}

impl Default for TcpConfig {
    /// Segments of 1,448 bytes in 1,502 on the wire, as ns-3's point-to-point links have them; a window of 10
    /// (RFC 6928); time-outs from 10 ms; socket buffers of 4 MiB.
    fn default() -> Self {
        TcpConfig {
            segment_bytes: 1448,
            header_bytes: 54,
            ack_bytes: 54,
            window_initial: 10.0,
            window_max: (4 << 20) as f64 / 1448.0,
            alpha_initial: 1.0,
            gain: 1.0 / 16.0,
            ecn: true,
            rto_min_ps: 10_000_000_000,
            reordering: 3,
            swift: None,
        }
    }
}

impl TcpConfig {
    /// Number of segments of a message; at least one.
    pub fn segments(&self, bytes: u64) -> u32 {
        bytes.div_ceil(u64::from(self.segment_bytes)).max(1) as u32
    }

    /// Payload of a message's last segment.
    pub fn last_bytes(&self, bytes: u64) -> u16 {
        (bytes - u64::from(self.segments(bytes) - 1) * u64::from(self.segment_bytes)) as u16
    }
}
