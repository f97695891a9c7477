//! When CollNet pays: NCCL's costs of its algorithms, with netsum's cost of a sum in switches among them.
//!
//! NCCL fills a table with the times of its algorithms, and takes the least. Its model of CollNet knows SHARP, not
//! these switches. The plug-in leaves all other times as they are, and sets those of CollNet to the best of the others
//! times what netsum's model says a sum by switches takes against one by hosts. Both see the same link, so that what
//! NCCL knows of GPUs and what netsum knows of trees are not mixed.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use netsum_collective::{Dtype, Format, LinkCost, ReduceOp, explain};
use netsum_nccl_core::{Failure, Settings};

use crate::call::call;
use crate::device;
use crate::handles::Table;
use crate::interface::{Code, Handle, Logger, NvlinkDomains};
use crate::log;
use crate::pointers::{element, write};

/// What is known of a communicator.
pub(crate) struct Tuner {
    link: LinkCost,
    /// Switches add buffers of at least so many bytes; `None`: there are no switches.
    switches_from: Option<u64>,
}

static TUNERS: Table<Tuner> = Table::new("tuner");

impl Tuner {
    fn new(nodes: usize) -> Result<Tuner, Failure> {
        let settings = Settings::from_environment()?;
        let megabits = device::device()?.speed_mbps;
        let link = LinkCost {
            ranks: u32::try_from(nodes).unwrap_or(u32::MAX),
            shared_memory: false,
            latency_s: settings.options.link_latency_s.unwrap_or(LATENCY_S),
            bytes_per_s: settings.options.link_bytes_per_s.unwrap_or(f64::from(megabits) * 125e3),
            by_distance: Vec::new(),
            across: None,
        };
        let min_bytes = settings.options.min_bytes.unwrap_or(MIN_BYTES);
        Ok(Tuner { link, switches_from: settings.controller.map(|_| min_bytes) })
    }

    /// The time of a sum by switches against that of the hosts' best algorithm; `None`: switches do not do it.
    pub(crate) fn ratio(&self, collective: c_int, bytes: usize) -> Option<f64> {
        let switches_from = self.switches_from?;
        if collective != ALLREDUCE || (bytes as u64) < switches_from || self.link.ranks < 2 {
            return None;
        }
        let format = Format { dtype: Dtype::F32, op: ReduceOp::Sum };
        let choice = explain(&self.link, "allreduce", format, bytes, None, None).ok()?;
        let chosen = choice.costs.iter().find(|cost| cost.name == choice.chosen)?;
        let hosts = chosen.seconds?;
        // Up and down at once: every byte passes a rank's link once in each direction.
        let switches = TREE_HOPS * self.link.latency_s + bytes as f64 / self.link.bytes_per_s;
        Some(switches / hosts)
    }

    /// Sets the times of CollNet in a table of `protocols` times per algorithm. What NCCL ruled out stays so.
    pub(crate) fn adapt(
        &self,
        collective: c_int,
        bytes: usize,
        table: &mut [f32],
        protocols: usize,
    ) {
        let is_collnet = |at: usize| COLLNET.contains(&(at / protocols));
        let possible = |time: f32| time >= 0.0;
        let others =
            table.iter().enumerate().filter(|&(at, &time)| !is_collnet(at) && possible(time));
        let best = others.map(|(_, &time)| time).fold(f32::INFINITY, f32::min);
        if !best.is_finite() {
            return;
        }
        // What switches do not do, CollNet would leave to hosts, which NCCL's own algorithms do better.
        let time = match self.ratio(collective, bytes) {
            Some(ratio) => best * ratio as f32,
            None => best * NEVER,
        };
        for (at, entry) in table.iter_mut().enumerate() {
            if is_collnet(at) && possible(*entry) {
                *entry = time;
            }
        }
    }
}

pub(crate) extern "C" fn init(
    ranks: usize,
    nodes: usize,
    logger: Option<Logger>,
    context: *mut Handle,
) -> Code {
    log::set(logger);
    call("init of the tuner", || {
        write(context, 0, "context")?;
        let tuner = Tuner::new(nodes)?;
        let seen = match tuner.switches_from {
            None => "no switches: CollNet is not taken".to_owned(),
            Some(bytes) => match (0..40)
                .map(|bit| 1usize << bit)
                .find(|&n| tuner.ratio(ALLREDUCE, n).is_some_and(|ratio| ratio < 1.0))
            {
                Some(pays) => format!("CollNet pays from {pays} bytes; switches add from {bytes}"),
                None => "CollNet does not pay at any size".to_owned(),
            },
        };
        log::info(&format!(
            "TUNER/netsum: version {}, {ranks} ranks on {nodes} nodes, {} MB/s: {seen}",
            env!("CARGO_PKG_VERSION"),
            (tuner.link.bytes_per_s / 1e6).round()
        ));
        write(context, TUNERS.add(Arc::new(tuner)), "context")
    })
}

pub(crate) extern "C" fn init_v5(
    context: *mut Handle,
    _comm_id: u64,
    ranks: usize,
    nodes: usize,
    logger: Option<Logger>,
    _domains: *mut NvlinkDomains,
    _constants: *mut c_void,
) -> Code {
    init(ranks, nodes, logger, context)
}

#[allow(clippy::too_many_arguments)] // NCCL's signature.
pub(crate) extern "C" fn costs(
    tuner: Handle,
    collective: c_int,
    bytes: usize,
    _operations: c_int,
    costs: *mut *mut f32,
    algorithms: c_int,
    protocols: c_int,
    _channels: *mut c_int,
) -> Code {
    call("getCollInfo", || {
        let tuner = TUNERS.get(tuner)?;
        let (algorithms, protocols) =
            match (usize::try_from(algorithms), usize::try_from(protocols)) {
                (Ok(a @ 1..=TABLE_MAX), Ok(p @ 1..=TABLE_MAX)) => (a, p),
                _ => {
                    let words =
                        format!("a table of {algorithms} algorithms and {protocols} protocols");
                    return Err(Failure::argument(words));
                }
            };
        // What is declared as rows of pointers is one array.
        let table: *mut f32 = costs.cast();
        let all = algorithms * protocols;
        let mut times = (0..all)
            .map(|at| element(table, at, "collCostTable"))
            .collect::<Result<Vec<f32>, _>>()?;
        tuner.adapt(collective, bytes, &mut times, protocols);
        let mut writes = times.into_iter().enumerate();
        writes.try_for_each(|(at, time)| write(table.wrapping_add(at), time, "collCostTable"))
    })
}

#[allow(clippy::too_many_arguments)] // NCCL's signature.
pub(crate) extern "C" fn costs_v4(
    tuner: Handle,
    collective: c_int,
    bytes: usize,
    operations: c_int,
    table: *mut *mut f32,
    algorithms: c_int,
    protocols: c_int,
    _registered: c_int,
    channels: *mut c_int,
) -> Code {
    costs(tuner, collective, bytes, operations, table, algorithms, protocols, channels)
}

pub(crate) extern "C" fn destroy(tuner: Handle) -> Code {
    call("finalize of the tuner", || TUNERS.remove(tuner).map(|_| ()))
}

/// `ncclFuncAllReduce`.
const ALLREDUCE: c_int = 4;
/// `NCCL_ALGO_COLLNET_DIRECT` and `NCCL_ALGO_COLLNET_CHAIN`.
const COLLNET: std::ops::RangeInclusive<usize> = 2..=3;
/// More than the rows and columns that any version has.
const TABLE_MAX: usize = 64;
/// Far slower than anything else that is possible.
const NEVER: f32 = 1e3;
/// Links between two ranks through a rack's switch, a spine and the other rack, there and back: what the shallow trees
/// that the controller prefers have.
const TREE_HOPS: f64 = 4.0;
/// Netsum's own values for links that were not measured, and for sums that are worth a tree.
const LATENCY_S: f64 = 30e-6;
const MIN_BYTES: u64 = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn tuner(nodes: u32, switches_from: Option<u64>) -> Tuner {
        let (latency_s, bytes_per_s) = (30e-6, 1.25e9);
        let link = LinkCost {
            ranks: nodes,
            shared_memory: false,
            latency_s,
            bytes_per_s,
            by_distance: Vec::new(),
            across: None,
        };
        Tuner { link, switches_from }
    }

    /// Times as NCCL's model might have them: seven algorithms, three protocols.
    fn table() -> Vec<f32> {
        (0..21).map(|at| if at % 5 == 4 { -1.0 } else { 10.0 + at as f32 }).collect()
    }

    fn best(table: &[f32]) -> usize {
        let possible = table.iter().enumerate().filter(|(_, time)| **time >= 0.0);
        possible.min_by(|a, b| a.1.total_cmp(b.1)).unwrap().0 / 3
    }

    #[test]
    fn large_sums_go_to_switches_and_small_ones_do_not() {
        let tuner = tuner(8, Some(16 << 10));
        for (bytes, in_switches) in [(1, false), (1 << 10, false), (1 << 20, true), (1 << 30, true)]
        {
            let mut times = table();
            tuner.adapt(ALLREDUCE, bytes, &mut times, 3);
            assert_eq!(COLLNET.contains(&best(&times)), in_switches, "{bytes} bytes: {times:?}");
        }
        // 2 (N - 1) / N of the bytes over the hosts' links, against once.
        let ratio = tuner.ratio(ALLREDUCE, 1 << 30).unwrap();
        assert!((ratio - 8.0 / 14.0).abs() < 0.02, "{ratio}");
    }

    #[test]
    fn what_switches_do_not_do_stays_with_nccl() {
        for tuner in [tuner(8, None), tuner(1, Some(1))] {
            let mut times = table();
            tuner.adapt(ALLREDUCE, 1 << 30, &mut times, 3);
            assert!(!COLLNET.contains(&best(&times)));
        }
        for collective in [0, 1, 2, 3, 5] {
            let mut times = table();
            tuner(8, Some(1)).adapt(collective, 1 << 30, &mut times, 3);
            assert!(!COLLNET.contains(&best(&times)));
        }
    }

    #[test]
    fn only_possible_times_of_collnet_change() {
        let mut times = table();
        tuner(4, Some(1)).adapt(ALLREDUCE, 1 << 20, &mut times, 3);
        for (at, (&before, &after)) in table().iter().zip(&times).enumerate() {
            let may_change = COLLNET.contains(&(at / 3)) && before >= 0.0;
            assert_eq!(before == after, !may_change, "entry {at}");
        }
        let mut none = vec![-1.0; 21];
        tuner(4, Some(1)).adapt(ALLREDUCE, 1 << 20, &mut none, 3);
        assert_eq!(none, vec![-1.0; 21]);
    }
}
