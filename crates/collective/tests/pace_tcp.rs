//! Parameters of the cost model: measured, equal at all ranks, and overridden by options.

mod support;

use netsum_collective::{Dtype, Format, GroupConfig, LinkCost, Options, ReduceOp};
use support::{SOON, bytes, config, with_group};

fn with_options(rank: u32, size: u32, pairs: &[(&str, &str)]) -> GroupConfig {
    let pairs = [("shared_memory", "off")].iter().chain(pairs);
    let options = pairs.map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
    GroupConfig { options: Options::parse(&options).unwrap(), ..config(rank, size, "pace") }
}

#[test]
fn all_ranks_measure_the_same() {
    for size in 1..=5 {
        let links: Vec<LinkCost> = with_group(
            size,
            |rank| with_options(rank, size, &[]),
            |_, group| {
                // Operations after the measurement receive none of its messages.
                let mut buffer = support::buffer(&[1; 64]);
                let sum = netsum_collective::Combine::Plain(ReduceOp::Sum);
                group.allreduce(&mut buffer, Dtype::U8, sum, SOON).wait(None).unwrap();
                assert_eq!(bytes(&buffer), [size as u8; 64]);
                group.link().unwrap()
            },
        );
        assert!(links.iter().all(|link| *link == links[0]), "{links:?}");
        // Loopback: nanoseconds or seconds would be wrong, as would less than 1 Mbit/s.
        let LinkCost { latency_s, bytes_per_s, .. } = links[0];
        assert!((1e-6..1.0).contains(&latency_s), "{links:?}");
        assert!((125e3..1e12).contains(&bytes_per_s), "{links:?}");
    }
}

#[test]
fn options_override_each_value_and_costs_follow() {
    let half = [("link_latency_s", "0.5")];
    for link in with_group(2, |r| with_options(r, 2, &half), |_, group| group.link().unwrap()) {
        assert_eq!(link.latency_s, 0.5);
        assert_ne!(link.bytes_per_s, 1.25e9, "it is measured");
    }
    let both = [("link_latency_s", "0.001"), ("link_bytes_per_s", "1e6")];
    let chosen = with_group(
        4,
        |rank| with_options(rank, 4, &both),
        |_, group| {
            assert_eq!(group.link().unwrap().bytes_per_s, 1e6);
            let format = Format { dtype: Dtype::F32, op: ReduceOp::Sum };
            let at = |bytes| group.explain("allreduce", format, bytes).unwrap().chosen;
            (at(100), at(100_000))
        },
    );
    // One step of 3 S against two of 1.5 S: equal at 667 bytes.
    assert_eq!(chosen, [("one-hop", "shares"); 4]);
}
