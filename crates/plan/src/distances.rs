//! Distances between switches, in links over live switches.

use std::collections::HashSet;

use netsum_topo::{EdgeId, NodeId};

use crate::request::Request;

/// Links from the nearest of some switches to every switch within reach.
pub(crate) struct Distances(Vec<u32>);

impl Distances {
    /// From `starts`, which are live, without the links in `used`, to switches at most `most` links away.
    pub fn from(
        request: &Request,
        starts: &[NodeId],
        used: &HashSet<EdgeId>,
        most: usize,
    ) -> Distances {
        let topology = request.topology;
        let mut distance = vec![FAR; topology.nodes().count()];
        starts.iter().for_each(|start| distance[start.0 as usize] = 0);
        let (mut level, mut links) = (starts.to_vec(), 0);
        while !level.is_empty() && links < most {
            links += 1;
            let mut next = Vec::new();
            for &here in &level {
                for &(other, link) in topology.neighbours(here) {
                    let place = &mut distance[other.0 as usize];
                    if *place == FAR
                        && topology.is_switch(other)
                        && request.live.contains(&other)
                        && !used.contains(&link)
                    {
                        *place = links as u32;
                        next.push(other);
                    }
                }
            }
            level = next;
        }
        Distances(distance)
    }

    /// To a switch; `None` beyond reach.
    pub fn to(&self, switch: NodeId) -> Option<usize> {
        let distance = self.0[switch.0 as usize];
        (distance != FAR).then_some(distance as usize)
    }
}

const FAR: u32 = u32::MAX;
