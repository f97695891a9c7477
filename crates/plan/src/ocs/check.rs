//! Replays a plan: ports, every contribution, the load of every circuit. Shares no code with the planner.

use netsum_topo::{Circuit, OcsEnd, OcsNode, OcsPorts, OcsSpec, Ratio, lcm};
use serde::Serialize;

use super::error::OcsViolation;
use super::plan::{Lane, OcsPlan};

/// Properties of a valid plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Buffer per time, in units of one port.
    pub algbw: Ratio,
    /// The highest load of a circuit, at most 1.
    pub load_max: Ratio,
    /// Circuits over the number of transmitters.
    pub ports_used: Ratio,
    /// Fewest and most transmitters in use at a worker.
    pub worker_degrees: (u32, u32),
    /// Number of devices with a circuit.
    pub devices_used: u32,
    /// Most consecutive circuits from a contribution to the root of a tree; a ring counts N − 1.
    pub height: u32,
}

/// Checks that a plan is possible and computes an allreduce: every port in at most one circuit each way; with paired
/// ports, circuits in pairs; every lane adds each worker's contribution exactly once and takes the sum to every worker;
/// no circuit exceeds its rate.
pub fn check(plan: &OcsPlan) -> Result<Report, OcsViolation> {
    if let Some(problem) = plan.spec.problem() {
        return Err(OcsViolation { place: plan.spec.to_string(), problem });
    }
    let replay = Replay { plan, spec: &plan.spec };
    replay.ports()?;
    let scale = replay.scale()?;
    let mut loads = vec![0; plan.circuits.len()];
    let (mut total, mut height) = (0i128, 0);
    for (index, lane) in plan.lanes.iter().enumerate() {
        let lane_height = match lane {
            Lane::Tree { root, reduce, broadcast, .. } => {
                replay.indices(index, reduce.iter().chain(broadcast))?;
                replay.tree(index, *root, reduce, broadcast)?
            }
            Lane::Ring { circuits, .. } => {
                replay.indices(index, circuits.iter())?;
                replay.ring(index, circuits)?
            }
        };
        height = height.max(lane_height);
        let carried = (lane.share() * Ratio::new(scale, 1)).num();
        total += carried;
        match lane {
            Lane::Tree { reduce, broadcast, .. } => {
                reduce.iter().chain(broadcast).for_each(|&at| loads[at as usize] += carried);
            }
            Lane::Ring { circuits, .. } => {
                // Of N chunks, each circuit carries all but one on the way to the sum, and as many on the way back.
                let workers = i128::from(plan.spec.workers);
                let each = carried * 2 * (workers - 1) / workers;
                circuits.iter().for_each(|&at| loads[at as usize] += each);
            }
        }
    }
    if let Some(at) = (0..loads.len()).find(|&at| loads[at] > scale) {
        let load = Ratio::new(loads[at], scale);
        return replay.fail(replay.circuit_name(at), format!("carries {load}, more than its rate"));
    }
    Ok(replay.report(Ratio::new(total, scale), loads, scale, height))
}

struct Replay<'a> {
    plan: &'a OcsPlan,
    spec: &'a OcsSpec,
}

impl Replay<'_> {
    fn ports(&self) -> Result<(), OcsViolation> {
        let slots = |node: OcsNode| self.spec.ports_of(node) as usize;
        let mut ports: Vec<[Vec<Option<usize>>; 2]> = (0..self.spec.nodes())
            .map(|node| [vec![None; slots(OcsNode(node))], vec![None; slots(OcsNode(node))]])
            .collect();
        for (index, &Circuit { from, to }) in self.plan.circuits.iter().enumerate() {
            for (way, end) in [from, to].into_iter().enumerate() {
                let slot = (ports.get_mut(end.node.0 as usize))
                    .and_then(|ways| ways[way].get_mut(end.port as usize));
                match slot {
                    None => {
                        let problem =
                            format!("{} has no port {}", self.spec.name(end.node), end.port);
                        return self.fail(format!("circuit {index}"), problem);
                    }
                    Some(Some(other)) => {
                        let what = ["transmitter", "receiver"][way];
                        let problem = format!("its {what} is in circuit {other} too");
                        return self.fail(self.circuit_name(index), problem);
                    }
                    Some(slot) => *slot = Some(index),
                }
            }
            if from.node == to.node {
                return self.fail(self.circuit_name(index), "joins a node to itself".to_owned());
            }
        }
        if self.spec.ports == OcsPorts::Paired {
            for (index, circuit) in self.plan.circuits.iter().enumerate() {
                let back = ports[circuit.to.node.0 as usize][0][circuit.to.port as usize];
                if back.is_none_or(|back| self.plan.circuits[back].to != circuit.from) {
                    let problem = "ports are paired, but nothing leads back".to_owned();
                    return self.fail(self.circuit_name(index), problem);
                }
            }
        }
        Ok(())
    }

    /// A factor that makes all shares whole numbers, and all chunks of rings.
    fn scale(&self) -> Result<i128, OcsViolation> {
        let workers = i128::from(self.spec.workers);
        let mut scale = workers;
        for (index, lane) in self.plan.lanes.iter().enumerate() {
            let share = lane.share();
            if share <= Ratio::ZERO || share > Ratio::from(SHARE_MAX) {
                return self.fail_lane(index, format!("a share of {share} is not possible"));
            }
            let common = lcm(scale, share.den() * workers).filter(|&common| common <= SCALE_MAX);
            let Some(common) = common else {
                let problem = format!("its share of {share} has no common unit with the others");
                return self.fail_lane(index, problem);
            };
            scale = common;
        }
        Ok(scale)
    }

    fn indices<'a>(
        &self,
        lane: usize,
        mut circuits: impl Iterator<Item = &'a u32>,
    ) -> Result<(), OcsViolation> {
        match circuits.find(|&&at| at as usize >= self.plan.circuits.len()) {
            None => Ok(()),
            Some(at) => self.fail_lane(lane, format!("there is no circuit {at}")),
        }
    }

    /// Adds the contributions along `reduce`, then follows `broadcast`. Returns the height.
    fn tree(
        &self,
        lane: usize,
        root: OcsNode,
        reduce: &[u32],
        broadcast: &[u32],
    ) -> Result<u32, OcsViolation> {
        let nodes = self.spec.nodes() as usize;
        if root.0 as usize >= nodes {
            return self.fail_lane(lane, format!("there is no node {}", root.0));
        }
        let ends = |at: &u32| {
            let Circuit { from, to } = self.plan.circuits[*at as usize];
            (from.node.0 as usize, to.node.0 as usize)
        };
        let mut to = vec![None; nodes];
        let mut awaited = vec![0u32; nodes];
        for (from, into) in reduce.iter().map(ends) {
            if to[from].replace(into).is_some() {
                return self.fail_node(lane, from, "sends its partial twice");
            }
            awaited[into] += 1;
        }
        // By node: whose contributions it has added, and over how many circuits the latest came.
        let mut sums: Vec<Option<(Contributions, u32)>> = (0..nodes).map(|_| None).collect();
        let own = |node: usize| Contributions::of(node, self.spec);
        let mut ready: Vec<usize> =
            (0..nodes).filter(|&node| awaited[node] == 0 && to[node].is_some()).collect();
        let mut sent = 0;
        while let Some(node) = ready.pop() {
            let (sum, height) = sums[node].take().unwrap_or_else(|| (own(node), 0));
            if sum.count() == 0 {
                return self.fail_node(lane, node, "sends a partial of nothing");
            }
            let Some(into) = to[node] else { continue };
            let (above, depth) = sums[into].get_or_insert_with(|| (own(into), 0));
            if !above.add(&sum) {
                return self.fail_node(lane, into, "adds a contribution twice");
            }
            *depth = (*depth).max(height + 1);
            sent += 1;
            awaited[into] -= 1;
            if awaited[into] == 0 && into != root.0 as usize {
                ready.push(into);
            }
        }
        let at_root = root.0 as usize;
        if to[at_root].is_some() {
            return self.fail_node(lane, at_root, "is the root and sends a partial");
        }
        let (sum, height) = sums[at_root].take().unwrap_or_else(|| (own(at_root), 0));
        if sum.count() != self.spec.workers {
            let problem =
                format!("its root has {} of {} contributions", sum.count(), self.spec.workers);
            return self.fail_lane(lane, problem);
        }
        if sent < reduce.len() {
            return self.fail_lane(lane, "a partial waits for itself".to_owned());
        }
        self.spread(lane, at_root, broadcast.iter().map(ends))?;
        Ok(height)
    }

    fn spread(
        &self,
        lane: usize,
        root: usize,
        ways: impl Iterator<Item = (usize, usize)>,
    ) -> Result<(), OcsViolation> {
        let mut next: Vec<Vec<usize>> = vec![Vec::new(); self.spec.nodes() as usize];
        let mut circuits = 0;
        for (from, to) in ways {
            next[from].push(to);
            circuits += 1;
        }
        let mut has = vec![false; next.len()];
        has[root] = true;
        let mut stack = vec![root];
        let mut used = 0;
        while let Some(node) = stack.pop() {
            for &to in &next[node] {
                used += 1;
                if std::mem::replace(&mut has[to], true) {
                    return self.fail_node(lane, to, "gets the result twice");
                }
                stack.push(to);
            }
        }
        if let Some(worker) = (0..self.spec.workers as usize).find(|&worker| !has[worker]) {
            return self.fail_node(lane, worker, "never gets the result");
        }
        if used < circuits {
            return self.fail_lane(lane, "a circuit spreads a result that never comes".to_owned());
        }
        Ok(())
    }

    /// Passes every chunk around the ring, adding at each worker.
    fn ring(&self, lane: usize, circuits: &[u32]) -> Result<u32, OcsViolation> {
        let workers = self.spec.workers as usize;
        if circuits.len() != workers {
            return self.fail_lane(
                lane,
                format!("a ring of {} circuits for {workers} workers", circuits.len()),
            );
        }
        let at = |step: usize| self.plan.circuits[circuits[step % workers] as usize];
        let broken = (0..workers).find(|&step| at(step).to.node != at(step + 1).from.node);
        if let Some(step) = broken {
            return self.fail_node(lane, at(step).to.node.0 as usize, "does not pass its chunk on");
        }
        let mut passed = vec![false; workers];
        for step in 0..workers {
            let node = at(step).from.node.0 as usize;
            if node >= workers || std::mem::replace(&mut passed[node], true) {
                return self.fail_node(lane, node, "adds a contribution twice, or has none to add");
            }
        }
        Ok(self.spec.workers - 1)
    }

    fn report(&self, algbw: Ratio, loads: Vec<i128>, scale: i128, height: u32) -> Report {
        let mut degrees = vec![0; self.spec.nodes() as usize];
        self.plan.circuits.iter().for_each(|circuit| degrees[circuit.from.node.0 as usize] += 1);
        let (workers, devices) = degrees.split_at(self.spec.workers as usize);
        let all = u64::from(self.spec.workers) * u64::from(self.spec.worker_ports)
            + u64::from(self.spec.devices) * u64::from(self.spec.device_ports);
        let load = loads.into_iter().max().unwrap_or(0);
        Report {
            algbw,
            load_max: Ratio::new(load, scale),
            ports_used: Ratio::new(self.plan.circuits.len() as i128, all.into()),
            worker_degrees: (
                workers.iter().min().copied().unwrap_or(0),
                workers.iter().max().copied().unwrap_or(0),
            ),
            devices_used: devices.iter().filter(|&&degree| degree > 0).count() as u32,
            height,
        }
    }

    fn circuit_name(&self, index: usize) -> String {
        let end = |end: OcsEnd| format!("{}.{}", self.spec.name(end.node), end.port);
        let circuit = self.plan.circuits[index];
        format!("circuit {index} ({} → {})", end(circuit.from), end(circuit.to))
    }

    fn fail_node<T>(&self, lane: usize, node: usize, problem: &str) -> Result<T, OcsViolation> {
        self.fail_lane(lane, format!("{} {problem}", self.spec.name(OcsNode(node as u32))))
    }

    fn fail_lane<T>(&self, lane: usize, problem: String) -> Result<T, OcsViolation> {
        self.fail(format!("lane {lane}"), problem)
    }

    fn fail<T>(&self, place: String, problem: String) -> Result<T, OcsViolation> {
        Err(OcsViolation { place, problem })
    }
}

/// The workers whose contributions a partial holds, a bit per worker.
struct Contributions(Vec<u64>);

impl Contributions {
    /// A worker's own contribution; a device has none.
    fn of(node: usize, spec: &OcsSpec) -> Contributions {
        let mut bits = vec![0; (spec.workers as usize).div_ceil(64)];
        if node < spec.workers as usize {
            bits[node / 64] |= 1 << (node % 64);
        }
        Contributions(bits)
    }

    /// Adds a set; false if a worker is in both.
    fn add(&mut self, other: &Contributions) -> bool {
        let twice = self.0.iter().zip(&other.0).any(|(a, b)| a & b != 0);
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a |= b);
        !twice
    }

    fn count(&self) -> u32 {
        self.0.iter().map(|bits| bits.count_ones()).sum()
    }
}

/// A share above every D, and a unit that leaves room for the sum of all lanes.
const SHARE_MAX: i64 = 65_536;
const SCALE_MAX: i128 = 1 << 80;
