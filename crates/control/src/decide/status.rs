//! The controller's state as messages for users and tools.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};

use netsum_topo::{NodeId, Topology};

use super::event::SessionId;
use super::job::{Job, Member, MemberState, Phase};
use super::paths::paths_to_parent;
use super::state::{State, SwitchCondition, SwitchState};
use crate::convert::plan_message;
use crate::pb;

impl State {
    /// The whole state at `now_ms`; the server adds its address and the state of its store.
    pub fn status(&self, now_ms: u64) -> pb::StatusReply {
        pb::StatusReply {
            fabric: self.fabric.name.clone(),
            address: String::new(),
            version: VERSION.to_owned(),
            incarnation: self.incarnation,
            store: None,
            term: 0,
            uptime_s: now_ms as f64 / 1000.0,
            hosts: self.hosts(),
            switches: self
                .switches
                .iter()
                .map(|(&id, state)| self.switch_status(now_ms, id, state))
                .collect(),
            links: self.links(),
            jobs: self.jobs.values().map(|job| self.job_status(job)).collect(),
        }
    }

    /// The ranks of a job that have a stream; `None`: there is no such job.
    pub fn connected_ranks(&self, job: u32) -> Option<Vec<(u32, SessionId)>> {
        let members = (0..).zip(&self.jobs.get(&job)?.members);
        let connected = members.filter_map(|(rank, member)| match member.state {
            MemberState::Connected(session) => Some((rank, session)),
            _ => None,
        });
        Some(connected.collect())
    }

    /// The fabric's name and hosts.
    pub fn fabric_reply(&self) -> pb::FabricReply {
        pb::FabricReply {
            name: self.fabric.name.clone(),
            hosts: self.hosts(),
            version: VERSION.to_owned(),
            incarnation: self.incarnation,
        }
    }

    /// Hosts in the order of the fabric file.
    pub fn hosts(&self) -> Vec<pb::Host> {
        let hosts = self.fabric.hosts.iter();
        hosts
            .map(|host| pb::Host { name: host.name.clone(), address: host.address.to_string() })
            .collect()
    }

    /// Jobs without counters; `ended`: including those that are over.
    pub fn job_list(&self, ended: bool) -> Vec<pb::JobSummary> {
        let shown = self.jobs.values().filter(|job| ended || job.phase.is_live());
        shown
            .map(|job| pb::JobSummary {
                job: job.id,
                name: job.spec.name.clone(),
                size: job.spec.size,
                state: phase(job).to_owned(),
                epoch: job.current.as_ref().map_or(0, |plan| plan.epoch.into()),
                trees: job.current.as_ref().map_or(0, |plan| plan.trees.len() as u32),
                reason: job.current.as_ref().map(|plan| plan.reason.clone()).unwrap_or_default(),
                created_unix_s: job.created_unix_s,
                protocol: job.current.as_ref().map(|p| p.protocol.to_string()).unwrap_or_default(),
            })
            .collect()
    }

    /// The last operations of a job's ranks, as far as they have reported any; `None`: there is no such job.
    pub fn operations(&self, job: u32) -> Option<Vec<pb::RankOperations>> {
        let members = (0..).zip(&self.jobs.get(&job)?.members);
        let reported = members.filter(|(_, member)| !member.statistics.recent.is_empty());
        let of_rank = |(rank, member): (u32, &std::sync::Arc<Member>)| pb::RankOperations {
            rank,
            operations: member.statistics.recent.clone(),
        };
        Some(reported.map(of_rank).collect())
    }

    fn switch_status(&self, now_ms: u64, id: NodeId, state: &SwitchState) -> pb::SwitchStatus {
        let address = self.fabric.aggregator_address(self.name(id));
        let host = self.fabric.server(self.name(id)).and_then(|server| self.fabric.host_of(server));
        let names = self.names();
        pb::SwitchStatus {
            name: self.name(id).to_owned(),
            address: address.map(|address| address.to_string()).unwrap_or_default(),
            role: if self.topology.is_switch(id) { "switch" } else { "server" }.to_owned(),
            host: host.map(|host| host.name.clone()).unwrap_or_default(),
            slots: state.hello.slots,
            slots_held: state.counters.slots_held,
            policy: state.hello.policy.clone(),
            rows_used: state.counters.rows_used,
            state: match state.condition {
                SwitchCondition::Expected { .. } => "expected",
                SwitchCondition::Up(_) => "up",
                SwitchCondition::Down => "down",
            }
            .to_owned(),
            state_for_s: now_ms.saturating_sub(state.since_ms) as f64 / 1000.0,
            memory_bytes: state.hello.memory_bytes,
            memory_used_bytes: state.counters.memory_used_bytes,
            memory_reserved_bytes: state.counters.memory_reserved_bytes,
            // No job has the number 0: this is the memory granted to all jobs.
            memory_leased_bytes: self
                .taken(0)
                .get(&id)
                .map_or(0, |taken| taken.reserved.memory_bytes),
            receive_buffer_bytes: state.hello.receive_buffer_bytes,
            mtu: state.hello.mtu,
            trees: state.counters.trees.iter().map(|tree| self.switch_tree(tree, &names)).collect(),
            drops: state.counters.drops.clone(),
            stale_messages: state.counters.stale_messages,
            tenants: state.counters.tenants.clone(),
            neighbours: state
                .counters
                .neighbours
                .iter()
                .map(|counters| neighbour(counters, &names))
                .collect(),
        }
    }

    /// A switch's tree, with names of its children.
    fn switch_tree(&self, tree: &pb::SwitchTree, names: &Names<'_>) -> pb::SwitchTree {
        let mut tree = tree.clone();
        if tree.children.is_empty() {
            return tree;
        }
        let members = self.jobs.get(&tree.job).map(|job| job.members.iter()).unwrap_or_default();
        let ranks: HashMap<SocketAddr, u32> = (0..)
            .zip(members)
            .filter_map(|(rank, member)| Some((member.udp_address?, rank)))
            .collect();
        for child in &mut tree.children {
            let Ok(address) = child.address.parse() else { continue };
            child.name = match (ranks.get(&address), names.find(&child.address)) {
                (Some(rank), _) => format!("rank {rank}"),
                (None, Some(node)) => self.name(node).to_owned(),
                (None, None) => String::new(),
            };
        }
        tree
    }

    fn job_status(&self, job: &Job) -> pb::JobStatus {
        let plan =
            job.current.as_ref().map(|plan| plan_message(plan, &self.fabric, &self.topology));
        let plan = plan.unwrap_or_default();
        let rank_status = |(rank, member): (u32, &std::sync::Arc<Member>)| {
            rank_status(rank, member, &self.topology)
        };
        pb::JobStatus {
            job: job.id,
            name: job.spec.name.clone(),
            size: job.spec.size,
            state: phase(job).to_owned(),
            epoch: plan.epoch,
            order: plan.order,
            trees: plan.trees,
            reason: plan.reason,
            window_max: plan.window_max,
            fragment_bytes: plan.fragment_bytes,
            ranks: (0..).zip(&job.members).map(rank_status).collect(),
            created_unix_s: job.created_unix_s,
            protocol: plan.protocol,
            choice: plan.choice,
            tenant: job.spec.tenant.clone(),
            tags: job.current.is_some() && job.key.is_some(),
            encrypted: job.spec.encrypt,
        }
    }

    /// Bytes per link, from the counters per neighbour of the switches at its ends. Neighbours on a tree with
    /// forwarding switches between them count on each link of that path; if the plan names no path, the network uses
    /// one of the shortest (ECMP), and each of these counts an equal part.
    fn links(&self) -> Vec<pb::LinkStatus> {
        let names = self.names();
        let paths = self.paths();
        let mut sent: BTreeMap<(NodeId, NodeId), u64> = BTreeMap::new();
        // The traffic of servers is counted by their switches.
        let switches = self.switches.iter().filter(|(node, _)| self.topology.is_switch(**node));
        for (&switch, state) in switches {
            for counters in &state.counters.neighbours {
                let Some(other) = names.find(&counters.address) else { continue };
                let direct = vec![vec![switch, other]];
                let possible = paths.get(&(switch, other)).unwrap_or(&direct);
                let part = possible.len() as u64;
                for hop in possible.iter().flat_map(|path| path.windows(2)) {
                    *sent.entry((hop[0], hop[1])).or_default() += counters.tx_bytes / part;
                    if !self.topology.is_switch(other) {
                        *sent.entry((hop[1], hop[0])).or_default() += counters.rx_bytes / part;
                    }
                }
            }
        }
        let bytes = |a, b| sent.get(&(a, b)).copied().unwrap_or(0);
        let up = |end: NodeId| {
            self.switches
                .get(&end)
                .is_none_or(|state| matches!(state.condition, SwitchCondition::Up(_)))
        };
        let links = self.topology.edges().map(|(_, edge)| {
            let [a, b] = edge.ends;
            pb::LinkStatus {
                a: self.name(a).to_owned(),
                b: self.name(b).to_owned(),
                rate_bps: edge.rate_bps,
                bytes_ab: bytes(a, b),
                bytes_ba: bytes(b, a),
                up: up(a) && up(b),
            }
        });
        links.collect()
    }

    /// Paths between tree neighbours that are switches, in both directions.
    fn paths(&self) -> HashMap<(NodeId, NodeId), Vec<Vec<NodeId>>> {
        let mut paths = HashMap::new();
        let trees =
            self.jobs.values().filter_map(|job| job.current.as_ref()).flat_map(|plan| &plan.trees);
        for node in trees.flat_map(|tree| &tree.nodes) {
            let up = paths_to_parent(&self.topology, node);
            let (Some(parent), false) = (&node.parent, up.is_empty()) else { continue };
            let (from, to) = (node.switch, parent.switch);
            let down = up.iter().map(|path: &Vec<_>| path.iter().rev().copied().collect());
            paths.insert((to, from), down.collect());
            paths.insert((from, to), up);
        }
        paths
    }

    fn names(&self) -> Names<'_> {
        let switches = self.fabric.switches.iter();
        let hosts = self.fabric.hosts.iter();
        // A server's traffic is that of its host.
        Names {
            topology: &self.topology,
            switches: switches
                .filter_map(|s| Some((s.address, self.topology.find(&s.name)?)))
                .collect(),
            hosts: hosts.filter_map(|h| Some((h.address, self.topology.find(&h.name)?))).collect(),
        }
    }
}

/// Maps addresses in counters to nodes.
struct Names<'a> {
    topology: &'a Topology,
    switches: HashMap<SocketAddr, NodeId>,
    hosts: HashMap<IpAddr, NodeId>,
}

impl Names<'_> {
    fn find(&self, address: &str) -> Option<NodeId> {
        let address: SocketAddr = address.parse().ok()?;
        self.switches.get(&address).or_else(|| self.hosts.get(&address.ip())).copied()
    }
}

fn neighbour(counters: &pb::Neighbour, names: &Names) -> pb::NeighbourStatus {
    let name = names.find(&counters.address).map(|node| names.topology.name(node).to_owned());
    pb::NeighbourStatus {
        name: name.unwrap_or_default(),
        address: counters.address.clone(),
        rx_packets: counters.rx_packets,
        rx_bytes: counters.rx_bytes,
        tx_packets: counters.tx_packets,
        tx_bytes: counters.tx_bytes,
    }
}

fn rank_status(rank: u32, member: &Member, topology: &Topology) -> pb::RankStatus {
    pb::RankStatus {
        rank,
        host: member.host.map(|host| topology.name(host).to_owned()).unwrap_or_default(),
        pid: member.pid,
        state: match member.state {
            MemberState::Awaited => "awaited",
            MemberState::Connected(_) => "connected",
            MemberState::Away { .. } => "away",
            MemberState::Left => "left",
            MemberState::Lost => "lost",
        }
        .to_owned(),
        udp_address: member.udp_address.map(|address| address.to_string()).unwrap_or_default(),
        statistics: Some(statistics(&member.statistics)),
    }
}

/// A rank's last report without its operations, which would be most of a status.
fn statistics(reported: &pb::WorkerHeartbeat) -> pb::WorkerHeartbeat {
    pb::WorkerHeartbeat {
        trees: reported.trees.clone(),
        pauses: reported.pauses.clone(),
        silent_trees: reported.silent_trees.clone(),
        unreachable_ranks: reported.unreachable_ranks.clone(),
        recent: Vec::new(),
        ..*reported
    }
}

fn phase(job: &Job) -> &'static str {
    match (job.phase, &job.pending, &job.current) {
        (Phase::Joining, ..) => "joining",
        (Phase::Running, Some(_), _) | (Phase::Running, None, None) => "planning",
        (Phase::Running, None, Some(_)) => "running",
        (Phase::Ended, ..) => "ended",
        (Phase::Abandoned, ..) => "abandoned",
    }
}

const VERSION: &str = env!("CARGO_PKG_VERSION");
