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

#[test]
fn fluids_know_flows_only() {
    let text = "duration = \"1ms\"\n[fabric]\nkind = \"single-switch\"\nhosts = 4\n[scheme]\nkind = \"fluid\"\n\
                [[jobs]]\ncompute = \"1us\"\nbytes = 1000\nworkers = 2\n";
    let error = parse(text, "run.toml", Path::new(".")).err().expect("it is refused").to_string();
    assert!(
        error.starts_with("run.toml:7: jobs: the scheme \"fluid\" knows flows only"),
        "{error}"
    );
}
