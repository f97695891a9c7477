//! Plans as ranks hand over from one to the next.

use std::sync::Arc;

use netsum_lease::JobPlan;
use netsum_proto::handover::Plan;
use netsum_wire::Epoch;

use crate::convert::{plan_from_bytes, plan_to_bytes};

/// A plan of the controller, validated.
#[derive(Clone, Debug, PartialEq)]
pub struct ControllerPlan(pub Arc<JobPlan>);

impl Plan for ControllerPlan {
    fn epoch(&self) -> Epoch {
        Epoch(self.0.plan.epoch)
    }

    fn has_trees(&self) -> bool {
        !self.0.plan.trees.is_empty()
    }

    fn continues(&self, before: &ControllerPlan) -> bool {
        // Protocols differ in the formats that they can add: an operation that one rank has begun over the hosts must not
        // go over the trees of another protocol at the others.
        let (plan, before) = (&self.0.plan, &before.0.plan);
        let of = |plan: &netsum_topo::Plan| (plan.fragment_bytes, plan.protocol, plan.copies);
        of(plan) == of(before)
    }

    fn patience_ns(&self) -> u64 {
        self.0.patience_ns()
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(plan_to_bytes(&self.0));
    }

    fn decode(bytes: &[u8], size: u32) -> Result<ControllerPlan, String> {
        let plan = plan_from_bytes(bytes, size).map_err(|error| error.to_string())?;
        Ok(ControllerPlan(Arc::new(plan)))
    }
}

#[cfg(test)]
mod tests {
    use netsum_lease::Aggregator;
    use netsum_topo::{
        AggregationTree, Child, CongestionRule, NodeId, Protocol, SumOrder, TreeNode,
    };

    use super::*;

    fn plan(epoch: u16, fragment_bytes: u32) -> ControllerPlan {
        let root = NodeId(0);
        let children = vec![Child::Rank(0), Child::Rank(1)];
        let nodes = vec![TreeNode { switch: root, children, parent: None }];
        let address = Some("127.0.0.1:1".parse().unwrap());
        ControllerPlan(Arc::new(JobPlan {
            plan: netsum_topo::Plan {
                job: 1,
                epoch,
                order: SumOrder::flat(2),
                protocol: Protocol::Panama,
                choice: String::new(),
                trees: vec![AggregationTree { root, nodes }],
                copies: false,
                fragment_bytes,
                window_max: 8,
                slot_space: 0,
                scale: 0.0,
                release_fraction: 1.0,
                congestion: CongestionRule::Panama,
                min_bytes: 0,
                reason: String::new(),
            },
            aggregators: vec![Aggregator { name: "s".to_owned(), address }],
            key_id: 0,
        }))
    }

    fn encoded(plan: &ControllerPlan) -> Vec<u8> {
        let mut bytes = Vec::new();
        plan.encode(&mut bytes);
        bytes
    }

    #[test]
    fn plans_are_validated_as_they_are_read() {
        let valid = plan(65_535, 1408);
        let bytes = encoded(&valid);
        assert_eq!(ControllerPlan::decode(&bytes, 2), Ok(valid));
        assert!(ControllerPlan::decode(&bytes, 3).is_err(), "its order is not of three ranks");
        assert!(ControllerPlan::decode(&bytes[1..], 2).is_err());
        assert!(ControllerPlan::decode(&encoded(&plan(0, 1408)), 2).is_err(), "epoch 0");
    }

    #[test]
    fn operations_go_on_where_fragments_and_protocol_are_as_before() {
        let before = plan(1, 1408);
        assert!(plan(2, 1408).continues(&before) && !plan(2, 704).continues(&before));
        let mut other = (*plan(2, 1408).0).clone();
        other.plan.protocol = Protocol::Atp;
        assert!(!ControllerPlan(Arc::new(other)).continues(&before));
    }
}
