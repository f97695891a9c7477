//! The switch's figures as Prometheus metrics, read off the driver at each scrape.

use std::fmt;
use std::sync::Arc;

use netsum_net::switch::{SwitchDriver, SwitchSnapshot, TreeSnapshot};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// Text in the OpenMetrics format, made at each call.
pub(crate) struct Metrics {
    registry: Registry,
}

#[derive(Debug)]
struct SwitchCollector {
    driver: Arc<SwitchDriver>,
}

type Figure = fn(&TreeSnapshot) -> u64;
type Labels = Vec<(&'static str, String)>;

impl Metrics {
    /// Metrics of one switch, all labelled with its name.
    pub(crate) fn new(name: &str, driver: Arc<SwitchDriver>) -> Metrics {
        let labels = [("switch".into(), name.to_owned().into())];
        let mut registry = Registry::with_prefix_and_labels("netsum_switch", labels.into_iter());
        registry.register_collector(Box::new(SwitchCollector { driver }));
        Metrics { registry }
    }

    /// The text; `None` once the data thread has died.
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
        memory(&mut page, &snapshot)?;
        trees(&mut page, &snapshot.trees)
    }
}

/// Writes metrics one after the other.
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
    page.seconds("cpu_seconds", "Processor time of the data thread", cpu)
}

fn memory(page: &mut Page<'_>, snapshot: &SwitchSnapshot) -> fmt::Result {
    let one = |value: u64| std::iter::once((Vec::new(), value));
    let buffer = snapshot.socket.recv_buffer as u64;
    page.gauges("memory_used_bytes", "Aggregation memory in use", one(snapshot.memory_used))?;
    page.gauges("memory_limit_bytes", "Aggregation memory", one(snapshot.memory_limit))?;
    page.gauges("receive_buffer_bytes", "Socket buffer that the system gave", one(buffer))?;
    page.gauges("leases", "Leases at work", one(snapshot.trees.len() as u64))
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
