//! Shares of flows as fractions with a common denominator.

use netsum_topo::links::Collective;
use netsum_topo::{Ratio, lcm};

use super::packed::{Flow, Packed, fit};

impl Packed {
    /// The same trees with shares that a plan can hold: unchanged if they have a common denominator up to 2⁴⁰, else
    /// rounded to multiples of 2⁻⁴⁰, which costs some 10⁻¹⁰ of the rate.
    pub fn simple(&self) -> Packed {
        if self.has_simple_shares() {
            return self.clone();
        }
        let rounded = rounded(self, COMMON_MAX as u64);
        rounded.expect("there are fewer trees than pieces")
    }

    /// Whether each root has an equal part of the buffer.
    pub(super) fn is_sharded(&self) -> bool {
        matches!(
            self.collective,
            Collective::Allgather | Collective::ReduceScatter | Collective::Alltoall
        )
    }

    /// Whether a plan can hold the shares as they are.
    pub(super) fn has_simple_shares(&self) -> bool {
        let start = self.net.gpus.len() as i128;
        let mut shares = self.flows.iter().map(|flow| flow.weight.checked_div(self.rate));
        let common =
            shares.try_fold(start, |all, share| lcm(all, share?.den()).filter(|&all| all <= MOST));
        common.is_some_and(|common| common <= start.saturating_mul(COMMON_MAX))
    }
}

/// The trees with every share a multiple of 1/`pieces`; `None` if there are fewer pieces than roots with a shard.
pub(super) fn rounded(packed: &Packed, pieces: u64) -> Option<Packed> {
    let mut flows: Vec<Flow> = Vec::new();
    let groups: Vec<Vec<&Flow>> = if packed.is_sharded() {
        let of = |&root: &usize| packed.flows.iter().filter(|flow| flow.root == root).collect();
        packed.net.gpus.iter().map(of).collect()
    } else {
        vec![packed.flows.iter().collect()]
    };
    let each = pieces / groups.len() as u64;
    for group in &groups {
        for (flow, pieces) in group.iter().zip(apportioned(group, each)) {
            if pieces > 0 {
                flows.push(Flow { weight: Ratio::new(pieces.into(), 1), ..(*flow).clone() });
            }
        }
    }
    if each == 0 || flows.is_empty() {
        return None;
    }
    let total: Ratio = flows.iter().map(|flow| flow.weight).sum();
    let rate = total * fit(&packed.net, packed.collective, &flows)?;
    flows.iter_mut().for_each(|flow| flow.weight = flow.weight / total * rate);
    Some(Packed { flows, rate, ..packed.clone() })
}

/// So many pieces for all flows, by their weights; the largest remainders get the rest.
fn apportioned(flows: &[&Flow], pieces: u64) -> Vec<u64> {
    // Weights can have parts of a hundred bits, whose products do not fit; an error of a piece does not matter.
    let total: f64 = flows.iter().map(|flow| flow.weight.to_f64()).sum();
    let exact: Vec<f64> =
        flows.iter().map(|flow| flow.weight.to_f64() / total * pieces as f64).collect();
    let mut whole: Vec<u64> = exact.iter().map(|exact| exact.floor() as u64).collect();
    let rests: Vec<f64> = exact.iter().map(|exact| exact.fract()).collect();
    let mut order: Vec<usize> = (0..flows.len()).collect();
    order.sort_by(|&a, &b| rests[b].total_cmp(&rests[a]));
    let given: u64 = whole.iter().sum();
    for &i in order.iter().cycle().take(pieces.saturating_sub(given) as usize) {
        whole[i] += 1;
    }
    if let Some(largest) = whole.iter_mut().max() {
        *largest -= given.saturating_sub(pieces);
    }
    whole
}

/// The finest common denominator of the shares of a root. Executors divide buffers into no more pieces.
const COMMON_MAX: i128 = 1 << 40;
/// The verifier adds fractions with denominators below this.
const MOST: i128 = 1 << 62;
