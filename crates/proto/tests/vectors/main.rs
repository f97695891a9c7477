//! Golden vectors of the switches: what goes in, what must come out, byte by byte.
//!
//! `vectors/{panama,atp}/*.json` are read by every implementation (vectors/README.md has the format). These
//! tests make them anew from the switch machines and compare; with `NETSUM_WRITE_VECTORS=1` they write them.

mod atp;
mod record;
mod scenarios;

use std::fs;
use std::path::PathBuf;

use netsum_proto::panama::{Slab, Switch};
use record::{Record, replay};

fn folder(protocol: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../vectors").join(protocol)
}

/// Compares a folder of `vectors` with what it should hold, or makes it so.
fn check(protocol: &str, files: impl Iterator<Item = (&'static str, String)>) {
    let write = std::env::var_os("NETSUM_WRITE_VECTORS").is_some();
    let folder = folder(protocol);
    let mut names = Vec::new();
    for (name, text) in files {
        let path = folder.join(format!("{name}.json"));
        names.push(format!("{name}.json"));
        if write {
            fs::create_dir_all(&folder).unwrap();
            fs::write(&path, &text).unwrap();
        }
        let stored = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            stored == text,
            "{} is stale; if the switch was meant to change, run `make vectors` and review the diff",
            path.display()
        );
    }
    let mut stored: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    stored.sort();
    assert_eq!(stored, names, "a file without a scenario, or the other way round");
}

fn read(protocol: &str, name: &str) -> serde_json::Value {
    let text = fs::read_to_string(folder(protocol).join(format!("{name}.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn the_files_are_what_the_switch_does() {
    let panama = scenarios::ALL.iter().map(|(name, about, play)| {
        let mut record = Record::new(about);
        play(&mut record);
        (*name, record.to_json(name))
    });
    check("panama", panama);
    let atp = atp::scenarios::ALL.iter().map(|(name, about, config, play)| {
        let mut record = atp::record::Record::new(about, *config);
        play(&mut record);
        (*name, record.to_json(name))
    });
    check("atp", atp);
}

/// The files alone, without the scenarios, drive a switch to the recorded outputs: so they can any
/// other implementation.
#[test]
fn the_files_say_all_that_a_reader_needs() {
    let mut packets = 0;
    for (name, ..) in scenarios::ALL {
        let file = read("panama", name);
        packets += replay(name, &file, &mut Switch::new(Slab::new(record::MEMORY)));
    }
    assert!(packets > 1000, "only {packets} packets in panama's vectors");
    let names = atp::scenarios::ALL.iter().map(|(name, ..)| name);
    let packets: usize = names.map(|name| atp::record::replay(name, &read("atp", name))).sum();
    assert!(packets > 1000, "only {packets} packets in atp's vectors");
}
