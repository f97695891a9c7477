//! Configurations: refused values and their lines, effective configurations, and repeatable results.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;

use netsum_sim::config::{Config, Format, parse};
use netsum_sim::job::JobSpec;
use netsum_sim::run;
use netsum_topo::{Addressing, Rate};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;

const GOOD: &str = r#"
duration = "2ms"
drain = "1s"
checked = true

[fabric]
kind = "fat-tree"
k = 4

[switch]
mark_packets = 85
memory = "64MB"

[scheme]
kind = "panama"

[[flows]]
kind = "poisson"
load = 0.3
sizes = "web-search"

[[jobs]]
compute = "100us"
bytes = 400000
workers = 6
steps = 3

[samples]
every = "100us"
links = ["rack0.0>agg0.1"]
"#;

fn refused(text: &str) -> String {
    match parse(text, "run.toml", Path::new(".")) {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(error) => error.to_string(),
    }
}

/// Each case: a text that replaces another one, the line that the error must name, and a part of the reason.
#[test]
fn invalid_values_are_refused_with_line_and_reason() {
    for (old, new, line, reason) in [
        ("k = 4", "k = 5", 6, "k must be even"),
        ("checked = true", "threads = 0", 4, "at least one thread"),
        ("k = 4", "k = 4\nspines = 2", 9, "fabric.spines: unknown field"),
        ("k = 4", "k = -1", 8, "fabric.k: invalid value: integer `-1`"),
        ("k = 4", "k = 4\nrate = \"10Gbps\"", 9, "fabric.rate: \"10Gbps\" is not a rate"),
        (
            "kind = \"fat-tree\"",
            "kind = \"fat-trie\"",
            7,
            "fabric.kind: unknown variant `fat-trie`",
        ),
        ("k = 4", "", 6, "fabric: missing field `k`"),
        ("load = 0.3", "load = \"0.3\"", 19, "flows.0.load: invalid type: string"),
        ("load = 0.3", "load = 0.3\nlod = 1", 20, "flows.0.lod: unknown field"),
        ("\"web-search\"", "5", 20, "flows.0.sizes: invalid type: integer"),
        ("workers = 6", "workers = \"6\"", 25, "jobs.0.workers: invalid type"),
        ("checked = true", "chequed = true", 4, "chequed: unknown field"),
        ("mark_packets = 85", "mark_packet = 85", 11, "switch.mark_packet: unknown field"),
        ("mark_packets = 85", "queue_packets = 0", 11, "drops whatever must wait"),
        ("mark_packets = 85", "shared = { bytes = \"1MiB\", alpha = 0.0 }", 11, "alpha is above 0"),
        ("mark_packets = 85", "shared = { bytes = \"1KiB\" }", 11, "smaller than one packet"),
        ("mark_packets = 85", "slots = { count = 0 }", 11, "1 to 1048576 slots"),
        (
            "mark_packets = 85",
            "slots = { straggler = \"0ms\" }",
            11,
            "no sum would ever be complete",
        ),
        ("kind = \"panama\"", "kind = \"atp\"\nservers = 0", 16, "1 to 32 servers"),
        ("workers = 6", "workers = 6\nservers = [16]", 26, "host 16 is not"),
        (
            "mark_packets = 85",
            "pause = { high_packets = 5, low_packets = 5 }",
            11,
            "below high_packets",
        ),
        ("memory = \"64MB\"", "memory = \"64\"", 12, "is not a size"),
        ("memory = \"64MB\"", "memory = \"1000B\"", 12, "smaller than one fragment"),
        ("\"panama\"", "\"panama\"\ntrees = 0", 16, "1 to 64 trees"),
        ("\"panama\"", "\"panamo\"", 15, "panamo"),
        ("\"panama\"", "\"panama\"\nfragment_bytes = 1401", 16, "steps of 8"),
        (
            "\"panama\"",
            "\"panama\"\nroots = [\"core0.0\", \"h1\"]",
            16,
            "no switch is named \"h1\"",
        ),
        ("load = 0.3", "load = 1.3", 19, "not above 0 and at most 1"),
        ("load = 0.3", "load = nan", 19, "not above 0 and at most 1"),
        ("\"web-search\"", "\"web-serch\"", 20, "web-search-opera"),
        ("workers = 6", "workers = 17", 25, "17 workers on 16 hosts"),
        ("k = 4", "k = 8\n[tcp.swift]\ntarget = \"0us\"", 10, "write a time above 0"),
        ("k = 4", "k = 8\n[tcp.swift]\ntarget = \"9us\"\ndecrease = 2.0", 11, "at most 1"),
        ("k = 4", "k = 8\n[host]\nce_threshold = \"0us\"", 10, "every packet would be marked"),
        ("workers = 6", "hosts = [0, 1, 1]", 25, "each is another one"),
        ("workers = 6", "hosts = [0, 16]", 25, "from 0 to 15"),
        ("compute = \"100us\"", "model = \"vgg99\"", 23, "no model is named"),
        (
            "compute = \"100us\"",
            "start = \"3ms\"\ncompute = \"1us\"",
            23,
            "after the run's duration",
        ),
        ("steps = 3", "steps = 0", 26, "jobs.0.steps: a job has at least one step"),
        ("bytes = 400000", "bytes = 0", 24, "jobs.0.bytes: there is at least one byte"),
        (
            "bytes = 400000",
            "bytes = 9007199254740993",
            24,
            "jobs.0.bytes: 9007199254740993 bytes are more",
        ),
        (
            "bytes = 400000",
            "bytes = 400000\nbuckets = 4294967295",
            25,
            "jobs.0.buckets: gradients have 1 to 65536",
        ),
        ("\"100us\"\nbytes", "\"18446744073709552ns\"\nbytes", 23, "more than 100000 s"),
        (
            "bytes = 400000",
            "layers = [{ compute = \"90000s\", bytes = 8 }, { compute = \"90000s\", bytes = 8 }]",
            24,
            "jobs.0.layers: together they compute",
        ),
        (
            "bytes = 400000",
            "layers = [{ compute = \"1us\", bytes = 9223372036854775807 }, \
             { compute = \"1us\", bytes = 9223372036854775807 }, { compute = \"1us\", bytes = 12 }]",
            24,
            "jobs.0.layers: 18446744073709551615 bytes are more",
        ),
        ("every = \"100us\"", "every = \"18446744073709552ns\"", 29, "more than 100000 s"),
        ("drain = \"1s\"", "drain = \"2h\"", 3, "\"2h\" is not a time"),
        ("drain = \"1s\"", "drain = \"7200s\"", 3, "drain: with its drain"),
        (
            "[scheme]",
            "[tcp]\nmin_rto = \"18446744073709552ns\"\n[scheme]",
            15,
            "more than 100000 s",
        ),
        (
            "[scheme]",
            "[mix]\nload = 0.5\nworkers = [2, 4]\nsteps = 1\nscale = 1e-12\n[scheme]",
            15,
            "more than 1048576 jobs",
        ),
        ("steps = 3", "layers = [{ compute = \"1us\", bytes = 8 }]", 26, "what model, bytes"),
        ("bytes = 400000", "layers = [{ compute = \"1us\", bytes = 0 }]", 24, "at least one byte"),
        ("steps = 3", "overlap = false", 26, "it is of layers"),
        ("\"panama\"", "\"ring\"\nrings = 65", 16, "scheme.rings: a job has 1 to 64 rings"),
        ("\"panama\"", "\"panama\"\nrings = 2", 16, "have several rings"),
        ("\"panama\"", "\"ring\"\ncollectives = \"all\"", 16, "needs trees without partial sums"),
        (
            "\"panama\"",
            "\"panama\"\ntrees = 33\ncollectives = \"all\"",
            16,
            "scheme.trees: with collectives = \"all\" a job has 1 to 32 trees",
        ),
        ("steps = 3", "scheme = { kind = \"shares\", rings = 2 }", 26, "have several rings"),
        ("rack0.0>agg0.1", "rack0.0>core0.0", 30, "names of two neighbours"),
        ("duration = \"2ms\"", "duration = \"0ms\"", 2, "nothing happens in no time"),
        ("duration = \"2ms\"", "duration = 2", 2, "string"),
        ("[scheme]", "[mix]\nload = 0.8\n[scheme]", 15, "all loads together are 1.1"),
        ("[scheme]", "[mix]\nload = 0.1\nworkers = [16, 96]\n[scheme]", 16, "within 2 to 16 hosts"),
    ] {
        assert!(GOOD.contains(old), "{old:?}");
        let error = refused(&GOOD.replacen(old, new, 1));
        assert!(error.starts_with(&format!("run.toml:{line}: ")), "{new:?}: {error}");
        assert!(error.contains(reason), "{new:?}: {error}");
    }
    assert!(
        refused("duration = \"1ms\"\n[fabric]\nkind = \"single-switch\"\nhosts = 4")
            .contains("nothing to simulate")
    );
}

#[test]
fn errors_in_other_files_name_their_lines() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let error = |flows: &str, fabric: &str| {
        let text = format!("duration = \"1ms\"\n[fabric]\n{fabric}\n[[flows]]\n{flows}");
        parse(&text, "run.toml", folder.path()).map(|_| ()).unwrap_err().to_string()
    };
    let hosts = "kind = \"single-switch\"\nhosts = 4";
    write("trace.csv", "start_us,src,dst,bytes\n0,0,1,100\n5,2,2,100\n");
    assert!(
        error("kind = \"trace\"\npath = \"trace.csv\"", hosts)
            .ends_with("trace.csv:3: dst: a flow needs two hosts")
    );
    for (text, line, reason) in [
        ("0,0,1,1e30\n", 1, "\"1e30\" is not a whole number"),
        ("0,0,1,9007199254740993\n", 1, "bytes: 9007199254740993 bytes are more than"),
        ("0,0,1,1.5\n", 1, "\"1.5\" is not a whole number"),
        ("0,0,4294967297,5\n", 1, "dst: hosts are numbered from 0 to 3"),
        ("nan,0,1,5\n", 1, "\"nan\" is not a number"),
        ("0,0,1,5\noops,1,2,5\n", 2, "\"oops\" is not a number"),
        ("0,0,1,5\na,b,c,d\n", 2, "\"a\" is not a number"),
        ("1e300,0,1,5\n", 1, "start: it starts after"),
        ("0;0;1;5\n", 1, "\"0;0;1;5\" is not 4 numbers between commas"),
        ("", 1, "no flow stands here"),
        ("start_us,src,dst,bytes\n", 1, "no flow stands here"),
    ] {
        write("trace.csv", text);
        let error = error("kind = \"trace\"\npath = \"trace.csv\"", hosts);
        assert!(error.contains(&format!("trace.csv:{line}: {reason}")), "{text:?}: {error}");
    }
    write("trace.csv", "0,0,1\n");
    assert!(error("kind = \"trace\"\npath = \"trace.csv\"", hosts).contains("trace.csv:1: "));
    assert!(error("kind = \"trace\"\npath = \"none.csv\"", hosts).contains("none.csv"));
    for (text, reason) in [
        ("100,0\n50,1\n", "must ascend"),
        ("0,0.999999\n1,1\n", "from 1 byte on"),
        ("1,0\n1e300,1\n", "bytes are more than"),
        ("1,0\nten,1\n", "sizes.csv:2: \"ten\" is not a number"),
    ] {
        write("sizes.csv", text);
        let error = error("kind = \"poisson\"\nload = 0.1\nsizes = \"sizes.csv\"", hosts);
        assert!(error.contains(reason), "{text:?}: {error}");
    }
    let island = "name = \"x\"\ncontroller = \"10.0.0.1:1\"\n[[host]]\nname = \"a\"\naddress = \"10.0.0.2\"\n\
                  [[host]]\nname = \"b\"\naddress = \"10.0.0.3\"\n[[switch]]\nname = \"s\"\naddress = \"10.0.0.4:1\"\n\
                  memory = \"1MiB\"\n[[link]]\nends = [\"a\", \"s\"]\nrate = \"10Gbit/s\"\n";
    write("fabric.toml", island);
    let flows = "kind = \"permutation\"\nbytes = 10";
    assert!(
        error(flows, "kind = \"file\"\npath = \"fabric.toml\"")
            .contains("host \"b\": it has no link")
    );
    let whole = format!("{island}[[link]]\nends = [\"b\", \"s\"]\nrate = \"10Gbit/s\"\n");
    write("fabric.toml", &whole);
    let text = "duration = \"1ms\"\n[fabric]\nkind = \"file\"\npath = \"fabric.toml\"\n\
                [[jobs]]\ncompute = \"1us\"\nbytes = 8\nworkers = 2\n";
    let (_, built) =
        parse(text, "run.toml", folder.path()).unwrap_or_else(|error| panic!("{error}"));
    assert!(built.notes[0].contains("memory (64MB) and slots of [switch]"), "{:?}", built.notes);
    for (text, place) in [
        (
            format!("{whole}latency = \"5s\"\n"),
            "fabric.toml:19: link.1.latency: a link of more than 4 s",
        ),
        (
            format!(
                "{whole}[[switch]]\nname = \"t\"\naddress = \"10.0.0.5:1\"\nmemory = \"1MiB\"\n\
                 [[link]]\nends = [\"t\", \"s\"]\nrate = \"10Gbit/s\"\n\
                 [[link]]\nends = [\"t\", \"b\"]\nrate = \"10Gbit/s\"\n"
            ),
            "fabric.toml:27: link.3.ends: host \"b\" has a link already",
        ),
        (
            whole.replacen("10Gbit/s", "1bit/s", 1),
            "fabric.toml:15: link.0.rate: 1bit/s is less than",
        ),
    ] {
        write("fabric.toml", &text);
        let error = error(flows, "kind = \"file\"\npath = \"fabric.toml\"");
        assert!(error.contains(place), "{error}");
    }
    let slow = "kind = \"single-switch\"\nhosts = 4\nrate = \"1bit/s\"";
    assert!(error(flows, slow).contains("\"1bit/s\" is less than 1kbit/s"));
    write("many.csv", "1,0\n1,1\n");
    let many = error(
        "kind = \"poisson\"\nload = 1\nsizes = \"many.csv\"",
        hosts.replace("4", "4000").as_str(),
    );
    assert!(many.contains("flows would come"), "{many}");
}

#[test]
fn the_effective_configuration_gives_the_same_run() {
    let (config, _) = parse(GOOD, "run.toml", Path::new(".")).unwrap();
    let effective = toml::to_string_pretty(&config).unwrap();
    let (again, _) = parse(&effective, "effective.toml", Path::new(".")).unwrap();
    assert_eq!(config, again);
}

/// Result files by name.
fn files(seed: u64, kind: &str, format: Format) -> Vec<(String, Vec<u8>)> {
    let folder = tempfile::tempdir().unwrap();
    let text = GOOD.replacen("\"panama\"", &format!("\"{kind}\""), 1);
    let (mut config, _): (Config, _) = parse(&text, "run.toml", Path::new(".")).unwrap();
    (config.seed, config.format) = (seed, format);
    let text = toml::to_string_pretty(&config).unwrap();
    let (config, built) = parse(&text, "run.toml", Path::new(".")).unwrap();
    run::run(&config, built, folder.path(), None, |_| ControlFlow::Continue(())).unwrap();
    let mut files: Vec<(String, Vec<u8>)> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| {
            (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())
        })
        .collect();
    files.sort();
    files
}

/// The rows of a table, as CSV writes them; empty if there is none.
fn parquet_rows(bytes: &[u8]) -> Vec<String> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    let reader = SerializedFileReader::new(file).unwrap();
    let schema = reader.metadata().file_metadata().schema_descr().root_schema().clone();
    let names: Vec<&str> = schema.get_fields().iter().map(|field| field.name()).collect();
    let text = |(_, field): (&String, &Field)| match field {
        Field::Null => String::new(),
        Field::Long(number) => number.to_string(),
        Field::Double(number) => format!("{number:.6}"),
        Field::Str(text) => text.clone(),
        other => panic!("{other:?}"),
    };
    let rows = reader.get_row_iter(None).unwrap();
    let rows =
        rows.map(|row| row.unwrap().get_column_iter().map(text).collect::<Vec<_>>().join(","));
    std::iter::once(names.join(",")).chain(rows).collect()
}

#[test]
fn parquet_equals_csv_and_repeats() {
    let (csv, parquet) = (files(1, "panama", Format::Csv), files(1, "panama", Format::Parquet));
    assert_eq!(parquet, files(1, "panama", Format::Parquet));
    let mut tables = 0;
    for (name, bytes) in &parquet {
        let Some(table) = name.strip_suffix(".parquet") else { continue };
        let lines = csv.iter().find(|file| file.0 == format!("{table}.csv")).unwrap();
        let lines: Vec<&str> = std::str::from_utf8(&lines.1).unwrap().lines().collect();
        assert_eq!(parquet_rows(bytes), lines, "{table}");
        tables += 1;
    }
    assert_eq!(tables, 5);
}

/// The progress callback ends the run: the tables hold the results so far, in either format, there is no summary, and
/// tables of an earlier run in the other format are removed.
#[test]
fn an_interrupted_run_leaves_tables() {
    let text = format!("{GOOD}\n[[flows]]\nkind = \"one\"\nsrc = 0\ndst = 9\nbytes = 100000000\n");
    let folder = tempfile::tempdir().unwrap();
    let mut lines = Vec::new();
    for format in [Format::Csv, Format::Parquet] {
        let (mut config, built) = parse(&text, "run.toml", Path::new(".")).unwrap();
        config.format = format;
        // Progress is reported at each 200th of the run, and possibly more often.
        let until_ps = 1_002_000_000_000 / 200 * 4;
        let error =
            run::run(&config, built, folder.path(), None, |p| match p.done_ps != until_ps {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            });
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with("interrupted after 20"), "{error}");
        assert!(!folder.path().join("summary.json").exists());
        let bytes = std::fs::read(folder.path().join(format!("flows.{}", format.name()))).unwrap();
        lines.push(match format {
            Format::Csv => String::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect(),
            Format::Parquet => parquet_rows(&bytes),
        });
    }
    assert!(!folder.path().join("flows.csv").exists());
    assert_eq!(lines[0], lines[1]);
    let open = |line: &&String| line.ends_with(",,,") && line.contains(",0,9,100000000,");
    assert_eq!(lines[0].iter().filter(open).count(), 1, "{:?}", lines[0]);
}

/// The same seed repeats every file byte for byte; another seed changes them.
#[test]
fn the_same_configuration_writes_the_same_bytes() {
    let results = |seed: u64, kind: &str| -> Vec<(String, String)> {
        let files = files(seed, kind, Format::Csv);
        files.into_iter().map(|(name, bytes)| (name, String::from_utf8(bytes).unwrap())).collect()
    };
    for kind in [
        "panama",
        "panama-0.88",
        "panama-per-branch",
        "panama-coupled",
        "switchml*",
        "ring",
        "ring-no-ecn",
        "halving-doubling",
        "parameter-server",
        "shares",
        "ideal",
    ] {
        let first = results(1, kind);
        assert_eq!(first.len(), 8, "{kind}");
        assert_eq!(first, results(1, kind), "{kind}");
        let [_, _, flows, jobs, links, samples, steps, summary] = first.as_slice() else {
            panic!()
        };
        assert!(flows.1.lines().count() > 3 && !flows.1.contains(",,,"), "{kind}: all flows end");
        assert_eq!((jobs.1.lines().count(), steps.1.lines().count()), (2, 4), "{kind}");
        assert!(links.1.lines().count() > 90 && samples.1.lines().count() > 10, "{kind}");
        assert!(summary.1.contains("packet_hops"));
        if kind == "panama" {
            assert_ne!(first, results(2, kind));
        }
    }
}

/// A layer's gradients are reduced while the next one computes: the step ends with the last layer's reduction or, if
/// links are slower than processors, with reductions back to back from the first layer on.
#[test]
fn layers_overlap_with_computing() {
    let step_us = |job: &str| -> f64 {
        let text = format!(
            "duration = \"1s\"\n[fabric]\nkind = \"single-switch\"\nhosts = 4\n[scheme]\nkind = \"switchml*\"\n\
             [[jobs]]\nworkers = 4\n{job}\n"
        );
        let (config, built) =
            parse(&text, "run.toml", Path::new(".")).unwrap_or_else(|e| panic!("{e}"));
        let folder = tempfile::tempdir().unwrap();
        run::run(&config, built, folder.path(), None, |_| ControlFlow::Continue(())).unwrap();
        let steps = std::fs::read_to_string(folder.path().join("steps.csv")).unwrap();
        steps.trim_end().rsplit(',').next().unwrap().parse().unwrap()
    };
    let alone = |bytes: u64| step_us(&format!("compute = \"0us\"\nbytes = {bytes}"));
    let layers = |first: u64, second: u64, overlap: bool| {
        step_us(&format!(
            "compute = \"1ms\"\noverlap = {overlap}\nlayers = [{{ compute = \"1ms\", bytes = {first} }}, \
             {{ compute = \"500us\", bytes = 0 }}, {{ compute = \"1500us\", bytes = {second} }}]"
        ))
    };
    let same = |a: f64, b: f64| assert!((a - b).abs() < 1e-6, "{a} and {b} µs");
    // 1.4 MB take 1.2 ms, less than the 2 ms until the second layer is ready.
    same(layers(1_408_000, 704_000, true), 4000.0 + alone(704_000));
    same(layers(1_408_000, 704_000, false), 4000.0 + alone(1_408_000 + 704_000));
    // 7 MB take 6 ms: the second layer's gradients follow without a gap.
    same(layers(7_040_000, 704_000, true), 2000.0 + alone(7_040_000 + 704_000));
}

/// Steps, also of a schedule, begin a period after each other, or as soon as the last one has ended.
#[test]
fn steps_begin_a_period_after_each_other() {
    let starts_us = |job: &str| -> Vec<f64> {
        let text = format!(
            "duration = \"1s\"\n[fabric]\nkind = \"single-switch\"\nhosts = 4\n[[jobs]]\nsteps = 4\n{job}\n"
        );
        let (config, built) =
            parse(&text, "run.toml", Path::new(".")).unwrap_or_else(|e| panic!("{e}"));
        let folder = tempfile::tempdir().unwrap();
        run::run(&config, built, folder.path(), None, |_| ControlFlow::Continue(())).unwrap();
        let steps = std::fs::read_to_string(folder.path().join("steps.csv")).unwrap();
        steps.lines().skip(1).map(|line| line.split(',').nth(2).unwrap().parse().unwrap()).collect()
    };
    let sharded = "parallel = { data = 4, layers = 2, forward = \"50us\", parameters = \"100kB\", sharding = \"full\" }";
    for job in ["workers = 4\ncompute = \"50us\"\nbytes = 100000", sharded] {
        let paced = starts_us(&format!("{job}\nperiod = \"3ms\""));
        assert_eq!(paced, [0.0, 3_000.0, 6_000.0, 9_000.0], "{job}");
        let at_once = starts_us(&format!("{job}\nperiod = \"10us\""));
        assert_eq!(at_once, starts_us(job), "{job}");
        assert!(at_once[3] < 3_000.0, "{job}: {at_once:?}");
    }
}

/// Where a mix's jobs are and in which order changes nothing else about them. On hosts drawn at random the load is as
/// even as in rows, and a ring in random order crosses between two halves of n hosts n²/2(n−1) times on average.
#[test]
fn jobs_are_placed_in_rows_or_at_random() {
    let mix = "duration = \"2ms\"\n[fabric]\nkind = \"dumbbell\"\npairs = 20\n\
               [mix]\nload = 0.4\nscale = 0.001\n";
    let jobs = |seed: u32, keys: &str| {
        let text = format!("seed = {seed}\n{mix}{keys}");
        parse(&text, "run.toml", Path::new(".")).unwrap().1.jobs
    };
    let [mut on_first, mut workers] = [0, 0];
    for seed in 0..200 {
        let rows = jobs(seed, "workers = [4, 9]\n");
        assert!(rows.iter().all(|(_, job)| job.placement.is_sorted_by(|a, b| a + 1 == *b)));
        assert_eq!(rows, jobs(seed, "workers = [4, 9]\nplacement = \"rows\"\norder = \"hosts\"\n"));
        let random = jobs(seed, "workers = [4, 9]\nplacement = \"random\"\n");
        let mut taken = [0; 40];
        for ((name, row), (other, job)) in rows.iter().zip(&random) {
            assert!(job.placement.is_sorted_by(|a, b| a < b));
            job.placement.iter().for_each(|&host| taken[host as usize] += 1);
            let placement = row.placement.clone();
            assert_eq!((name, row), (other, &JobSpec { placement, ..job.clone() }));
        }
        assert_eq!(rows.len(), random.len());
        assert!(taken.iter().max().unwrap() - taken.iter().min().unwrap() <= 1, "{taken:?}");
        workers += random[0].1.placement.len();
        on_first += random[0].1.placement.iter().filter(|&&host| host < 20).count();
    }
    let share = on_first as f64 / workers as f64;
    assert!((share - 0.5).abs() < 0.05, "{share} of the first jobs' workers are left");
    let whole = "workers = [40, 40]\norder = \"random\"\n";
    let crossings = |seed| {
        let jobs = jobs(seed, whole);
        let hosts = &jobs[0].1.placement;
        let next = hosts.iter().cycle().skip(1);
        hosts.iter().zip(next).filter(|&(a, b)| (*a < 20) != (*b < 20)).count()
    };
    let mean = (0..200).map(|seed| crossings(seed) as f64).sum::<f64>() / 200.0;
    let expected = 40.0 * 40.0 / (2.0 * 39.0);
    assert!((mean - expected).abs() < 1.0, "{mean} crossings instead of {expected}");
}

/// Arriving jobs make up the load and run for their steps; hosts of a completed job are used again.
#[test]
fn jobs_arrive_and_leave() {
    let arrivals =
        "[mix]\nload = 0.3\nworkers = [2, 6]\nmodels = [\"alexnet\"]\nscale = 0.001\nsteps = 4\n";
    let (head, tail) = (GOOD.find("[[flows]]").unwrap(), GOOD.find("[samples]").unwrap());
    let text = format!("{}{arrivals}{}", &GOOD[..head], &GOOD[tail..]);
    let text =
        text.replace("duration = \"2ms\"", "duration = \"60ms\"").replace("\"panama\"", "\"atp\"");
    let (config, built) = parse(&text, "run.toml", Path::new(".")).unwrap();
    let starts: Vec<u64> = built.jobs.iter().map(|(_, job)| job.start_ps).collect();
    assert!(starts.is_sorted() && starts.len() > 20, "{} jobs", starts.len());
    let bytes: u64 =
        built.jobs.iter().map(|(_, j)| j.placement.len() as u64 * 4 * j.buckets[0].bytes).sum();
    let load = bytes as f64 * 8.0 / (16.0 * 10e9 * 0.06);
    assert!((0.15..0.45).contains(&load), "a load of {load}");
    let count = built.jobs.len();
    let folder = tempfile::tempdir().unwrap();
    run::run(&config, built, folder.path(), None, |_| ControlFlow::Continue(())).unwrap();
    let table = |name| std::fs::read_to_string(folder.path().join(name)).unwrap();
    assert_eq!(table("jobs.csv").lines().count(), count + 1, "every job ends");
    assert_eq!(table("steps.csv").lines().count(), 4 * count + 1);
}

/// Listed jobs, and those that a mix draws with steps; jobs of a mix without steps never end.
#[test]
fn unfinished_jobs_are_counted() {
    let (flows, samples) = (GOOD.find("[[flows]]").unwrap(), GOOD.find("[samples]").unwrap());
    let head = GOOD[..flows].replace("\"1s\"", "\"0s\"").replace("\"2ms\"", "\"60ms\"");
    let mix =
        "[mix]\nload = 0.5\nworkers = [2, 6]\nmodels = [\"alexnet\"]\nscale = 0.001\n".to_owned();
    let job = "[[jobs]]\nworkers = 2\ncompute = \"1ms\"\nbytes = 1000\nsteps =";
    let jobs = format!("{job} 1000\n{job} 1\n");
    for (asked, standing, least) in [
        (jobs.clone(), false, 1),
        (format!("{mix}{jobs}"), true, 1),
        (format!("{mix}steps = 60\n{jobs}"), false, 2),
    ] {
        let text = format!("{head}{asked}{}", &GOOD[samples..]);
        let (config, built) = parse(&text, "run.toml", Path::new(".")).unwrap();
        let count = if standing { 2 } else { built.jobs.len() };
        let folder = tempfile::tempdir().unwrap();
        run::run(&config, built, folder.path(), None, |_| ControlFlow::Continue(())).unwrap();
        let read = |name| std::fs::read_to_string(folder.path().join(name)).unwrap();
        let left = count + 1 - read("jobs.csv").lines().count();
        assert!(left >= least && read("jobs.csv").lines().count() > 1, "{left} of {count} jobs");
        let (said, summary) = (format!("\"unfinished_jobs\": {left},"), read("summary.json"));
        assert!(summary.contains(&said), "{asked}: {said} is not in {summary}");
    }
}

/// The fabric file determines which nodes are hosts, not the number of their links.
#[test]
fn a_switch_with_one_link_is_no_host() {
    let entry = |kind: &str, name: &str, address: &str, more: &str| {
        format!("[[{kind}]]\nname = \"{name}\"\naddress = \"{address}\"\n{more}")
    };
    let memory = "memory = \"1MiB\"\n";
    let link =
        |a: &str, b: &str| format!("[[link]]\nends = [\"{a}\", \"{b}\"]\nrate = \"10Gbit/s\"\n");
    let fabric = "name = \"x\"\ncontroller = \"10.0.0.1:1\"\n".to_owned()
        + &entry("switch", "h9", "10.0.0.4:1", memory)
        + &entry("switch", "s", "10.0.0.5:1", memory)
        + &entry("host", "gpu", "10.0.0.2", "")
        + &entry("host", "cpu", "10.0.0.3", "")
        + &[("h9", "s"), ("gpu", "s"), ("cpu", "s")].map(|(a, b)| link(a, b)).concat();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("fabric.toml"), fabric).unwrap();
    let text = "duration = \"1ms\"\n[fabric]\nkind = \"file\"\npath = \"fabric.toml\"\n\
                [[flows]]\nkind = \"permutation\"\nbytes = 1000\n";
    let (config, built) = parse(text, "run.toml", folder.path()).unwrap();
    let hosts: Vec<&str> = built.topology.hosts().map(|host| built.topology.name(host)).collect();
    assert_eq!(hosts, ["gpu", "cpu"]);
    assert_eq!(built.flows.len(), 2);
    run::run(&config, built, folder.path(), None, |_| ControlFlow::Continue(())).unwrap();
    let summary = std::fs::read_to_string(folder.path().join("summary.json")).unwrap();
    let summary: String = summary.split_whitespace().collect();
    assert!(summary.contains("\"hosts\":[\"gpu\",\"cpu\"]"), "{summary}");
}

/// A pool of `switchml` has a bit per worker: more workers are refused, for they would run the ring.
#[test]
fn a_pool_refuses_too_many_workers() {
    let text = |jobs: &str| {
        format!(
            "duration = \"1ms\"\n[fabric]\nkind = \"fat-tree\"\nk = 8\n[scheme]\nkind = \"switchml\"\n{jobs}"
        )
    };
    let job = |workers: u32| {
        text(&format!("[[jobs]]\ncompute = \"1us\"\nbytes = 1000\nworkers = {workers}\n"))
    };
    let refusal = |text: &str| match parse(text, "run.toml", Path::new(".")) {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    };
    assert_eq!(refusal(&job(32)), "");
    assert!(refusal(&job(33)).contains("run.toml:10: jobs.0.workers: 33 workers; a pool"));
    let mix = text("[mix]\nload = 0.1\nworkers = [2, 40]\n");
    assert!(refusal(&mix).contains("mix.workers: 40 workers"));
}

/// A device that never ends is refused as a trace, in bounded time and memory.
#[test]
fn an_endless_trace_is_refused() {
    let text = "duration = \"1ms\"\n[fabric]\nkind = \"fat-tree\"\nk = 4\n\
                [[flows]]\nkind = \"trace\"\npath = \"/dev/zero\"\n";
    let error = parse(text, "run.toml", Path::new(".")).err().expect("it is refused").to_string();
    assert!(error.contains("/dev/zero: it has more than 1024 MiB"), "{error}");
}

/// A fabric that is only simulated needs no controller; its other errors stay.
#[test]
fn a_fabric_file_needs_no_controller() {
    let folder = tempfile::tempdir().unwrap();
    let fabric = netsum_topo::single_switch(3, Rate(10_000_000_000), Addressing::default());
    let whole = fabric.unwrap().to_toml();
    let text = "duration = \"1ms\"\n[fabric]\nkind = \"file\"\npath = \"fabric.toml\"\n\
                [[flows]]\nkind = \"permutation\"\nbytes = 1000\n";
    let lines = whole.lines().filter(|line| !line.starts_with("controller"));
    let without: String = lines.map(|line| format!("{line}\n")).collect();
    assert_ne!(whole, without);
    std::fs::write(folder.path().join("fabric.toml"), &without).unwrap();
    assert_eq!(parse(text, "run.toml", folder.path()).unwrap().1.flows.len(), 3);
    std::fs::write(folder.path().join("fabric.toml"), without.replace("rack0", "")).unwrap();
    assert!(parse(text, "run.toml", folder.path()).is_err());
}
