//! Who may do what: one table, and what it does not allow is refused.

use std::net::SocketAddr;

use netsum_identity::{Identity, Role};

use crate::decide::{Event, State};

/// The other end of a connection.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub address: SocketAddr,
    pub certificate: Certificate,
}

/// What a peer has proved.
#[derive(Debug, Clone)]
pub(crate) enum Certificate {
    /// The controller runs without credentials: anybody may do everything.
    NotDemanded,
    /// That it is this.
    Of(Identity),
    /// Nothing.
    Unknown,
}

/// A request, with what the decision depends on. Tenants and hosts are those of the fabric file; `None`: there is no
/// such job or host.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Ask for the fabric, the status or the jobs.
    Look,
    /// Ask the ranks of a tenant's job what they do: their call stacks, and files that they read.
    Examine { job: u32, tenant: Option<String> },
    /// Create a job of a tenant.
    CreateJob { tenant: String },
    /// End a tenant's job.
    StopJob { job: u32, tenant: Option<String> },
    /// Give a tenant's job a new key.
    RekeyJob { job: u32, tenant: Option<String> },
    /// Be a rank of a tenant's job, on a host. `listed`: the tenant lets the host's certificate suffice.
    Join { job: u32, tenant: Option<String>, host: Option<String>, listed: bool },
    /// Be a switch or server.
    Serve { name: String },
}

/// A request that a peer may not make. The text says what would be needed.
#[derive(Debug, thiserror::Error)]
#[error("{identity} may not {request}; {needed}")]
pub(super) struct Denied {
    identity: String,
    request: String,
    needed: String,
}

/// Whether a peer may make a request.
pub(super) fn check(peer: &Peer, request: &Request) -> Result<(), Denied> {
    let allowed = match &peer.certificate {
        Certificate::NotDemanded => true,
        Certificate::Of(identity) => allows(identity.role(), request),
        Certificate::Unknown => false,
    };
    match allowed {
        true => Ok(()),
        false => Err(Denied {
            identity: peer.to_string(),
            request: request.to_string(),
            needed: request.needed(),
        }),
    }
}

/// The table.
fn allows(role: &Role, request: &Request) -> bool {
    match (request, role) {
        (Request::Look, _) => true,
        (
            Request::CreateJob { .. }
            | Request::Examine { .. }
            | Request::StopJob { .. }
            | Request::RekeyJob { .. }
            | Request::Join { .. },
            Role::Operator,
        ) => true,
        (Request::CreateJob { tenant }, Role::Tenant(own)) => tenant == own,
        (
            Request::Examine { tenant, .. }
            | Request::StopJob { tenant, .. }
            | Request::RekeyJob { tenant, .. }
            | Request::Join { tenant, .. },
            Role::Tenant(own),
        ) => tenant.as_ref() == Some(own),
        (Request::Join { host, listed, .. }, Role::Host(own)) => {
            *listed && host.as_ref() == Some(own)
        }
        (Request::Serve { name }, Role::Switch(own)) => name == own,
        _ => false,
    }
}

impl Request {
    /// The request of an event; `None` if the event is not one.
    pub fn of(event: &Event, state: &State) -> Option<Request> {
        match event {
            Event::CreateJob { request, .. } => {
                Some(Request::CreateJob { tenant: request.tenant_name().to_owned() })
            }
            Event::StopJob { job, .. } => {
                Some(Request::StopJob { job: *job, tenant: state.tenant_of_job(*job) })
            }
            Event::RekeyJob { job, .. } => {
                Some(Request::RekeyJob { job: *job, tenant: state.tenant_of_job(*job) })
            }
            Event::WorkerJoined { join, .. } => {
                let tenant = state.tenant_of_join(join);
                let host = state.host_of_join(join).map(|host| host.name.clone());
                let listed = host
                    .as_deref()
                    .zip(tenant.as_deref())
                    .is_some_and(|(host, tenant)| state.fabric().host_may_join(host, tenant));
                Some(Request::Join { job: join.job, tenant, host, listed })
            }
            Event::SwitchHello { hello, .. } => Some(Request::Serve { name: hello.name.clone() }),
            _ => None,
        }
    }

    /// Its name in the audit log.
    pub fn action(&self) -> &'static str {
        match self {
            Request::Look => "look",
            Request::Examine { .. } => "ask_ranks",
            Request::CreateJob { .. } => "create_job",
            Request::StopJob { .. } => "stop_job",
            Request::RekeyJob { .. } => "rekey_job",
            Request::Join { .. } => "worker_session",
            Request::Serve { .. } => "switch_session",
        }
    }

    /// What it is about, in the audit log.
    pub fn object(&self) -> String {
        let of = |tenant: &Option<String>| format!("tenant {}", tenant.as_deref().unwrap_or("?"));
        match self {
            Request::Look => String::new(),
            Request::CreateJob { tenant } => format!("tenant {tenant}"),
            Request::Examine { job, tenant }
            | Request::StopJob { job, tenant }
            | Request::RekeyJob { job, tenant } => format!("job {job} of {}", of(tenant)),
            Request::Join { job, tenant, host, .. } => {
                format!("job {job} of {} on host {}", of(tenant), host.as_deref().unwrap_or("?"))
            }
            Request::Serve { name } => format!("switch {name}"),
        }
    }

    /// The identities that may make it.
    fn needed(&self) -> String {
        let or_operator = |kind: &str, name: &Option<String>| match name {
            Some(name) => format!("that needs a certificate of {kind}/{name} or of an operator"),
            None => "that needs an operator's certificate".to_owned(),
        };
        match self {
            Request::Look => "that needs a certificate of the fabric".to_owned(),
            Request::CreateJob { tenant } => or_operator("tenant", &Some(tenant.clone())),
            Request::Examine { tenant, .. }
            | Request::StopJob { tenant, .. }
            | Request::RekeyJob { tenant, .. } => or_operator("tenant", tenant),
            Request::Join { tenant, host: None, .. } => or_operator("tenant", tenant),
            Request::Join { tenant, host: Some(host), listed: true, .. } => {
                format!("{}, or of host/{host}", or_operator("tenant", tenant))
            }
            Request::Join { tenant, host: Some(host), listed: false, .. } => {
                let needed = or_operator("tenant", tenant);
                format!("{needed}; the tenant does not list host {host:?} in the fabric file")
            }
            Request::Serve { name } => format!("that needs a certificate of switch/{name}"),
        }
    }
}

impl std::fmt::Display for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let of = |tenant: &Option<String>| match tenant {
            Some(tenant) => format!("of tenant {tenant:?}"),
            None => "that the controller does not know".to_owned(),
        };
        match self {
            Request::Look => f.write_str("look at the fabric"),
            Request::CreateJob { tenant } => write!(f, "create a job of tenant {tenant:?}"),
            Request::Examine { job, tenant } => write!(f, "examine job {job} {}", of(tenant)),
            Request::StopJob { job, tenant } => write!(f, "stop job {job} {}", of(tenant)),
            Request::RekeyJob { job, tenant } => {
                write!(f, "give job {job} {} a new key", of(tenant))
            }
            Request::Join { job, tenant, host, .. } => {
                write!(f, "join job {job} {}", of(tenant))?;
                host.as_ref().map_or(Ok(()), |host| write!(f, " on host {host:?}"))
            }
            Request::Serve { name } => write!(f, "be switch {name:?}"),
        }
    }
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.certificate {
            Certificate::Of(identity) => identity.fmt(f),
            Certificate::NotDemanded | Certificate::Unknown => {
                write!(f, "anybody at {}", self.address)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(role: &str) -> Identity {
        Identity::new("lab", role.parse().unwrap()).unwrap()
    }

    fn peer(certificate: Certificate) -> Peer {
        Peer { address: "192.0.2.1:5000".parse().unwrap(), certificate }
    }

    /// Every role with every request: the documented table, in full.
    #[test]
    fn the_table_allows_what_it_says_and_nothing_else() {
        let some = |name: &str| Some(name.to_owned());
        let requests = [
            Request::Look,
            Request::CreateJob { tenant: "a".to_owned() },
            Request::CreateJob { tenant: "b".to_owned() },
            Request::StopJob { job: 1, tenant: some("a") },
            Request::StopJob { job: 1, tenant: some("b") },
            Request::StopJob { job: 1, tenant: None },
            Request::Examine { job: 1, tenant: some("a") },
            Request::Examine { job: 1, tenant: some("b") },
            Request::Examine { job: 1, tenant: None },
            Request::RekeyJob { job: 1, tenant: some("a") },
            Request::RekeyJob { job: 1, tenant: some("b") },
            Request::RekeyJob { job: 1, tenant: None },
            Request::Join { job: 1, tenant: some("a"), host: some("h1"), listed: true },
            Request::Join { job: 1, tenant: some("b"), host: some("h0"), listed: true },
            Request::Join { job: 1, tenant: some("b"), host: some("h0"), listed: false },
            Request::Join { job: 1, tenant: None, host: None, listed: false },
            Request::Serve { name: "s0".to_owned() },
            Request::Serve { name: "s1".to_owned() },
        ];
        for (role, allowed) in [
            ("operator", [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0]),
            ("tenant/a", [1, 1, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0]),
            ("host/h0", [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]),
            ("switch/s0", [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]),
            // A name counts for one kind of process only.
            ("switch/h0", [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            ("host/s0", [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            ("viewer", [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            ("controller", [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        ] {
            let peer = peer(Certificate::Of(identity(role)));
            let got = requests.each_ref().map(|request| u8::from(check(&peer, request).is_ok()));
            assert_eq!(got, allowed, "{role}");
        }
        let (anybody, nobody) = (peer(Certificate::NotDemanded), peer(Certificate::Unknown));
        assert!(requests.iter().all(|request| check(&anybody, request).is_ok()));
        assert!(requests.iter().all(|request| check(&nobody, request).is_err()));
    }

    #[test]
    fn a_denial_says_what_would_be_needed() {
        let peer = peer(Certificate::Of(identity("host/h0")));
        let words = |request| check(&peer, &request).unwrap_err().to_string();
        let tenant = Some("a".to_owned());
        assert_eq!(
            words(Request::Join { job: 7, tenant, host: Some("h1".to_owned()), listed: true }),
            "spiffe://lab/host/h0 may not join job 7 of tenant \"a\" on host \"h1\"; that needs a certificate of \
             tenant/a or of an operator, or of host/h1"
        );
        assert_eq!(
            words(Request::StopJob { job: 7, tenant: None }),
            "spiffe://lab/host/h0 may not stop job 7 that the controller does not know; that needs an operator's \
             certificate"
        );
    }
}
