//! Collectives that XLA calls from inside a compiled program: one handler, controlled by attributes.
//!
//! `netsum.jax.paths` registers it and passes an array, its result and JAX's token for order. Start reading at
//! [`execute`].

#![allow(unsafe_code)]

mod abi;

use std::collections::BTreeMap;
use std::ffi::{CString, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use netsum_collective::{Buffer, Combine, Dtype, Group, ReduceOp};
use parking_lot::Mutex;
use pyo3::prelude::*;

use abi::CallFrame;

/// A group that programs refer to by number.
struct Registered {
    group: Weak<Group>,
    size: u32,
    timeout: Duration,
}

static GROUPS: Mutex<BTreeMap<i64, Registered>> = Mutex::new(BTreeMap::new());
static NEXT: AtomicI64 = AtomicI64::new(1);

/// Registers a group for compiled programs; returns its number. A program that runs after the group is gone fails.
pub(crate) fn register(group: &Arc<Group>, size: u32, timeout: Duration) -> i64 {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut groups = GROUPS.lock();
    groups.retain(|_, known| known.group.strong_count() > 0);
    groups.insert(number, Registered { group: Arc::downgrade(group), size, timeout });
    number
}

/// The address of the handler, for `jax.ffi.register_ffi_target`.
#[pyfunction]
pub(crate) fn xla_handler() -> usize {
    handler as *const () as usize
}

/// Called by XLA; returns an XLA error, or NULL.
unsafe extern "C" fn handler(frame: *mut CallFrame) -> *mut c_void {
    // SAFETY: XLA passes a frame that lives for the call, with extensions and members as in its header.
    let frame = unsafe { &mut *frame };
    // SAFETY: as above.
    if let Some(extension) = unsafe { frame.extension.as_ref() }
        && extension.kind == abi::EXTENSION_METADATA
    {
        // SAFETY: an extension of this kind begins a `MetadataExtension`, whose metadata the handler fills.
        let metadata =
            unsafe { &mut *(*frame.extension.cast::<abi::MetadataExtension>()).metadata };
        (metadata.api_version.major, metadata.api_version.minor) = abi::VERSION;
        metadata.traits = 0;
        return std::ptr::null_mut();
    }
    if frame.stage != abi::STAGE_EXECUTE {
        return std::ptr::null_mut();
    }
    let outcome = catch_unwind(AssertUnwindSafe(|| execute(frame)));
    match outcome.unwrap_or_else(|_| Err("internal error: a panic".to_owned())) {
        Ok(()) => std::ptr::null_mut(),
        Err(words) => error(frame, &words),
    }
}

fn error(frame: &CallFrame, words: &str) -> *mut c_void {
    let message = CString::new(format!("netsum: {}", words.replace('\0', " "))).unwrap_or_default();
    let mut create = abi::ErrorCreate {
        struct_size: size_of::<abi::ErrorCreate>(),
        extension: std::ptr::null_mut(),
        message: message.as_ptr(),
        code: abi::ERROR_INTERNAL,
    };
    // SAFETY: XLA's own function, which copies the message.
    unsafe { ((*frame.api).error_create)(&raw mut create) }
}

/// One collective: from the one argument that is not a token, to the one result that is not.
fn execute(frame: &CallFrame) -> Result<(), String> {
    let mut input = array(&frame.arguments, "argument")?;
    let mut output = array(&frame.results, "result")?;
    let attributes = numbers(&frame.attributes);
    let attribute =
        |name: &str| attributes.get(name).copied().ok_or_else(|| format!("no attribute {name}"));
    let (kind, number) = (attribute("kind")?, attribute("group")?);
    let (group, size, timeout) = known(number)?;
    let work = match kind {
        ALLREDUCE => {
            let how = combine(attribute("op")?)?;
            copy(&input.memory, &mut output.memory);
            group.allreduce(output.memory, reduced(input.dtype, how)?, how, timeout)
        }
        ALLGATHER => group.allgather(output.parts(size)?, input.memory, timeout),
        REDUCE_SCATTER => {
            let how = combine(attribute("op")?)?;
            let dtype = reduced(input.dtype, how)?;
            group.reduce_scatter(output.memory, input.parts(size)?, dtype, how, timeout)
        }
        BROADCAST => {
            let root =
                u32::try_from(attribute("root")?).map_err(|_| "a negative root".to_owned())?;
            if group.rank() == root {
                copy(&input.memory, &mut output.memory);
            }
            group.broadcast(output.memory, root, timeout)
        }
        ALLTOALL => group.alltoall(output.parts(size)?, input.parts(size)?, timeout),
        _ => return Err(format!("collective {kind} does not exist")),
    };
    work.wait(None).map_err(|error| error.to_string())
}

fn known(number: i64) -> Result<(Arc<Group>, u32, Duration), String> {
    let groups = GROUPS.lock();
    let found = groups
        .get(&number)
        .and_then(|known| Some((known.group.upgrade()?, known.size, known.timeout)));
    found.ok_or_else(|| {
        "the group of this program is gone; compile it anew after netsum.jax.init()".to_owned()
    })
}

/// An array of XLA.
struct Array {
    memory: Buffer,
    dtype: c_int,
}

impl Array {
    /// Equal parts along the first dimension, one per rank.
    fn parts(&mut self, ranks: u32) -> Result<Vec<Buffer>, String> {
        let ranks = ranks as usize;
        let bytes = self.memory.len();
        if !bytes.is_multiple_of(ranks) {
            return Err(format!("{bytes} bytes cannot be cut into {ranks} parts"));
        }
        let each = bytes / ranks;
        let part = |rank| self.memory.lend_mut(rank * each..(rank + 1) * each);
        Ok((0..ranks).map(part).collect())
    }
}

fn array(buffers: &abi::Buffers, name: &str) -> Result<Array, String> {
    let mut found = None;
    for index in 0..buffers.size as usize {
        // SAFETY: XLA gives `size` pointers to buffers that live for the call.
        let item = unsafe { &**buffers.items.add(index) };
        if item.dtype != abi::TYPE_TOKEN && found.replace(item).is_some() {
            return Err(format!("more than one {name}"));
        }
    }
    let item = found.ok_or_else(|| format!("no {name}"))?;
    let mut elements = 1;
    for axis in 0..item.rank as usize {
        // SAFETY: `dims` has `rank` members.
        elements *= unsafe { *item.dims.add(axis) } as usize;
    }
    let bytes = elements * item_bytes(item.dtype)?;
    Ok(Array { memory: buffer(item.data.cast(), bytes), dtype: item.dtype })
}

fn buffer(start: *mut u8, bytes: usize) -> Buffer {
    if bytes == 0 {
        return Buffer::from_vec(Vec::new());
    }
    // SAFETY: XLA keeps arguments and results until the handler returns, which is after every operation on them has
    // ended, and lets no other code write arguments or use results meanwhile; arguments are only read here.
    unsafe { Buffer::from_raw(start, bytes, Box::new(())) }
}

fn copy(from: &Buffer, to: &mut Buffer) {
    let source = from.slice(0..from.len());
    // XLA may use the same memory for a program's argument and result; they never overlap otherwise.
    if source.as_ptr() != to.slice(0..to.len()).as_ptr() {
        to.write(0, source);
    }
}

/// The attributes that are integers of 64 bits.
fn numbers(attributes: &abi::Attributes) -> BTreeMap<String, i64> {
    let mut found = BTreeMap::new();
    for index in 0..attributes.size as usize {
        // SAFETY: XLA gives `size` kinds, names and values; a value of kind scalar is a `Scalar`, and one of type S64
        // points at an i64.
        unsafe {
            let scalar = *attributes.values.add(index) as *const abi::Scalar;
            if *attributes.kinds.add(index) == abi::ATTRIBUTE_SCALAR
                && (*scalar).dtype == abi::TYPE_S64
            {
                let name = &**attributes.names.add(index);
                let name = std::slice::from_raw_parts(name.start, name.len);
                let value = (*scalar).value.cast::<i64>().read_unaligned();
                found.insert(String::from_utf8_lossy(name).into_owned(), value);
            }
        }
    }
    found
}

fn combine(op: i64) -> Result<Combine, String> {
    Ok(match op {
        0 => Combine::Plain(ReduceOp::Sum),
        1 => Combine::Average,
        2 => Combine::Plain(ReduceOp::Min),
        3 => Combine::Plain(ReduceOp::Max),
        4 => Combine::Plain(ReduceOp::Product),
        _ => return Err(format!("operation {op} does not exist")),
    })
}

/// netsum's type for one of XLA's, for reductions. Sums of complex numbers are sums of pairs.
fn reduced(dtype: c_int, how: Combine) -> Result<Dtype, String> {
    let sums = matches!(how, Combine::Average | Combine::Plain(ReduceOp::Sum));
    Ok(match dtype {
        1 => Dtype::Bool,
        2 => Dtype::I8,
        3 => Dtype::I16,
        4 => Dtype::I32,
        5 => Dtype::I64,
        6 => Dtype::U8,
        10 => Dtype::F16,
        11 => Dtype::F32,
        12 => Dtype::F64,
        16 => Dtype::Bf16,
        15 if sums => Dtype::F32,
        18 if sums => Dtype::F64,
        _ => return Err(format!("arrays of XLA's type {dtype} cannot be combined by {how}")),
    })
}

fn item_bytes(dtype: c_int) -> Result<usize, String> {
    Ok(match dtype {
        1 | 2 | 6 => 1,
        3 | 7 | 10 | 16 => 2,
        4 | 8 | 11 => 4,
        5 | 9 | 12 | 15 => 8,
        18 => 16,
        _ => return Err(format!("arrays of XLA's type {dtype} cannot be moved")),
    })
}

// Numbers as in `netsum.jax.paths`.
const ALLREDUCE: i64 = 0;
const ALLGATHER: i64 = 1;
const REDUCE_SCATTER: i64 = 2;
const BROADCAST: i64 = 3;
const ALLTOALL: i64 = 4;
