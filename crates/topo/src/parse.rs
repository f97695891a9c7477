//! Parses the text of a fabric file into a [`Fabric`]: all checks, each error with its line.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use toml::Spanned;

use crate::error::TopoError;
use crate::fabric::{Fabric, Host, Link, SLOTS_USUAL, Server, Switch, Tenant};
use crate::graph::NodeKind;
use crate::plan::SlotPolicy;
use crate::raw::{RawFabric, RawHost, RawLink, RawServer, RawSwitch, RawTenant};

/// Parses and checks `text`; `file` names it in errors. `simulated`: the file may lack a controller.
pub(crate) fn fabric(text: &str, file: &str, simulated: bool) -> Result<Fabric, TopoError> {
    let raw: RawFabric =
        toml::from_str(text).map_err(|error| TopoError::syntax(text, file, &error))?;
    if raw.controller.is_none() && !simulated {
        return Err(TopoError::Syntax {
            file: file.to_owned(),
            line: 1,
            reason: "missing field `controller`".to_owned(),
        });
    }
    let checker = Checker { text, file };
    let fabric = checker.convert(&raw)?;
    checker.check_names(&raw)?;
    checker.check_tenants(&raw)?;
    checker.check_addresses(&raw, &fabric)?;
    checker.check_links(&raw)?;
    checker.check_reach(&raw, &fabric)?;
    Ok(fabric)
}

/// The controller of a fabric that is only simulated.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

struct Checker<'a> {
    text: &'a str,
    file: &'a str,
}

impl Checker<'_> {
    fn convert(&self, raw: &RawFabric) -> Result<Fabric, TopoError> {
        let (controller, standbys) = match &raw.controller {
            Some(controller) => self.controllers(controller)?,
            None => (NOWHERE, Vec::new()),
        };
        Ok(Fabric {
            name: raw.name.get_ref().clone(),
            controller,
            standbys,
            trusted: raw.trusted,
            hosts: raw.host.iter().map(|host| self.host(host)).collect::<Result<_, _>>()?,
            switches: raw
                .switch
                .iter()
                .map(|switch| self.switch(switch))
                .collect::<Result<_, _>>()?,
            links: raw.link.iter().map(|link| self.link(link)).collect::<Result<_, _>>()?,
            servers: raw
                .server
                .iter()
                .map(|server| self.server(server))
                .collect::<Result<_, _>>()?,
            tenants: raw
                .tenant
                .iter()
                .map(|tenant| self.tenant(tenant, raw.trusted))
                .collect::<Result<_, _>>()?,
        })
    }

    fn host(&self, raw: &RawHost) -> Result<Host, TopoError> {
        let entry = format!("host {:?}", raw.name.get_ref());
        let address: std::net::IpAddr = self.read(
            &raw.address,
            &entry,
            "write an IP address without a port, like \"10.0.0.1\"",
        )?;
        if address.is_unspecified() || address.is_multicast() {
            let problem = format!(
                "address {address} is not that of one machine; write the one that workers bind"
            );
            return Err(self.invalid(&raw.address, &entry, problem));
        }
        Ok(Host { name: raw.name.get_ref().clone(), address })
    }

    fn switch(&self, raw: &RawSwitch) -> Result<Switch, TopoError> {
        let entry = format!("switch {:?}", raw.name.get_ref());
        let address = self.read(&raw.address, &entry, SOCKET_HELP)?;
        self.check_port(&raw.address, &entry, address)?;
        let slots = raw.slots.as_ref().map_or(SLOTS_USUAL, |slots| *slots.get_ref());
        if let Some(at) = raw.slots.as_ref().filter(|slots| *slots.get_ref() > SLOTS_MAX) {
            let problem = format!("slots is {slots}; a switch has at most {SLOTS_MAX}");
            return Err(self.invalid(at, &entry, problem));
        }
        let policy = match &raw.policy {
            None => SlotPolicy::default(),
            Some(text) => text
                .get_ref()
                .parse()
                .map_err(|problem: String| self.invalid(text, &entry, problem))?,
        };
        Ok(Switch {
            name: raw.name.get_ref().clone(),
            address,
            memory: self.memory(&raw.memory, &entry)?,
            metrics: self.metrics(raw.metrics.as_ref(), &entry)?,
            slots,
            policy,
        })
    }

    fn server(&self, raw: &RawServer) -> Result<Server, TopoError> {
        let entry = format!("server {:?}", raw.name.get_ref());
        let address = self.read(&raw.address, &entry, SOCKET_HELP)?;
        self.check_port(&raw.address, &entry, address)?;
        Ok(Server {
            name: raw.name.get_ref().clone(),
            address,
            memory: self.memory(&raw.memory, &entry)?,
            metrics: self.metrics(raw.metrics.as_ref(), &entry)?,
        })
    }

    fn tenant(&self, raw: &RawTenant, trusted: bool) -> Result<Tenant, TopoError> {
        let entry = format!("tenant {:?}", raw.name.get_ref());
        if let Some(at) = raw.encrypt.as_ref().filter(|encrypt| trusted && *encrypt.get_ref()) {
            let problem = "encrypt is true, and so is the fabric's `trusted`: its packets have no keys; delete one of \
                           the two"
                .to_owned();
            return Err(self.invalid(at, &entry, problem));
        }
        let rate = match &raw.rate {
            None => None,
            Some(text) => match self.unit(text, &entry, "rate")? {
                crate::Rate(..8) => return Err(self.no_rate(text, &entry, "rate")),
                rate => Some(rate),
            },
        };
        if let Some(at) = raw.packets_per_second.as_ref().filter(|packets| *packets.get_ref() == 0)
        {
            return Err(self.no_rate(at, &entry, "packets_per_second"));
        }
        let unbounded = Tenant::named(raw.name.get_ref());
        Ok(Tenant {
            jobs: raw.jobs.unwrap_or(unbounded.jobs),
            guaranteed: raw.guaranteed.as_ref().map_or(0, |slots| *slots.get_ref()),
            limit: raw.limit.unwrap_or(unbounded.limit),
            priority: raw.priority.unwrap_or(0),
            rate,
            packets_per_second: raw.packets_per_second.as_ref().map(|packets| *packets.get_ref()),
            encrypt: raw.encrypt.as_ref().is_some_and(|encrypt| *encrypt.get_ref()),
            hosts: raw.hosts.iter().map(|host| host.get_ref().clone()).collect(),
            ..unbounded
        })
    }

    fn no_rate<T>(&self, at: &Spanned<T>, entry: &str, what: &str) -> TopoError {
        let problem = format!(
            "{what} is 0: nothing could pass; give a rate, or delete the line for no limit"
        );
        self.invalid(at, entry, problem)
    }

    fn memory(&self, text: &Spanned<String>, entry: &str) -> Result<crate::Bytes, TopoError> {
        let memory = self.unit(text, entry, "memory")?;
        if memory == crate::Bytes(0) {
            let problem =
                "memory is 0: it could hold no sum; give it some, like \"64MiB\"".to_owned();
            return Err(self.invalid(text, entry, problem));
        }
        Ok(memory)
    }

    fn metrics(
        &self,
        text: Option<&Spanned<String>>,
        entry: &str,
    ) -> Result<Option<SocketAddr>, TopoError> {
        let Some(text) = text else { return Ok(None) };
        let metrics = self.read(text, entry, SOCKET_HELP)?;
        self.check_port(text, entry, metrics)?;
        Ok(Some(metrics))
    }

    fn link(&self, raw: &RawLink) -> Result<Link, TopoError> {
        let entry = link_entry(raw);
        let rate = self.unit(&raw.rate, &entry, "rate")?;
        if rate == crate::Rate(0) {
            let problem =
                "rate is 0: nothing could pass; give its rate, or delete the link".to_owned();
            return Err(self.invalid(&raw.rate, &entry, problem));
        }
        let latency = match &raw.latency {
            None => None,
            Some(text) => Some(self.unit(text, &entry, "latency")?),
        };
        Ok(Link { ends: raw.ends.get_ref().clone(), rate, latency })
    }

    fn check_names(&self, raw: &RawFabric) -> Result<(), TopoError> {
        self.check_name(&raw.name, "fabric")?;
        let mut known = HashMap::new();
        let hosts = raw.host.iter().map(|host| (&host.name, "host"));
        let switches = raw.switch.iter().map(|switch| (&switch.name, "switch"));
        let servers = raw.server.iter().map(|server| (&server.name, "server"));
        for (name, kind) in hosts.chain(switches).chain(servers) {
            self.check_name(name, kind)?;
            if let Some(other) = known.insert(name.get_ref().as_str(), name) {
                let line = self.line(other);
                let problem = format!(
                    "line {line} has the same name; names of hosts, switches and servers must differ"
                );
                return Err(self.invalid(name, &format!("{kind} {:?}", name.get_ref()), problem));
            }
        }
        Ok(())
    }

    fn check_tenants(&self, raw: &RawFabric) -> Result<(), TopoError> {
        let mut lines = HashMap::new();
        for tenant in &raw.tenant {
            self.check_name(&tenant.name, "tenant")?;
            let entry = format!("tenant {:?}", tenant.name.get_ref());
            if let Some(line) = lines.insert(tenant.name.get_ref(), self.line(&tenant.name)) {
                let problem = format!("line {line} has the same tenant; write one entry for each");
                return Err(self.invalid(&tenant.name, &entry, problem));
            }
            let limit = tenant.limit.unwrap_or(u32::MAX);
            if let Some(at) = tenant.guaranteed.as_ref().filter(|g| *g.get_ref() > limit) {
                let problem =
                    format!("guaranteed is {}, more than the limit of {limit}", at.get_ref());
                return Err(self.invalid(at, &entry, problem));
            }
            let known = |name: &str| raw.host.iter().any(|host| host.name.get_ref() == name);
            if let Some(host) = tenant.hosts.iter().find(|host| !known(host.get_ref())) {
                let problem = format!("there is no host {:?}", host.get_ref());
                return Err(self.invalid(host, &entry, problem));
            }
        }
        Ok(())
    }

    fn check_name(&self, name: &Spanned<String>, kind: &str) -> Result<(), TopoError> {
        let text = name.get_ref();
        let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let plain = !text.is_empty() && text.len() <= NAME_MAX && text.chars().all(good);
        // The name becomes a folder name and must not leave the parent folder.
        if plain && !text.starts_with('.') {
            return Ok(());
        }
        let problem = format!(
            "a name has 1 to {NAME_MAX} letters, digits, '.', '_' or '-' and does not begin with '.'"
        );
        Err(self.invalid(name, &format!("{kind} {text:?}"), problem))
    }

    fn check_addresses(&self, raw: &RawFabric, fabric: &Fabric) -> Result<(), TopoError> {
        let mut hosts = HashMap::new();
        for (raw, host) in raw.host.iter().zip(&fabric.hosts) {
            if let Some(other) = hosts.insert(host.address, &host.name) {
                let problem = format!(
                    "address {} is also that of host {other:?}; give each its own",
                    host.address
                );
                return Err(self.invalid(&raw.address, &format!("host {:?}", host.name), problem));
            }
        }
        let mut udp = HashMap::new();
        let controllers = std::iter::once(fabric.controller).chain(fabric.standbys.iter().copied());
        let mut tcp: HashMap<SocketAddr, String> =
            controllers.map(|address| (address, "the controller".to_owned())).collect();
        let switches = raw.switch.iter().zip(&fabric.switches).map(|(raw, switch)| {
            let entry = format!("switch {:?}", switch.name);
            (entry, &raw.address, &raw.metrics, switch.address, switch.metrics)
        });
        let servers = raw.server.iter().zip(&fabric.servers).map(|(raw, server)| {
            let entry = format!("server {:?}", server.name);
            (entry, &raw.address, &raw.metrics, server.address, server.metrics)
        });
        for (entry, at, metrics_at, address, metrics) in switches.chain(servers) {
            if let Some(other) = udp.insert(address, entry.clone()) {
                let problem =
                    format!("address {address} is also that of {other}; give each its own");
                return Err(self.invalid(at, &entry, problem));
            }
            let (Some(text), Some(metrics)) = (metrics_at, metrics) else {
                continue;
            };
            if let Some(other) = tcp.insert(metrics, format!("the metrics of {entry}")) {
                let problem =
                    format!("metrics {metrics} is also the address of {other}; give each its own");
                return Err(self.invalid(text, &entry, problem));
            }
        }
        for (raw, server) in raw.server.iter().zip(&fabric.servers) {
            if fabric.host_of(server).is_none() {
                let problem = format!(
                    "no host has the address {}; a server runs on a host of the fabric",
                    server.address.ip()
                );
                let entry = format!("server {:?}", server.name);
                return Err(self.invalid(&raw.address, &entry, problem));
            }
        }
        Ok(())
    }

    fn check_links(&self, raw: &RawFabric) -> Result<(), TopoError> {
        let hosts = raw.host.iter().map(|host| (host.name.get_ref().as_str(), NodeKind::Host));
        let switches =
            raw.switch.iter().map(|switch| (switch.name.get_ref().as_str(), NodeKind::Switch));
        let kinds: HashMap<&str, NodeKind> = hosts.chain(switches).collect();
        let mut seen = HashSet::new();
        for link in &raw.link {
            let [a, b] = link.ends.get_ref();
            let fail = |problem: String| Err(self.invalid(&link.ends, &link_entry(link), problem));
            if let Some(unknown) =
                [a, b].into_iter().find(|name| !kinds.contains_key(name.as_str()))
            {
                return fail(format!(
                    "no host or switch is named {unknown:?}; add it, or correct the name"
                ));
            }
            if a == b {
                return fail("both ends are the same; a link joins two".to_owned());
            }
            if [a, b].into_iter().all(|name| kinds[name.as_str()] == NodeKind::Host) {
                return fail(
                    "both ends are hosts, and hosts do not forward; put a switch between them"
                        .to_owned(),
                );
            }
            if !seen.insert(if a < b { (a, b) } else { (b, a) }) {
                return fail(
                    "this link is there already; write one link with the sum of the rates"
                        .to_owned(),
                );
            }
        }
        Ok(())
    }

    fn check_reach(&self, raw: &RawFabric, fabric: &Fabric) -> Result<(), TopoError> {
        let Some(first) = raw.host.first() else {
            let problem = "there is no [[host]]; a fabric needs at least one".to_owned();
            return Err(self.invalid(&raw.name, &format!("fabric {:?}", fabric.name), problem));
        };
        let graph = fabric.topology();
        let start = graph.find(first.name.get_ref()).expect("every host is in the graph");
        let reached: HashSet<_> = graph.reachable(start).into_iter().collect();
        let hosts = raw.host.iter().map(|host| (&host.name, "host"));
        let switches = raw.switch.iter().map(|switch| (&switch.name, "switch"));
        for (name, kind) in hosts.chain(switches) {
            let entry = format!("{kind} {:?}", name.get_ref());
            let id = graph.find(name.get_ref()).expect("every entry is in the graph");
            if graph.neighbours(id).is_empty() {
                let problem =
                    format!("it has no link; add a [[link]] with {:?} at one end", name.get_ref());
                return Err(self.invalid(name, &entry, problem));
            }
            if !reached.contains(&id) {
                let problem = format!(
                    "no path leads to it from host {:?}; add the missing [[link]]",
                    first.name.get_ref()
                );
                return Err(self.invalid(name, &entry, problem));
            }
        }
        Ok(())
    }

    /// The controllers, separated by commas: the first, and the others.
    fn controllers(
        &self,
        raw: &Spanned<String>,
    ) -> Result<(SocketAddr, Vec<SocketAddr>), TopoError> {
        let mut all = Vec::new();
        for text in raw.get_ref().split(',') {
            let one = Spanned::new(raw.span(), text.trim().to_owned());
            let address = self.read(&one, "controller", SOCKET_HELP)?;
            self.check_port(raw, "controller", address)?;
            if all.contains(&address) {
                let problem = format!("{address} is given twice; give each controller its own");
                return Err(self.invalid(raw, "controller", problem));
            }
            all.push(address);
        }
        Ok((all.remove(0), all))
    }

    fn check_port(
        &self,
        at: &Spanned<String>,
        entry: &str,
        address: SocketAddr,
    ) -> Result<(), TopoError> {
        if address.port() != 0 && !address.ip().is_unspecified() {
            return Ok(());
        }
        let problem = format!(
            "others could not find {address}; write the machine's own address and a port above 0"
        );
        Err(self.invalid(at, entry, problem))
    }

    fn read<T: FromStr>(
        &self,
        text: &Spanned<String>,
        entry: &str,
        help: &str,
    ) -> Result<T, TopoError> {
        let problem = |_| {
            self.invalid(text, entry, format!("{:?} is not an address; {help}", text.get_ref()))
        };
        text.get_ref().parse().map_err(problem)
    }

    fn unit<T: FromStr<Err = TopoError>>(
        &self,
        text: &Spanned<String>,
        entry: &str,
        field: &str,
    ) -> Result<T, TopoError> {
        text.get_ref()
            .parse()
            .map_err(|error: TopoError| self.invalid(text, entry, format!("{field}: {error}")))
    }

    fn invalid<T>(&self, at: &Spanned<T>, entry: &str, problem: String) -> TopoError {
        TopoError::Invalid {
            file: self.file.to_owned(),
            line: self.line(at),
            entry: entry.to_owned(),
            problem,
        }
    }

    fn line<T>(&self, at: &Spanned<T>) -> usize {
        self.text[..at.span().start].matches('\n').count() + 1
    }
}

fn link_entry(link: &RawLink) -> String {
    let [a, b] = link.ends.get_ref();
    format!("link {a:?}–{b:?}")
}

const SOCKET_HELP: &str = "write address:port, like \"10.0.0.1:7701\"";

/// With the default payload a gigabyte and a half.
const SLOTS_MAX: u32 = 1 << 20;

/// Long enough for any host name label; short enough for tables and folder names.
const NAME_MAX: usize = 63;
