//! The two formats of metrics: OpenMetrics, which the registry writes, and Prometheus's text format for all other readers.

use std::collections::HashSet;

/// Content type of OpenMetrics.
pub(crate) const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Content type of Prometheus's text format.
pub(crate) const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Whether a reader takes OpenMetrics, by the head of its request. One that names no formats takes it, too.
pub(crate) fn takes_openmetrics(request: &str) -> bool {
    let accept = request.lines().skip(1).find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("accept").then(|| value.to_ascii_lowercase())
    });
    accept.is_none_or(|value| value.contains("application/openmetrics-text"))
}

/// A page of OpenMetrics in Prometheus's text format 0.0.4: there a counter has one name, with `_total`, and a page has no
/// end mark.
pub(crate) fn as_text(openmetrics: &str) -> String {
    let counters: HashSet<&str> = openmetrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let mut page = String::with_capacity(openmetrics.len() + 8 * counters.len());
    for line in openmetrics.lines().filter(|line| *line != "# EOF") {
        match described(line).filter(|(_, name, _)| counters.contains(name)) {
            Some((what, name, rest)) => page.extend([what, name, "_total ", rest]),
            None => page.push_str(line),
        }
        page.push('\n');
    }
    page
}

/// A line about a metric: what it says, the metric's name, and the rest.
fn described(line: &str) -> Option<(&str, &str, &str)> {
    let what = ["# HELP ", "# TYPE "].into_iter().find(|what| line.starts_with(what))?;
    let (name, rest) = line[what.len()..].split_once(' ')?;
    Some((what, name, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_one_name_in_the_text_format() {
        let openmetrics = "# HELP a_packets Packets of a\n# TYPE a_packets counter\na_packets_total{s=\"# EOF\"} 3\n\
                           # HELP a_slots Slots\n# TYPE a_slots gauge\na_slots 5\n# EOF\n";
        let text = "# HELP a_packets_total Packets of a\n# TYPE a_packets_total counter\na_packets_total{s=\"# EOF\"} 3\n\
                    # HELP a_slots Slots\n# TYPE a_slots gauge\na_slots 5\n";
        assert_eq!(as_text(openmetrics), text);
        assert_eq!(as_text(""), "");
    }

    #[test]
    fn the_reader_chooses_the_format() {
        let request = |fields: &str| format!("GET /metrics HTTP/1.1\r\nHost: x\r\n{fields}\r\n");
        let prometheus =
            "accept: application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5\r\n";
        assert!(takes_openmetrics(&request(prometheus)));
        assert!(takes_openmetrics(&request("")));
        assert!(!takes_openmetrics(&request("Accept: */*\r\n")));
        assert!(!takes_openmetrics(&request("ACCEPT: text/plain\r\n")));
    }
}
