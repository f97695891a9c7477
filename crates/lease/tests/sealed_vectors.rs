//! Golden vectors of keys, sealed packets and encrypted packets: `vectors/sealed.json` (vectors/README.md has the format).
//!
//! With `NETSUM_WRITE_VECTORS=1` the file is written anew. A test in Python reads it with an implementation of its own.

use std::fmt::Write;
use std::path::PathBuf;

use netsum_lease::{Terms, lease_secrets};
use netsum_proto::atp::Claim;
use netsum_topo::{AggregationTree, Child, NodeId, Parent, Protocol, TreeNode};
use netsum_wire::seal::{HopKeys, SealKey, unsealed, with_room};
use netsum_wire::tag::{JobKey, Mac};
use netsum_wire::{Epoch, JobId, TreeId, atp, panama, switchml};
use serde_json::{Value, json};

const MACS: [(Mac, &str); 4] = [
    (Mac::SipHash, "siphash"),
    (Mac::Aegis, "aegis"),
    (Mac::Nh, "nh"),
    (Mac::AegisAead, "aegis-aead"),
];
const RACK: &str = "rack1";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn from_hex(text: &Value) -> Vec<u8> {
    let digits = text.as_str().unwrap();
    let byte = |i: usize| u8::from_str_radix(&digits[i..i + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}

fn job_key(mac: Mac) -> JobKey {
    JobKey::new(mac, std::array::from_fn(|i| 0xa0 + i as u8))
}

/// The hops of a rack switch: to ranks 0 and 1, and to its parent.
fn hops(mac: Mac) -> Vec<HopKeys> {
    let root =
        TreeNode { switch: NodeId(0), children: vec![Child::Switch(NodeId(1))], parent: None };
    let rack = TreeNode {
        switch: NodeId(1),
        children: vec![Child::Rank(0), Child::Rank(1)],
        parent: Some(Parent { switch: NodeId(0), via: Vec::new() }),
    };
    let tree = AggregationTree { root: NodeId(0), nodes: vec![root, rack] };
    let terms = Terms {
        job: JobId(7),
        epoch: Epoch(515),
        protocol: Protocol::Panama,
        trees: &[],
        copies: false,
        window: 8,
        fragment_bytes: 1408,
        release_permille: 1000,
        slot_space: 0,
        claim: Claim::default(),
    };
    let name = |_| RACK.to_owned();
    lease_secrets(&terms, TreeId(2), &tree, NodeId(1), Some(&job_key(mac)), name).unwrap()
}

fn key_of(mac: Mac, secret: &[u8]) -> SealKey {
    SealKey::new(&JobKey::new(mac, secret.try_into().unwrap()))
}

/// An unsealed packet of a protocol; its bytes have no meaning beyond the first.
fn plain(version: u8, header: usize, payload: usize) -> Vec<u8> {
    let mut packet: Vec<u8> = (0..header + payload).map(|i| (i * 37 + 11) as u8).collect();
    packet[0] = version;
    packet[38..header].fill(0);
    packet
}

fn sealed(key: &SealKey, number: u64, plain: &[u8]) -> Vec<u8> {
    let mut packet = with_room(plain);
    packet.resize(packet.len() + key.trailer_len(), 0);
    key.seal(number, &mut packet, &[]);
    packet
}

fn vectors() -> Value {
    let (mut derived, mut packets, mut refused) = (Vec::new(), Vec::new(), Vec::new());
    let protocols = [
        ("panama", panama::VERSION, panama::HEADER_LEN),
        ("atp", atp::VERSION, atp::HEADER_LEN),
        ("switchml", switchml::VERSION, switchml::HEADER_LEN),
    ];
    for (mac, name) in MACS {
        let hops = hops(mac);
        let hop = |who: &str, value: Value, keys: &HopKeys| {
            let (up, down) = (hex(keys.up.secret()), hex(keys.down.secret()));
            json!({"mac": name, who: value, "up": up, "down": down})
        };
        derived.push(hop("rank", json!(0), &hops[0]));
        derived.push(hop("rank", json!(1), &hops[1]));
        derived.push(hop("switch", json!(RACK), &hops[2]));
        let secret = hops[0].up.secret();
        let key = key_of(mac, secret);
        for (protocol, version, header) in protocols {
            for (number, payload) in
                [(0, 0), (1, 4), (0x0001_0000_0000_0003, 31), (4096, 64), (5, 200)]
            {
                let plain = plain(version, header, payload);
                let sealed = sealed(&key, number, &plain);
                packets.push(json!({
                    "protocol": protocol, "mac": name, "key": hex(secret), "number": number,
                    "unsealed": hex(&plain), "sealed": hex(&sealed),
                }));
            }
        }
        let good = sealed(&key, 9, &plain(panama::VERSION, panama::HEADER_LEN, 40));
        let mut refuse = |why: &str, secret: &[u8], packet: &[u8]| {
            assert_eq!(key_of(mac, secret).open(&mut packet.to_vec()), None, "{name}: {why}");
            let case = json!({"why": why, "mac": name, "key": hex(secret), "packet": hex(packet)});
            refused.push(case);
        };
        for (why, at) in [("header", 5), ("number", 44), ("tag", 46), ("payload", 60)] {
            let mut wrong = good.clone();
            wrong[at] ^= 1;
            refuse(&format!("another {why}"), secret, &wrong);
        }
        refuse("the key of the other direction", hops[0].down.secret(), &good);
        refuse("the key of another rank", hops[1].up.secret(), &good);
        refuse("truncated", secret, &good[..good.len() - 1]);
        refuse("no tag", secret, &good[..50]);
        refuse("unsealed", secret, &plain(panama::VERSION, panama::HEADER_LEN, 40));
        let mut other = good.clone();
        other[0] = if mac.encrypts() { panama::SEALED_VERSION } else { panama::ENCRYPTED_VERSION };
        refuse("the version of the other kind", secret, &other);
    }
    json!({
        "about": "keys of hops, and packets under them",
        "job_key": hex(job_key(Mac::Aegis).secret()), "epoch": 515, "tree": 2,
        "hops": derived, "packets": packets, "refused": refused,
    })
}

/// One case a line, so that a change can be reviewed as a diff.
fn text(vectors: &Value) -> String {
    let mut text = String::from("{\n");
    for field in ["about", "job_key", "epoch", "tree"] {
        writeln!(text, "\"{field}\": {},", vectors[field]).unwrap();
    }
    let lists = ["hops", "packets", "refused"].map(|field| {
        let cases: Vec<String> =
            vectors[field].as_array().unwrap().iter().map(Value::to_string).collect();
        format!("\"{field}\": [\n{}\n]", cases.join(",\n"))
    });
    writeln!(text, "{}\n}}", lists.join(",\n")).unwrap();
    text
}

fn file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../vectors/sealed.json")
}

#[test]
fn keys_and_packets_match_the_file() {
    let text = text(&vectors());
    if std::env::var_os("NETSUM_WRITE_VECTORS").is_some() {
        std::fs::write(file(), &text).unwrap();
    }
    let kept = std::fs::read_to_string(file()).unwrap();
    assert!(
        kept == text,
        "if packets were meant to change, run `make vectors` and review the diff"
    );
}

#[test]
fn the_packets_of_the_file_open() {
    let kept: Value = serde_json::from_str(&std::fs::read_to_string(file()).unwrap()).unwrap();
    let mac_of = |case: &Value| MACS.iter().find(|(_, name)| case["mac"] == *name).unwrap().0;
    let packets = kept["packets"].as_array().unwrap();
    assert_eq!(packets.len(), 60);
    for case in packets {
        let key = key_of(mac_of(case), &from_hex(&case["key"]));
        let mut packet = from_hex(&case["sealed"]);
        assert_eq!(key.open(&mut packet), case["number"].as_u64(), "{case}");
        assert_eq!(*unsealed(&packet), from_hex(&case["unsealed"]), "{case}");
    }
    for case in kept["refused"].as_array().unwrap() {
        let key = key_of(mac_of(case), &from_hex(&case["key"]));
        assert_eq!(key.open(&mut from_hex(&case["packet"])), None, "{case}");
    }
}
