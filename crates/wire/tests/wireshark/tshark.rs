//! Captures, and tshark with the dissector on them.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The port at which the dissector expects a switch.
const SWITCH_PORT: u16 = 7701;
/// LINKTYPE_RAW of the registry of link-layer types: frames begin with the IP header.
const RAW_IP: u32 = 101;
const ECT_0: u8 = 2;
const CE: u8 = 3;
/// Nanoseconds between the frames of a capture.
pub const FRAME_NS: u32 = 1000;

/// A datagram of a capture.
pub struct Datagram {
    pub from: SocketAddrV4,
    pub to: SocketAddrV4,
    pub congested: bool,
    pub payload: Vec<u8>,
}

impl Datagram {
    /// From the worker of a number to the switch.
    pub fn up(worker: u8, payload: Vec<u8>) -> Datagram {
        Datagram { from: worker_address(worker), to: switch(), congested: false, payload }
    }

    /// From the switch to the worker of a number.
    pub fn down(worker: u8, payload: Vec<u8>) -> Datagram {
        Datagram { from: switch(), to: worker_address(worker), congested: false, payload }
    }

    fn frame(&self) -> Vec<u8> {
        let length = self.payload.len() as u16;
        let mut frame = vec![0x45, if self.congested { CE } else { ECT_0 }];
        frame.extend((length + 28).to_be_bytes());
        frame.extend([0, 0, 0, 0, 64, 17, 0, 0]);
        frame.extend(self.from.ip().octets());
        frame.extend(self.to.ip().octets());
        let udp = [self.from.port(), self.to.port(), length + 8, 0];
        frame.extend(udp.into_iter().flat_map(u16::to_be_bytes));
        frame.extend(&self.payload);
        frame
    }
}

fn switch() -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 0, 1, 1), SWITCH_PORT)
}

fn worker_address(worker: u8) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, worker), 40_000)
}

/// A capture on disk.
pub struct Capture {
    folder: tempfile::TempDir,
    preferences: Vec<String>,
}

impl Capture {
    /// Writes datagrams as a capture; `None`, and a line that says so, where there is no tshark.
    pub fn of(datagrams: &[Datagram]) -> Option<Capture> {
        if Command::new("tshark").arg("--version").output().is_err() {
            eprintln!("skipped: no tshark; make setup-wireshark installs it");
            return None;
        }
        let capture = Capture { folder: tempfile::tempdir().unwrap(), preferences: Vec::new() };
        let mut file = std::io::BufWriter::new(std::fs::File::create(capture.path()).unwrap());
        // libpcap's file format with nanoseconds, version 2.4.
        for field in [0xa1b2_3c4d, 0x0004_0002, 0, 0, 65_535, RAW_IP] {
            file.write_all(&field.to_le_bytes()).unwrap();
        }
        for (frame, number) in datagrams.iter().map(Datagram::frame).zip(0_u32..) {
            let (length, ns) = (frame.len() as u32, u64::from(number) * u64::from(FRAME_NS));
            let stamp = [(ns / 1_000_000_000) as u32, (ns % 1_000_000_000) as u32];
            for field in [stamp[0], stamp[1], length, length] {
                file.write_all(&field.to_le_bytes()).unwrap();
            }
            file.write_all(&frame).unwrap();
        }
        file.flush().unwrap();
        Some(capture)
    }

    /// Reads with a preference of the dissector.
    pub fn prefer(mut self, preference: &str, value: &str) -> Capture {
        self.preferences.push(format!("netsum.{preference}:{value}"));
        self
    }

    /// Reads with a file of keys.
    pub fn with_keys(self, keys: &str) -> Capture {
        let path = self.folder.path().join("keys");
        std::fs::write(&path, keys).unwrap();
        self.prefer("keys", &path.display().to_string())
    }

    /// The values of fields, a row per frame. Several values of a field are separated by commas.
    pub fn fields(&self, fields: &[&str]) -> Vec<Vec<String>> {
        self.rows(&["-T", "fields"], fields)
    }

    /// The same, also of fields that point to later frames.
    pub fn fields_after_two_passes(&self, fields: &[&str]) -> Vec<Vec<String>> {
        self.rows(&["-2", "-T", "fields"], fields)
    }

    fn rows(&self, options: &[&str], fields: &[&str]) -> Vec<Vec<String>> {
        let chosen = fields.iter().flat_map(|field| ["-e", field]);
        let arguments = options.iter().copied().chain(["-E", "separator=|"]).chain(chosen);
        let text = self.run(arguments);
        let row = |line: &str| line.split('|').map(plain).collect();
        text.lines().map(row).collect()
    }

    /// What tshark prints.
    pub fn run<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> String {
        let script = dissector();
        let mut command = Command::new("tshark");
        // A home of its own: an installed dissector would be loaded, too.
        command.env("HOME", self.folder.path()).env("XDG_CONFIG_HOME", self.folder.path());
        command.arg("-X").arg(format!("lua_script:{}", script.display()));
        command.arg("-r").arg(self.path()).args(["-n"]);
        command.args(self.preferences.iter().flat_map(|preference| ["-o", preference]));
        let ended = command.args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success() && !said.contains("Lua:"), "{said}");
        String::from_utf8(ended.stdout).unwrap()
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("capture.pcap")
    }
}

fn dissector() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/netsum/tools/netsum.lua")
}

/// Later versions of tshark print True and False.
fn plain(value: &str) -> String {
    value.replace("True", "1").replace("False", "0")
}
