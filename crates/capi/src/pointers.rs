//! Memory that C callers point at.

use netsum_collective::Buffer;

use crate::result::Failure;

/// The bytes of a caller's buffer. Refuses NULL, unless there are none.
pub(crate) fn buffer(pointer: *mut u8, bytes: usize, name: &str) -> Result<Buffer, Failure> {
    if bytes == 0 {
        return Ok(Buffer::from_vec(Vec::new()));
    }
    if pointer.is_null() {
        return Err(Failure::argument(format!("{name} is NULL")));
    }
    // SAFETY: by NCCL's contract, which the header repeats, the caller passes memory of that many bytes and leaves it
    // alone until the call, or the outermost ncclGroupEnd, has returned; by then every operation on it has ended.
    Ok(unsafe { Buffer::from_raw(pointer, bytes, Box::new(())) })
}

/// Copies what a caller sends to where it receives, unless that is the same place; they may overlap.
pub(crate) fn copy(from: &Buffer, to: &mut Buffer) {
    let (source, target) = (from.slice(0..from.len()), to.slice(0..to.len()).as_ptr());
    if source.as_ptr() != target {
        // Through a copy only where it is needed: the two memories of a caller seldom overlap.
        let (start, begin) = (target as usize, source.as_ptr() as usize);
        if begin >= start + to.len() || begin + source.len() <= start {
            to.write(0, source);
        } else {
            let apart = source.to_vec();
            to.write(0, &apart);
        }
    }
}

/// Writes a result where the caller wants it. Refuses NULL.
pub(crate) fn write<T>(pointer: *mut T, value: T, name: &str) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(Failure::argument(format!("{name} is NULL")));
    }
    // SAFETY: not NULL; by the interface it points at a `T` of the caller's that nobody else uses during the call.
    unsafe { pointer.write(value) };
    Ok(())
}

/// The `len` bytes at `pointer`. Refuses NULL.
pub(crate) fn read(pointer: *const u8, len: usize, name: &str) -> Result<Vec<u8>, Failure> {
    if pointer.is_null() {
        return Err(Failure::argument(format!("{name} is NULL")));
    }
    // SAFETY: not NULL; by the interface it points at that many bytes, which nobody changes during the call.
    Ok(unsafe { std::slice::from_raw_parts(pointer, len) }.to_vec())
}
