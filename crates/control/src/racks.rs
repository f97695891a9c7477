//! Racks of a tree of protocol `atp`, as workers, switches and the server see it alike.

use crate::error::ControlError;
use crate::message::malformed;
use crate::pb;
use crate::pb::tree_child::Child;

/// The two levels of a tree: racks, and the switch of the server's rack if that adds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Racks {
    /// The switch of the server's rack.
    pub middle: Option<String>,
    /// By number.
    pub racks: Vec<RackOf>,
}

/// Workers that a switch adds first, or one worker alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RackOf {
    /// Its switch; `None`: its only worker sends to the server's rack, or to the server.
    pub switch: Option<String>,
    /// By number in the rack.
    pub ranks: Vec<u32>,
}

/// The widest bitmaps of the protocol.
pub(crate) const FAN_IN_MAX: usize = 32;

impl Racks {
    /// Rack and number in it of a rank.
    pub fn find(&self, rank: u32) -> Option<(usize, usize)> {
        let place = |rack: &RackOf| rack.ranks.iter().position(|&other| other == rank);
        self.racks.iter().enumerate().find_map(|(number, rack)| Some((number, place(rack)?)))
    }

    /// Bits of all racks.
    pub(crate) fn all_racks(&self) -> u32 {
        all(self.racks.len())
    }

    /// Bits of the workers of a rack.
    pub(crate) fn workers(&self, rack: usize) -> u32 {
        all(self.racks[rack].ranks.len())
    }

    /// Whether it holds ranks `0..size` once each within the protocol's bounds.
    pub(crate) fn check(&self, size: u32) -> Result<(), ControlError> {
        let sizes = self.racks.iter().map(|rack| rack.ranks.len()).chain([self.racks.len()]);
        if let Some(wrong) = sizes.into_iter().find(|&n| n == 0 || n > FAN_IN_MAX) {
            return Err(malformed(format!("{wrong} members of a level; it has 1 to {FAN_IN_MAX}")));
        }
        let mut ranks: Vec<u32> = self.racks.iter().flat_map(|rack| &rack.ranks).copied().collect();
        ranks.sort_unstable();
        match ranks.into_iter().eq(0..size) {
            true => Ok(()),
            false => Err(malformed(format!("racks do not hold ranks 0..{size} once each"))),
        }
    }
}

/// The lowest `count` bits.
pub(crate) fn all(count: usize) -> u32 {
    u32::MAX.checked_shr(32 - count.min(32) as u32).unwrap_or(0)
}

impl pb::Tree {
    /// Its racks. Errors: a child that is no node of the tree, or that holds more than workers.
    pub fn racks(&self) -> Result<Racks, ControlError> {
        let node = |name: &str| {
            let found = self.nodes.iter().find(|node| node.switch == name);
            found.ok_or_else(|| malformed(format!("{name:?} is no node of its tree")))
        };
        let root = node(&self.root)?;
        let (middle, level) = match root.children.as_slice() {
            [pb::TreeChild { child: Some(Child::Switch(name)), .. }] => {
                (Some(name.clone()), &node(name)?.children)
            }
            children => (None, &children.to_vec()),
        };
        let worker = |child: &pb::TreeChild| match child.child {
            Some(Child::Rank(rank)) => Ok(rank),
            _ => Err(malformed("a rack that holds more than workers")),
        };
        let rack = |child: &pb::TreeChild| -> Result<RackOf, ControlError> {
            match &child.child {
                Some(Child::Switch(name)) => Ok(RackOf {
                    switch: Some(name.clone()),
                    ranks: node(name)?.children.iter().map(worker).collect::<Result<_, _>>()?,
                }),
                _ => Ok(RackOf { switch: None, ranks: vec![worker(child)?] }),
            }
        };
        let racks: Result<Vec<RackOf>, ControlError> = level.iter().map(rack).collect();
        Ok(Racks { middle, racks: racks? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, children: Vec<Child>) -> pb::TreeNode {
        let child = |child| pb::TreeChild { child: Some(child), branch: 0 };
        let children = children.into_iter().map(child).collect();
        pb::TreeNode { switch: name.to_owned(), children, ..Default::default() }
    }

    fn switch(name: &str) -> Child {
        Child::Switch(name.to_owned())
    }

    fn tree(nodes: Vec<pb::TreeNode>) -> pb::Tree {
        pb::Tree { tree: 0, root: "ps".to_owned(), nodes }
    }

    fn rack(switch: Option<&str>, ranks: &[u32]) -> RackOf {
        RackOf { switch: switch.map(str::to_owned), ranks: ranks.to_vec() }
    }

    #[test]
    fn levels_follow_from_the_tree() {
        let two = vec![
            node("ps", vec![switch("a")]),
            node("a", vec![switch("b"), Child::Rank(2), Child::Rank(3)]),
            node("b", vec![Child::Rank(0), Child::Rank(1)]),
        ];
        let racks = tree(two.clone()).racks().unwrap();
        assert_eq!(racks.middle.as_deref(), Some("a"));
        assert_eq!(racks.racks, [rack(Some("b"), &[0, 1]), rack(None, &[2]), rack(None, &[3])]);
        assert_eq!(
            (racks.find(1), racks.find(3), racks.find(4)),
            (Some((0, 1)), Some((2, 0)), None)
        );
        assert!(racks.check(4).is_ok() && racks.check(5).is_err());
        let bare = vec![
            node("ps", vec![switch("b"), Child::Rank(2)]),
            node("b", vec![Child::Rank(0), Child::Rank(1)]),
        ];
        let racks = tree(bare).racks().unwrap();
        assert_eq!(racks.middle, None);
        assert_eq!(racks.racks, [rack(Some("b"), &[0, 1]), rack(None, &[2])]);
        let deep = [two, vec![node("c", vec![])]].concat();
        let mut deep = tree(deep);
        deep.nodes[2].children[0].child = Some(switch("c"));
        assert!(deep.racks().is_err());
        assert_eq!((all(0), all(3), all(32)), (0, 7, u32::MAX));
    }
}
