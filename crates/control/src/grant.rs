//! Leases of protocol `atp`: slots at two levels of switches, fragments at servers.

use netsum_topo::{Fabric, NodeId, Plan, Tenant, Topology};

use crate::convert::address;
use crate::pb;
use crate::pb::slot_grant::Level;
use crate::racks::Racks;

/// The leases of a plan, one per tree node. `member`: UDP address of a rank. A job's claim is shared evenly by
/// its servers: their trees meet at the same switches.
pub(crate) fn of_plan(
    plan: &Plan,
    fabric: &Fabric,
    topology: &Topology,
    member: &dyn Fn(u32) -> Option<String>,
    idle_expiry_s: u32,
    tenant: &Tenant,
) -> Vec<(NodeId, pb::Lease)> {
    let servers = plan.trees.len().max(1) as u32;
    let claim = pb::SlotGrant {
        guaranteed: tenant.guaranteed / servers,
        limit: (tenant.limit / servers).max(1),
        priority: tenant.priority.into(),
        ..pb::SlotGrant::default()
    };
    let mut leases = Vec::new();
    for (number, tree) in (0..).zip(&plan.trees) {
        let message = pb::Tree::from_tree(number, tree, fabric, topology);
        let racks = message.racks().expect("the controller made the tree");
        for node in &tree.nodes {
            let name = topology.name(node.switch);
            let (grant, children) = grant(name, tree.root == node.switch, &racks, &claim);
            let child = |(name, ranks, (racks, workers)): Neighbour| pb::LeaseChild {
                address: match &name {
                    Some(switch) => fabric
                        .aggregator_address(switch)
                        .map(|address| address.to_string())
                        .unwrap_or_default(),
                    None => member(ranks[0]).unwrap_or_default(),
                },
                name: name.unwrap_or_else(|| format!("rank {}", ranks[0])),
                ranks,
                branch: 0,
                racks,
                workers,
            };
            let lease = pb::Lease {
                job: plan.job,
                tree: number,
                epoch: plan.epoch.into(),
                children: children.into_iter().map(child).collect(),
                parent_address: node
                    .parent
                    .as_ref()
                    .map(|parent| address(parent.switch, fabric, topology))
                    .unwrap_or_default(),
                slots: plan.window_max,
                fragment_bytes: plan.fragment_bytes,
                release_fraction: 1.0,
                idle_expiry_s,
                protocol: plan.protocol.to_string(),
                slot: Some(pb::SlotGrant { slot_space: plan.slot_space, ..grant }),
                key: None,
            };
            leases.push((node.switch, lease));
        }
    }
    leases
}

/// A switch's name or none for a worker, the ranks beneath it, its bits of racks and of workers.
type Neighbour = (Option<String>, Vec<u32>, (u32, u32));

fn grant(
    name: &str,
    is_server: bool,
    racks: &Racks,
    claim: &pb::SlotGrant,
) -> (pb::SlotGrant, Vec<Neighbour>) {
    let message = racks.racks.iter().map(|rack| pb::Rack { ranks: rack.ranks.clone() }).collect();
    let each = (0..).zip(&racks.racks).map(|(number, rack)| {
        (rack.switch.clone(), rack.ranks.clone(), (1 << number, racks.workers(number)))
    });
    let (level, rack, children) = match &racks.middle {
        Some(middle) if is_server => {
            let ranks = racks.racks.iter().flat_map(|rack| rack.ranks.clone()).collect();
            (Level::Server, 0, vec![(Some(middle.clone()), ranks, (racks.all_racks(), u32::MAX))])
        }
        None if is_server => (Level::Server, 0, each.collect()),
        Some(middle) if middle == name => (Level::ServerSwitch, 0, each.collect()),
        _ => {
            let of = |rack: &crate::RackOf| rack.switch.as_deref() == Some(name);
            let number = racks.racks.iter().position(of).expect("every other node is a rack's");
            let ranks = racks.racks[number].ranks.iter();
            let worker =
                |(bit, &rank): (u32, &u32)| (None, vec![rank], (1u32 << number, 1u32 << bit));
            (Level::Rack, number as u32, (0..).zip(ranks).map(worker).collect())
        }
    };
    (pb::SlotGrant { level: level.into(), rack, racks: message, ..claim.clone() }, children)
}
