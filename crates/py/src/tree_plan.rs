//! Builds a group's source of tree plans from Python's options.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use netsum_collective::planned::{LostLink, Origin, PlanSource};
use netsum_plan::pack::{Loss, Net, cost, replan};
use netsum_topo::links::{ImportOptions, LinkGraph, TreePlan, built, import};

/// Removes the options about a plan from `options`; `None` if there are none. Errors name the option.
pub(crate) fn source(options: &mut BTreeMap<String, String>) -> Result<Option<PlanSource>, String> {
    let mut take = |name: &str| options.remove(name);
    let settings =
        ["plan_topology", "plan_addresses", "plan_silence_s", "plan_measure", "plan_shares"]
            .map(&mut take);
    let [topology, addresses, silence, measure, shares] = settings;
    let mut source = match (take("plan").map(PathBuf::from), take("interfaces")) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => return Err("plan and interfaces are both set; leave out one".into()),
        (Some(file), None) => PlanSource::new(file),
        (None, Some(names)) => {
            let wrong = |problem| format!("interfaces={names}: {problem}");
            PlanSource::over_interfaces(&names).map_err(wrong)?
        }
    };
    source.measure = measure.is_some_and(|text| text == "1");
    if let Some(text) = shares {
        source.sharing = text.parse().map_err(|problem| format!("plan_shares: {problem}"))?;
    }
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
        source.min_bytes = Some(text.parse().map_err(wrong)?);
    }
    if let (Some(name), Origin::File(file)) = (topology, source.origin.clone()) {
        let graph = read(&name).map_err(|problem| format!("plan_topology={name}: {problem}"))?;
        let fabric = graph.clone();
        source.turn = Some(Arc::new(move |plan: &TreePlan| turn(&fabric, plan)));
        source.replan = Some(Arc::new(move |lost: &[LostLink]| new_plan(&graph, &file, lost)));
    }
    Ok(Some(source))
}

/// Parses `gpu1=10.78.0.1,pcie=10.79.0.2`.
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

/// The size from which a plan is faster than the hosts' exchange on the same links; the default size if the plan is not
/// for these links, which the operator may know better.
fn turn(graph: &LinkGraph, plan: &TreePlan) -> Option<u64> {
    let names: Vec<&String> = plan.gpus.iter().filter_map(|&gpu| plan.vertices.get(gpu)).collect();
    let graph = graph.select(&names).ok();
    let known = graph.as_ref().and_then(|graph| {
        let trees = cost::Trees::of_plan(graph, plan)?;
        Some((trees, Net::new(graph, false, false).ok()?))
    });
    known.map_or(Some(0), |(trees, net)| cost::turn(&trees, &cost::Exchange::new(&net)))
}

/// The best plan without the lost links, for the ranks of the plan in `file`, which is mended.
fn new_plan(graph: &LinkGraph, file: &Path, lost: &[LostLink]) -> Result<TreePlan, String> {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    let old: TreePlan = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let names: Vec<&String> = old.gpus.iter().filter_map(|&gpu| old.vertices.get(gpu)).collect();
    let graph = graph.select(&names).map_err(|error| error.to_string())?;
    let place = |name: &String| graph.vertices().iter().position(|vertex| vertex.name == *name);
    let known = |&[a, b]: &[usize; 2]| {
        graph.arcs().any(|(from, to, _)| (from, to) == (a, b) || (from, to) == (b, a))
    };
    let pairs = lost.iter().flat_map(|lost| lost.link.windows(2));
    // Lost peer links may share links.
    let ends = pairs.filter_map(|pair| {
        let (a, b) = (place(&pair[0])?, place(&pair[1])?);
        Some([a.min(b), a.max(b)])
    });
    let ends: BTreeSet<[usize; 2]> = ends.filter(known).collect();
    let losses: Vec<Loss> = ends.into_iter().map(Loss::Link).collect();
    let found = replan(&graph, &old, &losses).map_err(|error| error.to_string())?;
    Ok(found.packed.plan(&found.graph))
}
