//! Builders of known machines. Links per pair are facts of the hardware; rates are the caller's.

use super::{LinkGraph, LinkKind, Role, Vertex, WeightedLink};
use crate::error::TopoError;
use crate::fabric::Fabric;
use crate::units::Rate;
use crate::{Addressing, fat_tree, leaf_spine};

/// DGX-1 with P100: a cube mesh, 4 NVLinks per GPU (16 in all), and the PCIe tree beneath.
///
/// `nvlink`: rate of one link in one direction.
pub fn dgx1p(nvlink: Rate) -> LinkGraph {
    dgx1("dgx1p", nvlink, &[])
}

/// DGX-1 with V100: as [`dgx1p`] with one more link on the ring 0-3-2-1-5-6-7-4, 6 per GPU.
pub fn dgx1v(nvlink: Rate) -> LinkGraph {
    let ring = [0, 3, 2, 1, 5, 6, 7, 4];
    let more: Vec<[usize; 2]> = (0..8).map(|i| [ring[i], ring[(i + 1) % 8]]).collect();
    dgx1("dgx1v", nvlink, &more)
}

fn dgx1(name: &str, nvlink: Rate, more: &[[usize; 2]]) -> LinkGraph {
    let mut draft = Draft::new(name, 8);
    for &ends in CUBE_MESH {
        let again = |pair: &&[usize; 2]| pair.contains(&ends[0]) && pair.contains(&ends[1]);
        let count = 1 + more.iter().filter(again).count() as u64;
        draft.link(ends, Rate(nvlink.0 * count), LinkKind::Nvlink);
    }
    let sockets = [draft.switch("cpu0", false), draft.switch("cpu1", false)];
    draft.link(sockets, PCIE_X16, LinkKind::Pcie);
    for pair in 0..4 {
        let plx = draft.switch(&format!("plx{pair}"), false);
        draft.link([plx, sockets[pair / 2]], PCIE_X16, LinkKind::Pcie);
        draft.link([2 * pair, plx], PCIE_X16, LinkKind::Pcie);
        draft.link([2 * pair + 1, plx], PCIE_X16, LinkKind::Pcie);
    }
    draft.finish()
}

/// DGX-2: 16 V100 at NVSwitches, here one switch, with `per_gpu` each.
pub fn dgx2(per_gpu: Rate) -> LinkGraph {
    let mut draft = Draft::new("dgx2", 16);
    draft.box_of(0..16, "nvswitch0", false, per_gpu);
    draft.finish()
}

/// `boxes` of 8 A100 at an NVSwitch (`per_gpu` each), joined by one network port (`nic`) per GPU.
pub fn a100(boxes: usize, per_gpu: Rate, nic: Rate) -> Result<LinkGraph, TopoError> {
    boxed("a100", boxes, per_gpu, nic, false)
}

/// As [`a100`] with H100: their NVSwitches add and multicast (NVLink SHARP).
pub fn h100(boxes: usize, per_gpu: Rate, nic: Rate) -> Result<LinkGraph, TopoError> {
    boxed("h100", boxes, per_gpu, nic, true)
}

fn boxed(
    name: &str,
    boxes: usize,
    per_gpu: Rate,
    nic: Rate,
    adds: bool,
) -> Result<LinkGraph, TopoError> {
    if boxes == 0 || boxes > BOXES_MAX {
        let problem = format!("give 1 to {BOXES_MAX} boxes");
        return Err(TopoError::Shape { shape: format!("{name} × {boxes}"), problem });
    }
    let mut draft = Draft::new(name, 8 * boxes);
    for index in 0..boxes {
        draft.box_of(8 * index..8 * index + 8, &format!("nvswitch{index}"), adds, per_gpu);
    }
    if boxes > 1 {
        let network = draft.switch("network", false);
        for gpu in 0..8 * boxes {
            draft.link([gpu, network], nic, LinkKind::Nic);
        }
    }
    draft.check()
}

/// One box of 8 MI250: 16 dies, xGMI links of rate `xgmi` each, one to four per pair.
///
/// Source: the adjacency in ForestColl's `topologies.py`.
pub fn mi250(xgmi: Rate) -> LinkGraph {
    let mut draft = Draft::new("mi250", 16);
    for &(a, b, count) in MI250 {
        draft.link([a, b], Rate(xgmi.0 * count), LinkKind::Xgmi);
    }
    draft.finish()
}

/// A torus of GPUs with the given sizes, row by row; a dimension of two has one link, not two.
pub fn torus(sizes: &[usize], rate: Rate) -> Result<LinkGraph, TopoError> {
    let shape = || format!("a torus of {sizes:?}");
    let total = sizes.iter().try_fold(1usize, |all, &size| all.checked_mul(size));
    let total = total.filter(|&all| (2..=TORUS_MAX).contains(&all)).ok_or_else(|| {
        let problem = format!("its sizes must multiply to 2 to {TORUS_MAX} GPUs");
        TopoError::Shape { shape: shape(), problem }
    })?;
    let mut draft = Draft::new("torus", total);
    let mut stride = 1;
    for &size in sizes.iter().rev() {
        for gpu in 0..total {
            let here = gpu / stride % size;
            let next = gpu - here * stride + (here + 1) % size * stride;
            if size > 2 || here + 1 < size {
                draft.link([gpu, next], rate, LinkKind::Link);
            }
        }
        stride *= size;
    }
    draft.check()
}

/// A machine by its name with the rates that its vendor gives, as people type it.
///
/// `dgx1p`, `dgx1v`, `dgx2`, `a100`, `h100`, `mi250`; with sizes `a100x2`, `h100x4`,
/// `torus:4x4`, `fat-tree:4`, `leaf-spine:2x8x2` (racks × hosts × spines). Errors: anything else.
pub fn built(name: &str) -> Result<LinkGraph, TopoError> {
    let unknown = || TopoError::Shape {
        shape: format!("{name:?}"),
        problem: "no such machine; use dgx1p, dgx1v, dgx2, a100[xN], h100[xN], mi250, torus:AxB, \
                  fat-tree:K, leaf-spine:RACKSxHOSTSxSPINES, or a file"
            .to_owned(),
    };
    let sizes = |text: &str| -> Result<Vec<usize>, TopoError> {
        text.split('x').map(|size| size.parse().map_err(|_| unknown())).collect()
    };
    let gbytes = |rate: u64| Rate(8_000_000_000 * rate);
    let fabric = |built: Result<Fabric, TopoError>| built.map(|fabric| LinkGraph::from(&fabric));
    if let Some((shape, text)) = name.split_once(':') {
        return match (shape, sizes(text)?.as_slice()) {
            ("torus", sizes) => torus(sizes, gbytes(50)),
            ("fat-tree", &[k]) => fabric(fat_tree(small(k), TEN_GBIT, Addressing::default())),
            ("leaf-spine", &[racks, hosts, spines]) => fabric(leaf_spine(
                small(racks),
                small(hosts),
                small(spines),
                TEN_GBIT,
                TEN_GBIT,
                Addressing::default(),
            )),
            _ => Err(unknown()),
        };
    }
    match name {
        "dgx1p" => Ok(dgx1p(gbytes(20))),
        "dgx1v" => Ok(dgx1v(gbytes(25))),
        "dgx2" => Ok(dgx2(gbytes(150))),
        "mi250" => Ok(mi250(gbytes(50))),
        _ => {
            let (kind, count) = name.split_once('x').unwrap_or((name, "1"));
            let boxes = count.parse().map_err(|_| unknown())?;
            match kind {
                "a100" => a100(boxes, gbytes(300), gbytes(25)),
                "h100" => h100(boxes, gbytes(450), gbytes(50)),
                _ => Err(unknown()),
            }
        }
    }
}

fn small(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

struct Draft {
    name: String,
    vertices: Vec<Vertex>,
    links: Vec<WeightedLink>,
}

impl Draft {
    fn new(name: &str, gpus: usize) -> Draft {
        let gpu = |i: usize| Vertex { name: format!("gpu{i}"), role: Role::Gpu };
        Draft { name: name.to_owned(), vertices: (0..gpus).map(gpu).collect(), links: Vec::new() }
    }

    fn switch(&mut self, name: &str, adds: bool) -> usize {
        let role = Role::Switch { aggregates: adds, multicasts: adds };
        self.vertices.push(Vertex { name: name.to_owned(), role });
        self.vertices.len() - 1
    }

    fn link(&mut self, ends: [usize; 2], rate: Rate, kind: LinkKind) {
        self.links.push(WeightedLink {
            ends,
            rate,
            latency_ns: latency_ns(kind),
            kind,
            one_way: false,
        });
    }

    fn box_of(&mut self, gpus: std::ops::Range<usize>, switch: &str, adds: bool, rate: Rate) {
        let switch = self.switch(switch, adds);
        for gpu in gpus {
            self.link([gpu, switch], rate, LinkKind::Nvlink);
        }
    }

    fn check(self) -> Result<LinkGraph, TopoError> {
        LinkGraph::new(&self.name, self.vertices, self.links)
    }

    /// For shapes without a parameter that could be wrong but a rate, which the caller answers for.
    fn finish(self) -> LinkGraph {
        self.check().expect("the rate is positive")
    }
}

/// Time of a message besides its bytes: orders of magnitude that tell deep from flat trees apart,
/// where a fabric's own file gives none. NVLink and PCIe as NCCL's tuning assumes for simple copies.
pub(super) fn latency_ns(kind: LinkKind) -> u64 {
    match kind {
        LinkKind::Nvlink | LinkKind::Xgmi => 1_000,
        LinkKind::Pcie => 1_500,
        LinkKind::Nic => 5_000,
        LinkKind::Link => 1_000,
    }
}

const CUBE_MESH: &[[usize; 2]] = &[
    [0, 1],
    [0, 2],
    [0, 3],
    [1, 2],
    [1, 3],
    [2, 3],
    [4, 5],
    [4, 6],
    [4, 7],
    [5, 6],
    [5, 7],
    [6, 7],
    [0, 4],
    [1, 5],
    [2, 6],
    [3, 7],
];

const MI250: &[(usize, usize, u64)] = &[
    (0, 1, 4),
    (0, 4, 2),
    (0, 8, 1),
    (1, 5, 1),
    (1, 9, 1),
    (1, 10, 1),
    (2, 3, 4),
    (2, 6, 1),
    (2, 9, 1),
    (2, 10, 1),
    (3, 7, 2),
    (3, 11, 1),
    (4, 5, 4),
    (4, 6, 1),
    (5, 6, 1),
    (5, 7, 1),
    (6, 7, 4),
    (8, 9, 4),
    (8, 12, 2),
    (9, 13, 1),
    (10, 11, 4),
    (10, 14, 1),
    (11, 15, 2),
    (12, 13, 4),
    (12, 14, 1),
    (13, 14, 1),
    (13, 15, 1),
    (14, 15, 4),
];

/// What peer copies over PCIe 3.0 ×16 reach in practice (Blink: 8 to 12 GB/s).
const PCIE_X16: Rate = Rate(80_000_000_000);
const TEN_GBIT: Rate = Rate(10_000_000_000);
const BOXES_MAX: usize = 2048;
const TORUS_MAX: usize = 1 << 14;

#[cfg(test)]
mod tests {
    use super::*;

    fn degrees(graph: &LinkGraph, unit: u64, kind: LinkKind) -> Vec<u64> {
        let mut degree = vec![0; graph.gpus().len()];
        for link in graph.links().iter().filter(|link| link.kind == kind) {
            for end in link.ends {
                degree[end] += link.rate.0 / unit;
            }
        }
        degree
    }

    #[test]
    fn links_per_gpu() {
        let one = Rate(8);
        assert_eq!(
            degrees(&dgx1p(one).only(&[LinkKind::Nvlink]).unwrap(), 8, LinkKind::Nvlink),
            [4; 8]
        );
        assert_eq!(
            degrees(&dgx1v(one).only(&[LinkKind::Nvlink]).unwrap(), 8, LinkKind::Nvlink),
            [6; 8]
        );
        assert_eq!(degrees(&torus(&[4, 4], one).unwrap(), 8, LinkKind::Link), [4; 16]);
        assert_eq!(degrees(&torus(&[2, 2], one).unwrap(), 8, LinkKind::Link), [2; 4]);
        assert_eq!(degrees(&mi250(one), 8, LinkKind::Xgmi), [7; 16]);
    }

    #[test]
    fn names_that_people_type() {
        for (name, gpus) in [("dgx2", 16), ("a100x2", 16), ("h100", 8), ("torus:2x3x4", 24)] {
            assert_eq!(built(name).unwrap().gpus().len(), gpus, "{name}");
        }
        assert_eq!(built("leaf-spine:2x3x2").unwrap().gpus().len(), 6);
        for name in ["a101", "a100xx", "torus:0x4", "torus:99999x99999", "fat-tree:3", "h100x0", ""]
        {
            assert!(built(name).is_err(), "{name}");
        }
    }
}
