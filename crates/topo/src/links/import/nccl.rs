//! NCCL's topology file (version 1): `system > cpu > pci… > gpu > nvlink`; RCCL's has `xgmi`.
//!
//! Rates of NVLinks follow the GPU's `sm`, as in NCCL's own tables; those of PCIe follow `link_speed` × `link_width`.
//! NICs are skipped: one server is described.

use std::collections::{BTreeMap, HashMap};

use roxmltree::Node;

use super::{ImportOptions, Source, gpu, relay, xml};
use crate::error::TopoError;
use crate::links::{LinkGraph, LinkKind, Vertex, WeightedLink, builders};
use crate::units::Rate;

pub(super) fn read(source: &Source<'_>, options: &ImportOptions) -> Result<LinkGraph, TopoError> {
    let document = xml::parse(source)?;
    let system = document.root_element();
    if system.tag_name().name() != "system" {
        return Err(source.fault(xml::place(system), "the root of an NCCL topology is <system>"));
    }
    let mut reader = Reader::new(source, options);
    let mut sockets = Vec::new();
    for cpu in children(system, "cpu") {
        let socket = reader.vertex(relay(format!("cpu{}", sockets.len())));
        for &other in &sockets {
            reader.link([other, socket], options.pcie.0, LinkKind::Pcie);
        }
        sockets.push(socket);
        reader.devices(cpu, socket, cpu.attribute("numaid").unwrap_or(""), 0)?;
    }
    reader.fast_links(system)?;
    let order: Vec<usize> = reader.gpus.values().copied().collect();
    let graph = LinkGraph::checked("nccl", reader.vertices, reader.links)
        .map_err(|fault| source.fault(fault.entry, fault.problem))?;
    let graph = graph.induced(&order);
    source.graph("nccl", graph.vertices, graph.links)
}

struct Reader<'a> {
    source: &'a Source<'a>,
    options: &'a ImportOptions,
    vertices: Vec<Vertex>,
    links: Vec<WeightedLink>,
    /// By NCCL's number.
    gpus: BTreeMap<u64, usize>,
    /// PCI bus ids of GPUs, by which NVLinks name their other end.
    buses: HashMap<String, usize>,
}

impl<'a> Reader<'a> {
    fn new(source: &'a Source<'a>, options: &'a ImportOptions) -> Reader<'a> {
        let (vertices, links) = (Vec::new(), Vec::new());
        Reader { source, options, vertices, links, gpus: BTreeMap::new(), buses: HashMap::new() }
    }

    fn vertex(&mut self, vertex: Vertex) -> usize {
        self.vertices.push(vertex);
        self.vertices.len() - 1
    }

    fn link(&mut self, ends: [usize; 2], rate: u64, kind: LinkKind) {
        let latency_ns = builders::latency_ns(kind);
        self.links.push(WeightedLink { ends, rate: Rate(rate), latency_ns, kind, one_way: false });
    }

    /// All `<pci>` beneath `node`: bridges become switches, GPUs vertices.
    fn devices(
        &mut self,
        node: Node<'_, '_>,
        above: usize,
        path: &str,
        depth: usize,
    ) -> Result<(), TopoError> {
        if depth > DEPTH_MAX {
            let problem = format!("PCI bridges nested deeper than {DEPTH_MAX}");
            return Err(self.source.fault(xml::place(node), problem));
        }
        for pci in children(node, "pci") {
            let bus = pci.attribute("busid").unwrap_or("").to_ascii_lowercase();
            let rate = self.pcie_rate(pci)?;
            if let Some(device) = children(pci, "gpu").next() {
                let number: u64 = xml::number(self.source, device, "dev")?;
                let vertex = self.vertex(gpu(format!("gpu{number}")));
                if self.gpus.insert(number, vertex).is_some() {
                    let problem = format!("GPU {number} is named twice");
                    return Err(self.source.fault(xml::place(device), problem));
                }
                if self.buses.insert(bus.clone(), vertex).is_some() {
                    let problem = format!("two GPUs at PCI bus {bus:?}");
                    return Err(self.source.fault(xml::place(pci), problem));
                }
                self.link([vertex, above], rate, LinkKind::Pcie);
            } else if children(pci, "pci").next().is_some() {
                let place = self.vertices.len();
                let bridge = self.vertex(relay(format!("pci{path}-{place}")));
                self.link([bridge, above], rate, LinkKind::Pcie);
                self.devices(pci, bridge, path, depth + 1)?;
            }
        }
        Ok(())
    }

    /// `<nvlink>` and `<xgmi>`: a link between GPUs is listed at both ends, and counted once.
    fn fast_links(&mut self, system: Node<'_, '_>) -> Result<(), TopoError> {
        let mut counts: BTreeMap<(usize, usize), (u64, u64, LinkKind)> = BTreeMap::new();
        let mut switch = None;
        for device in system.descendants().filter(|node| node.has_tag_name("gpu")) {
            let number: u64 = xml::number(self.source, device, "dev")?;
            // Skips a <gpu> that is not in a <pci> of a <cpu>.
            let Some(&from) = self.gpus.get(&number) else { continue };
            for line in
                device.children().filter(|n| n.has_tag_name("nvlink") || n.has_tag_name("xgmi"))
            {
                let count: u64 = xml::number(self.source, line, "count")?;
                let kind =
                    if line.has_tag_name("xgmi") { LinkKind::Xgmi } else { LinkKind::Nvlink };
                let per_link = fast_rate(device, kind, self.options);
                let rate = per_link.checked_mul(count).filter(|_| count > 0).ok_or_else(|| {
                    self.source.fault(xml::place(line), format!("{count} links are not possible"))
                })?;
                if line.attribute("tclass") == Some(NVSWITCH_CLASS) {
                    let to = match switch {
                        Some(to) => to,
                        None => *switch.insert(self.vertex(relay("nvswitch0"))),
                    };
                    let sum = counts.entry((from, to)).or_insert((0, 0, kind));
                    sum.0 = sum.0.saturating_add(rate);
                    continue;
                }
                let target = line.attribute("target").unwrap_or("").to_ascii_lowercase();
                let Some(&to) = self.buses.get(&target) else {
                    let problem = format!("target {target:?} is no GPU of this file");
                    return Err(self.source.fault(xml::place(line), problem));
                };
                let entry = counts.entry((from.min(to), from.max(to))).or_insert((0, 0, kind));
                let side = if from < to { &mut entry.0 } else { &mut entry.1 };
                *side = side.saturating_add(rate);
            }
        }
        for ((a, b), (there, back, kind)) in counts {
            if there != 0 && back != 0 && there != back {
                let (a, b) = (&self.vertices[a].name, &self.vertices[b].name);
                let problem = "its ends disagree on the number of links";
                return Err(self.source.fault(format!("{a}–{b}"), problem));
            }
            self.link([a, b], there.max(back), kind);
        }
        Ok(())
    }

    fn pcie_rate(&self, pci: Node<'_, '_>) -> Result<u64, TopoError> {
        let Some(speed) = pci.attribute("link_speed").filter(|text| !text.trim().is_empty()) else {
            return Ok(self.options.pcie.0);
        };
        let transfers = speed.split_whitespace().next().and_then(|text| text.parse::<f64>().ok());
        let Some(transfers) = transfers.filter(|value| (0.1..=1000.0).contains(value)) else {
            let problem = format!("link_speed {speed:?}; it is written like \"16.0 GT/s PCIe\"");
            return Err(self.source.fault(xml::place(pci), problem));
        };
        let width: u64 = xml::number(self.source, pci, "link_width")?;
        if width == 0 || width > 64 {
            // NCCL writes 0 for an unknown speed.
            return Ok(self.options.pcie.0);
        }
        // 8b/10b before PCIe 3.0, 128b/130b since.
        let code = if transfers < 8.0 { 0.8 } else { 128.0 / 130.0 };
        Ok((transfers * code * 1e3) as u64 * 1_000_000 * width)
    }
}

/// One NVLink or xGMI link, one direction. Source: NCCL `graph/topo.h` (`SM60_NVLINK_BW` …), RCCL.
fn fast_rate(device: Node<'_, '_>, kind: LinkKind, options: &ImportOptions) -> u64 {
    let mbytes = |rate: u64| rate * 8_000_000;
    let sm: Option<u64> = device.attribute("sm").and_then(|text| text.parse().ok());
    match (kind, sm) {
        (LinkKind::Xgmi, _) => mbytes(36_000),
        (_, Some(60..=69)) => mbytes(18_000),
        (_, Some(86)) => mbytes(12_000),
        (_, Some(70..=89)) => mbytes(20_000),
        (_, Some(90..=99)) => mbytes(20_600),
        (_, Some(100..)) => mbytes(40_100),
        _ => options.nvlink.0,
    }
}

fn children<'a, 'b>(node: Node<'a, 'b>, name: &'static str) -> impl Iterator<Item = Node<'a, 'b>> {
    node.children().filter(move |child| child.has_tag_name(name))
}

/// PCI class of an NVSwitch, as NCCL writes it.
const NVSWITCH_CLASS: &str = "0x068000";

/// Real machines have up to four levels.
const DEPTH_MAX: usize = 32;
