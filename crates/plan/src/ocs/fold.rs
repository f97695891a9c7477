//! Trees that share their worker links with a mesh too thin to stand alone.

use super::forests::pack;
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

/// What is folded together.
pub(super) struct Request<'a> {
    pub workers: u32,
    /// Free ports of each worker after its clusters: what links can use.
    pub spare: Vec<u32>,
    /// Links beyond those that the trees need for themselves.
    pub extra: u32,
    pub clusters: &'a [Cluster],
    /// Per tree of algbw 1 its clusters.
    pub trees: &'a [Vec<usize>],
}

/// Trees of algbw `trees` + `extra`/(N−1) together, or as much as is found.
///
/// A tree with clusters a and b gives way for a while g: it runs for 1 − g with both, and for g with each
/// alone, which makes 1 + g, while every cluster still works for 1. With one cluster or none it runs on, and
/// beside it for g a tree without. Which links serve which of these is found by matroid union; if they
/// do not suffice, other links are tried, then less is asked for.
pub(super) fn fold(request: &Request<'_>) -> Fold {
    let links = request.spare.iter().sum::<u32>() / 2;
    let (copies, wanted) = granularity(request.workers as usize, request.extra as usize);
    let mut more = wanted;
    loop {
        for attempt in 0..ATTEMPTS {
            let graph = request.links(links as usize, attempt);
            if let Some(trees) = request.pack(&graph, copies, more, attempt) {
                return Fold { links: graph, copies: copies as u32, trees };
            }
        }
        assert!(more > 0, "trees by themselves always fit one attempt");
        more -= (more / 8).max(1);
    }
}

impl Request<'_> {
    /// Ends in the order of workers; each end is joined to the one half-way round, later at random.
    fn links(&self, count: usize, attempt: usize) -> Vec<(u32, u32)> {
        let ends = (0..self.workers)
            .flat_map(|worker| std::iter::repeat_n(worker, self.spare[worker as usize] as usize));
        let mut ends: Vec<u32> = ends.take(2 * count).collect();
        if attempt > 0 {
            Random(attempt as u64).shuffle(&mut ends);
        }
        (0..count).map(|link| (ends[link], ends[link + count])).collect()
    }

    /// Which clusters each light tree uses: `copies` of each tree, `more` spread over all.
    fn groups(&self, copies: usize, more: usize) -> Vec<Vec<usize>> {
        let mut groups = Vec::new();
        for (index, clusters) in self.trees.iter().enumerate() {
            let apart = more / self.trees.len() + usize::from(index < more % self.trees.len());
            let apart_most = if clusters.len() == 2 { apart.min(copies) } else { 0 };
            groups.extend((apart_most..copies).map(|_| clusters.clone()));
            for _ in 0..apart_most {
                groups.extend(clusters.iter().map(|&cluster| vec![cluster]));
            }
            groups.extend((apart_most..apart).map(|_| Vec::new()));
        }
        groups
    }

    /// All trees, or none if one lacks a link.
    fn pack(
        &self,
        links: &[(u32, u32)],
        copies: usize,
        more: usize,
        attempt: usize,
    ) -> Option<Vec<(Vec<usize>, Vec<u32>)>> {
        let groups = self.groups(copies, more);
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

    /// Each worker's representative: workers that the clusters join have one.
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

/// Sets of links tried before less is asked for.
const ATTEMPTS: usize = 12;
