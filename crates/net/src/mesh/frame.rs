//! Frames between two ranks: a header of 40 bytes, then payload, at most as much as the transport allows.
//!
//! All numbers big-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 0 | version, 1 |
//! | 1 | kind |
//! | 2 | channel |
//! | 3 | 0 |
//! | 4–7 | fingerprint |
//! | 8–15 | tag, or the address of a message that is lent |
//! | 16–23 | part |
//! | 24–31 | id of an announced message, or a rank |
//! | 32–39 | length in bytes |

use super::limits::REASON_MAX;

/// Bytes of a header.
pub(super) const HEADER_LEN: usize = 40;

/// Kind of a message; messages of different channels never match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Channel {
    /// Agreement among the ranks; sent before everything else, and delivered to [`super::Events::control`].
    Control = 0,
    /// Collective operations; the tag is the operation's sequence number.
    Collective = 1,
    /// Point to point; the tag is the caller's.
    PointToPoint = 2,
}

/// Key by which messages match receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The channel.
    pub channel: Channel,
    /// Sequence number of an operation, or a caller's tag.
    pub tag: u64,
    /// Step within an operation.
    pub part: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A whole message; `len` payload bytes follow.
    Eager { key: Key, fingerprint: u32, len: usize },
    /// Announces a message, which is sent on request; no payload follows.
    Announce { key: Key, fingerprint: u32, id: u64, len: u64 },
    /// Requests an announced message.
    Ready { id: u64 },
    /// The next bytes of an announced message; `len` payload bytes follow.
    Data { id: u64, len: usize },
    /// Reports that room for this many bytes of eager messages is free again.
    Credit { bytes: u64 },
    /// Keep-alive.
    Ping,
    /// The sender has left; no frame follows.
    Goodbye,
    /// Requests an announced message, which the receiver will read in its sender's memory.
    Borrow { id: u64 },
    /// An announced message is at this address in the sender's memory, and stays there until [`Frame::Returned`].
    Lent { id: u64, at: u64, len: usize },
    /// A lent message has been read, or is not wanted.
    Returned { id: u64 },
    /// The sender cannot continue because that rank is lost, or (its own) because it was aborted; the reason follows,
    /// `len` bytes of text.
    Lost { rank: u32, len: usize },
}

impl Frame {
    pub(super) fn encode(self) -> [u8; HEADER_LEN] {
        let (kind, key, fingerprint, id, len) = match self {
            Frame::Eager { key, fingerprint, len } => (1, Some(key), fingerprint, 0, len as u64),
            Frame::Announce { key, fingerprint, id, len } => (2, Some(key), fingerprint, id, len),
            Frame::Ready { id } => (3, None, 0, id, 0),
            Frame::Data { id, len } => (4, None, 0, id, len as u64),
            Frame::Credit { bytes } => (5, None, 0, 0, bytes),
            Frame::Ping => (6, None, 0, 0, 0),
            Frame::Goodbye => (7, None, 0, 0, 0),
            Frame::Lost { rank, len } => (8, None, 0, u64::from(rank), len as u64),
            Frame::Borrow { id } => (9, None, 0, id, 0),
            Frame::Lent { id, len, .. } => (10, None, 0, id, len as u64),
            Frame::Returned { id } => (11, None, 0, id, 0),
        };
        let mut h = [0; HEADER_LEN];
        h[0] = VERSION;
        h[1] = kind;
        if let Some(key) = key {
            h[2] = key.channel as u8;
            h[8..16].copy_from_slice(&key.tag.to_be_bytes());
            h[16..24].copy_from_slice(&key.part.to_be_bytes());
        }
        if let Frame::Lent { at, .. } = self {
            h[8..16].copy_from_slice(&at.to_be_bytes());
        }
        h[4..8].copy_from_slice(&fingerprint.to_be_bytes());
        h[24..32].copy_from_slice(&id.to_be_bytes());
        h[32..40].copy_from_slice(&len.to_be_bytes());
        h
    }

    /// `Err` describes the error; the stream has lost synchronisation and must be closed.
    ///
    /// `segment_max`: maximum number of payload bytes after one header.
    pub(super) fn decode(h: &[u8; HEADER_LEN], segment_max: usize) -> Result<Frame, &'static str> {
        if h[0] != VERSION || h[3] != 0 {
            return Err("a frame of another version");
        }
        let (id, len) = (be64(h, 24), be64(h, 32));
        let fingerprint = u32::from_be_bytes([h[4], h[5], h[6], h[7]]);
        let segment = || match usize::try_from(len) {
            Ok(len) if len <= segment_max => Ok(len),
            _ => Err("a frame longer than allowed"),
        };
        Ok(match h[1] {
            1 => Frame::Eager { key: key(h)?, fingerprint, len: segment()? },
            2 => Frame::Announce { key: key(h)?, fingerprint, id, len },
            3 => Frame::Ready { id },
            4 => Frame::Data { id, len: segment()? },
            5 => Frame::Credit { bytes: len },
            6 => Frame::Ping,
            7 => Frame::Goodbye,
            8 => Frame::Lost {
                rank: u32::try_from(id).map_err(|_| "a rank out of range")?,
                len: segment()?,
            },
            9 => Frame::Borrow { id },
            10 => {
                let len = usize::try_from(len).map_err(|_| "a frame longer than allowed")?;
                Frame::Lent { id, at: be64(h, 8), len }
            }
            11 => Frame::Returned { id },
            _ => return Err("a frame of unknown kind"),
        })
    }
}

fn key(h: &[u8; HEADER_LEN]) -> Result<Key, &'static str> {
    let channel = match h[2] {
        0 => Channel::Control,
        1 => Channel::Collective,
        2 => Channel::PointToPoint,
        _ => return Err("a frame of an unknown channel"),
    };
    Ok(Key { channel, tag: be64(h, 8), part: be64(h, 16) })
}

fn be64(h: &[u8; HEADER_LEN], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&h[at..at + 8]);
    u64::from_be_bytes(bytes)
}

/// What a rank sends as the reason for its end: as much as the peers accept, up to the end of a character.
pub(super) fn last_word(reason: &str) -> &str {
    let ends = reason.char_indices().map(|(at, character)| at + character.len_utf8());
    &reason[..ends.take_while(|&end| end <= REASON_MAX).last().unwrap_or(0)]
}

const VERSION: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT_MAX: usize = 1 << 20;

    #[test]
    fn every_frame_decodes_as_encoded() {
        let key = Key { channel: Channel::PointToPoint, tag: u64::MAX, part: 7 };
        for frame in [
            Frame::Eager { key, fingerprint: 9, len: SEGMENT_MAX },
            Frame::Announce { key, fingerprint: 0, id: 3, len: 1 << 40 },
            Frame::Ready { id: 5 },
            Frame::Data { id: 5, len: 0 },
            Frame::Credit { bytes: 1 },
            Frame::Ping,
            Frame::Goodbye,
            Frame::Lost { rank: 3, len: 7 },
            Frame::Borrow { id: 6 },
            Frame::Lent { id: 6, at: u64::MAX, len: 1 << 40 },
            Frame::Returned { id: 6 },
        ] {
            assert_eq!(Frame::decode(&frame.encode(), SEGMENT_MAX), Ok(frame));
        }
    }

    #[test]
    fn malformed_headers_are_rejected_with_a_reason() {
        let good = Frame::Data { id: 5, len: 1 }.encode();
        let with = |at: usize, value: u8| {
            let mut h = good;
            h[at] = value;
            Frame::decode(&h, SEGMENT_MAX).unwrap_err()
        };
        assert_eq!(with(0, 2), "a frame of another version");
        assert_eq!(with(1, 99), "a frame of unknown kind");
        assert_eq!(with(35, 1), "a frame longer than allowed");
        let mut h = good;
        (h[1], h[2]) = (1, 3);
        assert_eq!(Frame::decode(&h, SEGMENT_MAX).unwrap_err(), "a frame of an unknown channel");
    }
}
