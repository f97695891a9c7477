//! The parts of a topology, before ports are joined.

use netsum_topo::{OcsSpec, Ratio};

use super::pieces::Numbers;

/// Ports of one device that serve one tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The device, from 0.
    pub device: u32,
    /// Number of its ports, at least 3.
    pub ports: u32,
}

/// A graph of workers, devices and links in which any device may have any degree in any tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Woven {
    /// Whether the last tree, which is full, is part of the graph.
    pub tree: bool,
    /// The first device that serves no tree; the others follow.
    pub first: u32,
    /// Ports to workers of each of these devices.
    pub spare: Vec<u32>,
    /// Links between workers.
    pub links: u32,
}

/// Trees, rings and mesh side by side. Every worker port and device port is in at most one of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Composition {
    /// For each tree its devices; algbw 1 each.
    pub trees: Vec<Vec<Piece>>,
    /// Rings through all workers.
    pub rings: u32,
    /// Links of a mesh of workers, each link in both directions: 0, or N and more unless trees are
    /// folded. Its algbw is links/(N−1) where that many trees can be found, as
    /// [`synthesize`](super::synthesize) says.
    pub mesh_links: u32,
    /// The last `folded` of `trees` share their worker links with the mesh. None of them saves more than N − 3 ports.
    pub folded: usize,
    /// Devices and links between workers as one graph, with the last tree or by themselves.
    pub woven: Option<Woven>,
    /// Number of crossed classes of N/E devices each; 0, or 2 and more. Their devices come after all others that are
    /// used: see [`Composition::first_crossed`].
    pub crossed: u32,
}

impl Composition {
    /// The sum of the parts, slide 21: exact for trees and rings, an upper bound for the others.
    pub fn algbw(&self, spec: &OcsSpec) -> Ratio {
        let numbers = Numbers::of(spec);
        let trees = self.trees.len() as u64 * numbers.line();
        let rings = u64::from(self.rings) * numbers.n;
        let crossed =
            Ratio::new(i128::from(self.crossed) * numbers.e as i128, numbers.e as i128 + 1);
        let whole = crossed + numbers.rate(trees + rings + 2 * u64::from(self.mesh_links));
        let Some(woven) = &self.woven else { return whole };
        let links = i128::from(woven.spare.iter().sum::<u32>() + woven.links);
        let workers = numbers.n as i128;
        if !woven.tree {
            return whole + Ratio::new(links, workers - 1 + woven.spare.len() as i128);
        }
        let devices = self.trees.last().map_or(0, Vec::len) as i128;
        let gain = Ratio::new(links, workers - 1 + devices);
        // Two workers with a link between them have 2D − 1 links in all.
        let most = if woven.links > 0 { Ratio::new(1, 2) } else { Ratio::ONE };
        whole + gain.min(most)
    }

    /// The first device of crossed classes.
    pub(super) fn first_crossed(&self) -> u32 {
        let of_trees = self.trees.iter().flatten().map(|piece| piece.device + 1).max();
        let woven = self.woven.iter().map(|woven| woven.first + woven.spare.len() as u32).max();
        of_trees.unwrap_or(0).max(woven.unwrap_or(0))
    }

    /// Devices that serve a tree.
    pub fn devices(&self) -> u32 {
        let used: std::collections::HashSet<u32> =
            self.trees.iter().flatten().map(|piece| piece.device).collect();
        used.len() as u32
    }

    /// Trees with whole devices, numbered consecutively; the last device of a full tree contributes only the ports that
    /// are needed.
    pub(super) fn of_counts(numbers: &Numbers, counts: &[u64], rings: u64) -> Composition {
        let mut next = 0..;
        let tree = |&count: &u64| -> Vec<Piece> {
            let mut wanted = numbers.n - 2;
            let pieces = next.by_ref().take(count as usize).map(|device| {
                let saved = wanted.min(numbers.e - 2);
                wanted -= saved;
                Piece { device, ports: saved as u32 + 2 }
            });
            pieces.collect()
        };
        Composition {
            trees: counts.iter().map(tree).collect(),
            rings: rings as u32,
            ..Composition::default()
        }
    }
}
