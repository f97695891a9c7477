//! Packing programmes by column generation: maximise Σ gain · w with A·w ≤ b, w ≥ 0. The columns are too many to list;
//! a pricing function finds one that improves the value.
//!
//! The search uses floating point; the answer is exact. From the last basis the weights and the prices are solved
//! exactly (modulo a prime, then as fractions) and every constraint is checked in fractions, so that an error of the
//! search can cost quality but never correctness.

use netsum_topo::{Ratio, lcm};

use super::budget::Budget;
use super::modular;

/// One way to use resources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Value of one unit.
    pub gain: i64,
    /// Row and coefficient, rows ascending.
    pub uses: Vec<(usize, i64)>,
}

/// Result of the search.
#[derive(Debug, Clone)]
pub struct Packing {
    /// Columns with positive weight, by their number.
    pub weights: Vec<(usize, Ratio)>,
    /// Price per row.
    pub prices: Vec<Ratio>,
    /// Σ gain · weight.
    pub value: Ratio,
    /// Σ limit · price: an upper bound on all packings, if it is `proven`. Above `value` if weights are rounded.
    pub dual: Ratio,
    /// Whether `prices` prove the bound: pricing found nothing better under exactly these prices.
    pub proven: bool,
}

impl Packing {
    /// The common denominator of all weights.
    fn common(&self) -> i128 {
        let all = self.weights.iter().try_fold(1i128, |all, (_, weight)| lcm(all, weight.den()));
        all.unwrap_or(i128::MAX)
    }
}

/// A packing programme and all columns so far.
pub struct Master {
    limits: Vec<i64>,
    /// Limits with a small individual addition each, which removes the ties that could make a simplex method cycle.
    loose: Vec<f64>,
    scale: f64,
    columns: Vec<Column>,
    /// The basic column of each row; `n + i` is the slack of row i.
    basis: Vec<Basic>,
    is_basic: Vec<bool>,
    inverse: Vec<f64>,
    values: Vec<f64>,
    pivots: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Basic {
    Slack(usize),
    Column(usize),
}

impl Master {
    /// Rows with limits ≥ 0, no column.
    pub fn new(limits: Vec<i64>) -> Master {
        let m = limits.len();
        let scale = limits.iter().copied().max().unwrap_or(1).max(1) as f64;
        let mut master = Master {
            limits,
            values: Vec::new(),
            loose: Vec::new(),
            scale,
            columns: Vec::new(),
            basis: Vec::new(),
            is_basic: Vec::new(),
            inverse: vec![0.0; m * m],
            pivots: 0,
        };
        master.reset(0);
        master
    }

    /// Removes all columns from the basis, and disturbs limits differently for each `number`: ties are resolved
    /// differently.
    fn reset(&mut self, number: u64) {
        let m = self.limits.len();
        let mut seed = 0x9e37_79b9_7f4a_7c15u64.wrapping_add(number);
        let mut noise = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            1.0 + (seed >> 11) as f64 / (1u64 << 53) as f64
        };
        let limits = self.limits.iter();
        self.loose = limits.map(|&limit| limit as f64 / self.scale + LOOSE * noise()).collect();
        self.values.clone_from(&self.loose);
        self.basis = (0..m).map(Basic::Slack).collect();
        self.is_basic.fill(false);
        self.inverse.fill(0.0);
        (0..m).for_each(|i| self.inverse[i * m + i] = 1.0);
    }

    /// Adds a column; returns its number.
    pub fn add(&mut self, column: Column) -> usize {
        self.columns.push(column);
        self.is_basic.push(false);
        self.columns.len() - 1
    }

    /// All columns, by number.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Improves until pricing finds nothing, `enough` is reached (an upper bound), or the budget ends.
    ///
    /// Most of many optimal bases have weights with small denominators: if the first has not, others are searched among
    /// the existing columns.
    ///
    /// `price(prices)`: `prices` are whole numbers, row by row, in units of `one`; returns columns whose gain · `one`
    /// exceeds Σ use · price, or none if there is no such column.
    pub fn solve(
        &mut self,
        enough: Option<Ratio>,
        budget: &Budget<'_>,
        price: &mut dyn FnMut(&[i64], i64) -> Vec<Column>,
    ) -> Packing {
        let mut packing = self.search(enough, budget, price);
        let most = enough.unwrap_or(packing.dual);
        let optimal = packing.value.to_f64() >= most.to_f64() * (1.0 - 1e-3);
        let resets = if optimal && self.limits.len() <= RESET_ROWS_MAX { RESETS } else { 0 };
        for number in 1..=resets {
            let tried = number > RESETS_FOR_FINER && self.limits.len() > ROWS_FEW;
            let fine = packing.common() <= if tried { COMMON_FIT } else { COMMON_GOOD };
            if packing.value == most && fine || budget.is_over() {
                break;
            }
            self.reset(number);
            self.optimise(budget);
            let other = self.exact(budget);
            let finer = other.value == packing.value && other.common() < packing.common();
            if other.value > packing.value || finer {
                packing.weights = other.weights;
                packing.value = other.value;
            }
        }
        packing
    }

    fn search(
        &mut self,
        enough: Option<Ratio>,
        budget: &Budget<'_>,
        price: &mut dyn FnMut(&[i64], i64) -> Vec<Column>,
    ) -> Packing {
        let target = enough.map(|rate| rate.to_f64() * (1.0 - 1e-9));
        for _ in 0..ROUNDS_MAX {
            self.optimise(budget);
            if budget.is_over() {
                break;
            }
            if let Some(enough) = enough {
                budget.note(self.value() / enough.to_f64());
            }
            if target.is_some_and(|target| self.value() >= target) {
                let packing = self.exact(budget);
                if enough == Some(packing.value) {
                    return packing;
                }
            }
            let prices = self.prices();
            let whole: Vec<i64> =
                prices.iter().map(|price| (price * ONE as f64).round() as i64).collect();
            let mut found = price(&whole, ONE);
            // Rounded prices cannot distinguish a real gain below this from none.
            found.retain(|column| self.reduced(column, &prices) > TOLERANCE);
            if found.is_empty() {
                let mut packing = self.exact(budget);
                let Some((exact, one)) = in_common(&packing.prices) else { return packing };
                let better = price(&exact, one);
                if better.is_empty() {
                    // A search that ended early has not seen every column.
                    packing.proven = !budget.is_over();
                    return packing;
                }
                found = better;
                let before = self.columns.len();
                found.into_iter().for_each(|column| {
                    self.add(column);
                });
                let prices = self.prices();
                if !(before..self.columns.len())
                    .any(|c| self.reduced(&self.columns[c], &prices) > TINY)
                {
                    return packing;
                }
                continue;
            }
            found.into_iter().for_each(|column| {
                self.add(column);
            });
        }
        self.exact(budget)
    }

    /// The simplex method over the existing columns.
    pub fn optimise(&mut self, budget: &Budget<'_>) {
        let m = self.limits.len();
        let entries: usize = self.columns.iter().map(|column| column.uses.len()).sum();
        for _ in 0..PIVOTS_MAX {
            budget.spend(m * m + entries);
            if budget.is_over() {
                return;
            }
            let prices = self.prices();
            let (mut best, mut entering) = (TINY, None);
            for (c, column) in self.columns.iter().enumerate() {
                if !self.is_basic[c] {
                    let gain = self.reduced(column, &prices);
                    if gain > best {
                        (best, entering) = (gain, Some(Basic::Column(c)));
                    }
                }
            }
            for (i, &price) in prices.iter().enumerate() {
                if -price > best && !self.basis.contains(&Basic::Slack(i)) {
                    (best, entering) = (-price, Some(Basic::Slack(i)));
                }
            }
            let Some(entering) = entering else { return };
            if !self.pivot(entering) {
                return;
            }
        }
    }

    fn reduced(&self, column: &Column, prices: &[f64]) -> f64 {
        column.gain as f64 - column.uses.iter().map(|&(i, a)| a as f64 * prices[i]).sum::<f64>()
    }

    fn value(&self) -> f64 {
        let gain = |basic: &Basic| match *basic {
            Basic::Slack(_) => 0.0,
            Basic::Column(c) => self.columns[c].gain as f64,
        };
        self.scale
            * self
                .basis
                .iter()
                .zip(&self.values)
                .map(|(basic, value)| gain(basic) * value)
                .sum::<f64>()
    }

    fn prices(&self) -> Vec<f64> {
        let m = self.limits.len();
        let mut prices = vec![0.0; m];
        for (row, basic) in self.basis.iter().enumerate() {
            if let Basic::Column(c) = *basic {
                let gain = self.columns[c].gain as f64;
                if gain != 0.0 {
                    let inverse = &self.inverse[row * m..(row + 1) * m];
                    prices.iter_mut().zip(inverse).for_each(|(price, a)| *price += gain * a);
                }
            }
        }
        prices
    }

    fn pivot(&mut self, entering: Basic) -> bool {
        let m = self.limits.len();
        let unit;
        let uses: &[(usize, i64)] = match entering {
            Basic::Slack(i) => {
                unit = [(i, 1)];
                &unit
            }
            Basic::Column(c) => &self.columns[c].uses,
        };
        let direction: Vec<f64> = (0..m)
            .map(|row| uses.iter().map(|&(i, a)| a as f64 * self.inverse[row * m + i]).sum())
            .collect();
        let mut leaving: Option<(usize, f64)> = None;
        for (row, &step) in direction.iter().enumerate() {
            if step > PIVOT_MIN {
                let ratio = self.values[row].max(0.0) / step;
                if leaving.is_none_or(|(other, best)| {
                    ratio < best - 1e-13 || (ratio < best + 1e-13 && step > direction[other])
                }) {
                    leaving = Some((row, ratio));
                }
            }
        }
        let Some((row, ratio)) = leaving else { return false };
        if let Basic::Column(c) = self.basis[row] {
            self.is_basic[c] = false;
        }
        if let Basic::Column(c) = entering {
            self.is_basic[c] = true;
        }
        self.basis[row] = entering;
        let pivot = direction[row];
        let lead: Vec<f64> =
            self.inverse[row * m..(row + 1) * m].iter().map(|a| a / pivot).collect();
        for (other, &step) in direction.iter().enumerate() {
            if other != row && step != 0.0 {
                let target = &mut self.inverse[other * m..(other + 1) * m];
                target.iter_mut().zip(&lead).for_each(|(a, b)| *a -= step * b);
                self.values[other] -= step * ratio;
            }
        }
        self.inverse[row * m..(row + 1) * m].copy_from_slice(&lead);
        self.values[row] = ratio;
        self.pivots += 1;
        if self.pivots.is_multiple_of(REFRESH) {
            for row in 0..m {
                let inverse = &self.inverse[row * m..(row + 1) * m];
                self.values[row] = inverse.iter().zip(&self.loose).map(|(a, b)| a * b).sum();
            }
        }
        true
    }

    /// Weights and prices of the present basis as fractions, checked; weights that cannot be computed exactly are
    /// rounded down.
    fn exact(&self, budget: &Budget<'_>) -> Packing {
        let m = self.limits.len();
        let columns: Vec<usize> = self
            .basis
            .iter()
            .filter_map(|basic| match *basic {
                Basic::Column(c) => Some(c),
                Basic::Slack(_) => None,
            })
            .collect();
        let slack: Vec<bool> = (0..m).map(|i| self.basis.contains(&Basic::Slack(i))).collect();
        let tight: Vec<usize> = (0..m).filter(|&i| !slack[i]).collect();
        let place: Vec<usize> = (0..m).map(|i| tight.partition_point(|&row| row < i)).collect();
        let k = columns.len();
        let mut matrix = vec![0i64; k * k];
        for (j, &c) in columns.iter().enumerate() {
            for &(i, a) in &self.columns[c].uses {
                if !slack[i] {
                    matrix[place[i] * k + j] = a;
                }
            }
        }
        let limits: Vec<i64> = tight.iter().map(|&i| self.limits[i]).collect();
        let gains: Vec<i64> = columns.iter().map(|&c| self.columns[c].gain).collect();
        let transposed: Vec<i64> = (0..k * k).map(|at| matrix[at % k * k + at / k]).collect();
        budget.spend(k * k * EXACT_WORK);
        let weights = modular::solve(&matrix, &limits, k)
            .map(|found| columns.iter().copied().zip(found).collect::<Vec<_>>())
            .filter(|weights| self.feasible(weights))
            .unwrap_or_else(|| self.rounded());
        let value = weights.iter().map(|&(c, w)| w * Ratio::from(self.columns[c].gain)).sum();
        let mut prices = vec![Ratio::ZERO; m];
        if let Some(found) = modular::solve(&transposed, &gains, k) {
            tight.iter().zip(found).for_each(|(&row, price)| prices[row] = price);
        }
        let dual =
            prices.iter().zip(&self.limits).map(|(&price, &limit)| price * Ratio::from(limit));
        let dual = dual.sum();
        let weights = weights.into_iter().filter(|(_, weight)| weight.is_positive()).collect();
        Packing { weights, prices, value, dual, proven: false }
    }

    fn feasible(&self, weights: &[(usize, Ratio)]) -> bool {
        let Some(common) = weights.iter().try_fold(1i128, |all, (_, w)| lcm(all, w.den())) else {
            return false;
        };
        let mut load = vec![0i128; self.limits.len()];
        for &(c, weight) in weights {
            let Some(whole) = weight.num().checked_mul(common / weight.den()) else { return false };
            if !(0..=1 << 100).contains(&whole) {
                return false;
            }
            for &(i, a) in &self.columns[c].uses {
                load[i] += i128::from(a) * whole;
            }
        }
        common < 1 << 60
            && load
                .iter()
                .zip(&self.limits)
                .all(|(&load, &limit)| load <= i128::from(limit) * common)
    }

    /// The weights of the search, rounded down, and scaled until everything fits.
    ///
    /// A column with a negative use of a row with limit 0 gets what others put there.
    fn rounded(&self) -> Vec<(usize, Ratio)> {
        let m = self.limits.len();
        let exact: Vec<f64> = self.limits.iter().map(|&limit| limit as f64).collect();
        let takes =
            |c: usize| self.columns[c].uses.iter().filter(|&&(i, a)| a > 0 && self.limits[i] == 0);
        let mut load = vec![0.0; m];
        let (mut weights, mut takers) = (Vec::new(), Vec::new());
        for (row, basic) in self.basis.iter().enumerate() {
            let Basic::Column(c) = *basic else { continue };
            if takes(c).next().is_some() {
                takers.push(c);
                continue;
            }
            // The limits without the disturbance.
            let inverse = &self.inverse[row * m..(row + 1) * m];
            let value = inverse.iter().zip(&exact).map(|(a, b)| a * b).sum::<f64>().max(0.0);
            self.columns[c].uses.iter().for_each(|&(i, a)| load[i] += value * a as f64);
            weights.push((c, value));
        }
        let full = (0..m).filter(|&i| self.limits[i] > 0).map(|i| load[i] / exact[i]);
        let over = full.fold(1.0, f64::max);
        let mut put = vec![0i128; m];
        let shrink = |(c, value): (usize, f64)| {
            let whole = (value / over * SAFE * ROUND as f64).floor() as i128;
            let puts = self.columns[c].uses.iter().filter(|(_, a)| *a < 0);
            puts.for_each(|&(i, a)| put[i] -= whole * i128::from(a));
            (c, Ratio::new(whole, ROUND))
        };
        let mut weights: Vec<_> = weights.into_iter().map(shrink).collect();
        // Those that put some of it into other rows come before those that take it there.
        let puts = |c: usize| self.columns[c].uses.iter().filter(|&&(_, a)| a < 0);
        takers.sort_by_key(|&c| puts(c).next().is_none());
        for c in takers {
            let most = takes(c).map(|&(i, a)| put[i] / i128::from(a)).min().unwrap_or(0);
            puts(c).for_each(|&(i, a)| put[i] -= most * i128::from(a));
            weights.push((c, Ratio::new(most, ROUND)));
        }
        if self.feasible(&weights) { weights } else { Vec::new() }
    }
}

/// Fractions over their least common denominator; `None` if one is negative or they do not fit.
fn in_common(prices: &[Ratio]) -> Option<(Vec<i64>, i64)> {
    let common = prices.iter().try_fold(1i128, |all, price| lcm(all, price.den()))?;
    let whole = |price: &Ratio| {
        let value = price.num().checked_mul(common / price.den())?;
        i64::try_from(value).ok().filter(|value| (0..WHOLE_MAX).contains(value))
    };
    let one = i64::try_from(common).ok().filter(|one| *one < WHOLE_MAX)?;
    Some((prices.iter().map(whole).collect::<Option<_>>()?, one))
}

/// Size of the disturbance of limits, relative to the largest.
const LOOSE: f64 = 1e-7;
/// The whole price that represents 1 during the search: 2⁴⁰ leaves 23 bits for sums along a tree.
const ONE: i64 = 1 << 40;
/// Smaller gains are rounding errors.
const TOLERANCE: f64 = 1e-9;
const TINY: f64 = 1e-10;
const PIVOT_MIN: f64 = 1e-9;
/// Number of pivots between two computations of the values from scratch.
const REFRESH: usize = 64;
const ROUNDS_MAX: usize = 5_000;
/// Number of other bases examined; on larger programmes their fractions are too large as well.
const RESETS: u64 = 16;
/// Executors can divide buffers into this many pieces.
const COMMON_GOOD: i128 = 1 << 12;
/// Plans write shares with denominators up to this; with larger ones they are rounded.
const COMMON_FIT: i128 = 1 << 40;
/// Work of an exact solution per entry of the matrix, most of which are 0.
const EXACT_WORK: usize = 256;
/// The number if a finer solution is the only purpose, on programmes with more than a few rows.
const RESETS_FOR_FINER: u64 = 2;
const ROWS_FEW: usize = 64;
const RESET_ROWS_MAX: usize = 200;
const PIVOTS_MAX: usize = 20_000;
/// Denominator of weights that cannot be computed exactly.
const ROUND: i128 = 1 << 40;
/// Below 1 by more than the error of a product in floating point.
const SAFE: f64 = 1.0 - 1e-11;
/// Whole prices must leave room for sums over the arcs of a tree.
const WHOLE_MAX: i64 = 1 << 44;
