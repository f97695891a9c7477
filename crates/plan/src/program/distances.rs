//! The verifier of bounds by distances.

use std::collections::BTreeMap;

use netsum_topo::Ratio;
use netsum_topo::links::{LinkGraph, Role};

use super::Fault;
use crate::pack::ArcLength;

/// The rate (bits per second of a rank's buffer) that no all-to-all exceeds if links have these lengths.
///
/// Block by block, what is sent travels at least the distance between its GPUs: with n ranks, a buffer of S bits and a
/// time t, S / n · Σ distance ≤ t · Σ capacity · length. Knows nothing of how lengths were found; any are valid. Errors:
/// a length of no link, below 0 or not whole, or two of one link; GPUs that are all at distance 0 or cannot reach each
/// other; numbers beyond 127 bits.
pub fn distance_bound(graph: &LinkGraph, lengths: &[ArcLength]) -> Result<Ratio, Fault> {
    let wrong = |problem: String| Fault::Plan(problem);
    let name = |v: usize| graph.vertices().get(v).map_or("?", |vertex| vertex.name.as_str());
    let mut given: BTreeMap<(usize, usize), u64> = BTreeMap::new();
    for arc in lengths {
        let length =
            (arc.length.den() == 1).then(|| u64::try_from(arc.length.num()).ok()).flatten();
        let length = length.filter(|&length| length < LENGTH_MAX).ok_or_else(|| {
            wrong(format!("{} is no length of {}→{}", arc.length, name(arc.from), name(arc.to)))
        })?;
        if given.insert((arc.from, arc.to), length).is_some() {
            return Err(wrong(format!("{}→{} has two lengths", name(arc.from), name(arc.to))));
        }
    }
    let n = graph.vertices().len();
    let mut next: Vec<Vec<(usize, u64)>> = vec![Vec::new(); n];
    let mut used = 0;
    let mut room = 0i128;
    let mut seen = BTreeMap::new();
    for (from, to, link) in graph.arcs() {
        let length = given.get(&(from, to)).copied().unwrap_or(0);
        let offered = i128::from(link.rate.0) * i128::from(length);
        room = room.checked_add(offered).ok_or_else(|| wrong(TOO_LONG.to_owned()))?;
        if seen.insert((from, to), ()).is_none() {
            used += usize::from(given.contains_key(&(from, to)));
            next[from].push((to, length));
        }
    }
    if used < given.len() {
        return Err(wrong("a length is given for a link that the fabric lacks".to_owned()));
    }
    let gpus: Vec<usize> = (0..n).filter(|&v| graph.vertices()[v].role == Role::Gpu).collect();
    let mut total = 0i128;
    for &from in &gpus {
        let far = distances(&next, from);
        for &to in &gpus {
            let far = far[to];
            total += i128::from(
                far.ok_or_else(|| wrong(format!("{} cannot reach {}", name(from), name(to))))?,
            );
        }
    }
    if total == 0 {
        return Err(wrong("all distances are 0, which bounds nothing".to_owned()));
    }
    let room = room.checked_mul(gpus.len() as i128);
    Ok(Ratio::new(room.ok_or_else(|| wrong(TOO_LONG.to_owned()))?, total))
}

/// Distances from a vertex: vertices wait in buckets by distance.
fn distances(next: &[Vec<(usize, u64)>], from: usize) -> Vec<Option<u64>> {
    let mut far: Vec<Option<u64>> = vec![None; next.len()];
    let mut waiting: BTreeMap<u64, Vec<usize>> = BTreeMap::from([(0, vec![from])]);
    while let Some((distance, vertices)) = waiting.pop_first() {
        let mut vertices = vertices;
        while let Some(here) = vertices.pop() {
            if far[here].is_some() {
                continue;
            }
            far[here] = Some(distance);
            for &(to, length) in &next[here] {
                match (far[to], length) {
                    (Some(_), _) => {}
                    (None, 0) => vertices.push(to),
                    (None, _) => waiting.entry(distance + length).or_default().push(to),
                }
            }
        }
    }
    far
}

const TOO_LONG: &str = "lengths are too large to be added up";
/// Longer lengths could exceed 64 bits along a path.
const LENGTH_MAX: u64 = 1 << 46;
