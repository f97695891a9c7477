//! Whether this controller leads, as its gRPC handlers see it.

use std::sync::Arc;

use tokio::sync::watch;
use tonic::Status;
use tonic::metadata::MetadataValue;

use super::owner::Owner;
use super::status_cache::StatusCache;
use crate::client::LEADER;
use crate::pb;

/// The place of a controller among those of its store.
#[derive(Debug, Clone)]
pub(super) enum ElectionState {
    /// Another one leads, or nobody does.
    Following {
        /// Where the leader is, if that is known.
        leader: Option<String>,
    },
    /// It has won that term and loads the store.
    Taking(u64),
    /// It leads.
    Leading(Arc<LeaderState>),
}

/// What a leader answers from.
#[derive(Debug)]
pub(super) struct LeaderState {
    pub owner: Owner,
    pub status_cache: StatusCache,
    pub fabric: pb::FabricReply,
    pub term: u64,
}

/// Where handlers look at the state of the election.
#[derive(Debug, Clone)]
pub(super) struct ElectionView(watch::Receiver<ElectionState>);

impl ElectionView {
    /// The state of the election, and where it is looked at.
    pub fn channel(election: ElectionState) -> (watch::Sender<ElectionState>, ElectionView) {
        let (sender, receiver) = watch::channel(election);
        (sender, ElectionView(receiver))
    }

    /// What the leader answers from, if this controller leads. Errors say where the leader is.
    pub fn leader_state(&self) -> Result<Arc<LeaderState>, Status> {
        match &*self.0.borrow() {
            ElectionState::Leading(leader_state) => Ok(leader_state.clone()),
            ElectionState::Taking(_) => Err(follows("")),
            ElectionState::Following { leader } => {
                Err(follows(leader.as_deref().unwrap_or_default()))
            }
        }
    }

    /// The answer to Leader. `own` is the own address.
    pub fn leader(&self, own: &str) -> pb::LeaderReply {
        let (term, leader) = match &*self.0.borrow() {
            ElectionState::Leading(leader_state) => (leader_state.term, own.to_owned()),
            ElectionState::Taking(term) => (*term, own.to_owned()),
            ElectionState::Following { leader } => (0, leader.clone().unwrap_or_default()),
        };
        pb::LeaderReply { term, leader }
    }
}

/// The refusal of a controller that does not lead.
fn follows(leader: &str) -> Status {
    let mut status = Status::unavailable(match leader {
        "" => "this controller does not lead, and no leader is known yet; it is being elected"
            .to_owned(),
        leader => format!(
            "this controller does not lead, the one at {leader} does; name the addresses of all controllers, separated \
             by commas"
        ),
    });
    let leader = MetadataValue::try_from(leader).unwrap_or(MetadataValue::from_static(""));
    status.metadata_mut().insert(LEADER, leader);
    status
}
