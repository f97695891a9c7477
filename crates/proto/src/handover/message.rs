//! Encoding of the messages between ranks in a hand-over.
//!
//! All numbers are big-endian. A message is a header and a body; nothing may follow the body.
//!
//! | header | |
//! |---|---|
//! | version u8 | 1 |
//! | kind u8 | see below |
//! | generation u64 | the hand-over that the message is of |
//!
//! | kind | body |
//! |---|---|
//! | 1 suspect | reason text, faults list: a path of the sender does not work (led, to rank 0; generation in use) |
//! | 2 freeze | nothing: the hand-over begins (led, from rank 0) |
//! | 3 report | flags u8 (1 plan in use, 2 newest plan follows), epoch u16, issued u64, over u64, silent trees list of u8, faults list, progress, newest plan bytes |
//! | 4 go | flags u8 (1 plan follows), reason text, over u64, per rank a progress of elements, plan bytes (led, from rank 0) |
//! | 5 results | count u32, then per result its fragment u64, bytes |
//! | 6 on hosts | operation u64 (led, from rank 0; generation in use) |
//!
//! Text and bytes: length u32, then so many bytes. A list: count u32, then its entries. A progress: tag u8; 0 nothing;
//! 1 fragments: submitted u64, bytes of [`Progress`]; 2 elements: operation u64, count u32, per range start u64 and
//! end u64.

use std::ops::Range;

use netsum_wire::Epoch;

use super::elements::{Ranges, are_sane};
use super::{Plan, Progress};

/// A message, decoded.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Message<P> {
    pub(super) generation: u64,
    pub(super) body: Body<P>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Body<P> {
    Suspect { reason: String, faults: Vec<Vec<u8>> },
    Freeze,
    Report(Report<P>),
    Go(Go<P>),
    Results(Vec<(u64, Vec<u8>)>),
    OnHosts { operation: u64 },
}

/// State of one rank when its network path has stopped.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Report<P> {
    /// Epoch of the plan that was in use; `None`: there was no plan.
    pub(super) epoch: Option<Epoch>,
    /// One more than the highest operation that the rank has begun or queued.
    pub(super) issued: u64,
    /// Led: one more than the last complete operation.
    pub(super) over: u64,
    /// Trees that did not answer this rank; the hand-over abandons them.
    pub(super) silent: Vec<u8>,
    /// Known faults, in the driver's format.
    pub(super) faults: Vec<Vec<u8>>,
    pub(super) progress: Done,
    /// The newest plan from the controller.
    pub(super) newest: Option<P>,
}

/// Results of a rank for the current work.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Done {
    /// No operation was under way on a network path.
    #[default]
    Nothing,
    /// Results of an epoch, by tree.
    Fragments { progress: Progress, submitted: u64 },
    /// Results of one operation.
    Elements { operation: u64, finals: Ranges },
}

/// Rank 0's decision on how to continue.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Go<P> {
    /// The plan; `None`: the host path.
    pub(super) plan: Option<P>,
    pub(super) reason: String,
    /// Operations below this are complete at some rank, so all their results are at all ranks.
    pub(super) over: u64,
    /// Progress by rank.
    pub(super) progress: Vec<Done>,
}

/// Why bytes are not a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The message ends before its last field.
    #[error("it ends early")]
    Truncated,
    /// Something follows the last field.
    #[error("{0} bytes follow its end")]
    Trailing(usize),
    /// Another version of the format.
    #[error("its format has version {0}, this rank reads version {VERSION}")]
    Version(u8),
    /// Unknown kind.
    #[error("there is no message of kind {0}")]
    Kind(u8),
    /// A field's value is invalid.
    #[error("its {0} is out of range")]
    Field(&'static str),
    /// The driver refused its plan.
    #[error("its plan is refused: {0}")]
    Plan(String),
}

impl<P: Plan> Message<P> {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION, self.body.kind()];
        out.extend(self.generation.to_be_bytes());
        match &self.body {
            Body::Suspect { reason, faults } => {
                put_text(&mut out, reason);
                put_faults(&mut out, faults);
            }
            Body::Freeze => {}
            Body::Report(report) => report.encode(&mut out),
            Body::Go(go) => go.encode(&mut out),
            Body::Results(results) => {
                out.reserve(results.iter().map(|(_, bytes)| bytes.len() + 12).sum());
                put_count(&mut out, results.len());
                for (g, bytes) in results {
                    out.extend(g.to_be_bytes());
                    put_bytes(&mut out, bytes);
                }
            }
            Body::OnHosts { operation } => out.extend(operation.to_be_bytes()),
        }
        out
    }

    /// Decodes a message; a plan is validated for a group of `size` ranks.
    pub(super) fn decode(bytes: &[u8], size: u32) -> Result<Message<P>, DecodeError> {
        let mut input = Input(bytes);
        let version = input.u8()?;
        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        let kind = input.u8()?;
        let generation = input.u64()?;
        let body = match kind {
            SUSPECT => Body::Suspect { reason: input.text()?, faults: input.faults()? },
            FREEZE => Body::Freeze,
            REPORT => Body::Report(Report::decode(&mut input, size)?),
            GO => Body::Go(Go::decode(&mut input, size)?),
            RESULTS => {
                let count = input.count(12, RESULTS_MAX, "number of results")?;
                let result = |_| Ok((input.u64()?, input.bytes()?.to_vec()));
                Body::Results((0..count).map(result).collect::<Result<_, _>>()?)
            }
            ON_HOSTS => Body::OnHosts { operation: input.u64()? },
            kind => return Err(DecodeError::Kind(kind)),
        };
        match input.0.len() {
            0 => Ok(Message { generation, body }),
            rest => Err(DecodeError::Trailing(rest)),
        }
    }
}

impl<P> Body<P> {
    fn kind(&self) -> u8 {
        match self {
            Body::Suspect { .. } => SUSPECT,
            Body::Freeze => FREEZE,
            Body::Report(_) => REPORT,
            Body::Go(_) => GO,
            Body::Results(_) => RESULTS,
            Body::OnHosts { .. } => ON_HOSTS,
        }
    }
}

impl<P: Plan> Report<P> {
    fn encode(&self, out: &mut Vec<u8>) {
        let flags = u8::from(self.epoch.is_some()) | u8::from(self.newest.is_some()) << 1;
        out.push(flags);
        out.extend(self.epoch.map_or(0, |epoch| epoch.0).to_be_bytes());
        out.extend(self.issued.to_be_bytes());
        out.extend(self.over.to_be_bytes());
        put_bytes(out, &self.silent);
        put_faults(out, &self.faults);
        self.progress.encode(out);
        if let Some(plan) = &self.newest {
            put_plan(out, plan);
        }
    }

    fn decode(input: &mut Input<'_>, size: u32) -> Result<Report<P>, DecodeError> {
        let flags = input.flags(3)?;
        let epoch = Epoch(input.u16()?);
        Ok(Report {
            epoch: (flags & 1 != 0).then_some(epoch),
            issued: input.u64()?,
            over: input.u64()?,
            silent: input.bytes()?.to_vec(),
            faults: input.faults()?,
            progress: Done::decode(input)?,
            newest: if flags & 2 != 0 { Some(input.plan(size)?) } else { None },
        })
    }
}

impl<P: Plan> Go<P> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.plan.is_some()));
        put_text(out, &self.reason);
        out.extend(self.over.to_be_bytes());
        self.progress.iter().for_each(|progress| progress.encode(out));
        if let Some(plan) = &self.plan {
            put_plan(out, plan);
        }
    }

    fn decode(input: &mut Input<'_>, size: u32) -> Result<Go<P>, DecodeError> {
        let flags = input.flags(1)?;
        let (reason, over) = (input.text()?, input.u64()?);
        let progress = (0..size).map(|_| Done::decode(input)).collect::<Result<_, _>>()?;
        let plan = if flags & 1 != 0 { Some(input.plan(size)?) } else { None };
        Ok(Go { plan, reason, over, progress })
    }
}

impl Done {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Done::Nothing => out.push(0),
            Done::Fragments { progress, submitted } => {
                out.push(1);
                out.extend(submitted.to_be_bytes());
                put_bytes(out, &progress.to_bytes());
            }
            Done::Elements { operation, finals } => {
                out.push(2);
                out.extend(operation.to_be_bytes());
                put_count(out, finals.len());
                for range in finals {
                    out.extend(range.start.to_be_bytes());
                    out.extend(range.end.to_be_bytes());
                }
            }
        }
    }

    fn decode(input: &mut Input<'_>) -> Result<Done, DecodeError> {
        match input.u8()? {
            0 => Ok(Done::Nothing),
            1 => {
                let submitted = input.u64()?;
                let progress = Progress::from_bytes(input.bytes()?);
                let progress = progress.map_err(|_| DecodeError::Field("progress"))?;
                Ok(Done::Fragments { progress, submitted })
            }
            2 => {
                let operation = input.u64()?;
                let count = input.count(16, RANGES_MAX, "number of ranges")?;
                let range = |_| Ok(Range { start: input.u64()?, end: input.u64()? });
                let finals: Ranges = (0..count).map(range).collect::<Result<_, _>>()?;
                if !are_sane(&finals, u64::MAX) {
                    return Err(DecodeError::Field("set of elements"));
                }
                Ok(Done::Elements { operation, finals })
            }
            _ => Err(DecodeError::Field("kind of progress")),
        }
    }
}

/// The rest of a message.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self.0.split_first_chunk().ok_or(DecodeError::Truncated)?;
        self.0 = rest;
        Ok(*head)
    }

    fn u8(&mut self) -> Result<u8, DecodeError> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Result<u16, DecodeError> {
        self.take().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, DecodeError> {
        self.take().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, DecodeError> {
        self.take().map(u64::from_be_bytes)
    }

    fn flags(&mut self, known: u8) -> Result<u8, DecodeError> {
        let flags = self.u8()?;
        if flags & !known == 0 { Ok(flags) } else { Err(DecodeError::Field("flags")) }
    }

    /// A count of entries of at least `each` bytes, so that the message bounds the memory for them.
    fn count(&mut self, each: usize, max: usize, what: &'static str) -> Result<usize, DecodeError> {
        let count = self.u32()? as usize;
        if count > max {
            return Err(DecodeError::Field(what));
        }
        if count * each > self.0.len() {
            return Err(DecodeError::Truncated);
        }
        Ok(count)
    }

    fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = self.u32()? as usize;
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(DecodeError::Truncated)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn text(&mut self) -> Result<String, DecodeError> {
        let text = self.bytes()?;
        if text.len() > TEXT_MAX {
            return Err(DecodeError::Field("length of text"));
        }
        String::from_utf8(text.to_vec()).map_err(|_| DecodeError::Field("text"))
    }

    fn faults(&mut self) -> Result<Vec<Vec<u8>>, DecodeError> {
        let count = self.count(4, FAULTS_MAX, "number of faults")?;
        (0..count).map(|_| Ok(self.bytes()?.to_vec())).collect()
    }

    fn plan<P: Plan>(&mut self, size: u32) -> Result<P, DecodeError> {
        P::decode(self.bytes()?, size).map_err(DecodeError::Plan)
    }
}

fn put_count(out: &mut Vec<u8>, count: usize) {
    out.extend((count as u32).to_be_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_count(out, bytes.len());
    out.extend(bytes);
}

fn put_faults(out: &mut Vec<u8>, faults: &[Vec<u8>]) {
    let faults = &faults[..faults.len().min(FAULTS_MAX)];
    put_count(out, faults.len());
    faults.iter().for_each(|fault| put_bytes(out, fault));
}

/// Truncates text at the limit.
fn put_text(out: &mut Vec<u8>, text: &str) {
    let boundary = (0..=text.len().min(TEXT_MAX)).rev().find(|&at| text.is_char_boundary(at));
    put_bytes(out, &text.as_bytes()[..boundary.unwrap_or(0)]);
}

fn put_plan<P: Plan>(out: &mut Vec<u8>, plan: &P) {
    let mut bytes = Vec::new();
    plan.encode(&mut bytes);
    put_bytes(out, &bytes);
}

/// Version of the format.
const VERSION: u8 = 1;
/// A reason is a sentence or two.
const TEXT_MAX: usize = 4096;
/// Maximum number of faults: links of a plan, some per rank.
const FAULTS_MAX: usize = 4096;
/// Chunks of an operation: a plan has tens of flows with at most thousands of chunks each.
const RANGES_MAX: usize = 1 << 20;
/// Maximum number of results per message; 4 MiB of the usual size are 3,000.
const RESULTS_MAX: usize = 1 << 16;

const SUSPECT: u8 = 1;
const FREEZE: u8 = 2;
const REPORT: u8 = 3;
const GO: u8 = 4;
const RESULTS: u8 = 5;
const ON_HOSTS: u8 = 6;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handover::TreeProgress;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// A plan that consists of its epoch.
    #[derive(Clone, Debug, PartialEq)]
    struct Bare(u16);

    impl Plan for Bare {
        fn epoch(&self) -> Epoch {
            Epoch(self.0)
        }

        fn has_trees(&self) -> bool {
            true
        }

        fn continues(&self, _: &Bare) -> bool {
            true
        }

        fn patience_ns(&self) -> u64 {
            0
        }

        fn encode(&self, out: &mut Vec<u8>) {
            out.extend(self.0.to_be_bytes());
        }

        fn decode(bytes: &[u8], size: u32) -> Result<Bare, String> {
            let bytes = <[u8; 2]>::try_from(bytes).map_err(|_| format!("not for {size} ranks"))?;
            Ok(Bare(u16::from_be_bytes(bytes)))
        }
    }

    const SIZE: u32 = 2;

    fn plan() -> impl Strategy<Value = Option<Bare>> {
        any::<Option<u16>>().prop_map(|epoch| epoch.map(Bare))
    }

    fn faults() -> impl Strategy<Value = Vec<Vec<u8>>> {
        vec(vec(any::<u8>(), 0..6), 0..4)
    }

    fn done() -> impl Strategy<Value = Done> {
        let tree = (0..1u64 << 54, vec(any::<bool>(), 0..20))
            .prop_map(|(base, above)| TreeProgress { base, above, untaken: vec![] });
        let progress = vec(tree, 0..4).prop_map(|trees| Progress { trees });
        let fragments = (progress, any::<u64>())
            .prop_map(|(progress, submitted)| Done::Fragments { progress, submitted });
        let elements = (any::<u64>(), vec(1..1000u64, 0..8)).prop_map(|(operation, steps)| {
            let mut at = 0;
            let range = |step: u64| {
                let start = at + step;
                at = start + step;
                start..at
            };
            Done::Elements { operation, finals: steps.into_iter().map(range).collect() }
        });
        prop_oneof![Just(Done::Nothing), fragments, elements]
    }

    fn body() -> impl Strategy<Value = Body<Bare>> {
        let report = (any::<Option<u16>>(), any::<(u64, u64)>(), vec(any::<u8>(), 0..4), faults())
            .prop_flat_map(|(epoch, (issued, over), silent, faults)| {
                (done(), plan()).prop_map(move |(progress, newest)| {
                    let (silent, faults) = (silent.clone(), faults.clone());
                    let epoch = epoch.map(Epoch);
                    Body::Report(Report { epoch, issued, over, silent, faults, progress, newest })
                })
            });
        let go = (plan(), ".{0,20}", any::<u64>(), vec(done(), SIZE as usize)).prop_map(
            |(plan, reason, over, progress)| Body::Go(Go { plan, reason, over, progress }),
        );
        prop_oneof![
            (".{0,20}", faults()).prop_map(|(reason, faults)| Body::Suspect { reason, faults }),
            Just(Body::Freeze),
            report,
            go,
            vec((any::<u64>(), vec(any::<u8>(), 0..20)), 0..5).prop_map(Body::Results),
            any::<u64>().prop_map(|operation| Body::OnHosts { operation }),
        ]
    }

    proptest! {
        #[test]
        fn messages_decode_as_encoded(generation: u64, body in body()) {
            let message = Message { generation, body };
            let bytes = message.encode();
            prop_assert_eq!(Message::decode(&bytes, SIZE), Ok(message));
            for end in 0..bytes.len() {
                prop_assert!(Message::<Bare>::decode(&bytes[..end], SIZE).is_err());
            }
            let longer = [&bytes[..], &[0]].concat();
            prop_assert!(Message::<Bare>::decode(&longer, SIZE).is_err());
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(kind in 0..8u8, bytes in vec(any::<u8>(), 0..200)) {
            let bytes = [&[VERSION, kind][..], &bytes].concat();
            if let Ok(message) = Message::<Bare>::decode(&bytes, SIZE) {
                prop_assert_eq!(Message::decode(&message.encode(), SIZE), Ok(message));
            }
        }
    }

    #[test]
    fn counts_beyond_the_message_allocate_nothing() {
        let mut bytes = vec![VERSION, RESULTS];
        bytes.extend([0; 8]);
        bytes.extend(u32::MAX.to_be_bytes());
        let refused = Message::<Bare>::decode(&bytes, SIZE);
        assert_eq!(refused, Err(DecodeError::Field("number of results")));
        let at = bytes.len() - 4;
        bytes[at..].copy_from_slice(&1000u32.to_be_bytes());
        assert_eq!(Message::<Bare>::decode(&bytes, SIZE), Err(DecodeError::Truncated));
    }

    #[test]
    fn long_reasons_are_cut_off() {
        let reason = "é".repeat(TEXT_MAX);
        let message =
            Message::<Bare> { generation: 1, body: Body::Suspect { reason, faults: Vec::new() } };
        match Message::<Bare>::decode(&message.encode(), SIZE).unwrap().body {
            Body::Suspect { reason, .. } => assert_eq!(reason, "é".repeat(TEXT_MAX / 2)),
            other => panic!("{other:?}"),
        }
    }
}
