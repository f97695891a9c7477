//! `lstopo --of xml` of hwloc 2: PCI bridges and packages as switches, co-processors (CUDA, RSMI)
//! as GPUs, and the `NVLinkBandwidth` or `XGMIBandwidth` matrix where hwloc measured one.

use std::collections::{BTreeMap, HashMap};

use roxmltree::Node;

use super::{ImportOptions, Source, gpu, relay, xml};
use crate::error::TopoError;
use crate::links::{LinkGraph, LinkKind, Vertex, WeightedLink, builders};
use crate::units::Rate;

pub(super) fn read(source: &Source<'_>, options: &ImportOptions) -> Result<LinkGraph, TopoError> {
    let document = xml::parse(source)?;
    let root = document.root_element();
    if root.tag_name().name() != "topology" {
        return Err(source.fault(xml::place(root), "the root of an lstopo file is <topology>"));
    }
    let mut reader = Reader {
        source,
        options,
        vertices: vec![relay("machine")],
        links: Vec::new(),
        gpus: BTreeMap::new(),
        objects: HashMap::new(),
    };
    reader.objects_below(root, 0, 0)?;
    for matrix in root.children().filter(|node| node.has_tag_name("distances2")) {
        reader.matrix(matrix)?;
    }
    if reader.gpus.is_empty() {
        let problem = "no GPU: no OSDev of type co-processor; run lstopo with CUDA or ROCm support";
        return Err(source.fault("the file", problem));
    }
    let order: Vec<usize> = reader.gpus.values().copied().collect();
    let graph = LinkGraph::checked("lstopo", reader.vertices, reader.links)
        .map_err(|fault| source.fault(fault.entry, fault.problem))?;
    let graph = graph.induced(&order);
    source.graph("lstopo", graph.vertices, graph.links)
}

struct Reader<'a> {
    source: &'a Source<'a>,
    options: &'a ImportOptions,
    vertices: Vec<Vertex>,
    links: Vec<WeightedLink>,
    /// By length of the name and name, so that cuda10 follows cuda9.
    gpus: BTreeMap<(usize, String), usize>,
    /// By hwloc's `gp_index`.
    objects: HashMap<u64, usize>,
}

impl Reader<'_> {
    fn objects_below(
        &mut self,
        node: Node<'_, '_>,
        above: usize,
        depth: usize,
    ) -> Result<(), TopoError> {
        if depth > DEPTH_MAX {
            let problem = format!("objects nested deeper than {DEPTH_MAX}");
            return Err(self.source.fault(xml::place(node), problem));
        }
        for object in node.children().filter(|node| node.has_tag_name("object")) {
            let mut here = above;
            match object.attribute("type") {
                Some("Package") | Some("Bridge") => {
                    let place = self.vertices.len();
                    let name = object.attribute("type").unwrap_or("").to_ascii_lowercase();
                    self.vertices.push(relay(format!("{name}-{place}")));
                    here = place;
                    self.link([place, above], self.speed(object)?, LinkKind::Pcie);
                }
                Some("PCIDev") => self.device(object, above)?,
                _ => {}
            }
            self.objects_below(object, here, depth + 1)?;
        }
        Ok(())
    }

    /// One GPU per PCI device with a co-processor among its OSDevs, named after the first CUDA or RSMI device.
    fn device(&mut self, pci: Node<'_, '_>, above: usize) -> Result<(), TopoError> {
        let osdevs = || pci.children().filter(|node| node.attribute("type") == Some("OSDev"));
        let name_of = |node: &Node<'_, '_>| node.attribute("name").unwrap_or("").to_owned();
        let native = |node: &Node<'_, '_>| {
            let name = name_of(node);
            name.starts_with("cuda") || name.starts_with("rsmi")
        };
        let Some(osdev) = osdevs().find(native) else { return Ok(()) };
        let (name, place) = (name_of(&osdev), self.vertices.len());
        self.vertices.push(gpu(name.clone()));
        if self.gpus.insert((name.len(), name.clone()), place).is_some() {
            return Err(self
                .source
                .fault(xml::place(osdev), format!("GPU {name:?} is named twice")));
        }
        for node in osdevs().chain([pci]) {
            if node.attribute("gp_index").is_some() {
                self.objects.insert(xml::number(self.source, node, "gp_index")?, place);
            }
        }
        let rate = self.speed(pci)?;
        self.link([place, above], rate, LinkKind::Pcie);
        Ok(())
    }

    /// `pci_link_speed` is in GB/s; 0 or none: unknown.
    fn speed(&self, node: Node<'_, '_>) -> Result<u64, TopoError> {
        let Some(text) = node.attribute("pci_link_speed") else { return Ok(self.options.pcie.0) };
        let speed: f64 = xml::number(self.source, node, "pci_link_speed")?;
        if !(0.0..=10_000.0).contains(&speed) {
            let problem = format!("pci_link_speed {text:?} is no rate in GB/s");
            return Err(self.source.fault(xml::place(node), problem));
        }
        let known = (speed * 1e3) as u64 * 8_000_000;
        Ok(if known > 0 { known } else { self.options.pcie.0 })
    }

    /// A matrix of MB/s between GPUs, row by row. Columns that are not GPUs (NVSwitches) are skipped.
    fn matrix(&mut self, matrix: Node<'_, '_>) -> Result<(), TopoError> {
        let kind = match matrix.attribute("name") {
            Some("NVLinkBandwidth") => LinkKind::Nvlink,
            Some("XGMIBandwidth") => LinkKind::Xgmi,
            _ => return Ok(()),
        };
        let n: usize = xml::number(self.source, matrix, "nbobjs")?;
        let list = |name: &'static str| -> Result<Vec<u64>, TopoError> {
            let texts = matrix.children().filter(|node| node.has_tag_name(name));
            let words = texts.filter_map(|node| node.text()).flat_map(str::split_whitespace);
            let number = |word: &str| {
                word.rsplit(':').next().unwrap_or(word).parse().map_err(|_| {
                    let problem = format!("{word:?} in <{name}> is no number");
                    self.source.fault(xml::place(matrix), problem)
                })
            };
            words.map(number).collect()
        };
        let (indexes, values) = (list("indexes")?, list("u64values")?);
        if indexes.len() != n || Some(values.len()) != n.checked_mul(n) {
            let problem =
                format!("{} indexes and {} values for {n} objects", indexes.len(), values.len());
            return Err(self.source.fault(xml::place(matrix), problem));
        }
        let objects: Vec<Option<usize>> =
            indexes.iter().map(|index| self.objects.get(index).copied()).collect();
        for a in 0..n {
            for b in a + 1..n {
                let (Some(from), Some(to)) = (objects[a], objects[b]) else { continue };
                let (there, back) = (values[a * n + b], values[b * n + a]);
                if there != back {
                    let problem =
                        format!("row {a}, column {b} is {there}, and {back} the other way");
                    return Err(self.source.fault(xml::place(matrix), problem));
                }
                if there > 0 && from != to {
                    self.link([from, to], there.saturating_mul(8_000_000), kind);
                }
            }
        }
        Ok(())
    }

    fn link(&mut self, ends: [usize; 2], rate: u64, kind: LinkKind) {
        let latency_ns = builders::latency_ns(kind);
        self.links.push(WeightedLink { ends, rate: Rate(rate), latency_ns, kind, one_way: false });
    }
}

/// Objects of real machines nest about a dozen deep.
const DEPTH_MAX: usize = 64;
