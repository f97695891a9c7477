//! Proposes a job's next plan: trees, order, sizes, and the reason for a degraded plan.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use netsum_lease::Terms;
use netsum_plan::{PlanError, Request, aggregation_trees};
use netsum_proto::Reservation;
use netsum_proto::atp::Claim;
use netsum_proto::panama::MAX_CHILDREN;
use netsum_topo::{AggregationTree, EdgeId, NodeId, Plan, Protocol, SumOrder};
use netsum_wire::seal::TRAILER_LEN;
use netsum_wire::{Epoch, HEADERS_MAX, JobId};

use super::job::{Job, LeaseRefusal, Phase};
use super::paths::paths_to_parent;
use super::share::{self, Capacity, Window};
use super::state::State;
use crate::version;

/// A plan without an epoch.
pub(super) struct Proposal {
    pub protocol: Protocol,
    pub choice: String,
    pub slot_space: u32,
    pub trees: Vec<AggregationTree>,
    /// Whether the second half of them are copies.
    pub copies: bool,
    pub order: SumOrder,
    pub fragment_bytes: u32,
    pub window_max: u32,
    pub reason: String,
    /// Switches and servers whose free memory or receive buffer is too small for a tree, or for a window that fills a
    /// link.
    pub short: BTreeSet<NodeId>,
}

/// How many fragments in flight fit.
pub(super) struct Fit {
    /// Of each tree; 0 without trees.
    pub window_max: u32,
    /// As in [`Proposal`].
    pub short: BTreeSet<NodeId>,
}

/// The switches that a job may use.
pub(super) struct Usable {
    pub live: HashSet<NodeId>,
    /// "X is down" for each switch that the job would otherwise use.
    pub down: Vec<String>,
    /// Reasons against other switches that are up.
    pub causes: Vec<String>,
}

impl State {
    /// Proposes the job's next plan.
    pub(super) fn propose(&self, job: &Job) -> Proposal {
        match job.spec.protocol {
            Some(protocol) => self.propose_as(job, protocol),
            None => self.choose(job),
        }
    }

    pub(super) fn propose_panama(&self, job: &Job, placement: &[NodeId]) -> Proposal {
        let all: HashSet<NodeId> = self.topology.switches().collect();
        let ideal = self.trees(job, placement, &all, job.order.as_ref());
        let order = match (&job.order, &ideal) {
            (Some(order), _) => order.clone(),
            (None, Ok(trees)) => trees[0].order(),
            (None, Err(_)) => SumOrder::flat(job.spec.size),
        };
        let ideal = match ideal {
            Ok(trees) => trees,
            Err(error) => {
                let none = self.no_trees(job, Protocol::Panama, error.to_string());
                return Proposal { order, ..none };
            }
        };
        let wanted = ideal.iter().flat_map(AggregationTree::switches).collect();
        let Usable { live, down, mut causes } = self.usable(job, &wanted, false);
        let mut trees = match self.trees(job, placement, &live, Some(&order)) {
            Ok(trees) => {
                causes.splice(0..0, down);
                trees
            }
            // The error names the switches that are down.
            Err(error) => {
                causes.insert(0, error.to_string());
                Vec::new()
            }
        };
        let fragment_bytes = job.fragment_bytes.unwrap_or_else(|| self.fragment_bytes(job, &trees));
        let slots_max = self.settings.slots_max;
        let protocol = Protocol::Panama;
        let Fit { window_max, short } =
            self.fit(job, protocol, &mut trees, fragment_bytes, slots_max, &mut causes);
        let reason = match ideal.len() {
            wanted if trees.len() >= wanted => String::new(),
            wanted => format!("{} of {wanted} trees: {}", trees.len(), causes.join("; ")),
        };
        let (choice, slot_space) = (String::new(), 0);
        let copies = self.has_copies(job, &trees);
        if copies {
            trees.extend_from_within(..);
        }
        Proposal {
            protocol,
            choice,
            slot_space,
            trees,
            copies,
            order,
            fragment_bytes,
            window_max,
            reason,
            short,
        }
    }

    pub(super) fn no_trees(&self, job: &Job, protocol: Protocol, reason: String) -> Proposal {
        Proposal {
            protocol,
            choice: String::new(),
            slot_space: 0,
            trees: Vec::new(),
            copies: self.has_copies(job, &[]),
            order: job.order.clone().unwrap_or_else(|| SumOrder::flat(job.spec.size)),
            fragment_bytes: job.fragment_bytes.unwrap_or_else(|| self.fragment_bytes(job, &[])),
            window_max: 0,
            reason,
            short: BTreeSet::new(),
        }
    }

    /// The trees of a job, without copies.
    fn trees(
        &self,
        job: &Job,
        placement: &[NodeId],
        live: &HashSet<NodeId>,
        order: Option<&SumOrder>,
    ) -> Result<Vec<AggregationTree>, PlanError> {
        let (load, links) = (&self.load(job.id), &self.link_load(job.id));
        let (topology, max_trees) = (&self.topology, job.spec.max_trees as usize);
        aggregation_trees(&Request { topology, placement, live, max_trees, load, links, order })
    }

    /// The switches and servers that the job may use, and the reasons against others in `wanted`. `slots`: whether the
    /// memory is for best-effort protocols.
    pub(super) fn usable(&self, job: &Job, wanted: &BTreeSet<NodeId>, slots: bool) -> Usable {
        let mut live = self.live();
        let mut causes = Vec::new();
        let gone = wanted.iter().filter(|switch| !live.contains(switch));
        let down = gone.map(|&switch| format!("{} is down", self.name(switch))).collect();
        for (switch, LeaseRefusal { why, .. }) in &job.refusals {
            if live.remove(switch) {
                causes.push(why.clone());
            }
        }
        for switch in job.avoided() {
            if live.remove(&switch) {
                causes.push(format!("{} does not answer on the data plane", self.name(switch)));
            }
        }
        let fragment_bytes = job.fragment_bytes.unwrap_or(0);
        let needed = if fragment_bytes == 0 { 0 } else { fragment_bytes + headers(job) };
        for switch in live.iter().copied().collect::<BTreeSet<_>>() {
            let hello = &self.switches[&switch].hello;
            if let Err(why) = version::check_packets(self.name(switch), hello.packets.as_ref()) {
                live.remove(&switch);
                if !slots || wanted.contains(&switch) {
                    causes.push(why);
                }
                continue;
            }
            let why = if mtu(hello.mtu) < needed {
                format!("has too small an MTU for packets of {needed} bytes")
            } else if job.spec.encrypt && !hello.encrypts {
                "cannot encrypt".to_owned()
            } else if slots && !hello.server && hello.slots == 0 {
                "has no slots".to_owned()
            } else if slots && hello.slot_bytes < fragment_bytes.max(1) {
                format!("has slots of {} bytes, fragments have {fragment_bytes}", hello.slot_bytes)
            } else {
                continue;
            };
            live.remove(&switch);
            if !slots || wanted.contains(&switch) {
                causes.push(format!("{} {why}", self.name(switch)));
            }
        }
        Usable { live, down, causes }
    }

    /// The largest supported fragment size that fits the MTU of every interface on the path.
    pub(super) fn fragment_bytes(&self, job: &Job, trees: &[AggregationTree]) -> u32 {
        let switches = trees.iter().flat_map(AggregationTree::switches);
        let of_switches = switches.map(|switch| mtu(self.switches[&switch].hello.mtu));
        let of_members = job.members.iter().map(|member| mtu(member.mtu));
        let least = of_switches.chain(of_members).min().unwrap_or(MTU_USUAL);
        let room = least.saturating_sub(headers(job));
        let usual = FRAGMENTS.iter().copied().filter(|&bytes| bytes <= room).max();
        usual.unwrap_or((room / FRAGMENT_STEP * FRAGMENT_STEP).max(FRAGMENT_STEP))
    }

    /// Drops trees that no switch has memory for; returns the window of the rest. The trees may get copies, which need
    /// memory, too.
    pub(super) fn fit(
        &self,
        job: &Job,
        protocol: Protocol,
        trees: &mut Vec<AggregationTree>,
        fragment_bytes: u32,
        slots_max: u32,
        causes: &mut Vec<String>,
    ) -> Fit {
        trees.retain(|tree| {
            let wide = tree.nodes.iter().find(|node| node.children.len() > MAX_CHILDREN);
            if let Some(node) = wide {
                let (name, children) = (self.name(node.switch), node.children.len());
                causes.push(format!(
                    "{name} would have {children} children, {MAX_CHILDREN} is the most"
                ));
            }
            wide.is_none()
        });
        let taken = self.taken(job.id);
        let mut short = BTreeSet::new();
        while !trees.is_empty() {
            let free = |switch| self.free(switch, &taken);
            let mut granted = trees.clone();
            if self.has_copies(job, trees) {
                granted.extend_from_within(..);
            }
            let terms = Terms {
                job: JobId(job.id),
                epoch: Epoch(job.epoch),
                protocol,
                trees: &granted,
                copies: granted.len() > trees.len(),
                window: 1,
                fragment_bytes: fragment_bytes.try_into().unwrap_or(u16::MAX),
                release_permille: 1000,
                slot_space: 0,
                claim: Claim::default(),
            };
            let row_bytes = |node| self.row_bytes(node, fragment_bytes);
            let most = slots_max.try_into().unwrap_or(u16::MAX);
            match share::window(&terms, row_bytes, free, most) {
                Ok(Window { fragments, limit }) => {
                    let narrow = u32::from(fragments) < WINDOW_WANTED;
                    short.extend(limit.filter(|_| narrow));
                    return Fit { window_max: fragments.into(), short };
                }
                Err(full) => {
                    short.insert(full.switch);
                    let last = trees.iter().rposition(|tree| tree.node(full.switch).is_some());
                    trees.remove(last.expect("a tree of the plan uses the switch that is full"));
                    causes.push(format!("{} is full: {}", self.name(full.switch), shortage(&full)));
                }
            }
        }
        Fit { window_max: 0, short }
    }

    /// Whether a job's trees get copies: it asks for that, and all their switches handle what travels on copies.
    pub(super) fn has_copies(&self, job: &Job, trees: &[AggregationTree]) -> bool {
        let mut switches = trees.iter().flat_map(AggregationTree::switches);
        let handle = |switch| self.switches[&switch].hello.all_collectives;
        job.spec.all_collectives && switches.all(handle)
    }

    /// Leases of other jobs, by switch.
    pub(super) fn load(&self, job: u32) -> HashMap<NodeId, u64> {
        let mut load = HashMap::new();
        let trees = self.other_plans(job).flat_map(|plan| &plan.trees);
        trees
            .flat_map(|tree| &tree.nodes)
            .for_each(|node| *load.entry(node.switch).or_default() += 1);
        load
    }

    /// Load of other jobs on each link between switches: each tree of a job carries an equal part of the job's stream.
    /// Plans made for an earlier fabric file may contain links that no longer exist.
    fn link_load(&self, job: u32) -> HashMap<EdgeId, u64> {
        let mut load = HashMap::new();
        for plan in self.other_plans(job) {
            let part = STREAM / plan.trees.len().max(1) as u64;
            for node in plan.trees.iter().flat_map(|tree| &tree.nodes) {
                let paths = paths_to_parent(&self.topology, node);
                let hops = paths.iter().flat_map(|path| path.windows(2));
                let links = hops.filter_map(|hop| self.topology.edge_between(hop[0], hop[1]));
                links.for_each(|link| *load.entry(link).or_default() += part / paths.len() as u64);
            }
        }
        load
    }

    /// The latest plans of all other running jobs.
    fn other_plans(&self, job: u32) -> impl Iterator<Item = &Plan> {
        let others = self
            .jobs
            .values()
            .filter(move |other| other.id != job && other.phase == Phase::Running);
        others.filter_map(|other| other.plans().last())
    }

    /// Capacity granted to other jobs, by switch. Of two plans of a job the larger counts, because a lease replaces
    /// that of the previous epoch.
    pub(super) fn taken(&self, job: u32) -> BTreeMap<NodeId, Capacity> {
        let mut taken: BTreeMap<NodeId, Capacity> = BTreeMap::new();
        for other in
            self.jobs.values().filter(|other| other.id != job && other.phase == Phase::Running)
        {
            let mut most: BTreeMap<NodeId, Capacity> = BTreeMap::new();
            let tenant = self.tenant_of(other);
            let of_plan = |plan: &Plan| {
                let row_bytes = |node| self.row_bytes(node, plan.fragment_bytes);
                share::taken(&Terms::of(plan, &tenant), row_bytes)
            };
            for (switch, part) in other.plans().flat_map(of_plan) {
                let entry = most.entry(switch).or_default();
                *entry = entry.max(part);
            }
            for (switch, part) in most {
                *taken.entry(switch).or_default() += part;
            }
        }
        taken
    }

    fn free(&self, switch: NodeId, taken: &BTreeMap<NodeId, Capacity>) -> Capacity {
        let hello = &self.switches[&switch].hello;
        let taken = taken.get(&switch).copied().unwrap_or_default();
        let all = Capacity {
            reserved: Reservation {
                memory_bytes: hello.memory_bytes,
                pool_slots: hello.slots.into(),
            },
            receive: hello.receive_buffer_bytes,
        };
        all.less(taken)
    }

    /// Maximum payload of a server's rows; for a server that has not reported yet, that of the plan.
    fn row_bytes(&self, node: NodeId, fragment_bytes: u32) -> u16 {
        let reported = self.switches.get(&node).map_or(0, |state| state.hello.slot_bytes);
        reported.max(fragment_bytes).try_into().unwrap_or(u16::MAX)
    }
}

fn shortage(full: &share::Full) -> String {
    let (needs, free) = (full.needs.reserved, full.free.reserved);
    if needs.memory_bytes > free.memory_bytes {
        let (needed, free) = (needs.memory_bytes, free.memory_bytes);
        format!("one fragment needs {needed} bytes of memory, {free} are free")
    } else if needs.pool_slots > free.pool_slots {
        "none of its slots is free for a pool".to_owned()
    } else {
        let (needed, free) = (full.needs.receive, full.free.receive);
        format!("one fragment needs {needed} bytes of receive buffer, {free} are free")
    }
}

/// Bytes of an MTU that are not payload of a job's packets.
fn headers(job: &Job) -> u32 {
    HEADERS_MAX + if job.spec.encrypt { TRAILER_LEN as u32 } else { 0 }
}

/// The MTU of an interface; a default if it is not reported.
fn mtu(reported: u32) -> u32 {
    if reported == 0 { MTU_USUAL } else { reported }
}

/// Minimum window for `panama`: with fewer fragments in flight a tree does not fill a link of 10 Gbit/s at a round trip
/// of some 40 µs.
pub(super) const WINDOW_WANTED: u32 = 32;
/// A job's stream in parts; divisible by any usual number of trees.
const STREAM: u64 = 5040;
const MTU_USUAL: u32 = 1500;
/// Fragment sizes for MTUs of 1500, about 4200 and 9000, in whole cache lines.
const FRAGMENTS: [u32; 3] = [1408, 4096, 8832];
const FRAGMENT_STEP: u32 = 64;
