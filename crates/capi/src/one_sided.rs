//! C functions of one-sided messages.

use std::ffi::{c_int, c_uint, c_void};

use netsum_nccl_core::{Code, Failure, Kind};

use crate::comm::{self, Comm, Handle};
use crate::group_call::{self, Deed};
use crate::operations::peer;
use crate::pointers::read;
use crate::result::call;
use crate::signals::{Put, Signal};

/// `ncclWaitSignalDesc_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WaitSignal {
    count: c_int,
    peer: c_int,
    number: c_int,
    context: c_int,
}

exported! {
    /// Writes elements into a peer's window, and signals it.
    #[allow(clippy::too_many_arguments)] // NCCL's signature.
    "pncclPutSignal" fn ncclPutSignal(
        local: *const c_void,
        count: usize,
        datatype: c_int,
        to: c_int,
        window: Handle,
        offset: usize,
        number: c_int,
        context: c_int,
        flags: c_uint,
        comm: Handle,
        _stream: *mut c_void,
    ) -> Code {
        call(|| group_call::submit((|| {
            let comm = comm::usable(comm)?;
            let signal = signal(&comm, (to, number, context), flags)?;
            let bytes = Kind::of(datatype)?.bytes(count)?;
            let window = comm.windows.window(window)?;
            window.check(offset as u64, bytes as u64, signal.peer)?;
            let bytes = if bytes == 0 { Vec::new() } else { read(local.cast(), bytes, "localbuff")? };
            let put = Put { window: window.number, offset: offset as u64, bytes };
            Ok(Deed::Act(Box::new(move || comm.signal(signal, Some(put)))))
        })()))
    }

    /// Signals a peer.
    "pncclSignal" fn ncclSignal(
        to: c_int,
        number: c_int,
        context: c_int,
        flags: c_uint,
        comm: Handle,
        _stream: *mut c_void,
    ) -> Code {
        call(|| group_call::submit((|| {
            let comm = comm::usable(comm)?;
            let signal = signal(&comm, (to, number, context), flags)?;
            Ok(Deed::Act(Box::new(move || comm.signal(signal, None))))
        })()))
    }

    /// Waits for signals. What peers wrote before them is in the windows afterwards.
    "pncclWaitSignal" fn ncclWaitSignal(
        count: c_int,
        signals: *const WaitSignal,
        comm: Handle,
        _stream: *mut c_void,
    ) -> Code {
        call(|| group_call::submit((|| {
            let comm = comm::usable(comm)?;
            let count = usize::try_from(count)
                .map_err(|_| Failure::argument(format!("{count} signals cannot be awaited")))?;
            let mut awaited = Vec::new();
            for at in 0..count {
                let bytes = read(signals.wrapping_add(at).cast(), size_of::<WaitSignal>(), "signalDescs")?;
                let word = |at: usize| bytes[at..].first_chunk().map_or(0, |word| c_int::from_le_bytes(*word));
                let of = signal(&comm, (word(4), word(8), word(12)), 0)?;
                let times = u64::try_from(word(0))
                    .map_err(|_| Failure::argument(format!("opCnt {} is negative", word(0))))?;
                awaited.push((of, times));
            }
            Ok(Deed::Await(Box::new(move || {
                awaited.into_iter().try_for_each(|(signal, times)| comm.wait_for(signal, times))
            })))
        })()))
    }
}

fn signal(
    comm: &Comm,
    (to, number, context): (c_int, c_int, c_int),
    flags: c_uint,
) -> Result<Signal, Failure> {
    if flags != 0 || number < 0 || context < 0 {
        return Err(Failure::argument(format!(
            "flags {flags} must be 0, signal {number} and context {context} not negative"
        )));
    }
    Ok(Signal { peer: peer(comm, to, "peer")?, context, number })
}
