#![no_main]
//! Parses bytes as a topology in some format; an accepted one must survive writing and reading again.

use netsum_topo::links::{Format, ImportOptions, import, write_json};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((&which, rest)) = bytes.split_first() else { return };
    let Ok(text) = std::str::from_utf8(rest) else { return };
    let formats = [
        Format::Toml,
        Format::Json,
        Format::NvidiaSmi,
        Format::NcclXml,
        Format::LstopoXml,
        Format::NodeLink,
    ];
    let format = formats.get(usize::from(which)).copied();
    let options = ImportOptions::default();
    if let Ok(graph) = import(text, "fuzz", format, &options) {
        assert_eq!(import(&write_json(&graph), "fuzz", Some(Format::Json), &options), Ok(graph));
    }
});
