//! The most worker ports that devices can save if a device may serve several trees.

use super::composition::Piece;
use super::pieces::Numbers;

/// The most that spare devices can save beyond those that fill trees whole.
///
/// A device that serves j trees saves E − 2j worker ports. Whole devices fill all trees as far as possible; groups of
/// trees then share further devices end to end: d trees and e devices lose 2 ports at each of d − 1 cuts. A small
/// dynamic programme finds the best groups.
pub(super) struct Savings {
    /// Number of whole devices of a tree, and the saving that then remains.
    pub whole: u64,
    left: u64,
    /// By trees and spare devices: the most saved, and the group (trees, devices) taken last.
    table: Vec<Vec<(u64, (usize, usize))>>,
}

impl Savings {
    pub fn of(numbers: &Numbers) -> Savings {
        let each = numbers.e - 2;
        let whole = (numbers.n - 2).checked_div(each).unwrap_or(0);
        let left = (numbers.n - 2).checked_rem(each).unwrap_or(0);
        let most = if left > 0 { numbers.d as usize } else { 0 };
        let mut table = vec![vec![(0, (0, 0)); most + 1]; most + 1];
        for trees in 1..=most {
            for devices in 0..=most {
                let mut best = (table[trees - 1][devices].0, (1, 0));
                for group in 1..=trees.min(GROUP_MAX) {
                    for own in 1..=group.min(devices) {
                        let kept = (own as u64 * each).saturating_sub(2 * (group as u64 - 1));
                        let saved =
                            kept.min(group as u64 * left) + table[trees - group][devices - own].0;
                        if saved > best.0 {
                            best = (saved, (group, own));
                        }
                    }
                }
                table[trees][devices] = best;
            }
        }
        Savings { whole, left, table }
    }

    fn spare(&self, numbers: &Numbers, trees: u64) -> usize {
        let most = self.table.len() as u64 - 1;
        numbers.m.saturating_sub(trees * self.whole).min(trees).min(most) as usize
    }

    pub fn most(&self, numbers: &Numbers, trees: u64) -> u64 {
        let whole = numbers.m.min(trees * self.whole) * (numbers.e - 2);
        let of_trees = trees.min(self.table.len() as u64 - 1) as usize;
        whole + self.table[of_trees][self.spare(numbers, trees)].0
    }

    /// The devices of each tree. Devices of a group are laid end to end along its trees.
    pub fn layout(&self, numbers: &Numbers, trees: u64) -> Vec<Vec<Piece>> {
        let mut devices = Supply { next: 0, rest: None, ports: numbers.e as u32 };
        let mut out = Vec::new();
        if numbers.m <= trees * self.whole || self.left == 0 {
            let budget = numbers.m.min(trees * self.whole);
            for tree in 0..trees {
                let count = budget / trees + u64::from(tree < budget % trees);
                out.push(devices.tree(numbers.n - 2, count as u32));
                devices.rest = None;
            }
            return out;
        }
        let (mut open, mut spare) = (trees as usize, self.spare(numbers, trees));
        while open > 0 {
            let (group, own) = self.table[open][spare].1;
            let mut budget = (group as u64 * self.whole) as u32 + own as u32;
            for _ in 0..group {
                let before = devices.next;
                out.push(devices.tree(numbers.n - 2, budget));
                budget -= devices.next - before;
            }
            devices.rest = None;
            (open, spare) = (open - group, spare - own);
        }
        out
    }
}

/// Devices in order; the last one may be used in part.
struct Supply {
    next: u32,
    rest: Option<Piece>,
    ports: u32,
}

impl Supply {
    /// Pieces that save `wanted` ports or as many as possible, using at most `budget` new devices.
    fn tree(&mut self, mut wanted: u64, mut budget: u32) -> Vec<Piece> {
        let mut pieces = Vec::new();
        while wanted > 0 {
            let piece = match self.rest.take() {
                Some(piece) => piece,
                None if budget > 0 => {
                    budget -= 1;
                    self.next += 1;
                    Piece { device: self.next - 1, ports: self.ports }
                }
                None => break,
            };
            let ports = piece.ports.min(wanted as u32 + 2);
            wanted -= u64::from(ports) - 2;
            pieces.push(Piece { ports, ..piece });
            let over = piece.ports - ports;
            self.rest = (over > 2).then_some(Piece { ports: over, ..piece });
        }
        pieces
    }
}

/// Most trees that share devices end to end. More gain less than a port per tree.
const GROUP_MAX: usize = 16;
