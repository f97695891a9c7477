//! Builders of common fabrics.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::error::TopoError;
use crate::fabric::{Fabric, Host, Link, SLOTS_USUAL, Switch};
use crate::plan::SlotPolicy;
use crate::units::{Bytes, Rate};

/// Listening addresses of a built fabric's processes.
///
/// Controller `base.0.1:7700`; host i at `base.(1 + i/250).(1 + i%250)`; switch i at
/// `base.(128 + i/250).(1 + i%250):7701`, its metrics at port 9100 there. After 31,750 of each the second byte of the
/// base counts on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addressing {
    /// The first two bytes of every address, as `[127, 77]`.
    pub base: [u8; 2],
    /// Aggregation memory of every switch.
    pub memory: Bytes,
    /// Whether switches serve metrics.
    pub metrics: bool,
}

impl Default for Addressing {
    /// Loopback addresses `127.77.x.x`, 64 MiB per switch, no metrics.
    fn default() -> Addressing {
        Addressing { base: [127, 77], memory: Bytes(64 << 20), metrics: false }
    }
}

/// Racks `rack0…` of hosts `h0…` (rack by rack), each rack switch linked to every spine `spine0…`.
///
/// `rate` is that of a host's link, `uplink_rate` that of each rack–spine link. Without spines there can be one rack
/// only. Errors: a zero, more nodes than the addressing holds, or more than a million links between switches.
pub fn leaf_spine(
    racks: u32,
    hosts_per_rack: u32,
    spines: u32,
    rate: Rate,
    uplink_rate: Rate,
    addressing: Addressing,
) -> Result<Fabric, TopoError> {
    let shape = format!("a leaf-spine of {racks} racks × {hosts_per_rack} hosts, {spines} spines");
    racks_and_spines(shape, [racks, hosts_per_rack, spines], [rate, uplink_rate], addressing)
}

fn racks_and_spines(
    shape: String,
    [racks, hosts_per_rack, spines]: [u32; 3],
    [rate, uplink_rate]: [Rate; 2],
    addressing: Addressing,
) -> Result<Fabric, TopoError> {
    if racks > 1 && spines == 0 {
        return Err(TopoError::Shape {
            shape,
            problem: "several racks need at least one spine".to_owned(),
        });
    }
    let [hosts, uplinks] = [hosts_per_rack, spines].map(|n| u64::from(racks) * u64::from(n));
    let size = Size { hosts, switches: u64::from(racks) + u64::from(spines), uplinks };
    let mut builder = Builder::new("leaf-spine", addressing, shape, size)?;
    for rack in 0..racks {
        let rack_name = builder.switch(format!("rack{rack}"));
        for _ in 0..hosts_per_rack {
            builder.host_at(&rack_name, rate);
        }
    }
    for spine in 0..spines {
        let spine_name = builder.switch(format!("spine{spine}"));
        for rack in 0..racks {
            builder.link(&format!("rack{rack}"), &spine_name, uplink_rate);
        }
    }
    builder.finish()
}

/// Hosts `h0…` at one switch `rack0`. Errors as [`leaf_spine`].
pub fn single_switch(hosts: u32, rate: Rate, addressing: Addressing) -> Result<Fabric, TopoError> {
    let shape = format!("a single switch of {hosts} hosts");
    racks_and_spines(shape, [1, hosts, 0], [rate; 2], addressing)
}

/// `pairs` hosts `h0…` at switch `left`, as many at `right`, one link between the two: the
/// bottleneck that congestion control is measured on. Errors as [`leaf_spine`].
pub fn dumbbell(
    pairs: u32,
    rate: Rate,
    bottleneck: Rate,
    addressing: Addressing,
) -> Result<Fabric, TopoError> {
    let size = Size { hosts: 2 * u64::from(pairs), switches: 2, uplinks: 1 };
    let shape = format!("a dumbbell of {pairs} pairs");
    let mut builder = Builder::new("dumbbell", addressing, shape, size)?;
    for side in ["left", "right"] {
        let switch = builder.switch(side.to_owned());
        for _ in 0..pairs {
            builder.host_at(&switch, rate);
        }
    }
    builder.link("left", "right", bottleneck);
    builder.finish()
}

/// The k-ary fat tree: k pods of k/2 rack and k/2 aggregation switches, (k/2)² cores, k³/4 hosts,
/// every link of the same rate.
///
/// Rack switches `rackP.E`, aggregation switches `aggP.A`, cores `coreA.C`: core A.C is linked to
/// switch A of every pod. Errors: an odd or zero k, or more nodes than the addressing holds.
pub fn fat_tree(k: u32, rate: Rate, addressing: Addressing) -> Result<Fabric, TopoError> {
    let shape = format!("a fat tree with k = {k}");
    if k == 0 || k % 2 == 1 || k > FAT_TREE_MAX {
        let problem = format!("k must be even, from 2 to {FAT_TREE_MAX}");
        return Err(TopoError::Shape { shape, problem });
    }
    let half = k / 2;
    let hosts = u64::from(k * half * half);
    let size = Size { hosts, switches: u64::from(k * k + half * half), uplinks: 2 * hosts };
    let mut builder = Builder::new("fat-tree", addressing, shape, size)?;
    for pod in 0..k {
        for edge in 0..half {
            let rack = builder.switch(format!("rack{pod}.{edge}"));
            for _ in 0..half {
                builder.host_at(&rack, rate);
            }
        }
    }
    for pod in 0..k {
        for agg in 0..half {
            let name = builder.switch(format!("agg{pod}.{agg}"));
            for edge in 0..half {
                builder.link(&format!("rack{pod}.{edge}"), &name, rate);
            }
        }
    }
    for agg in 0..half {
        for core in 0..half {
            let name = builder.switch(format!("core{agg}.{core}"));
            for pod in 0..k {
                builder.link(&format!("agg{pod}.{agg}"), &name, rate);
            }
        }
    }
    builder.finish()
}

/// Size of the fabric to be built; `uplinks` are the links between switches.
struct Size {
    hosts: u64,
    switches: u64,
    uplinks: u64,
}

struct Builder {
    fabric: Fabric,
    addressing: Addressing,
    shape: String,
}

impl Builder {
    /// Checks sizes before anything is built.
    fn new(
        name: &str,
        addressing: Addressing,
        shape: String,
        size: Size,
    ) -> Result<Builder, TopoError> {
        let [a, b] = addressing.base;
        let most = ADDRESSES * (256 - u64::from(b));
        let problem = if size.hosts == 0 {
            "there must be at least one host".to_owned()
        } else if size.hosts > most || size.switches > most {
            format!("the addressing holds {most} hosts and {most} switches; build a smaller one")
        } else if size.uplinks > UPLINKS_MAX {
            format!("at most {UPLINKS_MAX} links between switches; build a smaller one")
        } else {
            String::new()
        };
        if !problem.is_empty() {
            return Err(TopoError::Shape { shape, problem });
        }
        let controller = SocketAddr::from((Ipv4Addr::new(a, b, 0, 1), 7700));
        let fabric = Fabric {
            name: name.to_owned(),
            controller,
            standbys: Vec::new(),
            trusted: false,
            hosts: Vec::new(),
            switches: Vec::new(),
            links: Vec::new(),
            servers: Vec::new(),
            tenants: Vec::new(),
        };
        Ok(Builder { fabric, addressing, shape })
    }

    fn host_at(&mut self, switch: &str, rate: Rate) {
        let index = self.fabric.hosts.len();
        let name = format!("h{index}");
        self.fabric
            .hosts
            .push(Host { name: name.clone(), address: self.address(HOST_BASE, index) });
        self.link(&name, switch, rate);
    }

    fn switch(&mut self, name: String) -> String {
        let ip = self.address(SWITCH_BASE, self.fabric.switches.len());
        self.fabric.switches.push(Switch {
            name: name.clone(),
            address: SocketAddr::new(ip, 7701),
            memory: self.addressing.memory,
            metrics: self.addressing.metrics.then(|| SocketAddr::new(ip, 9100)),
            slots: SLOTS_USUAL,
            policy: SlotPolicy::default(),
        });
        name
    }

    fn link(&mut self, a: &str, b: &str, rate: Rate) {
        self.fabric.links.push(Link { ends: [a.to_owned(), b.to_owned()], rate, latency: None });
    }

    fn address(&self, third: usize, index: usize) -> IpAddr {
        let [a, b] = self.addressing.base;
        let (above, index) = (index / ADDRESSES as usize, index % ADDRESSES as usize);
        let second = b + above as u8;
        Ipv4Addr::new(a, second, (third + index / PER_BYTE) as u8, (1 + index % PER_BYTE) as u8)
            .into()
    }

    fn finish(self) -> Result<Fabric, TopoError> {
        Fabric::parse(&self.fabric.to_toml(), &self.shape)
    }
}

/// Third address byte of the first host and of the first switch; 250 of each per byte.
const HOST_BASE: usize = 1;
const SWITCH_BASE: usize = 128;
const PER_BYTE: usize = 250;
/// Number of addresses for hosts, and for switches, for each second byte.
const ADDRESSES: u64 = (PER_BYTE * (SWITCH_BASE - HOST_BASE)) as u64;
/// Links between switches: far beyond any machine, and some hundred megabytes.
const UPLINKS_MAX: u64 = 1 << 20;

/// 524,288 hosts: more than anybody simulates, and far from overflow.
const FAT_TREE_MAX: u32 = 128;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::NodeKind;

    const RATE: Rate = Rate(10_000_000_000);

    #[test]
    fn fat_tree_counts() {
        for k in [2u32, 4, 8] {
            let graph = fat_tree(k, RATE, Addressing::default()).unwrap().topology();
            assert_eq!(graph.hosts().count() as u32, k * k * k / 4);
            assert_eq!(graph.switches().count() as u32, k * k + k * k / 4);
            assert_eq!(graph.edges().count() as u32, 3 * k * k * k / 4);
            for (id, node) in graph.nodes() {
                let degree = if node.kind == NodeKind::Host { 1 } else { k };
                assert_eq!(graph.neighbours(id).len() as u32, degree, "{}", node.name);
            }
        }
    }

    #[test]
    fn study_sized_fat_tree() {
        let fabric = fat_tree(16, RATE, Addressing::default()).unwrap();
        assert_eq!((fabric.hosts.len(), fabric.switches.len()), (1024, 320));
    }

    #[test]
    fn addresses_go_on_in_the_second_byte() {
        let fabric = single_switch(40_000, RATE, Addressing::default()).unwrap();
        let at = |host: usize| fabric.hosts[host].address.to_string();
        assert_eq!((at(31_749), at(31_750)), ("127.77.127.250".into(), "127.78.1.1".into()));
        let different: std::collections::HashSet<_> = (0..40_000).map(at).collect();
        assert_eq!(different.len(), 40_000);
    }

    #[test]
    fn a_dumbbell_has_one_path_across() {
        let graph =
            dumbbell(3, RATE, Rate(1_000_000_000), Addressing::default()).unwrap().topology();
        let [left, right] = ["left", "right"].map(|name| graph.find(name).unwrap());
        assert_eq!(graph.edge(graph.edge_between(left, right).unwrap()).rate_bps, 1_000_000_000);
        let at = |switch| graph.hosts().filter(|&h| graph.neighbours(h)[0].0 == switch).count();
        assert_eq!((at(left), at(right), graph.edges().count()), (3, 3, 7));
    }

    /// Each of these would exhaust memory if it were built first.
    #[test]
    fn oversized_fabrics_are_refused_before_they_are_built() {
        let (most, addressing) = (u32::MAX, Addressing::default());
        for result in [
            single_switch(most, RATE, addressing),
            dumbbell(most, RATE, RATE, addressing),
            leaf_spine(most, most, most, RATE, RATE, addressing),
            leaf_spine(65_535, 0, 65_535, RATE, RATE, addressing),
            leaf_spine(1, 1, most, RATE, RATE, addressing),
            leaf_spine(15_000, 1, 15_000, RATE, RATE, addressing),
            fat_tree(most - 1, RATE, addressing),
        ] {
            assert!(matches!(result, Err(TopoError::Shape { .. })));
        }
    }

    #[test]
    fn impossible_shapes_are_named() {
        let fail = |result: Result<Fabric, TopoError>| result.unwrap_err().to_string();
        assert!(fail(fat_tree(3, RATE, Addressing::default())).contains("k must be even"));
        assert!(
            fail(leaf_spine(2, 2, 0, RATE, RATE, Addressing::default()))
                .contains("at least one spine")
        );
        assert!(
            fail(leaf_spine(0, 2, 1, RATE, RATE, Addressing::default()))
                .contains("at least one host")
        );
        assert!(
            fail(leaf_spine(2, 2, 1, RATE, Rate(0), Addressing::default())).contains("rate is 0")
        );
        let most = fail(single_switch(10_000_000, RATE, Addressing::default()));
        assert!(most.contains("holds 5683250 hosts"), "{most}");
        assert_eq!(
            fail(single_switch(0, RATE, Addressing::default())),
            "cannot build a single switch of 0 hosts: there must be at least one host"
        );
    }
}
