//! Bytes as hexadecimal digits.

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `None`: an odd number of characters, or one that is no digit.
pub(crate) fn unhexadecimal(text: &str) -> Option<Vec<u8>> {
    let digits = text.len().is_multiple_of(2) && text.bytes().all(|c| c.is_ascii_hexdigit());
    let byte = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    digits.then(|| (0..text.len()).step_by(2).map_while(byte).collect())
}
