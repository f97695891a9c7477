//! Golden vectors of the switches: inputs and expected outputs, byte by byte.
//!
//! `vectors/{panama,atp,switchml}/*.json` are read by every implementation (vectors/README.md has the format). These tests
//! generate them from the switch machines. A few small files are kept as examples; `vectors/digests.txt` has digests of
//! all, and a missing file is written. With `NETSUM_WRITE_VECTORS=1` the digests and all files are written anew.

mod atp;
mod record;
mod scenarios;
mod switchml;

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use netsum_proto::panama::{Slab, Switch};
use record::{Record, replay};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../vectors")
}

/// All files: protocol, name and text.
fn files() -> Vec<(&'static str, &'static str, String)> {
    let panama = scenarios::ALL.iter().map(|(name, about, play)| {
        let mut record = Record::new(about);
        play(&mut record);
        ("panama", *name, record.to_json(name))
    });
    let atp = atp::scenarios::ALL.iter().map(|(name, about, config, play)| {
        let mut record = atp::record::Record::new(about, *config);
        play(&mut record);
        ("atp", *name, record.to_json(name))
    });
    let switchml = switchml::scenarios::ALL.iter().map(|(name, about, size, play)| {
        let mut record = switchml::record::Record::new(about, *size);
        play(&mut record);
        ("switchml", *name, record.to_json(name))
    });
    panama.chain(atp).chain(switchml).collect()
}

/// FNV-1a, 64 bits: sufficient to detect a change, not an attack.
fn digest(text: &str) -> u64 {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, mix)
}

#[test]
fn the_switches_match_the_digests() {
    let write = std::env::var_os("NETSUM_WRITE_VECTORS").is_some();
    let files = files();
    let mut digests = String::new();
    for (protocol, name, text) in &files {
        let (packets, digest) = (text.matches("\"in\"").count(), digest(text));
        writeln!(digests, "{protocol}/{name}.json {packets} packets {digest:016x}").unwrap();
    }
    let path = folder().join("digests.txt");
    if write {
        fs::write(&path, &digests).unwrap();
    }
    assert_eq!(
        fs::read_to_string(path).unwrap_or_default(),
        digests,
        "if a switch was meant to change, run `make vectors` and review the diff"
    );
    for (protocol, name, text) in files {
        let path = folder().join(protocol).join(format!("{name}.json"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        if write || !path.exists() {
            // Tests of other implementations may read the file while it is written.
            let new = path.with_extension(format!("new{}", std::process::id()));
            fs::write(&new, &text).unwrap();
            fs::rename(&new, &path).unwrap();
        }
        assert!(
            fs::read_to_string(&path).unwrap() == text,
            "{} is stale; run `make vectors`",
            path.display()
        );
    }
}

/// The files alone, without the scenarios, drive a switch to the recorded outputs, and so can drive any other
/// implementation.
#[test]
fn the_files_are_sufficient_for_a_reader() {
    let (mut of_panama, mut of_atp, mut of_switchml) = (0, 0, 0);
    for (protocol, name, text) in files() {
        let file = serde_json::from_str(&text).unwrap();
        match protocol {
            "panama" => {
                of_panama += replay(name, &file, &mut Switch::new(Slab::new(record::MEMORY)));
            }
            "atp" => of_atp += atp::record::replay(name, &file),
            _ => of_switchml += switchml::record::replay(name, &file),
        }
    }
    assert!(of_panama > 1000, "only {of_panama} packets in panama's vectors");
    assert!(of_atp > 1000, "only {of_atp} packets in atp's vectors");
    assert!(of_switchml > 3000, "only {of_switchml} packets in switchml's vectors");
}
