//! Sizes, rates and times with units: `64MiB`, `10Gbit/s`, `5us`.

use std::fmt;
use std::str::FromStr;

use crate::error::TopoError;

/// A size in bytes; text like `64MiB` or `500kB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

/// A rate in bits per second; text like `10Gbit/s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(pub u64);

/// A propagation time in nanoseconds; text like `5us`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Latency(pub u64);

impl FromStr for Bytes {
    type Err = TopoError;

    fn from_str(text: &str) -> Result<Bytes, TopoError> {
        parse(text, BYTE_UNITS, "size", "64MiB").map(Bytes)
    }
}

impl FromStr for Rate {
    type Err = TopoError;

    fn from_str(text: &str) -> Result<Rate, TopoError> {
        let in_bits = parse(text, RATE_UNITS, "rate", "10Gbit/s");
        in_bits
            .or_else(|error| parse(text, RATE_BYTE_UNITS, "rate", "").map_err(|_| error))
            .map(Rate)
    }
}

impl FromStr for Latency {
    type Err = TopoError;

    fn from_str(text: &str) -> Result<Latency, TopoError> {
        parse(text, TIME_UNITS, "time", "5us").map(Latency)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, self.0, BYTE_UNITS)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, self.0, RATE_UNITS)
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, self.0, TIME_UNITS)
    }
}

/// Reads `<number><unit>`, with an optional decimal point and an optional space between them. The value must be a whole
/// number of the smallest unit and fit in 64 bits.
fn parse(
    text: &str,
    units: &[(&str, u64)],
    what: &'static str,
    example: &'static str,
) -> Result<u64, TopoError> {
    let wrong = || TopoError::Unit { text: text.to_owned(), what, example };
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
    let (number, unit) = trimmed.split_at(split);
    let factor = units
        .iter()
        .find(|(name, _)| *name == unit.trim())
        .map(|&(_, factor)| u128::from(factor))
        .ok_or_else(wrong)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    // 20 digits hold any 64-bit number, and 38 digits together fit in 128 bits.
    if whole.is_empty() || whole.len() > 20 || fraction.len() > 18 || fraction.contains('.') {
        return Err(wrong());
    }
    let scale = 10u128.pow(fraction.len() as u32);
    let digits: u128 = format!("{whole}{fraction}").parse().map_err(|_| wrong())?;
    let product = digits.checked_mul(factor).ok_or_else(wrong)?;
    if product % scale != 0 {
        return Err(wrong());
    }
    u64::try_from(product / scale).map_err(|_| wrong())
}

/// Writes the largest unit that gives a whole number, so that the text reads back exactly.
fn write(f: &mut fmt::Formatter<'_>, value: u64, units: &[(&str, u64)]) -> fmt::Result {
    let (name, factor) = units
        .iter()
        .filter(|(_, factor)| value >= *factor && value.is_multiple_of(*factor))
        .max_by_key(|(_, factor)| *factor)
        .unwrap_or(&units[0]);
    write!(f, "{}{name}", value / factor)
}

// The first unit of each list is the smallest: every value is a whole number of it.
const BYTE_UNITS: &[(&str, u64)] = &[
    ("B", 1),
    ("kB", 1_000),
    ("KiB", 1 << 10),
    ("MB", 1_000_000),
    ("MiB", 1 << 20),
    ("GB", 1_000_000_000),
    ("GiB", 1 << 30),
];
const RATE_UNITS: &[(&str, u64)] = &[
    ("bit/s", 1),
    ("kbit/s", 1_000),
    ("Mbit/s", 1_000_000),
    ("Gbit/s", 1_000_000_000),
    ("Tbit/s", 1_000_000_000_000),
];
// GPU vendors write these; they are read only.
const RATE_BYTE_UNITS: &[(&str, u64)] =
    &[("MB/s", 8_000_000), ("GB/s", 8_000_000_000), ("TB/s", 8_000_000_000_000)];
const TIME_UNITS: &[(&str, u64)] =
    &[("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn common_texts() {
        assert_eq!("64MiB".parse(), Ok(Bytes(64 << 20)));
        assert_eq!("1.5 GiB".parse(), Ok(Bytes(3 << 29)));
        assert_eq!("10Gbit/s".parse(), Ok(Rate(10_000_000_000)));
        assert_eq!("2.5Gbit/s".parse(), Ok(Rate(2_500_000_000)));
        assert_eq!("25GB/s".parse(), Ok(Rate(200_000_000_000)));
        assert_eq!("5us".parse(), Ok(Latency(5_000)));
    }

    #[test]
    fn nonsense_is_named() {
        for text in [
            "",
            "64",
            "MiB",
            "-1MiB",
            "64 mib",
            "1.2.3GB",
            "0.5B",
            "99999999999GiB",
            "10Gb/s",
            "1.MiB7",
        ] {
            let error = text.parse::<Bytes>().unwrap_err().to_string();
            assert!(error.contains("is not a size; write it like \"64MiB\""), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn written_values_parse_to_themselves(value: u64) {
            prop_assert_eq!(Bytes(value).to_string().parse(), Ok(Bytes(value)));
            prop_assert_eq!(Rate(value).to_string().parse(), Ok(Rate(value)));
            prop_assert_eq!(Latency(value).to_string().parse(), Ok(Latency(value)));
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".{0,40}") {
            let _ = text.parse::<Bytes>();
        }
    }
}
