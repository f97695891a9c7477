//! Exact sums: one documented order of additions for every implementation.
//!
//! The inputs of a node have positions 0..k. They combine as the balanced binary tree over positions
//! ((0∘1)∘(2∘3))∘((4∘5)∘…): the right half of a group of 2ⁿ positions joins its left half. An absent position is
//! skipped, which for a sum equals adding −0, the identity of IEEE addition. The bits therefore depend on the
//! contributors and their positions, never on the order of arrival, and a wider node with empty positions gives the
//! same bits. NaNs are stored as one canonical NaN.

use half::{bf16, f16};

use crate::element::{Accumulator, Bytes, Element, Truth};
use crate::format::{Dtype, Encoding, Format, ReduceOp};
use crate::narrow::{Bf16FromE4m3, Bf16FromE5m2, I16FromI8};

/// One position's elements, little-endian, of any alignment.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// `n` elements in `encoding`.
    pub bytes: &'a [u8],
    /// Encoding of the elements.
    pub encoding: Encoding,
}

/// Combines `n` elements of all present positions into `out`.
///
/// `inputs`: by position, `None` for absent ones; each holds at least `n` elements. `out`: at least `n` elements in
/// `encoding`; unchanged if no input is present. Panics if a slice is too short: callers check lengths when they decode
/// packets.
pub fn reduce(
    format: Format,
    inputs: &[Option<Input<'_>>],
    n: usize,
    out: &mut [u8],
    encoding: Encoding,
) {
    each_kind(format, Tree { inputs, n, out, encoding });
}

/// Combines two buffers of equal length, with the result in the first.
///
/// The bits are those of [`reduce`] of both in either order: every operation is commutative. Panics if the second is
/// shorter than the first.
pub fn accumulate(format: Format, sum: &mut [u8], other: &[u8]) {
    each_kind(format, Accumulate { sum, other });
}

/// Like [`accumulate`], with the result in both. Panics if their lengths differ.
pub fn combine_both(format: Format, a: &mut [u8], b: &mut [u8]) {
    assert_eq!(a.len(), b.len(), "two buffers of one length");
    each_kind(format, CombineBoth { a, b });
}

/// Divides every element of `buffer` by `count`; integers truncate towards zero.
pub fn average(dtype: Dtype, buffer: &mut [u8], count: u32) {
    map(dtype, buffer, &Map::Divide(count));
}

/// Multiplies every element of `buffer` by `factor`; integers truncate towards zero.
pub fn scale(dtype: Dtype, buffer: &mut [u8], factor: f64) {
    map(dtype, buffer, &Map::Scale(factor));
}

/// A loop over elements, compiled for every type and operation. `OFTEN`: for sums, minima and maxima it is compiled for
/// the shapes and processors that occur most; with the other four, which are rare, this crate takes 1.7 times as long
/// to compile.
trait Kind {
    fn run<E: Element, const OFTEN: bool>(self, combine: impl Fn(E::Acc, E::Acc) -> E::Acc + Copy);
}

#[inline(always)]
fn each_kind(format: Format, kind: impl Kind) {
    match format.dtype {
        Dtype::F32 => by_op::<f32>(format.op, kind),
        Dtype::F16 => by_op::<f16>(format.op, kind),
        Dtype::Bf16 => by_op::<bf16>(format.op, kind),
        Dtype::I32 => by_op::<i32>(format.op, kind),
        Dtype::I64 => by_op::<i64>(format.op, kind),
        Dtype::F64 => by_op::<f64>(format.op, kind),
        Dtype::I8 => by_op::<i8>(format.op, kind),
        Dtype::U8 => by_op::<u8>(format.op, kind),
        Dtype::I16 => by_op::<i16>(format.op, kind),
        Dtype::Bool => by_op::<Truth>(format.op, kind),
        Dtype::I16FromI8 => by_op::<I16FromI8>(format.op, kind),
        Dtype::Bf16FromE4m3 => by_op::<Bf16FromE4m3>(format.op, kind),
        Dtype::Bf16FromE5m2 => by_op::<Bf16FromE5m2>(format.op, kind),
    }
}

#[inline(always)]
fn by_op<E: Element>(op: ReduceOp, kind: impl Kind) {
    match op {
        ReduceOp::Sum => kind.run::<E, true>(E::Acc::sum),
        ReduceOp::Min => kind.run::<E, true>(E::Acc::min),
        ReduceOp::Max => kind.run::<E, true>(E::Acc::max),
        ReduceOp::Product => kind.run::<E, false>(E::Acc::product),
        ReduceOp::BitAnd => kind.run::<E, false>(E::Acc::bit_and),
        ReduceOp::BitOr => kind.run::<E, false>(E::Acc::bit_or),
        ReduceOp::BitXor => kind.run::<E, false>(E::Acc::bit_xor),
    }
}

/// [`reduce`].
struct Tree<'a> {
    inputs: &'a [Option<Input<'a>>],
    n: usize,
    out: &'a mut [u8],
    encoding: Encoding,
}

impl Kind for Tree<'_> {
    fn run<E: Element, const OFTEN: bool>(self, combine: impl Fn(E::Acc, E::Acc) -> E::Acc + Copy) {
        blocks::<E, OFTEN>(self.inputs, self.n, self.out, self.encoding, combine);
    }
}

/// [`accumulate`].
struct Accumulate<'a> {
    sum: &'a mut [u8],
    other: &'a [u8],
}

impl Kind for Accumulate<'_> {
    fn run<E: Element, const OFTEN: bool>(self, combine: impl Fn(E::Acc, E::Acc) -> E::Acc + Copy) {
        let sum = E::Bytes::whole_mut(self.sum);
        let other = &E::Bytes::whole(self.other)[..sum.len()];
        wide::<OFTEN>(sum.len(), || {
            for (sum, other) in sum.iter_mut().zip(other) {
                *sum = E::store(combine(E::load(*sum), E::load(*other)).canonical());
            }
        });
    }
}

/// [`combine_both`].
struct CombineBoth<'a> {
    a: &'a mut [u8],
    b: &'a mut [u8],
}

impl Kind for CombineBoth<'_> {
    fn run<E: Element, const OFTEN: bool>(self, combine: impl Fn(E::Acc, E::Acc) -> E::Acc + Copy) {
        let a = E::Bytes::whole_mut(self.a);
        let b = &mut E::Bytes::whole_mut(self.b)[..a.len()];
        wide::<OFTEN>(a.len(), || {
            for (a, b) in a.iter_mut().zip(b) {
                let sum = E::store(combine(E::load(*a), E::load(*b)).canonical());
                (*a, *b) = (sum, sum);
            }
        });
    }
}

/// With fewer elements than this, detecting vector instructions takes longer than it saves.
#[cfg(target_arch = "x86_64")]
const WIDE_LEAST: usize = 256;

/// Number of elements combined at a time: their running values stay in the first-level cache.
const BLOCK: usize = 64;

#[inline(always)]
fn blocks<E: Element, const OFTEN: bool>(
    inputs: &[Option<Input<'_>>],
    n: usize,
    out: &mut [u8],
    encoding: Encoding,
    combine: impl Fn(E::Acc, E::Acc) -> E::Acc + Copy,
) {
    if OFTEN {
        let whole = |input: &Input<'_>| [input.encoding, encoding] == [Encoding::Element; 2];
        match inputs {
            [Some(a), Some(b)] if [a, b].into_iter().all(whole) => {
                return two::<E>([a.bytes, b.bytes], n, out, combine);
            }
            [Some(a), Some(b), Some(c), Some(d)] if [a, b, c, d].into_iter().all(whole) => {
                return all_four::<E>([a.bytes, b.bytes, c.bytes, d.bytes], n, out, combine);
            }
            [Some(a), Some(b), Some(c), Some(d), Some(e), Some(f), Some(g), Some(h)]
                if [a, b, c, d, e, f, g, h].into_iter().all(whole) =>
            {
                let inputs = [a, b, c, d, e, f, g, h].map(|input| input.bytes);
                return all_eight::<E>(inputs, n, out, combine);
            }
            _ => {}
        }
    }
    let mut acc = [E::Acc::default(); BLOCK];
    let mut start = 0;
    while start < n {
        let len = BLOCK.min(n - start);
        if !tree::<E, OFTEN>(inputs, start, len, &mut acc, combine) {
            return;
        }
        store_block::<E>(&acc[..len], start, out, encoding);
        start += len;
    }
}

/// Two inputs in one pass, the most frequent case of two ranks of a host: no running values are needed.
#[inline(always)]
fn two<E: Element>(
    inputs: [&[u8]; 2],
    n: usize,
    out: &mut [u8],
    combine: impl Fn(E::Acc, E::Acc) -> E::Acc + Copy,
) {
    let [a, b] = inputs.map(|bytes| &E::Bytes::whole(bytes)[..n]);
    let out = &mut E::Bytes::whole_mut(out)[..n];
    wide::<true>(n, || {
        for ((sum, a), b) in out.iter_mut().zip(a).zip(b) {
            *sum = E::store(combine(E::load(*a), E::load(*b)).canonical());
        }
    });
}

/// Four inputs in one pass, for four ranks.
#[inline(always)]
fn all_four<E: Element>(
    inputs: [&[u8]; 4],
    n: usize,
    out: &mut [u8],
    combine: impl Fn(E::Acc, E::Acc) -> E::Acc + Copy,
) {
    let [a, b, c, d] = inputs.map(|bytes| &E::Bytes::whole(bytes)[..n]);
    let out = &mut E::Bytes::whole_mut(out)[..n];
    wide::<true>(n, || {
        for ((((sum, a), b), c), d) in out.iter_mut().zip(a).zip(b).zip(c).zip(d) {
            let left = combine(E::load(*a), E::load(*b));
            let right = combine(E::load(*c), E::load(*d));
            *sum = E::store(combine(left, right).canonical());
        }
    });
}

/// Eight inputs in one pass, for eight ranks.
#[inline(always)]
fn all_eight<E: Element>(
    inputs: [&[u8]; 8],
    n: usize,
    out: &mut [u8],
    combine: impl Fn(E::Acc, E::Acc) -> E::Acc + Copy,
) {
    wide::<true>(n, || {
        // Sliced within the loop's own function, so that the compiler can omit bounds checks.
        let inputs = inputs.map(|bytes| &E::Bytes::whole(bytes)[..n]);
        let out = &mut E::Bytes::whole_mut(out)[..n];
        for at in 0..n {
            let two =
                |first: usize| combine(E::load(inputs[first][at]), E::load(inputs[first + 1][at]));
            let (left, right) = (combine(two(0), two(2)), combine(two(4), two(6)));
            out[at] = E::store(combine(left, right).canonical());
        }
    });
}

/// Runs a loop over `n` elements, compiled for the widest vectors of this processor if it runs often. The bits do not depend on them:
/// every element is combined separately, and nothing is contracted.
#[inline(always)]
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(unused_variables, reason = "the vectors of others have one width")
)]
pub(crate) fn wide<const OFTEN: bool>(n: usize, body: impl FnOnce()) {
    #[cfg(target_arch = "x86_64")]
    if OFTEN && n >= WIDE_LEAST {
        if let Some(vectors) = pulp::x86::V4::try_new() {
            return vectors.vectorize(body);
        }
        if let Some(vectors) = pulp::x86::V3::try_new() {
            return vectors.vectorize(body);
        }
    }
    body();
}

/// Combines positions as a balanced tree into `acc`; false if none is present.
fn tree<E: Element, const OFTEN: bool>(
    inputs: &[Option<Input<'_>>],
    start: usize,
    len: usize,
    acc: &mut [E::Acc; BLOCK],
    combine: impl Fn(E::Acc, E::Acc) -> E::Acc + Copy,
) -> bool {
    match inputs {
        [] | [None] => false,
        [Some(only)] => {
            load_block::<E>(only, start, &mut acc[..len], |_, x| x);
            true
        }
        [Some(left), Some(right)] if OFTEN => {
            load_block::<E>(left, start, &mut acc[..len], |_, x| x);
            load_block::<E>(right, start, &mut acc[..len], combine);
            true
        }
        [Some(a), Some(b), Some(c), Some(d)] if OFTEN && alike([a, b, c, d]) => {
            let inputs = [a.bytes, b.bytes, c.bytes, d.bytes];
            match a.encoding {
                Encoding::Element => four::<E>(inputs, start, &mut acc[..len], combine),
                Encoding::Accumulator => four::<E::Acc>(inputs, start, &mut acc[..len], combine),
                Encoding::Narrow => {
                    four::<E::Contribution>(inputs, start, &mut acc[..len], combine);
                }
            }
            true
        }
        _ => {
            let (left, right) = inputs.split_at(inputs.len().next_power_of_two() / 2);
            if !tree::<E, OFTEN>(left, start, len, acc, combine) {
                return tree::<E, OFTEN>(right, start, len, acc, combine);
            }
            let mut other = [E::Acc::default(); BLOCK];
            if tree::<E, OFTEN>(right, start, len, &mut other, combine) {
                for (a, b) in acc[..len].iter_mut().zip(&other[..len]) {
                    *a = combine(*a, *b);
                }
            }
            true
        }
    }
}

fn alike(inputs: [&Input<'_>; 4]) -> bool {
    inputs.iter().all(|i| i.encoding == inputs[0].encoding)
}

/// Four adjacent inputs in one pass, so that running values stay in registers: half the time for a node with four
/// children.
#[inline(always)]
fn four<E: Element>(
    inputs: [&[u8]; 4],
    start: usize,
    acc: &mut [E::Acc],
    combine: impl Fn(E::Acc, E::Acc) -> E::Acc + Copy,
) {
    let end = start + acc.len();
    let [a, b, c, d] = inputs.map(|bytes| &E::Bytes::whole(bytes)[start..end]);
    for ((((sum, a), b), c), d) in acc.iter_mut().zip(a).zip(b).zip(c).zip(d) {
        let left = combine(E::load(*a), E::load(*b));
        *sum = combine(left, combine(E::load(*c), E::load(*d)));
    }
}

#[inline(always)]
fn load_block<E: Element>(
    input: &Input<'_>,
    start: usize,
    acc: &mut [E::Acc],
    put: impl Fn(E::Acc, E::Acc) -> E::Acc,
) {
    match input.encoding {
        Encoding::Element => load::<E>(input.bytes, start, acc, put),
        Encoding::Accumulator => load::<E::Acc>(input.bytes, start, acc, put),
        Encoding::Narrow => load::<E::Contribution>(input.bytes, start, acc, put),
    }
}

#[inline(always)]
fn load<E: Element>(
    bytes: &[u8],
    start: usize,
    acc: &mut [E::Acc],
    put: impl Fn(E::Acc, E::Acc) -> E::Acc,
) {
    let elements = &E::Bytes::whole(bytes)[start..start + acc.len()];
    for (a, b) in acc.iter_mut().zip(elements) {
        *a = put(*a, E::load(*b));
    }
}

#[inline(always)]
fn store_block<E: Element>(acc: &[E::Acc], start: usize, out: &mut [u8], encoding: Encoding) {
    match encoding {
        Encoding::Element => store::<E>(acc, start, out),
        Encoding::Accumulator => store::<E::Acc>(acc, start, out),
        Encoding::Narrow => store::<E::Contribution>(acc, start, out),
    }
}

#[inline(always)]
fn store<E: Element>(acc: &[E::Acc], start: usize, out: &mut [u8]) {
    let elements = &mut E::Bytes::whole_mut(out)[start..start + acc.len()];
    for (a, b) in acc.iter().zip(elements) {
        *b = E::store(a.canonical());
    }
}

enum Map {
    Divide(u32),
    Scale(f64),
}

fn map(dtype: Dtype, buffer: &mut [u8], f: &Map) {
    match dtype {
        Dtype::F32 => each::<f32>(buffer, f),
        Dtype::F16 => each::<f16>(buffer, f),
        Dtype::Bf16 => each::<bf16>(buffer, f),
        Dtype::I32 => each::<i32>(buffer, f),
        Dtype::I64 => each::<i64>(buffer, f),
        Dtype::F64 => each::<f64>(buffer, f),
        Dtype::I8 => each::<i8>(buffer, f),
        Dtype::U8 => each::<u8>(buffer, f),
        Dtype::I16 => each::<i16>(buffer, f),
        Dtype::Bool => each::<Truth>(buffer, f),
        Dtype::I16FromI8 => each::<I16FromI8>(buffer, f),
        Dtype::Bf16FromE4m3 => each::<Bf16FromE4m3>(buffer, f),
        Dtype::Bf16FromE5m2 => each::<Bf16FromE5m2>(buffer, f),
    }
}

fn each<E: Element>(buffer: &mut [u8], f: &Map) {
    for bytes in E::Bytes::whole_mut(buffer) {
        let x = E::load(*bytes);
        let y = match *f {
            Map::Divide(count) => x.divide(count),
            Map::Scale(factor) => x.scale(factor),
        };
        *bytes = E::store(y.canonical());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    fn sum_f32(children: &[Option<&[u8]>], n: usize) -> Vec<f32> {
        let inputs: Vec<_> = children
            .iter()
            .map(|c| c.map(|bytes| Input { bytes, encoding: Encoding::Element }))
            .collect();
        let mut out = vec![0; n * 4];
        let format = Format { dtype: Dtype::F32, op: ReduceOp::Sum };
        reduce(format, &inputs, n, &mut out, Encoding::Element);
        out.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }

    #[test]
    fn sums_are_by_position_not_by_rank_among_the_present() {
        // In binary32 (1 + 2^-24) + 2^-24 is 1, and 1 + (2^-24 + 2^-24) is not.
        let tiny = 2f32.powi(-24);
        let (one, t) = (floats(&[1.0]), floats(&[tiny]));
        let paired = sum_f32(&[Some(&one), None, Some(&t), Some(&t)], 1);
        let closed_up = sum_f32(&[Some(&one), Some(&t), Some(&t)], 1);
        assert_eq!(paired, [1.0 + 2.0 * tiny]);
        assert_eq!(closed_up, [1.0]);
    }

    #[test]
    fn empty_positions_are_the_identity() {
        let negative_zero = floats(&[-0.0]);
        let wide = sum_f32(&[None, None, Some(&negative_zero), None, None], 1);
        assert_eq!(wide[0].to_bits(), (-0.0f32).to_bits());
    }

    #[test]
    fn nans_are_canonical_even_when_alone() {
        let odd = f32::from_bits(0xffc1_2345);
        assert_eq!(sum_f32(&[Some(&floats(&[odd]))], 1)[0].to_bits(), 0x7fc0_0000);
        let inf =
            sum_f32(&[Some(&floats(&[f32::INFINITY])), Some(&floats(&[f32::NEG_INFINITY]))], 1);
        assert_eq!(inf[0].to_bits(), 0x7fc0_0000);
    }

    #[test]
    fn minimum_orders_zeros_and_propagates_nan() {
        let inputs = [floats(&[0.0, 1.0, f32::NAN]), floats(&[-0.0, 2.0, 0.0])];
        let inputs: Vec<_> =
            inputs.iter().map(|bytes| Some(Input { bytes, encoding: Encoding::Element })).collect();
        let mut out = vec![0; 12];
        let format = Format { dtype: Dtype::F32, op: ReduceOp::Min };
        reduce(format, &inputs, 3, &mut out, Encoding::Element);
        assert_eq!(out, floats(&[-0.0, 1.0, f32::from_bits(0x7fc0_0000)]));
    }

    /// Arbitrary bit patterns: includes NaNs, infinities and subnormal numbers.
    fn noise(mut state: u64) -> impl FnMut(usize) -> Vec<u8> {
        move |len| {
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            };
            (0..len).map(|_| next()).collect()
        }
    }

    #[test]
    fn wide_vectors_give_the_same_bits_as_single_elements() {
        let n = 3 * 256 + 7;
        let mut noise = noise(1);
        for dtype in Dtype::ALL {
            for op in ReduceOp::ALL {
                for count in [2, 3, 4, 8] {
                    let size = dtype.size();
                    let all: Vec<Vec<u8>> = (0..count).map(|_| noise(n * size)).collect();
                    let sum = |from: usize, n: usize, out: &mut [u8]| {
                        let parts = all.iter().map(|bytes| &bytes[from * size..]);
                        let encoding = Encoding::Element;
                        let inputs: Vec<_> =
                            parts.map(|bytes| Some(Input { bytes, encoding })).collect();
                        reduce(Format { dtype, op }, &inputs, n, out, Encoding::Element);
                    };
                    let mut together = vec![0; n * size];
                    sum(0, n, &mut together);
                    let mut single = vec![0; n * size];
                    single.chunks_mut(size).enumerate().for_each(|(i, out)| sum(i, 1, out));
                    assert!(together == single, "{dtype} {op:?} of {count}");
                }
            }
        }
    }

    #[test]
    fn one_pass_gives_the_same_bits_as_a_tree() {
        let n = 256 + 7;
        let mut noise = noise(3);
        for dtype in Dtype::ALL {
            for op in ReduceOp::ALL {
                for count in [2, 4, 8] {
                    let all: Vec<Vec<u8>> = (0..count).map(|_| noise(n * dtype.size())).collect();
                    let encoding = Encoding::Element;
                    let mut inputs: Vec<_> =
                        all.iter().map(|bytes| Some(Input { bytes, encoding })).collect();
                    let sum = |inputs: &[Option<Input<'_>>]| {
                        let mut out = vec![0; n * dtype.size()];
                        reduce(Format { dtype, op }, inputs, n, &mut out, encoding);
                        out
                    };
                    let in_one_pass = sum(&inputs);
                    // A node with an empty position is not added in one pass.
                    inputs.push(None);
                    assert!(in_one_pass == sum(&inputs), "{dtype} {op:?} of {count}");
                }
            }
        }
    }

    #[test]
    fn two_in_place_give_the_same_bits_as_two_separate() {
        let n = 256 + 7;
        let mut noise = noise(3);
        for dtype in Dtype::ALL {
            for op in ReduceOp::ALL {
                let format = Format { dtype, op };
                let (mut a, mut b) = (noise(n * dtype.size()), noise(n * dtype.size()));
                let apart = |inputs: [&[u8]; 2]| {
                    let encoding = Encoding::Element;
                    let inputs = inputs.map(|bytes| Some(Input { bytes, encoding }));
                    let mut out = vec![0; n * dtype.size()];
                    reduce(format, &inputs, n, &mut out, encoding);
                    out
                };
                let expected = apart([&a, &b]);
                assert!(expected == apart([&b, &a]), "{dtype} {op:?} tells its inputs apart");
                let mut sum = b.clone();
                accumulate(format, &mut sum, &a);
                assert!(sum == expected, "{dtype} {op:?} in one");
                combine_both(format, &mut a, &mut b);
                assert!(a == expected && b == expected, "{dtype} {op:?} in both");
            }
        }
    }

    #[test]
    fn averages_divide_once() {
        let mut buffer: Vec<u8> = [7i32, -7].iter().flat_map(|v| v.to_le_bytes()).collect();
        average(Dtype::I32, &mut buffer, 2);
        let expected: Vec<u8> = [3i32, -3].iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(buffer, expected);
    }
}
