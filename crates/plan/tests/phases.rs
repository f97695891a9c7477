//! Three-phase plans over several servers.

use std::collections::HashSet;

use netsum_plan::pack::{Packed, pack_phases, servers};
use netsum_plan::program::verify_plan;
use netsum_topo::links::{Collective, LinkGraph, LinkKind, Role, Vertex, WeightedLink, built};
use netsum_topo::{Rate, Ratio};

const ALLREDUCE: Collective = Collective::Allreduce;

/// Fragments of DGX-1V boxes, NVLinks only, with one NIC per box that all its GPUs reach over a switch.
fn boxes(fragments: &[&str], nic_gbit: u64) -> LinkGraph {
    let nvlink = built("dgx1v").unwrap().only(&[LinkKind::Nvlink]).unwrap();
    let relay = Role::Switch { aggregates: false, multicasts: false };
    let (mut vertices, mut links) = (Vec::new(), Vec::new());
    let mut link = |ends, gbit: u64, kind| {
        let rate = Rate(gbit * 1_000_000_000);
        links.push(WeightedLink { ends, rate, latency_ns: 5_000, kind, one_way: false });
    };
    let mut nics = Vec::new();
    for (server, gpus) in fragments.iter().enumerate() {
        let part = nvlink.select(&gpus.split(',').collect::<Vec<_>>()).unwrap();
        let first = vertices.len();
        for gpu in part.vertices() {
            let name = format!("s{server}{}", gpu.name);
            vertices.push(Vertex { name, role: gpu.role });
        }
        for own in part.links() {
            link(own.ends.map(|end| first + end), own.rate.0 / 1_000_000_000, LinkKind::Nvlink);
        }
        nics.push((vertices.len(), first..first + part.gpus().len()));
        vertices.push(Vertex { name: format!("nic{server}"), role: relay });
    }
    let network = vertices.len();
    vertices.push(Vertex { name: "network".to_owned(), role: relay });
    for (nic, gpus) in nics {
        gpus.for_each(|gpu| link([gpu, nic], 80, LinkKind::Pcie));
        link([nic, network], nic_gbit, LinkKind::Nic);
    }
    LinkGraph::new("boxes", vertices, links).unwrap()
}

/// Checks the three phases: in every flow each server but one is left and entered by one path each.
fn check_phases(graph: &LinkGraph, packed: &Packed) {
    let plan = packed.plan(graph);
    verify_plan(graph, &plan).unwrap();
    assert!(packed.rate <= packed.bound.as_ref().unwrap().rate);
    let groups = servers(graph);
    let server = |v: &usize| groups.iter().position(|group| group.contains(v));
    for flow in &plan.flows {
        for ways in [&flow.up, &flow.down] {
            let ends = ways.iter().map(|way| (server(&way[0]), server(&way[way.len() - 1])));
            let across: Vec<_> = ends.filter(|(from, to)| from != to).collect();
            assert!(across.iter().all(|(from, to)| from.is_some() && to.is_some()));
            assert_eq!(across.len(), groups.len() - 1);
            // One hop: all servers exchange with the same server.
            let meets: HashSet<_> = across.iter().flat_map(|&(a, b)| [a, b]).collect();
            let centre = meets.iter().any(|c| across.iter().all(|(a, b)| a == c || b == c));
            assert!(centre, "{across:?}");
        }
    }
}

#[test]
fn trees_of_three_phases() {
    for (graph, least) in [
        (built("a100x2").unwrap(), 98),
        (built("a100x4").unwrap(), 100),
        (built("h100x2").unwrap(), 100),
        // A server per host: there is only the exchange in one hop.
        (built("leaf-spine:2x3x2").unwrap(), 60),
        (boxes(&["0,1,4", "0,1,2,3,4"], 40), 100),
        (boxes(&["0,1,4", "0,1,2,3,4"], 400), 96),
        (boxes(&["0,1,2,3", "0,1,2,3", "4,5,6,7"], 100), 100),
    ] {
        let packed = pack_phases(&graph, ALLREDUCE).unwrap();
        check_phases(&graph, &packed);
        let bound = packed.bound.as_ref().unwrap().rate;
        let share = packed.rate / bound * Ratio::from(100);
        assert!(share >= Ratio::from(least), "{}: {} of {bound}", graph.name(), packed.rate);
    }
}

/// Beyond the limits of the exact programme.
#[test]
fn many_servers() {
    let graph = built("a100x20").unwrap();
    let packed = pack_phases(&graph, ALLREDUCE).unwrap();
    check_phases(&graph, &packed);
    let bound = packed.bound.as_ref().unwrap().rate;
    assert!(packed.rate / bound >= Ratio::ONE, "{} of {bound}", packed.rate);
}

#[test]
fn one_server_is_refused() {
    for (name, collective, problem) in [
        ("dgx1v", ALLREDUCE, "all GPUs are in one server"),
        ("a100x2", Collective::Allgather, "it plans an allreduce"),
    ] {
        let error = pack_phases(&built(name).unwrap(), collective).unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
    }
}
