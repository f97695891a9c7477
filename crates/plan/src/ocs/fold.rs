//! Trees that share their worker links with a mesh that has too few links of its own.

use super::forests::{find, pack};
use super::mesh::{Random, granularity};

/// Workers that one cluster of devices joins: its ports in order. The devices of a cluster are always used
/// together; a tree has at most two clusters.
pub(super) type Cluster = Vec<u32>;

/// Links between workers, and the trees on them and on the clusters.
pub(super) struct Fold {
    /// Ends of each link.
    pub links: Vec<(u32, u32)>,
    /// Trees per unit of algbw.
    pub copies: u32,
    /// Per tree the clusters that it uses, and its links.
    pub trees: Vec<(Vec<usize>, Vec<u32>)>,
}

/// The trees to be folded.
pub(super) struct Request<'a> {
    pub workers: u32,
    /// Free ports of each worker after its clusters: what links can use.
    pub spare: Vec<u32>,
    /// Links beyond those that the trees need.
    pub extra: u32,
    pub clusters: &'a [Cluster],
    /// For each tree of algbw 1 its clusters.
    pub trees: &'a [Vec<usize>],
}

/// Trees of algbw `trees` + `extra`/(N−1) together, or as much as is found; nothing if not even the trees alone fit.
///
/// A tree with clusters a and b is replaced for a time share g: it runs for 1 − g with both, and for g with each alone,
/// which makes 1 + g, while every cluster still works for 1. A tree with one cluster or none runs all the time, and for
/// g a tree without clusters runs beside it. The links of each are found by matroid union, on several sets of links
/// that leave no tree disconnected.
pub(super) fn fold(request: &Request<'_>) -> Option<Fold> {
    let (copies, wanted) = granularity(request.workers as usize, request.extra as usize);
    let mut best: Option<(usize, Fold)> = None;
    for attempt in 0..ATTEMPTS {
        let few = attempt % 2 == 0;
        let Some(links) = request.links(&request.groups(copies, wanted, few), attempt) else {
            continue;
        };
        // The most of `wanted` that these links carry, if more than what was found before.
        let mut least = best.as_ref().map_or(0, |(more, _)| more + 1);
        let (mut more, mut most) = (wanted, wanted);
        while least <= most {
            match request.pack(request.groups(copies, more, few), &links, copies, attempt) {
                Some(trees) => {
                    let links = links.clone();
                    best = Some((more, Fold { links, copies: copies as u32, trees }));
                    least = more + 1;
                }
                None if more == 0 => break,
                None => most = more - 1,
            }
            more = least + (most.max(least) - least) / 2;
        }
        if best.as_ref().is_some_and(|(more, _)| *more == wanted) {
            break;
        }
    }
    best.map(|(_, fold)| fold)
}

impl Request<'_> {
    /// Links on all spare ports: each worker is joined to the one half-way round, later to any; then ends are exchanged
    /// as long as that connects parts which a group of trees would find disconnected. None if parts stay disconnected.
    fn links(&self, groups: &[Vec<usize>], attempt: usize) -> Option<Vec<(u32, u32)>> {
        let mut random = Random(attempt as u64);
        let ends = (0..self.workers)
            .flat_map(|worker| std::iter::repeat_n(worker, self.spare[worker as usize] as usize));
        let mut ends: Vec<u32> = ends.collect();
        let count = ends.len() / 2;
        if attempt > 1 {
            random.shuffle(&mut ends);
        }
        let mut links: Vec<(u32, u32)> =
            (0..count).map(|link| (ends[link], ends[link + count])).collect();
        let mut distinct = groups.to_vec();
        distinct.sort();
        distinct.dedup();
        let labels: Vec<Vec<u32>> = distinct.iter().map(|group| self.labels(group)).collect();
        let apart = |links: &[(u32, u32)]| -> usize {
            labels.iter().map(|labels| parts(labels, links) - 1).sum()
        };
        let mut least = apart(&links);
        for _ in 0..EXCHANGES {
            if least == 0 || count < 2 {
                break;
            }
            let (one, other) = (random.below(count), random.below(count));
            let ((a, b), (c, d)) = (links[one], links[other]);
            if one == other || a == d || c == b {
                continue;
            }
            (links[one], links[other]) = ((a, d), (c, b));
            match apart(&links) {
                now if now <= least => least = now,
                _ => (links[one], links[other]) = ((a, b), (c, d)),
            }
            // Half of the time in the other orientation, so that every exchange can be reached.
            if random.below(2) == 0 {
                links[one] = (links[one].1, links[one].0);
            }
        }
        links.retain(|(a, b)| a != b);
        (least == 0).then_some(links)
    }

    /// The clusters that each light tree uses: `copies` of each tree, and `more` spread over all, or given to as few
    /// trees as can take them.
    fn groups(&self, copies: usize, more: usize, few: bool) -> Vec<Vec<usize>> {
        let mut groups = Vec::new();
        let mut left = more;
        for (index, clusters) in self.trees.iter().enumerate() {
            let even = more / self.trees.len() + usize::from(index < more % self.trees.len());
            let apart = if few { left.min(copies) } else { even };
            left -= apart;
            let split = if clusters.len() == 2 { apart.min(copies) } else { 0 };
            groups.extend((split..copies).map(|_| clusters.clone()));
            for _ in 0..split {
                groups.extend(clusters.iter().map(|&cluster| vec![cluster]));
            }
            groups.extend((split..apart).map(|_| Vec::new()));
        }
        groups
    }

    /// All trees, or none if one lacks a link.
    fn pack(
        &self,
        groups: Vec<Vec<usize>>,
        links: &[(u32, u32)],
        copies: usize,
        attempt: usize,
    ) -> Option<Vec<(Vec<usize>, Vec<u32>)>> {
        let labels: Vec<Vec<u32>> = groups.iter().map(|group| self.labels(group)).collect();
        let slots: Vec<&[u32]> = labels.iter().map(Vec::as_slice).collect();
        let forests = pack(self.workers as usize, links, copies, &slots, attempt);
        let spans = |(labels, forest): (&Vec<u32>, &Vec<u32>)| {
            let distinct = (labels.iter().enumerate()).filter(|&(at, &label)| at == label as usize);
            forest.len() + 1 == distinct.count()
        };
        let complete = labels.iter().zip(&forests).all(spans);
        complete.then(|| groups.into_iter().zip(forests).collect())
    }

    /// Each worker's representative: workers that the clusters join have the same one.
    fn labels(&self, clusters: &[usize]) -> Vec<u32> {
        let mut labels: Vec<u32> = (0..self.workers).collect();
        for &cluster in clusters {
            for pair in self.clusters[cluster].windows(2) {
                let (a, b) = (labels[pair[0] as usize], labels[pair[1] as usize]);
                labels.iter_mut().filter(|label| **label == b).for_each(|label| *label = a);
            }
        }
        labels
    }
}

/// The number of disconnected parts that links leave; workers with the same label are one vertex.
fn parts(labels: &[u32], links: &[(u32, u32)]) -> usize {
    let mut groups: Vec<u32> = labels.to_vec();
    let mut parts =
        (labels.iter().enumerate()).filter(|&(at, &label)| at == label as usize).count();
    for &(a, b) in links {
        let (a, b) = (find(&mut groups, a), find(&mut groups, b));
        if a != b {
            groups[a as usize] = b;
            parts -= 1;
        }
    }
    parts
}

/// Sets of links tried, and exchanges of ends in each.
const ATTEMPTS: usize = 12;
const EXCHANGES: usize = 2_000;
