//! Valid and invalid fabric files.

use netsum_topo::{
    Addressing, Bytes, Fabric, Latency, Rate, SlotPolicy, Tenant, fat_tree, leaf_spine,
};
use proptest::prelude::*;

const GOOD: &str = r#"name = "demo"
controller = "127.77.0.1:7700"

[[host]]
name = "h0"
address = "127.77.1.1"

[[host]]
name = "h1"
address = "127.77.1.2"

[[switch]]
name = "rack0"
address = "127.77.2.1:7701"
memory = "64MiB"
metrics = "127.77.2.1:9100"

[[link]]
ends = ["h0", "rack0"]
rate = "10Gbit/s"

[[link]]
ends = ["h1", "rack0"]
rate = "10Gbit/s"
latency = "5us"
"#;

#[test]
fn a_good_file() {
    let fabric = Fabric::parse(GOOD, "demo.toml").unwrap();
    assert_eq!(fabric.name, "demo");
    assert_eq!(fabric.hosts[1].address.to_string(), "127.77.1.2");
    assert_eq!(fabric.switches[0].memory, Bytes(64 << 20));
    assert_eq!(fabric.links[1].latency, Some(Latency(5_000)));
    assert_eq!(fabric.to_toml(), GOOD);
    let graph = fabric.topology();
    let [h1, rack] = ["h1", "rack0"].map(|name| graph.find(name).unwrap());
    assert_eq!(graph.edge(graph.edge_between(h1, rack).unwrap()).rate_bps, 10_000_000_000);
}

/// Replaces `from` by `to` in the valid file and expects an error with `line` and `words`.
fn expect(from: &str, to: &str, line: usize, words: &str) {
    assert!(GOOD.contains(from), "{from:?} is not in the good file");
    let text = GOOD.replacen(from, to, 1);
    let message = Fabric::parse(&text, "demo.toml").unwrap_err().to_string();
    assert!(message.starts_with(&format!("demo.toml:{line}: ")), "{message}");
    assert!(!message.contains('\n'), "{message}");
    assert!(message.contains(words), "{message}");
}

#[test]
fn every_mistake_names_file_line_entry_and_remedy() {
    expect("name = \"h1\"", "name = \"h0\"", 9, "host \"h0\": line 5 has the same name");
    expect("name = \"rack0\"", "name = \"h0\"", 13, "switch \"h0\": line 5 has the same name");
    expect("name = \"h1\"", "name = \"../h1\"", 9, "a name has 1 to 63 letters");
    expect("name = \"demo\"", "name = \"\"", 1, "a name has 1 to 63 letters");
    expect("127.77.1.2", "127.77.1.1", 10, "address 127.77.1.1 is also that of host \"h0\"");
    expect("127.77.1.2", "127.77.1.2:80", 10, "write an IP address without a port");
    expect("127.77.1.2", "0.0.0.0", 10, "write the one that workers bind");
    expect("127.77.2.1:7701", "127.77.2.1", 14, "write address:port, like");
    expect("127.77.2.1:7701", "127.77.2.1:0", 14, "a port above 0");
    expect("127.77.2.1:9100", "127.77.0.1:7700", 16, "is also the address of the controller");
    expect("64MiB", "64 megs", 15, "memory: \"64 megs\" is not a size; write it like \"64MiB\"");
    expect("64MiB", "0B", 15, "memory is 0");
    expect("memory = \"64MiB\"\n", "", 12, "missing field `memory`");
    expect("metrics =", "metric =", 16, "unknown field `metric`");
    expect("10Gbit/s", "10Gb/s", 20, "link \"h0\"–\"rack0\": rate: \"10Gb/s\" is not a rate");
    expect("10Gbit/s", "0bit/s", 20, "rate is 0");
    expect(
        "[\"h1\", \"rack0\"]",
        "[\"h1\", \"rack9\"]",
        23,
        "no host or switch is named \"rack9\"; add it",
    );
    expect("[\"h1\", \"rack0\"]", "[\"h1\", \"h1\"]", 23, "both ends are the same");
    expect("[\"h1\", \"rack0\"]", "[\"h1\", \"h0\"]", 23, "put a switch between them");
    expect("[\"h1\", \"rack0\"]", "[\"rack0\", \"h0\"]", 23, "this link is there already");
    expect(
        "\n[[link]]\nends = [\"h0\", \"rack0\"]\nrate = \"10Gbit/s\"\n",
        "",
        5,
        "host \"h0\": it has no link",
    );
    expect("controller = \"127.77.0.1:7700\"\n", "", 1, "missing field `controller`");
    expect("name = \"demo\"", "name = demo", 1, "");
}

#[test]
fn several_controllers_are_separated_by_commas() {
    let one = "controller = \"127.77.0.1:7700\"";
    assert!(GOOD.contains(one));
    let with = |value: &str| {
        Fabric::parse(&GOOD.replace(one, &format!("controller = {value:?}")), "several")
    };
    let fabric = with("127.77.0.1:7700, 127.77.0.2:7700,127.77.0.3:7700").unwrap();
    assert_eq!(fabric.controllers(), "127.77.0.1:7700,127.77.0.2:7700,127.77.0.3:7700");
    assert_eq!(
        (fabric.controller.to_string().as_str(), fabric.standbys.len()),
        ("127.77.0.1:7700", 2)
    );
    assert_eq!(Fabric::parse(&fabric.to_toml(), "built").unwrap(), fabric);
    for (value, words) in [
        ("127.77.0.1:7700,", "\"\" is not an address"),
        ("127.77.0.1:7700,127.77.0.1:7700", "127.77.0.1:7700 is given twice"),
        ("127.77.0.1:7700,127.77.0.2:0", "others could not find 127.77.0.2:0"),
    ] {
        let message = with(value).unwrap_err().to_string();
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn a_part_apart_is_found() {
    let island = "\n[[host]]\nname = \"h2\"\naddress = \"127.77.1.3\"\n\n[[switch]]\nname = \"rack1\"\n\
        address = \"127.77.2.2:7701\"\nmemory = \"1MiB\"\n\n[[link]]\nends = [\"h2\", \"rack1\"]\nrate = \"1Gbit/s\"\n";
    let message = Fabric::parse(&format!("{GOOD}{island}"), "demo.toml").unwrap_err().to_string();
    assert!(message.contains("host \"h2\": no path leads to it from host \"h0\""), "{message}");
}

#[test]
fn a_missing_file_is_named() {
    let message = Fabric::load(std::path::Path::new("no/such.toml")).unwrap_err().to_string();
    assert!(message.starts_with("cannot read the fabric file no/such.toml: "), "{message}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn built_fabrics_read_back(racks in 1u32..6, hosts in 1u32..6, spines in 1u32..5, rate in 1u64..1 << 40, metrics: bool, trusted: bool) {
        let addressing = Addressing { metrics, ..Addressing::default() };
        let built = leaf_spine(racks, hosts, spines, Rate(rate), Rate(rate * 2), addressing).unwrap();
        let fabric = Fabric { trusted, ..built };
        prop_assert_eq!(Fabric::parse(&fabric.to_toml(), "built").unwrap(), fabric);
    }

    #[test]
    fn fat_trees_read_back(half in 1u32..4) {
        let fabric = fat_tree(2 * half, Rate(1), Addressing::default()).unwrap();
        prop_assert_eq!(Fabric::parse(&fabric.to_toml(), "built").unwrap(), fabric);
    }

    #[test]
    fn damaged_files_never_panic(at in 0usize..GOOD.len(), with in ".{0,3}", cut in 0usize..20) {
        let end = (at + cut).min(GOOD.len());
        let text = format!("{}{with}{}", &GOOD[..at], &GOOD[end..]);
        let _ = Fabric::parse(&text, "damaged");
    }
}

/// A server and a tenant after the valid file; with `from` replaced by `to` it must be refused with `words`.
const MORE: &str = r#"
[[server]]
name = "ps0"
address = "127.77.1.2:7801"
memory = "64MiB"

[[tenant]]
name = "research"
jobs = 4
guaranteed = 100
limit = 400
priority = 7
rate = "8Gbit/s"
packets_per_second = 500000
encrypt = true
hosts = ["h1"]
"#;

#[test]
fn servers_and_tenants() {
    let switch = GOOD.replacen("9100\"\n", "9100\"\nslots = 64\npolicy = \"first-come\"\n", 1);
    let text = format!("{switch}{MORE}");
    let fabric = Fabric::parse(&text, "demo.toml").unwrap();
    assert_eq!(fabric.to_toml(), text);
    assert_eq!(fabric.host_of(&fabric.servers[0]).unwrap().name, "h1");
    assert_eq!((fabric.switches[0].slots, fabric.switches[0].policy), (64, SlotPolicy::FirstCome));
    let research = fabric.tenant("research").unwrap();
    assert_eq!((research.limit, research.rate), (400, Some(Rate(8_000_000_000))));
    assert_eq!((research.packets_per_second, research.encrypt), (Some(500_000), true));
    let joins = |host, tenant| fabric.host_may_join(host, tenant);
    assert!(joins("h1", "research") && !joins("h0", "research") && !joins("h1", "default"));
    assert!(Fabric::parse(&switch, "demo.toml").unwrap().host_may_join("h0", "default"));
    assert_eq!(fabric.tenant("default").unwrap(), Tenant::named("default"));
    assert_eq!(fabric.tenant("nobody"), None);
    let graph = fabric.topology();
    let server = graph.find("ps0").unwrap();
    assert_eq!(graph.servers().collect::<Vec<_>>(), [server]);
    assert!(!graph.is_switch(server) && graph.hosts().all(|host| host != server));
    for (from, to, words) in [
        ("\"ps0\"", "\"rack0\"", "server \"rack0\": line 13 has the same name"),
        ("127.77.1.2:7801", "127.77.9.9:7801", "no host has the address 127.77.9.9"),
        ("127.77.1.2:7801", "127.77.1.2", "write address:port"),
        ("127.77.1.2:7801", "127.77.2.1:7701", "is also that of switch \"rack0\""),
        ("\"64MiB\"\n\n[[tenant", "\"0B\"\n\n[[tenant", "server \"ps0\": memory is 0"),
        ("slots = 64", "slots = 2000000", "switch \"rack0\": slots is 2000000"),
        (
            "first-come",
            "best",
            "slot policy \"best\" is unknown; use partition, first-come or preempt",
        ),
        ("limit = 400", "limit = 99", "guaranteed is 100, more than the limit of 99"),
        ("priority = 7", "priority = 256", "256"),
        ("8Gbit/s", "0bit/s", "tenant \"research\": rate is 0: nothing could pass"),
        ("8Gbit/s", "fast", "10Gbit/s"),
        ("500000", "0", "packets_per_second is 0"),
        ("\n[[host]]", "trusted = true\n\n[[host]]", "\"research\": encrypt is true, and so is"),
        ("[\"h1\"]", "[\"h1\", \"h9\"]", "tenant \"research\": there is no host \"h9\""),
        ("\"research\"", "\"a/b\"", "tenant \"a/b\": a name has 1 to 63 letters"),
        ("priority = 7\n", "\n[[tenant]]\nname = \"research\"\n", "has the same tenant"),
    ] {
        assert!(text.contains(from), "{from}");
        let error = Fabric::parse(&text.replacen(from, to, 1), "demo.toml").unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
}
