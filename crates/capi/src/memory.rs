//! Memory that the library hands out, and memory that callers register.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;
use std::ffi::{c_int, c_void};

use netsum_nccl_core::{Code, Failure, SYSTEM_ERROR};
use parking_lot::Mutex;

use crate::comm::{self, Handle};
use crate::group_call::{self, Deed};
use crate::pointers::{self, Location};
use crate::result::call;

/// Memory that was handed out, by address.
static ALLOCATED: Mutex<Option<HashMap<usize, Layout>>> = Mutex::new(None);

exported! {
    /// Memory that is zero at first, at a multiple of the alignment that windows require.
    "pncclMemAlloc" fn ncclMemAlloc(location: *mut *mut c_void, size: usize) -> Code {
        call(|| {
            pointers::write(location, std::ptr::null_mut(), "ptr")?;
            let layout = Layout::from_size_align(size.max(1), ALIGNMENT).ok();
            let none = || Failure { code: SYSTEM_ERROR, words: format!("no memory of {size} bytes") };
            let layout = layout.ok_or_else(none)?;
            // SAFETY: the layout has at least a byte.
            let start = unsafe { alloc_zeroed(layout) };
            if start.is_null() {
                return Err(none());
            }
            ALLOCATED.lock().get_or_insert_default().insert(start as usize, layout);
            pointers::write(location, start.cast(), "ptr")
        })
    }

    /// Frees it. NULL is nothing to free.
    "pncclMemFree" fn ncclMemFree(start: *mut c_void) -> Code {
        call(|| {
            if start.is_null() {
                return Ok(());
            }
            let layout = ALLOCATED.lock().get_or_insert_default().remove(&(start as usize));
            let layout =
                layout.ok_or_else(|| Failure::argument("ptr does not come from ncclMemAlloc"))?;
            // SAFETY: it was allocated with this layout, and has just been removed from the table, so only once.
            unsafe { dealloc(start.cast(), layout) };
            Ok(())
        })
    }

    /// Registers a buffer. Operations send any memory of the host, so that this only checks it.
    "pncclCommRegister" fn ncclCommRegister(
        comm: Handle,
        start: *mut c_void,
        size: usize,
        handle: *mut Handle,
    ) -> Code {
        call(|| {
            let comm = comm::usable(comm)?;
            pointers::write(handle, 0, "handle")?;
            check(start, size)?;
            pointers::write(handle, comm.windows.register(), "handle")
        })
    }

    /// Undoes that. NULL is nothing to undo.
    "pncclCommDeregister" fn ncclCommDeregister(comm: Handle, handle: Handle) -> Code {
        call(|| match (comm::known(comm)?, handle) {
            (_, 0) => Ok(()),
            (comm, handle) => comm.windows.deregister(handle),
        })
    }

    /// Makes memory of this rank a window to which the others write; all ranks of the communicator call it, in the same
    /// order.
    "pncclCommWindowRegister" fn ncclCommWindowRegister(
        comm: Handle,
        start: *mut c_void,
        size: usize,
        window: *mut Handle,
        flags: c_int,
    ) -> Code {
        call(|| {
            let comm = comm::usable(comm)?;
            pointers::write(window, 0, "win")?;
            check(start, size)?;
            if flags & !ALL_FLAGS != 0 {
                return Err(Failure::argument(format!("flags {flags:#x} do not exist")));
            }
            let (window, start) = (Location::new(window), start as usize);
            let of = comm.clone();
            let register = move || {
                window.set(comm.register_window(start as *mut c_void, size, flags)?);
                Ok(())
            };
            group_call::submit(Ok(Deed::agree(of, register)))
        })
    }

    /// Ends a window. NULL is nothing to end.
    "pncclCommWindowDeregister" fn ncclCommWindowDeregister(comm: Handle, window: Handle) -> Code {
        call(|| match (comm::known(comm)?, window) {
            (_, 0) => Ok(()),
            (comm, window) => comm.windows.remove_window(window),
        })
    }

    /// The memory of a window.
    "pncclWinGetUserPtr" fn ncclWinGetUserPtr(
        comm: Handle,
        window: Handle,
        start: *mut *mut c_void,
    ) -> Code {
        call(|| {
            pointers::write(start, std::ptr::null_mut(), "outUserPtr")?;
            let window = comm::known(comm)?.windows.window(window)?;
            pointers::write(start, window.start as *mut c_void, "outUserPtr")
        })
    }
}

fn check(start: *mut c_void, size: usize) -> Result<(), Failure> {
    if start.is_null() && size > 0 || size > isize::MAX as usize {
        return Err(Failure::argument("buff is NULL, or too long"));
    }
    Ok(())
}

/// NCCL_WIN_REQUIRED_ALIGNMENT.
const ALIGNMENT: usize = 4096;
/// All NCCL_WIN_ flags; none has an effect in host memory.
const ALL_FLAGS: c_int = 0x0f;
