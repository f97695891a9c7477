//! A group's tree plan, from the options by which Python names it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use netsum_collective::planned::{LostLink, PlanSource};
use netsum_plan::pack::pack;
use netsum_topo::links::{Collective, ImportOptions, LinkGraph, TreePlan, built, import};

/// Takes the options about a plan out of `options`; `None` if there is none. Errors name the option.
pub(crate) fn source(options: &mut BTreeMap<String, String>) -> Result<Option<PlanSource>, String> {
    let mut take = |name: &str| options.remove(name);
    let settings =
        ["plan_topology", "plan_addresses", "plan_silence_s", "plan_measure"].map(&mut take);
    let Some(file) = take("plan") else { return Ok(None) };
    let [topology, addresses, silence, measure] = settings;
    let mut source = PlanSource::new(PathBuf::from(file));
    source.measure = measure.is_some_and(|text| text == "1");
    if let Some(text) = addresses {
        source.ways = ways(&text).map_err(|problem| format!("plan_addresses={text}: {problem}"))?;
    }
    if let Some(text) = silence {
        let seconds = text.parse().ok().filter(|s: &f64| (1.0..1e6).contains(s));
        let seconds = seconds.ok_or_else(|| format!("plan_silence_s={text}: at least 1 second"))?;
        source.silence = Duration::from_secs_f64(seconds);
    }
    if let Some(text) = options.get("min_bytes") {
        let wrong = |_| format!("min_bytes={text}: use a number of bytes");
        source.min_bytes = text.parse().map_err(wrong)?;
    }
    if let Some(name) = topology {
        let graph = read(&name).map_err(|problem| format!("plan_topology={name}: {problem}"))?;
        let file = source.file.clone();
        source.replan = Some(Arc::new(move |lost: &[LostLink]| replan(&graph, &file, lost)));
    }
    Ok(Some(source))
}

/// `gpu1=10.78.0.1,pcie=10.79.0.2`
fn ways(text: &str) -> Result<BTreeMap<String, IpAddr>, String> {
    let one = |word: &str| {
        let (name, address) = word.split_once('=').ok_or("use NEIGHBOUR=ADDRESS,…")?;
        let ip = address.trim().parse().map_err(|_| format!("{address:?} is no IP address"))?;
        Ok((name.trim().to_owned(), ip))
    };
    text.split(',').filter(|word| !word.trim().is_empty()).map(one).collect()
}

fn read(name: &str) -> Result<LinkGraph, String> {
    let path = Path::new(name);
    if path.extension().is_none() && !path.exists() {
        return built(name).map_err(|error| error.to_string());
    }
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    import(&text, name, None, &ImportOptions::default()).map_err(|error| error.to_string())
}

/// The best plan without the lost links, for the ranks of the plan in `file`.
fn replan(graph: &LinkGraph, file: &Path, lost: &[LostLink]) -> Result<TreePlan, String> {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    let old: TreePlan = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let names: Vec<&String> = old.gpus.iter().filter_map(|&gpu| old.vertices.get(gpu)).collect();
    let is_lost = |a: &str, b: &str| {
        let pairs = lost.iter().flat_map(|lost| lost.link.windows(2));
        pairs.into_iter().any(|pair| pair == [a, b] || pair == [b, a])
    };
    let vertices = graph.vertices().to_vec();
    let name = |end: usize| vertices[end].name.as_str();
    let links = graph.links().iter().copied();
    let links = links.filter(|link| !is_lost(name(link.ends[0]), name(link.ends[1]))).collect();
    let rest = LinkGraph::new(graph.name(), vertices.clone(), links);
    let rest = rest.and_then(|rest| rest.select(&names)).map_err(|error| error.to_string())?;
    let packed = pack(&rest, Collective::Allreduce).map_err(|error| error.to_string())?;
    Ok(packed.plan(&rest))
}
