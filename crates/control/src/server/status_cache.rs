//! Replies to Status: at most one is built at a time, off the owner's thread, and all callers that wait share it.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, Weak};
use std::task::{Context, Poll};

use http_body::{Body, Frame};
use prost::Message as _;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::Instant;
use tonic::Status;
use tonic::codegen::Bytes;
use tonic::codegen::http::HeaderMap;

use super::owner::Owner;
use crate::client::MESSAGE_MAX;
use crate::engine::Snapshot;
use crate::limits::{REPLIES_HELD_MAX, STATUS_INTERVAL};

/// The replies.
#[derive(Debug)]
pub(super) struct StatusCache {
    owner: Owner,
    address: String,
    /// Number of replies whose building has begun.
    begun: Arc<AtomicU64>,
    /// Locked while a reply is built.
    last: Arc<Mutex<Last>>,
}

#[derive(Debug)]
struct Last {
    /// The last reply, and its number.
    reply: Option<(u64, Arc<Encoded>)>,
    /// No reply is built before.
    next_at: Instant,
    /// Replies that may still be on their way to a caller, oldest first.
    held: Vec<Weak<Encoded>>,
}

impl StatusCache {
    pub fn new(owner: Owner, address: String) -> StatusCache {
        let last = Last { reply: None, next_at: Instant::now(), held: Vec::new() };
        let (begun, last) = (Arc::default(), Arc::new(Mutex::new(last)));
        StatusCache { owner, address, begun, last }
    }

    /// A reply with the state after the call.
    pub async fn reply(&self) -> Result<Arc<Encoded>, Status> {
        let before = self.begun.load(Ordering::SeqCst);
        let last = self.last.clone().lock_owned().await;
        if let Some((number, reply)) = &last.reply
            && *number > before
        {
            return Ok(reply.clone());
        }
        // The task outlives a caller that goes away: the others wait for its reply.
        let build = build(self.owner.clone(), self.address.clone(), self.begun.clone(), last);
        tokio::spawn(build).await.map_err(|error| Status::internal(error.to_string()))?
    }
}

async fn build(
    owner: Owner,
    address: String,
    begun: Arc<AtomicU64>,
    mut last: OwnedMutexGuard<Last>,
) -> Result<Arc<Encoded>, Status> {
    tokio::time::sleep_until(last.next_at).await;
    let number = begun.fetch_add(1, Ordering::SeqCst) + 1;
    let started = Instant::now();
    last.next_at = started + STATUS_INTERVAL;
    let snapshot = owner.snapshot().await?;
    let encoded = tokio::task::spawn_blocking(move || encode(&snapshot, address));
    let reply = encoded.await.map_err(|error| Status::internal(error.to_string()))??;
    // Building takes at most half of a core.
    last.next_at = Instant::now() + STATUS_INTERVAL.max(started.elapsed());
    last.hold(number, reply.clone());
    Ok(reply)
}

fn encode(snapshot: &Snapshot, address: String) -> Result<Arc<Encoded>, Status> {
    let mut reply = snapshot.status();
    reply.address = address;
    let length = reply.encoded_len();
    if length > MESSAGE_MAX {
        return Err(Status::out_of_range(format!(
            "the status has {length} bytes, and a message at most {MESSAGE_MAX}; ask for the list of jobs"
        )));
    }
    // A message of gRPC: no compression, the length, the message.
    let mut bytes = Vec::with_capacity(PREFIX + length);
    bytes.push(0);
    bytes.extend((length as u32).to_be_bytes());
    reply.encode_raw(&mut bytes);
    Ok(Arc::new(Encoded(std::sync::Mutex::new(Some(bytes)))))
}

impl Last {
    /// Keeps a new reply. Beyond [`REPLIES_HELD_MAX`] bytes the oldest replies are dropped, though a caller that reads
    /// slowly has not received all of them.
    fn hold(&mut self, number: u64, reply: Arc<Encoded>) {
        self.held.push(Arc::downgrade(&reply));
        self.reply = Some((number, reply));
        let held: Vec<Arc<Encoded>> = self.held.iter().filter_map(Weak::upgrade).collect();
        let mut sum: usize = held.iter().map(|reply| reply.len()).sum();
        for old in &held[..held.len() - 1] {
            if sum > REPLIES_HELD_MAX {
                sum -= old.len();
                old.drop_bytes();
            }
        }
        self.held = held.iter().filter(|reply| reply.len() > 0).map(Arc::downgrade).collect();
    }
}

/// An encoded reply; `None` once it was dropped for lack of memory.
#[derive(Debug)]
pub(super) struct Encoded(std::sync::Mutex<Option<Vec<u8>>>);

impl Encoded {
    fn len(&self) -> usize {
        self.bytes().as_ref().map_or(0, Vec::len)
    }

    fn drop_bytes(&self) {
        *self.bytes() = None;
    }

    /// The next part; `None` at the end. Parts are copies, so that a caller who does not read keeps one part only.
    fn part(&self, at: usize) -> Result<Option<Bytes>, Status> {
        let bytes = self.bytes();
        let bytes = bytes.as_ref().ok_or_else(|| {
            Status::resource_exhausted("the caller reads too slowly; newer replies took its place")
        })?;
        let part = &bytes[at..bytes.len().min(at + PART)];
        Ok((!part.is_empty()).then(|| Bytes::copy_from_slice(part)))
    }

    fn bytes(&self) -> std::sync::MutexGuard<'_, Option<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A shared reply as the body of one response.
#[derive(Debug)]
pub(super) struct ReplyBody {
    reply: Arc<Encoded>,
    at: usize,
    ended: bool,
}

impl ReplyBody {
    pub fn new(reply: Arc<Encoded>) -> ReplyBody {
        ReplyBody { reply, at: 0, ended: false }
    }

    fn next(&mut self) -> Option<Frame<Bytes>> {
        if self.ended {
            return None;
        }
        let end = match self.reply.part(self.at) {
            Ok(Some(part)) => {
                self.at += part.len();
                return Some(Frame::data(part));
            }
            Ok(None) => Status::ok(""),
            Err(status) => status,
        };
        self.ended = true;
        let mut trailers = HeaderMap::new();
        // Fails for metadata that is no header; there is none.
        let _ = end.add_header(&mut trailers);
        Some(Frame::trailers(trailers))
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.next().map(Ok))
    }
}

/// Bytes before a message of gRPC.
const PREFIX: usize = 5;
/// Bytes of a reply that are handed to a connection at once.
const PART: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use netsum_topo::{Addressing, Rate, leaf_spine};

    use super::super::actor::Message;
    use super::*;
    use crate::decide::Settings;
    use crate::engine::Engine;
    use crate::store::MemoryStore;

    fn reply(bytes: usize) -> Arc<Encoded> {
        Arc::new(Encoded(std::sync::Mutex::new(Some(vec![7; bytes]))))
    }

    fn snapshot() -> Snapshot {
        let rate = Rate(1_000_000_000);
        let fabric = leaf_spine(2, 2, 2, rate, rate, Addressing::default()).unwrap();
        Engine::new(fabric, Settings::default(), MemoryStore::new(1)).unwrap().snapshot(0)
    }

    #[tokio::test]
    async fn callers_that_wait_share_a_reply() {
        let (owner, mut inbox) = Owner::queue();
        let status_cache = Arc::new(StatusCache::new(owner, "127.0.0.1:7700".to_owned()));
        let calls: Vec<_> = (0..500)
            .map(|_| {
                let status_cache = status_cache.clone();
                tokio::spawn(async move { status_cache.reply().await.unwrap() })
            })
            .collect();
        let asked = tokio::spawn(async move {
            let mut asked = 0;
            while let Some(Message::Snapshot(reply)) = inbox.recv().await {
                asked += 1;
                assert!(reply.send(Ok(snapshot())).is_ok());
            }
            asked
        });
        for call in calls {
            assert!(call.await.unwrap().len() > 0);
        }
        drop(status_cache);
        // All began to wait before the second reply could be built.
        assert!(asked.await.unwrap() <= 2);
    }

    #[tokio::test]
    async fn a_caller_that_goes_away_does_not_start_another_build() {
        let (owner, mut inbox) = Owner::queue();
        let status_cache = Arc::new(StatusCache::new(owner, "127.0.0.1:7700".to_owned()));
        let gone = tokio::spawn({
            let status_cache = status_cache.clone();
            async move { status_cache.reply().await }
        });
        let Some(Message::Snapshot(first)) = inbox.recv().await else { panic!("no question") };
        gone.abort();
        assert!(gone.await.is_err());
        let waiting = tokio::spawn({
            let status_cache = status_cache.clone();
            async move { status_cache.reply().await }
        });
        assert!(first.send(Ok(snapshot())).is_ok(), "the build went away with its caller");
        let Some(Message::Snapshot(second)) = inbox.recv().await else { panic!("no question") };
        assert!(second.send(Ok(snapshot())).is_ok());
        waiting.await.unwrap().unwrap();
    }

    #[test]
    fn a_reply_is_sent_in_parts() {
        let mut body = ReplyBody::new(reply(PART + 1));
        let lengths = [PART, 1];
        for length in lengths {
            assert_eq!(body.next().unwrap().into_data().unwrap().len(), length);
        }
        let trailers = body.next().unwrap().into_trailers().unwrap();
        assert_eq!(trailers["grpc-status"], "0");
        assert!(body.next().is_none());
    }

    #[test]
    fn callers_that_do_not_read_keep_a_bounded_number_of_bytes() {
        let mut last = Last { reply: None, next_at: Instant::now(), held: Vec::new() };
        let mut bodies = Vec::new();
        let each = REPLIES_HELD_MAX / 4;
        for number in 0..100 {
            let reply = reply(each);
            let mut body = ReplyBody::new(reply.clone());
            body.next().unwrap();
            bodies.push(body);
            last.hold(number, reply);
            let held: usize = bodies.iter().map(|body| body.reply.len()).sum();
            assert!(held <= REPLIES_HELD_MAX, "{held}");
        }
        let trailers = bodies[0].next().unwrap().into_trailers().unwrap();
        assert_eq!(trailers["grpc-status"], "8");
        assert!(bodies[99].next().unwrap().is_data());
    }
}
