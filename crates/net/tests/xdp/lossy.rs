//! Loss on the way out of an interface, by hw/xdp/lossy.bpf.c.

#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys::{BPF_TCX_EGRESS, bpf_link_create, bpf_link_create_opts};
use libbpf_rs::{Object, ObjectBuilder};

/// An interface that loses packets.
pub struct Lossy {
    _object: Object,
    _link: OwnedFd,
}

static PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/lossy.o"));

impl Lossy {
    /// In the calling thread's namespace. `None`, with a message, if the system does not support it.
    pub fn attach(interface: &str) -> Option<Lossy> {
        let name = std::ffi::CString::new(interface).unwrap();
        // SAFETY: a C string that lives through the call.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        let object = ObjectBuilder::default().open_memory(PROGRAM).and_then(|open| open.load());
        let object = object.inspect_err(|e| println!("left out: loss: {e}")).ok()?;
        let program = object.progs().next().expect("it has one").as_fd().as_raw_fd();
        let options = bpf_link_create_opts {
            sz: size_of::<bpf_link_create_opts>() as _,
            ..bpf_link_create_opts::default()
        };
        // SAFETY: descriptor and options are valid through the call.
        let link =
            unsafe { bpf_link_create(program, index as i32, BPF_TCX_EGRESS, &raw const options) };
        if link < 0 {
            println!("left out: loss on {interface}: error {link}");
            return None;
        }
        // SAFETY: a new descriptor without another owner.
        Some(Lossy { _object: object, _link: unsafe { OwnedFd::from_raw_fd(link) } })
    }
}
