//! Importers: the result of each format, and errors with position and reason.

use netsum_topo::Rate;
use netsum_topo::links::{
    Format, ImportOptions, LinkGraph, LinkKind, a100, built, dgx1v, import, write_json, write_toml,
};
use proptest::prelude::*;

const SMI: &str = "\
\tGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tGPU6\tGPU7\tmlx5_0\tCPU Affinity
GPU0\t X \tNV1\tNV1\tNV2\tNV2\tSYS\tSYS\tSYS\tPIX\t0-19
GPU1\tNV1\t X \tNV2\tNV1\tSYS\tNV2\tSYS\tSYS\tPIX\t0-19
GPU2\tNV1\tNV2\t X \tNV2\tSYS\tSYS\tNV1\tSYS\tPHB\t0-19
GPU3\tNV2\tNV1\tNV2\t X \tSYS\tSYS\tSYS\tNV1\tPHB\t0-19
GPU4\tNV2\tSYS\tSYS\tSYS\t X \tNV1\tNV1\tNV2\tSYS\t20-39
GPU5\tSYS\tNV2\tSYS\tSYS\tNV1\t X \tNV2\tNV1\tSYS\t20-39
GPU6\tSYS\tSYS\tNV1\tSYS\tNV1\tNV2\t X \tNV2\tSYS\t20-39
GPU7\tSYS\tSYS\tSYS\tNV1\tNV2\tNV1\tNV2\t X \tSYS\t20-39
mlx5_0\tPIX\tPIX\tPHB\tPHB\tSYS\tSYS\tSYS\tSYS\t X \t

Legend:
  X    = Self
";

const NCCL: &str = r#"<system version="1">
  <cpu numaid="0" affinity="ff" arch="x86_64">
    <pci busid="0000:05:00.0" class="0x060400" link_speed="8.0 GT/s PCIe" link_width="16">
      <pci busid="0000:06:00.0" class="0x030200" link_speed="8.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="70" rank="0" gdr="1">
          <nvlink target="0000:07:00.0" count="2" tclass="0x030200"/>
        </gpu>
      </pci>
      <pci busid="0000:07:00.0" class="0x030200" link_speed="8.0 GT/s PCIe" link_width="16">
        <gpu dev="1" sm="70" rank="1" gdr="1">
          <nvlink target="0000:06:00.0" count="2" tclass="0x030200"/>
        </gpu>
      </pci>
      <pci busid="0000:08:00.0" class="0x020000" link_speed="8.0 GT/s PCIe" link_width="16">
        <nic><net name="mlx5_0" dev="0" speed="100000" port="1"/></nic>
      </pci>
    </pci>
  </cpu>
</system>"#;

const LSTOPO: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" os_index="0" gp_index="1">
    <object type="Package" os_index="0" gp_index="2">
      <object type="Bridge" gp_index="3" bridge_type="0-1" depth="0">
        <object type="PCIDev" gp_index="4" pci_busid="0000:05:00.0" pci_link_speed="15.753846">
          <object type="OSDev" gp_index="5" name="cuda0" subtype="CUDA" osdev_type="5"/>
        </object>
      </object>
    </object>
    <object type="Package" os_index="1" gp_index="6">
      <object type="Bridge" gp_index="7" bridge_type="0-1" depth="0">
        <object type="PCIDev" gp_index="8" pci_busid="0000:85:00.0" pci_link_speed="15.753846">
          <object type="OSDev" gp_index="9" name="cuda1" subtype="CUDA" osdev_type="5"/>
        </object>
      </object>
    </object>
  </object>
  <distances2 type="OSDev" nbobjs="2" kind="9" name="NVLinkBandwidth" indexing="gp">
    <indexes length="4">5 9 </indexes>
    <u64values length="20">900000 50000 50000 900000 </u64values>
  </distances2>
</topology>"#;

const NODE_LINK: &str = r#"{"directed": true, "multigraph": false, "graph": {},
  "nodes": [{"id": "a"}, {"id": 1}, {"id": "s", "type": "switch"}],
  "edges": [{"source": "a", "target": "s", "capacity": 25}, {"source": "s", "target": "a", "capacity": 25},
            {"source": 1, "target": "s", "rate": "100Gbit/s"}, {"source": "s", "target": 1, "weight": 12.5}]}"#;

fn read(text: &str) -> LinkGraph {
    import(text, "it", None, &ImportOptions::default()).unwrap_or_else(|error| panic!("{error}"))
}

fn refused(text: &str) -> String {
    import(text, "it", None, &ImportOptions::default()).unwrap_err().to_string()
}

/// Ends by name (in order) and rate of the links of one kind, sorted.
fn links(graph: &LinkGraph, kind: LinkKind) -> Vec<(String, String, u64)> {
    let name = |v: usize| graph.vertices()[v].name.clone();
    let mut found: Vec<_> = (graph.links().iter().filter(|link| link.kind == kind))
        .map(|link| {
            let (a, b) = (name(link.ends[0]), name(link.ends[1]));
            (a.clone().min(b.clone()), a.max(b), link.rate.0)
        })
        .collect();
    found.sort();
    found
}

#[test]
fn nvidia_smi_of_a_dgx1v_equals_the_builder() {
    let built = dgx1v(Rate(200_000_000_000));
    let read = read(SMI);
    assert_eq!(links(&read, LinkKind::Nvlink), links(&built, LinkKind::Nvlink));
    assert!(read.only(&[LinkKind::Pcie]).is_ok(), "all GPUs are joined by PCIe");
}

#[test]
fn nvlinks_through_a_switch() {
    let text = " GPU0 GPU1 GPU2\nGPU0 X NV12 NV12\nGPU1 NV12 X NV12\nGPU2 NV12 NV12 X\n";
    let graph = read(text);
    let rates: Vec<u64> = graph.links().iter().map(|link| link.rate.0).collect();
    assert_eq!(rates, [12 * 200_000_000_000; 3]);
    assert_eq!(graph.vertices().last().unwrap().name, "nvswitch0");
}

#[test]
fn nccl_topology() {
    let graph = read(NCCL);
    let nvlink = [("gpu0".to_owned(), "gpu1".to_owned(), 2 * 160_000_000_000)];
    assert_eq!(links(&graph, LinkKind::Nvlink), nvlink);
    // 8 GT/s × 16 lanes × 128/130.
    let pcie = links(&graph, LinkKind::Pcie);
    assert_eq!(pcie.len(), 2);
    assert!((126_000_000_000..126_040_000_000).contains(&pcie[0].2), "{pcie:?}");
}

#[test]
fn lstopo() {
    let graph = read(LSTOPO);
    let nvlink = [("cuda0".to_owned(), "cuda1".to_owned(), 400_000_000_000)];
    assert_eq!(links(&graph, LinkKind::Nvlink), nvlink);
    assert!(graph.only(&[LinkKind::Pcie]).is_ok());
}

#[test]
fn networkx() {
    let graph = read(NODE_LINK);
    assert_eq!(graph.gpus().len(), 2);
    assert_eq!(graph.arcs().map(|(_, _, link)| link.rate.0 / 1_000_000_000).sum::<u64>(), 600);
}

#[test]
fn ours_reads_back() {
    for name in ["dgx1v", "dgx2", "mi250", "h100x2", "torus:3x3", "fat-tree:4"] {
        let graph = built(name).unwrap();
        assert_eq!(read(&write_json(&graph)), graph, "{name}");
        assert_eq!(read(&write_toml(&graph)), graph, "{name}");
    }
}

#[test]
fn bad_input_is_refused_with_reason_and_position() {
    let link = |fields: &str| {
        format!("name = \"x\"\n[[gpu]]\nname = \"a\"\n[[gpu]]\nname = \"b\"\n[[link]]\n{fields}\n")
    };
    let ends = "ends = [\"a\", \"b\"]";
    for (text, place, reason) in [
        (link(&format!("{ends}\nrate = \"0GB/s\"")), "link 0 (a–b)", "rate is 0"),
        (link(&format!("{ends}\nrate = \"-3GB/s\"")), "link 0 (a–b)", "is not a rate"),
        (link(&format!("{ends}\nrate = \"1GB/s\"\ncount = 0")), "link 0", "count 0"),
        (link("ends = [\"a\", \"c\"]\nrate = \"1GB/s\""), "link 0", "\"c\" is no [[gpu]]"),
        (link("ends = [\"a\", \"a\"]\nrate = \"1GB/s\""), "link 0", "both ends are the same"),
        (link(&format!("{ends}\nrate = \"1GB/s\"\nspeed = 1")), ":9: ", "unknown field"),
        (
            "name = \"x\"\n[[gpu]]\nname = \"a\"\n[[gpu]]\nname = \"a\"\n".into(),
            "\"a\"",
            "named twice",
        ),
        (
            "name = \"x\"\n[[gpu]]\nname = \"a\"\n[[gpu]]\nname = \"b\"\n".into(),
            "graph",
            "disconnected",
        ),
        (SMI.replace("GPU5\tSYS", "GPU4\tSYS"), "line 7", "GPU4 is named twice"),
        (SMI.replacen("NV2", "NV1", 1), "matrix", "GPU0–GPU3 differs"),
        (SMI.replacen("NV2", "NV0", 1), "line 2", "cell \"NV0\""),
        (SMI.lines().take(5).collect::<Vec<_>>().join("\n"), "the file", "4 rows for 8 GPUs"),
        (NCCL.replace("</cpu>", ""), "line", "malformed XML"),
        (NCCL.replace("dev=\"1\"", "dev=\"0\""), "line 10 (<gpu>)", "named twice"),
        (NCCL.replace("count=\"2\"", "count=\"-2\""), "line 6 (<nvlink>)", "must be a number"),
        (NCCL.replacen("count=\"2\"", "count=\"1\"", 1), "gpu0–gpu1", "disagree"),
        (NCCL.replace("8.0 GT/s", "x GT/s"), "line 3 (<pci>)", "link_speed"),
        (NCCL.replacen("target=\"0000:07", "target=\"0000:99", 1), "line 6", "no GPU of this file"),
        (LSTOPO.replace("nbobjs=\"2\"", "nbobjs=\"3\""), "<distances2>", "2 indexes"),
        (LSTOPO.replace("cuda1", "cuda0"), "<object>", "named twice"),
        (LSTOPO.replace("OSDev\" gp", "Misc\" gp"), "the file", "no GPU"),
        (NODE_LINK.replace("\"id\": 1", "\"id\": \"a\""), "nodes[1]", "named twice"),
        (NODE_LINK.replace("12.5", "-1"), "edges[3]", "must be positive"),
        (NODE_LINK.replace("\"target\": 1", "\"target\": 2"), "edges[3]", "id of no node"),
        (NODE_LINK.replacen("[{", "[", 1), "JSON", "line 2"),
        ("hello".into(), "the file", "not a topology that netsum knows"),
        (String::new(), "the file", "not a topology that netsum knows"),
    ] {
        let error = refused(&text);
        assert!(
            error.contains(place) && error.contains(reason),
            "{place}, {reason}: {error}\n{text}"
        );
    }
}

#[test]
fn arrays_of_toml_may_be_inline() {
    let gpus = r#"
        name = "x"
        gpu = [{ name = "a" }, { name = "b" }]
        link = [{ ends = ["a", "b"], rate = "8Gbit/s" }]"#;
    assert_eq!(read(gpus).gpus().len(), 2);
    let fabric = r#"
        name = "x"
        controller = "10.0.0.4:7700"
        host = [{ name = "a", address = "10.0.0.1" }, { name = "b", address = "10.0.0.2" }]
        switch = [{ name = "s", address = "10.0.0.3:7701", memory = "1MiB" }]
        link = [{ ends = ["a", "s"], rate = "8Gbit/s" }, { ends = ["b", "s"], rate = "8Gbit/s" }]"#;
    assert_eq!(read(fabric).gpus().len(), 2);
}

#[test]
fn connectivity_depends_on_the_selected_kinds() {
    let graph = a100(2, Rate(300), Rate(25)).unwrap();
    let nvlink = graph.only(&[LinkKind::Nvlink]).unwrap_err().to_string();
    assert!(nvlink.contains("disconnected: no way from \"gpu0\" to \"gpu8\""), "{nvlink}");
}

proptest! {
    /// Importers never panic on a text with parts removed or replaced.
    #[test]
    fn damaged_texts_are_read_or_refused(
        which in 0usize..4, cut in 0usize..2000, length in 0usize..60, with in "[ -~]{0,12}",
    ) {
        let text = [SMI, NCCL, LSTOPO, NODE_LINK][which];
        let start = (0..=cut.min(text.len())).rev().find(|&i| text.is_char_boundary(i)).unwrap();
        let end = (start + length).min(text.len());
        let end = (start..=end).rev().find(|&i| text.is_char_boundary(i)).unwrap();
        let damaged = format!("{}{with}{}", &text[..start], &text[end..]);
        let formats = [Format::NvidiaSmi, Format::NcclXml, Format::LstopoXml, Format::NodeLink];
        let _ = import(&damaged, "it", Some(formats[which]), &ImportOptions::default());
    }
}
