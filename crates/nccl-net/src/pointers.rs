//! Memory of NCCL.

use std::ffi::c_void;

use netsum_collective::Buffer;
use netsum_nccl_core::{Failure, MeetingPlace, PLACE_BYTES};

use crate::interface::Handle;

/// The bytes that a request reads or writes. Refuses NULL, unless the length is 0.
pub(crate) fn buffer(start: *mut c_void, bytes: usize, name: &str) -> Result<Buffer, Failure> {
    if bytes == 0 {
        return Ok(Buffer::from_vec(Vec::new()));
    }
    if start.is_null() || bytes > isize::MAX as usize {
        return Err(Failure::argument(format!("{name} is NULL, or too long")));
    }
    // SAFETY: by NCCL's contract the memory is valid, and NCCL does not touch it, until `test` says that the request is
    // done, or the communicator was closed; a request drops its buffers before either returns.
    Ok(unsafe { Buffer::from_raw(start.cast(), bytes, Box::new(())) })
}

/// Writes a result to a location of NCCL. Refuses NULL.
pub(crate) fn write<T>(location: *mut T, value: T, name: &str) -> Result<(), Failure> {
    if location.is_null() {
        return Err(Failure::argument(format!("{name} is NULL")));
    }
    // SAFETY: not NULL; by the interface it is a `T` of the caller that no other thread uses during the call.
    unsafe { location.write(value) };
    Ok(())
}

/// Writes a result to a location that may be NULL.
pub(crate) fn write_if<T>(location: *mut T, value: T) {
    if !location.is_null() {
        // SAFETY: as in `write`.
        unsafe { location.write(value) };
    }
}

/// Element `index` of an array of NCCL. Refuses NULL.
pub(crate) fn element<T: Copy>(array: *const T, index: usize, name: &str) -> Result<T, Failure> {
    if array.is_null() {
        return Err(Failure::argument(format!("{name} is NULL")));
    }
    // SAFETY: not NULL; by the interface the array has more than `index` elements, and no thread changes them now.
    Ok(unsafe { array.add(index).read() })
}

/// Reads what a rank's `listen` has written into a handle.
pub(crate) fn place(handle: *const c_void) -> Result<MeetingPlace, Failure> {
    let bytes: [u8; PLACE_BYTES] = element(handle.cast(), 0, "handle")?;
    let place = MeetingPlace::from_bytes(&bytes);
    place.ok_or_else(|| Failure::argument("the handle does not come from this plug-in's listen"))
}

/// The number that `connect` keeps in the last bytes of its copy of a handle between its calls.
pub(crate) fn stage(handle: *const c_void) -> Result<Handle, Failure> {
    let bytes: [u8; PLACE_BYTES] = element(handle.cast(), 0, "handle")?;
    Ok(bytes.last_chunk().map_or(0, |stage| usize::from_le_bytes(*stage)))
}

/// Keeps the number.
pub(crate) fn set_stage(handle: *mut c_void, stage: Handle) -> Result<(), Failure> {
    let mut bytes: [u8; PLACE_BYTES] = element(handle.cast_const().cast(), 0, "handle")?;
    if let Some(place) = bytes.last_chunk_mut() {
        *place = stage.to_le_bytes();
    }
    write(handle.cast(), bytes, "handle")
}
