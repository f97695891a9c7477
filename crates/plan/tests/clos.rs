//! Trees on whole and damaged Clos networks, compared with a brute-force search that knows the shape.

use std::collections::{HashMap, HashSet};

use netsum_plan::{PlanError, Request, aggregation_trees, switch_links, verify, verify_set};
use netsum_topo::{
    Addressing, AggregationTree, Child, EdgeId, NodeId, Rate, SumOrder, Topology, fat_tree,
    leaf_spine,
};
use proptest::prelude::*;

const RATE: Rate = Rate(10_000_000_000);

fn spines(racks: u32, hosts: u32, spines: u32) -> Topology {
    leaf_spine(racks, hosts, spines, RATE, RATE, Addressing::default()).unwrap().topology()
}

fn pods(k: u32) -> Topology {
    fat_tree(k, RATE, Addressing::default()).unwrap().topology()
}

fn place(topology: &Topology, hosts: &[usize]) -> Vec<NodeId> {
    hosts.iter().map(|host| topology.find(&format!("h{host}")).unwrap()).collect()
}

struct Case {
    topology: Topology,
    placement: Vec<NodeId>,
    live: HashSet<NodeId>,
    load: HashMap<NodeId, u64>,
    links: HashMap<EdgeId, u64>,
}

impl Case {
    fn new(topology: Topology, hosts: &[usize]) -> Case {
        let placement = place(&topology, hosts);
        let live = topology.switches().collect();
        Case { topology, placement, live, load: HashMap::new(), links: HashMap::new() }
    }

    fn without(mut self, switches: &[&str]) -> Case {
        switches
            .iter()
            .for_each(|name| assert!(self.live.remove(&self.topology.find(name).unwrap())));
        self
    }

    fn plan(
        &self,
        max_trees: usize,
        order: Option<&SumOrder>,
    ) -> Result<Vec<AggregationTree>, PlanError> {
        let (topology, placement) = (&self.topology, &self.placement[..]);
        let (live, load, links) = (&self.live, &self.load, &self.links);
        let request = Request { topology, placement, live, max_trees, load, links, order };
        let trees = aggregation_trees(&request)?;
        verify_set(topology, placement, &trees, 4).unwrap();
        let dead =
            |tree: &AggregationTree| tree.switches().any(|switch| !self.live.contains(&switch));
        assert!(!trees.iter().any(dead), "a tree uses a dead switch");
        Ok(trees)
    }

    fn roots(&self, trees: &[AggregationTree]) -> Vec<&str> {
        trees.iter().map(|tree| self.topology.name(tree.root)).collect()
    }
}

#[test]
fn a_tree_per_spine() {
    let case = Case::new(spines(2, 2, 3), &[0, 1, 2, 3]);
    let trees = case.plan(8, None).unwrap();
    assert_eq!(case.roots(&trees), ["spine0", "spine1", "spine2"]);
    assert_eq!(trees[0].order().to_string(), "[[0,1],[2,3]]");
    assert_eq!(case.plan(2, None).unwrap(), trees[..2]);
}

#[test]
fn one_rack_needs_one_tree() {
    let case = Case::new(spines(2, 4, 3), &[4, 5, 6]);
    let trees = case.plan(8, None).unwrap();
    assert_eq!(case.roots(&trees), ["rack1"]);
    assert_eq!(trees[0].nodes.len(), 1);
    assert_eq!(trees[0].order().to_string(), "[0,1,2]");
}

#[test]
fn a_rack_with_one_rank_keeps_its_switch() {
    let case = Case::new(spines(2, 2, 1), &[0, 2]);
    let trees = case.plan(8, None).unwrap();
    assert_eq!(trees[0].nodes.len(), 3);
    assert_eq!(trees[0].order().to_string(), "[0,1]");
}

#[test]
fn children_are_in_order_of_lowest_rank() {
    let case = Case::new(spines(3, 2, 2), &[4, 0, 2, 1, 5, 3]);
    assert_eq!(case.plan(1, None).unwrap()[0].order().to_string(), "[[0,4],[1,3],[2,5]]");
}

#[test]
fn one_pod_stays_below_the_cores() {
    let case = Case::new(pods(4), &[0, 1, 2, 3]);
    assert_eq!(case.roots(&case.plan(8, None).unwrap()), ["agg0.0", "agg0.1"]);
}

#[test]
fn pods_with_one_rack_are_joined_at_the_core() {
    let case = Case::new(pods(4), &[0, 1, 4, 6, 8]);
    let trees = case.plan(8, None).unwrap();
    assert_eq!(case.roots(&trees), ["core0.0", "core1.0"]);
    let tree = &trees[0];
    let rack = |name: &str| tree.node(case.topology.find(name).unwrap());
    let parent = rack("rack0.0").unwrap().parent.clone().unwrap();
    assert_eq!(parent.via, [case.topology.find("agg0.0").unwrap()]);
    assert!(rack("agg0.0").is_none(), "a switch that only forwards is no node");
    assert!(rack("agg1.0").is_some(), "a switch with two racks adds");
    assert_eq!(tree.order().to_string(), "[[0,1],[2,3],4]");
}

#[test]
fn the_study_fat_tree() {
    let topology = pods(16);
    let hosts: Vec<usize> = (0..1024).collect();
    let case = Case::new(topology, &hosts);
    assert_eq!(case.plan(4, None).unwrap().len(), 4);
    assert_eq!(case.plan(64, None).unwrap().len(), 8, "a rack has 8 uplinks");
}

#[test]
fn load_moves_trees_elsewhere() {
    let mut case = Case::new(spines(2, 2, 3), &[0, 1, 2, 3]);
    case.load.insert(case.topology.find("spine0").unwrap(), 5);
    assert_eq!(case.roots(&case.plan(2, None).unwrap()), ["spine1", "spine2"]);
    assert_eq!(case.roots(&case.plan(3, None).unwrap()), ["spine1", "spine2", "spine0"]);
}

#[test]
fn a_second_job_uses_other_links_and_not_only_another_root() {
    let hosts = [0, 4, 8, 12];
    let mut case = Case::new(pods(4), &hosts);
    let first = case.plan(1, None).unwrap();
    assert_eq!(case.roots(&first), ["core0.0"]);
    let links = switch_links(&case.topology, &first[0]);
    case.links = links.into_iter().map(|link| (link, 1)).collect();
    first[0].switches().for_each(|switch| *case.load.entry(switch).or_default() += 1);
    // core0.1 is idle as well, but uses the same links of the racks.
    assert_eq!(case.roots(&case.plan(1, None).unwrap()), ["core1.0"]);
}

#[test]
fn dead_switches_are_avoided_or_named() {
    let all = [0, 1, 2, 3];
    let case = Case::new(spines(2, 2, 2), &all).without(&["spine0"]);
    assert_eq!(case.roots(&case.plan(8, None).unwrap()), ["spine1"]);
    let case = Case::new(spines(2, 2, 2), &all).without(&["rack1"]);
    let reason = case.plan(8, None).unwrap_err().to_string();
    assert_eq!(reason, "host \"h2\" has no live switch: rack1 is down");
    let case = Case::new(spines(2, 2, 2), &all).without(&["spine0", "spine1"]);
    let reason = case.plan(8, None).unwrap_err().to_string();
    assert_eq!(reason, "no live switch reaches the hosts of all ranks: spine0 and spine1 are down");
}

#[test]
fn a_given_order_is_kept_or_refused() {
    let case = Case::new(spines(2, 2, 2), &[0, 1, 2, 3]);
    let same: SumOrder = "[[0,1],[2,3]]".parse().unwrap();
    assert_eq!(case.plan(8, Some(&same)).unwrap().len(), 2);
    let other: SumOrder = "[0,1,2,3]".parse().unwrap();
    assert_eq!(
        case.plan(8, Some(&other)),
        Err(PlanError::OtherOrder { order: "[0,1,2,3]".to_owned() })
    );
}

#[test]
fn errors_give_the_reason() {
    let case = Case::new(spines(2, 2, 2), &[0]);
    assert_eq!(case.plan(1, None), Err(PlanError::TooFewRanks { ranks: 1 }));
    let mut case = Case::new(spines(2, 2, 2), &[0, 1]);
    case.placement[1] = case.topology.find("rack0").unwrap();
    assert_eq!(case.plan(1, None), Err(PlanError::NotAHost { rank: 1, node: "rack0".to_owned() }));
}

#[test]
fn hosts_with_two_switches_use_both() {
    let text = r#"
name = "rails"
controller = "10.0.0.1:7700"
host = [{ name = "h0", address = "10.0.1.1" }, { name = "h1", address = "10.0.1.2" }]
switch = [
  { name = "a", address = "10.0.2.1:7701", memory = "1MiB" },
  { name = "b", address = "10.0.2.2:7701", memory = "1MiB" },
]
link = [
  { ends = ["h0", "a"], rate = "1Gbit/s" }, { ends = ["h0", "b"], rate = "1Gbit/s" },
  { ends = ["h1", "a"], rate = "1Gbit/s" }, { ends = ["h1", "b"], rate = "1Gbit/s" },
]
"#;
    let case = Case::new(netsum_topo::Fabric::parse(text, "rails").unwrap().topology(), &[0, 1]);
    assert_eq!(case.roots(&case.plan(8, None).unwrap()), ["a", "b"]);
}

#[test]
fn the_verifier_detects_each_kind_of_damage() {
    let case = Case::new(spines(2, 2, 2), &[0, 1, 2, 3]);
    let good = case.plan(1, None).unwrap().remove(0);
    let refuse = |damage: &dyn Fn(&mut AggregationTree), words: &str| {
        let mut tree = good.clone();
        damage(&mut tree);
        let message = verify(&case.topology, &case.placement, &tree, 4).unwrap_err().to_string();
        assert!(message.contains(words), "{message}");
    };
    refuse(&|tree| tree.nodes[1].children.truncate(1), "rank 1 is missing");
    refuse(&|tree| tree.nodes[1].children.push(Child::Rank(1)), "rank 1 is in it twice");
    refuse(&|tree| tree.nodes[1].children.push(Child::Rank(9)), "rank 9 is not of this job");
    refuse(&|tree| tree.nodes[1].children.swap(0, 1), "not in order of lowest rank");
    refuse(&|tree| tree.nodes[0].children.swap(0, 1), "not in order of lowest rank");
    refuse(&|tree| tree.nodes[1].children = vec![Child::Rank(2)], "has no link to \"rack0\"");
    refuse(&|tree| tree.nodes[1].children.clear(), "has no child");
    refuse(&|tree| tree.nodes.swap(0, 1), "stands before its parent");
    refuse(&|tree| tree.nodes.truncate(2), "is not below");
    refuse(&|tree| tree.nodes.push(good.nodes[1].clone()), "is in it twice");
    refuse(
        &|tree| tree.nodes[2].parent.as_mut().unwrap().switch = good.nodes[1].switch,
        "there is no link rack1–rack0",
    );
    let missing = verify(&case.topology, &case.placement, &good, 0).unwrap_err().to_string();
    assert!(missing.contains("too deep"), "{missing}");
    let twice = [good.clone(), good.clone()];
    let shared = verify_set(&case.topology, &case.placement, &twice, 4).unwrap_err().to_string();
    assert!(shared.contains("shares the link"), "{shared}");
}

/// A fabric without some links and with some failed switches.
fn damaged(whole: &Topology, hosts: &[usize], dead: &[usize], cut: &[usize]) -> Case {
    let links: Vec<_> = whole.edges().collect();
    let between = |edge: &netsum_topo::Edge| edge.ends.iter().all(|&end| whole.is_switch(end));
    let cuttable: Vec<_> =
        links.iter().filter(|(_, edge)| between(edge)).map(|&(id, _)| id).collect();
    let gone: HashSet<_> = cut.iter().map(|i| cuttable[i % cuttable.len()]).collect();
    let mut topology = Topology::new();
    for (_, node) in whole.nodes() {
        topology.add_node(&node.name, node.kind);
    }
    for (_, edge) in links.iter().filter(|(id, _)| !gone.contains(id)) {
        topology.add_edge(edge.ends[0], edge.ends[1], edge.rate_bps, edge.latency_ns);
    }
    let mut case = Case::new(topology, hosts);
    let switches: Vec<_> = whole.switches().collect();
    for i in dead {
        case.live.remove(&switches[i % switches.len()]);
    }
    case
}

/// Result of a brute-force search.
struct Best {
    /// The most trees without common links.
    trees: usize,
    /// By number of trees, from 1, the least load of their fullest link.
    loads: Vec<u64>,
}

/// For each possible root, the switch links that its tree must use: known from the shape alone.
/// `ways(rack, root)` gives the switches from a rack to the root, if the shape has that way.
fn oracle(case: &Case, roots: &[String], ways: &dyn Fn(&str, &str) -> Option<Vec<String>>) -> Best {
    let find = |name: &str| case.topology.find(name).unwrap();
    let mut sets = Vec::new();
    'roots: for root in roots {
        let mut links = HashSet::new();
        for &host in &case.placement {
            let rack = case.topology.neighbours(host)[0].0;
            let Some(way) = ways(case.topology.name(rack), root) else {
                continue 'roots;
            };
            let way: Vec<NodeId> = way.iter().map(|name| find(name)).collect();
            if !way.iter().all(|switch| case.live.contains(switch)) {
                continue 'roots;
            }
            for pair in way.windows(2) {
                match case.topology.edge_between(pair[0], pair[1]) {
                    Some(link) => links.insert(link),
                    None => continue 'roots,
                };
            }
        }
        sets.push(links);
    }
    let disjoint = |chosen: u32| {
        let mut all = HashSet::new();
        let mut of = sets.iter().enumerate().filter(|(i, _)| chosen >> i & 1 == 1);
        of.all(|(_, links)| links.iter().all(|link| all.insert(*link)))
    };
    let fullest = |chosen: u32| {
        let of = sets.iter().enumerate().filter(|(i, _)| chosen >> i & 1 == 1);
        let links = of.flat_map(|(_, links)| links);
        links.map(|link| case.links.get(link).copied().unwrap_or(0)).max().unwrap_or(0)
    };
    let mut loads: Vec<u64> = Vec::new();
    for chosen in (1..1u32 << sets.len()).filter(|&chosen| disjoint(chosen)) {
        let count = chosen.count_ones() as usize;
        loads.resize(loads.len().max(count), u64::MAX);
        loads[count - 1] = loads[count - 1].min(fullest(chosen));
    }
    Best { trees: loads.len(), loads }
}

/// Checks that the number of trees is the maximum, and that for each number of trees the fullest link has the least
/// possible load.
fn is_best(case: &Case, best: &Best) -> Result<(), TestCaseError> {
    let found = case.plan(64, None).map_or(0, |trees| trees.len());
    // If no root reaches all, a rack switch may still join the others.
    prop_assert!(found == best.trees || best.trees == 0, "found {} of {}", found, best.trees);
    for (i, &least) in best.loads.iter().enumerate() {
        let trees = case.plan(i + 1, None).unwrap();
        prop_assert_eq!(trees.len(), i + 1);
        let links = trees.iter().flat_map(|tree| switch_links(&case.topology, tree));
        let fullest = links.map(|link| case.links.get(&link).copied().unwrap_or(0)).max();
        prop_assert_eq!(fullest.unwrap_or(0), least, "{} trees", i + 1);
    }
    Ok(())
}

/// Puts load on some links between switches.
fn loaded(mut case: Case, loads: &[(usize, u64)]) -> Case {
    let between =
        |edge: &netsum_topo::Edge| edge.ends.iter().all(|&end| case.topology.is_switch(end));
    let links: Vec<EdgeId> =
        case.topology.edges().filter(|(_, edge)| between(edge)).map(|(id, _)| id).collect();
    if !links.is_empty() {
        case.links = loads.iter().map(|&(link, load)| (links[link % links.len()], load)).collect();
    }
    case
}

fn same_pod(case: &Case) -> bool {
    let pod = |host: &NodeId| {
        let rack = case.topology.name(case.topology.neighbours(*host)[0].0);
        rack.split('.').next().unwrap().to_owned()
    };
    case.placement.iter().map(pod).collect::<HashSet<_>>().len() == 1
}

/// The one tree of ranks in one rack uses no link between switches.
fn one_rack(case: &Case) -> Best {
    let lives = case.live.contains(&case.topology.neighbours(case.placement[0])[0].0);
    Best { trees: usize::from(lives), loads: vec![0; usize::from(lives)] }
}

fn racks_used(case: &Case) -> usize {
    case.placement
        .iter()
        .map(|&host| case.topology.neighbours(host)[0].0)
        .collect::<HashSet<_>>()
        .len()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn leaf_spine_gives_the_most_trees(
        racks in 1u32..5, per_rack in 1u32..4, spine_count in 1u32..6,
        picks in prop::collection::vec(0usize..100, 2..8),
        dead in prop::collection::vec(0usize..100, 0..3), cut in prop::collection::vec(0usize..100, 0..4),
        loads in prop::collection::vec((0usize..100, 0u64..4), 0..20),
    ) {
        let whole = spines(racks, per_rack, spine_count);
        let hosts: Vec<usize> = picks.iter().map(|pick| pick % (racks * per_rack) as usize).collect();
        let case = loaded(damaged(&whole, &hosts, &dead, &cut), &loads);
        let names: Vec<String> = (0..spine_count).map(|spine| format!("spine{spine}")).collect();
        let best = if racks_used(&case) == 1 {
            one_rack(&case)
        } else {
            oracle(&case, &names, &|rack, spine| Some(vec![rack.to_owned(), spine.to_owned()]))
        };
        is_best(&case, &best)?;
    }

    #[test]
    fn fat_tree_gives_the_most_trees(
        picks in prop::collection::vec(0usize..100, 2..10), spread in 1usize..4,
        dead in prop::collection::vec(0usize..100, 0..4), cut in prop::collection::vec(0usize..100, 0..5),
        loads in prop::collection::vec((0usize..100, 0u64..4), 0..30),
    ) {
        let hosts: Vec<usize> = picks.iter().map(|pick| pick % (16 * spread / 3)).collect();
        let case = loaded(damaged(&pods(4), &hosts, &dead, &cut), &loads);
        let pod = |rack: &str| rack.trim_start_matches("rack").split('.').next().unwrap().to_owned();
        let best = if racks_used(&case) == 1 {
            one_rack(&case)
        } else if same_pod(&case) {
            let own = pod(case.topology.name(case.topology.neighbours(case.placement[0])[0].0));
            let names: Vec<String> = (0..2).map(|agg| format!("agg{own}.{agg}")).collect();
            oracle(&case, &names, &|rack, agg| Some(vec![rack.to_owned(), agg.to_owned()]))
        } else {
            let names: Vec<String> = (0..4).map(|core| format!("core{}.{}", core / 2, core % 2)).collect();
            oracle(&case, &names, &|rack, core| {
                let group = core.trim_start_matches("core").split('.').next()?;
                Some(vec![rack.to_owned(), format!("agg{}.{group}", pod(rack)), core.to_owned()])
            })
        };
        is_best(&case, &best)?;
    }

    #[test]
    fn any_graph_gives_sound_trees(
        switch_count in 1usize..8, links in prop::collection::vec((0usize..8, 0usize..8), 0..20),
        homes in prop::collection::vec((0usize..8, 0usize..8), 2..8), dead in prop::collection::vec(0usize..100, 0..2),
    ) {
        let mut topology = Topology::new();
        let hosts: Vec<NodeId> =
            (0..homes.len()).map(|i| topology.add_node(&format!("h{i}"), netsum_topo::NodeKind::Host)).collect();
        let switches: Vec<NodeId> =
            (0..switch_count).map(|i| topology.add_node(&format!("s{i}"), netsum_topo::NodeKind::Switch)).collect();
        let mut link = |a: NodeId, b: NodeId| {
            if a != b && topology.edge_between(a, b).is_none() {
                topology.add_edge(a, b, 1, None);
            }
        };
        for &(a, b) in &links {
            link(switches[a % switch_count], switches[b % switch_count]);
        }
        for (&host, &(a, b)) in hosts.iter().zip(&homes) {
            link(host, switches[a % switch_count]);
            link(host, switches[b % switch_count]);
        }
        let mut case = Case::new(topology, &(0..homes.len()).collect::<Vec<_>>());
        for i in &dead {
            case.live.remove(&switches[i % switch_count]);
        }
        if let Ok(trees) = case.plan(64, None) {
            let order = trees[0].order();
            prop_assert_eq!(case.plan(64, Some(&order)).unwrap(), trees.clone());
            prop_assert_eq!(case.plan(1, None).unwrap().len(), 1);
            let links: usize = trees.iter().map(|tree| switch_links(&case.topology, tree).len()).sum();
            prop_assert!(links <= case.topology.edges().count());
        }
    }
}
