//! Words combined as a slot does it, in any order, against sums and comparisons of the elements.

use netsum_wire::{
    Arithmetic, Dtype, Encoding, Format, Input, MOST_PAIRED_RANKS, ReduceOp, Words, contribute,
    reduce,
};
use proptest::prelude::*;

fn formats() -> Vec<Format> {
    let each = |dtype: &Dtype| ReduceOp::ALL.map(|op| Format { dtype: *dtype, op });
    let all = Dtype::ALL.iter().flat_map(each);
    all.filter(|format| Words::of(*format, 2).is_some()).collect()
}

/// What the elements combine to, by the arithmetic of buffers.
fn expected(format: Format, ranks: &[Vec<u8>]) -> Vec<u8> {
    let n = ranks[0].len() / format.dtype.size();
    let narrow = format.dtype == Dtype::I16FromI8;
    let encoding = if narrow { Encoding::Narrow } else { Encoding::Element };
    let contribution = |elements: &Vec<u8>| match narrow {
        true => {
            let mut bytes = vec![0; n];
            contribute(format.dtype, elements, &mut bytes);
            bytes
        }
        false => elements.clone(),
    };
    let contributions: Vec<_> = ranks.iter().map(contribution).collect();
    let inputs: Vec<_> =
        contributions.iter().map(|bytes| Some(Input { bytes, encoding })).collect();
    let mut out = vec![0; ranks[0].len()];
    reduce(format, &inputs, n, &mut out, Encoding::Element);
    out
}

/// What comes back from a slot to which ranks contribute in this order.
fn combined<'a>(format: Format, mut order: impl ExactSizeIterator<Item = &'a Vec<u8>>) -> Vec<u8> {
    let words = Words::of(format, order.len() as u32).unwrap();
    let written = |elements: &Vec<u8>| {
        let count = words.count((elements.len() / format.dtype.size()) as u64);
        let mut out = vec![0xee; count as usize * Arithmetic::ELEMENT_BYTES];
        words.write(elements, &mut out);
        out
    };
    let first = order.next().unwrap();
    let mut sum = written(first);
    for elements in order {
        assert!(!words.arithmetic().combine(&mut sum, &written(elements)), "words saturate");
    }
    let mut out = vec![0; first.len()];
    words.read(&sum, &mut out);
    out
}

proptest! {
    #[test]
    fn words_combine_as_their_elements_do(
        which in any::<prop::sample::Index>(),
        ranks in prop::collection::vec(prop::collection::vec(any::<u8>(), 600..1300), 1..12),
        short in any::<bool>(),
        odd in any::<[u8; 4]>(),
        turn in any::<prop::sample::Index>(),
    ) {
        let formats = formats();
        let format = formats[which.index(formats.len())];
        let shortest = ranks.iter().map(Vec::len).min().unwrap() / if short { 40 } else { 1 };
        let len = shortest / format.dtype.size() * format.dtype.size();
        let mut ranks: Vec<Vec<u8>> = ranks.iter().map(|bytes| bytes[..len].to_vec()).collect();
        // Zeros of both signs, infinities and NaNs are rare among random bytes.
        let special = [0.0f32, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN];
        for (rank, (bytes, odd)) in ranks.iter_mut().zip(odd.iter().cycle()).enumerate() {
            let value = special[usize::from(*odd) % special.len()].to_le_bytes();
            let value = &value[4 - format.dtype.size()..];
            bytes[..value.len()].copy_from_slice(value);
            let at = rank % (len / value.len()) * value.len();
            bytes[at..at + value.len()].copy_from_slice(value);
        }
        let turn = turn.index(ranks.len());
        let mut order: Vec<_> = ranks[turn..].iter().chain(&ranks[..turn]).collect();
        order.reverse();
        prop_assert_eq!(combined(format, order.into_iter()), expected(format, &ranks), "{:?}", format);
    }
}

#[test]
fn the_largest_numbers_of_the_most_ranks_are_not_carried() {
    let format = Format { dtype: Dtype::I16FromI8, op: ReduceOp::Sum };
    for value in [-300i16, -128, -1, 0, 127, 255] {
        let elements: Vec<u8> = (0..5).flat_map(|_| value.to_le_bytes()).collect();
        let all = vec![elements; MOST_PAIRED_RANKS as usize];
        assert_eq!(combined(format, all.iter()), expected(format, &all), "{value}");
    }
    assert_eq!(Words::of(format, MOST_PAIRED_RANKS + 1), None);
}

#[test]
fn other_formats_have_no_words() {
    for (dtype, op) in [
        (Dtype::I32, ReduceOp::Product),
        (Dtype::F32, ReduceOp::Sum),
        (Dtype::I16FromI8, ReduceOp::Max),
        (Dtype::Bf16FromE4m3, ReduceOp::Sum),
        (Dtype::I8, ReduceOp::Sum),
    ] {
        assert_eq!(Words::of(Format { dtype, op }, 2), None, "{dtype} {}", op.name());
    }
}
