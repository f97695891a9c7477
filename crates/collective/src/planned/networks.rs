//! A plan over several networks that connect all hosts, without a topology: every network carries a part of every tree.
//!
//! Every rank is the root of a part of the buffer: all others send it their values and receive the sums, one hop
//! through the network. Each rank then sends and receives 2(N−1)/N of the buffer, the minimum. Two ranks need one root:
//! sums use one direction of a link, results the other. The parts of one tree on different networks are adjacent flows
//! that add alike, so their shares follow the traffic.

use netsum_topo::Ratio;
use netsum_topo::links::{Collective, PlannedFlow, TREE_PLAN_FORMAT, TreePlan};

use super::LostLink;

/// The plan of `ranks` over `count` networks without those of the lost links. Errors: none is left.
pub(super) fn plan(ranks: usize, count: usize, lost: &[LostLink]) -> Result<TreePlan, String> {
    let is_lost = |net: &String| lost.iter().any(|lost| lost.link.contains(net));
    let networks: Vec<String> = (0..count).map(name).filter(|net| !is_lost(net)).collect();
    if networks.is_empty() {
        return Err("no network is left that works between all hosts".to_owned());
    }
    let roots = if ranks == 2 { 1 } else { ranks };
    let share = Ratio::new(1, (roots * networks.len()) as i128);
    let flow = |root: usize, net: usize| {
        let others = || (0..ranks).filter(move |&rank| rank != root);
        let up = others().map(|rank| vec![rank, net, root]).collect();
        let down = others().map(|rank| vec![root, net, rank]).collect();
        PlannedFlow { share, root, up, down }
    };
    let networks_at = ranks..ranks + networks.len();
    let flows = (0..roots).flat_map(|root| networks_at.clone().map(move |net| (root, net)));
    Ok(TreePlan {
        format: TREE_PLAN_FORMAT.to_owned(),
        collective: Collective::Allreduce,
        fabric: format!("{} networks", networks.len()),
        gpus: (0..ranks).collect(),
        rate_bps: Ratio::from(RATE_BPS * networks.len() as i64),
        flows: flows.map(|(root, net)| flow(root, net)).collect(),
        vertices: (0..ranks).map(|rank| format!("host{rank}")).chain(networks).collect(),
    })
}

/// Name of a network's vertex.
pub(super) fn name(network: usize) -> String {
    format!("net{network}")
}

/// The rate of links without a rate in topology files.
const RATE_BPS: i64 = 100_000_000;

#[cfg(test)]
mod tests {
    use super::super::routes::Routes;
    use super::super::shares::{Shares, Sharing};
    use super::super::{Origin, PlanSource};
    use super::*;

    #[test]
    fn all_networks_carry_every_tree() {
        for ranks in 2..6 {
            for count in 1..4 {
                let plan = plan(ranks, count, &[]).unwrap();
                for rank in 0..ranks {
                    let routes = Routes::of_rank(&plan, rank).unwrap();
                    assert_eq!(routes.peer_links.len(), (ranks - 1) * count);
                    let mean = routes.bytes_per_s.iter().sum::<f64>();
                    let least = (ranks - 1) as f64 / ranks as f64 * 2.0;
                    let all = RATE_BPS as f64 / 8.0 * count as f64;
                    assert!((mean - least * all).abs() < 1.0, "{ranks} ranks: {mean}");
                }
                let shares = Shares::of(&plan, Sharing::SameOrder);
                let moved = shares.after(&vec![9_000; plan.flows.len()]);
                assert!(moved.is_empty(), "equal times move nothing");
            }
        }
    }

    #[test]
    fn interfaces_are_named_once_and_must_be_there() {
        let of = PlanSource::over_interfaces;
        let two = of("lo, 10.0.0.7").unwrap();
        assert_eq!(two.origin, Origin::Networks(2));
        assert_eq!(two.ways["net1"].to_string(), "10.0.0.7");
        assert!(of("lo,127.0.0.1").unwrap_err().contains("\"127.0.0.1\" is named twice"));
        assert!(of("lo,eth99").unwrap_err().contains("\"eth99\" is no address"));
        assert!(of("").unwrap_err().contains("\"\" is no address"));
    }

    #[test]
    fn a_lost_network_is_left_out() {
        let lost = |net: usize| {
            let link = vec!["host0".to_owned(), name(net), "host2".to_owned()];
            LostLink { link, reason: "cut".to_owned() }
        };
        let left = plan(3, 2, &[lost(0)]).unwrap();
        assert_eq!(left.vertices[3..], ["net1"]);
        assert!(Routes::of_rank(&left, 1).is_ok());
        assert!(plan(3, 2, &[lost(0), lost(1)]).unwrap_err().contains("no network is left"));
    }
}
