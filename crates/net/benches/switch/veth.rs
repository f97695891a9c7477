//! Two network namespaces connected by a veth pair, which threads can enter.

#![allow(unsafe_code)]

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::process::Command;

pub struct Veth {
    names: [String; 2],
}

impl Veth {
    /// Ends the benchmark with the reason if this is not allowed.
    pub fn new() -> Veth {
        let names = ["near", "far"].map(|side| format!("nsb{}{side}", std::process::id()));
        let veth = Veth { names };
        let [near, far] = &veth.names;
        for name in [near, far] {
            ip(&format!("netns add {name}"));
        }
        ip(&format!("-n {near} link add v0 type veth peer name v0 netns {far}"));
        for (name, address) in veth.names.iter().zip(veth.addresses()) {
            ip(&format!("-n {name} addr add {address}/30 dev v0"));
            ip(&format!("-n {name} link set v0 up"));
        }
        veth
    }

    pub fn addresses(&self) -> [IpAddr; 2] {
        [[10, 77, 0, 1], [10, 77, 0, 2]].map(IpAddr::from)
    }

    /// Moves the calling thread, and threads that it starts later, into one of the namespaces.
    pub fn enter(&self, far: bool) {
        let path = format!("/run/netns/{}", self.names[usize::from(far)]);
        let file = File::open(&path).unwrap_or_else(|error| fail(&format!("{path}: {error}")));
        // SAFETY: takes no pointer; the descriptor is open.
        if unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) } != 0 {
            fail(&format!("cannot enter {path}: {}", std::io::Error::last_os_error()));
        }
    }
}

impl Drop for Veth {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

fn ip(arguments: &str) {
    match Command::new("ip").args(arguments.split(' ')).output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => fail(&format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr))),
        Err(error) => fail(&format!("ip (iproute2): {error}")),
    }
}

fn fail(reason: &str) -> ! {
    eprintln!("veth does not work here (it needs root and iproute2): {reason}");
    std::process::exit(1)
}
