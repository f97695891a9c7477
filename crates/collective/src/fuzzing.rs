//! Parsers of what ranks send each other before and beside sums, for fuzz targets (`fuzz/` at the root of the
//! repository). Each function takes any bytes, and panics if a parser breaks its promises.

use netsum_proto::handover::Plan as _;

use crate::address::Address;
use crate::planned;
use crate::planned::session::LedPlan;
use crate::rendezvous::{self, TOKEN_LEN};

/// A rank's address, from the rendezvous: what is read is written and read again.
pub fn address(bytes: &[u8]) {
    if let Ok(address) = serde_json::from_slice::<Address>(bytes) {
        let again = serde_json::from_slice::<Address>(&address.to_bytes());
        assert_eq!(again.ok(), Some(address));
    }
}

/// The first bytes of a rank at the rendezvous. Only a process with the token is seated.
pub fn rendezvous(bytes: &[u8]) {
    let token = [3; TOKEN_LEN];
    let theirs = bytes.get(8..8 + TOKEN_LEN);
    assert!(!rendezvous::is_hello(bytes, &token) || theirs == Some(&token[..]));
}

/// A tree plan that another rank sends.
pub fn tree_plan(bytes: &[u8]) {
    for size in [2, 3, 4] {
        let Ok(plan) = LedPlan::decode(bytes, size) else { continue };
        let mut again = Vec::new();
        plan.encode(&mut again);
        assert!(LedPlan::decode(&again, size).is_ok(), "a plan cannot be read again");
    }
}

/// A header on a peer link: what is accepted has a bounded payload.
pub fn peer_link(bytes: &[u8]) {
    planned::check_header(bytes);
}
