//! Memory of C callers.

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
