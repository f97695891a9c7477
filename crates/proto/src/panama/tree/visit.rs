//! A tree node's state on a visit.

use super::scoped::News;
use super::{Cap, Phase, Shape, Slot, Tree, TreeCounters};
use crate::visit::{Counted, Visitor};

impl<B: Copy> Tree<B> {
    /// Visits the state; `stored` visits a stored packet.
    pub(crate) fn visit<V: Visitor>(&mut self, v: &mut V, mut stored: impl FnMut(&mut V, B)) {
        let Tree {
            lease,
            counters,
            slots,
            port_buffers,
            released,
            retained_from,
            cap,
            // Of partial synchronisation.
            has_results_below: _,
            results_below: _,
            told_parent: _,
            refused_below,
            finished,
            news,
            empties,
            told,
            meter,
            began,
            last_seen,
        } = self;
        v.of_job(lease.job);
        v.of_tree(lease.tree);
        if lease.is_partial() || told.iter().any(Option::is_some) {
            v.unlike();
        }
        counters.visit(v);
        v.same(u64::from(lease.tree.0) << 32 | u64::from(lease.epoch.0));
        cap.visit(v);
        let (first, mask, children) = (*retained_from, slots.len() - 1, lease.children.len());
        for number in [released, &mut *retained_from, refused_below] {
            v.number_u32(number, Counted::Vids);
        }
        for place in 0..slots.len() {
            let index = (first as usize + place) & mask;
            let slot = &mut slots[index];
            v.same(slot.is_some().into());
            let Some(slot) = slot else { continue };
            slot.visit(v, &mut stored);
            let buffers = &port_buffers[index * children..(index + 1) * children];
            for buffer in buffers {
                v.same(buffer.is_some().into());
                buffer.iter().for_each(|&buffer| stored(v, buffer));
            }
            // The meter takes it from fragments that are not complete.
            if slot.phase == Phase::Filling {
                began[index].visit(v);
            }
        }
        v.set(*finished);
        v.same(empties.len() as u64);
        empties.iter_mut().for_each(|vid| v.number_u32(vid, Counted::Vids));
        news.visit(v, [first, *retained_from], slots.len() as u32);
        meter.visit(v);
        // A packet sets it before anything else.
        v.unread(last_seen);
        let by = retained_from.wrapping_sub(first) as usize & mask;
        slots.rotate_right(by);
        began.rotate_right(by);
        port_buffers.rotate_right(by * children);
    }
}

impl<B: Copy> Slot<B> {
    fn visit<V: Visitor>(&mut self, v: &mut V, stored: &mut impl FnMut(&mut V, B)) {
        let Slot {
            phase,
            arrived,
            asked,
            contradicted,
            marks,
            cap,
            missing,
            asking,
            down,
            shape,
            sum,
        } = self;
        v.same((*phase as u64) << 32 | u64::from(*down) << 16 | u64::from(*cap));
        v.set(*arrived);
        v.same((*marks).into());
        v.same(*missing);
        if *contradicted != 0 {
            v.unlike();
        }
        v.set(*asked);
        v.set(*asking);
        v.same(shape.is_some().into());
        if let Some(Shape { chunk, format, n_elems, parties }) = shape {
            v.number_u32(chunk, Counted::Chunks);
            v.format(*format);
            let (code, rank) = (parties.code(), parties.rank());
            v.same(u64::from(code) << 24 | u64::from(rank) << 16 | u64::from(*n_elems));
        }
        v.same(sum.is_some().into());
        sum.iter().for_each(|&sum| stored(v, sum));
    }
}

impl Cap {
    fn visit(&mut self, v: &mut impl Visitor) {
        let Cap { announced, accepted, retained, obeyed_from } = self;
        [*announced, *accepted, *retained].into_iter().for_each(|n| v.same(n.into()));
        // Nothing waits for it once every worker obeys.
        if announced != accepted || announced != retained {
            v.number_u32(obeyed_from, Counted::Vids);
        }
    }
}

impl TreeCounters {
    fn visit(&mut self, v: &mut impl Visitor) {
        let TreeCounters {
            contributions,
            released,
            released_partially,
            results,
            duplicates,
            answered,
            waiting,
            late,
            marked,
            mismatches,
        } = self;
        let sums = [contributions, released, released_partially, results, marked];
        let others = [duplicates, answered, waiting, late, mismatches];
        sums.into_iter().chain(others).for_each(|count| v.count(count));
    }
}

impl News {
    /// Visits the state. `first`: the lowest retained vid, before and after the visit; slots are `spread` vids.
    fn visit(&mut self, v: &mut impl Visitor, first: [u32; 2], spread: u32) {
        let News { marks, down, answered, below, complete } = self;
        marks.iter().for_each(|marks| v.same((*marks).into()));
        v.set(*down);
        answered.iter_mut().for_each(|vid| v.number_u32(vid, Counted::Vids));
        v.same(below.is_some().into());
        // Without vids below, none is complete.
        if let Some(below) = below {
            v.number_u32(below, Counted::Vids);
            complete.visit(v, first, spread);
        }
    }
}
