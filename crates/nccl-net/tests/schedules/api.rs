//! The library as NCCL sees it: a symbol per interface and version, and one set of functions over all of them.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use nccl_net_netsum::interface::*;

/// The last lines of the plug-in in NCCL's log.
static LOG: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());
const LINES: usize = 200;
/// Operations in switches and by hosts of all communicators that were closed.
static OPERATIONS: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// The last lines.
pub fn log() -> Vec<String> {
    LOG.lock().unwrap().iter().cloned().collect()
}

/// Operations in switches and by hosts so far, as the log says.
pub fn operations() -> (u64, u64) {
    let [in_switches, by_hosts] = &OPERATIONS;
    (in_switches.load(Ordering::Relaxed), by_hosts.load(Ordering::Relaxed))
}

/// Bytes of the heap that are in use; 0 under a sanitizer, which has its own.
pub fn heap() -> usize {
    /// `struct mallinfo2` of glibc.
    #[repr(C)]
    struct Numbers {
        arena: usize,
        free_chunks: usize,
        fast_chunks: usize,
        mapped_chunks: usize,
        mapped: usize,
        _unused: usize,
        fast: usize,
        used: usize,
        free: usize,
        top: usize,
    }
    unsafe extern "C" {
        fn mallinfo2() -> Numbers;
    }
    // SAFETY: it takes nothing, and returns numbers.
    let numbers = unsafe { mallinfo2() };
    numbers.used + numbers.mapped
}

/// NCCL's logger takes any number of arguments. The plug-in passes one, which arrives like a declared one.
unsafe extern "C" fn take(
    _level: c_int,
    _flags: c_ulong,
    _file: *const c_char,
    _line: c_int,
    format: *const c_char,
    words: *const c_char,
) {
    // SAFETY: the plug-in passes C strings.
    let (format, words) = unsafe { (CStr::from_ptr(format), CStr::from_ptr(words)) };
    assert_eq!(format, c"%s");
    let words = words.to_str().unwrap();
    if let Some((before, hosts)) = words.split_once(" operations in switches, ") {
        let network = before.rsplit(' ').next();
        let hosts = hosts.strip_suffix(" by hosts");
        for (sum, number) in OPERATIONS.iter().zip([network, hosts]) {
            sum.fetch_add(number.unwrap().parse().unwrap(), Ordering::Relaxed);
        }
    }
    let mut log = LOG.lock().unwrap();
    if log.len() == LINES {
        log.pop_front();
    }
    log.push_back(words.to_owned());
}

fn logger() -> Option<Logger> {
    type Fixed =
        unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, *const c_char);
    // SAFETY: Linux passes the first six integers of a call in registers, whether they are declared or not.
    Some(unsafe { std::mem::transmute::<Fixed, Logger>(take) })
}

#[derive(Clone, Copy)]
pub enum CollNet {
    V8(&'static CollNetV8),
    V9(&'static CollNetV9),
    V11(&'static CollNetV11),
    V12(&'static CollNetV12),
}

#[derive(Clone, Copy)]
pub enum Net {
    V8(&'static NetV8),
    V9(&'static NetV9),
    V10(&'static NetV10),
    V11(&'static NetV11),
    V12(&'static NetV12),
}

macro_rules! collnet {
    ($self:ident, $table:ident => $body:expr) => {
        match $self {
            CollNet::V8($table) => $body,
            CollNet::V9($table) => $body,
            CollNet::V11($table) => $body,
            CollNet::V12($table) => $body,
        }
    };
}

macro_rules! net {
    ($self:ident, $table:ident => $body:expr) => {
        match $self {
            Net::V8($table) => $body,
            Net::V9($table) => $body,
            Net::V10($table) => $body,
            Net::V11($table) => $body,
            Net::V12($table) => $body,
        }
    };
}

/// An operation on a window of all ranks' bytes.
#[derive(Clone, Copy)]
pub struct Window {
    pub bytes_per_rank: usize,
    pub offset: usize,
    pub bytes: usize,
}

/// The library that was built with this program: beside it, or, where cargo has a folder for each unit of a package, in
/// the newest other one.
fn built() -> PathBuf {
    let name = "libnccl_net_netsum.so";
    let program = std::env::current_exe().unwrap();
    let beside = program.with_file_name(name);
    if beside.exists() {
        return beside;
    }
    let units = program.ancestors().nth(3).unwrap().read_dir().unwrap().flatten();
    let others = units.map(|unit| unit.path().join("out").join(name)).filter(|path| path.exists());
    let newest = others.max_by_key(|path| path.metadata().unwrap().modified().unwrap());
    newest.unwrap_or_else(|| panic!("no {name} beside {}", program.display()))
}

/// Loads the library as NCCL does; never unloads it.
pub fn load(version: u32) -> (CollNet, Net) {
    static LIBRARY: OnceLock<libloading::Library> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        // SAFETY: the library has no initialisers of its own.
        let library = unsafe { libloading::Library::new(built()) };
        library.unwrap_or_else(|error| panic!("{error}"))
    });
    fn table<T>(library: &libloading::Library, name: &str, version: u32) -> &'static T {
        let symbol = format!("nccl{name}_v{version}");
        // SAFETY: the symbol of that name has this type, which the test of layouts compares with NCCL's headers.
        unsafe { &**library.get::<*const T>(symbol.as_bytes()).unwrap() }
    }
    let (net, collnet) = ("NetPlugin", "CollNetPlugin");
    match version {
        8 => (CollNet::V8(table(library, collnet, 8)), Net::V8(table(library, net, 8))),
        9 => (CollNet::V9(table(library, collnet, 9)), Net::V9(table(library, net, 9))),
        10 => (CollNet::V9(table(library, collnet, 10)), Net::V10(table(library, net, 10))),
        11 => (CollNet::V11(table(library, collnet, 11)), Net::V11(table(library, net, 11))),
        12 => (CollNet::V12(table(library, collnet, 12)), Net::V12(table(library, net, 12))),
        other => panic!("no version {other}"),
    }
}

/// What a getter writes, if its code is 0.
fn got<T>(mut value: T, get: impl FnOnce(*mut T) -> Code) -> Result<T, Code> {
    match get(&raw mut value) {
        0 => Ok(value),
        code => Err(code),
    }
}

fn done(code: Code) -> Result<(), Code> {
    if code == 0 { Ok(()) } else { Err(code) }
}

impl CollNet {
    pub fn init(self) -> Result<(), Code> {
        let mut context = null_mut();
        done(match self {
            CollNet::V8(table) => (table.init)(logger()),
            CollNet::V9(table) => (table.init)(logger()),
            CollNet::V11(table) => (table.init)(&raw mut context, 1, logger()),
            CollNet::V12(table) => (table.init)(&raw mut context, 1, logger()),
        })
    }

    pub fn devices(self) -> c_int {
        got(-1, |to| collnet!(self, table => (table.devices)(to))).unwrap()
    }

    /// Kinds of memory, and the largest collective, as NCCL reads them.
    pub fn limits(self) -> (c_int, usize) {
        macro_rules! limits {
            ($table:expr, $($max:ident)?) => {{
                // SAFETY: numbers and pointers, for which zeros are values.
                let empty = unsafe { std::mem::zeroed() };
                let properties = got(empty, |to| ($table.get_properties)(0, to)).unwrap();
                // SAFETY: a C string of the library.
                assert!(!unsafe { CStr::from_ptr(properties.name) }.is_empty());
                assert!(properties.speed > 0);
                (properties.ptr_support, [$(properties.$max,)? 512 << 20][0])
            }};
        }
        match self {
            CollNet::V8(table) => limits!(table,),
            CollNet::V9(table) => limits!(table, max_coll_bytes),
            CollNet::V11(table) => limits!(table, max_coll_bytes),
            CollNet::V12(table) => limits!(table, max_coll_bytes),
        }
    }

    pub fn listen(self, handle: &mut [u8; 128]) -> Result<Handle, Code> {
        let handle = handle.as_mut_ptr().cast::<c_void>();
        got(0, |to| match self {
            CollNet::V8(table) => (table.listen)(0, handle, to),
            CollNet::V9(table) => (table.listen)(0, handle, to),
            CollNet::V11(table) => (table.listen)(null_mut(), 0, handle, to),
            CollNet::V12(table) => (table.listen)(null_mut(), 0, handle, to),
        })
    }

    pub fn connect(
        self,
        handles: &mut [[u8; 128]],
        rank: usize,
        listening: Handle,
    ) -> Result<Handle, Code> {
        let mut all: Vec<*mut c_void> =
            handles.iter_mut().map(|handle| handle.as_mut_ptr().cast()).collect();
        let (ranks, rank) = (all.len() as c_int, rank as c_int);
        got(
            0,
            |to| collnet!(self, table => (table.connect)(all.as_mut_ptr(), ranks, rank, listening, to)),
        )
    }

    pub fn supports(self, datatype: c_int, op: c_int) -> bool {
        let support = |to| collnet!(self, table => (table.reduce_support)(datatype, op, to));
        got(-1, support).unwrap() == 1
    }

    pub fn register(self, comm: Handle, memory: &mut [u8], kind: c_int) -> Result<Handle, Code> {
        let (data, size) = (memory.as_mut_ptr().cast(), memory.len());
        got(0, |to| collnet!(self, table => (table.reg_mr)(comm, data, size, kind, to)))
    }

    /// `file`: of the memory of a device.
    pub fn register_dma_buf(
        self,
        comm: Handle,
        memory: &mut [u8],
        kind: c_int,
        file: c_int,
    ) -> Result<Handle, Code> {
        let (data, size) = (memory.as_mut_ptr().cast(), memory.len());
        let register = |to| collnet!(self, table => (table.reg_mr_dma_buf)(comm, data, size, kind, 0, file, to));
        got(0, register)
    }

    pub fn deregister(self, comm: Handle, registration: Handle) -> Result<(), Code> {
        done(collnet!(self, table => (table.dereg_mr)(comm, registration)))
    }

    #[allow(clippy::too_many_arguments)]
    pub fn iallreduce(
        self,
        comm: Handle,
        send: *mut u8,
        receive: *mut u8,
        count: usize,
        datatype: c_int,
        op: c_int,
        registration: Handle,
    ) -> Result<Handle, Code> {
        let (send, receive) = (send.cast(), receive.cast());
        let r = registration;
        macro_rules! call {
            ($table:expr, $count:expr) => {
                got(1, |to| {
                    ($table.iallreduce)(comm, send, receive, $count, datatype, op, r, r, to)
                })
            };
        }
        match self {
            CollNet::V8(table) => call!(table, count as c_int),
            CollNet::V9(table) => call!(table, count),
            CollNet::V11(table) => call!(table, count),
            CollNet::V12(table) => call!(table, count),
        }
    }

    pub fn iallgather(
        self,
        comm: Handle,
        send: *mut u8,
        receive: *mut u8,
        window: Window,
        registration: Handle,
    ) -> Result<Handle, Code> {
        let Window { bytes_per_rank, offset, bytes } = window;
        let (send, address, r) = (send.cast(), receive.cast(), registration);
        macro_rules! call {
            ($table:expr, $part:ident) => {{
                let mut part = $part { mhandle: r, address, size: bytes as _ };
                let part = &raw mut part;
                got(1, |to| {
                    ($table.iallgather)(comm, send, 1, part, bytes_per_rank, offset, bytes, r, to)
                })
            }};
        }
        match self {
            CollNet::V8(table) => call!(table, PartV8),
            CollNet::V9(table) => call!(table, PartV9),
            CollNet::V11(table) => call!(table, PartV9),
            CollNet::V12(table) => call!(table, PartV9),
        }
    }

    #[allow(clippy::too_many_arguments)]
    pub fn ireducescatter(
        self,
        comm: Handle,
        send: *mut u8,
        receive: *mut u8,
        window: Window,
        datatype: c_int,
        op: c_int,
        registration: Handle,
    ) -> Result<Handle, Code> {
        let Window { bytes_per_rank: each, offset, bytes } = window;
        let (address, to, r) = (send.cast(), receive.cast(), registration);
        macro_rules! call {
            ($table:expr, $part:ident) => {{
                let mut part = $part { mhandle: r, address, size: bytes as _ };
                let part = &raw mut part;
                got(1, |request| {
                    let go = $table.ireducescatter;
                    go(comm, 1, part, to, each, offset, bytes, datatype, op, r, request)
                })
            }};
        }
        match self {
            CollNet::V8(table) => call!(table, PartV8),
            CollNet::V9(table) => call!(table, PartV9),
            CollNet::V11(table) => call!(table, PartV9),
            CollNet::V12(table) => call!(table, PartV9),
        }
    }

    pub fn iflush(self, comm: Handle, data: *mut u8, bytes: usize, registration: Handle) -> Handle {
        let (data, bytes) = (data.cast(), bytes as c_int);
        got(1, |to| collnet!(self, table => (table.iflush)(comm, data, bytes, registration, to)))
            .unwrap()
    }

    /// The bytes of a request that is done.
    pub fn test(self, request: Handle) -> Result<Option<usize>, Code> {
        let mut size = -1;
        let finished =
            got(-1, |to| collnet!(self, table => (table.test)(request, to, &raw mut size)))?;
        Ok((finished == 1).then_some(size as usize))
    }

    pub fn close(self, comm: Handle) -> Result<(), Code> {
        done(collnet!(self, table => (table.close_coll)(comm)))
    }

    pub fn close_listen(self, listening: Handle) -> Result<(), Code> {
        done(collnet!(self, table => (table.close_listen)(listening)))
    }

    pub fn finalize(self) {
        match self {
            CollNet::V8(_) | CollNet::V9(_) => {}
            CollNet::V11(table) => assert_eq!((table.finalize)(null_mut()), 0),
            CollNet::V12(table) => assert_eq!((table.finalize)(null_mut()), 0),
        }
    }
}

impl Net {
    pub fn init(self) -> Result<(), Code> {
        let (mut context, mut config) = (null_mut(), CommConfig { traffic_class: -1 });
        let (context, config) = (&raw mut context, &raw mut config);
        done(match self {
            Net::V8(table) => (table.init)(logger()),
            Net::V9(table) => (table.init)(logger()),
            Net::V10(table) => (table.init)(logger(), None),
            Net::V11(table) => (table.init)(context, 1, config, logger(), None),
            Net::V12(table) => (table.init)(context, 1, config, logger(), None),
        })
    }

    pub fn devices(self) -> c_int {
        got(-1, |to| net!(self, table => (table.devices)(to))).unwrap()
    }

    pub fn listen(self, handle: &mut [u8; 128]) -> Result<Handle, Code> {
        let handle = handle.as_mut_ptr().cast::<c_void>();
        got(0, |to| match self {
            Net::V8(table) => (table.listen)(0, handle, to),
            Net::V9(table) => (table.listen)(0, handle, to),
            Net::V10(table) => (table.listen)(0, handle, to),
            Net::V11(table) => (table.listen)(null_mut(), 0, handle, to),
            Net::V12(table) => (table.listen)(null_mut(), 0, handle, to),
        })
    }

    /// 0: to be called again.
    pub fn connect(self, handle: &mut [u8; 128]) -> Result<Handle, Code> {
        let (handle, mut offload) = (handle.as_mut_ptr().cast::<c_void>(), null_mut());
        let (offload, mut config) = (&raw mut offload, CommConfig { traffic_class: -1 });
        got(1, |to| match self {
            Net::V8(table) => (table.connect)(0, handle, to, offload),
            Net::V9(table) => (table.connect)(0, handle, to, offload),
            Net::V10(table) => (table.connect)(0, &raw mut config, handle, to, offload),
            Net::V11(table) => (table.connect)(null_mut(), 0, handle, to, offload),
            Net::V12(table) => (table.connect)(null_mut(), 0, handle, to, offload),
        })
    }

    /// 0: to be called again.
    pub fn accept(self, listening: Handle) -> Result<Handle, Code> {
        let mut offload = null_mut();
        got(1, |to| net!(self, table => (table.accept)(listening, to, &raw mut offload)))
    }

    /// 0: to be called again.
    pub fn isend(self, comm: Handle, data: *mut u8, bytes: usize) -> Result<Handle, Code> {
        let data = data.cast();
        got(1, |to| match self {
            Net::V8(table) => (table.isend)(comm, data, bytes as c_int, 0, 0, to),
            Net::V9(table) => (table.isend)(comm, data, bytes, 0, 0, to),
            Net::V10(table) => (table.isend)(comm, data, bytes, 0, 0, null_mut(), to),
            Net::V11(table) => (table.isend)(comm, data, bytes, 0, 0, null_mut(), to),
            Net::V12(table) => (table.isend)(comm, data, bytes, 0, 0, null_mut(), to),
        })
    }

    /// 0: to be called again.
    pub fn irecv(self, comm: Handle, data: *mut u8, bytes: usize) -> Result<Handle, Code> {
        let (mut data, mut tag, mut registration) = (data.cast::<c_void>(), 0, 0);
        let (d, t, r) = (&raw mut data, &raw mut tag, &raw mut registration);
        let (mut size, mut int, mut profiled) = (bytes, bytes as c_int, null_mut());
        let (s, p) = (&raw mut size, &raw mut profiled);
        got(1, |to| match self {
            Net::V8(table) => (table.irecv)(comm, 1, d, &raw mut int, t, r, to),
            Net::V9(table) => (table.irecv)(comm, 1, d, s, t, r, to),
            Net::V10(table) => (table.irecv)(comm, 1, d, s, t, r, p, to),
            Net::V11(table) => (table.irecv)(comm, 1, d, s, t, r, p, to),
            Net::V12(table) => (table.irecv)(comm, 1, d, s, t, r, p, to),
        })
    }

    /// The bytes of a request that is done.
    pub fn test(self, request: Handle) -> Result<Option<usize>, Code> {
        let mut size = -1;
        let finished = got(-1, |to| net!(self, table => (table.test)(request, to, &raw mut size)))?;
        Ok((finished == 1).then_some(size as usize))
    }

    pub fn close_send(self, comm: Handle) -> Result<(), Code> {
        done(net!(self, table => (table.close_send)(comm)))
    }

    pub fn close_receive(self, comm: Handle) -> Result<(), Code> {
        done(net!(self, table => (table.close_recv)(comm)))
    }

    pub fn close_listen(self, listening: Handle) -> Result<(), Code> {
        done(net!(self, table => (table.close_listen)(listening)))
    }
}
