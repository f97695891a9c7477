//! Who may be a rank: the identities of a group's ranks, if they have credentials.
//!
//! All ranks decide the same from the same addresses, before any connection. That a rank has the identity that its
//! address names is proved when the mesh connects.

use netsum_identity::{Identity, Role};

use crate::address::Address;
use crate::{Error, GroupConfig};

/// Checks that all ranks belong to one fabric and work for one tenant, and that the certificate of a host is used on
/// that host. Errors name the first rank that does not fit.
pub(crate) fn check(config: &GroupConfig, all: &[Address]) -> Result<(), Error> {
    let mut rules = Rules { fabric: None, tenant: None, hosts: config.controller.is_some() };
    if !config.options.tenant.is_empty() {
        rules.tenant = Some((&config.options.tenant, "the job is"));
    }
    for address in all {
        let Some(identity) = address.identity() else { continue };
        rules.admit(identity, &address.host).map_err(|problem| Error::Connect {
            group: config.name.clone(),
            reason: format!("rank {} is {identity}, {problem}", address.rank),
        })?;
    }
    Ok(())
}

struct Rules<'a> {
    fabric: Option<&'a str>,
    /// The tenant, and what is known to be this tenant's.
    tenant: Option<(&'a str, &'static str)>,
    /// Whether hosts have the names of the fabric file.
    hosts: bool,
}

impl<'a> Rules<'a> {
    fn admit(&mut self, identity: &'a Identity, host: &str) -> Result<(), String> {
        let fabric = *self.fabric.get_or_insert(identity.fabric());
        if fabric != identity.fabric() {
            return Err(format!("and other ranks are of fabric {fabric:?}; {SAME}"));
        }
        match identity.role() {
            Role::Operator => Ok(()),
            Role::Tenant(name) => {
                let (tenant, whose) = *self.tenant.get_or_insert((name, "other ranks are"));
                match tenant == name {
                    true => Ok(()),
                    false => Err(format!("and {whose} of tenant {tenant:?}; {SAME}")),
                }
            }
            Role::Host(name) if self.hosts && name != host => {
                Err(format!("but runs on host {host:?}; give it that host's credentials"))
            }
            Role::Host(_) => Ok(()),
            Role::Controller | Role::Switch(_) | Role::Viewer => Err(
                "and cannot run workers; set NETSUM_CREDENTIALS to those of a host, a tenant or an operator"
                    .to_owned(),
            ),
        }
    }
}

const SAME: &str = "give all ranks credentials of one tenant, or of hosts";

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(tenant: &'static str, ranks: &[(&str, &str)]) -> Result<(), String> {
        let tenant = Some((tenant, "the job is")).filter(|(name, _)| !name.is_empty());
        let identities: Vec<Identity> =
            ranks.iter().map(|(uri, _)| format!("spiffe://{uri}").parse().unwrap()).collect();
        let mut rules = Rules { fabric: None, tenant, hosts: true };
        identities
            .iter()
            .zip(ranks)
            .try_for_each(|(identity, (_, host))| rules.admit(identity, host))
    }

    #[test]
    fn one_tenant_operators_and_hosts_in_their_place_form_a_group() {
        let mixed = [("lab/tenant/a", "h0"), ("lab/operator", "h1"), ("lab/host/h2", "h2")];
        assert_eq!(admitted("", &mixed), Ok(()));
        assert_eq!(admitted("a", &mixed), Ok(()));
        let refused = |tenant, ranks: &[(&str, &str)], words: &str| {
            let problem = admitted(tenant, ranks).unwrap_err();
            assert!(problem.contains(words), "{problem}");
        };
        refused("b", &mixed, "the job is of tenant \"b\"");
        let two = [("lab/tenant/a", "h0"), ("lab/tenant/b", "h1")];
        refused("", &two, "other ranks are of tenant \"a\"");
        refused("", &[("lab/host/h2", "h3")], "runs on host \"h3\"");
        refused("", &[("lab/operator", "h0"), ("other/operator", "h0")], "of fabric \"lab\"");
        for role in ["controller", "switch/s", "viewer"] {
            refused("", &[(format!("lab/{role}").as_str(), "h0")], "cannot run workers");
        }
    }
}
