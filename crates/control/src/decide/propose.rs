//! What a job's next plan would be: trees, order, sizes, and why it is not more.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use netsum_plan::{PlanError, Request, aggregation_trees};
use netsum_topo::{AggregationTree, NodeId, SumOrder};

use super::job::{Job, Phase};
use super::share::{self, Capacity};
use super::state::State;

/// What a plan would be, before it gets an epoch.
pub(super) struct Proposal {
    pub trees: Vec<AggregationTree>,
    pub order: SumOrder,
    pub fragment_bytes: u32,
    pub window_max: u32,
    pub reason: String,
}

/// Which switches a job may use.
struct Usable {
    live: HashSet<NodeId>,
    /// "X is down", for each that it would use if it were there.
    down: Vec<String>,
    /// Why it may not use others that are there.
    causes: Vec<String>,
}

impl State {
    /// What the job's next plan would be.
    pub(super) fn propose(&self, job: &Job) -> Proposal {
        let placement: Option<Vec<NodeId>> = job.members.iter().map(|member| member.host).collect();
        let Some(placement) = placement else {
            return self
                .no_trees(job, "a host of the job is not in the fabric file any more".to_owned());
        };
        let all: HashSet<NodeId> = self.topology.switches().collect();
        let ideal = self.trees(job, &placement, &all, job.order.as_ref());
        let order = match (&job.order, &ideal) {
            (Some(order), _) => order.clone(),
            (None, Ok(trees)) => trees[0].order(),
            (None, Err(_)) => SumOrder::flat(job.spec.size),
        };
        let ideal = match ideal {
            Ok(trees) => trees,
            Err(error) => return Proposal { order, ..self.no_trees(job, error.to_string()) },
        };
        let Usable { live, down, mut causes } = self.usable(job, &ideal);
        let mut trees = match self.trees(job, &placement, &live, Some(&order)) {
            Ok(trees) => {
                causes.splice(0..0, down);
                trees
            }
            // It names the switches that are down.
            Err(error) => {
                causes.insert(0, error.to_string());
                Vec::new()
            }
        };
        let fragment_bytes = job.fragment_bytes.unwrap_or_else(|| self.fragment_bytes(job, &trees));
        let window_max = self.fit(job, &mut trees, fragment_bytes, &mut causes);
        let reason = match ideal.len() {
            wanted if trees.len() >= wanted => String::new(),
            wanted => format!("{} of {wanted} trees: {}", trees.len(), causes.join("; ")),
        };
        Proposal { trees, order, fragment_bytes, window_max, reason }
    }

    fn no_trees(&self, job: &Job, reason: String) -> Proposal {
        Proposal {
            trees: Vec::new(),
            order: job.order.clone().unwrap_or_else(|| SumOrder::flat(job.spec.size)),
            fragment_bytes: job.fragment_bytes.unwrap_or_else(|| self.fragment_bytes(job, &[])),
            window_max: 0,
            reason,
        }
    }

    fn trees(
        &self,
        job: &Job,
        placement: &[NodeId],
        live: &HashSet<NodeId>,
        order: Option<&SumOrder>,
    ) -> Result<Vec<AggregationTree>, PlanError> {
        let load = self.load(job.id);
        let (topology, max_trees) = (&self.topology, job.spec.max_trees as usize);
        aggregation_trees(&Request { topology, placement, live, max_trees, load: &load, order })
    }

    /// Which switches the job may use, and why others of its `ideal` trees may not.
    fn usable(&self, job: &Job, ideal: &[AggregationTree]) -> Usable {
        let mut live = self.live();
        let mut causes = Vec::new();
        let wanted: BTreeSet<NodeId> = ideal.iter().flat_map(AggregationTree::switches).collect();
        let gone = wanted.into_iter().filter(|switch| !live.contains(switch));
        let down = gone.map(|switch| format!("{} is down", self.name(switch))).collect();
        for (switch, (_, why)) in &job.barred {
            if live.remove(switch) {
                causes.push(why.clone());
            }
        }
        let needed = job.fragment_bytes.map_or(0, |bytes| bytes + HEADERS);
        let small = |switch: &NodeId| mtu(self.switches[switch].hello.mtu) < needed;
        for switch in live.iter().copied().filter(small).collect::<BTreeSet<_>>() {
            live.remove(&switch);
            causes.push(format!(
                "{} has too small an MTU for packets of {needed} bytes",
                self.name(switch)
            ));
        }
        Usable { live, down, causes }
    }

    /// The largest usual fragment that every interface on the way takes.
    fn fragment_bytes(&self, job: &Job, trees: &[AggregationTree]) -> u32 {
        let switches = trees.iter().flat_map(AggregationTree::switches);
        let of_switches = switches.map(|switch| mtu(self.switches[&switch].hello.mtu));
        let of_members = job.members.iter().map(|member| mtu(member.mtu));
        let least = of_switches.chain(of_members).min().unwrap_or(MTU_USUAL);
        let room = least.saturating_sub(HEADERS);
        let usual = FRAGMENTS.iter().copied().filter(|&bytes| bytes <= room).max();
        usual.unwrap_or((room / FRAGMENT_STEP * FRAGMENT_STEP).max(FRAGMENT_STEP))
    }

    /// Drops trees that no switch can hold; returns the window of the rest.
    fn fit(
        &self,
        job: &Job,
        trees: &mut Vec<AggregationTree>,
        fragment_bytes: u32,
        causes: &mut Vec<String>,
    ) -> u32 {
        trees.retain(|tree| {
            let wide = tree.nodes.iter().find(|node| node.children.len() > CHILDREN_MAX);
            if let Some(node) = wide {
                let (name, children) = (self.name(node.switch), node.children.len());
                causes.push(format!(
                    "{name} would have {children} children, {CHILDREN_MAX} is the most"
                ));
            }
            wide.is_none()
        });
        let taken = self.taken(job.id);
        while !trees.is_empty() {
            let free = |switch| self.free(switch, &taken);
            match share::window(trees, fragment_bytes, free, self.settings.slots_max) {
                Ok(window) => return window,
                Err(full) => {
                    let last = trees.iter().rposition(|tree| tree.node(full.switch).is_some());
                    trees.remove(last.expect("a tree of the plan uses the switch that is full"));
                    causes.push(format!("{} is full: {}", self.name(full.switch), shortage(&full)));
                }
            }
        }
        0
    }

    /// Leases that other jobs have, by switch.
    fn load(&self, job: u32) -> HashMap<NodeId, u64> {
        let mut load = HashMap::new();
        let others =
            self.jobs.values().filter(|other| other.id != job && other.phase == Phase::Running);
        let trees = others.filter_map(|other| other.plans().last()).flat_map(|plan| &plan.trees);
        trees
            .flat_map(|tree| &tree.nodes)
            .for_each(|node| *load.entry(node.switch).or_default() += 1);
        load
    }

    /// What other jobs have been granted, by switch. Of two plans of a job the larger counts: a lease
    /// takes the place of that of the epoch before.
    pub(super) fn taken(&self, job: u32) -> BTreeMap<NodeId, Capacity> {
        let mut taken: BTreeMap<NodeId, Capacity> = BTreeMap::new();
        for other in
            self.jobs.values().filter(|other| other.id != job && other.phase == Phase::Running)
        {
            let mut most: BTreeMap<NodeId, Capacity> = BTreeMap::new();
            for (switch, part) in other.plans().flat_map(share::taken) {
                let entry = most.entry(switch).or_default();
                entry.memory = entry.memory.max(part.memory);
                entry.receive = entry.receive.max(part.receive);
            }
            for (switch, part) in most {
                let entry = taken.entry(switch).or_default();
                entry.memory += part.memory;
                entry.receive += part.receive;
            }
        }
        taken
    }

    fn free(&self, switch: NodeId, taken: &BTreeMap<NodeId, Capacity>) -> Capacity {
        let hello = &self.switches[&switch].hello;
        let taken = taken.get(&switch).copied().unwrap_or_default();
        Capacity {
            memory: hello.memory_bytes.saturating_sub(taken.memory),
            receive: hello.receive_buffer_bytes.saturating_sub(taken.receive),
        }
    }
}

fn shortage(full: &share::Full) -> String {
    let (needs, free) = (full.needs, full.free);
    if needs.memory > free.memory {
        format!("one fragment needs {} bytes of memory, {} are free", needs.memory, free.memory)
    } else {
        format!(
            "one fragment needs {} bytes of receive buffer, {} are free",
            needs.receive, free.receive
        )
    }
}

/// An interface that says nothing of its MTU has the usual one.
fn mtu(reported: u32) -> u32 {
    if reported == 0 { MTU_USUAL } else { reported }
}

const MTU_USUAL: u32 = 1500;
/// IPv4 and UDP 28, protocol panama 38.
const HEADERS: u32 = 66;
/// For MTUs of 1500, about 4200 and 9000; whole cache lines.
const FRAGMENTS: [u32; 3] = [1408, 4096, 8832];
const FRAGMENT_STEP: u32 = 64;
/// Width of a switch's bitmap of children.
const CHILDREN_MAX: usize = 64;
