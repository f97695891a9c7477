//! The key of a rank, which distinguishes the ranks of a job from each other.
//!
//! All workers of a tenant may have the same certificate, so a certificate says who runs a rank, and not which rank it
//! is. Each rank draws a key when it starts and publishes its public half with its address. A proof signs a value of
//! the TLS connection that it is sent over (RFC 9266), so nobody can pass it on over another.

use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};

use crate::error::IdentityError;

/// Bytes of the public half of a key (Ed25519, RFC 8032).
pub const SEAT_KEY_LEN: usize = 32;

/// Bytes of a proof.
pub const SEAT_PROOF_LEN: usize = 64;

/// A rank's private key. It never leaves its process.
pub struct SeatKey(Ed25519KeyPair);

impl SeatKey {
    /// Draws a key. Error: the system has no randomness.
    pub fn draw() -> Result<SeatKey, IdentityError> {
        let fail = |reason: String| IdentityError::Making { what: "the key of a rank", reason };
        let mut seed = [0; SEAT_KEY_LEN];
        getrandom::fill(&mut seed).map_err(|error| fail(error.to_string()))?;
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed);
        pair.map(SeatKey).map_err(|error| fail(error.to_string()))
    }

    /// The public half.
    pub fn public(&self) -> [u8; SEAT_KEY_LEN] {
        let mut public = [0; SEAT_KEY_LEN];
        public.copy_from_slice(self.0.public_key().as_ref());
        public
    }

    /// Proves possession of the key for this statement.
    pub fn prove(&self, statement: &[u8]) -> [u8; SEAT_PROOF_LEN] {
        let mut proof = [0; SEAT_PROOF_LEN];
        proof.copy_from_slice(self.0.sign(statement).as_ref());
        proof
    }
}

/// Whether the owner of the private half of `public` has proved possession for this statement.
pub fn is_proof(
    public: &[u8; SEAT_KEY_LEN],
    statement: &[u8],
    proof: &[u8; SEAT_PROOF_LEN],
) -> bool {
    UnparsedPublicKey::new(&ED25519, public).verify(statement, proof).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_its_key_and_statement_only() {
        let (own, other) = (SeatKey::draw().unwrap(), SeatKey::draw().unwrap());
        let proof = own.prove(b"statement");
        assert!(is_proof(&own.public(), b"statement", &proof));
        assert!(!is_proof(&own.public(), b"Statement", &proof));
        assert!(!is_proof(&other.public(), b"statement", &proof));
        for byte in 0..SEAT_PROOF_LEN {
            let mut changed = proof;
            changed[byte] ^= 1;
            assert!(!is_proof(&own.public(), b"statement", &changed), "byte {byte}");
        }
    }
}
