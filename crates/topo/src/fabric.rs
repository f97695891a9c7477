//! The fabric: hosts, switches, links, and the listening addresses of their processes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use crate::error::TopoError;
use crate::graph::{NodeId, NodeKind, Topology};
use crate::parse;
use crate::plan::SlotPolicy;
use crate::units::{Bytes, Latency, Rate};

/// A checked fabric. Read it with [`Fabric::load`] or `parse`, or build one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fabric {
    /// Name of the fabric's state folder and of its reports.
    pub name: String,
    /// Where the controller serves gRPC.
    pub controller: SocketAddr,
    /// Where further controllers do, which share a store with the first; one of them all leads.
    pub standbys: Vec<SocketAddr>,
    /// Whether every sender on the network may act for any job: packets carry no keyed tags.
    pub trusted: bool,
    /// Hosts in file order, which determines the ids.
    pub hosts: Vec<Host>,
    /// Switches in file order.
    pub switches: Vec<Switch>,
    /// Links in file order.
    pub links: Vec<Link>,
    /// Servers in file order.
    pub servers: Vec<Server>,
    /// Tenants in file order.
    pub tenants: Vec<Tenant>,
}

/// A machine that runs workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Unique among hosts and switches.
    pub name: String,
    /// Workers bind here.
    pub address: IpAddr,
}

/// An aggregating switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Switch {
    /// Unique among hosts and switches.
    pub name: String,
    /// Its UDP data socket.
    pub address: SocketAddr,
    /// Aggregation memory.
    pub memory: Bytes,
    /// Prometheus over HTTP, if wanted.
    pub metrics: Option<SocketAddr>,
    /// Slots of protocol `atp`, and as many rounds of static pools; in addition to `memory`.
    pub slots: u32,
    /// Policy by which jobs share the slots.
    pub policy: SlotPolicy,
}

/// Default number of slots of a switch: about as much memory as ATP's program takes of a programmable switch (5.6 MB).
pub const SLOTS_USUAL: u32 = 4096;

/// A process on a host that completes sums which switches did not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Unique among hosts, switches and servers.
    pub name: String,
    /// Its UDP data socket, on an address of a host.
    pub address: SocketAddr,
    /// Memory for fragments of all its jobs.
    pub memory: Bytes,
    /// Prometheus over HTTP, if wanted.
    pub metrics: Option<SocketAddr>,
}

/// An owner of jobs, with limits per switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    /// Name that jobs refer to; jobs that name no tenant belong to `default`.
    pub name: String,
    /// Maximum number of simultaneous jobs.
    pub jobs: u32,
    /// Slots of a switch that are guaranteed to each job.
    pub guaranteed: u32,
    /// Maximum number of slots of a switch that a job may hold.
    pub limit: u32,
    /// Priority beyond the guarantees, 0 to 255; higher values win.
    pub priority: u8,
    /// The most that its jobs together may send to each switch, in bits per second; `None`: no limit.
    pub rate: Option<Rate>,
    /// The most packets per second that its jobs together may send to each switch; `None`: no limit.
    pub packets_per_second: Option<u64>,
    /// Whether the payloads of its jobs' packets are encrypted, also of jobs that do not ask for it.
    pub encrypt: bool,
    /// Hosts whose certificates suffice to join its jobs.
    pub hosts: Vec<String>,
}

impl Tenant {
    /// A tenant of that name without guarantees or limits.
    pub fn named(name: &str) -> Tenant {
        Tenant {
            name: name.to_owned(),
            jobs: u32::MAX,
            guaranteed: 0,
            limit: u32::MAX,
            priority: 0,
            rate: None,
            packets_per_second: None,
            encrypt: false,
            hosts: Vec::new(),
        }
    }
}

/// The tenant of jobs that name none.
pub const DEFAULT_TENANT: &str = "default";

/// A full-duplex link of the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Names of its ends, at least one a switch.
    pub ends: [String; 2],
    /// Rate of each direction.
    pub rate: Rate,
    /// Propagation time, if known.
    pub latency: Option<Latency>,
}

impl Fabric {
    /// Reads and checks a fabric file. Errors name the file, the line, the entry and the remedy.
    pub fn load(path: &Path) -> Result<Fabric, TopoError> {
        let text = std::fs::read_to_string(path).map_err(|error| TopoError::Unreadable {
            file: path.to_owned(),
            reason: error.to_string(),
        })?;
        Fabric::parse(&text, &path.display().to_string())
    }

    /// Like `parse`, for simulations: without a controller in the text, `controller` is 0.0.0.0:0.
    pub fn parse_simulated(text: &str, file: &str) -> Result<Fabric, TopoError> {
        parse::fabric(text, file, true)
    }

    /// Checks the text of a fabric file; `file` names it in errors.
    pub fn parse(text: &str, file: &str) -> Result<Fabric, TopoError> {
        parse::fabric(text, file, false)
    }

    /// Text of a fabric file that parses to this fabric.
    pub fn to_toml(&self) -> String {
        let mut out = String::new();
        self.write_toml(&mut out).expect("writing to a string does not fail");
        out
    }

    /// The graph: hosts first, then switches, then servers, each in file order; links in file order.
    pub fn topology(&self) -> Topology {
        let mut graph = Topology::new();
        let hosts = self.hosts.iter().map(|host| (&host.name, NodeKind::Host));
        let switches = self.switches.iter().map(|switch| (&switch.name, NodeKind::Switch));
        let servers = self.servers.iter().map(|server| (&server.name, NodeKind::Server));
        let ids: BTreeMap<&str, NodeId> = hosts
            .chain(switches)
            .chain(servers)
            .map(|(name, kind)| (name.as_str(), graph.add_node(name, kind)))
            .collect();
        for link in &self.links {
            let [a, b] = [0, 1].map(|end| ids[link.ends[end].as_str()]);
            graph.add_edge(a, b, link.rate.0, link.latency.map(|latency| latency.0));
        }
        graph
    }

    /// The host of that name.
    pub fn host(&self, name: &str) -> Option<&Host> {
        self.hosts.iter().find(|host| host.name == name)
    }

    /// The switch of that name.
    pub fn switch(&self, name: &str) -> Option<&Switch> {
        self.switches.iter().find(|switch| switch.name == name)
    }

    /// The server of that name.
    pub fn server(&self, name: &str) -> Option<&Server> {
        self.servers.iter().find(|server| server.name == name)
    }

    /// The host on which a server runs: the one that has its address.
    pub fn host_of(&self, server: &Server) -> Option<&Host> {
        self.hosts.iter().find(|host| host.address == server.address.ip())
    }

    /// UDP address of a switch or server.
    pub fn aggregator_address(&self, name: &str) -> Option<SocketAddr> {
        let switch = self.switch(name).map(|switch| switch.address);
        switch.or_else(|| self.server(name).map(|server| server.address))
    }

    /// The tenant of that name. A fabric without tenants has `default` only, without limits.
    pub fn tenant(&self, name: &str) -> Option<Tenant> {
        let found = self.tenants.iter().find(|tenant| tenant.name == name).cloned();
        found.or_else(|| (name == DEFAULT_TENANT).then(|| Tenant::named(name)))
    }

    /// Whether a host's certificate suffices to join jobs of a tenant there. Without tenants in the fabric, all jobs are
    /// of one.
    pub fn host_may_join(&self, host: &str, tenant: &str) -> bool {
        let listed = |found: &Tenant| found.name == tenant && found.hosts.iter().any(|h| h == host);
        self.tenants.is_empty() || self.tenants.iter().any(listed)
    }

    /// The addresses of all controllers, as clients take them: separated by commas.
    pub fn controllers(&self) -> String {
        let all = std::iter::once(&self.controller).chain(&self.standbys);
        all.map(SocketAddr::to_string).collect::<Vec<_>>().join(",")
    }

    fn write_toml(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "name = \"{}\"\ncontroller = \"{}\"", self.name, self.controllers())?;
        if self.trusted {
            writeln!(out, "trusted = true")?;
        }
        for host in &self.hosts {
            writeln!(out, "\n[[host]]\nname = \"{}\"\naddress = \"{}\"", host.name, host.address)?;
        }
        for switch in &self.switches {
            writeln!(
                out,
                "\n[[switch]]\nname = \"{}\"\naddress = \"{}\"",
                switch.name, switch.address
            )?;
            writeln!(out, "memory = \"{}\"", switch.memory)?;
            if let Some(metrics) = switch.metrics {
                writeln!(out, "metrics = \"{metrics}\"")?;
            }
            if switch.slots != SLOTS_USUAL {
                writeln!(out, "slots = {}", switch.slots)?;
            }
            if switch.policy != SlotPolicy::default() {
                writeln!(out, "policy = \"{}\"", switch.policy)?;
            }
        }
        for link in &self.links {
            writeln!(out, "\n[[link]]\nends = [\"{}\", \"{}\"]", link.ends[0], link.ends[1])?;
            writeln!(out, "rate = \"{}\"", link.rate)?;
            if let Some(latency) = link.latency {
                writeln!(out, "latency = \"{latency}\"")?;
            }
        }
        for server in &self.servers {
            writeln!(
                out,
                "\n[[server]]\nname = \"{}\"\naddress = \"{}\"",
                server.name, server.address
            )?;
            writeln!(out, "memory = \"{}\"", server.memory)?;
            if let Some(metrics) = server.metrics {
                writeln!(out, "metrics = \"{metrics}\"")?;
            }
        }
        for tenant in &self.tenants {
            let Tenant { name, jobs, guaranteed, limit, priority, .. } = tenant;
            let Tenant { rate, packets_per_second, encrypt, hosts, .. } = tenant;
            writeln!(out, "\n[[tenant]]\nname = \"{name}\"")?;
            if *jobs != u32::MAX {
                writeln!(out, "jobs = {jobs}")?;
            }
            if *guaranteed != 0 {
                writeln!(out, "guaranteed = {guaranteed}")?;
            }
            if *limit != u32::MAX {
                writeln!(out, "limit = {limit}")?;
            }
            if *priority != 0 {
                writeln!(out, "priority = {priority}")?;
            }
            if let Some(rate) = rate {
                writeln!(out, "rate = \"{rate}\"")?;
            }
            if let Some(packets) = packets_per_second {
                writeln!(out, "packets_per_second = {packets}")?;
            }
            if *encrypt {
                writeln!(out, "encrypt = true")?;
            }
            if !hosts.is_empty() {
                let names: Vec<String> = hosts.iter().map(|host| format!("{host:?}")).collect();
                writeln!(out, "hosts = [{}]", names.join(", "))?;
            }
        }
        Ok(())
    }
}
