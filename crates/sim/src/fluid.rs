//! Fluid flows: at every moment each flow has its max-min share of the links that it uses. There are no queues or
//! delays.
//!
//! Completion times of packet flows are compared with it. Sources: Bertsekas and Gallager, Data Networks, 6.5.2
//! (progressive filling); with one link it is processor sharing.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// A link, and how much of the flow's rate crosses it: 1, less if the flow is spread over several paths, and more if it
/// stands for several connections that advance together.
pub type Use = (u32, f64);

/// Active flows and their rates. The caller chooses the units of amounts, times and capacities.
pub struct Fluid {
    now: f64,
    capacity: Vec<f64>,
    flows: Vec<Flow>,
    /// Flows were added or removed: rates must be computed again.
    stale: bool,
    filling: Filling,
}

struct Flow {
    number: u32,
    left: f64,
    rate: f64,
    uses: Arc<[Use]>,
}

impl Fluid {
    /// A fluid without flows at time 0. `capacity`: amount per time, by link, above 0.
    pub fn new(capacity: Vec<f64>) -> Fluid {
        assert!(capacity.iter().all(|&c| c > 0.0), "a link that carries nothing");
        let filling =
            Filling { links: vec![Level::default(); capacity.len()], ..Filling::default() };
        Fluid { now: 0.0, capacity, flows: Vec::new(), stale: false, filling }
    }

    /// Starts a flow now; it uses at least one link, and none twice.
    pub fn start(&mut self, number: u32, amount: f64, uses: impl Into<Arc<[Use]>>) {
        let uses = uses.into();
        assert!(!uses.is_empty(), "a flow without a link is never limited");
        self.flows.push(Flow { number, left: amount, rate: 0.0, uses });
        self.stale = true;
    }

    /// Advances to `until`, or to the first completion: returns the number of the completed flow, or `None` at `until`.
    pub fn next(&mut self, until: f64) -> Option<u32> {
        self.share();
        let ends = |flow: &Flow| self.now + flow.left / flow.rate;
        let first = (0..self.flows.len()).map(|at| (ends(&self.flows[at]), at)).min_by(|a, b| {
            a.0.total_cmp(&b.0).then(self.flows[a.1].number.cmp(&self.flows[b.1].number))
        });
        let ended = first.filter(|&(end, _)| end <= until);
        let to = ended.map_or(until, |(end, _)| end).max(self.now);
        let past = to - self.now;
        self.flows.iter_mut().for_each(|flow| flow.left = (flow.left - flow.rate * past).max(0.0));
        self.now = to;
        let (_, at) = ended?;
        self.stale = true;
        Some(self.flows.swap_remove(at).number)
    }

    /// The current time.
    pub fn now(&self) -> f64 {
        self.now
    }

    /// Active flows: number and remaining amount of each, in no order.
    pub fn left(&self) -> impl Iterator<Item = (u32, f64)> {
        self.flows.iter().map(|flow| (flow.number, flow.left))
    }

    /// Active flows: number and rate of each, in no order.
    pub fn rates(&mut self) -> impl Iterator<Item = (u32, f64)> {
        self.share();
        self.flows.iter().map(|flow| (flow.number, flow.rate))
    }

    fn share(&mut self) {
        if std::mem::take(&mut self.stale) {
            self.filling.fill(&self.capacity, &mut self.flows);
        }
    }
}

/// Progressive filling: all rates grow together; flows on a full link keep their rate, the others continue to grow.
#[derive(Default)]
struct Filling {
    links: Vec<Level>,
    /// Links in use.
    used: Vec<u32>,
    /// Flows by link: those of link l are `users[links[l].start..][..links[l].count]`.
    users: Vec<u32>,
    next: BinaryHeap<Reverse<(Bits, u32)>>,
}

#[derive(Clone, Default)]
struct Level {
    start: u32,
    count: u32,
    /// Number of these flows whose rate still grows.
    growing: u32,
    /// Sum over the growing flows of the fraction that crosses the link.
    part: f64,
    /// Capacity that fixed rates leave.
    free: f64,
}

impl Level {
    /// The rate at which the link is full.
    fn rate(&self) -> Bits {
        Bits((self.free / self.part).max(0.0).to_bits())
    }
}

/// A non-negative number with a total order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Bits(u64);

impl Filling {
    fn fill(&mut self, capacity: &[f64], flows: &mut [Flow]) {
        self.index(capacity, flows);
        for &link in &self.used {
            self.next.push(Reverse((self.links[link as usize].rate(), link)));
        }
        flows.iter_mut().for_each(|flow| flow.rate = f64::INFINITY);
        while let Some(Reverse((rate, link))) = self.next.pop() {
            let level = &self.links[link as usize];
            if level.growing == 0 {
                continue;
            }
            // A flow with a fixed rate leaves more to the others: the bound in the heap may be too low, never too high.
            let now = level.rate();
            if now > rate {
                self.next.push(Reverse((now, link)));
                continue;
            }
            for at in level.start..level.start + level.count {
                let flow = &mut flows[self.users[at as usize] as usize];
                if flow.rate == f64::INFINITY {
                    flow.rate = f64::from_bits(rate.0);
                    for &(link, part) in &*flow.uses {
                        let level = &mut self.links[link as usize];
                        level.growing -= 1;
                        level.part -= part;
                        level.free -= part * flow.rate;
                    }
                }
            }
        }
    }

    fn index(&mut self, capacity: &[f64], flows: &[Flow]) {
        self.used.drain(..).for_each(|link| self.links[link as usize] = Level::default());
        let uses = || flows.iter().flat_map(|flow| &*flow.uses);
        for &(link, part) in uses() {
            let level = &mut self.links[link as usize];
            if level.growing == 0 {
                self.used.push(link);
                level.free = capacity[link as usize];
            }
            level.growing += 1;
            level.part += part;
        }
        let mut start = 0;
        for &link in &self.used {
            let level = &mut self.links[link as usize];
            level.start = start;
            start += level.growing;
        }
        self.users.resize(start as usize, 0);
        for (number, flow) in flows.iter().enumerate() {
            for &(link, _) in &*flow.uses {
                let level = &mut self.links[link as usize];
                self.users[(level.start + level.count) as usize] = number as u32;
                level.count += 1;
            }
        }
    }
}
