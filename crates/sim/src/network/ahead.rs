//! Looks ahead at the deliveries of the next moments, so that the memory they need comes into the cache together.
//!
//! Of large fabrics most is not in the cache: a delivery needs its link, the packet, the route, the next link and that
//! one's queue, and would wait for each in turn. Of several deliveries the processor fetches the same step at the same
//! time, since they do not depend on each other. It reads only; what it has looked up is what `arrive` would find.

use std::hint::black_box;
use std::sync::Arc;

use crate::calendar::Delivery;
use crate::fifo::Pool;
use crate::link::{Link, TO_HOST};
use crate::packet::{Kind, NO_LINK};
use crate::routes::{Routes, along};

/// A packet that reaches a host soon.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    /// Its flow.
    pub flow: u32,
    /// `Data` or `Ack`.
    pub kind: Kind,
}

/// Looks ahead at a bucket's deliveries, and at the packets among them that reach hosts. Each loop reads one more thing
/// per delivery.
#[inline(never)]
pub(super) fn look_ahead(
    batch: &mut [Delivery],
    expected: &mut Vec<Expected>,
    (links, pool): (&[Link], &Pool),
    (routes, paths): (&Routes, &[Arc<[u32]>]),
) {
    expected.clear();
    let mut sum = 0;
    for next in &mut *batch {
        let link = &links[next.link as usize];
        sum ^= link.queue().touch_second(pool);
        let packet = link.queue().first(pool);
        next.onward = match packet.kind() {
            // Not a link yet, but where the route to it stands.
            Kind::Data | Kind::Ack if link.state & TO_HOST == 0 => routes.place(link.to, packet),
            Kind::Tree => {
                sum ^= paths[packet.flow as usize].len() as u32;
                NO_LINK
            }
            kind => {
                expected.push(Expected { flow: packet.flow, kind });
                NO_LINK
            }
        };
    }
    for next in &mut *batch {
        let link = &links[next.link as usize];
        let packet = link.queue().first(pool);
        let onward = match packet.kind() {
            Kind::Tree => along(paths, next.link, packet),
            _ if link.state & TO_HOST == 0 => routes.at(next.onward, link.to, packet),
            // A host answers on the link's other direction.
            _ => Some(next.link ^ 1),
        };
        next.onward = onward.unwrap_or(NO_LINK);
    }
    let on = |onward: u32| links.get(onward as usize);
    for next in &*batch {
        sum ^= on(next.onward).map_or(0, |link| link.to);
    }
    black_box(sum);
    for next in &*batch {
        sum ^= on(next.onward).map_or(0, |link| link.queue().touch_last(pool));
    }
    black_box(sum);
}
