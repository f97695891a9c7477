//! Configuration and options of a group; options have names, as in environment variables.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use netsum_topo::{CongestionRule, Protocol};

use crate::algorithm::{names, operations};
use crate::planned::PlanSource;
use crate::{Error, Network};

/// Protocols that a job may request; with `auto` the controller chooses.
pub const PROTOCOLS: [&str; Protocol::ALL.len() + 1] = {
    let mut names = ["auto"; Protocol::ALL.len() + 1];
    let mut i = 0;
    while i < Protocol::ALL.len() {
        names[i] = Protocol::ALL[i].name();
        i += 1;
    }
    names
};

/// Names of the reactions to congestion marks that a job may request.
pub fn congestion_rules() -> impl ExactSizeIterator<Item = &'static str> {
    CongestionRule::ALL.iter().map(|rule| rule.name())
}

/// Names of the networks between hosts.
pub fn networks() -> impl ExactSizeIterator<Item = &'static str> {
    Network::ALL.into_iter().map(Network::name)
}

fn list(names: impl Iterator<Item = &'static str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

/// The order in which floats are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// By ranks alone: the same bits for any placement.
    Ranks,
    /// Per host, then across hosts: less network traffic if a host's ranks are not adjacent, but bits depend on
    /// placement.
    Hosts,
}

/// Configuration of a group.
#[derive(Clone, Debug)]
pub struct GroupConfig {
    /// Index of this process.
    pub rank: u32,
    /// Number of processes.
    pub size: u32,
    /// Name for users; must be equal at all ranks.
    pub name: String,
    /// The controller's gRPC address; without one, sums use the host path only.
    pub controller: Option<String>,
    /// The fabric's host on which this process runs, or without a controller an address of this machine.
    pub host: Option<String>,
    /// Time-out for connecting, and for silence of a peer.
    pub timeout: Duration,
    /// Options.
    pub options: Options,
    /// Source of a tree plan for allreduces; not together with a controller.
    pub plan: Option<PlanSource>,
}

/// Options of a group; equal at all ranks, except for `rendezvous`, `credentials` and `recorder`.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Aggregation protocol: one of `PROTOCOLS`.
    pub protocol: String,
    /// Tenant of the job; empty: the fabric's default.
    pub tenant: String,
    /// Scale between reals and integers of protocols with slots; 0: shared exponents.
    pub scale: f32,
    /// Whether nobody between the ranks and the switches that add can read the values.
    pub encrypt: bool,
    /// Whether switches do reduce-scatter, all-gather, broadcast and reduce, too, on copies of the trees.
    pub all_collectives: bool,
    /// Maximum number of trees; 0: as many as the fabric provides.
    pub max_trees: u32,
    /// Share of children that a switch awaits; 1: all.
    pub release_fraction: f32,
    /// Reaction to congestion marks.
    pub congestion: CongestionRule,
    /// Smaller buffers use the host path; `None`: measured costs decide, or where nothing is measured the controller's
    /// default.
    pub min_bytes: Option<u64>,
    /// Whether costs of switches are measured also where all hosts are on one machine.
    pub always_measured: bool,
    /// Whether ranks of one host share memory; if not, they use the network.
    pub shared_memory: bool,
    /// Order of additions, until a plan of the network sets its own.
    pub order: Order,
    /// Transport of messages between ranks that do not share memory.
    pub network: Network,
    /// Whether a network that protects nothing, as UCX, may carry messages of ranks with credentials.
    pub trusted_network: bool,
    /// Algorithm by operation (`allreduce`, `reduce_scatter`, …), in place of the cost model's choice; ignored for
    /// requests that it cannot handle.
    pub algorithms: BTreeMap<String, String>,
    /// For the cost model: seconds of a small message between two ranks; `None`: measured.
    pub link_latency_s: Option<f64>,
    /// For the cost model: bytes per second of a rank in each direction; `None`: measured.
    pub link_bytes_per_s: Option<f64>,
    /// The results of one of so many sums by switches are compared between the ranks; 0: of none.
    pub digest_every: u64,
    /// An address that all ranks can reach: selects this machine's address if `host` does not.
    pub rendezvous: Option<String>,
    /// Folder of this process's credentials: for the controller, if it demands certificates, and for the connections
    /// between ranks, which are TLS with them. All ranks have some, or none.
    pub credentials: Option<PathBuf>,
    /// Folder to which the group's last operations are written when it fails.
    pub recorder: Option<PathBuf>,
}

impl Options {
    /// Parses options by name. Errors name the option, the value and the allowed values.
    pub fn parse(values: &BTreeMap<String, String>) -> Result<Options, Error> {
        let mut options = Options::default();
        for (name, value) in values {
            let wrong = |allowed: &str| {
                Error::Unsupported(format!("option {name} = {value:?}: use {allowed}"))
            };
            match name.as_str() {
                "protocol" if PROTOCOLS.contains(&value.as_str()) => {
                    options.protocol = value.clone();
                }
                "protocol" => return Err(wrong(&PROTOCOLS.join(", "))),
                "tenant" => options.tenant = value.clone(),
                "scale" => {
                    let factor: Option<f32> = value.parse().ok();
                    let usual = |f: &f32| *f == 0.0 || f.is_normal() && *f > 0.0;
                    let allowed = "a factor, as 1e8, or 0 for shared exponents";
                    options.scale = factor.filter(usual).ok_or_else(|| wrong(allowed))?;
                }
                "encrypt" => {
                    options.encrypt = on_or_off(value).ok_or_else(|| wrong("on or off"))?;
                }
                "collectives" => {
                    options.all_collectives = match value.as_str() {
                        "allreduce" => false,
                        "all" => true,
                        _ => return Err(wrong("allreduce or all")),
                    };
                }
                "max_trees" => {
                    options.max_trees = value.parse().map_err(|_| wrong("a number, 0 for all"))?;
                }
                "release_fraction" => {
                    let fraction = value.parse().ok().filter(|f| *f > 0.0 && *f <= 1.0);
                    options.release_fraction = fraction.ok_or_else(|| wrong("0 < f ≤ 1"))?;
                }
                "congestion" => {
                    let rules = list(congestion_rules());
                    options.congestion = value.parse().map_err(|_| wrong(&rules))?;
                }
                "min_bytes" if value == "measured" => options.always_measured = true,
                "min_bytes" => {
                    let bytes = value.parse();
                    options.min_bytes =
                        Some(bytes.map_err(|_| wrong("a number of bytes, or measured"))?);
                }
                "shared_memory" => {
                    options.shared_memory = on_or_off(value).ok_or_else(|| wrong("on or off"))?;
                }
                "trusted_network" => {
                    options.trusted_network = on_or_off(value).ok_or_else(|| wrong("on or off"))?;
                }
                "order" => {
                    options.order = match value.as_str() {
                        "ranks" => Order::Ranks,
                        "hosts" => Order::Hosts,
                        _ => return Err(wrong("ranks or hosts")),
                    };
                }
                "network" => {
                    let known = Network::ALL.into_iter().find(|network| network.name() == value);
                    options.network = known.ok_or_else(|| wrong(&list(networks())))?;
                }
                "algorithms" => options.algorithms = algorithms(value).map_err(|e| wrong(&e))?,
                "link_latency_s" => {
                    options.link_latency_s = Some(positive(value).ok_or_else(|| wrong("seconds"))?);
                }
                "link_bytes_per_s" => {
                    options.link_bytes_per_s =
                        Some(positive(value).ok_or_else(|| wrong("a rate"))?);
                }
                "digest_every" => {
                    options.digest_every =
                        value.parse().map_err(|_| wrong("a number, 0 for never"))?;
                }
                "credentials" => options.credentials = Some(PathBuf::from(value)),
                "recorder" => options.recorder = Some(PathBuf::from(value)),
                "rendezvous" => options.rendezvous = Some(value.clone()),
                _ => return Err(Error::Unsupported(format!("option {name} does not exist"))),
            }
        }
        Ok(options)
    }

    /// Checks that what the ranks send each other is encrypted where their packets are to be. Errors name what is
    /// missing.
    pub(crate) fn check_encryption(&self) -> Result<(), Error> {
        let problem = if !self.encrypt {
            return Ok(());
        } else if self.credentials.is_none() {
            "needs credentials: without them keys and messages between ranks can be read; set NETSUM_CREDENTIALS"
        } else if self.network == Network::Ucx {
            "excludes network = ucx, whose messages are not encrypted; use tcp"
        } else {
            return Ok(());
        };
        Err(Error::Unsupported(format!("option encrypt = on {problem}")))
    }

    /// Checks that messages of ranks with credentials do not go over a network that protects nothing.
    pub(crate) fn check_network(&self) -> Result<(), Error> {
        let exposed = self.network == Network::Ucx && self.credentials.is_some();
        match exposed && !self.trusted_network {
            true => Err(Error::Unsupported(
                "UCX neither encrypts nor authenticates messages, and this rank has credentials; use \
                 NETSUM_NETWORK=tcp, or, if nobody else reaches UCX's network, NETSUM_TRUSTED_NETWORK=on"
                    .to_owned(),
            )),
            false => Ok(()),
        }
    }

    /// The options that must be equal at all ranks.
    pub(crate) fn agreed(&self) -> String {
        let Options { protocol, tenant, scale, encrypt, all_collectives, .. } = self;
        let Options { release_fraction, congestion, min_bytes, shared_memory, .. } = self;
        let Options { order, network, algorithms, link_latency_s, link_bytes_per_s, .. } = self;
        let Options { digest_every, trusted_network, max_trees, always_measured, .. } = self;
        format!(
            "{protocol} tenant={tenant} scale={scale} encrypt={encrypt} all_collectives={all_collectives} max_trees={max_trees} \
             release_fraction={release_fraction} \
             congestion={congestion} min_bytes={min_bytes:?},{always_measured} shared_memory={shared_memory} order={order:?} \
             network={network:?} trusted_network={trusted_network} \
             algorithms={algorithms:?} link={link_latency_s:?},{link_bytes_per_s:?} \
             digest_every={digest_every}"
        )
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            protocol: "panama".to_owned(),
            tenant: String::new(),
            scale: 0.0,
            encrypt: false,
            all_collectives: false,
            max_trees: 0,
            release_fraction: 1.0,
            congestion: CongestionRule::PerBranch,
            min_bytes: None,
            always_measured: false,
            shared_memory: true,
            order: Order::Ranks,
            network: Network::Tcp,
            trusted_network: false,
            algorithms: BTreeMap::new(),
            link_latency_s: None,
            link_bytes_per_s: None,
            digest_every: 256,
            rendezvous: None,
            credentials: None,
            recorder: None,
        }
    }
}

/// Parses "allreduce=ring,broadcast=binomial". Errors list the allowed values.
fn algorithms(value: &str) -> Result<BTreeMap<String, String>, String> {
    let mut all = BTreeMap::new();
    for pair in value.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let (operation, name) = pair.split_once('=').unwrap_or((pair, ""));
        let usual = || format!("OPERATION=NAME,… for {}", operations());
        let names = names(operation).ok_or_else(usual)?;
        if !names.contains(&name) {
            return Err(format!("one of {} for {operation}", names.join(", ")));
        }
        all.insert(operation.to_owned(), name.to_owned());
    }
    Ok(all)
}

fn on_or_off(value: &str) -> Option<bool> {
    match value {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

fn positive(value: &str) -> Option<f64> {
    value.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(name: &str, value: &str) -> Result<Options, Error> {
        Options::parse(&BTreeMap::from([(name.to_owned(), value.to_owned())]))
    }

    #[test]
    fn options_are_parsed_or_refused_with_the_allowed_values() {
        assert_eq!(parse("max_trees", "2").unwrap().max_trees, 2);
        assert_eq!(parse("min_bytes", "4096").unwrap().min_bytes, Some(4096));
        assert!(parse("min_bytes", "measured").unwrap().always_measured);
        assert_eq!(parse("congestion", "none").unwrap().congestion, CongestionRule::None);
        let error = |name, value| parse(name, value).unwrap_err().to_string();
        assert_eq!(
            error("release_fraction", "0"),
            "option release_fraction = \"0\": use 0 < f ≤ 1"
        );
        assert_eq!(
            error("protocol", "tcp"),
            format!(
                "option protocol = \"tcp\": use {}, auto",
                PROTOCOLS[..Protocol::ALL.len()].join(", ")
            )
        );
        assert_eq!(parse("protocol", "atp").unwrap().protocol, "atp");
        assert_eq!(parse("scale", "1e8").unwrap().scale, 1e8);
        assert!(error("scale", "-1").contains("use a factor"));
        let ring = parse("algorithms", "allreduce=ring").unwrap().algorithms;
        assert_eq!(ring["allreduce"], "ring");
        assert!(error("algorithms", "allreduce=rong").contains("halving-doubling, ring, "));
        assert!(
            error("algorithms", "barrier=ring").contains("dissemination, hierarchical for barrier")
        );
        assert!(error("algorithms", "send=ring").contains("allreduce, allgather, broadcast"));
        assert_eq!(parse("network", "ucx").unwrap().network, Network::Ucx);
        assert!(error("network", "rdma").contains("use tcp, ucx"));
        assert!(parse("trusted_network", "on").unwrap().trusted_network);
        assert!(error("trusted_network", "yes").contains("use on or off"));
        assert_eq!(parse("order", "hosts").unwrap().order, Order::Hosts);
        assert!(error("order", "any").contains("use ranks or hosts"));
        assert!(error("link_latency_s", "-1").contains("use seconds"));
        assert_eq!(parse("digest_every", "0").unwrap().digest_every, 0);
        assert!(error("digest_every", "x").contains("use a number, 0 for never"));
        assert_eq!(error("tress", "1"), "option tress does not exist");
    }
}
