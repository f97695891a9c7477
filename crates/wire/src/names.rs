//! Names in plans and configurations: protocol, congestion rule, slot policy. This is the only definition of each name.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::extension::SEALED_HEADER_LEN;
use crate::{atp, panama, switchml};

macro_rules! names {
    ($(#[$doc:meta])* $what:literal $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$variant_doc])* #[serde(rename = $text)] $variant,)*
        }

        impl $name {
            /// All values.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// The name in configurations and messages.
            pub const fn name(self) -> &'static str {
                match self {
                    $($name::$variant => $text,)*
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<$name, String> {
                let found = $name::ALL.iter().copied().find(|known| known.name() == text);
                found.ok_or_else(|| {
                    let known = enumerate($name::ALL.iter().map(|known| known.name()));
                    format!("{} {text:?} is unknown; use {known}", $what)
                })
            }
        }
    };
}

names! {
    /// Aggregation protocol: PANAMA's trees, best-effort slots, or a pool per job.
    "protocol" Protocol {
        /// Trees of switches that add in order.
        #[default]
        Panama = "panama",
        /// Slots at the racks' switches, and servers for the rest.
        Atp = "atp",
        /// One switch with a pool of slots for each job.
        Switchml = "switchml",
    }
}

names! {
    /// Policy by which a switch shares its slots among tenants.
    "slot policy" SlotPolicy {
        /// Each job has the slots that its lease guarantees, and no others.
        Partition = "partition",
        /// First come, first served.
        FirstCome = "first-come",
        /// First come, first served, but slots are yielded to guarantees, to priority, and by stragglers.
        #[default]
        Preempt = "preempt",
    }
}

names! {
    /// Reaction of a worker to congestion marks.
    "congestion rule" CongestionRule {
        /// PANAMA: one window per tree, marks of all branches combined.
        #[default]
        Panama = "panama",
        /// One virtual window per branch; the least is used.
        PerBranch = "per-branch",
        /// PANAMA's, with the increase of one window shared by the trees of a job.
        Coupled = "coupled",
        /// The window stays at its cap.
        None = "none",
    }
}

/// The versions of packets of sums that this process speaks, of all protocols together. A new version has other first
/// bytes than all older ones, so that a process which does not know it drops its packets as such.
pub const PACKET_VERSIONS: RangeInclusive<u32> = 1..=1;

/// Bytes of IPv4, UDP and the largest header of all protocols: the part of an MTU that is not payload.
pub const HEADERS_MAX: u32 = 28 + SEALED_HEADER_LEN as u32;

impl Protocol {
    /// The protocol of packets with this first byte.
    #[inline]
    pub const fn of_version(version: u8) -> Option<Protocol> {
        match version {
            panama::VERSION | panama::SEALED_VERSION | panama::ENCRYPTED_VERSION => {
                Some(Protocol::Panama)
            }
            atp::VERSION | atp::SEALED_VERSION | atp::ENCRYPTED_VERSION => Some(Protocol::Atp),
            switchml::VERSION | switchml::SEALED_VERSION | switchml::ENCRYPTED_VERSION => {
                Some(Protocol::Switchml)
            }
            _ => None,
        }
    }

    /// Bytes before the payload of its unsealed packets.
    #[inline]
    pub const fn header_len(self) -> usize {
        match self {
            Protocol::Panama => panama::HEADER_LEN,
            Protocol::Atp => atp::HEADER_LEN,
            Protocol::Switchml => switchml::HEADER_LEN,
        }
    }

    /// Whether each job has a static pool at a single switch. Such a switch sends nothing while a worker is late, and
    /// without it there is no sum.
    pub const fn has_pools(self) -> bool {
        matches!(self, Protocol::Switchml)
    }

    /// All names as a list in a sentence.
    pub fn enumeration() -> String {
        enumerate(Protocol::ALL.iter().map(|known| known.name()))
    }
}

/// "a, b or c".
fn enumerate(names: impl Iterator<Item = &'static str>) -> String {
    let names: Vec<&str> = names.collect();
    match names.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extension::HEADER_LEN;

    #[test]
    fn every_name_parses_by_text_and_by_serde() {
        for &rule in CongestionRule::ALL {
            assert_eq!(rule.to_string().parse(), Ok(rule));
            let json = serde_json::to_string(&rule).unwrap();
            assert_eq!(json, format!("{:?}", rule.name()));
            assert_eq!(serde_json::from_str::<CongestionRule>(&json).unwrap(), rule);
        }
        assert!(Protocol::ALL.iter().all(|p| p.name().parse() == Ok(*p)));
        assert!(SlotPolicy::ALL.iter().all(|p| p.name().parse() == Ok(*p)));
    }

    #[test]
    fn errors_of_unknown_names_list_the_known_ones() {
        let error = "tcp".parse::<Protocol>().unwrap_err();
        assert_eq!(error, "protocol \"tcp\" is unknown; use panama, atp or switchml");
        let error = "red".parse::<CongestionRule>().unwrap_err();
        assert_eq!(
            error,
            "congestion rule \"red\" is unknown; use panama, per-branch, coupled or none"
        );
    }

    #[test]
    fn the_first_byte_determines_the_protocol() {
        for &protocol in Protocol::ALL {
            let versions = match protocol {
                Protocol::Panama => {
                    [panama::VERSION, panama::SEALED_VERSION, panama::ENCRYPTED_VERSION]
                }
                Protocol::Atp => [atp::VERSION, atp::SEALED_VERSION, atp::ENCRYPTED_VERSION],
                Protocol::Switchml => {
                    [switchml::VERSION, switchml::SEALED_VERSION, switchml::ENCRYPTED_VERSION]
                }
            };
            assert!(
                versions.iter().all(|&version| Protocol::of_version(version) == Some(protocol))
            );
            assert!((HEADER_LEN..=SEALED_HEADER_LEN).contains(&protocol.header_len()));
        }
        assert_eq!(Protocol::of_version(0), None);
    }
}
