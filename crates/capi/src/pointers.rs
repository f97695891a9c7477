//! Memory of C callers.

use std::ffi::{CStr, c_char};

use netsum_collective::Buffer;
use netsum_nccl_core::Failure;

/// The bytes of a caller's buffer. Refuses NULL, unless the length is 0.
pub(crate) fn buffer(pointer: *mut u8, bytes: usize, name: &str) -> Result<Buffer, Failure> {
    if bytes == 0 {
        return Ok(Buffer::from_vec(Vec::new()));
    }
    if pointer.is_null() {
        return Err(Failure::argument(format!("{name} is NULL")));
    }
    // SAFETY: by NCCL's contract, which the header repeats, the caller passes memory of that many bytes and does not
    // access it until the call, or the outermost ncclGroupEnd, has returned; by then every operation on it has ended.
    Ok(unsafe { Buffer::from_raw(pointer, bytes, Box::new(())) })
}

/// Copies a caller's send buffer to its receive buffer, unless they are the same; they may overlap.
pub(crate) fn copy(from: &Buffer, to: &mut Buffer) {
    let (source, target) = (from.slice(0..from.len()), to.slice(0..to.len()).as_ptr());
    if source.as_ptr() != target {
        // Uses a temporary copy only if necessary: the two buffers of a caller seldom overlap.
        let (start, begin) = (target as usize, source.as_ptr() as usize);
        if begin >= start + to.len() || begin + source.len() <= start {
            to.write(0, source);
        } else {
            let apart = source.to_vec();
            to.write(0, &apart);
        }
    }
}

/// Writes a result to a location of the caller. Refuses NULL.
pub(crate) fn write<T>(pointer: *mut T, value: T, name: &str) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(Failure::argument(format!("{name} is NULL")));
    }
    // SAFETY: not NULL; by the interface it points to a `T` of the caller that no other thread uses during the call.
    unsafe { pointer.write(value) };
    Ok(())
}

/// The `len` bytes at `pointer`. Refuses NULL.
pub(crate) fn read(pointer: *const u8, len: usize, name: &str) -> Result<Vec<u8>, Failure> {
    if pointer.is_null() {
        return Err(Failure::argument(format!("{name} is NULL")));
    }
    // SAFETY: not NULL; by the interface it points to that many bytes, which no thread changes during the call.
    Ok(unsafe { std::slice::from_raw_parts(pointer, len) }.to_vec())
}

/// A C string of the caller. Refuses NULL.
pub(crate) fn read_text(pointer: *const c_char, name: &str) -> Result<String, Failure> {
    if pointer.is_null() {
        return Err(Failure::argument(format!("{name} is NULL")));
    }
    // SAFETY: not NULL; by the interface it is a C string that no thread changes during the call.
    Ok(unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned())
}

/// Copies bytes to the caller's memory, which has room for them. Refuses NULL.
pub(crate) fn write_bytes(pointer: *mut u8, bytes: &[u8], name: &str) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(Failure::argument(format!("{name} is NULL")));
    }
    // SAFETY: not NULL; by the interface the caller's memory has room, and no other thread uses it during the call.
    unsafe { pointer.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    Ok(())
}

/// Where a caller wants a handle that exists later, when the call or its group ends.
pub(crate) struct Location(*mut usize);

// SAFETY: NCCL's contract leaves the location to the library until the call or the group has ended, and only the thread
// that makes what the handle is of writes to it.
unsafe impl Send for Location {}

impl Location {
    /// The caller of this has written to the location before, so it is not NULL.
    pub(crate) fn new(location: *mut usize) -> Location {
        Location(location)
    }

    pub(crate) fn set(&self, handle: usize) {
        // SAFETY: as above.
        unsafe { self.0.write(handle) };
    }
}
