//! The fabric: which hosts, switches and links there are, and where their processes listen.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use crate::error::TopoError;
use crate::graph::{NodeId, NodeKind, Topology};
use crate::parse;
use crate::units::{Bytes, Latency, Rate};

/// A checked fabric. Read it with [`Fabric::load`] or `parse`, or build one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fabric {
    /// Names its state folder and reports.
    pub name: String,
    /// Where the controller serves gRPC.
    pub controller: SocketAddr,
    /// In file order, which decides the ids.
    pub hosts: Vec<Host>,
    /// In file order.
    pub switches: Vec<Switch>,
    /// In file order.
    pub links: Vec<Link>,
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
}

/// A full-duplex link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Names of its ends, at least one a switch.
    pub ends: [String; 2],
    /// Each direction.
    pub rate: Rate,
    /// Propagation time, if known.
    pub latency: Option<Latency>,
}

impl Fabric {
    /// Reads and checks a fabric file. Errors name the file, the line, the entry and what to do.
    pub fn load(path: &Path) -> Result<Fabric, TopoError> {
        let text = std::fs::read_to_string(path).map_err(|error| TopoError::Unreadable {
            file: path.to_owned(),
            reason: error.to_string(),
        })?;
        Fabric::parse(&text, &path.display().to_string())
    }

    /// Checks the text of a fabric file; `file` names it in errors.
    pub fn parse(text: &str, file: &str) -> Result<Fabric, TopoError> {
        parse::fabric(text, file)
    }

    /// The file that gives this fabric back.
    pub fn to_toml(&self) -> String {
        let mut out = String::new();
        self.write_toml(&mut out).expect("writing to a string does not fail");
        out
    }

    /// The graph: hosts first, then switches, both in file order; links in file order.
    pub fn topology(&self) -> Topology {
        let mut graph = Topology::new();
        let hosts = self.hosts.iter().map(|host| (&host.name, NodeKind::Host));
        let switches = self.switches.iter().map(|switch| (&switch.name, NodeKind::Switch));
        let ids: BTreeMap<&str, NodeId> = hosts
            .chain(switches)
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

    fn write_toml(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "name = \"{}\"\ncontroller = \"{}\"", self.name, self.controller)?;
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
        }
        for link in &self.links {
            writeln!(out, "\n[[link]]\nends = [\"{}\", \"{}\"]", link.ends[0], link.ends[1])?;
            writeln!(out, "rate = \"{}\"", link.rate)?;
            if let Some(latency) = link.latency {
                writeln!(out, "latency = \"{latency}\"")?;
            }
        }
        Ok(())
    }
}
