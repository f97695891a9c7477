//! The ring under a model checker, against a plain model, and against a writer that scribbles.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use proptest::prelude::*;

use super::layout::Layout;
use super::ring::{Bell, INLINE, Reader, Room, Side, Words, Writer};
use super::{HEADER_LEN, PIECE};

/// A ring of two cells and two bytes, in which loom sees who touches what.
#[derive(Clone)]
struct Model(loom::sync::Arc<Parts>);

struct Parts {
    words: Words<loom::sync::atomic::AtomicU32>,
    numbers: [loom::sync::atomic::AtomicU32; 2],
    cells: [loom::cell::UnsafeCell<(u8, u32, Vec<u8>)>; 2],
    bytes: [loom::cell::UnsafeCell<u8>; 2],
}

impl Model {
    fn new() -> Model {
        let word = || loom::sync::atomic::AtomicU32::new(0);
        let side = || Side { bytes: word(), other: word() };
        Model(loom::sync::Arc::new(Parts {
            words: Words { writer: side(), reader: side() },
            numbers: [word(), word()],
            cells: [(); 2].map(|()| loom::cell::UnsafeCell::new((0, 0, Vec::new()))),
            bytes: [(); 2].map(|()| loom::cell::UnsafeCell::new(0)),
        }))
    }

    fn byte(&self, at: u32) -> &loom::cell::UnsafeCell<u8> {
        &self.0.bytes[at as usize % 2]
    }
}

// SAFETY of all accesses below: loom checks that nobody else is in the cell; that is what the tests show.
impl Room for Model {
    type Word = loom::sync::atomic::AtomicU32;
    fn words(&self) -> &Words<Self::Word> {
        &self.0.words
    }
    fn cells(&self) -> u32 {
        2
    }
    fn capacity(&self) -> u32 {
        2
    }
    fn number(&self, cell: u32) -> &Self::Word {
        &self.0.numbers[cell as usize % 2]
    }
    fn fill_cell(&self, cell: u32, header: &[u8; HEADER_LEN], here: u32, payload: &[u8]) {
        let fill =
            |to: *mut (u8, u32, Vec<u8>)| unsafe { *to = (header[0], here, payload.to_vec()) };
        self.0.cells[cell as usize % 2].with_mut(fill);
    }
    fn header(&self, cell: u32) -> ([u8; HEADER_LEN], u32) {
        let mut header = [0; HEADER_LEN];
        self.0.cells[cell as usize % 2].with(|from| unsafe {
            header[0] = (*from).0;
            (header, (*from).1)
        })
    }
    fn payload(&self, cell: u32, len: usize, take: impl FnOnce(&[u8])) {
        self.0.cells[cell as usize % 2].with(|from| take(unsafe { &(&(*from).2)[..len] }));
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

/// Interleavings of two who try again and again, with at most three switches that neither of them asks for: all would take
/// minutes.
fn few_switches(body: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(body);
}

/// A payload that does not go in a cell.
const LONG: [u8; INLINE + 1] = [7; INLINE + 1];

/// Interleavings of a writer of frames in cells, more than there are, and their reader: every frame is read whole, once
/// and in order, and a cell is not filled before it was read.
#[test]
fn cells_are_read_when_they_are_full_and_filled_when_they_were_read() {
    few_switches(|| {
        let model = Model::new();
        let writing = loom::thread::spawn({
            let mut writer = Writer::new(model.clone());
            move || {
                for frame in 1..=3u8 {
                    while !writer.whole(&[frame; HEADER_LEN], &[frame, 0]) {
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
            reader.tell();
        }
        writing.join().unwrap();
    });
}

/// The same of a payload that goes through the ring of bytes, in pieces, of which the first comes with its cell; the writer
/// asks to be told of room and looks again, as it does before it sleeps.
#[test]
fn bytes_are_read_when_they_were_written() {
    few_switches(|| {
        let model = Model::new();
        let writing = loom::thread::spawn({
            let mut writer = Writer::new(model.clone());
            move || {
                let mut away = writer.begin(&[1; HEADER_LEN], &LONG, 1).unwrap();
                while away < 3 {
                    match writer.go_on(&LONG[away..3], 2) {
                        0 if writer.starve() => loom::thread::yield_now(),
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
            reader.tell();
            if count == 0 {
                loom::thread::yield_now();
            }
        }
        writing.join().unwrap();
    });
}

/// All interleavings of one who writes and rings where it must, and one who arms its bell, looks and sleeps: it never sleeps on
/// with a frame there that nobody will ring for.
#[test]
fn who_sleeps_is_rung_for() {
    loom::model(|| {
        let model = Model::new();
        let bell = loom::sync::Arc::new(bell());
        let rings = loom::sync::Arc::new(loom::sync::Notify::new());
        let writing = loom::thread::spawn({
            let (mut writer, bell, rings) =
                (Writer::new(model.clone()), bell.clone(), rings.clone());
            move || {
                assert!(writer.whole(&[1; HEADER_LEN], &[]));
                if bell.is_needed() {
                    rings.notify();
                }
            }
        });
        let reader = Reader::new(model);
        bell.arm();
        while !reader.has_cell() {
            // It may end for no reason, once; loom reports a deadlock if nobody rings.
            rings.wait();
        }
        bell.disarm();
        assert!(reader.has_cell());
        writing.join().unwrap();
    });
}

/// The same of a writer that has no room and sleeps, and a reader that makes room.
#[test]
fn who_has_no_room_is_told_of_it() {
    loom::model(|| {
        let model = Model::new();
        let bell = loom::sync::Arc::new(bell());
        let rings = loom::sync::Arc::new(loom::sync::Notify::new());
        let mut writer = Writer::new(model.clone());
        assert_eq!(writer.begin(&[1; HEADER_LEN], &LONG, 2), Some(2));
        let reading = loom::thread::spawn({
            let (mut reader, bell, rings) = (Reader::new(model), bell.clone(), rings.clone());
            move || {
                reader.take_cell(reader.header().1).unwrap();
                assert_eq!(reader.take(2, |_| ()), Ok(2));
                if reader.tell() && bell.is_needed() {
                    rings.notify();
                }
            }
        });
        if writer.go_on(&LONG[2..], 1) == 0 && writer.starve() {
            bell.arm();
            while !writer.can_go_on() {
                rings.wait();
            }
            bell.disarm();
            assert!(writer.can_go_on());
        }
        reading.join().unwrap();
    });
}

fn bell() -> Bell<loom::sync::atomic::AtomicU32> {
    let word = || loom::sync::atomic::AtomicU32::new(0);
    Bell::new(word(), word(), word())
}

#[derive(Clone, Debug)]
enum Step {
    /// A frame with so many bytes of payload, at most so many of them at once.
    Frame(usize, usize),
    /// Reads at most so many frames or pieces.
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

    /// One thread writes and reads in any order: what comes out is what went in, and room comes back.
    #[test]
    fn what_goes_in_comes_out(steps in steps()) {
        let (layout, _fd) = Layout::create(2).unwrap();
        let layout = Arc::new(layout);
        let (mut writer, mut reader) = (Writer::new(layout.ring(0, 1)), Reader::new(layout.ring(0, 1)));
        // Of frames: number, payload, how much of it is away. Of the one that is read: what is left.
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
                    reader.tell();
                    if !moved {
                        break;
                    }
                },
            }
        }
        prop_assert!(rest.is_empty() && reading.is_empty() && under_way.is_empty());
    }

    /// Words and cells of any bits: the reader says what is wrong or reads bytes of the ring, and the writer writes in the ring.
    #[test]
    fn nonsense_in_the_memory_harms_nobody(words in prop::collection::vec(any::<u32>(), 6), here: u32, most in 0..PIECE) {
        let (layout, _fd) = Layout::create(2).unwrap();
        let layout = Arc::new(layout);
        let scribbler = layout.ring(0, 1);
        let (mut writer, mut reader) = (Writer::new(layout.ring(0, 1)), Reader::new(layout.ring(0, 1)));
        scribbler.fill_cell(0, &[9; HEADER_LEN], here, &[]);
        scribbler.number(0).store(1, Ordering::Relaxed);
        let Words { writer: ours, reader: theirs } = scribbler.words();
        ours.bytes.store(words[0], Ordering::Relaxed);
        theirs.bytes.store(words[1], Ordering::Relaxed);
        theirs.other.store(words[2], Ordering::Relaxed);
        prop_assert!(reader.has_cell());
        let here = reader.header().1;
        let taken = reader.take_cell(here).and_then(|()| reader.take(most, |_| ()));
        let capacity = super::layout::capacity_of(2);
        prop_assert!(taken.is_err() || taken.unwrap() <= most);
        prop_assert_eq!(here > capacity as usize, reader.take_cell(here).is_err());
        reader.tell();
        let payload = vec![0; most + INLINE + 1];
        if writer.begin(&[0; HEADER_LEN], &payload, most).is_some_and(|away| away > most) {
            prop_assert!(false, "more than allowed");
        }
        writer.go_on(&payload, capacity as usize);
        writer.starve();
    }
}
