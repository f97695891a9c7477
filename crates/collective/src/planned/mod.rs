//! Runs tree plans between processes: one connection per neighbour, chunks in a pipeline.
//!
//! A [`PlannedGroup`] has a lane (a TCP connection) to every rank that its plan makes it a neighbour of;
//! which link a lane takes is up to the addresses that it is given. Sums are added by each receiver in the
//! order of its children in the plan, so a plan gives the same bits in every run, and all ranks the
//! root's. Plans that branch at switches are for `netsum-switch`; switches that only pass are the
//! network's business.

mod engine;
mod lane;
mod routes;

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use netsum_topo::links::{Collective, TreePlan};
use netsum_wire::{Dtype, Format, ReduceOp};

use engine::Engine;
use lane::{Lane, News};
use routes::Route;

/// Why a plan could not be run.
#[derive(Debug, thiserror::Error)]
pub enum PlannedError {
    /// A plan that is not for this executor.
    #[error("the plan cannot be run: {0}")]
    Plan(String),
    /// A neighbour that could not be reached, or did not come.
    #[error("rank {rank} could not be reached at {address} within {within_s} s: {reason}")]
    Unreachable {
        /// The neighbour.
        rank: usize,
        /// Where it should be.
        address: String,
        /// How long was tried.
        within_s: f64,
        /// The last reason.
        reason: String,
    },
    /// A neighbour whose connection ended.
    #[error("rank {rank} is gone: {reason}")]
    PeerLost {
        /// The neighbour.
        rank: usize,
        /// What the connection said.
        reason: String,
    },
    /// A neighbour that is silent.
    #[error("nothing came within {within_s} s; awaited: rank {awaited}")]
    Timeout {
        /// The timeout.
        within_s: f64,
        /// Ranks that still owe something.
        awaited: String,
    },
    /// A buffer that cannot be used.
    #[error("a buffer of {bytes} bytes is no whole number of elements of {element} bytes")]
    Size {
        /// Its length.
        bytes: usize,
        /// Size of an element.
        element: usize,
    },
}

/// One rank's part in a plan, connected to its neighbours.
pub struct PlannedGroup {
    collective: Collective,
    ranks: usize,
    routes: Vec<Route>,
    shares: Vec<(i128, i128)>,
    lanes: BTreeMap<usize, Lane>,
    news: Receiver<News>,
    /// What neighbours that are ahead sent for operations to come.
    early: Vec<News>,
    operation: u64,
    timeout: Duration,
}

impl PlannedGroup {
    /// Connects to all neighbours: to lower ranks at `addresses`, from higher ones through `listener`.
    ///
    /// `timeout`: for connecting, and in each operation for the longest silence. Errors:
    /// [`PlannedError::Plan`], [`PlannedError::Unreachable`].
    pub fn connect(
        plan: &TreePlan,
        rank: usize,
        listener: &TcpListener,
        addresses: &BTreeMap<usize, SocketAddr>,
        timeout: Duration,
    ) -> Result<PlannedGroup, PlannedError> {
        let routes = routes::of_rank(plan, rank)?;
        let (news, receiver): (Sender<News>, Receiver<News>) = crossbeam_channel::bounded(NEWS_MAX);
        let neighbours = routes.iter().flat_map(Route::neighbours).collect();
        let deadline = Instant::now() + timeout;
        let streams = lane::connect(rank, &neighbours, listener, addresses, deadline, timeout)?;
        let mut lanes = BTreeMap::new();
        for (peer, stream) in streams {
            let lane = Lane::new(peer, stream, news.clone(), timeout).map_err(|error| {
                PlannedError::PeerLost { rank: peer, reason: error.to_string() }
            })?;
            lanes.insert(peer, lane);
        }
        Ok(PlannedGroup {
            collective: plan.collective,
            ranks: plan.gpus.len(),
            routes,
            shares: plan.flows.iter().map(|flow| (flow.share.num(), flow.share.den())).collect(),
            lanes,
            news: receiver,
            early: Vec::new(),
            operation: 0,
            timeout,
        })
    }

    /// Runs the plan's collective on `buffer`, in place: all ranks with the same length, type and `chunks`.
    ///
    /// The buffer is the whole one, of all shards for all-gather and reduce-scatter (shard r is elements
    /// n·r/N to n·(r+1)/N, and the caller's is in its place). What a reduce or a reduce-scatter leaves
    /// outside of its result is partial sums. Partial sums of 16-bit floats are rounded at each hop.
    /// `chunks`: pieces of every flow in the pipeline, at least 1.
    /// Errors leave the buffer undefined and the group unusable.
    pub fn run(
        &mut self,
        buffer: &mut [u8],
        dtype: Dtype,
        op: ReduceOp,
        chunks: usize,
    ) -> Result<(), PlannedError> {
        if !buffer.len().is_multiple_of(dtype.size()) {
            return Err(PlannedError::Size { bytes: buffer.len(), element: dtype.size() });
        }
        let spans = routes::spans(
            self.collective,
            self.ranks,
            &self.shares,
            &self.routes,
            buffer.len() / dtype.size(),
        );
        self.operation += 1;
        let mut engine = Engine::new(
            &self.routes,
            spans,
            &self.lanes,
            buffer,
            Format { dtype, op },
            chunks.max(1),
            self.operation,
        );
        engine.start();
        let (now, later): (Vec<News>, Vec<News>) =
            self.early.drain(..).partition(|news| news.operation() == Some(self.operation));
        self.early = later;
        for news in now {
            engine.take(news)?;
        }
        let mut silent_since = Instant::now();
        while !engine.done() {
            // What could not be begun because lanes were full is tried again soon.
            let patience = if engine.all_begun() { self.timeout } else { FULL_LANES };
            let Ok(news) = self.news.recv_timeout(patience) else {
                if silent_since.elapsed() >= self.timeout {
                    let within_s = self.timeout.as_secs_f64();
                    return Err(PlannedError::Timeout { within_s, awaited: engine.awaited() });
                }
                engine.start();
                continue;
            };
            silent_since = Instant::now();
            match news.operation() {
                Some(operation) if operation > self.operation => self.early.push(news),
                _ => engine.take(news)?,
            }
        }
        Ok(())
    }
}

const FULL_LANES: Duration = Duration::from_millis(1);
/// Chunks that wait for the engine; beyond, TCP holds the senders back.
const NEWS_MAX: usize = 256;
