//! Automorphisms of a fabric, guessed from the numbers of its ranks and then checked link by link.
//!
//! An automorphism adds 1 to one digit of every rank's number: of GPUs in servers, racks or the rows of a torus the
//! ranks are counted one place after the other. Switches follow the vertices at their links.

use std::collections::HashMap;

use netsum_topo::links::LinkGraph;

use super::super::net::{Arc, Net};
use crate::orbit_plan::Automorphism;

/// Automorphisms that commute and whose combinations move the first GPU to every GPU once; `None` if none are found.
pub(super) fn automorphisms(graph: &LinkGraph, net: &Net) -> Option<Vec<Automorphism>> {
    let mut into: Vec<Vec<usize>> = vec![Vec::new(); net.n];
    net.arcs.iter().enumerate().for_each(|(number, arc)| into[arc.to].push(number));
    let fabric = Fabric { graph, net, out: net.outgoing(), into };
    let mut dead = vec![false; net.gpus.len() + 1];
    let mut found = fabric.from(1, &mut dead)?;
    found.reverse();
    Some(found)
}

struct Fabric<'a> {
    graph: &'a LinkGraph,
    net: &'a Net,
    out: Vec<Vec<usize>>,
    into: Vec<Vec<usize>>,
}

/// The links of a switch to vertices whose images are known: image, rates there and back.
type Signature = Vec<(usize, i64, i64)>;

impl Fabric<'_> {
    /// Automorphisms of the digits from the one that counts `stride` ranks on; the last first.
    fn from(&self, stride: usize, dead: &mut [bool]) -> Option<Vec<Automorphism>> {
        let ranks = self.net.gpus.len();
        if stride == ranks {
            return Some(Vec::new());
        }
        let left = ranks / stride;
        for order in (2..=left).rev().filter(|order| left.is_multiple_of(*order)) {
            if dead[stride * order] {
                continue;
            }
            if let Some(automorphism) = self.automorphism(stride, order)
                && let Some(mut found) = self.from(stride * order, dead)
            {
                found.push(automorphism);
                return Some(found);
            }
        }
        dead[stride] = true;
        None
    }

    /// The automorphism that adds 1 to a digit of every rank, if it keeps all links.
    fn automorphism(&self, stride: usize, order: usize) -> Option<Automorphism> {
        let net = self.net;
        let mut to = vec![usize::MAX; net.n];
        for (rank, &gpu) in net.gpus.iter().enumerate() {
            let digit = rank / stride % order;
            to[gpu] = net.gpus[rank + ((digit + 1) % order) * stride - digit * stride];
        }
        let kept = |to: &[usize], arc: &Arc| {
            let moved = net.arc(to[arc.from], to[arc.to]);
            moved.is_some_and(|moved| net.arcs[moved].cap == arc.cap)
        };
        let known = |arc: &&Arc| to[arc.from].max(to[arc.to]) < net.n;
        if !net.arcs.iter().filter(known).all(|arc| kept(&to, arc)) {
            return None;
        }
        self.follow(&mut to)?;
        let role = |v: usize| self.graph.vertices()[v].role;
        let alike =
            (0..net.n).all(|v| role(v) == role(to[v])) && net.arcs.iter().all(|arc| kept(&to, arc));
        alike.then_some(Automorphism { order, to })
    }

    /// Finds the images of switches, from those next to GPUs on; equal ones in the order of their numbers.
    fn follow(&self, to: &mut [usize]) -> Option<()> {
        let mut taken = vec![false; to.len()];
        for &image in to.iter() {
            if let Some(taken) = taken.get_mut(image) {
                *taken = true;
            }
        }
        loop {
            let same: Vec<Option<usize>> = (0..to.len()).map(|v| taken[v].then_some(v)).collect();
            let images: Vec<Option<usize>> =
                to.iter().map(|&image| (image < taken.len()).then_some(image)).collect();
            let mut places: HashMap<Signature, Vec<usize>> = HashMap::new();
            for v in (0..to.len()).rev().filter(|&v| !taken[v]) {
                places.entry(self.signature(v, &same)).or_default().push(v);
            }
            let mut changed = false;
            for v in (0..to.len()).filter(|&v| images[v].is_none()) {
                let signature = self.signature(v, &images);
                if !signature.is_empty() {
                    let place = places.get_mut(&signature)?.pop()?;
                    (to[v], taken[place], changed) = (place, true, true);
                }
            }
            if !changed {
                return to.iter().all(|&image| image < taken.len()).then_some(());
            }
        }
    }

    fn signature(&self, v: usize, images: &[Option<usize>]) -> Signature {
        let arcs = &self.net.arcs;
        let out =
            self.out[v].iter().filter_map(|&arc| Some((images[arcs[arc].to]?, arcs[arc].cap, 0)));
        let into = self.into[v]
            .iter()
            .filter_map(|&arc| Some((images[arcs[arc].from]?, 0, arcs[arc].cap)));
        let mut signature: Signature = out.chain(into).collect();
        signature.sort_unstable();
        signature
    }
}

/// Arcs that automorphisms move onto each other.
pub(super) struct Orbits {
    /// By arc the first arc of its orbit.
    pub(super) of: Vec<usize>,
    /// By the first arc, how many arcs are in its orbit.
    pub(super) size: Vec<usize>,
}

impl Orbits {
    pub(super) fn new(net: &Net, automorphisms: &[Automorphism]) -> Orbits {
        let mut group: Vec<usize> = (0..net.arcs.len()).collect();
        for automorphism in automorphisms {
            for (number, arc) in net.arcs.iter().enumerate() {
                let moved = net.arc(automorphism.to[arc.from], automorphism.to[arc.to]);
                let moved = moved.expect("automorphisms keep links");
                let (a, b) = (top(&mut group, number), top(&mut group, moved));
                group[a.max(b)] = a.min(b);
            }
        }
        let of: Vec<usize> = (0..group.len()).map(|arc| top(&mut group, arc)).collect();
        let mut size = vec![0; of.len()];
        of.iter().for_each(|&first| size[first] += 1);
        Orbits { of, size }
    }
}

fn top(group: &mut [usize], mut v: usize) -> usize {
    while group[v] != v {
        group[v] = group[group[v]];
        v = group[v];
    }
    v
}
