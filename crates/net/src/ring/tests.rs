//! The ring under a model checker.

#![allow(unsafe_code)]

use super::{Bytes, Positions, Reader, Side, Waiting, Writer};
use crate::word::Word;

/// A ring of two bytes, whose accesses loom tracks.
pub(crate) struct LoomRing<W>(loom::sync::Arc<Parts<W>>);

struct Parts<W> {
    positions: Positions<W>,
    bytes: [loom::cell::UnsafeCell<u8>; 2],
}

impl<W> Clone for LoomRing<W> {
    fn clone(&self) -> LoomRing<W> {
        LoomRing(self.0.clone())
    }
}

impl<W: Word> LoomRing<W> {
    pub(crate) fn new(word: impl Fn() -> W) -> LoomRing<W> {
        let side = || Side { position: word(), waiting: Waiting::new(word()), extra: word() };
        LoomRing(loom::sync::Arc::new(Parts {
            positions: Positions { writer: side(), reader: side() },
            bytes: [(); 2].map(|()| loom::cell::UnsafeCell::new(0)),
        }))
    }

    fn byte(&self, at: u32) -> &loom::cell::UnsafeCell<u8> {
        &self.0.bytes[at as usize % 2]
    }
}

// SAFETY of all accesses below: loom checks that no other thread accesses the cell; the tests show that.
impl<W: Word> Bytes for LoomRing<W> {
    type Word = W;
    fn positions(&self) -> &Positions<W> {
        &self.0.positions
    }
    fn capacity(&self) -> u32 {
        2
    }
    fn write(&self, at: u32, bytes: &[u8]) {
        for (offset, byte) in bytes.iter().enumerate() {
            self.byte(at.wrapping_add(offset as u32)).with_mut(|to| unsafe { *to = *byte });
        }
    }
    fn read(&self, at: u32, len: usize, mut take: impl FnMut(&[u8])) {
        for offset in 0..len as u32 {
            self.byte(at.wrapping_add(offset)).with(|from| take(&[unsafe { *from }]));
        }
    }
}

/// Interleavings of two threads that retry, with at most three preemptions: all would take minutes.
pub(crate) fn limited_preemptions(body: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(body);
}

/// A writer of more bytes than the ring holds and its reader: every byte is read once and in order, none before it was
/// written, and none is overwritten before it was read.
#[test]
fn bytes_are_read_once_and_in_order() {
    limited_preemptions(|| {
        let ring = LoomRing::new(|| loom::sync::atomic::AtomicU32::new(0));
        let writing = loom::thread::spawn({
            let mut writer = Writer::new(ring.clone());
            move || {
                let mut left = &[1, 2, 3][..];
                while !left.is_empty() {
                    let count = writer.write(left, usize::MAX).unwrap();
                    left = &left[count..];
                    if count == 0 {
                        loom::thread::yield_now();
                    }
                }
            }
        });
        let (mut reader, mut found) = (Reader::new(ring), Vec::new());
        while found.len() < 3 {
            let count = reader.read(3, |part| found.extend_from_slice(part)).unwrap();
            reader.publish();
            if count == 0 {
                loom::thread::yield_now();
            }
        }
        assert_eq!(found, [1, 2, 3]);
        writing.join().unwrap();
    });
}
