//! Crossed classes: each device serves whole trees most of the time, and joins other classes' trees for the rest.
//!
//! E ports of a device reach E workers, so G = N/E devices reach each worker once: a class. To be a tree, a class lacks
//! one node that is connected to workers of all its devices. Any device of another class is such a node if classes are
//! laid out so that every device of one has workers in common with every device of the other. So C ≥ 2 classes take
//! turns: in each tree one class is complete, and a device of another class joins it with a port to each of its
//! devices. A tree has N + G links, all at devices, and the C·N links are evenly full: C·E/(E+1) in all, of C ports per
//! worker and C·G devices, where a full tree takes ⌈(N−2)/(E−2)⌉ for each.
//!
//! Crossed classes are parallel classes of lines: a worker is (x, y) with x in the field of G elements, and y mod G
//! another of its elements; class 0 goes by x, the others by a·x + y for each a of the field.

use super::pieces::Numbers;

/// Trees on links between workers and devices.
pub(super) struct Crossed {
    /// Worker and device of each link; devices from 0.
    pub links: Vec<(u32, u32)>,
    /// Links of each tree; all trees have the same algbw.
    pub trees: Vec<Vec<u32>>,
}

/// Most classes that can cross on these numbers of workers and ports; 0 if fewer than two.
pub(super) fn classes_max(numbers: &Numbers) -> u64 {
    let Numbers { n, e, .. } = *numbers;
    let powers = n.is_power_of_two() && e.is_power_of_two() && e < n;
    if !powers || n / e > e || (n / e).ilog2() as usize >= POLYNOMIALS.len() {
        return 0;
    }
    n / e + 1
}

/// `classes` of them, at least 2 and at most [`classes_max`].
pub(super) fn crossed(numbers: &Numbers, classes: u64) -> Crossed {
    let (workers, ports) = (numbers.n as u32, numbers.e as u32);
    let each = workers / ports;
    let log = each.ilog2();
    // The device of a worker in a class.
    let device = |class: u32, worker: u32| {
        let (x, y) = (worker / ports, worker % ports % each);
        if class == 0 { x } else { times(class - 1, x, log) ^ y }
    };
    let classes = classes as u32;
    let link = |class: u32, worker: u32| class * workers + worker;
    let all = (0..classes).flat_map(|class| (0..workers).map(move |worker| (class, worker)));
    let links = all.map(|(class, worker)| (worker, class * each + device(class, worker)));
    let mut trees = Vec::new();
    for whole in 0..classes {
        for joining in (0..classes).filter(|&class| class != whole) {
            for joint in 0..each {
                let mine: Vec<u32> =
                    (0..workers).filter(|&worker| device(joining, worker) == joint).collect();
                // Each device of the complete class gets as many, E/G.
                for turn in 0..(ports / each) as usize {
                    let mut tree: Vec<u32> =
                        (0..workers).map(|worker| link(whole, worker)).collect();
                    for side in 0..each {
                        let met = mine.iter().filter(|&&worker| device(whole, worker) == side);
                        let worker = met.copied().nth(turn).expect("classes cross");
                        tree.push(link(joining, worker));
                    }
                    trees.push(tree);
                }
            }
        }
    }
    Crossed { links: links.collect(), trees }
}

/// Product in the field of 2^`log` elements.
fn times(mut a: u32, b: u32, log: u32) -> u32 {
    let polynomial = POLYNOMIALS[log as usize];
    let (mut product, mut shifted) = (0, b);
    while a > 0 {
        if a & 1 == 1 {
            product ^= shifted;
        }
        shifted <<= 1;
        if shifted >> log & 1 == 1 {
            shifted ^= polynomial;
        }
        a >>= 1;
    }
    product
}

/// Irreducible over the field of two elements, by degree.
const POLYNOMIALS: [u32; 7] = [0b1, 0b11, 0b111, 0b1011, 0b1_0011, 0b10_0101, 0b100_0011];

#[cfg(test)]
mod tests {
    use super::*;

    /// Every tree spans all workers, every link is in equally many trees, and devices have E ports.
    #[test]
    fn trees_use_links_evenly() {
        for (n, e, classes) in
            [(32, 8, 2), (32, 8, 5), (64, 8, 9), (64, 16, 5), (16, 8, 3), (8, 4, 3)]
        {
            let numbers = Numbers { n, d: 9, m: 99, e, paired: false };
            assert_eq!(classes_max(&numbers), n / e + 1);
            let Crossed { links, trees } = crossed(&numbers, classes);
            let devices = classes * n / e;
            let mut ports = vec![0; devices as usize];
            links.iter().for_each(|&(_, device)| ports[device as usize] += 1);
            assert!(ports.iter().all(|&used| used == e));
            let mut used = vec![0usize; links.len()];
            for tree in &trees {
                let mut group: Vec<u32> = (0..(n + devices) as u32).collect();
                let mut joined = 0;
                for &at in tree {
                    used[at as usize] += 1;
                    let (worker, device) = links[at as usize];
                    let find = super::super::forests::find;
                    let (a, b) = (find(&mut group, worker), find(&mut group, n as u32 + device));
                    assert_ne!(a, b, "a cycle");
                    group[a as usize] = b;
                    joined += 1;
                }
                // All workers, G devices and one more.
                assert_eq!(joined, n + n / e);
            }
            assert!(used.iter().all(|&times| times == used[0]), "{n} {e} {classes}");
            // C·E/(E+1) at full links.
            let rate = trees.len() as f64 / used[0] as f64;
            assert!((rate - (classes * e) as f64 / (e + 1) as f64).abs() < 1e-9);
        }
    }

    #[test]
    fn sizes_without_crossed_classes() {
        for (n, e) in [(31, 8), (48, 8), (8, 8), (128, 8), (16, 6)] {
            assert_eq!(classes_max(&Numbers { n, d: 8, m: 99, e, paired: false }), 0, "{n} {e}");
        }
    }
}
