//! Programs and maps of one compiled object.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use libbpf_rs::libbpf_sys::{
    BPF_F_TEST_XDP_LIVE_FRAMES, BPF_XDP, XDP_FLAGS_DRV_MODE, bpf_link_create, bpf_link_create_opts,
    bpf_map_create_opts,
};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, Object, ObjectBuilder, ProgramInput};

use super::WhyNot;

/// A loaded object.
pub(super) struct Loaded {
    object: Object,
}

/// Largest frame that a test run returns.
const FRAME_BYTES: usize = 2048;

impl Loaded {
    /// Loads an object after setting its constants and the number of its slots.
    pub(super) fn new(
        bytes: &[u8],
        slots: u32,
        constants: &[(&str, Vec<u8>)],
    ) -> Result<Loaded, WhyNot> {
        // The verifier's log is long; the returned error names the failed step.
        libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Debug, |level, text| {
            tracing::debug!(?level, "{}", text.trim_end());
        })));
        let mut open = ObjectBuilder::default().open_memory(bytes).map_err(because("reading"))?;
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if name == "slots" || name == "pool_slots" {
                map.set_max_entries(slots).map_err(because("sizing the slots"))?;
            }
            if name.ends_with(".rodata")
                && let Some(values) = map.initial_value_mut()
            {
                let mut rest = values;
                for (_, bytes) in constants {
                    let (head, tail) = rest.split_at_mut(bytes.len());
                    head.copy_from_slice(bytes);
                    rest = tail;
                }
            }
        }
        let object = open.load().map_err(because("loading the in-kernel switch"))?;
        Ok(Loaded { object })
    }

    /// A map by name, or by the suffix of its name.
    pub(super) fn map(&self, name: &str) -> Result<MapHandle, WhyNot> {
        let mut maps = self.object.maps();
        let map = maps.find(|map| map.name().to_string_lossy().ends_with(name));
        let map = map.ok_or_else(|| WhyNot::System("finding a map", missing()))?;
        MapHandle::try_from(&map).map_err(because("opening a map"))
    }

    /// A program as a descriptor.
    pub(super) fn program(&self, name: &str) -> Result<OwnedFd, WhyNot> {
        let program = self.object.progs().find(|program| program.name() == name);
        let program = program.ok_or_else(|| WhyNot::System("finding a program", missing()))?;
        let copy = program.as_fd().try_clone_to_owned();
        copy.map_err(|e| WhyNot::System("opening a program", e))
    }

    /// Runs a program `repeat` times on a frame, which is returned; returns its verdict and the mean time of a run.
    pub(super) fn run(
        &self,
        name: &str,
        frame: &mut Vec<u8>,
        repeat: u32,
    ) -> Result<(u32, Duration), WhyNot> {
        let program = self.object.progs_mut().find(|program| program.name() == name);
        let program = program.ok_or_else(|| WhyNot::System("finding a program", missing()))?;
        let mut out = [0; FRAME_BYTES];
        let input = ProgramInput {
            data_in: Some(frame),
            data_out: Some(&mut out),
            repeat,
            ..ProgramInput::default()
        };
        let got = program.test_run(input).map_err(because("running the in-kernel switch"))?;
        let (verdict, time) = (got.return_value, got.duration);
        let data = got.data.map(|data| data.to_vec());
        *frame = data.unwrap_or_default();
        Ok((verdict, time))
    }

    /// Runs a program on `packets` live copies of `frame`, which are sent where it directs them.
    pub(super) fn run_live(&self, name: &str, frame: &[u8], packets: u32) -> Result<(), WhyNot> {
        let program = self.object.progs_mut().find(|program| program.name() == name);
        let program = program.ok_or_else(|| WhyNot::System("finding a program", missing()))?;
        let input = ProgramInput {
            data_in: Some(frame),
            repeat: packets,
            flags: BPF_F_TEST_XDP_LIVE_FRAMES,
            ..ProgramInput::default()
        };
        program.test_run(input).map(drop).map_err(because("sending live frames"))
    }
}

/// Attaches a program to an interface for the lifetime of the result, in the driver only: the generic hook would see
/// unsegmented trains of packets.
pub(super) fn attach(program: &OwnedFd, ifindex: u32) -> Result<OwnedFd, WhyNot> {
    let options = bpf_link_create_opts {
        sz: size_of::<bpf_link_create_opts>() as _,
        flags: XDP_FLAGS_DRV_MODE,
        ..bpf_link_create_opts::default()
    };
    // SAFETY: descriptors and options are valid through the call.
    let fd = unsafe {
        bpf_link_create(program.as_raw_fd(), ifindex as i32, BPF_XDP, &raw const options)
    };
    if fd < 0 {
        let error = io::Error::from_raw_os_error(-fd);
        return Err(WhyNot::System("attaching the in-kernel switch to a driver", error));
    }
    // SAFETY: a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A map from numbers to interfaces, each with a program for outgoing packets.
pub(super) fn interfaces(ports: &[u32], program: &OwnedFd, most: u32) -> Result<MapHandle, WhyNot> {
    let options = bpf_map_create_opts {
        sz: size_of::<bpf_map_create_opts>() as _,
        ..bpf_map_create_opts::default()
    };
    let map = MapHandle::create(MapType::Devmap, Some("fan_out"), 4, 8, most, &options);
    let map = map.map_err(because("making a map of interfaces"))?;
    for (number, ifindex) in (0u32..).zip(ports) {
        let value = [ifindex.to_ne_bytes(), program.as_raw_fd().to_ne_bytes()].concat();
        let stored = map.update(&number.to_ne_bytes(), &value, MapFlags::ANY);
        stored.map_err(because("filling a map of interfaces"))?;
    }
    Ok(map)
}

/// Adds the failed step to an error.
pub(super) fn because(what: &'static str) -> impl Fn(libbpf_rs::Error) -> WhyNot {
    move |error| {
        let kind = match error.kind() {
            libbpf_rs::ErrorKind::PermissionDenied => Some(libc::EPERM),
            _ => None,
        };
        let error =
            kind.map_or_else(|| io::Error::other(error.to_string()), io::Error::from_raw_os_error);
        WhyNot::System(what, error)
    }
}

fn missing() -> io::Error {
    io::Error::from(io::ErrorKind::NotFound)
}
