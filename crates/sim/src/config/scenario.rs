//! Fault scenarios: a file names faults by the fabric's own names, so that the same file serves every way of running
//! the fabric.

use std::path::Path;

use netsum_topo::{Latency, NodeId, Topology};
use serde::{Deserialize, Serialize};

use super::Text;
use super::source::{ConfigError, Source, TOML_MAX, read};
use crate::faults::Fault;
use crate::routes::outgoing;

/// A scenario file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Description of the scenario.
    pub name: String,
    /// Time after a failure or a return until routes and trees follow.
    #[serde(default = "after")]
    pub converges_after: Text<Latency>,
    /// Faults, in any order.
    pub faults: Vec<FaultEvent>,
}

/// One fault, from `at` to `until` or to the end of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum FaultEvent {
    /// A link loses packets.
    Loss {
        /// "from>to" for one direction, "a-b" for both; absent: every link.
        link: Option<String>,
        /// Share of the packets; above 0, at most 1.
        share: f64,
        #[allow(missing_docs)]
        #[serde(default = "zero")]
        at: Text<Latency>,
        #[allow(missing_docs)]
        until: Option<Text<Latency>>,
    },
    /// A link corrupts packets. A checksum detects them and they are dropped; in a simulation this is loss.
    Corruption {
        /// As in `loss`.
        link: Option<String>,
        /// Share of the packets.
        share: f64,
        #[allow(missing_docs)]
        #[serde(default = "zero")]
        at: Text<Latency>,
        #[allow(missing_docs)]
        until: Option<Text<Latency>>,
    },
    /// A link loses certain packets.
    Drop {
        /// "from>to"; one fault of this kind per link.
        link: String,
        /// Numbers of the packets in the order in which they reach `to`, from 0; they ascend.
        packets: Vec<u64>,
    },
    /// A link is down.
    LinkDown {
        /// "a-b".
        link: String,
        #[allow(missing_docs)]
        at: Text<Latency>,
        #[allow(missing_docs)]
        until: Option<Text<Latency>>,
    },
    /// A switch fails, loses its memory, and returns with empty memory.
    SwitchDown {
        /// The switch's name.
        switch: String,
        #[allow(missing_docs)]
        at: Text<Latency>,
        #[allow(missing_docs)]
        until: Option<Text<Latency>>,
    },
    /// A host computes more slowly.
    Straggler {
        /// The host's name.
        host: String,
        /// Factor by which computing takes longer; at least 1.
        factor: f64,
        #[allow(missing_docs)]
        #[serde(default = "zero")]
        at: Text<Latency>,
        #[allow(missing_docs)]
        until: Option<Text<Latency>>,
    },
}

fn zero() -> Text<Latency> {
    Text(Latency(0))
}

/// Convergence time of a routing protocol in a small fabric.
fn after() -> Text<Latency> {
    Text(Latency(1_000_000))
}

/// Faults with their times, and the packets that links lose by number.
type Faults = (Vec<(u64, Fault)>, Vec<(u32, Vec<u64>)>);

/// Reads a file.
pub(super) fn load(path: &Path, topology: &Topology) -> Result<Faults, ConfigError> {
    let text = read(path, TOML_MAX)?;
    let file = path.display().to_string();
    let scenario: Scenario = super::source::from_toml(&text, &file)?;
    let source =
        Source { text: &text, file: &file, folder: path.parent().unwrap_or(Path::new(".")) };
    let mut faults = Faults::default();
    for (i, happens) in scenario.faults.iter().enumerate() {
        let reader = Reader {
            source: &source,
            topology,
            i,
            converges_ps: scenario.converges_after.0.0 * 1000,
        };
        reader.read(happens, &mut faults)?;
    }
    Ok(faults)
}

struct Reader<'a> {
    source: &'a Source<'a>,
    topology: &'a Topology,
    i: usize,
    converges_ps: u64,
}

impl Reader<'_> {
    fn read(&self, event: &FaultEvent, (faults, drops): &mut Faults) -> Result<(), ConfigError> {
        match event {
            FaultEvent::Loss { link, share, at, until }
            | FaultEvent::Corruption { link, share, at, until } => {
                if !(*share > 0.0 && *share <= 1.0) {
                    return Err(self.fail(
                        "share",
                        format!("a share of {share} is not above 0 and at most 1"),
                    ));
                }
                let [from, to] = self.span(at, until)?;
                for link in self.links(link.as_deref())? {
                    let loss = |over| Fault::Loss { link, share: *share, over };
                    faults.push((from, loss(false)));
                    faults.extend((to < u64::MAX).then_some((to, loss(true))));
                }
            }
            FaultEvent::Drop { link, packets } => {
                let &[number] = self.links(Some(link))?.as_slice() else {
                    return Err(self.fail("link", "name one direction as \"from>to\"".to_owned()));
                };
                if drops.iter().any(|(other, _)| *other == number) {
                    return Err(
                        self.fail("link", "list all packets of a link in one fault".to_owned())
                    );
                }
                if packets.is_empty() || packets.windows(2).any(|pair| pair[0] >= pair[1]) {
                    return Err(
                        self.fail("packets", "list numbers from 0 on that ascend".to_owned())
                    );
                }
                drops.push((number, packets.clone()));
            }
            FaultEvent::LinkDown { link, at, until } => {
                let edge = self.links(Some(link))?[0] / 2;
                self.dies(self.span(at, until)?, |alive| Fault::Edge { edge, alive }, faults);
            }
            FaultEvent::SwitchDown { switch, at, until } => {
                let node = self.topology.find(switch).filter(|&node| self.topology.is_switch(node));
                let node = node
                    .ok_or_else(|| self.fail("switch", format!("no switch is named {switch:?}")))?;
                self.dies(
                    self.span(at, until)?,
                    |alive| Fault::Switch { node: node.0, alive },
                    faults,
                );
            }
            FaultEvent::Straggler { host, factor, at, until } => {
                let node = self.topology.find(host).filter(|&node| !self.topology.is_switch(node));
                let host =
                    node.ok_or_else(|| self.fail("host", format!("no host is named {host:?}")))?.0;
                if !(*factor >= 1.0 && factor.is_finite()) {
                    return Err(self.fail(
                        "factor",
                        "a straggler takes at least as long as the others".to_owned(),
                    ));
                }
                let [from, to] = self.span(at, until)?;
                let straggler = |over| Fault::Straggler { host, factor: *factor, over };
                faults.push((from, straggler(false)));
                faults.extend((to < u64::MAX).then_some((to, straggler(true))));
            }
        }
        Ok(())
    }

    /// A failure, the return if there is one, and the convergence after each.
    fn dies(
        &self,
        [from, to]: [u64; 2],
        fault: impl Fn(bool) -> Fault,
        faults: &mut Vec<(u64, Fault)>,
    ) {
        faults.push((from, fault(false)));
        faults.push((from + self.converges_ps, Fault::Converge));
        if to < u64::MAX {
            faults.push((to, fault(true)));
            faults.push((to + self.converges_ps, Fault::Converge));
        }
    }

    fn span(
        &self,
        at: &Text<Latency>,
        until: &Option<Text<Latency>>,
    ) -> Result<[u64; 2], ConfigError> {
        let to = until.map_or(u64::MAX, |until| until.0.0 * 1000);
        if to <= at.0.0 * 1000 {
            return Err(self.fail("until", "it ends before it begins".to_owned()));
        }
        Ok([at.0.0 * 1000, to])
    }

    fn links(&self, link: Option<&str>) -> Result<Vec<u32>, ConfigError> {
        let Some(link) = link else {
            return Ok((0..2 * self.topology.edges().count() as u32).collect());
        };
        let one = link.split_once('>');
        let ends = one.or_else(|| link.split_once('-'));
        let ends = ends.and_then(|(a, b)| Some((self.topology.find(a)?, self.topology.find(b)?)));
        let edge =
            ends.and_then(|(a, b): (NodeId, NodeId)| Some((self.topology.edge_between(a, b)?, a)));
        let Some((edge, from)) = edge else {
            return Err(self.fail(
                "link",
                format!("no link {link:?}; write \"from>to\" or \"a-b\" with neighbours' names"),
            ));
        };
        Ok(match one {
            Some(_) => vec![outgoing(self.topology, edge.0, from)],
            None => vec![2 * edge.0, 2 * edge.0 + 1],
        })
    }

    fn fail(&self, field: &str, reason: String) -> ConfigError {
        self.source.invalid(&format!("faults.{}.{field}", self.i), reason)
    }
}
