//! Who a process is: certificates with an identity, the authority that issues them, and TLS 1.3 between processes.
//!
//! Owns: identities, the certificate authority's folder, credentials on disk, TLS configurations, the verification of
//! a peer's certificate. Must not know: gRPC, sockets, who may do what (`netsum-control` decides that). Start reading
//! at [`Identity`], then [`Authority`] (issues certificates) and [`Credentials`] (uses them).
//!
//! Decisions:
//!
//! * **A name is an identity, not a DNS name.** Each certificate has one URI, `spiffe://FABRIC/ROLE`. Addresses of
//!   controllers change and need no new certificate; a switch's certificate cannot serve as a controller's.
//! * **The chain is verified by rustls-webpki**, and the identity is checked on top of it. Both sides present
//!   certificates, there is no version below TLS 1.3, and sessions are never resumed: each connection verifies the
//!   peer anew, against the current revocation list.
//! * **Files are the interface.** The authority of this crate writes the four files that [`Credentials`] reads; files
//!   of any other authority do as well.

mod authority;
mod certificate;
mod credentials;
mod enrol;
mod error;
mod files;
#[doc(hidden)]
pub mod fuzzing;
mod hex;
mod identity;
mod register;
mod seat;
mod tls;
mod verifier;

pub use authority::{Authority, Issued, Validity, page_name};
pub use credentials::Credentials;
pub use enrol::{Answer, Enrolment, JoinToken, Joining, REPLY_MAX, REQUEST_MAX, enrolment_name};
pub use error::IdentityError;
pub use identity::{Identity, Role};
pub use seat::{SEAT_KEY_LEN, SEAT_PROOF_LEN, SeatKey, is_proof};
pub use tls::{PROTOCOL, RANK_PROTOCOL, explain, peer_identity, server_name};
