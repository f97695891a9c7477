//! Costs of messages between ranks: the values of the cost model, equal at all ranks.

use std::sync::Arc;

use serde::Serialize;

use crate::hosts::Hosts;

/// Parameters of the cost model; equal at all ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkCost {
    /// Number of ranks in the group.
    pub ranks: u32,
    /// Whether all ranks share memory.
    pub shared_memory: bool,
    /// Time from the call of a send to the end of the receive, for a small message.
    pub latency_s: f64,
    /// Rate of one rank in each direction, while all send.
    pub bytes_per_s: f64,
    /// By bit, from the lowest, the rate of a rank in each direction while every rank exchanges with the one whose
    /// number differs in that bit. Empty where no exchange is faster than all with all: no link is shared.
    pub by_distance: Vec<f64>,
    /// Costs between hosts, if some hosts have several ranks that share memory.
    pub across: Option<Across>,
}

impl LinkCost {
    /// Rate of a rank while each sends to the next one: of the ranks that share a link only the last one uses it.
    pub(crate) fn to_next_bytes_per_s(&self) -> f64 {
        *self.by_distance.first().unwrap_or(&self.bytes_per_s)
    }
}

/// Costs of messages between hosts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Across {
    /// The ranks that share memory.
    #[serde(serialize_with = "plain")]
    pub hosts: Arc<Hosts>,
    /// Like [`LinkCost::latency_s`], between lanes of different hosts.
    pub latency_s: f64,
    /// Like [`LinkCost::bytes_per_s`], of a lane while all lanes send to other hosts.
    pub bytes_per_s: f64,
}

fn plain<S: serde::Serializer>(hosts: &Arc<Hosts>, out: S) -> Result<S::Ok, S::Error> {
    serde::Serialize::serialize(hosts.as_ref(), out)
}

/// Latency and rate of a rank's messages; see [`crate::LinkCost`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pace {
    pub(crate) latency_s: f64,
    pub(crate) bytes_per_s: f64,
}

/// Measured costs of a group's messages.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Paces {
    /// Between any two ranks, while all send.
    pub(crate) all: Pace,
    /// As in [`LinkCost`].
    pub(crate) by_distance: Vec<f64>,
    /// Between hosts, while each lane sends to the corresponding lanes: [`crate::Across`].
    pub(crate) across: Pace,
}

impl Default for Paces {
    fn default() -> Paces {
        Paces { all: USUAL, by_distance: Vec::new(), across: USUAL }
    }
}

impl Paces {
    /// Costs in a group of `ranks` in which the ranks of each of `hosts` share memory; `None`: no ranks do.
    pub(crate) fn link(&self, ranks: u32, hosts: Option<&Arc<Hosts>>) -> LinkCost {
        let Paces { all: Pace { latency_s, bytes_per_s }, ref by_distance, across } = *self;
        let mixed = hosts.filter(|hosts| hosts.are_mixed());
        let across = mixed.map(|hosts| Across {
            hosts: hosts.clone(),
            latency_s: across.latency_s,
            bytes_per_s: across.bytes_per_s,
        });
        let shared_memory = hosts.is_some_and(|hosts| hosts.is_one());
        let by_distance = by_distance.clone();
        LinkCost { ranks, shared_memory, latency_s, bytes_per_s, by_distance, across }
    }
}

/// Costs of links that were not measured: one switch between ranks, 10 Gbit/s.
const USUAL: Pace = Pace { latency_s: 30e-6, bytes_per_s: 1.25e9 };
