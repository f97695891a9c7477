//! Drivers: they run the state machines of `netsum-proto` on real sockets, threads and clocks.
//!
//! Owns: UDP sockets with batched, segmented system calls ([`udp`]), the data threads of switches and servers
//! ([`switch`]) and of workers ([`worker`]), the buffers that callers hand over ([`buffer`]), messages between ranks
//! over TCP ([`mesh`]). Must not know: protocol rules, job policy.
//! Start reading at [`switch::SwitchDriver`]: it is the smaller of the two drivers.

pub mod buffer;
mod clock;
mod error;
mod interface;
pub mod mesh;
pub mod switch;
pub mod udp;
pub mod worker;
#[cfg(feature = "xdp")]
pub mod xdp;

pub use buffer::Buffer;
pub use clock::CpuTime;
pub use error::NetError;
pub use interface::mtu_of;
