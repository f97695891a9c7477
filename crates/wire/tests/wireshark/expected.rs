//! What the decoder says of a packet, as tshark prints it.

use netsum_wire::Parties;
use netsum_wire::seal::{is_encrypted, is_sealed};
use netsum_wire::{DecodeError, Protocol, atp, panama, switchml};

/// The fields that are compared.
pub const FIELDS: &[&str] = &[
    "netsum.malformed",
    "netsum.protocol",
    "netsum.sealed",
    "netsum.encrypted",
    "netsum.kind",
    "netsum.resent",
    "netsum.congested_down",
    "netsum.level",
    "netsum.collision",
    "netsum.overflow",
    "netsum.ecn",
    "netsum.tree",
    "netsum.dtype",
    "netsum.operation",
    "netsum.arithmetic",
    "netsum.worker",
    "netsum.job",
    "netsum.vid",
    "netsum.sequence",
    "netsum.round",
    "netsum.chunk",
    "netsum.epoch",
    "netsum.window_cap",
    "netsum.n_elems",
    "netsum.marks",
    "netsum.missing",
    "netsum.others",
    "netsum.parties",
    "netsum.party",
    "netsum.empty",
    "netsum.asks",
    "netsum.rack_fan_in",
    "netsum.server_fan_in",
    "netsum.slot",
    "netsum.workers",
    "netsum.racks",
    "netsum.next_slot",
    "netsum.next_exponent",
    "netsum.number",
    "netsum.payload",
];

/// The values of [`FIELDS`]; of a malformed packet the reason alone.
pub fn row(packet: &[u8]) -> Vec<String> {
    match values(packet) {
        Ok(values) => {
            assert!(values.iter().all(|(name, _)| FIELDS.contains(name)), "{values:?}");
            let value = |field| values.iter().find(|(name, _)| *name == field);
            FIELDS
                .iter()
                .map(|field| value(*field).map_or_else(String::new, |v| v.1.clone()))
                .collect()
        }
        Err(reason) => vec![reason.to_string()],
    }
}

type Values = Vec<(&'static str, String)>;

fn values(packet: &[u8]) -> Result<Values, DecodeError> {
    let protocol = Protocol::of_version(packet[0]).ok_or(DecodeError::UnknownVersion)?;
    let (mut values, payload) = match protocol {
        Protocol::Panama => panama::Header::decode(packet).map(|(h, p)| (of_panama(&h), p)),
        Protocol::Atp => atp::Header::decode(packet).map(|(h, p)| (of_atp(&h), p)),
        Protocol::Switchml => switchml::Header::decode(packet).map(|(h, p)| (of_switchml(&h), p)),
    }?;
    values.push(("netsum.protocol", protocol.to_string()));
    values.push(("netsum.sealed", flag(is_sealed(packet))));
    values.push(("netsum.encrypted", flag(is_encrypted(packet))));
    if is_sealed(packet) {
        let number = u64::from_be_bytes(*packet[38..].first_chunk().unwrap());
        values.push(("netsum.number", number.to_string()));
    }
    if !payload.is_empty() {
        values.push(("netsum.payload", hex(payload)));
    }
    Ok(values)
}

fn of_panama(h: &panama::Header) -> Values {
    let bitmap = match h.others {
        0 => ("netsum.missing", format!("0x{:016x}", h.missing)),
        vids => ("netsum.others", format!("0x{vids:016x}")),
    };
    let mut values = vec![
        ("netsum.kind", name(h.kind)),
        ("netsum.resent", flag(h.resent)),
        ("netsum.congested_down", flag(h.congested_down)),
        ("netsum.tree", h.tree.0.to_string()),
        ("netsum.dtype", h.format.dtype.to_string()),
        ("netsum.operation", h.format.op.name().to_owned()),
        ("netsum.job", h.job.0.to_string()),
        ("netsum.vid", h.vid.0.to_string()),
        ("netsum.chunk", format!("0x{:08x}", h.chunk)),
        ("netsum.epoch", h.epoch.0.to_string()),
        ("netsum.window_cap", h.window_cap.to_string()),
        ("netsum.n_elems", h.n_elems.to_string()),
        ("netsum.marks", format!("0x{:08x}", h.marks)),
        bitmap,
        ("netsum.empty", flag(h.empty)),
        ("netsum.asks", flag(h.asks)),
    ];
    values.extend(of_parties(h.parties));
    values
}

fn of_parties(parties: Parties) -> Values {
    let (parties, party) = match parties {
        Parties::All => ("all", None),
        Parties::ToOne(rank) => ("to one", Some(rank)),
        Parties::FromOne(rank) => ("from one", Some(rank)),
        Parties::Nobody => ("nobody", None),
    };
    let party = party.map(|rank| ("netsum.party", rank.to_string()));
    std::iter::once(("netsum.parties", parties.to_owned())).chain(party).collect()
}

fn of_atp(h: &atp::Header) -> Values {
    let level = if h.level == atp::Level::Rack { "rack" } else { "server" };
    let mut values = vec![
        ("netsum.kind", name(h.kind)),
        ("netsum.level", level.to_owned()),
        ("netsum.resent", flag(h.flags.resend)),
        ("netsum.collision", flag(h.flags.collision)),
        ("netsum.overflow", flag(h.flags.overflow)),
        ("netsum.ecn", flag(h.flags.ecn)),
        ("netsum.arithmetic", name(h.arithmetic)),
        ("netsum.tree", h.tree.0.to_string()),
        ("netsum.job", h.job.0.to_string()),
        ("netsum.sequence", h.sequence.0.to_string()),
        ("netsum.chunk", format!("0x{:08x}", h.chunk)),
        ("netsum.epoch", h.epoch.0.to_string()),
        ("netsum.n_elems", h.n_elems.to_string()),
        ("netsum.rack_fan_in", h.rack_fan_in.to_string()),
        ("netsum.server_fan_in", h.server_fan_in.to_string()),
        match h.kind {
            atp::Kind::Ready | atp::Kind::Missing => {
                ("netsum.others", format!("0x{:016x}", h.others))
            }
            _ => ("netsum.slot", h.slot.0.to_string()),
        },
        ("netsum.workers", format!("0x{:08x}", h.workers)),
        ("netsum.racks", format!("0x{:08x}", h.racks)),
    ];
    match h.kind.is_down() {
        true => values.push(("netsum.next_slot", h.next_slot.0.to_string())),
        false => values.extend(of_parties(h.parties)),
    }
    values
}

fn of_switchml(h: &switchml::Header) -> Values {
    let is_up = matches!(
        h.kind,
        switchml::Kind::Contribution | switchml::Kind::Ready | switchml::Kind::Fin
    );
    let mut values = vec![
        ("netsum.kind", name(h.kind)),
        ("netsum.resent", flag(h.resent)),
        ("netsum.arithmetic", name(h.arithmetic)),
        ("netsum.worker", h.worker.to_string()),
        ("netsum.job", h.job.0.to_string()),
        ("netsum.round", h.round.to_string()),
        ("netsum.chunk", format!("0x{:08x}", h.chunk)),
        ("netsum.epoch", h.epoch.0.to_string()),
        ("netsum.slot", h.slot.to_string()),
        ("netsum.n_elems", h.n_elems.to_string()),
        ("netsum.next_exponent", h.next_exponent.to_string()),
        ("netsum.tree", h.tree.0.to_string()),
    ];
    if is_up {
        values.extend(of_parties(h.parties));
    }
    values
}

/// The words of a variant: "FloatRequest" as "float request".
fn name(kind: impl std::fmt::Debug) -> String {
    let mut words = String::new();
    for letter in format!("{kind:?}").chars() {
        if letter.is_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.extend(letter.to_lowercase());
    }
    words
}

fn flag(set: bool) -> String {
    u8::from(set).to_string()
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes of an even number of hexadecimal digits.
pub fn from_hex(digits: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal digits");
    (0..digits.len()).step_by(2).map(byte).collect()
}
