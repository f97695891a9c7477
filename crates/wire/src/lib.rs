//! Bytes and numbers: packet headers, ids, number formats and their exact sums.
//!
//! Owns: the wire format of each protocol and its name ([`names`]), the ids in packets, dtypes and the order in which
//! their elements are added, the conversion of floats to integers whose sums do not depend on the order. Must not know:
//! state, sockets, time. Start reading at [`panama::Header`], then [`reduce()`], [`fixed`], [`Words`],
//! [`narrow`] and [`shared_scale`].

pub mod arithmetic;
pub mod atp;
mod element;
mod extension;
mod field;
pub mod fixed;
pub mod format;
pub mod ids;
pub mod names;
pub mod narrow;
pub mod nh;
mod packet;
pub mod panama;
mod parties;
mod reduce;
pub mod seal;
pub mod shared_scale;
pub mod switchml;
pub mod tag;
mod words;

pub use arithmetic::Arithmetic;
pub use field::DecodeError;
pub use format::{Dtype, Encoding, Format, ReduceOp};
pub use ids::{ChildIndex, Epoch, JobId, Rank, Sequence, SlotIndex, TreeId, Vid};
pub use names::{CongestionRule, HEADERS_MAX, PACKET_VERSIONS, Protocol, SlotPolicy};
pub use narrow::contribute;
pub use packet::{JOB_AT, PacketHeader, job_of};
pub use parties::{MAX_SCOPED_RANKS, Parties};
pub use reduce::{Input, accumulate, average, combine_both, reduce, scale};
pub use words::{MOST_PAIRED_RANKS, Words};
