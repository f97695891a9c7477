//! Fluid flows against closed forms and the definition of max-min shares.

use std::ops::ControlFlow;
use std::path::Path;

use netsum_sim::config::parse;
use netsum_sim::fluid::{Fluid, Use};
use netsum_sim::random::Random;
use netsum_sim::run;
use netsum_sim::workload::FlowSizes;
use proptest::prelude::*;

fn whole(links: &[u32]) -> Box<[Use]> {
    links.iter().map(|&link| (link, 1.0)).collect()
}

fn rates(fluid: &mut Fluid) -> Vec<f64> {
    let mut rates: Vec<(u32, f64)> = fluid.rates().collect();
    rates.sort_by_key(|r| r.0);
    rates.into_iter().map(|r| r.1).collect()
}

/// Links of capacity 10 and 9; flows over the first, both, the second, the second.
#[test]
fn shares_match_the_textbook_example() {
    let mut fluid = Fluid::new(vec![10.0, 9.0]);
    for (number, links) in [&[0][..], &[0, 1], &[1], &[1]].into_iter().enumerate() {
        fluid.start(number as u32, 21.0, whole(links));
    }
    assert_eq!(rates(&mut fluid), [7.0, 3.0, 3.0, 3.0]);
    // The first flow completes at 3; the others cannot use the capacity it frees, and complete together at 7.
    assert_eq!((fluid.next(100.0), fluid.now()), (Some(0), 3.0));
    assert_eq!(rates(&mut fluid), [3.0, 3.0, 3.0]);
    assert_eq!((fluid.next(5.0), fluid.now()), (None, 5.0));
    assert_eq!(fluid.left().map(|(_, left)| left).collect::<Vec<_>>(), [6.0; 3]);
    let ends: Vec<_> = (0..3).map(|_| (fluid.next(100.0), fluid.now())).collect();
    assert_eq!(ends, [(Some(1), 7.0), (Some(2), 7.0), (Some(3), 7.0)]);
    assert_eq!((fluid.next(100.0), fluid.now()), (None, 100.0));
}

/// Capacities, and flows as links with fractions of their rates.
fn fabrics() -> impl Strategy<Value = (Vec<f64>, Vec<Box<[Use]>>)> {
    (1..12usize).prop_flat_map(|links| {
        let capacity = prop::collection::vec(prop_oneof![Just(10.0), 0.1..100.0f64], links);
        let part = prop_oneof![Just(1.0), Just(0.5), Just(1.0 / 3.0), 0.01..1.0f64];
        let uses = prop::collection::btree_map(0..links as u32, part, 1..=links)
            .prop_map(|uses| uses.into_iter().collect());
        (capacity, prop::collection::vec(uses, 1..40))
    })
}

proptest! {
    /// No flow can gain without a loss for a slower one: every flow uses a full link on which no flow is faster.
    #[test]
    fn shares_are_max_min((capacity, flows) in fabrics()) {
        let mut fluid = Fluid::new(capacity.clone());
        for (number, uses) in flows.iter().enumerate() {
            fluid.start(number as u32, 1.0, uses.clone());
        }
        let rates = rates(&mut fluid);
        let part = |flow: usize, link: u32| flows[flow].iter().find(|u| u.0 == link).map(|u| u.1);
        let load = |link: u32| -> f64 {
            (0..flows.len()).filter_map(|f| Some(rates[f] * part(f, link)?)).sum()
        };
        let most = |link: u32| {
            (0..flows.len()).filter(|&f| part(f, link).is_some()).map(|f| rates[f]).fold(0.0, f64::max)
        };
        for (link, &capacity) in capacity.iter().enumerate() {
            prop_assert!(load(link as u32) <= capacity * (1.0 + 1e-9));
        }
        for (flow, uses) in flows.iter().enumerate() {
            let limits = |link: u32| {
                load(link) >= capacity[link as usize] * (1.0 - 1e-9)
                    && rates[flow] >= most(link) * (1.0 - 1e-9)
            };
            prop_assert!(uses.iter().any(|&(link, _)| limits(link)), "flow {flow}: {rates:?}");
        }
    }
}

/// Poisson arrivals at one link of capacity 1: mean of time / size by thirds of the sizes.
fn slowdowns(load: f64, flows: u32, size: impl Fn(f64) -> f64, mean: f64) -> [f64; 3] {
    let mut random = Random::derived(7, "fluid");
    let mut fluid = Fluid::new(vec![1.0]);
    let mut started: Vec<(f64, f64, usize)> = Vec::with_capacity(flows as usize);
    let (mut sum, mut count) = ([0.0; 3], [0.0; 3]);
    let mut at = 0.0;
    for number in 0..flows {
        at += random.exponential(mean / load);
        while let Some(ended) = fluid.next(at) {
            let (start, size, third) = started[ended as usize];
            sum[third] += (fluid.now() - start) / size;
            count[third] += 1.0;
        }
        let share = random.unit();
        let size = size(share);
        started.push((at, size, (share * 3.0) as usize));
        fluid.start(number, size, whole(&[0]));
    }
    std::array::from_fn(|third| sum[third] / count[third])
}

/// M/G/1 with processor sharing: the mean time of a flow of size x is x / (1 − load), for any distribution of sizes.
#[test]
fn one_link_matches_processor_sharing() {
    let web = FlowSizes::named("web-search").unwrap();
    let web_mean = web.mean();
    for load in [0.3, 0.6, 0.8] {
        let laws = [
            slowdowns(load, 1_000_000, |share| -(1.0 - share).ln(), 1.0),
            slowdowns(load, 1_000_000, |share| web.at(share) as f64, web_mean),
        ];
        for (law, slowdowns) in laws.into_iter().enumerate() {
            for slowdown in slowdowns {
                let off = slowdown * (1.0 - load) - 1.0;
                assert!(off.abs() < 0.02, "law {law}, load {load}: {off:+.4} of {slowdowns:?}");
            }
        }
    }
}

fn flows_csv(text: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let (config, built) = parse(text, "run.toml", Path::new(".")).unwrap_or_else(|e| panic!("{e}"));
    run::run(&config, built, folder.path(), None, |_| ControlFlow::Continue(())).unwrap();
    std::fs::read_to_string(folder.path().join("flows.csv")).unwrap()
}

/// One flow after the other, with windows that never limit: packets and fluid take the same time, to the picosecond.
#[test]
fn a_single_flow_takes_as_long_as_its_packets() {
    let mut flows = String::new();
    for (number, (dst, bytes)) in [
        (1, 1),
        (1, 1448),
        (2, 1449),
        (2, 100_000),
        (15, 1000),
        (15, 14_480),
        (15, 5_000_000),
        (3, 5),
    ]
    .into_iter()
    .enumerate()
    {
        flows += &format!(
            "[[flows]]\nkind = \"one\"\nstart = \"{}ms\"\nsrc = 0\ndst = {dst}\nbytes = {bytes}\n",
            20 * number
        );
    }
    let text = |scheme, fabric| {
        format!(
            "duration = \"200ms\"\n[scheme]\nkind = \"{scheme}\"\n[tcp]\nsocket = \"1GiB\"\ninitial_window = 100000\n[switch]\nmark_packets = 1000000\n\
             queue_packets = 1000000\n[fabric]\n{fabric}\n{flows}"
        )
    };
    for fabric in [
        "kind = \"fat-tree\"\nk = 4",
        "kind = \"dumbbell\"\npairs = 8\nbottleneck = \"4Gbit/s\"",
        "kind = \"leaf-spine\"\nracks = 2\nhosts_per_rack = 8\nspines = 2\nuplink_rate = \"40Gbit/s\"",
    ] {
        let packets = flows_csv(&text("ring", fabric));
        assert_eq!(packets.lines().count(), 9);
        assert_eq!(flows_csv(&text("fluid", fabric)), packets);
    }
}

/// Eight senders to one receiver, over one spine each or sprayed over both; the fluid distributes packets alike.
#[test]
fn a_sprayed_flow_uses_all_paths() {
    let text = |paths| {
        let flows: String = (0..4)
            .map(|n| {
                format!("[[flows]]\nkind = \"one\"\nsrc = {n}\ndst = {}\nbytes = 14480000\n", n + 4)
            })
            .collect();
        format!(
            "duration = \"1s\"\n[scheme]\nkind = \"fluid\"\n[switch]\npaths = \"{paths}\"\n[fabric]\nkind = \"leaf-spine\"\nracks = 2\n\
             hosts_per_rack = 4\nspines = 2\nuplink_rate = \"20Gbit/s\"\n{flows}"
        )
    };
    let times = |paths| -> Vec<f64> {
        let csv = flows_csv(&text(paths));
        csv.lines().skip(1).map(|line| line.split(',').nth(6).unwrap().parse().unwrap()).collect()
    };
    // 10,000 segments of 1,502 bytes at 10 Gbit/s, four links of 1 µs, one packet on the third slowest link and two on
    // the others.
    let alone = 10_000.0 * 1.2016 + 4.0 + 1.2016 + 2.0 * 0.6008;
    assert!(times("packet").iter().all(|&us| (us - alone).abs() < 1e-6), "{:?}", times("packet"));
    assert!(times("flow").iter().any(|&us| us > 1.2 * alone), "{:?}", times("flow"));
}

/// Runs a configuration; by step, the times of its start, of its first gradient and of its end, in µs.
fn steps_of(text: &str) -> Vec<[f64; 3]> {
    let folder = tempfile::tempdir().unwrap();
    let (config, built) = parse(text, "run.toml", Path::new(".")).unwrap_or_else(|e| panic!("{e}"));
    run::run(&config, built, folder.path(), None, |_| ControlFlow::Continue(())).unwrap();
    let csv = std::fs::read_to_string(folder.path().join("steps.csv")).unwrap();
    let names: Vec<&str> = csv.lines().next().unwrap().split(',').collect();
    let columns = ["start_us", "reduce_start_us", "end_us"]
        .map(|name| names.iter().position(|&n| n == name).expect("it has this column"));
    let row = |line: &str| {
        let cells: Vec<&str> = line.split(',').collect();
        columns.map(|column| cells[column].parse().unwrap())
    };
    csv.lines().skip(1).map(row).collect()
}

const EIGHT: &str = "duration = \"1s\"\n[fabric]\nkind = \"leaf-spine\"\nracks = 2\nhosts_per_rack = 4\n\
                     spines = 1\nuplink_rate = \"10Gbit/s\"\nrate = \"10Gbit/s\"\n";

/// 1,000 fragments of 1,476 bytes up four links and down four, of 1 µs each, of which one is in the train already.
#[test]
fn a_job_by_trees_takes_as_long_as_its_fragments() {
    let text = format!(
        "{EIGHT}[scheme]\nkind = \"fluid\"\n[[jobs]]\ncompute = \"50us\"\nbytes = 1408000\nworkers = 8\nsteps = 3\n"
    );
    let packet_us = 1476.0 * 8.0 / 10e3;
    let reduce_us = 1000.0 * packet_us + 3.0 * packet_us + 4.0;
    for (step, [start, reduce, end]) in steps_of(&text).into_iter().enumerate() {
        let begun = step as f64 * (50.0 + reduce_us);
        for (found, want) in
            [(start, begun), (reduce, begun + 50.0), (end, begun + 50.0 + reduce_us)]
        {
            assert!((found - want).abs() < 1e-3, "step {step}: {found} instead of {want}");
        }
    }
}

/// Fourteen steps of one segment, of which the slowest passes four links.
#[test]
fn a_job_by_a_ring_takes_as_long_as_its_steps() {
    let text = format!(
        "{EIGHT}[scheme]\nkind = \"fluid\"\n[[jobs]]\ncompute = \"0us\"\nbytes = 8000\nworkers = 8\n\
         scheme = {{ kind = \"ring\" }}\n"
    );
    let want = 14.0 * 4.0 * ((1000.0 + 54.0) * 8.0 / 10e3 + 1.0);
    let [[_, _, end]] = steps_of(&text)[..] else { panic!("one step") };
    assert!((end - want).abs() < 1e-3, "{end} instead of {want}");
}

/// Where connections share no link, packets take as long as fluids, but for acknowledgements and windows that grow.
#[test]
fn jobs_alone_take_as_long_as_their_packets() {
    let fabric =
        "duration = \"1s\"\n[fabric]\nkind = \"single-switch\"\nhosts = 8\nrate = \"10Gbit/s\"\n";
    for scheme in ["panama", "ring", "halving-doubling"] {
        let text = |kind: &str, own: &str| {
            format!(
                "{fabric}[scheme]\nkind = \"{kind}\"\n[tcp]\nack_bytes = 1\ninitial_window = 1000\n\
                 [[jobs]]\ncompute = \"1ms\"\nbytes = 20000000\nbuckets = 4\nworkers = 8\nsteps = 2\n{own}"
            )
        };
        let own = format!("scheme = {{ kind = \"{scheme}\" }}\n");
        let ends = [text("fluid", &own), text(scheme, "")].map(|text| steps_of(&text)[1][2]);
        let [fluid, packets] = ends;
        assert!((1.0 - packets / fluid).abs() < 0.1, "{scheme}: {fluid} and {packets} µs");
    }
}

/// A flow into a host of the job has half of its link: the job counts as one connection there.
#[test]
fn jobs_and_flows_share_links() {
    let text = "duration = \"1s\"\n[fabric]\nkind = \"single-switch\"\nhosts = 5\nrate = \"10Gbit/s\"\n\
                [scheme]\nkind = \"fluid\"\n\
                [[flows]]\nkind = \"one\"\nsrc = 4\ndst = 1\nbytes = 1448000\n\
                [[jobs]]\ncompute = \"0us\"\nbytes = 140800000\nworkers = 4\nscheme = { kind = \"SCHEME\" }\n";
    for scheme in ["panama", "ring"] {
        let csv = flows_csv(&text.replace("SCHEME", scheme));
        let us: f64 = csv.lines().nth(1).unwrap().split(',').nth(6).unwrap().parse().unwrap();
        let alone = 1000.0 * 1502.0 * 8.0 / 10e3;
        assert!((us / alone - 2.0).abs() < 0.01, "{scheme}: {us} µs");
    }
    // All connections of a parameter server into a host count: three of four, all the time.
    let csv = flows_csv(&text.replace("SCHEME", "parameter-server"));
    let us: f64 = csv.lines().nth(1).unwrap().split(',').nth(6).unwrap().parse().unwrap();
    assert!((us / (1000.0 * 1502.0 * 8.0 / 10e3) - 4.0).abs() < 0.01, "{us} µs");
}

#[test]
fn what_only_packets_decide_is_refused() {
    let job = "duration = \"1ms\"\n[fabric]\nkind = \"single-switch\"\nhosts = 4\n[scheme]\nkind = \"fluid\"\n\
               [[jobs]]\ncompute = \"1us\"\nbytes = 1000\nworkers = 2\n";
    for (more, start) in [
        (
            "scheme = { kind = \"atp\" }\n",
            "run.toml:11: jobs.0.scheme.kind: what slots and pools do",
        ),
        (
            "[samples]\nevery = \"1us\"\nlinks = [\"*\"]\n",
            "run.toml:11: samples: the scheme \"fluid\" knows",
        ),
    ] {
        let text = format!("{job}{more}");
        let error =
            parse(&text, "run.toml", Path::new(".")).err().expect("it is refused").to_string();
        assert!(error.starts_with(start), "{error}");
    }
}
