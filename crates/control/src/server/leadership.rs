//! A controller that shares its store with others: it stands for election, and leads when it has won.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netsum_topo::Fabric;
use tokio::net::TcpStream;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tonic::Response;
use tonic::transport::Channel;

use super::actor;
use super::election_state::{ElectionState, LeaderState};
use super::owner::Owner;
use super::status_cache::StatusCache;
use crate::client::{ControllerEndpoint, connect};
use crate::decide::Settings;
use crate::election::{Answer, Candidate, Record, Step};
use crate::engine::Engine;
use crate::error::ControlError;
use crate::pb;
use crate::pb::controller_client::ControllerClient;
use crate::pb::store::Leader;
use crate::security::Security;
use crate::store::{CallError, Cluster, EtcdStore, Observed, OwnRecord, Store};

/// What a term needs besides its store.
#[derive(Debug, Clone)]
pub(super) struct TermConfig {
    pub fabric: Fabric,
    pub settings: Settings,
    /// Where clients and other controllers reach this one.
    pub address: String,
    pub security: Security,
}

/// A controller that stands for election.
pub(super) struct Leadership {
    config: TermConfig,
    cluster: Cluster,
    election: watch::Sender<ElectionState>,
    candidate: Candidate,
    start: Instant,
    /// What the last look has seen.
    seen: Observed,
    /// The own record, of the present term or of the last one.
    own: Option<OwnRecord>,
    /// The connection to the leader, for probes.
    probed: Option<(String, ControllerClient<Channel>)>,
    term: Option<Term>,
    /// Whether the silence of the store was logged.
    silent: bool,
}

/// A term of this controller.
struct Term {
    number: u64,
    quit: oneshot::Sender<()>,
    ended: JoinHandle<()>,
}

impl Leadership {
    pub fn new(
        config: TermConfig,
        cluster: Cluster,
        election: watch::Sender<ElectionState>,
    ) -> Leadership {
        Leadership {
            candidate: Candidate::new(config.address.clone(), 0),
            config,
            cluster,
            election,
            start: Instant::now(),
            seen: Observed::default(),
            own: None,
            probed: None,
            term: None,
            silent: false,
        }
    }

    /// Leads and follows until it is told to quit; then another controller may lead at once.
    pub async fn run(mut self, mut quit: oneshot::Receiver<()>) {
        loop {
            let turn = async {
                self.turn().await;
                self.apply_election().await;
            };
            tokio::select! {
                () = turn => {}
                _ = &mut quit => break,
            }
        }
        if self.end_term().await {
            self.resign().await;
        }
    }

    /// Takes the next step when it is due, or notices the end of the own term.
    async fn turn(&mut self) {
        let now_ms = self.now_ms();
        if let Some(step) = self.candidate.poll(now_ms) {
            let answer = self.take(step).await;
            let now_ms = self.now_ms();
            self.candidate.answer(now_ms, answer);
            return;
        }
        let due_ms = self.candidate.due_ms().unwrap_or(now_ms);
        let pause = tokio::time::sleep(Duration::from_millis(due_ms.saturating_sub(now_ms)));
        match &mut self.term {
            None => pause.await,
            Some(term) => tokio::select! {
                () = pause => {}
                _ = &mut term.ended => {
                    let number = term.number;
                    self.term = None;
                    tracing::warn!(term = number, "this controller leads no longer");
                    self.resign().await;
                    let now_ms = self.now_ms();
                    self.candidate.step_down(now_ms);
                }
            },
        }
    }

    async fn take(&mut self, step: Step) -> Answer {
        match step {
            Step::Look => {
                let seen = self.cluster.observe(LOOK_PATIENCE).await;
                self.heard(seen).map_or(Answer::Silent, |seen| {
                    let (leader, revision) = (seen.leader.clone(), seen.leader_revision);
                    self.seen = seen;
                    let record = |Leader { address, term, .. }| Record { address, term, revision };
                    Answer::Looked(leader.map(record))
                })
            }
            Step::Probe { address, term } => self.probe(address, term).await,
            Step::Campaign => {
                let address = &self.config.address;
                let won = self.cluster.campaign(address, &self.seen, LOOK_PATIENCE).await;
                match self.heard(won) {
                    Some(Some(own)) => {
                        let term = own.term();
                        self.own = Some(own);
                        Answer::Won(term)
                    }
                    Some(None) => Answer::Lost,
                    None => Answer::Silent,
                }
            }
            Step::Renew => {
                let Some(own) = &self.own else { return Answer::Expired };
                let renewed = self.cluster.renew(own, LOOK_PATIENCE).await;
                match self.heard(renewed) {
                    Some(Some(own)) => {
                        self.own = Some(own);
                        Answer::Renewed
                    }
                    Some(None) => Answer::Expired,
                    None => Answer::Silent,
                }
            }
        }
    }

    /// Asks the leader whether it leads.
    async fn probe(&mut self, address: String, term: u64) -> Answer {
        let asked = tokio::time::timeout(PROBE_PATIENCE, self.ask_leader(&address)).await;
        match asked {
            Ok(Ok(reply)) if reply.term >= term => Answer::Leads,
            Ok(Ok(_)) => Answer::Gone,
            Ok(Err(_)) | Err(_) => {
                self.probed = None;
                let connected = TcpStream::connect(&address);
                match tokio::time::timeout(PROBE_PATIENCE, connected).await {
                    Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => Answer::Gone,
                    _ => Answer::Silent,
                }
            }
        }
    }

    async fn ask_leader(&mut self, address: &str) -> Result<pb::LeaderReply, ControlError> {
        let endpoint = ControllerEndpoint::new(address, self.config.security.clone());
        let client = match self.probed.take() {
            Some((probed, client)) if probed == address => client,
            _ => connect(&endpoint).await?,
        };
        let (_, client) = self.probed.insert((address.to_owned(), client));
        let reply = client.leader(pb::LeaderRequest {}).await;
        reply.map(Response::into_inner).map_err(|status| ControlError::Refused {
            address: address.to_owned(),
            call: "Leader",
            reason: status.message().to_owned(),
        })
    }

    /// The answer of the store. Its silence is logged, and its end.
    fn heard<T>(&mut self, answer: Result<T, CallError>) -> Option<T> {
        match answer {
            Ok(answer) => {
                if std::mem::take(&mut self.silent) {
                    tracing::info!(store = self.cluster.place(), "the store answers again");
                }
                Some(answer)
            }
            Err(problem) => {
                if !std::mem::replace(&mut self.silent, true) {
                    let store = self.cluster.place();
                    tracing::error!(store, %problem, "the store does not answer; trying again");
                }
                None
            }
        }
    }

    /// Begins or ends the own term as the election says, and tells the handlers who leads.
    async fn apply_election(&mut self) {
        let number = self.candidate.term();
        if self.term.as_ref().is_some_and(|term| Some(term.number) != number) {
            self.end_term().await;
        }
        match (number, &self.term) {
            (Some(_), Some(_)) => {}
            (Some(number), None) => {
                tracing::info!(term = number, "this controller leads");
                self.election.send_replace(ElectionState::Taking(number));
                let (quit, quitting) = oneshot::channel();
                let leader_state = lead(
                    self.config.clone(),
                    self.cluster.clone(),
                    number,
                    self.election.clone(),
                    quitting,
                );
                self.term = Some(Term { number, quit, ended: tokio::spawn(leader_state) });
            }
            (None, _) => {
                let leader = self.candidate.leader().map(str::to_owned);
                self.election.send_if_modified(|election| {
                    let same =
                        matches!(election, ElectionState::Following { leader: known } if *known == leader);
                    if !same {
                        tracing::info!(leader = leader.as_deref().unwrap_or("none"), "follows");
                        *election = ElectionState::Following { leader };
                    }
                    !same
                });
            }
        }
    }

    /// Lets another controller lead at once.
    async fn resign(&mut self) {
        if let Some(own) = self.own.take() {
            let _ = self.cluster.resign(&own, RESIGN_PATIENCE).await;
        }
    }

    /// Ends the own term; whether there was one.
    async fn end_term(&mut self) -> bool {
        let Some(Term { quit, ended, .. }) = self.term.take() else { return false };
        self.election.send_replace(ElectionState::Following { leader: None });
        let _ = quit.send(());
        let _ = ended.await;
        true
    }

    fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }
}

/// Leads in a term: until it is told to quit, or the term is over.
async fn lead(
    config: TermConfig,
    cluster: Cluster,
    term: u64,
    election: watch::Sender<ElectionState>,
    quit: oneshot::Receiver<()>,
) {
    let address = config.address.clone();
    let loaded = tokio::task::spawn_blocking(move || -> Result<_, ControlError> {
        let store: Box<dyn Store> = Box::new(EtcdStore::of_term(cluster, term)?);
        Engine::new(config.fabric, config.settings, store)
    });
    let engine = match loaded.await {
        Ok(Ok(engine)) => engine,
        Ok(Err(error)) => {
            tracing::error!(%error, term, "cannot load the store");
            tokio::time::sleep(RELOAD_PAUSE).await;
            return;
        }
        Err(_) => return,
    };
    let jobs = engine.state().job_list(false).len();
    tracing::info!(term, jobs, "the store is loaded");
    let (owner, inbox) = Owner::queue();
    let fabric = engine.state().fabric_reply();
    let status_cache = StatusCache::new(owner.clone(), address);
    election.send_replace(ElectionState::Leading(Arc::new(LeaderState {
        owner,
        status_cache,
        fabric,
        term,
    })));
    let here = tokio::runtime::Handle::current();
    let _ =
        tokio::task::spawn_blocking(move || here.block_on(actor::run(engine, inbox, quit))).await;
    election.send_replace(ElectionState::Following { leader: None });
}

/// For a look or a renewal: a healthy cluster answers within milliseconds.
const LOOK_PATIENCE: Duration = Duration::from_millis(1_500);
const PROBE_PATIENCE: Duration = Duration::from_millis(500);
const RESIGN_PATIENCE: Duration = Duration::from_millis(500);
/// Before another attempt at a store that cannot be loaded.
const RELOAD_PAUSE: Duration = Duration::from_secs(1);
