//! Drivers: they run the state machines of `netsum-proto` on real sockets, threads and clocks.
//!
//! Owns: UDP sockets with batched, segmented system calls ([`udp`]), the data threads of switches and servers
//! ([`switch`]; [`accelerator`] if a device adds) and of workers ([`worker`]), the buffers of callers ([`buffer`]),
//! byte streams between two ranks over TCP or shared memory ([`stream`]), messages between ranks over TCP, UCX or
//! shared memory ([`mesh`]), memory that all ranks of a host share ([`arena`]), and the ownership of objects by
//! processes ([`Process`]). Must not know: protocol rules, job policy. Start reading at [`switch::SwitchDriver`]: it is
//! the smaller of the two drivers.

pub mod accelerator;
pub mod arena;
mod broken_pipe;
pub mod buffer;
mod clock;
mod deadline;
mod error;
mod external_load;
mod futex;
#[doc(hidden)]
pub mod fuzzing;
mod interface;
mod lanes;
mod loans;
mod memfd;
pub mod mesh;
mod names;
mod process;
mod ring;
pub mod stream;
pub mod switch;
mod ucx;
pub mod udp;
mod unknown_versions;
mod word;
pub mod worker;
#[cfg(feature = "xdp")]
pub mod xdp;

pub use broken_pipe::without_sigpipe;
pub use buffer::{Buffer, Loan};
pub use clock::CpuTime;
pub use error::NetError;
pub use interface::{address_of, interface_of, mtu_of};
pub use names::unguessable_name;
pub use process::Process;
pub use ucx::UcxError;
