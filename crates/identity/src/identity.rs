//! Identities: the role of a process in one fabric, as a URI.

use std::fmt;
use std::str::FromStr;

use crate::error::IdentityError;

/// A role in a fabric: `spiffe://FABRIC/ROLE`, the shape of a SPIFFE ID (SPIFFE-ID, section 2). Unlike there, the name
/// of a fabric may have upper-case letters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    fabric: String,
    role: Role,
}

/// What a process or a person is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The fabric's controller.
    Controller,
    /// The switch or server of this name.
    Switch(String),
    /// The host of this name: workers that run there.
    Host(String),
    /// Starts jobs for the tenant of this name, and runs their workers.
    Tenant(String),
    /// May do everything.
    Operator,
    /// May only look.
    Viewer,
}

impl Identity {
    /// An identity. Error: a name that no fabric file can contain.
    pub fn new(fabric: &str, role: Role) -> Result<Identity, IdentityError> {
        let identity = Identity { fabric: fabric.to_owned(), role };
        let valid = is_name(fabric) && identity.role.name().is_none_or(is_name);
        match valid {
            true => Ok(identity),
            false => Err(malformed(&identity.to_string())),
        }
    }

    /// The fabric.
    pub fn fabric(&self) -> &str {
        &self.fabric
    }

    /// The role in it.
    pub fn role(&self) -> &Role {
        &self.role
    }
}

impl Role {
    /// The name of the switch, host or tenant.
    pub fn name(&self) -> Option<&str> {
        match self {
            Role::Switch(name) | Role::Host(name) | Role::Tenant(name) => Some(name),
            Role::Controller | Role::Operator | Role::Viewer => None,
        }
    }

    /// Whether workers of a job have this role.
    pub fn is_worker(&self) -> bool {
        matches!(self, Role::Host(_) | Role::Tenant(_) | Role::Operator)
    }

    /// The role without its name.
    pub fn kind(&self) -> &'static str {
        match self {
            Role::Controller => "controller",
            Role::Switch(_) => "switch",
            Role::Host(_) => "host",
            Role::Tenant(_) => "tenant",
            Role::Operator => "operator",
            Role::Viewer => "viewer",
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.fabric, self.role)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())?;
        self.name().map_or(Ok(()), |name| write!(f, "/{name}"))
    }
}

impl FromStr for Identity {
    type Err = IdentityError;

    /// Parses exactly what `Display` writes.
    fn from_str(text: &str) -> Result<Identity, IdentityError> {
        let parts = text.strip_prefix(SCHEME).and_then(|rest| rest.split_once('/'));
        let (fabric, role) = parts.ok_or_else(|| malformed(text))?;
        match (is_name(fabric), role.parse()) {
            (true, Ok(role)) => Ok(Identity { fabric: fabric.to_owned(), role }),
            _ => Err(malformed(text)),
        }
    }
}

impl FromStr for Role {
    type Err = IdentityError;

    /// Parses `controller`, `operator`, `viewer`, `switch/NAME`, `host/NAME` or `tenant/NAME`.
    fn from_str(text: &str) -> Result<Role, IdentityError> {
        let role = match text.split_once('/') {
            None => match text {
                "controller" => Some(Role::Controller),
                "operator" => Some(Role::Operator),
                "viewer" => Some(Role::Viewer),
                _ => None,
            },
            Some((kind, name)) if is_name(name) => match kind {
                "switch" => Some(Role::Switch(name.to_owned())),
                "host" => Some(Role::Host(name.to_owned())),
                "tenant" => Some(Role::Tenant(name.to_owned())),
                _ => None,
            },
            Some(_) => None,
        };
        role.ok_or_else(|| IdentityError::Role { text: shown(text) })
    }
}

/// Whether a text can be a name in a fabric file; `netsum-topo` has the same rule.
pub(crate) fn is_name(text: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    (1..=NAME_MAX).contains(&text.len()) && !text.starts_with('.') && text.chars().all(good)
}

fn malformed(text: &str) -> IdentityError {
    IdentityError::Malformed { text: shown(text) }
}

/// The beginning of a text that may be somebody else's, for a message.
fn shown(text: &str) -> String {
    text.chars().take(SHOWN_MAX).collect()
}

pub(crate) const SCHEME: &str = "spiffe://";
pub(crate) const NAME_MAX: usize = 63;
/// More than the longest valid identity.
const SHOWN_MAX: usize = 160;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name() -> impl Strategy<Value = String> {
        "[A-Za-z0-9_-][A-Za-z0-9._-]{0,62}"
    }

    fn role() -> impl Strategy<Value = Role> {
        prop_oneof![
            Just(Role::Controller),
            Just(Role::Operator),
            Just(Role::Viewer),
            name().prop_map(Role::Switch),
            name().prop_map(Role::Host),
            name().prop_map(Role::Tenant),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(fabric in name(), role in role()) {
            let identity = Identity::new(&fabric, role).unwrap();
            prop_assert_eq!(identity.to_string().parse::<Identity>().unwrap(), identity);
        }

        #[test]
        fn what_is_read_is_written(text in "spiffe://[a-c./%]{0,6}/?(switch|host|viewer|operator)?/?[a-b./ ]{0,4}") {
            if let Ok(identity) = text.parse::<Identity>() {
                prop_assert_eq!(identity.to_string(), text);
            }
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".{0,300}") {
            let _ = text.parse::<Identity>();
            let _ = text.parse::<Role>();
        }
    }

    #[test]
    fn other_uris_are_refused_with_the_shape() {
        let long = format!("spiffe://f/switch/{}", "s".repeat(64));
        for text in [
            "",
            "spiffe://",
            "spiffe://f",
            "spiffe://f/",
            "spiffe:///operator",
            "spiffe://f/operator/",
            "spiffe://f/operator/x",
            "spiffe://f/switch",
            "spiffe://f/switch/",
            "spiffe://f/switch/a/b",
            "spiffe://f/switch/..",
            "spiffe://f/switch/a%2fb",
            "spiffe://f/switch/a?b",
            "spiffe://f:1/operator",
            "spiffe://u@f/operator",
            "spiffe://f/Operator",
            "SPIFFE://f/operator",
            "https://f/operator",
            " spiffe://f/operator",
            long.as_str(),
        ] {
            let error = text.parse::<Identity>().unwrap_err().to_string();
            assert!(error.contains("spiffe://FABRIC/"), "{text}: {error}");
        }
        assert!(Identity::new("f", Role::Host("a/b".to_owned())).is_err());
        assert!(Identity::new(".f", Role::Operator).is_err());
    }

    #[test]
    fn a_message_repeats_a_bounded_part_of_a_text() {
        let error = "x".repeat(100_000).parse::<Identity>().unwrap_err().to_string();
        assert!(error.len() < 400, "{}", error.len());
    }
}
