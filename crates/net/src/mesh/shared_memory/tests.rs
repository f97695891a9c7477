//! The ring under a model checker, against a plain model, and with arbitrary bits in the memory.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use proptest::prelude::*;

use super::cells::{Cells, INLINE, Presence, Reader, Writer};
use super::layout::Layout;
use super::{HEADER_LEN, PIECE};
use crate::ring::tests::{LoomRing, limited_preemptions};
use crate::ring::{Bytes, Positions};

/// Two cells beside a ring of two bytes, whose accesses loom tracks.
#[derive(Clone)]
struct Model {
    bytes: LoomRing<loom::sync::atomic::AtomicU32>,
    cells: loom::sync::Arc<CellsOfModel>,
}

struct CellsOfModel {
    numbers: [loom::sync::atomic::AtomicU32; 2],
    cells: [loom::cell::UnsafeCell<(u8, u32, Vec<u8>)>; 2],
}

impl Model {
    fn new() -> Model {
        let word = || loom::sync::atomic::AtomicU32::new(0);
        let cells = loom::sync::Arc::new(CellsOfModel {
            numbers: [word(), word()],
            cells: [(); 2].map(|()| loom::cell::UnsafeCell::new((0, 0, Vec::new()))),
        });
        Model { bytes: LoomRing::new(word), cells }
    }
}

impl Bytes for Model {
    type Word = loom::sync::atomic::AtomicU32;
    fn positions(&self) -> &Positions<Self::Word> {
        self.bytes.positions()
    }
    fn capacity(&self) -> u32 {
        self.bytes.capacity()
    }
    fn write(&self, at: u32, bytes: &[u8]) {
        self.bytes.write(at, bytes);
    }
    fn read(&self, at: u32, len: usize, take: impl FnMut(&[u8])) {
        self.bytes.read(at, len, take);
    }
}

// SAFETY of all accesses below: loom checks that no other thread accesses the cell; the tests show that.
impl Cells for Model {
    fn cells(&self) -> u32 {
        2
    }
    fn number(&self, cell: u32) -> &Self::Word {
        &self.cells.numbers[cell as usize % 2]
    }
    fn fill_cell(&self, cell: u32, header: &[u8; HEADER_LEN], here: u32, payload: &[u8]) {
        let fill =
            |to: *mut (u8, u32, Vec<u8>)| unsafe { *to = (header[0], here, payload.to_vec()) };
        self.cells.cells[cell as usize % 2].with_mut(fill);
    }
    fn header(&self, cell: u32) -> ([u8; HEADER_LEN], u32) {
        let mut header = [0; HEADER_LEN];
        self.cells.cells[cell as usize % 2].with(|from| unsafe {
            header[0] = (*from).0;
            (header, (*from).1)
        })
    }
    fn payload(&self, cell: u32, len: usize, take: impl FnOnce(&[u8])) {
        self.cells.cells[cell as usize % 2].with(|from| take(unsafe { &(&(*from).2)[..len] }));
    }
}

/// A payload that does not fit in a cell.
const LONG: [u8; INLINE + 1] = [7; INLINE + 1];

/// Interleavings of a writer of frames in cells, more than there are, and their reader: every frame is read whole, once
/// and in order, and a cell is not filled before it was read.
#[test]
fn cells_are_read_only_when_full_and_filled_only_when_read() {
    limited_preemptions(|| {
        let model = Model::new();
        let writing = loom::thread::spawn({
            let mut writer = Writer::new(model.clone());
            move || {
                for frame in 1..=3u8 {
                    while !writer.write_whole(&[frame; HEADER_LEN], &[frame, 0]) {
                        loom::thread::yield_now();
                    }
                }
            }
        });
        let mut reader = Reader::new(model);
        for frame in 1..=3u8 {
            while !reader.has_cell() {
                loom::thread::yield_now();
            }
            assert_eq!((reader.header().0[0], reader.header().1), (frame, 2));
            reader.take_payload(2, |bytes| assert_eq!(bytes, [frame, 0]));
            reader.publish();
        }
        writing.join().unwrap();
    });
}

/// The same for a payload that goes through the ring of bytes, in pieces, of which the first comes with its cell; the
/// writer requests a wake-up and checks again, as it does before it sleeps.
#[test]
fn payload_bytes_are_read_only_after_they_were_written() {
    limited_preemptions(|| {
        let model = Model::new();
        let writing = loom::thread::spawn({
            let mut writer = Writer::new(model.clone());
            move || {
                let mut away = writer.begin(&[1; HEADER_LEN], &LONG, 1).unwrap();
                while away < 3 {
                    match writer.go_on(&LONG[away..3], 2) {
                        0 if writer.wait_for_room() => loom::thread::yield_now(),
                        count => away += count,
                    }
                }
            }
        });
        let mut reader = Reader::new(model);
        while !reader.has_cell() {
            loom::thread::yield_now();
        }
        let (_, here) = reader.header();
        assert_eq!(here, 1);
        reader.take_cell(here).unwrap();
        let mut left = 3;
        while left > 0 {
            let count = reader.take(left, |bytes| assert!(bytes.iter().all(|b| *b == 7))).unwrap();
            left -= count;
            reader.publish();
            if count == 0 {
                loom::thread::yield_now();
            }
        }
        writing.join().unwrap();
    });
}

/// All interleavings of a thread that writes and rings if necessary, and one that announces its sleep, checks and
/// sleeps: it never sleeps on while there is a frame.
#[test]
fn a_sleeping_reader_is_woken() {
    loom::model(|| {
        let model = Model::new();
        let presence = loom::sync::Arc::new(presence());
        let rings = loom::sync::Arc::new(loom::sync::Notify::new());
        let writing = loom::thread::spawn({
            let (mut writer, presence, rings) =
                (Writer::new(model.clone()), presence.clone(), rings.clone());
            move || {
                assert!(writer.write_whole(&[1; HEADER_LEN], &[]));
                if presence.has_to_be_woken() {
                    rings.notify();
                }
            }
        });
        let reader = Reader::new(model);
        presence.before_sleep();
        while !reader.has_cell() {
            // A sleep may end early, once; loom reports a deadlock if no thread rings.
            rings.wait();
        }
        presence.after_sleep();
        assert!(reader.has_cell());
        writing.join().unwrap();
    });
}

/// The same for a writer that has no room and sleeps, and a reader that makes room.
#[test]
fn a_writer_without_room_is_woken_when_there_is_room() {
    loom::model(|| {
        let model = Model::new();
        let presence = loom::sync::Arc::new(presence());
        let rings = loom::sync::Arc::new(loom::sync::Notify::new());
        let mut writer = Writer::new(model.clone());
        assert_eq!(writer.begin(&[1; HEADER_LEN], &LONG, 2), Some(2));
        let reading = loom::thread::spawn({
            let (mut reader, presence, rings) =
                (Reader::new(model), presence.clone(), rings.clone());
            move || {
                reader.take_cell(reader.header().1).unwrap();
                assert_eq!(reader.take(2, |_| ()), Ok(2));
                if reader.publish() && presence.has_to_be_woken() {
                    rings.notify();
                }
            }
        });
        if writer.go_on(&LONG[2..], 1) == 0 && writer.wait_for_room() {
            presence.before_sleep();
            while !writer.can_go_on() {
                rings.wait();
            }
            presence.after_sleep();
            assert!(writer.can_go_on());
        }
        reading.join().unwrap();
    });
}

fn presence() -> Presence<loom::sync::atomic::AtomicU32> {
    let word = || loom::sync::atomic::AtomicU32::new(0);
    Presence::new(word(), word(), word())
}

#[derive(Clone, Debug)]
enum Step {
    /// A frame with this many bytes of payload, and the maximum number at once.
    Frame(usize, usize),
    /// Reads at most this many frames or pieces.
    Read(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let frame = (
        prop_oneof![0..INLINE + 3, 0..PIECE, Just(super::layout::capacity_of(2) as usize + 1)],
        prop_oneof![1..PIECE, Just(usize::MAX)],
    );
    let step = prop_oneof![
        3 => frame.prop_map(|(len, most)| Step::Frame(len, most)),
        2 => (1..200usize).prop_map(Step::Read),
    ];
    prop::collection::vec(step, 1..400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// One thread writes and reads in any order: frames are read as written, and room is freed.
    #[test]
    fn frames_are_read_as_written(steps in steps()) {
        let (layout, _fd) = Layout::create(2).unwrap();
        let layout = Arc::new(layout);
        let (mut writer, mut reader) = (Writer::new(layout.ring(0, 1)), Reader::new(layout.ring(0, 1)));
        // Of frames: number, payload, bytes sent. Of the one being read: the rest.
        let mut under_way: VecDeque<(u8, Vec<u8>)> = VecDeque::new();
        let (mut number, mut rest, mut reading) = (0u8, Vec::new(), VecDeque::new());
        let piece = |number: u8, len| (0..len).map(|i| (i as u8).wrapping_mul(7) ^ number).collect::<Vec<u8>>();
        for step in steps.into_iter().chain([Step::Read(usize::MAX)]) {
            match step {
                Step::Frame(len, most) if rest.is_empty() => {
                    let payload = piece(number, len);
                    let Some(away) = writer.begin(&[number; HEADER_LEN], &payload, most) else { continue };
                    rest = payload[away..].to_vec();
                    under_way.push_back((number, payload));
                    number = number.wrapping_add(1);
                }
                Step::Frame(_, most) => {
                    let away = writer.go_on(&rest, most);
                    rest.drain(..away);
                }
                Step::Read(count) => for _ in 0..count {
                    let mut moved = false;
                    if !rest.is_empty() {
                        rest.drain(..writer.go_on(&rest, usize::MAX));
                    }
                    let reading_len = reading.len();
                    if reading_len > 0 {
                        let take = |bytes: &[u8]| {
                            moved |= !bytes.is_empty();
                            assert!(reading.drain(..bytes.len()).eq(bytes.iter().copied()));
                        };
                        reader.take(PIECE.min(reading_len), take).unwrap();
                    } else if reader.has_cell() {
                        moved = true;
                        let (header, here) = reader.header();
                        let (number, payload) = under_way.pop_front().unwrap();
                        prop_assert_eq!(header, [number; HEADER_LEN]);
                        if payload.len() <= INLINE {
                            prop_assert_eq!(here, payload.len());
                            reader.take_payload(here, |bytes| assert_eq!(bytes, &payload[..]));
                        } else {
                            reader.take_cell(here).unwrap();
                            reading = payload.into();
                        }
                    }
                    reader.publish();
                    if !moved {
                        break;
                    }
                },
            }
        }
        prop_assert!(rest.is_empty() && reading.is_empty() && under_way.is_empty());
    }

    /// Words and cells of arbitrary bits: the reader reports an error or reads bytes of the ring, and the writer stays
    /// within the ring.
    #[test]
    fn arbitrary_bits_in_the_memory_never_leave_the_ring(words in prop::collection::vec(any::<u32>(), 6), here: u32, most in 0..PIECE) {
        let (layout, _fd) = Layout::create(2).unwrap();
        let layout = Arc::new(layout);
        let intruder = layout.ring(0, 1);
        let (mut writer, mut reader) = (Writer::new(layout.ring(0, 1)), Reader::new(layout.ring(0, 1)));
        intruder.fill_cell(0, &[9; HEADER_LEN], here, &[]);
        intruder.number(0).store(1, Ordering::Relaxed);
        let Positions { writer: ours, reader: theirs } = intruder.positions();
        ours.position.store(words[0], Ordering::Relaxed);
        theirs.position.store(words[1], Ordering::Relaxed);
        theirs.extra.store(words[2], Ordering::Relaxed);
        prop_assert!(reader.has_cell());
        let here = reader.header().1;
        let taken = reader.take_cell(here).and_then(|()| reader.take(most, |_| ()));
        let capacity = super::layout::capacity_of(2);
        prop_assert!(taken.is_err() || taken.unwrap() <= most);
        prop_assert_eq!(here > capacity as usize, reader.take_cell(here).is_err());
        reader.publish();
        let payload = vec![0; most + INLINE + 1];
        if writer.begin(&[0; HEADER_LEN], &payload, most).is_some_and(|away| away > most) {
            prop_assert!(false, "more than allowed");
        }
        writer.go_on(&payload, capacity as usize);
        writer.wait_for_room();
    }
}
