//! Versions of the control protocol: which of them a process speaks, and whether two processes have one in common.

use std::ops::RangeInclusive;

/// The versions that this process speaks. A version changes when a message loses its meaning, not when fields are added.
pub(crate) const SPOKEN: RangeInclusive<u32> = 1..=1;

/// The user agent of clients: `netsum-control/OLDEST-NEWEST`.
pub(crate) fn user_agent() -> String {
    format!("{PREFIX}{}-{}", SPOKEN.start(), SPOKEN.end())
}

/// Whether a controller that speaks `own` can serve a client with that user agent. Clients of before, and others of gRPC,
/// name no versions and speak the first. Errors say what to upgrade.
pub(crate) fn check(own: &RangeInclusive<u32>, user_agent: Option<&str>) -> Result<(), String> {
    let spoken = user_agent.and_then(spoken).unwrap_or(1..=1);
    let upgrade = match (spoken.start() > own.end(), spoken.end() < own.start()) {
        (true, _) => "the controller",
        (_, true) => "the caller",
        _ => return Ok(()),
    };
    let name = |range: &RangeInclusive<u32>| match range.start() == range.end() {
        true => format!("version {}", range.start()),
        false => format!("versions {} to {}", range.start(), range.end()),
    };
    Err(format!(
        "this controller speaks {} of the control protocol, the caller {}; upgrade {upgrade}",
        name(own),
        name(&spoken)
    ))
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
}
