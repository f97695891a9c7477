//! The dissector for Wireshark (`python/netsum/tools/netsum.lua`) beside the decoders, on captures that tshark reads.
//!
//! Where there is no tshark the tests are skipped, with a line that says so.

mod expected;
mod packets;
mod tshark;

use std::path::Path;

use netsum_wire::panama::{Header, Kind, NO_CAP};
use netsum_wire::seal::{HopKeys, SealKey};
use netsum_wire::tag::Mac;
use netsum_wire::{Dtype, Epoch, Format, JobId, ReduceOp, TreeId, Vid};

use crate::packets::Random;
use crate::tshark::{Capture, Datagram};

const MANY: usize = 100_000;

/// Compares all fields of all packets.
fn compare(packets: Vec<Vec<u8>>) {
    let datagrams: Vec<Datagram> =
        packets.into_iter().map(|packet| Datagram::up(1, packet)).collect();
    let Some(capture) = Capture::of(&datagrams) else { return };
    let rows = capture.prefer("trains", "FALSE").fields(expected::FIELDS);
    assert_eq!(rows.len(), datagrams.len());
    for (row, Datagram { payload, .. }) in rows.iter().zip(&datagrams) {
        let expected = expected::row(payload);
        assert_eq!(row[..expected.len()], expected, "{payload:02x?}");
    }
}

#[test]
fn fields_are_those_of_the_decoder() {
    let mut random = Random::from_environment();
    let packets: Vec<Vec<u8>> = (0..MANY).map(|_| packets::packet(&mut random)).collect();
    let malformed = packets.iter().filter(|packet| expected::row(packet).len() == 1).count();
    assert!((MANY / 10..MANY / 10 * 9).contains(&malformed), "{malformed} are malformed");
    compare(packets);
}

#[test]
fn fields_of_golden_vectors_are_those_of_the_decoder() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors");
    let mut packets = Vec::new();
    for protocol in ["panama", "atp"] {
        for file in std::fs::read_dir(folder.join(protocol)).unwrap() {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
            let vectors: serde_json::Value = serde_json::from_str(&text).unwrap();
            for step in vectors["steps"].as_array().unwrap() {
                let out = step["out"].as_array().into_iter().flatten().map(|out| &out["packet"]);
                packets.extend(
                    out.chain([&step["in"]]).filter_map(|p| Some(expected::from_hex(p.as_str()?))),
                );
            }
        }
    }
    packets.retain(|packet| !packet.is_empty());
    assert!(packets.len() > 100, "{} packets in {}", packets.len(), folder.display());
    compare(packets);
}

fn header(kind: Kind, vid: u32) -> Header {
    Header {
        kind,
        resent: false,
        congested_down: false,
        tree: TreeId(2),
        format: Format { dtype: Dtype::F32, op: ReduceOp::Sum },
        job: JobId(90),
        vid: Vid(vid),
        chunk: vid,
        epoch: Epoch(3),
        window_cap: if kind == Kind::Contribution { NO_CAP } else { 2 },
        n_elems: 4,
        marks: 0,
        missing: 0,
        parties: netsum_wire::Parties::All,
        empty: false,
        asks: false,
        others: 0,
    }
}

fn bytes_of(header: &Header) -> Vec<u8> {
    let mut packet = vec![0; 38 + header.payload_len()];
    header.encode(packet.first_chunk_mut().unwrap());
    packet
}

fn packet(kind: Kind, vid: u32) -> Vec<u8> {
    bytes_of(&header(kind, vid))
}

/// Two workers at a switch: vids 0 to 2, of which the last is too early, is sent again, and meets a mismatch.
fn a_conversation() -> Vec<Datagram> {
    let resent = Header { resent: true, ..header(Kind::Contribution, 2) };
    let partial = Header { missing: 1, ..header(Kind::Result, 1) };
    vec![
        Datagram::up(1, packet(Kind::Contribution, 0)),
        Datagram::up(2, packet(Kind::Contribution, 0)),
        Datagram::down(1, packet(Kind::Result, 0)),
        Datagram::down(2, packet(Kind::Result, 0)),
        Datagram::up(1, packet(Kind::Contribution, 1)),
        Datagram { congested: true, ..Datagram::down(1, bytes_of(&partial)) },
        Datagram::up(1, packet(Kind::Contribution, 4)),
        Datagram::up(1, packet(Kind::Contribution, 2)),
        Datagram::up(1, bytes_of(&resent)),
        Datagram::down(1, packet(Kind::Waiting, 2)),
        Datagram::up(2, packet(Kind::Mismatch, 2)),
        Datagram::up(1, packet(Kind::Fin, 5)),
        Datagram::up(1, vec![0x11; 20]),
    ]
}

#[test]
fn expert_infos_name_what_is_unusual() {
    let Some(capture) = Capture::of(&a_conversation()) else { return };
    let expected = [
        "",
        "",
        "",
        "",
        "",
        "Congestion experienced,Sum without some ranks",
        "Beyond the window: vid 4, while 2 has no result and window_cap is 2",
        "",
        "Sent before",
        "Other ranks are awaited",
        "Ranks disagree on the operation",
        "",
        "Malformed: truncated header",
    ];
    for read in [Capture::fields, Capture::fields_after_two_passes] {
        let infos = read(&capture, &["_ws.expert.message"]);
        assert_eq!(infos.concat(), expected);
    }
}

#[test]
fn a_fragment_is_followed_from_the_workers_to_the_root_and_back() {
    let Some(capture) = Capture::of(&a_conversation()) else { return };
    let rows = capture.fields_after_two_passes(&[
        "netsum.fragment",
        "netsum.first_in",
        "netsum.previous_in",
        "netsum.next_in",
        "netsum.contribution_in",
        "netsum.result_in",
        "netsum.time",
    ]);
    let first = "panama/90/3/2/0";
    assert_eq!(rows[0], [first, "1", "", "2", "", "3", "0.000000000"]);
    assert_eq!(rows[1], [first, "1", "1", "3", "", "4", "0.000001000"]);
    assert_eq!(rows[2], [first, "1", "2", "4", "1", "", "0.000002000"]);
    assert_eq!(rows[3], [first, "1", "3", "", "2", "", "0.000003000"]);
    assert_eq!(rows[8], ["panama/90/3/2/2", "8", "8", "10", "", "10", "0.000001000"]);
    assert!(rows[11..].iter().flatten().all(String::is_empty), "a fin is about no fragment");
    let of_one = capture.run([
        "-Y",
        "netsum.fragment == \"panama/90/3/2/2\"",
        "-T",
        "fields",
        "-e",
        "frame.number",
    ]);
    assert_eq!(of_one.split_whitespace().collect::<Vec<_>>(), ["8", "9", "10", "11"]);
}

#[test]
fn statistics_are_per_tree() {
    let Some(capture) = Capture::of(&a_conversation()) else { return };
    let text = capture.run(["-q", "-z", "netsum,trees"]);
    let lines: Vec<Vec<&str>> =
        text.lines().map(|line| line.split_whitespace().collect()).collect();
    let expected = "panama 90 3 2 4 3 7 4 600 1 1 1 1 1 0 0.002 0.003";
    assert_eq!(lines[1].join(" "), expected, "{text}");
    assert_eq!(lines[2].join(" "), "malformed packets: 1");
}

#[test]
fn trains_are_split() {
    let packets = [packet(Kind::Contribution, 0), packet(Kind::Contribution, 1)];
    let last = bytes_of(&Header { n_elems: 1, ..header(Kind::Contribution, 2) });
    let train = [&packets.concat()[..], &last].concat();
    let cut = train[..train.len() - 1].to_vec();
    let Some(capture) = Capture::of(&[Datagram::up(1, train), Datagram::up(1, cut)]) else {
        return;
    };
    let rows = capture.fields(&["netsum.vid", "netsum.n_elems", "netsum.malformed"]);
    assert_eq!(rows[0], ["0,1,2", "4,4,1", ""]);
    assert_eq!(rows[1], ["0", "4", "payload length does not match the header"]);
}

#[test]
fn packets_on_other_ports_are_recognised_by_their_contents() {
    let elsewhere = |worker, payload| {
        let mut datagram = Datagram::up(worker, payload);
        datagram.to.set_port(9999);
        datagram
    };
    let datagrams = [
        elsewhere(2, vec![0x11; 60]),
        elsewhere(1, packet(Kind::Contribution, 0)),
        elsewhere(1, vec![0x11; 60]),
    ];
    let Some(capture) = Capture::of(&datagrams) else { return };
    let rows = capture.fields(&["netsum.vid", "netsum.malformed"]);
    assert_eq!(rows[0], ["", ""], "no packet of ours");
    assert_eq!(rows[1], ["0", ""]);
    assert_eq!(rows[2][1], "reserved field is not zero", "of a known conversation");
}

/// A sealed packet, and what the dissector must say of it.
struct Verdict {
    datagram: Datagram,
    status: &'static str,
    hop: String,
}

/// Packets of one hop in both directions, the last ten of them with a flipped bit.
fn of_hop(random: &mut Random, keys: HopKeys, job: u32, hop: u8) -> Vec<Verdict> {
    let kinds = [Kind::Contribution, Kind::Result, Kind::Mismatch].into_iter().cycle().take(60);
    let each = kinds.zip(0_u32..).map(|(kind, n)| {
        let n_elems = random.below(80) as u16 + 1;
        let plain = bytes_of(&Header { job: JobId(job), n_elems, ..header(kind, n) });
        let (key, made): (_, fn(u8, Vec<u8>) -> Datagram) = match kind {
            Kind::Result => (keys.down, Datagram::down),
            _ => (keys.up, Datagram::up),
        };
        let mut sealed = packets::sealed(&SealKey::new(&key), n.into(), &plain);
        if n < 50 {
            return Verdict {
                datagram: made(hop, sealed),
                status: "verified",
                hop: format!("hop {hop}"),
            };
        }
        // In `missing`, so that the packet is well-formed.
        sealed[26 + random.below(8)] ^= 1 << random.below(8);
        Verdict { datagram: made(hop, sealed), status: "bad", hop: String::new() }
    });
    each.collect()
}

#[test]
fn tags_are_verified() {
    let mut random = Random::from_environment();
    let (mut file, mut verdicts) = ("# keys\n\n".to_owned(), Vec::new());
    for (mac, job) in [(Mac::SipHash, 1), (Mac::Aegis, 2), (Mac::AegisAead, 3)] {
        for hop in 0..2 {
            let keys = HopKeys::new(mac, std::array::from_fn(|_| random.byte()));
            file += &format!("hop {job} 3 2 {}\n", expected::hex(&keys.to_bytes()));
            verdicts.extend(of_hop(&mut random, keys, job, hop));
        }
    }
    let stranger = SealKey::new(&HopKeys::new(Mac::SipHash, [1; 32]).up);
    let datagram = Datagram::up(1, packets::sealed(&stranger, 0, &packet(Kind::Contribution, 0)));
    verdicts.push(Verdict { datagram, status: "no key", hop: String::new() });
    let expected: Vec<[String; 2]> =
        verdicts.iter().map(|v| [v.status.to_owned(), v.hop.clone()]).collect();
    let datagrams: Vec<Datagram> = verdicts.into_iter().map(|verdict| verdict.datagram).collect();
    let Some(capture) = Capture::of(&datagrams) else { return };
    let rows = capture.with_keys(&file).fields(&["netsum.tag.status", "netsum.tag.hop"]);
    assert_eq!(rows, expected);
}

#[test]
fn a_packet_number_that_is_used_again_is_named() {
    let key = SealKey::new(&HopKeys::new(Mac::SipHash, [1; 32]).up);
    let sealed =
        |number| Datagram::up(1, packets::sealed(&key, number, &packet(Kind::Contribution, 0)));
    let Some(capture) = Capture::of(&[sealed(7), sealed(8), sealed(7)]) else { return };
    let rows = capture.fields(&["netsum.number", "_ws.expert.message"]);
    assert_eq!(rows[1], ["8", ""]);
    assert_eq!(rows[2], ["7", "Packet number seen before, in frame 1"]);
}
