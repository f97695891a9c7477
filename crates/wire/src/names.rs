//! What plans and configurations choose by name: protocol, congestion rule, slot policy. Each name is written here and
//! nowhere else.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{PacketHeader, atp, panama, switchml};

macro_rules! names {
    ($(#[$doc:meta])* $what:literal $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$variant_doc])* #[serde(rename = $text)] $variant,)*
        }

        impl $name {
            /// All of them.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// As configurations and messages write it.
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
    /// How sums are made: panama's trees, slots that are shared by whoever comes first, or a pool per job.
    "protocol" Protocol {
        /// Trees of switches that add in order.
        #[default]
        Panama = "panama",
        /// Slots at the racks' switches and servers for the rest.
        Atp = "atp",
        /// One switch with a pool of slots for each job.
        Switchml = "switchml",
    }
}

names! {
    /// How a switch shares its slots among tenants.
    "slot policy" SlotPolicy {
        /// Each job has the slots that its lease guarantees, and no others.
        Partition = "partition",
        /// All slots are for whoever comes first.
        FirstCome = "first-come",
        /// First come, but slots are yielded to guarantees, to priority, and by stragglers.
        #[default]
        Preempt = "preempt",
    }
}

names! {
    /// How a worker answers congestion marks.
    "congestion rule" CongestionRule {
        /// PANAMA: one window per tree, marks of all branches taken together.
        #[default]
        Panama = "panama",
        /// One virtual window per branch, the least of them counts.
        PerBranch = "per-branch",
        /// PANAMA's, with the increase of one window shared by the trees of a job.
        Coupled = "coupled",
        /// The window stays at its cap.
        None = "none",
    }
}

/// Where the parts of a protocol's packets lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of the header.
    pub header_len: usize,
    /// First byte of the keyed tag, in protocols that have one.
    pub tag: Option<usize>,
}

impl Protocol {
    /// The protocol of packets that begin with this byte.
    #[inline]
    pub const fn of_version(version: u8) -> Option<Protocol> {
        match version {
            panama::VERSION => Some(Protocol::Panama),
            atp::VERSION => Some(Protocol::Atp),
            switchml::VERSION => Some(Protocol::Switchml),
            _ => None,
        }
    }

    /// Where the parts of its packets lie.
    #[inline]
    pub const fn layout(self) -> Layout {
        match self {
            Protocol::Panama => Layout { header_len: panama::Header::LEN, tag: None },
            Protocol::Atp => Layout { header_len: atp::Header::LEN, tag: Some(atp::TAG) },
            Protocol::Switchml => {
                Layout { header_len: switchml::Header::LEN, tag: Some(switchml::TAG) }
            }
        }
    }

    /// Whether its packets have room for a keyed tag.
    pub const fn has_tags(self) -> bool {
        self.layout().tag.is_some()
    }

    /// Whether each job has a static pool at a single switch. Such a switch says nothing while a worker is late, and
    /// without it there is no sum.
    pub const fn has_pools(self) -> bool {
        matches!(self, Protocol::Switchml)
    }

    /// All names as a sentence has them.
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

    #[test]
    fn every_name_is_parsed_to_what_it_names_by_text_and_by_serde() {
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
    fn an_unknown_name_says_which_are_known() {
        let error = "tcp".parse::<Protocol>().unwrap_err();
        assert_eq!(error, "protocol \"tcp\" is unknown; use panama, atp or switchml");
        let error = "red".parse::<CongestionRule>().unwrap_err();
        assert_eq!(
            error,
            "congestion rule \"red\" is unknown; use panama, per-branch, coupled or none"
        );
    }

    #[test]
    fn the_first_byte_says_the_protocol() {
        for &protocol in Protocol::ALL {
            let version = match protocol {
                Protocol::Panama => panama::VERSION,
                Protocol::Atp => atp::VERSION,
                Protocol::Switchml => switchml::VERSION,
            };
            assert_eq!(Protocol::of_version(version), Some(protocol));
        }
        assert_eq!(Protocol::of_version(0), None);
    }
}
