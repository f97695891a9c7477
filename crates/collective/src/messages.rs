//! Control messages between ranks.

/// A message about hand-overs between tree plans, as received.
#[derive(Debug)]
pub(crate) struct ControlMessage {
    pub(crate) from: u32,
    pub(crate) bytes: Vec<u8>,
}

/// The kind of a control message, which is the tag of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum MessageKind {
    /// A call, as text; part: its sequence number.
    Call = 1,
    /// A message of the hand-over between a controller's plans.
    Handover = 2,
    /// Why a rank cannot continue, as text; all others must end, too.
    Failed = 4,
    /// A message of the hand-over between tree plans of rank 0.
    PlanHandover = 5,
    /// What is this rank doing? Part: the number of the question.
    Question = 7,
    /// The answer, as JSON; part: the number of the question.
    Answer = 8,
    /// A message of a rank that leaves, or an answer to one ([`netsum_proto::departure`]).
    Departure = 9,
    /// A hash of a result, 8 bytes, big-endian; part: the operation's sequence number.
    Digest = 6,
}

impl MessageKind {
    pub(crate) fn from_tag(tag: u64) -> Option<MessageKind> {
        let all = [
            MessageKind::Call,
            MessageKind::Handover,
            MessageKind::Failed,
            MessageKind::PlanHandover,
            MessageKind::Digest,
            MessageKind::Question,
            MessageKind::Answer,
            MessageKind::Departure,
        ];
        all.into_iter().find(|&kind| kind as u64 == tag)
    }
}
