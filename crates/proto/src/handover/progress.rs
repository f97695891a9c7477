//! The ranks' results of an epoch, and the resolution that follows from them.
//!
//! A fragment that some worker has is served by the lowest such rank to those who lack it: the holder's own
//! contribution may be overwritten by now, so the fragment *must not* be summed again. A fragment that no worker has is
//! summed again, from contributions that are all intact. Workers retain their last `window_max` results per tree, which
//! is all that another can lack: it contributed to the newest result, so it has everything that is a window or more
//! below it.
//!
//! A rank that does not take a fragment's result knows that it is complete, and cannot serve it. If the rank that takes
//! it lacks it, nobody has it: it is summed again, and the others retain their last `window_max` contributions for that.

use netsum_wire::Rank;

/// Results that one worker has in an epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// By tree.
    pub trees: Vec<TreeProgress>,
}

/// Results of one tree at one worker, by sequence number.
///
/// A sequence number counts the tree's fragments from the start of the epoch in 64 bits, so it never wraps. It is
/// not the 32-bit `vid` of a packet, which does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreeProgress {
    /// All results below this sequence number have arrived.
    pub base: u64,
    /// For `base`, `base + 1`, …: whether the result has arrived.
    pub above: Vec<bool>,
    /// In order, the numbers whose elements this worker does not take and does not have, even if they are complete:
    /// those that another worker may lack, and those that are in flight.
    pub untaken: Vec<u64>,
}

/// Fragments of the old epoch that are complete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Finished {
    trees: Vec<TreeProgress>,
}

/// A result to be sent to peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serve {
    /// Fragment of the old epoch.
    pub g: u64,
    /// Rank that sends it.
    pub from: Rank,
    /// Ranks that lack it.
    pub to: Vec<Rank>,
}

/// The resolution, which every worker computes alike.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolution {
    /// Complete fragments.
    pub finished: Finished,
    /// Results to hand over, by fragment.
    pub serve: Vec<Serve>,
}

/// Bytes that are not a progress report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed progress report")]
pub struct ProgressError;

/// Maximum length of `above` in a report. With windows it is two of them; slots of a pool are each at their own round,
/// at most as far apart as an operation is long.
const MAX_ABOVE: usize = 1 << 22;
/// Maximum `base` in a report, so that fragment numbers (sequence number times trees) fit into 64 bits. A tree reaches
/// it after thousands of years.
const MAX_BASE: u64 = 1 << 54;

impl TreeProgress {
    fn has(&self, number: u64) -> bool {
        let above = number.checked_sub(self.base).map(|above| self.above.get(above as usize));
        above.is_none_or(|above| above.copied().unwrap_or(false))
    }

    fn end(&self) -> u64 {
        self.base + self.above.len() as u64
    }

    fn takes(&self, number: u64) -> bool {
        self.untaken.binary_search(&number).is_err()
    }

    /// Whether it can serve the elements.
    fn holds(&self, number: u64) -> bool {
        self.has(number) && self.takes(number)
    }

    fn lacks(&self, number: u64) -> bool {
        !self.has(number) && self.takes(number)
    }
}

impl Progress {
    /// Big-endian: trees u8; per tree base u64, count u32, then a bit per sequence number, lowest first: has the result
    /// arrived. The same again for the numbers that are not taken.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![self.trees.len() as u8];
        for tree in &self.trees {
            write_bits(&mut bytes, tree.base, &tree.above);
            let (first, end) = (tree.untaken.first(), tree.untaken.last());
            let span = first.zip(end).map_or(0..0, |(&first, &end)| first..end + 1);
            let untaken: Vec<bool> = span.clone().map(|number| !tree.takes(number)).collect();
            write_bits(&mut bytes, span.start, &untaken);
        }
        bytes
    }

    /// Decodes the output of `to_bytes`.
    pub fn from_bytes(bytes: &[u8]) -> Result<Progress, ProgressError> {
        let (&count, mut rest) = bytes.split_first().ok_or(ProgressError)?;
        let mut trees = Vec::with_capacity(usize::from(count));
        for _ in 0..count {
            let (base, above, after) = read_bits(rest)?;
            let (first, bits, after) = read_bits(after)?;
            let untaken = (first..).zip(bits).filter_map(|(number, bit)| bit.then_some(number));
            trees.push(TreeProgress { base, above, untaken: untaken.collect() });
            rest = after;
        }
        if rest.is_empty() { Ok(Progress { trees }) } else { Err(ProgressError) }
    }
}

fn write_bits(bytes: &mut Vec<u8>, base: u64, bits: &[bool]) {
    bytes.extend(base.to_be_bytes());
    bytes.extend((bits.len() as u32).to_be_bytes());
    let pack = |bits: &[bool]| bits.iter().rev().fold(0u8, |b, &x| b << 1 | u8::from(x));
    bytes.extend(bits.chunks(8).map(pack));
}

/// The first number, the bits, and the rest of the bytes.
fn read_bits(bytes: &[u8]) -> Result<(u64, Vec<bool>, &[u8]), ProgressError> {
    let (head, after) = bytes.split_first_chunk::<12>().ok_or(ProgressError)?;
    let (base, len) = head.split_at(8);
    let base = u64::from_be_bytes(base.try_into().expect("eight bytes"));
    let len = u32::from_be_bytes(len.try_into().expect("four bytes")) as usize;
    if len > MAX_ABOVE || base > MAX_BASE {
        return Err(ProgressError);
    }
    let (bits, after) = after.split_at_checked(len.div_ceil(8)).ok_or(ProgressError)?;
    Ok((base, (0..len).map(|i| bits[i / 8] >> (i % 8) & 1 == 1).collect(), after))
}

impl Finished {
    /// Whether fragment `g` of the old epoch is complete.
    pub fn contains(&self, g: u64) -> bool {
        let trees = self.trees.len() as u64;
        trees > 0 && self.trees[(g % trees) as usize].has(g / trees)
    }
}

/// Resolves the reports of all ranks, by rank; they must have the same number of trees.
///
/// Cost: proportional to the span between the lowest `base` and the highest result of each tree. The machine checks
/// that with [`span_is_plausible`].
pub fn resolve(reports: &[Progress]) -> Resolution {
    let trees = reports.first().map_or(0, |r| r.trees.len());
    assert!(reports.iter().all(|r| r.trees.len() == trees), "reports of one epoch");
    let mut resolution = Resolution::default();
    for tree in 0..trees {
        let of: Vec<&TreeProgress> = reports.iter().map(|r| &r.trees[tree]).collect();
        let from = of.iter().map(|t| t.base).min().unwrap_or(0);
        let to = of.iter().map(|t| t.end()).max().unwrap_or(0);
        let mut above = Vec::with_capacity((to - from) as usize);
        for number in from..to {
            let holder = of.iter().position(|t| t.holds(number));
            let lacking = of.iter().enumerate().filter(|(_, t)| t.lacks(number));
            // A fragment that nobody takes is complete if any worker says so.
            let untaken = lacking.clone().next().is_none() && of.iter().any(|t| t.has(number));
            above.push(holder.is_some() || untaken);
            let Some(holder) = holder else { continue };
            let to: Vec<Rank> = lacking.map(|(rank, _)| Rank(rank as u32)).collect();
            if !to.is_empty() {
                let g = number * trees as u64 + tree as u64;
                resolution.serve.push(Serve { g, from: Rank(holder as u32), to });
            }
        }
        resolution.finished.trees.push(TreeProgress { base: from, above, untaken: Vec::new() });
    }
    resolution
}

/// Whether the ranks' results of each tree are as near to each other as a report can represent; if not, some rank's
/// report is wrong, and [`resolve`] would take memory for the whole distance.
pub(super) fn span_is_plausible(reports: &[Progress]) -> bool {
    let trees = reports.first().map_or(0, |r| r.trees.len());
    (0..trees).all(|tree| {
        let from = reports.iter().map(|r| r.trees[tree].base).min().unwrap_or(0);
        let to = reports.iter().map(|r| r.trees[tree].end()).max().unwrap_or(0);
        to - from <= 2 * MAX_ABOVE as u64
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn progress() -> impl Strategy<Value = Progress> {
        let bits = || prop::collection::vec(any::<bool>(), 0..40);
        let tree =
            (0..=MAX_BASE, bits(), 0..=MAX_BASE, bits()).prop_map(|(base, above, first, bits)| {
                let untaken = (first..).zip(bits).filter_map(|(n, bit)| bit.then_some(n)).collect();
                TreeProgress { base, above, untaken }
            });
        prop::collection::vec(tree, 0..4).prop_map(|trees| Progress { trees })
    }

    proptest! {
        #[test]
        fn reports_survive_the_wire(progress in progress()) {
            prop_assert_eq!(Progress::from_bytes(&progress.to_bytes()).unwrap(), progress);
        }

        #[test]
        fn any_bytes_are_a_report_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = Progress::from_bytes(&bytes);
        }
    }

    #[test]
    fn sequence_numbers_continue_past_the_width_of_a_vid() {
        let start = u64::from(u32::MAX) - 1;
        let report = |base, above: &[bool]| Progress { trees: vec![tree(base, above, &[]); 2] };
        let resolution = resolve(&[report(start, &[false, true, true]), report(start + 4, &[])]);
        let served: Vec<u64> = resolution.serve.iter().map(|serve| serve.g).collect();
        assert_eq!(served, [2 * start, 2 * (start + 3), 2 * start + 1, 2 * (start + 3) + 1]);
        assert!(resolution.finished.contains(2 * (start + 3) + 1));
        assert!(!resolution.finished.contains(2 * (start + 4)));
    }

    fn tree(base: u64, above: &[bool], untaken: &[u64]) -> TreeProgress {
        TreeProgress { base, above: above.to_vec(), untaken: untaken.to_vec() }
    }

    /// Rank 1 takes 5 and 6, nobody takes 7, rank 0 has sent 8 to the others.
    #[test]
    fn who_does_not_take_a_result_cannot_serve_it_and_does_not_lack_it() {
        let resolution = |taker: &[bool], sender: &[bool]| {
            let reports = [
                tree(
                    5,
                    &[&[true, true], sender].concat(),
                    if sender[1] { &[5, 6, 7] } else { &[5, 6, 7, 8] },
                ),
                tree(5, taker, &[7]),
                tree(5, &[false; 4], &[5, 6, 7]),
            ];
            let resolution = resolve(&reports.map(|tree| Progress { trees: vec![tree] }));
            let left: Vec<u64> = (5..9).filter(|&g| !resolution.finished.contains(g)).collect();
            (left, resolution.serve)
        };
        let to_others = Serve { g: 8, from: Rank(0), to: vec![Rank(1), Rank(2)] };
        let to_last = Serve { g: 8, from: Rank(1), to: vec![Rank(2)] };
        assert_eq!(
            resolution(&[true, false, false, false], &[false, false]),
            (vec![6, 7, 8], vec![])
        );
        assert_eq!(resolution(&[false; 4], &[true, true]), (vec![5, 6], vec![to_others]));
        assert_eq!(resolution(&[true, true, true, true], &[false, false]), (vec![], vec![to_last]));
    }

    #[test]
    fn reports_that_are_too_far_apart_are_not_plausible() {
        let report = |base| Progress { trees: vec![tree(base, &[], &[])] };
        assert!(span_is_plausible(&[report(7), report(1000)]));
        assert!(!span_is_plausible(&[report(7), report(MAX_BASE)]));
    }

    #[test]
    fn results_are_served_by_their_holders_and_others_are_summed_again() {
        let report = |base, above: &[bool]| Progress { trees: vec![tree(base, above, &[])] };
        let resolution = resolve(&[
            report(5, &[false, true]),        // lacks 5, has 6
            report(6, &[]),                   // has up to 5
            report(6, &[false, false, true]), // has 8
        ]);
        let serve = |g, from, to: &[u32]| Serve {
            g,
            from: Rank(from),
            to: to.iter().map(|&r| Rank(r)).collect(),
        };
        assert_eq!(
            resolution.serve,
            [serve(5, 1, &[0]), serve(6, 0, &[1, 2]), serve(8, 2, &[0, 1])]
        );
        let finished: Vec<u64> = (0..10).filter(|&g| !resolution.finished.contains(g)).collect();
        assert_eq!(finished, [7, 9]);
    }
}
