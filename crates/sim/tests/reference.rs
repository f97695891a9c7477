//! `docs/reference/simulator.md`: every key of a configuration and of a scenario, from the types that read them. With
//! NETSUM_WRITE_REFERENCE=1 the file is written, otherwise it must be what the types say.

use std::fmt::Write;
use std::path::Path;

use netsum_sim::config::{Config, parse};
use toml::{Table, Value};

const SOURCES: [&str; 6] = [
    include_str!("../src/config/mod.rs"),
    include_str!("../src/config/scheme.rs"),
    include_str!("../src/config/jobs.rs"),
    include_str!("../src/config/work.rs"),
    include_str!("../src/schedule/parallel.rs"),
    include_str!("../src/config/scenario.rs"),
];

/// Headings, the types behind them, and where a run without any choice has the defaults.
const SECTIONS: [(&str, &str, &str); 20] = [
    ("The run", "Config", ""),
    ("`[fabric]`", "Fabric", ""),
    ("`[switch]`", "Switch", "switch"),
    ("`[switch.shared]`", "Shared", "switch.shared"),
    ("`[switch.pause]`", "Pause", ""),
    ("`[switch.slots]`", "Slots", "switch.slots"),
    ("`[host]`", "Host", "host"),
    ("`[tcp]`", "Tcp", "tcp"),
    ("`[tcp.swift]`", "Swift", "tcp.swift"),
    ("`[scheme]`, and `scheme` of a job", "Scheme", "scheme"),
    ("`[[flows]]`", "Flows", ""),
    ("`[[jobs]]`", "Job", "jobs"),
    ("`[[jobs.layers]]`", "Layer", ""),
    ("`[jobs.replay]`", "Replay", ""),
    ("`[jobs.parallel]`", "Parallel", ""),
    ("`[jobs.ranks]`", "Ranks", ""),
    ("`[mix]`", "Mix", "mix"),
    ("`[samples]`", "Samples", ""),
    ("A scenario file", "Scenario", ""),
    ("`[[faults]]` of a scenario", "FaultEvent", ""),
];

const DEFAULTS: &str = "duration = \"1ms\"\n[fabric]\nkind = \"fat-tree\"\nk = 4\n\
    [switch.shared]\nbytes = \"1MiB\"\n[tcp.swift]\ntarget = \"50us\"\n[[jobs]]\ncompute = \"1us\"\nbytes = 1000\nworkers = 4\n\
    [mix]\nload = 0.1\nworkers = [2, 4]\n";

/// Defaults that depend on what else a configuration says, or that serde writes nowhere.
const OTHER_DEFAULTS: [(&str, &str, &str); 25] = [
    ("Config", "skip_repeats", "true"),
    ("Config", "threads", "1"),
    ("Fabric", "rate", "\"10Gbit/s\""),
    ("Fabric", "uplink_rate", "\"10Gbit/s\""),
    ("Fabric", "bottleneck", "\"10Gbit/s\""),
    ("Fabric", "latency", "\"1us\""),
    ("Flows", "start", "\"0ns\""),
    ("Mix", "workers", "[16, 96]"),
    ("Replay", "compute_scale", "1.0"),
    ("Parallel", "tensor", "1"),
    ("Parallel", "pipeline", "1"),
    ("Parallel", "data", "1"),
    ("Parallel", "expert", "1"),
    ("Parallel", "microbatches", "1"),
    ("Parallel", "optimizer", "\"0ns\""),
    ("Parallel", "activations", "\"0B\""),
    ("Parallel", "tokens", "\"0B\""),
    ("Parallel", "sharding", "\"none\""),
    ("Parallel", "prefetch", "1"),
    ("Ranks", "per_host", "1"),
    ("Ranks", "local_rate", "\"3600Gbit/s\""),
    ("Ranks", "local_latency", "\"1us\""),
    ("Ranks", "eager", "\"64KiB\""),
    ("Scenario", "converges_after", "\"1ms\""),
    ("FaultEvent", "at", "\"0ns\""),
];

struct Field {
    name: String,
    kind: String,
    text: String,
    /// Value of the table's `kind` to which it belongs.
    variant: Option<String>,
    optional: bool,
}

/// The fields of a type, or of all variants of an enumeration; and the names of variants without fields.
fn fields(of: &str) -> (Vec<Field>, Vec<String>) {
    let [start, enumeration] = [format!("pub struct {of} {{"), format!("pub enum {of} {{")];
    let found =
        SOURCES.iter().find(|source| source.contains(&start) || source.contains(&enumeration));
    let source = found.unwrap_or_else(|| panic!("no type {of}"));
    let at = source.find(&start).or_else(|| source.find(&enumeration)).unwrap();
    let before = source[..at].rsplit("\n\n").next().unwrap();
    let all_optional = before.contains("#[serde(default");
    let (mut found, mut names) = (Vec::new(), Vec::new());
    let (mut text, mut attributes, mut variant) = (String::new(), String::new(), None);
    for line in source[at..].lines().skip(1).map_while(|l| (l != "}").then_some(l.trim())) {
        if let Some(words) = line.strip_prefix("///") {
            text = format!("{text} {}", words.trim());
            continue;
        }
        if line.starts_with('#') {
            attributes += line;
            continue;
        }
        let name = || match attributes.split_once("rename = \"") {
            Some((_, rest)) => rest.split('"').next().unwrap().to_owned(),
            None => kebab(line.trim_end_matches([',', '{', ' '])),
        };
        if let Some((field, kind)) = line.trim_start_matches("pub ").split_once(": ") {
            let kind = kind.trim_end_matches(',').to_owned();
            let optional =
                all_optional || attributes.contains("default") || kind.starts_with("Option");
            let text = match (field, text.trim()) {
                ("at", "") => "Time at which it begins.".to_owned(),
                ("until", "") => "Time at which it ends; absent: the end of the run.".to_owned(),
                (_, text) => text.to_owned(),
            };
            let (name, variant) = (field.to_owned(), variant.clone());
            found.push(Field { name, kind, text, variant, optional });
        } else if line.ends_with('{') {
            variant = Some(name());
        } else if line == "}," {
            variant = None;
        } else {
            names.push(name());
        }
        (text, attributes) = (String::new(), String::new());
    }
    (found, names)
}

fn kebab(name: &str) -> String {
    let mut out = String::new();
    for (i, letter) in name.chars().enumerate() {
        if letter.is_uppercase() && i > 0 {
            out.push('-');
        }
        out.extend(letter.to_lowercase());
    }
    out
}

/// What to write for a type, with its unit.
fn value(kind: &str) -> String {
    let inner = |outer: &str| kind.strip_prefix(outer).and_then(|rest| rest.strip_suffix('>'));
    if let Some(kind) = inner("Option<") {
        return value(kind);
    }
    if let Some(kind) = inner("Vec<") {
        return format!("list of: {}", value(kind));
    }
    match kind {
        "Text<Latency>" => "time (`\"10us\"`)".to_owned(),
        "Text<Rate>" => "rate (`\"10Gbit/s\"`)".to_owned(),
        "Text<Bytes>" => "size (`\"64MiB\"`)".to_owned(),
        "u64" | "u32" | "u16" | "u8" => "whole number".to_owned(),
        "[u32; 2]" | "[u64; 2]" => "two whole numbers".to_owned(),
        "f64" => "number".to_owned(),
        "bool" => "true or false".to_owned(),
        "String" => "text".to_owned(),
        "SlotPolicy" => "name".to_owned(),
        "Format" | "Paths" | "HostQueues" | "SchemeKind" | "TraceFormat" | "Sharding"
        | "MixPlacement" | "MixOrder" => {
            fields(kind).1.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
        }
        _ => "table".to_owned(),
    }
}

fn at<'a>(defaults: &'a Table, path: &str) -> Option<&'a Table> {
    path.split('.').filter(|part| !part.is_empty()).try_fold(defaults, |table, part| {
        match table.get(part)? {
            Value::Array(all) => all.first()?.as_table(),
            other => other.as_table(),
        }
    })
}

fn default(defaults: Option<&Table>, of: &str, field: &Field) -> String {
    if !field.optional {
        return "**required**".to_owned();
    }
    let other = OTHER_DEFAULTS.iter().find(|other| (other.0, other.1) == (of, &field.name));
    if let Some((.., text)) = other {
        return format!("default `{text}`");
    }
    match defaults.and_then(|table| table.get(&field.name)) {
        _ if field.kind.starts_with("Option") => "optional".to_owned(),
        Some(Value::Table(_)) | None => "optional".to_owned(),
        Some(Value::Array(all)) if all.iter().any(Value::is_table) => "optional".to_owned(),
        Some(value) => format!("default `{value}`"),
    }
}

fn reference() -> String {
    let (config, _): (Config, _) = parse(DEFAULTS, "run.toml", Path::new(".")).unwrap();
    let defaults = Table::try_from(&config).unwrap();
    let mut out = "# Keys of the simulator's configurations\n\n\
        Written by `NETSUM_WRITE_REFERENCE=1 cargo test -p netsum-sim --test reference` from the types that read them;\n\
        do not edit. [The simulator](../simulator.md) says what is modelled, and has the bounds of sizes and times.\n\n\
        Hosts are numbered from 0 and named `h0`, `h1`, …. Switches are named `rack0` (`single-switch`); `rack0`, `spine0`\n\
        (`leaf-spine`); `rack0.1`, `agg0.1` by pod and place, `core0.1` by the aggregation switches' place and its own\n\
        (`fat-tree`); `left` and `right` (`dumbbell`); in a fabric file by their own names.\n"
        .to_owned();
    for (heading, of, path) in SECTIONS {
        let table = (of == "Config" || !path.is_empty()).then(|| at(&defaults, path)).flatten();
        write!(out, "\n## {heading}\n\n").unwrap();
        for field in fields(of).0 {
            let of_kind = field.variant.as_ref().map(|kind| format!(" of `{kind}`"));
            let (kind, default) = (value(&field.kind), default(table, of, &field));
            let of_kind = of_kind.unwrap_or_default();
            let item = format!("- `{}`{of_kind}: {kind}; {default}. {}", field.name, field.text);
            out += &wrapped(&item);
        }
    }
    out
}

/// An item of a list in lines of at most 120 characters.
fn wrapped(item: &str) -> String {
    let (mut out, mut length) = (String::new(), 0);
    for word in item.split(' ') {
        let more = word.chars().count() + 1;
        if length + more > 119 {
            out.push_str("\n  ");
            length = 2;
        } else if length > 0 {
            out.push(' ');
        }
        out.push_str(word);
        length += more;
    }
    out + "\n"
}

#[test]
fn every_key_is_documented() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/simulator.md");
    let text = reference();
    for key in ["hosts_per_rack", "min_rto", "initial_window", "ce_threshold", "priority"] {
        assert!(text.contains(&format!("\n- `{key}`")), "{key} is missing");
    }
    if std::env::var_os("NETSUM_WRITE_REFERENCE").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        stored, text,
        "NETSUM_WRITE_REFERENCE=1 cargo test -p netsum-sim --test reference writes it"
    );
}
