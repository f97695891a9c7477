//! Runs tree plans between processes: one peer link per path to a neighbour, chunks in a pipeline.
//!
//! A [`PlannedGroup`] has a peer link for every path of its plan to a neighbouring rank: shared memory between
//! processes of one host, else TCP; the addresses of the [`Ports`] determine the physical links. Each receiver adds its
//! own values first, then its children in the order in which the plan names their paths, as [`netsum_wire::reduce`]
//! combines positions; a plan gives the same bits in every run, and all ranks get the root's. Shares of flows follow
//! the measured times if that does not change bits ([`Sharing`]). Plans that branch at switches are for
//! `netsum-switch`; switches that only forward are transparent. [`session`] manages a group's plan over time, including
//! lost links.

mod connect;
mod engine;
mod error;
mod measure;
mod networks;
mod peer_link;
mod pipeline;
mod routes;
pub(crate) mod session;
mod shares;
mod source;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use netsum_topo::links::{Collective, TreePlan};
use netsum_wire::{Dtype, Format, ReduceOp};

pub(crate) use peer_link::check_header;

pub use connect::{PortAddress, Ports};
pub use error::{LostLink, PlannedError};
pub use measure::Measured;
pub use shares::Sharing;
pub use source::{Origin, PlanSource, Replan, Turn};

use connect::{Connecting, link_names};
use engine::{Engine, Fault, PlannedOperation};
use peer_link::{LinkEvent, LinkLoss, PeerLink};
use pipeline::Pipeline;
use routes::Routes;
use shares::Shares;

/// One rank's part in a plan, connected to its neighbours.
pub struct PlannedGroup {
    collective: Collective,
    ranks: usize,
    rank: usize,
    names: Vec<String>,
    gpus: Vec<usize>,
    routes: Routes,
    pipeline: Pipeline,
    shares: Shares,
    peer_links: Vec<PeerLink>,
    news: Receiver<LinkEvent>,
    /// Messages for the next operation from neighbours that are ahead: few, because they wait for this rank.
    early: VecDeque<LinkEvent>,
    /// By peer link the measured values, if requested.
    measured: Vec<Measured>,
    /// By peer link the reason of its loss.
    lost: BTreeMap<usize, LinkLoss>,
    operation: u64,
    timeout: Duration,
}

/// Why an operation ended early, and its results so far.
pub(crate) struct Stopped {
    pub(crate) error: PlannedError,
    /// Elements that have all contributions, as ordered disjoint ranges.
    pub(crate) finals: Vec<Range<usize>>,
    /// Ranks whose messages were awaited: those that have not called, if there are any among the neighbours.
    pub(crate) missing_peers: Vec<usize>,
    /// Whether these ranks have not called.
    pub(crate) direct: bool,
}

/// Settings for connecting a group.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Time-out for connecting.
    pub connect: Duration,
    /// Maximum time without messages in an operation.
    pub timeout: Duration,
    /// A link that accepts no data, or does not answer, for this long is lost.
    pub silence: Duration,
    /// Whether links are measured first: the same at all ranks.
    pub measure: bool,
    /// Whether shares follow the flows' times: the same at all ranks.
    pub sharing: Sharing,
}

impl PlannedGroup {
    /// Connects to all neighbours: to lower ranks at their addresses, from higher ones through `ports`.
    ///
    /// `epoch`: neighbours of another epoch are refused. Errors: [`PlannedError::Plan`], [`PlannedError::Unreachable`].
    pub fn connect(
        plan: &TreePlan,
        rank: usize,
        ports: &Ports,
        peers: &BTreeMap<usize, PortAddress>,
        epoch: u64,
        patience: Patience,
    ) -> Result<PlannedGroup, PlannedError> {
        let routes = Routes::of_rank(plan, rank)?;
        let Patience { connect: timeout, silence, .. } = patience;
        let (peer_links, names, gpus) = (&routes.peer_links, &plan.vertices, &plan.gpus);
        let pipeline = Pipeline::of(plan);
        let connecting = Connecting {
            rank,
            peer_links,
            bytes_per_s: &routes.bytes_per_s,
            names,
            gpus,
            ports,
            peers,
            epoch,
            timeout,
            silence,
            unsent_bytes: pipeline.unsent_bytes(),
        };
        let connections = connecting.run()?;
        let measured =
            if patience.measure { connecting.measure(&connections)? } else { Vec::new() };
        let (news, receiver) = crossbeam_channel::bounded(EVENTS_MAX);
        let start = |(place, connection)| PeerLink::new(place, connection, news.clone());
        let peer_links: Result<Vec<PeerLink>, _> =
            connections.into_iter().enumerate().map(start).collect();
        Ok(PlannedGroup {
            collective: plan.collective,
            ranks: plan.gpus.len(),
            rank,
            names: plan.vertices.clone(),
            gpus: plan.gpus.clone(),
            routes,
            pipeline,
            shares: Shares::of(plan, patience.sharing),
            peer_links: peer_links.map_err(|error| PlannedError::Thread(error.to_string()))?,
            news: receiver,
            early: VecDeque::new(),
            measured,
            lost: BTreeMap::new(),
            operation: 0,
            timeout: patience.timeout,
        })
    }

    /// Runs the plan's collective on `buffer`, in place: all ranks with the same length, type and `chunks`.
    ///
    /// The buffer is the whole one, of all shards for all-gather and reduce-scatter (shard r is elements n·r/N to
    /// n·(r+1)/N, with the caller's shard at its position). A reduce or a reduce-scatter leaves everything but its
    /// result unchanged. Partial sums of 16-bit floats are rounded at each hop. `chunks`: number of chunks of every
    /// flow in the pipeline, at least 1; `None`: the best number by the plan's rate. Returns when all ranks have their
    /// results. Errors leave the buffer undefined and the group unusable.
    pub fn run(
        &mut self,
        buffer: &mut [u8],
        dtype: Dtype,
        op: ReduceOp,
        chunks: Option<usize>,
    ) -> Result<(), PlannedError> {
        if !buffer.len().is_multiple_of(dtype.size()) {
            return Err(PlannedError::Size { bytes: buffer.len(), element: dtype.size() });
        }
        let fingerprint = fingerprint(buffer.len(), dtype, op, chunks);
        let format = Format { dtype, op };
        let operation = PlannedOperation { number: self.operation + 1, fingerprint, format };
        self.perform(operation, buffer, chunks, &|| false).map_err(|stopped| stopped.error)
    }

    /// Runs one operation until it completes, fails, or is `interrupted`.
    fn perform(
        &mut self,
        operation: PlannedOperation,
        buffer: &mut [u8],
        chunks: Option<usize>,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<(), Box<Stopped>> {
        let elements = buffer.len() / operation.format.dtype.size();
        let spans = self.shares.spans(self.collective, self.ranks, &self.routes.flows, elements);
        self.operation = operation.number;
        let longest = spans.iter().map(Range::len).max().unwrap_or(0);
        let chunks = chunks.unwrap_or_else(|| {
            let longest = longest * operation.format.dtype.size();
            self.pipeline.chunks(buffer.len(), longest)
        });
        let chunks = chunks.max(1);
        let (routes, peer_links, shares) = (&self.routes, &self.peer_links, &self.shares);
        let mut engine = Engine::new(routes, spans, peer_links, buffer, chunks, operation, shares);
        let mut event_loop = EventLoop {
            news: &self.news,
            early: &mut self.early,
            lost: &mut self.lost,
            timeout: self.timeout,
            number: operation.number,
        };
        let outcome = event_loop.drive(&mut engine, interrupted);
        let next = engine.next_shares();
        let (finals, absent) = (engine.finals(), engine.absent());
        let direct = !absent.is_empty();
        let missing_peers: Vec<usize> =
            if direct { absent } else { engine.expected_senders().into_iter().collect() };
        let mut missing_peers: Vec<usize> =
            missing_peers.iter().map(|&l| self.routes.peer_links[l].peer).collect();
        missing_peers.dedup();
        if outcome.is_ok() && !next.is_empty() {
            self.shares.adopt(next).expect("the engine has checked them");
            tracing::debug!(shares = ?self.shares.parts(), "shares have moved");
        }
        outcome.map_err(|stop| {
            let error = self.explain(stop, &missing_peers);
            Box::new(Stopped { error, finals, missing_peers, direct })
        })
    }

    /// Ends all peer links at once.
    pub(crate) fn abandon(&self) {
        self.peer_links.iter().for_each(PeerLink::abandon);
    }

    /// Links that are dead.
    pub(crate) fn lost(&self) -> Vec<LostLink> {
        let dead = self.lost.iter().filter(|(_, loss)| loss.dead);
        let link = |(&peer_link, loss): (&usize, &LinkLoss)| LostLink {
            link: self.link(peer_link),
            reason: loss.reason.clone(),
        };
        dead.map(link).collect()
    }

    /// The links of each peer link, as names of its vertices, and the measured values if requested.
    pub fn measured(&self) -> Vec<(Vec<String>, Measured)> {
        self.measured
            .iter()
            .enumerate()
            .map(|(peer_link, &found)| (self.link(peer_link), found))
            .collect()
    }

    /// The share of the buffer of each flow, in the order of the plan.
    pub fn shares(&self) -> Vec<f64> {
        self.shares.parts()
    }

    /// Neighbour and medium of each peer link.
    pub fn peer_links(&self) -> Vec<(usize, &'static str)> {
        let keys = self.routes.peer_links.iter().zip(&self.peer_links);
        keys.map(|(key, peer_link)| (key.peer, peer_link.medium())).collect()
    }

    fn link(&self, peer_link: usize) -> Vec<String> {
        link_names(&self.names, &self.gpus, self.rank, &self.routes.peer_links[peer_link])
    }

    fn explain(&self, stop: Stop, missing_peers: &[usize]) -> PlannedError {
        let rank = |peer_link: usize| self.routes.peer_links[peer_link].peer;
        match stop {
            Stop::Lost { peer_link, reason } => {
                PlannedError::PeerLost { rank: rank(peer_link), link: self.link(peer_link), reason }
            }
            Stop::Fault { peer_link, fault: Fault::Differs } => {
                PlannedError::Differs { rank: rank(peer_link) }
            }
            Stop::Fault { peer_link, fault: Fault::Odd(what) } => {
                PlannedError::Odd { rank: rank(peer_link), what }
            }
            Stop::Silence => {
                let within_s = self.timeout.as_secs_f64();
                PlannedError::Timeout { within_s, ranks: missing_peers.to_vec() }
            }
            Stop::Interrupted => PlannedError::Interrupted,
        }
    }
}

/// Why [`EventLoop::drive`] ended early; peer links by index.
enum Stop {
    Lost { peer_link: usize, reason: String },
    Fault { peer_link: usize, fault: Fault },
    Silence,
    Interrupted,
}

/// Receives the events of peer links during one operation.
struct EventLoop<'a> {
    news: &'a Receiver<LinkEvent>,
    early: &'a mut VecDeque<LinkEvent>,
    lost: &'a mut BTreeMap<usize, LinkLoss>,
    timeout: Duration,
    number: u64,
}

impl EventLoop<'_> {
    fn drive(
        &mut self,
        engine: &mut Engine<'_>,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<(), Stop> {
        let lost = self.lost.iter().next();
        if let Some((&peer_link, loss)) = lost {
            return Err(Stop::Lost { peer_link, reason: loss.reason.clone() });
        }
        engine.start();
        for news in std::mem::take(self.early) {
            self.take(engine, news)?;
        }
        let mut silent_since = Instant::now();
        while !engine.over() {
            if interrupted() {
                return Err(Stop::Interrupted);
            }
            // Retries soon if some chunks could not begin because peer links were full.
            let patience = if engine.all_begun() { TICK } else { FULL_LINKS };
            match self.news.recv_timeout(patience) {
                Ok(news) => {
                    silent_since = Instant::now();
                    self.take(engine, news)?;
                }
                Err(_) if silent_since.elapsed() >= self.timeout => {
                    return Err(Stop::Silence);
                }
                Err(_) => engine.go_on(),
            }
        }
        Ok(())
    }

    fn take(&mut self, engine: &mut Engine<'_>, news: LinkEvent) -> Result<(), Stop> {
        let peer_link = news.peer_link;
        match news.what {
            Ok(message) if message.operation == self.number => engine
                .take(peer_link, message.body)
                .map_err(|fault| Stop::Fault { peer_link, fault }),
            Ok(message) if message.operation > self.number => {
                if self.early.len() >= EARLY_MAX {
                    let fault = Fault::Odd("too much for operations to come");
                    return Err(Stop::Fault { peer_link, fault });
                }
                self.early.push_back(LinkEvent { peer_link, what: Ok(message) });
                Ok(())
            }
            // A message of an operation that ended early.
            Ok(_) => Ok(()),
            Err(loss) => {
                let reason = loss.reason.clone();
                // The first to break is the cause.
                self.lost.entry(peer_link).or_insert(loss);
                // A neighbour that has delivered all its messages may have completed and left.
                if engine.expects_messages(peer_link) {
                    Err(Stop::Lost { peer_link, reason })
                } else {
                    Ok(())
                }
            }
        }
    }
}

/// FNV-1a of everything that must be equal at all ranks.
fn fingerprint(bytes: usize, dtype: Dtype, op: ReduceOp, chunks: Option<usize>) -> u32 {
    let words = format!("{bytes} {dtype} {} {chunks:?}", op.name());
    let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    words.bytes().fold(0x811c_9dc5, step)
}

/// Delay until an interruption is noticed while no messages arrive.
const TICK: Duration = Duration::from_millis(20);
const FULL_LINKS: Duration = Duration::from_millis(1);
/// Maximum number of chunks that wait for the engine; beyond, the peer links apply back-pressure.
const EVENTS_MAX: usize = 256;
/// Maximum number of messages of neighbours that are ahead: one each, and those of an epoch's last operation.
const EARLY_MAX: usize = 4096;
