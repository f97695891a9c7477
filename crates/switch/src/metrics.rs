//! The switch's statistics as Prometheus metrics, read from the driver at each scrape.

use std::fmt;
use std::sync::Arc;

use netsum_control::LATENESS_MAX;
use netsum_net::switch::{
    ChildSnapshot, PoolSnapshot, ServerSnapshot, SlotSnapshot, SwitchDriver, SwitchSnapshot,
    ThreadSnapshot, TreeSnapshot,
};
use netsum_proto::policer::TenantCounters;
use netsum_proto::{Lateness, LeaseKey};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// Text in the OpenMetrics format, generated at each call.
pub(crate) struct Metrics {
    registry: Registry,
}

#[derive(Debug)]
struct SwitchCollector {
    driver: Arc<SwitchDriver>,
}

type Figure<S = TreeSnapshot> = fn(&S) -> u64;
type Labels = Vec<(&'static str, String)>;

impl Metrics {
    /// Metrics of one switch, all labelled with its name.
    pub(crate) fn new(name: &str, driver: Arc<SwitchDriver>) -> Metrics {
        let labels = [("switch".into(), name.to_owned().into())];
        let mut registry = Registry::with_prefix_and_labels("netsum_switch", labels.into_iter());
        registry.register_collector(Box::new(SwitchCollector { driver }));
        Metrics { registry }
    }

    /// The text; `None` once the data thread has ended.
    pub(crate) fn text(&self) -> Option<String> {
        let mut text = String::new();
        let encoded = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        encoded.ok().map(|()| text)
    }
}

impl Collector for SwitchCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let snapshot = self.driver.snapshot().map_err(|_| fmt::Error)?;
        let mut page = Page { encoder };
        neighbours(&mut page, &snapshot)?;
        drops(&mut page, &snapshot)?;
        tenants(&mut page, &snapshot)?;
        memory(&mut page, &snapshot)?;
        trees(&mut page, &snapshot.trees)?;
        slots(&mut page, &snapshot)?;
        lateness(&mut page, &snapshot)
    }
}

/// Writes metrics.
struct Page<'a> {
    encoder: DescriptorEncoder<'a>,
}

impl Page<'_> {
    fn counters(
        &mut self,
        name: &str,
        help: &str,
        values: impl Iterator<Item = (Labels, u64)>,
    ) -> fmt::Result {
        let kind = MetricType::Counter;
        let mut metric = self.encoder.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in values {
            ConstCounter::new(value).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn gauges(
        &mut self,
        name: &str,
        help: &str,
        values: impl Iterator<Item = (Labels, u64)>,
    ) -> fmt::Result {
        let kind = MetricType::Gauge;
        let mut metric = self.encoder.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in values {
            ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX))
                .encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn seconds(
        &mut self,
        name: &str,
        help: &str,
        values: impl Iterator<Item = (Labels, f64)>,
    ) -> fmt::Result {
        let kind = MetricType::Counter;
        let mut metric = self.encoder.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in values {
            ConstCounter::new(value).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

fn neighbours(page: &mut Page<'_>, snapshot: &SwitchSnapshot) -> fmt::Result {
    let each = |value: fn(&netsum_net::switch::Neighbour) -> u64| {
        snapshot.neighbours.iter().map(move |neighbour| {
            (vec![("neighbour", neighbour.address.to_string())], value(neighbour))
        })
    };
    page.counters("received_packets", "Packets from a neighbour", each(|n| n.received.packets))?;
    page.counters(
        "received_bytes",
        "Their bytes, with IP and UDP headers",
        each(|n| n.received.bytes),
    )?;
    page.counters("received_marked_packets", "Of them, marked by ECN", each(|n| n.marked))?;
    page.counters("sent_packets", "Packets to a neighbour", each(|n| n.sent.packets))?;
    page.counters("sent_bytes", "Their bytes, with IP and UDP headers", each(|n| n.sent.bytes))
}

fn drops(page: &mut Page<'_>, snapshot: &SwitchSnapshot) -> fmt::Result {
    let failures = snapshot.failures;
    let unsent = [
        ("no_room", failures.no_room),
        ("too_big", failures.too_big),
        ("refused", failures.refused),
    ];
    let labelled = |(reason, count): (&str, u64)| (vec![("reason", reason.to_owned())], count);
    let received = snapshot.drops.iter().copied().map(labelled);
    page.counters("dropped_packets", "Received packets that were not taken", received)?;
    let unsent = unsent.into_iter().map(labelled);
    page.counters("unsent_packets", "Packets that the system did not take", unsent)?;
    let cpu = [("user", snapshot.cpu.user), ("system", snapshot.cpu.system)];
    let cpu =
        cpu.into_iter().map(|(mode, time)| (vec![("mode", mode.to_owned())], time.as_secs_f64()));
    page.seconds("cpu_seconds", "Processor time of all data threads", cpu)?;
    threads(page, &snapshot.threads)
}

/// Each data thread, so that a busy one shows.
fn threads(page: &mut Page<'_>, threads: &[ThreadSnapshot]) -> fmt::Result {
    let labels = |number: usize| vec![("thread", number.to_string())];
    let each = |value: Figure<ThreadSnapshot>| {
        threads.iter().enumerate().map(move |(number, thread)| (labels(number), value(thread)))
    };
    let cpu = threads.iter().enumerate().map(|(number, thread)| {
        (labels(number), (thread.cpu.user + thread.cpu.system).as_secs_f64())
    });
    page.seconds("thread_cpu_seconds", "Processor time of a data thread", cpu)?;
    page.gauges("thread_leases", "Leases of a data thread", each(|t| t.leases))?;
    let handed_over = "Packets that a thread has received for another one";
    page.counters("thread_handed_over_packets", handed_over, each(|t| t.handed_over))?;
    page.counters("thread_lost_packets", "Of such packets, those without room", each(|t| t.lost))
}

fn memory(page: &mut Page<'_>, snapshot: &SwitchSnapshot) -> fmt::Result {
    let one = |value: u64| std::iter::once((Vec::new(), value));
    let buffer = snapshot.socket.recv_buffer as u64;
    page.gauges("memory_used_bytes", "Aggregation memory in use", one(snapshot.memory_used))?;
    page.gauges(
        "memory_reserved_bytes",
        "Aggregation memory that leases have reserved",
        one(snapshot.memory_reserved),
    )?;
    page.gauges("memory_limit_bytes", "Aggregation memory", one(snapshot.memory_limit))?;
    page.gauges("receive_buffer_bytes", "Socket buffer that the system gave", one(buffer))?;
    let (trees, slots) = (snapshot.trees.len(), snapshot.slots.len());
    let leases = trees + slots + snapshot.servers.len() + snapshot.pools.len();
    page.gauges("leases", "Leases at work", one(leases as u64))?;
    page.gauges("slots_held", "Slots in use", one(snapshot.slots_held.into()))?;
    page.gauges("slots_limit", "Slots", one(snapshot.slots_limit.into()))?;
    page.gauges(
        "rows_used",
        "Fragments in slots, in pools or at the server",
        one(snapshot.rows_used),
    )
}

fn tenants(page: &mut Page<'_>, snapshot: &SwitchSnapshot) -> fmt::Result {
    let figures: [(&str, &str, Figure<TenantCounters>); 4] = [
        ("tenant_packets", "A tenant's packets that passed its rate and its fair share", |t| {
            t.packets
        }),
        ("tenant_bytes", "Their bytes", |t| t.bytes),
        ("tenant_marked", "Of the packets, those marked close to the rate or the share", |t| {
            t.marked
        }),
        ("tenant_dropped", "A tenant's packets beyond its rate or its fair share", |t| t.dropped),
    ];
    for (name, help, value) in figures {
        let each = snapshot.tenants.iter();
        let each =
            each.map(|(tenant, counters)| (vec![("tenant", tenant.to_string())], value(counters)));
        page.counters(name, help, each)?;
    }
    Ok(())
}

fn trees(page: &mut Page<'_>, trees: &[TreeSnapshot]) -> fmt::Result {
    let labels = |tree: &TreeSnapshot| {
        let key = tree.lease;
        vec![("job", key.job.to_string()), ("tree", key.tree.to_string())]
    };
    let each = |value: Figure| trees.iter().map(move |t| (labels(t), value(t)));
    let counters: [(&str, &str, Figure); 10] = [
        ("tree_contributions", "Children's fragments that were counted", |t| {
            t.counters.contributions
        }),
        ("tree_sums", "Sums released", |t| t.counters.released),
        ("tree_partial_sums", "Of them, without all children", |t| t.counters.released_partially),
        ("tree_results", "Results passed on their way down", |t| t.counters.results),
        ("tree_duplicates", "Fragments that had been counted", |t| t.counters.duplicates),
        ("tree_answered", "Of them, answered with the sum", |t| t.counters.answered),
        ("tree_waiting", "Of them, answered with \"waiting\"", |t| t.counters.waiting),
        ("tree_late", "Fragments that came after their sum", |t| t.counters.late),
        ("tree_marked", "Sums with a mark of congestion", |t| t.counters.marked),
        ("tree_mismatches", "Fragments on which children disagreed", |t| t.counters.mismatches),
    ];
    for (name, help, value) in counters {
        page.counters(name, help, each(value))?;
    }
    page.gauges("tree_epoch", "Version of the plan", each(|t| t.lease.epoch.0.into()))?;
    page.gauges("tree_window_cap", "Fragments in flight allowed", each(|t| t.window_cap.into()))?;
    page.gauges("tree_memory_bytes", "Aggregation memory set aside", each(|t| t.memory_reserved))
}

/// Leases of the protocols with slots.
fn slots(page: &mut Page<'_>, snapshot: &SwitchSnapshot) -> fmt::Result {
    let labels =
        |lease: &LeaseKey| vec![("job", lease.job.to_string()), ("tree", lease.tree.to_string())];
    let at_switch: [(&str, &str, Figure<SlotSnapshot>); 8] = [
        ("slot_added", "Fragments of children that were added", |s| s.counters.added),
        ("slot_completed", "Sums of all children that went on", |s| s.counters.completed),
        ("slot_passed", "Fragments that went on to the server alone", |s| s.counters.passed),
        ("slot_collisions", "Of them, because another's was in the slot", |s| {
            s.counters.collisions
        }),
        ("slot_duplicates", "Fragments that had been added", |s| s.counters.duplicates),
        ("slot_expired", "Slots let go because a child was late", |s| s.counters.expired),
        ("slot_preempted", "Slots yielded to another job", |s| s.counters.preempted),
        ("slot_results", "Results passed on their way down", |s| s.counters.results),
    ];
    for (name, help, value) in at_switch {
        let each = snapshot.slots.iter().map(|s| (labels(&s.lease), value(s)));
        page.counters(name, help, each)?;
    }
    let each = snapshot.slots.iter().map(|s| (labels(&s.lease), s.held.into()));
    page.gauges("slot_held", "Slots that a lease holds", each)?;
    let each = snapshot.slots.iter().map(|s| (labels(&s.lease), s.in_kernel.into()));
    page.gauges("slot_in_kernel", "1 if the in-kernel switch serves the lease", each)?;
    let at_server: [(&str, &str, Figure<ServerSnapshot>); 8] = [
        ("server_packets", "Packets that were added", |s| s.counters.packets),
        ("server_contributions", "Fragments of single workers in them", |s| {
            s.counters.contributions
        }),
        ("server_results", "Results", |s| s.counters.results),
        ("server_duplicates", "Packets that had been added", |s| s.counters.duplicates),
        ("server_requested", "Fragments of which the rest was requested", |s| s.counters.requested),
        ("server_overlaps", "Packets of which a part had been added", |s| s.counters.overlaps),
        ("server_float_requests", "Fragments repeated in float", |s| s.counters.float_requests),
        ("server_rehashes", "Slots exchanged after a collision", |s| s.counters.rehashes),
    ];
    for (name, help, value) in at_server {
        let each = snapshot.servers.iter().map(|s| (labels(&s.lease), value(s)));
        page.counters(name, help, each)?;
    }
    let of_pool: [(&str, &str, Figure<PoolSnapshot>); 4] = [
        ("pool_added", "Fragments that were added", |p| p.counters.added),
        ("pool_completed", "Sums of all workers", |p| p.counters.completed),
        ("pool_duplicates", "Fragments that had been added", |p| p.counters.duplicates),
        ("pool_answered", "Of them, answered with the sum", |p| p.counters.answered),
    ];
    for (name, help, value) in of_pool {
        let each = snapshot.pools.iter().map(|p| (labels(&p.lease), value(p)));
        page.counters(name, help, each)?;
    }
    let each = snapshot.pools.iter().map(|p| (labels(&p.lease), p.slots.into()));
    page.gauges("pool_slots", "Slots of a pool", each)?;
    let each = snapshot.pools.iter().map(|p| (labels(&p.lease), p.in_kernel.into()));
    page.gauges("pool_in_kernel", "1 if the in-kernel switch serves the pool", each)
}

/// How late children are; of more than the controller takes, the first.
fn lateness(page: &mut Page<'_>, snapshot: &SwitchSnapshot) -> fmt::Result {
    let shown = &snapshot.children[..snapshot.children.len().min(LATENESS_MAX)];
    let labels = |child: &ChildSnapshot| {
        let LeaseKey { job, tree, .. } = child.lease;
        let (job, tree) = (job.to_string(), tree.to_string());
        vec![("job", job), ("tree", tree), ("child", child.address.to_string())]
    };
    histograms(page, shown.iter().map(|child| (labels(child), &child.lateness)))?;
    let last = shown.iter().map(|child| (labels(child), child.lateness.last));
    page.counters("child_last", "Fragments of which a child was the last", last)?;
    let seconds: [(&str, &str, Figure<Lateness>); 2] = [
        ("child_awaited_seconds", "Time during which others had to wait for a child", |l| {
            l.awaited_ns
        }),
        ("child_opening_seconds", "Of it, before the first packet of a burst", |l| l.opening_ns),
    ];
    for (name, help, value) in seconds {
        let each = |child: &ChildSnapshot| (labels(child), value(&child.lateness) as f64 / 1e9);
        page.seconds(name, help, shown.iter().map(each))?;
    }
    Ok(())
}

fn histograms<'a>(
    page: &mut Page<'_>,
    children: impl Iterator<Item = (Labels, &'a Lateness)>,
) -> fmt::Result {
    let help = "Time between the first arrival of a fragment and a child's";
    let kind = MetricType::Histogram;
    let mut metric = page.encoder.encode_descriptor("child_lateness_seconds", help, None, kind)?;
    for (labels, lateness) in children {
        Histogram(lateness).encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}

/// A child's histogram.
#[derive(Debug)]
struct Histogram<'a>(&'a Lateness);

impl EncodeMetric for Histogram<'_> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let counts = self.0.histogram.iter().enumerate();
        let buckets: Vec<(f64, u64)> = counts
            .map(|(i, &count)| {
                (Lateness::bound_ns(i).map_or(f64::INFINITY, |bound| bound as f64 / 1e9), count)
            })
            .collect();
        let sum = self.0.late_ns as f64 / 1e9;
        encoder.encode_histogram::<NoLabelSet>(sum, self.0.fragments(), &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}
