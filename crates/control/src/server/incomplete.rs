//! Bounds the bytes of messages that have begun to arrive and are not complete: a peer could begin a message of the
//! largest size on each of its calls and never end one.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use http_body::{Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Bytes;

use crate::limits::{INCOMPLETE_FREE, INCOMPLETE_MAX};

/// The bytes of all incomplete messages.
#[derive(Debug, Clone, Default)]
pub(super) struct Incomplete(Arc<AtomicUsize>);

/// The body of a request whose incomplete message counts.
pub(super) struct MeteredBody {
    body: Body,
    meter: Meter,
}

/// Follows the messages in a call's bytes: a byte for compression, the length in four, the message.
#[derive(Debug)]
struct Meter {
    all: Incomplete,
    /// Bytes of the incomplete message that have arrived, counted in `all`.
    held: usize,
    prefix: [u8; PREFIX],
    /// Bytes of the prefix that have arrived.
    prefixed: usize,
    /// Bytes of the message that are missing.
    missing: usize,
}

const PREFIX: usize = 5;

impl Incomplete {
    /// The body with its bytes counted until it is dropped.
    pub fn metered(&self, body: Body) -> Body {
        let all = self.clone();
        let meter = Meter { all, held: 0, prefix: [0; PREFIX], prefixed: 0, missing: 0 };
        Body::new(MeteredBody { body, meter })
    }
}

impl Meter {
    /// Counts bytes that arrive. Errors: there are too many bytes of incomplete messages, and this one is not small.
    fn take(&mut self, mut bytes: &[u8]) -> Result<(), Status> {
        let before = self.held;
        while !bytes.is_empty() {
            let wanted = if self.prefixed < PREFIX { PREFIX - self.prefixed } else { self.missing };
            let (now, later) = bytes.split_at(wanted.min(bytes.len()));
            if self.prefixed < PREFIX {
                self.prefix[self.prefixed..][..now.len()].copy_from_slice(now);
                self.prefixed += now.len();
                let [_, length @ ..] = self.prefix;
                self.missing = u32::from_be_bytes(length) as usize;
            } else {
                self.missing -= now.len();
            }
            self.held += now.len();
            if self.prefixed == PREFIX && self.missing == 0 {
                (self.held, self.prefixed) = (0, 0);
            }
            bytes = later;
        }
        let all = &self.all.0;
        all.fetch_add(self.held, Ordering::Relaxed);
        let others = all.fetch_sub(before, Ordering::Relaxed) - before;
        if others > INCOMPLETE_MAX && self.held > INCOMPLETE_FREE {
            return Err(Status::resource_exhausted(format!(
                "messages of {others} bytes have begun to arrive and are not complete; the limit is {INCOMPLETE_MAX}; \
                 try again"
            )));
        }
        Ok(())
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.all.0.fetch_sub(self.held, Ordering::Relaxed);
    }
}

impl http_body::Body for MeteredBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
            && let Err(refusal) = self.meter.take(data)
        {
            return Poll::Ready(Some(Err(refusal)));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::convert::Infallible;
    use std::task::Waker;

    use super::*;

    fn message(length: usize) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend((length as u32).to_be_bytes());
        bytes.resize(PREFIX + length, 7);
        bytes
    }

    fn meter(all: &Incomplete) -> Meter {
        Meter { all: all.clone(), held: 0, prefix: [0; PREFIX], prefixed: 0, missing: 0 }
    }

    fn total(all: &Incomplete) -> usize {
        all.0.load(Ordering::Relaxed)
    }

    #[test]
    fn messages_count_until_they_are_complete_however_they_are_cut() {
        let all = Incomplete::default();
        let stream: Vec<u8> = [message(0), message(300), message(1), message(70_000)].concat();
        for step in [1, 2, 4, 5, 6, 7, 299, 65_536, stream.len()] {
            let mut meter = meter(&all);
            for chunk in stream.chunks(step) {
                meter.take(chunk).unwrap();
                assert!(total(&all) < PREFIX + 70_000);
            }
            assert_eq!(total(&all), 0, "steps of {step}");
            meter.take(&message(9)[..8]).unwrap();
            assert_eq!(total(&all), 8);
            drop(meter);
            assert_eq!(total(&all), 0);
        }
    }

    #[test]
    fn large_incomplete_messages_are_refused_when_there_are_many_and_small_ones_are_not() {
        const CHUNK: usize = 1 << 20;
        let all = Incomplete::default();
        let mut held = Vec::new();
        let part = &message(2 * CHUNK)[..CHUNK];
        let refused = loop {
            let mut meter = meter(&all);
            let outcome = meter.take(part);
            held.push(meter);
            if let Err(status) = outcome {
                break status;
            }
            assert!(total(&all) <= INCOMPLETE_MAX);
        };
        assert!(refused.message().contains("try again"), "{refused}");
        assert_eq!(held.len(), INCOMPLETE_MAX / CHUNK + 1);
        meter(&all).take(&message(INCOMPLETE_FREE)[..INCOMPLETE_FREE]).unwrap();
        meter(&all).take(&message(CHUNK)).unwrap();
        held.clear();
        assert_eq!(total(&all), 0);
    }

    /// A body of these chunks.
    struct Chunks(VecDeque<Bytes>);

    impl http_body::Body for Chunks {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(self.0.pop_front().map(|chunk| Ok(Frame::data(chunk))))
        }
    }

    #[test]
    fn a_body_ends_with_the_refusal() {
        use http_body::Body as _;
        let all = Incomplete::default();
        all.0.fetch_add(INCOMPLETE_MAX, Ordering::Relaxed);
        let chunks = [message(10), message(1 << 20)[..1 << 19].to_vec()].map(Bytes::from);
        let mut body = all.metered(Body::new(Chunks(chunks.into())));
        let mut poll = || {
            let mut context = Context::from_waker(Waker::noop());
            Pin::new(&mut body).poll_frame(&mut context)
        };
        assert!(matches!(poll(), Poll::Ready(Some(Ok(_)))));
        assert!(matches!(poll(), Poll::Ready(Some(Err(_)))));
        assert!(matches!(poll(), Poll::Ready(None)));
    }
}
