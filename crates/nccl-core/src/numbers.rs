//! Mapping of NCCL's element types and operations to netsum's, with pre- and postprocessing where these differ.

use std::collections::HashMap;
use std::ffi::c_int;

use netsum_collective::{Combine, Dtype, ReduceOp};
use parking_lot::Mutex;

use crate::failure::Failure;

/// An element type, and whether it is unsigned while netsum's is signed: sums and products then have the same bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kind {
    /// Netsum's type.
    pub dtype: Dtype,
    unsigned: bool,
    /// The name of a type that is moved but not combined; its bytes are those of `dtype`.
    moved: Option<&'static str>,
}

impl Kind {
    /// Failures: a type that netsum does not have.
    pub fn of(datatype: c_int) -> Result<Kind, Failure> {
        let (dtype, unsigned) = match datatype {
            0 => (Dtype::I8, false),
            1 => (Dtype::U8, false),
            2 => (Dtype::I32, false),
            3 => (Dtype::I32, true),
            4 => (Dtype::I64, false),
            5 => (Dtype::I64, true),
            6 => (Dtype::F16, false),
            7 => (Dtype::F32, false),
            8 => (Dtype::F64, false),
            9 => (Dtype::Bf16, false),
            10 => return Ok(Kind { dtype: Dtype::U8, unsigned: false, moved: Some("float8e4m3") }),
            11 => return Ok(Kind { dtype: Dtype::U8, unsigned: false, moved: Some("float8e5m2") }),
            _ => return Err(Failure::argument(format!("datatype {datatype} does not exist"))),
        };
        Ok(Kind { dtype, unsigned, moved: None })
    }

    /// Bytes of `count` elements.
    pub fn bytes(self, count: usize) -> Result<usize, Failure> {
        let bytes =
            count.checked_mul(self.dtype.size()).filter(|&bytes| bytes <= isize::MAX as usize);
        bytes.ok_or_else(|| Failure::argument(format!("{count} elements are too many")))
    }
}

/// How elements are combined, with the preprocessing of a rank's values and the postprocessing of the result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reduction {
    /// The elements.
    pub kind: Kind,
    /// How netsum combines them.
    pub how: Combine,
    around: Around,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Around {
    Nothing,
    /// Sign bits are inverted before and after, so that signed comparison orders unsigned numbers.
    Signs,
    /// The sum of unsigned numbers is divided afterwards.
    Divide,
}

impl Reduction {
    /// Failures: a type or an operation that netsum does not have.
    pub fn of(op: c_int, datatype: c_int) -> Result<Reduction, Failure> {
        let kind = Kind::of(datatype)?;
        if let Some(name) = kind.moved {
            let words = format!(
                "{name} is moved, not combined: neither hosts nor switches add floats of 8 bits"
            );
            return Err(Failure::argument(words));
        }
        let order = if kind.unsigned { Around::Signs } else { Around::Nothing };
        let (how, around) = match op {
            0 => (Combine::Plain(ReduceOp::Sum), Around::Nothing),
            1 => (Combine::Plain(ReduceOp::Product), Around::Nothing),
            2 => (Combine::Plain(ReduceOp::Max), order),
            3 => (Combine::Plain(ReduceOp::Min), order),
            4 if kind.unsigned => (Combine::Plain(ReduceOp::Sum), Around::Divide),
            4 => (Combine::Average, Around::Nothing),
            _ => (Combine::ScaledSum(scaled(op, datatype)?), Around::Nothing),
        };
        Ok(Reduction { kind, how, around })
    }

    /// Whether a rank's values are changed before they are sent, so that a `const` buffer must be copied.
    pub fn changes_input(self) -> bool {
        self.around == Around::Signs
    }

    /// Prepares a rank's values.
    pub fn before(self, values: &mut [u8]) {
        if self.around == Around::Signs {
            turn_signs(self.kind.dtype, values);
        }
    }

    /// Concludes the combined values of `ranks` ranks.
    pub fn after(self, values: &mut [u8], ranks: u32) {
        match self.around {
            Around::Nothing => {}
            Around::Signs => turn_signs(self.kind.dtype, values),
            Around::Divide => divide(self.kind.dtype, values, ranks),
        }
    }
}

fn turn_signs(dtype: Dtype, values: &mut [u8]) {
    // Little-endian: the sign is in an element's last byte.
    values.iter_mut().skip(dtype.size() - 1).step_by(dtype.size()).for_each(|byte| *byte ^= 0x80);
}

fn divide(dtype: Dtype, values: &mut [u8], ranks: u32) {
    if dtype == Dtype::I64 {
        for value in values.as_chunks_mut::<8>().0 {
            *value = (u64::from_le_bytes(*value) / u64::from(ranks)).to_le_bytes();
        }
    } else {
        for value in values.as_chunks_mut::<4>().0 {
            *value = (u32::from_le_bytes(*value) / ranks).to_le_bytes();
        }
    }
}

/// Scaled sums created by callers: number, with the datatype and factor of each.
static SCALED: Mutex<Option<HashMap<c_int, (c_int, f64)>>> = Mutex::new(None);
/// After NCCL's own operations.
const FIRST_SCALED: c_int = 5;

/// Creates an operation that multiplies by the scalar in `bytes`, of type `datatype`; returns its number.
pub fn create_scaled(datatype: c_int, bytes: &[u8]) -> Result<c_int, Failure> {
    let factor = read(Kind::of(datatype)?, bytes);
    let mut scaled = SCALED.lock();
    let known = scaled.get_or_insert_default();
    let free = (FIRST_SCALED..c_int::MAX).find(|number| !known.contains_key(number));
    let number = free.ok_or_else(|| Failure::usage("too many operations were made"))?;
    known.insert(number, (datatype, factor));
    Ok(number)
}

/// Destroys an operation; its number may be reused.
pub fn destroy_scaled(op: c_int) -> Result<(), Failure> {
    let gone = SCALED.lock().get_or_insert_default().remove(&op);
    gone.map(|_| ())
        .ok_or_else(|| Failure::argument(format!("operation {op} was not made by the caller")))
}

fn scaled(op: c_int, datatype: c_int) -> Result<f64, Failure> {
    match SCALED.lock().get_or_insert_default().get(&op) {
        Some(&(made_for, factor)) if made_for == datatype => Ok(factor),
        Some(&(made_for, _)) => {
            let words = format!("operation {op} was made for datatype {made_for}, not {datatype}");
            Err(Failure::argument(words))
        }
        None => Err(Failure::argument(format!("operation {op} does not exist"))),
    }
}

/// A scalar as a float of 64 bits; integers above 2^53 are rounded.
fn read(kind: Kind, bytes: &[u8]) -> f64 {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let [a, b, c, d, ..] = wide;
    match (kind.dtype, kind.unsigned) {
        (Dtype::I8, _) => f64::from(a as i8),
        (Dtype::I32, false) => f64::from(i32::from_le_bytes([a, b, c, d])),
        (Dtype::I64, false) => i64::from_le_bytes(wide) as f64,
        (Dtype::F16, _) => half::f16::from_le_bytes([a, b]).to_f64(),
        (Dtype::Bf16, _) => half::bf16::from_le_bytes([a, b]).to_f64(),
        (Dtype::F32, _) => f64::from(f32::from_le_bytes([a, b, c, d])),
        (Dtype::F64, _) => f64::from_le_bytes(wide),
        _ => u64::from_le_bytes(wide) as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsigned_order_is_kept() {
        let max = Reduction::of(2, 3).unwrap();
        assert!(max.changes_input());
        let mut values: Vec<u8> =
            [1u32, 0x8000_0000, u32::MAX].iter().flat_map(|v| v.to_le_bytes()).collect();
        let original = values.clone();
        max.before(&mut values);
        let signed: Vec<i32> =
            values.as_chunks::<4>().0.iter().map(|v| i32::from_le_bytes(*v)).collect();
        assert!(signed.is_sorted());
        max.after(&mut values, 3);
        assert_eq!(values, original);
        assert!(!Reduction::of(2, 2).unwrap().changes_input());
    }

    #[test]
    fn unsigned_averages_divide_without_sign() {
        let average = Reduction::of(4, 5).unwrap();
        let mut values = (u64::MAX - 1).to_le_bytes();
        average.after(&mut values, 2);
        assert_eq!(u64::from_le_bytes(values), u64::MAX / 2);
        assert_eq!(Reduction::of(4, 4).unwrap().how, Combine::Average);
    }

    #[test]
    fn floats_of_8_bits_are_moved_and_not_combined() {
        for (datatype, name) in [(10, "float8e4m3"), (11, "float8e5m2")] {
            assert_eq!(Kind::of(datatype).unwrap().bytes(7).unwrap(), 7);
            assert!(Reduction::of(0, datatype).unwrap_err().words.contains(name));
        }
    }

    #[test]
    fn created_operations_fit_their_type_only() {
        let op = create_scaled(7, &0.5f32.to_le_bytes()).unwrap();
        assert_eq!(Reduction::of(op, 7).unwrap().how, Combine::ScaledSum(0.5));
        assert!(Reduction::of(op, 8).unwrap_err().words.contains("made for datatype 7, not 8"));
        destroy_scaled(op).unwrap();
        assert!(Reduction::of(op, 7).unwrap_err().words.contains("does not exist"));
        assert!(destroy_scaled(op).is_err());
        assert!(Kind::of(12).unwrap_err().words.contains("datatype 12 does not exist"));
        assert_eq!(read(Kind::of(3).unwrap(), &u32::MAX.to_le_bytes()), f64::from(u32::MAX));
        assert_eq!(read(Kind::of(0).unwrap(), &[0xff]), -1.0);
    }
}
