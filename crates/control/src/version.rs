//! Versions of the control protocol and of packets of sums: which of them a process speaks, and whether two processes
//! have one in common.

use std::ops::RangeInclusive;

use netsum_wire::PACKET_VERSIONS;

use crate::pb;

/// The versions that this process speaks. A version changes when a message loses its meaning, not when fields are added.
pub(crate) const SPOKEN: RangeInclusive<u32> = 1..=1;

/// The user agent of clients: `netsum-control/OLDEST-NEWEST`.
pub(crate) fn user_agent() -> String {
    format!("{PREFIX}{}-{}", SPOKEN.start(), SPOKEN.end())
}

/// Whether a controller that speaks `own` can serve a client with that user agent. Clients of before, and others of gRPC,
/// name no versions and speak the first. Errors say what to upgrade.
pub(crate) fn check(own: &RangeInclusive<u32>, user_agent: Option<&str>) -> Result<(), String> {
    let theirs = user_agent.and_then(spoken).unwrap_or(1..=1);
    common(own, &theirs).map_err(|upgrade| {
        let upgrade = if upgrade == Older::Own { "the controller" } else { "the caller" };
        format!(
            "this controller speaks {} of the control protocol, the caller {}; upgrade {upgrade}",
            name(own),
            name(&theirs)
        )
    })
}

/// The versions of packets of sums that this process speaks, for the hello of a rank or a switch.
pub(crate) fn packets() -> pb::VersionRange {
    pb::VersionRange { oldest: *PACKET_VERSIONS.start(), newest: *PACKET_VERSIONS.end() }
}

/// Whether a rank or switch speaks the packets that this controller's plans are for. Those of before name no versions
/// and speak the first. Errors say, of "rank 3", what it speaks and what to upgrade.
pub(crate) fn check_packets(who: &str, spoken: Option<&pb::VersionRange>) -> Result<(), String> {
    let theirs = match spoken {
        Some(range) if range.oldest <= range.newest => range.oldest..=range.newest,
        _ => 1..=1,
    };
    common(&PACKET_VERSIONS, &theirs).map_err(|upgrade| {
        let upgrade = if upgrade == Older::Own { "the controller" } else { who };
        format!(
            "{who} speaks {} of packets of sums, plans of this controller are for {}; upgrade {upgrade}",
            name(&theirs),
            name(&PACKET_VERSIONS)
        )
    })
}

/// Which of two sides is too old for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Older {
    Own,
    Theirs,
}

fn common(own: &RangeInclusive<u32>, theirs: &RangeInclusive<u32>) -> Result<(), Older> {
    match (theirs.start() > own.end(), theirs.end() < own.start()) {
        (true, _) => Err(Older::Own),
        (_, true) => Err(Older::Theirs),
        _ => Ok(()),
    }
}

fn name(range: &RangeInclusive<u32>) -> String {
    match range.start() == range.end() {
        true => format!("version {}", range.start()),
        false => format!("versions {} to {}", range.start(), range.end()),
    }
}

fn spoken(user_agent: &str) -> Option<RangeInclusive<u32>> {
    let word = user_agent.split(' ').find_map(|word| word.strip_prefix(PREFIX))?;
    let (oldest, newest) = word.split_once('-')?;
    let (oldest, newest) = (oldest.parse().ok()?, newest.parse().ok()?);
    (oldest <= newest).then_some(oldest..=newest)
}

const PREFIX: &str = "netsum-control/";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_with_a_version_in_common_speak() {
        let agent = |range: &str| format!("netsum-control/{range} tonic/0.14.9");
        assert_eq!(check(&SPOKEN, Some(&user_agent())), Ok(()));
        assert_eq!(check(&(2..=3), Some(&agent("1-2"))), Ok(()));
        assert_eq!(check(&(1..=3), None), Ok(()), "a client of before");
        let old = check(&(2..=3), Some("grpc-python/1.66")).unwrap_err();
        assert_eq!(
            old,
            "this controller speaks versions 2 to 3 of the control protocol, the caller version 1; upgrade the caller"
        );
        let new = check(&(1..=1), Some(&agent("2-4"))).unwrap_err();
        assert!(new.ends_with("the caller versions 2 to 4; upgrade the controller"), "{new}");
        for odd in ["4-2", "x-1", "", "1", "-"] {
            assert_eq!(check(&(1..=1), Some(&agent(odd))), Ok(()), "{odd:?}");
        }
    }

    #[test]
    fn who_speaks_other_packets_is_told_what_to_upgrade() {
        let range = |oldest, newest| pb::VersionRange { oldest, newest };
        assert_eq!(check_packets("rank 0", Some(&packets())), Ok(()));
        assert_eq!(check_packets("rank 0", None), Ok(()), "a rank of before");
        assert_eq!(check_packets("rank 0", Some(&range(1, 7))), Ok(()));
        let new = check_packets("rank 3", Some(&range(2, 3))).unwrap_err();
        assert_eq!(
            new,
            "rank 3 speaks versions 2 to 3 of packets of sums, plans of this controller are for version 1; \
             upgrade the controller"
        );
        let old = check_packets("rack0", Some(&range(0, 0))).unwrap_err();
        assert!(old.ends_with("for version 1; upgrade rack0"), "{old}");
        assert_eq!(check_packets("rank 0", Some(&range(9, 2))), Ok(()), "nonsense is no version");
    }
}
