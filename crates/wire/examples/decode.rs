//! Decodes packets for tests of other decoders: hexadecimal digits, a packet per line, from standard input.
//!
//! Prints the names of the fields, then a line of values for each packet, or the reason why it is malformed.

#[path = "../tests/wireshark/expected.rs"]
mod expected;

use std::io::{self, BufRead, Write};

fn main() -> io::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    writeln!(out, "{}", expected::FIELDS.join("|"))?;
    for line in io::stdin().lock().lines() {
        let packet = expected::from_hex(&line?);
        writeln!(out, "{}", expected::row(&packet).join("|"))?;
    }
    out.flush()
}
