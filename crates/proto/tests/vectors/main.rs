//! Golden vectors of the switch: what goes in, what must come out, byte by byte.
//!
//! `vectors/panama/*.json` are read by every implementation (vectors/README.md has the format). This test
//! makes them anew from the switch machine and compares; with `NETSUM_WRITE_VECTORS=1` it writes them.

mod record;
mod scenarios;

use std::fs;
use std::path::PathBuf;

use netsum_proto::panama::{Slab, Switch};
use record::{Record, replay};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../vectors/panama")
}

#[test]
fn the_files_are_what_the_switch_does() {
    let write = std::env::var_os("NETSUM_WRITE_VECTORS").is_some();
    let mut names = Vec::new();
    for (name, about, play) in scenarios::ALL {
        let mut record = Record::new(about);
        play(&mut record);
        let text = record.to_json(name);
        let path = folder().join(format!("{name}.json"));
        names.push(format!("{name}.json"));
        if write {
            fs::write(&path, &text).unwrap();
        }
        let stored = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            stored == text,
            "{} is stale; if the switch was meant to change, run `make vectors` and review the diff",
            path.display()
        );
    }
    let mut stored: Vec<_> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    stored.sort();
    assert_eq!(stored, names, "a file without a scenario, or the other way round");
}

/// The files alone, without the scenarios, drive a switch to the recorded outputs: so they can any
/// other implementation.
#[test]
fn the_files_say_all_that_a_reader_needs() {
    let mut packets = 0;
    for (name, ..) in scenarios::ALL {
        let text = fs::read_to_string(folder().join(format!("{name}.json"))).unwrap();
        let file: serde_json::Value = serde_json::from_str(&text).unwrap();
        packets += replay(name, &file, &mut Switch::new(Slab::new(record::MEMORY)));
    }
    assert!(packets > 1000, "only {packets} packets in all vectors");
}
