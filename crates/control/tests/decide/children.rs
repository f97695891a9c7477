//! How many children the switches of trees have, and can have.

use std::collections::{HashMap, HashSet};

use netsum_control::decide::Settings;
use netsum_plan::{Request, aggregation_trees, verify_set};
use netsum_proto::panama::MAX_CHILDREN;
use netsum_topo::{Addressing, Fabric, NodeId, fat_tree, leaf_spine};

use crate::world::{RATE, World};

fn racks(racks: u32, hosts: u32, spines: u32) -> Fabric {
    leaf_spine(racks, hosts, spines, RATE, RATE, Addressing::default()).unwrap()
}

/// A job of so many ranks on each host of a rack: the reason for its plan, and its number of trees.
fn in_one_rack(hosts: u32, ranks_per_host: u32) -> (String, usize) {
    let mut world = World::new(racks(1, hosts, 0), Settings::default());
    world.memory = 1 << 30;
    world.all_up();
    let job = world.create(hosts * ranks_per_host);
    for rank in 0..hosts * ranks_per_host {
        world.join(job, rank, &format!("h{}", rank / ranks_per_host), 0).unwrap();
    }
    let plan = world.plan(job);
    (plan.reason.clone(), plan.trees.len())
}

#[test]
fn a_rack_of_100_hosts_gets_its_tree_and_too_many_children_are_a_reason() {
    assert_eq!(in_one_rack(100, 1), (String::new(), 1));
    assert_eq!(in_one_rack(16, 8), (String::new(), 1));
    let (reason, trees) = in_one_rack(1, MAX_CHILDREN as u32 + 1);
    assert_eq!(reason, "0 of 1 trees: rack0 would have 129 children, 128 is the most");
    assert_eq!(trees, 0);
}

/// Workers, and children of the widest switch, of a plan for so many ranks on every host.
fn widest(fabric: &Fabric, ranks_per_host: usize) -> (usize, usize) {
    let topology = fabric.topology();
    let hosts: Vec<NodeId> = topology.hosts().collect();
    let placement: Vec<NodeId> = hosts.iter().flat_map(|&h| vec![h; ranks_per_host]).collect();
    let live: HashSet<NodeId> = topology.switches().collect();
    let (load, links) = (HashMap::new(), HashMap::new());
    let request = Request {
        topology: &topology,
        placement: &placement,
        live: &live,
        max_trees: 1,
        load: &load,
        links: &links,
        order: None,
    };
    let trees = aggregation_trees(&request).unwrap();
    verify_set(&topology, &placement, &trees, 4).unwrap();
    assert_eq!(trees.len(), 1);
    let nodes = trees.iter().flat_map(|tree| &tree.nodes);
    (placement.len(), nodes.map(|node| node.children.len()).max().unwrap())
}

#[test]
fn no_switch_needs_more_children_than_it_can_have_up_to_16384_workers() {
    assert_eq!(widest(&racks(128, 128, 1), 1), (16_384, MAX_CHILDREN));
    // Eight ranks on each of 16 hosts of a rack.
    assert_eq!(widest(&racks(128, 16, 1), 8), (16_384, MAX_CHILDREN));
    assert_eq!(widest(&fat_tree(16, RATE, Addressing::default()).unwrap(), 1), (1024, 16));
}
