//! Plans for a fabric with lost links or devices, or with links that have become slower.

use netsum_topo::Rate;
use netsum_topo::links::{Collective, LinkGraph, TreePlan, WeightedLink};

use super::packed::Packed;
use super::packing::pack;
use super::warm::{kept, mended};
use crate::error::PackError;

/// A loss of a fabric. Vertices by index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// A GPU or a switch, with its links.
    Vertex(usize),
    /// All links between two vertices.
    Link([usize; 2]),
    /// All links between two vertices have this rate now, together.
    Slower([usize; 2], Rate),
}

impl Loss {
    /// A loss by name: a vertex, or two with `-` between them. Errors name the word.
    pub fn lost(graph: &LinkGraph, word: &str) -> Result<Loss, PackError> {
        match place(graph, word) {
            Some(vertex) => Ok(Loss::Vertex(vertex)),
            None => ends(graph, word).map(Loss::Link),
        }
    }

    /// A slower link by name.
    pub fn slower(graph: &LinkGraph, word: &str, rate: Rate) -> Result<Loss, PackError> {
        ends(graph, word).map(|ends| Loss::Slower(ends, rate))
    }
}

/// A plan for the rest of the fabric.
#[derive(Debug, Clone)]
pub struct Replanned {
    /// The rest of the fabric.
    pub graph: LinkGraph,
    /// Its plan.
    pub packed: Packed,
    /// Descriptions of the losses.
    pub lost: Vec<String>,
    /// Whether the plan in use was mended; if not, its trees come from a search of their own.
    pub mended: bool,
    /// The part of the buffer whose trees are as before, from 0 to 1.
    pub kept: f64,
}

/// The best trees without the losses, for the collective of the plan in use. Its trees are mended where they lost
/// something, in a time that depends on how much that is; if that does not reach the bound, a search from nothing
/// follows, and the better trees count.
///
/// `old` can be any plan, also one that is not valid on `graph`: it affects time and ties, and never the rate below
/// that of a search from nothing. Errors: [`without`]'s; the root is lost; the rest is not connected.
pub fn replan(graph: &LinkGraph, old: &TreePlan, losses: &[Loss]) -> Result<Replanned, PackError> {
    let (left, lost) = without(graph, losses)?;
    let found = collective_on(&left, old).and_then(|collective| {
        Ok(match mended(&left, collective, old)? {
            Some(packed) if !packed.limited => (packed, true),
            mended => {
                let anew = pack(&left, collective)?;
                match mended {
                    Some(packed) if packed.rate > anew.rate => (packed, true),
                    _ => (anew, false),
                }
            }
        })
    });
    let left_over =
        |error: PackError| PackError::Left { lost: lost.join("; "), error: error.into() };
    let (packed, mended) = found.map_err(left_over)?;
    let kept = kept(&left, &packed, old);
    Ok(Replanned { graph: left, packed, lost, mended, kept })
}

/// The collective of a plan, on a fabric in which ranks may be missing.
fn collective_on(graph: &LinkGraph, old: &TreePlan) -> Result<Collective, PackError> {
    let rank = |root: usize| {
        let name = old.gpus.get(root).and_then(|&gpu| old.vertices.get(gpu));
        let name = name.ok_or(PackError::Root { root, gpus: old.gpus.len() })?;
        let here = graph.gpus().into_iter().position(|gpu| graph.vertices()[gpu].name == *name);
        here.ok_or_else(|| PackError::RootLost { name: name.clone() })
    };
    Ok(match old.collective {
        Collective::Broadcast { root } => Collective::Broadcast { root: rank(root)? },
        Collective::Reduce { root } => Collective::Reduce { root: rank(root)? },
        other => other,
    })
}

/// The rest of the fabric, and descriptions of the losses. Errors: two vertices without a link between them, a rate of
/// 0.
pub fn without(graph: &LinkGraph, losses: &[Loss]) -> Result<(LinkGraph, Vec<String>), PackError> {
    let name = |vertex: usize| graph.vertices()[vertex].name.as_str();
    let mut links = graph.links().to_vec();
    let mut gone = vec![false; graph.vertices().len()];
    let mut words = Vec::new();
    for &loss in losses {
        match loss {
            Loss::Vertex(vertex) => {
                let count = links.iter().filter(|link| link.ends.contains(&vertex)).count();
                gone[vertex] = true;
                words.push(format!("{} with {count} links", name(vertex)));
            }
            Loss::Link(ends) => {
                let (found, rest) = links.into_iter().partition(|link| joins(link, ends));
                links = rest;
                let found: Vec<WeightedLink> = found;
                let rates: Vec<String> = found.iter().map(|link| link.rate.to_string()).collect();
                let rates = some(graph, ends, rates)?.join(", ");
                words.push(format!("{}–{} ({rates})", name(ends[0]), name(ends[1])));
            }
            Loss::Slower(ends, rate) => {
                let found: Vec<&mut WeightedLink> =
                    links.iter_mut().filter(|link| joins(link, ends)).collect();
                let before: u64 = found.iter().map(|link| link.rate.0).sum();
                for link in some(graph, ends, found)? {
                    let part = u128::from(rate.0) * u128::from(link.rate.0) / u128::from(before);
                    link.rate = Rate(part as u64);
                }
                let (a, b) = (name(ends[0]), name(ends[1]));
                words.push(format!("{a}–{b} at {rate} in place of {}", Rate(before)));
            }
        }
    }
    let mut place = vec![None; gone.len()];
    let left = (0..gone.len()).filter(|&vertex| !gone[vertex]);
    let vertices = left.enumerate().map(|(new, old)| {
        place[old] = Some(new);
        graph.vertices()[old].clone()
    });
    let vertices = vertices.collect();
    let moved = |link: &WeightedLink| {
        let ends = [place[link.ends[0]]?, place[link.ends[1]]?];
        Some(WeightedLink { ends, ..*link })
    };
    let links = links.iter().filter_map(moved).collect();
    Ok((LinkGraph::new(graph.name(), vertices, links)?, words))
}

fn joins(link: &WeightedLink, ends: [usize; 2]) -> bool {
    link.ends == ends || link.ends == [ends[1], ends[0]]
}

fn some<T>(graph: &LinkGraph, ends: [usize; 2], found: Vec<T>) -> Result<Vec<T>, PackError> {
    let [a, b] = ends.map(|end| graph.vertices()[end].name.clone());
    if found.is_empty() { Err(PackError::NoLink { a, b }) } else { Ok(found) }
}

fn place(graph: &LinkGraph, name: &str) -> Option<usize> {
    graph.vertices().iter().position(|vertex| vertex.name == name)
}

/// The ends of a link named `a-b`; names may contain `-` themselves.
fn ends(graph: &LinkGraph, word: &str) -> Result<[usize; 2], PackError> {
    let word = word.replace('–', "-");
    let cuts = word.match_indices('-').map(|(at, _)| (&word[..at], &word[at + 1..]));
    let mut ends = cuts.filter_map(|(a, b)| Some([place(graph, a)?, place(graph, b)?]));
    ends.next().ok_or_else(|| {
        let names = graph.vertices().iter().map(|vertex| vertex.name.as_str());
        PackError::NoSuchPart { word: word.clone(), names: names.collect::<Vec<_>>().join(", ") }
    })
}

#[cfg(test)]
mod tests {
    use netsum_topo::links::{LinkKind, built};

    use super::*;

    fn dgx() -> LinkGraph {
        built("dgx1v").unwrap().only(&[LinkKind::Nvlink]).unwrap()
    }

    #[test]
    fn names_are_links_and_vertices() {
        let graph = built("dgx1v").unwrap();
        assert_eq!(Loss::lost(&graph, "gpu0-gpu3"), Ok(Loss::Link([0, 3])));
        assert_eq!(Loss::lost(&graph, "gpu2"), Ok(Loss::Vertex(2)));
        for word in ["gpu0-gpu9", "gpu9", "-", "gpu0-"] {
            let error = Loss::lost(&graph, word).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{word:?} is no GPU, switch or link")), "{error}");
        }
    }

    #[test]
    fn the_remaining_graph_is_planned() {
        let graph = dgx();
        let whole = pack(&graph, Collective::Allreduce).unwrap();
        let old = whole.plan(&graph);
        let half = Loss::Slower([0, 3], Rate(200_000_000_000));
        let slower = replan(&graph, &old, &[half]).unwrap();
        let less = replan(&graph, &old, &[Loss::Link([3, 0])]).unwrap();
        assert_eq!(slower.lost, ["gpu0–gpu3 at 200Gbit/s in place of 400Gbit/s"]);
        assert_eq!(less.lost, ["gpu3–gpu0 (400Gbit/s)"]);
        assert!(whole.rate_bps() > slower.packed.rate_bps());
        assert!(slower.packed.rate_bps() > less.packed.rate_bps());
        assert_eq!(less.packed.bound.unwrap().rate, less.packed.rate);
    }

    #[test]
    fn parallel_links_share_the_remaining_rate() {
        let graph = built("dgx1v").unwrap().select(&["0", "1", "4"]).unwrap();
        let graph = graph.only(&[LinkKind::Nvlink]).unwrap();
        let twice = [graph.links(), graph.links()].concat();
        let twice = LinkGraph::new("twice", graph.vertices().to_vec(), twice).unwrap();
        let (left, words) = without(&twice, &[Loss::Slower([0, 1], Rate(100))]).unwrap();
        let rates: Vec<u64> =
            left.arcs().filter(|arc| (arc.0, arc.1) == (0, 1)).map(|arc| arc.2.rate.0).collect();
        assert_eq!(rates, [50, 50], "{words:?}");
    }

    #[test]
    fn impossible_losses_and_disconnected_rests_are_refused() {
        let graph = dgx().select(&["0", "1", "4"]).unwrap();
        let old = pack(&graph, Collective::Allreduce).unwrap().plan(&graph);
        let error = replan(&graph, &old, &[Loss::Link([1, 2])]).unwrap_err();
        assert_eq!(error.to_string(), "there is no link between gpu1 and gpu4");
        let error = replan(&graph, &old, &[Loss::Link([0, 1])]).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("without gpu0–gpu1 (200Gbit/s): "), "{text}");
        assert!(text.contains("disconnected"), "{text}");
        assert!(without(&graph, &[Loss::Slower([0, 1], Rate(0))]).is_err());
    }

    /// Ranks behind a lost one move up; the root stays the same GPU.
    #[test]
    fn the_root_is_found_by_its_name() {
        let graph = dgx();
        let old = pack(&graph, Collective::Broadcast { root: 5 }).unwrap().plan(&graph);
        let found = replan(&graph, &old, &[Loss::Vertex(2)]).unwrap();
        assert_eq!(found.packed.collective, Collective::Broadcast { root: 4 });
        assert_eq!(found.graph.vertices()[found.graph.gpus()[4]].name, "gpu5");
        let error = replan(&graph, &old, &[Loss::Vertex(5)]).unwrap_err().to_string();
        assert!(error.ends_with("gpu5 is the root, and no plan can do without it"), "{error}");
    }
}
