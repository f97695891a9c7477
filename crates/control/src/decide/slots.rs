//! Selects the protocol of a plan, and makes plans of slot protocols: racks below servers, or a pool at one switch.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use netsum_lease::FAN_IN_MAX;
use netsum_proto::policer::{Owner, RateLimit};
use netsum_topo::{
    AggregationTree, Child, NodeId, Parent, Protocol, SlotPolicy, SumOrder, Tenant, TreeNode,
};

use super::job::Job;
use super::propose::{Fit, Proposal, Usable, WINDOW_WANTED};
use super::state::State;

impl State {
    /// Proposes the job's next plan for one protocol.
    pub(super) fn propose_as(&self, job: &Job, protocol: Protocol) -> Proposal {
        let placement: Option<Vec<NodeId>> = job.members.iter().map(|member| member.host).collect();
        let Some(placement) = placement else {
            let reason = "a host of the job is not in the fabric file any more".to_owned();
            return self.no_trees(job, protocol, reason);
        };
        if job.gives_up_trees() {
            let reason = "no tree answers on the data plane".to_owned();
            return self.no_trees(job, protocol, reason);
        }
        if let Some(reason) = &job.yielded {
            return self.no_trees(job, protocol, reason.clone());
        }
        match protocol {
            Protocol::Panama => self.propose_panama(job, &placement),
            Protocol::Atp => self.propose_atp(job, &placement),
            Protocol::Switchml => self.propose_switchml(job, &placement),
        }
    }

    /// Selects the protocol of a job with protocol `auto`, with the reason. `panama` adds reals without conversion and
    /// needs no server, so it is used as long as switches have memory for its windows. Its leases reserve memory
    /// exclusively: where tenants use most of the memory, `atp` shares the rest and sends what does not fit to servers.
    pub(super) fn choose(&self, job: &Job) -> Proposal {
        let panama = self.propose_as(job, Protocol::Panama);
        let chosen = |proposal, choice| Proposal { choice, ..proposal };
        if self.fabric.servers.is_empty() {
            let why = "the fabric has no server, which atp needs".to_owned();
            return chosen(panama, why);
        }
        let (trees, window) = (panama.trees.len(), panama.window_max);
        if trees > 0 && window >= WINDOW_WANTED {
            let why = format!(
                "switches have memory for {trees} trees with {window} fragments in flight on each, and it adds \
                 reals as they are"
            );
            return chosen(panama, why);
        }
        let atp = self.propose_as(job, Protocol::Atp);
        match (atp.trees.is_empty(), trees) {
            (true, _) => {
                let why = format!("atp cannot be had: {}", atp.reason);
                chosen(panama, why)
            }
            (false, 0) => {
                let why = format!("panama has no tree: {}", panama.reason);
                chosen(atp, why)
            }
            (false, _) => {
                let why = format!(
                    "memory is scarce: panama would have {window} fragments in flight, fewer than \
                     {WINDOW_WANTED}; servers end what finds no slot"
                );
                chosen(atp, why)
            }
        }
    }

    /// One tree per server, up to the job's limit, the servers with the least load first.
    pub(super) fn propose_atp(&self, job: &Job, placement: &[NodeId]) -> Proposal {
        let protocol = Protocol::Atp;
        let load = self.load(job.id);
        let mut servers: Vec<NodeId> = self.topology.servers().collect();
        servers.sort_by_key(|server| (load.get(server).copied().unwrap_or(0), *server));
        let wanted = servers.len().min(job.spec.max_trees as usize);
        if wanted == 0 {
            let reason = "protocol atp needs a server; add a [[server]] to the fabric file";
            return self.no_trees(job, protocol, reason.to_owned());
        }
        let racks = placement.iter().filter_map(|&host| self.rack_of(host));
        let of_servers = servers.iter().filter_map(|&server| self.rack_of_server(server));
        let all: BTreeSet<NodeId> =
            servers.iter().copied().chain(racks).chain(of_servers).collect();
        let Usable { live, down, mut causes } = self.usable(job, &all, true);
        causes.splice(0..0, down);
        servers.retain(|server| live.contains(server));
        let mut trees: Vec<AggregationTree> = servers
            .iter()
            .take(wanted)
            .map(|&server| self.tree_below(server, placement, &live))
            .collect();
        trees.retain(|tree| match widest(tree) {
            width if width > FAN_IN_MAX => {
                causes.push(format!(
                    "{width} members at one level below {}, {FAN_IN_MAX} is the most",
                    self.name(tree.root)
                ));
                false
            }
            _ => true,
        });
        let fragment_bytes = self.slot_fragment(job, &trees);
        let Fit { window_max, short } = self.fit(
            job,
            protocol,
            &mut trees,
            fragment_bytes,
            self.settings.slots_max,
            &mut causes,
        );
        // A rack's switch that is down justifies a new plan once it returns.
        let complete = trees.len() >= wanted && causes.is_empty();
        let reason = match complete {
            true => String::new(),
            false => format!("{} of {wanted} servers: {}", trees.len(), causes.join("; ")),
        };
        let slot_space = self.slot_space(job, &trees);
        let copies = self.has_copies(job, &trees);
        if copies {
            trees.extend_from_within(..);
        }
        Proposal {
            protocol,
            choice: String::new(),
            slot_space,
            trees,
            copies,
            order: job.order.clone().unwrap_or_else(|| SumOrder::flat(job.spec.size)),
            fragment_bytes,
            window_max,
            reason,
            short,
        }
    }

    /// A pool at the switch nearest to all workers.
    pub(super) fn propose_switchml(&self, job: &Job, placement: &[NodeId]) -> Proposal {
        let protocol = Protocol::Switchml;
        if placement.len() > FAN_IN_MAX {
            let reason =
                format!("a pool has at most {FAN_IN_MAX} workers, the job {}", placement.len());
            return self.no_trees(job, protocol, reason);
        }
        let all = self.topology.switches().collect();
        let Usable { live, down, mut causes } = self.usable(job, &all, true);
        causes.splice(0..0, down);
        let load = self.load(job.id);
        let hops: Vec<BTreeMap<NodeId, u32>> =
            placement.iter().map(|&host| self.hops(host)).collect();
        let cost = |switch: &NodeId| -> u32 {
            hops.iter().map(|hops| hops.get(switch).copied().unwrap_or(FAR)).sum()
        };
        let nearest = |among: &mut dyn Iterator<Item = NodeId>| {
            among.min_by_key(|switch| {
                (cost(switch), load.get(switch).copied().unwrap_or(0), *switch)
            })
        };
        let ideal = nearest(&mut self.topology.switches());
        let best = nearest(&mut self.topology.switches().filter(|switch| live.contains(switch)));
        let children = (0..job.spec.size).map(Child::Rank).collect();
        let node = |switch| TreeNode { switch, children, parent: None };
        let tree = best.map(|root| AggregationTree { root, nodes: vec![node(root)] });
        let mut trees: Vec<AggregationTree> = tree.into_iter().collect();
        let fragment_bytes = self.slot_fragment(job, &trees);
        let tenant = self.tenant_of(job);
        let most = match tenant.guaranteed {
            0 => self.settings.slots_max.min(tenant.limit),
            slots => slots,
        };
        let Fit { window_max, short } =
            self.fit(job, protocol, &mut trees, fragment_bytes, most, &mut causes);
        let as_good = trees.iter().any(|tree| Some(cost(&tree.root)) == ideal.map(|s| cost(&s)));
        let reason = match as_good {
            true => String::new(),
            false => format!("{} of 1 pools: {}", trees.len(), causes.join("; ")),
        };
        let copies = self.has_copies(job, &trees);
        if copies {
            trees.extend_from_within(..);
        }
        Proposal {
            protocol,
            choice: String::new(),
            slot_space: 0,
            trees,
            copies,
            order: job.order.clone().unwrap_or_else(|| SumOrder::flat(job.spec.size)),
            fragment_bytes,
            window_max,
            reason,
            short,
        }
    }

    /// A server's tree: the switch of its rack, other racks of at least two workers with a switch that aggregates, and
    /// the remaining workers alone.
    fn tree_below(
        &self,
        server: NodeId,
        placement: &[NodeId],
        live: &std::collections::HashSet<NodeId>,
    ) -> AggregationTree {
        let adds = |rack: Option<NodeId>| rack.filter(|rack| live.contains(rack));
        let middle = adds(self.rack_of_server(server));
        let mut groups: BTreeMap<NodeId, Vec<u32>> = BTreeMap::new();
        let mut members: Vec<(u32, Child)> = Vec::new();
        for (rank, &host) in (0..).zip(placement) {
            match adds(self.rack_of(host)).filter(|rack| Some(*rack) != middle) {
                Some(rack) => groups.entry(rack).or_default().push(rank),
                None => members.push((rank, Child::Rank(rank))),
            }
        }
        groups.retain(|_, ranks| {
            let alone = ranks.len() == 1;
            members.extend(ranks.iter().filter(|_| alone).map(|&rank| (rank, Child::Rank(rank))));
            !alone
        });
        members.extend(groups.iter().map(|(&rack, ranks)| (ranks[0], Child::Switch(rack))));
        members.sort_by_key(|&(rank, _)| rank);
        let members: Vec<Child> = members.into_iter().map(|(_, child)| child).collect();
        let below = |switch| Some(Parent { switch, via: Vec::new() });
        let mut nodes = match middle {
            Some(middle) => vec![
                TreeNode { switch: server, children: vec![Child::Switch(middle)], parent: None },
                TreeNode { switch: middle, children: members, parent: below(server) },
            ],
            None => vec![TreeNode { switch: server, children: members, parent: None }],
        };
        // A single switch below the server is the middle, and its workers are racks of one.
        let parent = below(middle.unwrap_or(server));
        nodes.extend(groups.into_iter().map(|(switch, ranks)| TreeNode {
            switch,
            children: ranks.into_iter().map(Child::Rank).collect(),
            parent: parent.clone(),
        }));
        AggregationTree { root: server, nodes }
    }

    /// The fragment size that fits into the slots of all switches.
    fn slot_fragment(&self, job: &Job, trees: &[AggregationTree]) -> u32 {
        let nodes = trees.iter().flat_map(|tree| &tree.nodes);
        let slots = nodes.map(|node| self.switches[&node.switch].hello.slot_bytes).min();
        let usual = self.fragment_bytes(job, trees).min(slots.unwrap_or(u32::MAX)) / 4 * 4;
        job.fragment_bytes.unwrap_or(usual)
    }

    /// The slot number space common to all switches of the plan.
    fn slot_space(&self, job: &Job, trees: &[AggregationTree]) -> u32 {
        let servers = trees.len().max(1) as u32;
        let own = self.tenant_of(job).guaranteed / servers;
        let nodes = trees.iter().flat_map(|tree| &tree.nodes);
        let switches = nodes.map(|node| &self.switches[&node.switch].hello);
        let space = switches.filter(|hello| !hello.server).map(|hello| {
            match hello.policy.parse() == Ok(SlotPolicy::Partition) {
                true => own.min(hello.slots),
                false => hello.slots,
            }
        });
        space.min().unwrap_or(1).max(1)
    }

    pub(super) fn tenant_of(&self, job: &Job) -> Tenant {
        let tenant = &job.spec.tenant;
        self.fabric.tenant(tenant).unwrap_or_else(|| Tenant::named(tenant))
    }

    /// Whom the packets of a job count for at switches. Without tenants in the fabric file each job stands for itself.
    pub(super) fn owner_of(&self, job: &Job) -> Owner {
        let Tenant { name, rate, packets_per_second, .. } = self.tenant_of(job);
        let limit = RateLimit {
            bytes_per_s: rate.map(|rate| rate.0 / 8),
            packets_per_s: packets_per_second,
        };
        let tenant = (!self.fabric.tenants.is_empty()).then(|| name.into());
        Owner { tenant, limit }
    }

    /// The switch that a host is attached to.
    fn rack_of(&self, host: NodeId) -> Option<NodeId> {
        let neighbours = self.topology.neighbours(host).iter();
        neighbours.map(|&(other, _)| other).find(|&other| self.topology.is_switch(other))
    }

    fn rack_of_server(&self, server: NodeId) -> Option<NodeId> {
        let server = self.fabric.server(self.name(server))?;
        let host = self.fabric.host_of(server)?;
        self.rack_of(self.topology.find(&host.name)?)
    }

    /// Number of links from a host to each switch.
    fn hops(&self, host: NodeId) -> BTreeMap<NodeId, u32> {
        let mut hops = BTreeMap::from([(host, 0)]);
        let mut queue = VecDeque::from([host]);
        while let Some(here) = queue.pop_front() {
            if here != host && !self.topology.is_switch(here) {
                continue;
            }
            for &(other, _) in self.topology.neighbours(here) {
                if !hops.contains_key(&other) {
                    hops.insert(other, hops[&here] + 1);
                    queue.push_back(other);
                }
            }
        }
        hops
    }
}

/// Maximum number of members of a level; a single switch below the server is the middle.
fn widest(tree: &AggregationTree) -> usize {
    tree.nodes.iter().map(|node| node.children.len()).max().unwrap_or(0)
}

/// Larger than any path length in a fabric.
const FAR: u32 = 1 << 20;
