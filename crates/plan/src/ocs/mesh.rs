//! Many light trees on links between workers, so that worker ports that do not make a whole ring still carry their full
//! share.

use netsum_topo::gcd;

use super::forests::pack;

/// A multigraph of workers and trees on it. Each tree has algbw 1/`copies`.
pub(super) struct Mesh {
    /// Ends of each link.
    pub links: Vec<(u32, u32)>,
    /// Trees per unit of algbw.
    pub copies: u32,
    /// Links of each tree.
    pub trees: Vec<Vec<u32>>,
}

/// A mesh of `links` links, N ≤ `links` < 2N, on workers with `spare` ports (within 1 of each other, at least 2). Its
/// algbw is links/(N−1) if that many trees are found.
///
/// Such a rate needs a graph in which no part is denser than the whole: a cycle through all workers, and chords between
/// evenly spaced positions (for few chords a Möbius ladder). If trees are missing, other chords are tried; the best
/// graph is returned.
pub(super) fn mesh(spare: &[u32], links: u32) -> Mesh {
    let workers = spare.len();
    let chords = links as usize - workers;
    let (copies, trees) = granularity(workers, links as usize);
    let labels: Vec<u32> = (0..workers as u32).collect();
    let mut best: Option<Mesh> = None;
    for attempt in 0..ATTEMPTS {
        let places = chord_places(workers, chords, attempt);
        let order = order(spare, &places);
        let mut graph: Vec<(u32, u32)> =
            (0..workers).map(|at| (order[at], order[(at + 1) % workers])).collect();
        graph.extend(places.iter().map(|&(a, b)| (order[a], order[b])));
        let slots = vec![&labels[..]; trees];
        let mut found = pack(workers, &graph, copies, &slots, attempt);
        found.retain(|forest| forest.len() == workers - 1);
        let enough = found.len() == trees;
        if best.as_ref().is_none_or(|mesh| mesh.trees.len() < found.len()) {
            best = Some(Mesh { links: graph, copies: copies as u32, trees: found });
        }
        if enough {
            break;
        }
    }
    best.expect("at least one attempt")
}

/// Copies of each link, and the number of trees that they should make.
pub(super) fn granularity(workers: usize, links: usize) -> (usize, usize) {
    let exact = (workers - 1) / gcd(workers as u128 - 1, links as u128) as usize;
    let copies = exact.min((SLOTS_MAX / links).max(1));
    (copies, copies * links / (workers - 1))
}

/// Positions on the cycle that each chord joins: every position in `2·chords / workers` of them, or one more.
fn chord_places(workers: usize, chords: usize, attempt: usize) -> Vec<(usize, usize)> {
    let ends = 2 * chords;
    let place = |end: usize| (end % ends) * workers / ends;
    if attempt == 0 {
        return (0..chords).map(|end| (place(end), place(end + chords))).collect();
    }
    let mut random = Random(attempt as u64);
    let mut shuffled: Vec<usize> = (0..ends).map(place).collect();
    random.shuffle(&mut shuffled);
    // A chord from a position to itself takes the end of another one.
    for chord in 0..chords {
        for _ in 0..ends {
            if shuffled[2 * chord] != shuffled[2 * chord + 1] {
                break;
            }
            let other = random.below(ends);
            shuffled.swap(2 * chord + 1, other);
        }
    }
    let pairs = shuffled.chunks(2).map(|pair| (pair[0], pair[1]));
    pairs.filter(|(a, b)| a != b).collect()
}

/// The worker at each position: positions with more chords get workers with more ports.
fn order(spare: &[u32], places: &[(usize, usize)]) -> Vec<u32> {
    let mut wanted = vec![0u32; spare.len()];
    for &(a, b) in places {
        wanted[a] += 1;
        wanted[b] += 1;
    }
    let mut workers: Vec<u32> = (0..spare.len() as u32).collect();
    workers.sort_by_key(|&worker| std::cmp::Reverse(spare[worker as usize]));
    let mut at: Vec<usize> = (0..spare.len()).collect();
    at.sort_by_key(|&place| std::cmp::Reverse(wanted[place]));
    let mut order = vec![0; spare.len()];
    for (worker, place) in workers.into_iter().zip(at) {
        order[place] = worker;
    }
    order
}

/// SplitMix64: the same graphs on every run.
pub(super) struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at + 1));
        }
    }
}

/// Number of graphs tried before the best is taken.
const ATTEMPTS: usize = 12;

/// Most uses of links by trees: above it the trees are fewer and heavier, and the mesh loses less
/// than one of them. 60,000 take about a second.
const SLOTS_MAX: usize = 60_000;
