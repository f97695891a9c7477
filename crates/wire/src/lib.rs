//! Bytes and numbers: packet headers as views over bytes, ids, number formats and their exact sums.
//!
//! Owns: the wire format of each protocol (`panama`), the ids that travel in it, what a dtype is and in
//! which order its elements are added. Must not know: state, sockets, time.
//! Start reading at [`panama::Header`], then [`reduce`].

mod element;
pub mod format;
pub mod ids;
pub mod panama;
mod reduce;

pub use format::{Dtype, Encoding, Format, ReduceOp};
pub use ids::{ChildIndex, Epoch, JobId, Rank, TreeId, Vid};
pub use reduce::{Input, average, reduce, scale};
