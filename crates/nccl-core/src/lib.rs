//! What the C library (`netsum-capi`) and the plug-in of NCCL (`netsum-nccl-net`) share.
//!
//! Owns: NCCL's numbers of element types and operations, its results for our errors, NETSUM_* variables without
//! Python, and how the ranks of a communicator meet and become a group. Must not know: C pointers, NCCL's structures,
//! algorithms. Start reading at [`MeetingPlace`], then [`Reduction`].

mod failure;
mod meeting_place;
mod numbers;
mod settings;

pub use failure::{
    Code, Failure, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, SUCCESS,
    SYSTEM_ERROR, code_of, guarded,
};
pub use meeting_place::{MeetingPlace, PLACE_BYTES, Reservation, own_address};
pub use numbers::{Kind, Reduction, create_scaled, destroy_scaled};
pub use settings::{SETTINGS, Settings};
