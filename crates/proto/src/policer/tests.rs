use netsum_wire::JobId;
use proptest::prelude::*;

use super::*;

const PACKET: usize = 1458;
const MS: u64 = 1_000_000;

fn owner(name: &str, limit: RateLimit) -> Owner {
    Owner { tenant: Some(name.into()), limit }
}

fn limit(bytes_per_s: u64, packets_per_s: u64) -> RateLimit {
    RateLimit { bytes_per_s: Some(bytes_per_s), packets_per_s: Some(packets_per_s) }
}

/// Jobs 0, 1, …, each of a tenant of its own, with the neighbour of the same number.
fn policer(tenants: u32) -> Policer {
    let mut policer = Policer::new();
    for number in 0..tenants {
        policer.own(Time(0), JobId(number), owner(&number.to_string(), RateLimit::default()));
        policer.lease(Time(0), JobId(number), [PortId(number)].into_iter());
    }
    policer
}

fn counters(policer: &Policer, name: &str) -> TenantCounters {
    let mut tenants = policer.tenants();
    *tenants.find(|(tenant, _)| &***tenant == name).expect("the tenant has a job").1
}

#[test]
fn a_tenant_is_marked_first_and_then_dropped() {
    let mut policer = Policer::new();
    let [a, b] = [JobId(1), JobId(2)];
    for (job, port) in [(a, PortId(1)), (b, PortId(2))] {
        policer.own(Time(0), job, owner("one", limit(1_000_000_000, 1_000)));
        policer.lease(Time(0), job, [port].into_iter());
    }
    // Both jobs share the bucket of 256 packets.
    let verdicts: Vec<Verdict> = (0..300)
        .map(|n| {
            let (job, port) = if n % 2 == 0 { (a, PortId(1)) } else { (b, PortId(2)) };
            policer.admit(Time(0), port, job, 100)
        })
        .collect();
    let count = |wanted| verdicts.iter().filter(|&&verdict| verdict == wanted).count();
    let dropped = Verdict::Drop(DropReason::OverRate);
    assert_eq!([Verdict::Pass, Verdict::Mark, dropped].map(count), [128, 128, 44]);
    assert!(verdicts.is_sorted_by_key(|verdict| match verdict {
        Verdict::Pass => 0,
        Verdict::Mark => 1,
        Verdict::Drop(_) => 2,
    }));
    // A packet each millisecond.
    assert_eq!(policer.admit(Time(MS), PortId(1), a, 100), Verdict::Mark);
    assert_eq!(policer.admit(Time(MS), PortId(1), a, 100), dropped);
    let one = counters(&policer, "one");
    assert_eq!((one.packets, one.bytes, one.marked, one.dropped), (257, 25_700, 129, 45));
}

#[test]
fn bytes_are_limited_as_packets_are() {
    let mut policer = Policer::new();
    policer.own(Time(0), JobId(1), owner("one", limit(1_000_000, 1_000_000)));
    policer.lease(Time(0), JobId(1), [PortId(1)].into_iter());
    let admitted = (0..1_000).filter(|_| {
        policer.admit(Time(0), PortId(1), JobId(1), 1_024) != Verdict::Drop(DropReason::OverRate)
    });
    assert_eq!(admitted.count(), 256);
}

#[test]
fn only_a_jobs_neighbours_use_its_rate() {
    let mut policer = Policer::new();
    policer.own(Time(0), JobId(1), owner("victim", limit(1, 1)));
    policer.lease(Time(0), JobId(1), [PortId(1)].into_iter());
    for _ in 0..1_000 {
        assert_eq!(policer.admit(Time(0), PortId(9), JobId(1), 100), Verdict::Pass);
    }
    assert_eq!(counters(&policer, "victim").packets, 0);
    assert_ne!(
        policer.admit(Time(0), PortId(1), JobId(1), 100),
        Verdict::Drop(DropReason::OverRate)
    );
}

#[test]
fn forged_job_numbers_cost_the_forger() {
    let mut policer = policer(3);
    // A switch carries jobs of several tenants.
    let switch = PortId(9);
    policer.lease(Time(0), JobId(0), [switch].into_iter());
    policer.lease(Time(0), JobId(1), [switch].into_iter());
    for job in [1, 2, 77] {
        policer.admit(Time(0), PortId(0), JobId(job), 100);
        policer.admit(Time(0), switch, JobId(job), 10);
    }
    let bytes = |name| counters(&policer, name).bytes;
    assert_eq!(["0", "1", "2"].map(bytes), [300, 10, 0]);
    // Once the switch's other tenant has gone, it stands for one.
    let (jobs, ports) = ([JobId(0)], [PortId(0), switch]);
    policer.retain(&jobs.into_iter().collect(), &ports.into_iter().collect());
    policer.admit(Time(0), switch, JobId(77), 10);
    assert_eq!(counters(&policer, "0").bytes, 310);
}

#[test]
fn forgotten_jobs_leave_nothing_behind() {
    let mut policer = policer(5);
    let jobs = [JobId(1), JobId(4)].into_iter().collect();
    let ports = [PortId(1), PortId(4)].into_iter().collect();
    policer.admit(Time(0), PortId(4), JobId(4), 7);
    policer.retain(&jobs, &ports);
    assert_eq!(policer.tenants().count(), 2);
    assert_eq!((policer.jobs.len(), policer.senders.len()), (2, 2));
    assert_eq!(counters(&policer, "4").bytes, 7);
    policer.admit(Time(0), PortId(4), JobId(4), 7);
    policer.admit(Time(0), PortId(1), JobId(1), 5);
    assert_eq!((counters(&policer, "4").bytes, counters(&policer, "1").bytes), (14, 5));
    policer.retain(&FxHashSet::default(), &FxHashSet::default());
    assert_eq!((policer.tenants().count(), policer.jobs.len()), (0, 0));
}

#[test]
fn a_job_without_owner_stands_for_itself() {
    let mut policer = Policer::new();
    for job in [JobId(1), JobId(2)] {
        policer.lease(Time(0), job, [PortId(1)].into_iter());
    }
    assert_eq!((policer.tenants.len(), policer.tenants().count()), (2, 0));
}

/// A switch that processes `capacity` packets per millisecond from a buffer that tenants fill with `demand` packets per
/// millisecond each. A packet that is dropped costs a tenth; one that is thinned out costs nothing, and counts as
/// dropped by the system. Returns what passed of each tenant in the last half of `ms` milliseconds, as a fraction of
/// what the tenant sent.
fn overload(demand: &[u32], capacity: u32, ms: u64) -> Vec<f64> {
    const BUFFER: usize = 8_192;
    let mut policer = policer(demand.len() as u32);
    let mut queue = std::collections::VecDeque::new();
    let (mut dropped, mut passed) = (0, vec![0u32; demand.len()]);
    // Everybody's packets are spread over the millisecond.
    let packets = |(tenant, &packets)| {
        (0..packets).map(move |n| (f64::from(n) / f64::from(packets), tenant as u32))
    };
    let mut arrivals: Vec<(f64, u32)> = demand.iter().enumerate().flat_map(packets).collect();
    arrivals.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut halvings, mut number) = (vec![0; demand.len()], 0u64);
    for millisecond in 0..ms {
        for &(_, tenant) in &arrivals {
            number += 1;
            let drawn = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            match queue.len() < BUFFER && drawn.trailing_zeros() >= halvings[tenant as usize] {
                true => queue.push_back(tenant),
                false => dropped += 1,
            }
        }
        let now = Time(millisecond * MS);
        let mut tenths = 10 * capacity;
        while tenths >= 10
            && let Some(tenant) = queue.pop_front()
        {
            let verdict = policer.admit(now, PortId(tenant), JobId(tenant), PACKET);
            let drops = matches!(verdict, Verdict::Drop(_));
            tenths -= if drops { 1 } else { 10 };
            passed[tenant as usize] += u32::from(!drops && millisecond >= ms / 2);
        }
        if queue.is_empty() {
            policer.drained(now);
        } else if policer.is_due(now) {
            let (queued, limit) = (queue.len() as u64, BUFFER as u64);
            policer.regulate(now, Backlog { queued, limit, dropped });
        }
        if let Some(thinned) = policer.thinned() {
            halvings.fill(0);
            thinned.iter().for_each(|t| halvings[t.port.0 as usize] = t.halvings.into());
        }
    }
    let sent = |tenant: usize| f64::from(demand[tenant]) * (ms / 2) as f64;
    (0..demand.len()).map(|tenant| f64::from(passed[tenant]) / sent(tenant)).collect()
}

#[test]
fn a_flood_that_is_faster_than_it_can_be_dropped_does_not_touch_63_others() {
    let mut demand = [10; 64];
    demand[0] = 30_000;
    let passed = overload(&demand, 1_000, 4_000);
    assert!(passed[1..].iter().all(|&part| part >= 0.98), "{passed:?}");
    assert!(passed[0] < 0.05, "{passed:?}");
}

#[test]
fn senders_of_a_flood_are_thinned_out_until_it_ends() {
    let mut policer = policer(3);
    // A switch that carries the flood and a job of another tenant.
    policer.lease(Time(0), JobId(0), [PortId(9)].into_iter());
    policer.lease(Time(0), JobId(1), [PortId(9)].into_iter());
    assert_eq!(policer.thinned(), None);
    let full = Backlog { queued: 9, limit: 10, dropped: 0 };
    let mut interval = 0;
    let thinned = loop {
        for (tenant, packets) in [(0, 100_000), (1, 500), (2, 10)] {
            for _ in 0..packets {
                policer.admit(Time(interval * 10 * MS), PortId(tenant), JobId(tenant), PACKET);
            }
        }
        interval += 1;
        policer.regulate(Time(interval * 10 * MS), full);
        if let Some(thinned) = policer.thinned() {
            break thinned;
        }
        assert!(interval < 100, "{:?}", policer.share());
    };
    let share = policer.share().unwrap();
    assert_eq!(thinned.len(), 1, "the others send less than four times the share: {thinned:?}");
    assert_eq!(thinned[0].port, PortId(0));
    let left = (100_000 * 100 * (PACKET as u64 + PACKET_COST)) >> thinned[0].halvings;
    assert!((2 * share..4 * share).contains(&left), "{left} {share}");
    assert_eq!(policer.thinned(), None, "nothing has changed");
    (2..20).for_each(|interval| policer.drained(Time(interval * 10 * MS)));
    assert_eq!(policer.thinned(), Some(Vec::new()));
    assert!(
        policer.share().is_some(),
        "the flood's place is open again before the share is lifted"
    );
}

#[test]
fn a_flood_of_one_tenant_does_not_touch_63_others() {
    // 630 packets of a capacity of 1,000 are the others'; the flood has three times the capacity.
    let mut demand = [10; 64];
    demand[0] = 3_000;
    let passed = overload(&demand, 1_000, 2_000);
    assert!(passed[1..].iter().all(|&part| part >= 0.98), "{passed:?}");
    assert!(passed[0] < 0.2, "{passed:?}");
}

#[test]
fn tenants_at_their_full_share_keep_it_beside_a_flood() {
    // Everybody but the first sends what 64 equal shares of the capacity would be; dropping the flood takes a part.
    let mut demand = [16; 64];
    demand[0] = 2_000;
    let passed = overload(&demand, 1_024, 2_000);
    let (least, most) =
        passed[1..].iter().fold((1.0f64, 0.0f64), |(a, b), &p| (a.min(p), b.max(p)));
    assert!(most - least < 0.02 && least >= 0.98, "{passed:?}");
    // The share rises above what the others send whenever the buffer is empty.
    assert!(passed[0] * 2_000.0 <= 1.5 * most * 16.0, "{passed:?}");
}

#[test]
fn without_overload_nobody_is_cut() {
    let passed = overload(&[500, 100, 1], 1_000, 500);
    assert!(passed.iter().all(|&part| part > 0.99), "{passed:?}");
}

#[test]
fn a_burst_after_a_pause_is_no_overload() {
    let mut policer = policer(1);
    policer.admit(Time(0), PortId(0), JobId(0), PACKET);
    policer.drained(Time(MS));
    // A second later the buffer is full before the first packet is read.
    let now = Time(1_000 * MS);
    policer.drained(now);
    assert!(!policer.is_due(now.after(MS)));
    policer.admit(now.after(MS), PortId(0), JobId(0), PACKET);
    policer.drained(now.after(2 * MS));
    assert_eq!(policer.share(), None);
}

#[test]
fn a_flood_of_strangers_cuts_no_tenant() {
    let mut policer = policer(2);
    let full = Backlog { queued: 9, limit: 10, dropped: 0 };
    for job in [7, 0] {
        policer.admit(Time(0), PortId(0), JobId(0), PACKET);
        policer.admit(Time(0), PortId(1), JobId(1), PACKET);
        for _ in 0..100 {
            // Unknown senders, and a port without jobs.
            match job {
                0 => policer.stranger(PACKET),
                job => _ = policer.admit(Time(0), PortId(9), JobId(job), PACKET),
            }
        }
        policer.regulate(Time(10 * MS), full);
        assert_eq!(policer.share(), None);
    }
}

#[test]
fn the_share_is_lifted_after_the_flood() {
    let mut policer = policer(2);
    let flood = |policer: &mut Policer, now| {
        for _ in 0..10_000 {
            policer.admit(now, PortId(0), JobId(0), PACKET);
        }
        policer.admit(now, PortId(1), JobId(1), PACKET);
    };
    flood(&mut policer, Time(0));
    policer.regulate(Time(10 * MS), Backlog { queued: 9, limit: 10, dropped: 0 });
    assert!(policer.share().is_some());
    (2..200).for_each(|interval| policer.drained(Time(interval * 10 * MS)));
    assert_eq!(policer.share(), None);
}

/// A tenant's buckets as the threads of a switch share them.
#[derive(Debug)]
struct Together(std::sync::Mutex<RateBuckets>);

impl SharedRates for Together {
    fn admit(&self, now: Time, limit: RateLimit, bytes: u64, passes: bool) -> Level {
        self.0.lock().unwrap().admit(now, limit, bytes, passes)
    }
}

/// Packets of a tenant, each with its policer, its bytes, and the nanoseconds since the one before.
fn packets_of_policers() -> impl Strategy<Value = Vec<(usize, usize, u64)>> {
    prop::collection::vec((0..3usize, 1..9_000usize, 0..400_000u64), 1..400)
}

proptest! {
    #[test]
    fn policers_with_shared_rates_decide_as_one(
        packets in packets_of_policers(),
        limits in (100_000..100_000_000u64, 1_000..100_000u64),
    ) {
        let limit = limit(limits.0, limits.1);
        let rates = Arc::new(Together(std::sync::Mutex::new(RateBuckets::full(Time(0)))));
        let of_job = |number: usize| (JobId(number as u32), PortId(number as u32));
        let mut all: [Policer; 3] = Default::default();
        let mut alone = Policer::new();
        for (number, policer) in all.iter_mut().enumerate() {
            let (job, port) = of_job(number);
            policer.own_shared(Time(0), job, owner("one", limit), rates.clone());
            policer.lease(Time(0), job, [port].into_iter());
            alone.own(Time(0), job, owner("one", limit));
            alone.lease(Time(0), job, [port].into_iter());
        }
        let mut now = Time(0);
        for (number, bytes, gap_ns) in packets {
            now = now.after(gap_ns);
            let (job, port) = of_job(number);
            let verdict = all[number].admit(now, port, job, bytes);
            prop_assert_eq!(verdict, alone.admit(now, port, job, bytes));
        }
        let sum = |value: fn(&TenantCounters) -> u64| {
            all.iter().map(|policer| value(&counters(policer, "one"))).sum::<u64>()
        };
        let one = counters(&alone, "one");
        prop_assert_eq!([sum(|c| c.packets), sum(|c| c.bytes)], [one.packets, one.bytes]);
        prop_assert_eq!([sum(|c| c.marked), sum(|c| c.dropped)], [one.marked, one.dropped]);
    }
}
