//! The driver's interface to every protocol's packets.

use crate::seal::{SEALED_HEADER_LEN, is_sealed};
use crate::{DecodeError, JobId, TreeId};

/// A header, for drivers that are generic over protocols.
pub trait PacketHeader: Copy + Send {
    /// First byte of unsealed packets.
    const VERSION: u8;
    /// Bytes before the payload of unsealed packets.
    const LEN: usize;

    /// Bytes before the payload.
    #[inline]
    fn head_len(sealed: bool) -> usize {
        if sealed { SEALED_HEADER_LEN } else { Self::LEN }
    }

    /// Splits a packet into header and payload, and validates it: packets may come from attackers.
    fn decode(packet: &[u8]) -> Result<(Self, &[u8]), DecodeError>;

    /// Writes the header of an unsealed packet into `out`, which has [`PacketHeader::LEN`] bytes.
    fn write(&self, out: &mut [u8]);

    /// Number of bytes after the header.
    fn payload_len(&self) -> usize;

    /// The payload of a packet with this header, once it is opened.
    #[inline]
    fn payload<'a>(&self, packet: &'a [u8]) -> &'a [u8] {
        &packet[Self::head_len(is_sealed(packet))..][..self.payload_len()]
    }

    /// Job.
    fn job(&self) -> JobId;

    /// Tree, or pool.
    fn tree(&self) -> TreeId;

    /// Ranks (mod 64) whose contributions are missing in a result.
    fn missing(&self) -> u64 {
        0
    }
}

/// Where the four bytes of the job are in packets of all protocols, sealed, encrypted or not.
pub const JOB_AT: usize = 4;

/// The job of an undecoded packet: all protocols have it in the same place.
#[inline]
pub fn job_of(packet: &[u8]) -> Option<JobId> {
    packet.get(JOB_AT..JOB_AT + 4)?.first_chunk().map(|&job| JobId(u32::from_be_bytes(job)))
}

/// Implements [`PacketHeader`] by the methods of each `Header`.
macro_rules! packet_header {
    ($header:ident, tree: |$h:ident| $tree:expr $(, missing: |$m:ident| $missing:expr)?) => {
        impl $crate::PacketHeader for $header {
            const VERSION: u8 = VERSION;
            const LEN: usize = HEADER_LEN;

            #[inline]
            fn decode(packet: &[u8]) -> Result<($header, &[u8]), DecodeError> {
                $header::decode(packet)
            }

            #[inline]
            fn write(&self, out: &mut [u8]) {
                self.encode(out.first_chunk_mut().expect("a header's length"));
            }

            #[inline]
            fn payload_len(&self) -> usize {
                $header::payload_len(self)
            }

            #[inline]
            fn job(&self) -> $crate::JobId {
                self.job
            }

            #[inline]
            fn tree(&self) -> $crate::TreeId {
                let $h = self;
                $tree
            }

            $(
                #[inline]
                fn missing(&self) -> u64 {
                    let $m = self;
                    $missing
                }
            )?
        }
    };
}

pub(crate) use packet_header;
