//! C functions of the operations. Semantics: NCCL's, with host memory; see `include/nccl.h`.
//!
//! Streams are ignored: outside a group a call returns when its operation is done.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use netsum_collective::{Buffer, Terms, Work};
use netsum_nccl_core::{Code, Failure, Kind, Reduction};

use crate::comm::{self, Comm, Handle};
use crate::group_call::{self, Deed, Started};
use crate::pointers::{buffer, copy};
use crate::result::call;

/// Combines all ranks' `count` elements at all ranks.
#[unsafe(no_mangle)]
pub extern "C" fn ncclAllReduce(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: c_int,
    op: c_int,
    comm: Handle,
    _stream: *mut c_void,
) -> Code {
    submit(|| {
        let (comm, reduction) = (comm::known(comm)?, Reduction::of(op, datatype)?);
        let bytes = reduction.kind.bytes(count)?;
        let (send, mut recv) = (input(sendbuff, bytes)?, output(recvbuff, bytes)?);
        operation(comm, move |comm, terms| {
            copy(&send, &mut recv);
            before(reduction, &mut recv);
            let (dtype, how) = (reduction.kind.dtype, reduction.how);
            let work = comm.group.allreduce(&mut recv, dtype, how, terms);
            finished_by(work, reduction, recv, comm.size)
        })
    })
}

/// Combines all ranks' `count` elements at the root.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)] // NCCL's signature.
pub extern "C" fn ncclReduce(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: c_int,
    op: c_int,
    root: c_int,
    comm: Handle,
    _stream: *mut c_void,
) -> Code {
    submit(|| {
        let (comm, reduction) = (comm::known(comm)?, Reduction::of(op, datatype)?);
        let (bytes, root) = (reduction.kind.bytes(count)?, peer(&comm, root, "root")?);
        let send = input(sendbuff, bytes)?;
        let recv = if comm.rank == root { Some(output(recvbuff, bytes)?) } else { None };
        operation(comm, move |comm, terms| {
            let mut target = match recv {
                Some(mut recv) => {
                    copy(&send, &mut recv);
                    recv
                }
                None => own(reduction, send),
            };
            before(reduction, &mut target);
            let (dtype, how) = (reduction.kind.dtype, reduction.how);
            let work = comm.group.reduce(target.lend_all(), dtype, how, root, terms);
            finished_by(
                work,
                reduction,
                if comm.rank == root { target } else { nothing() },
                comm.size,
            )
        })
    })
}

/// Copies the root's `count` elements to all ranks.
#[unsafe(no_mangle)]
pub extern "C" fn ncclBroadcast(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: c_int,
    root: c_int,
    comm: Handle,
    _stream: *mut c_void,
) -> Code {
    submit(|| {
        let comm = comm::known(comm)?;
        let (bytes, root) = (Kind::of(datatype)?.bytes(count)?, peer(&comm, root, "root")?);
        let send = if comm.rank == root { Some(input(sendbuff, bytes)?) } else { None };
        let mut recv = output(recvbuff, bytes)?;
        operation(comm, move |comm, terms| {
            if let Some(send) = send {
                copy(&send, &mut recv);
            }
            as_it_is(comm.group.broadcast(recv, root, terms))
        })
    })
}

/// Like `ncclBroadcast`, in place.
#[unsafe(no_mangle)]
pub extern "C" fn ncclBcast(
    buff: *mut c_void,
    count: usize,
    datatype: c_int,
    root: c_int,
    comm: Handle,
    stream: *mut c_void,
) -> Code {
    ncclBroadcast(buff, buff, count, datatype, root, comm, stream)
}

/// Copies all ranks' `sendcount` elements, by rank, to all ranks.
#[unsafe(no_mangle)]
pub extern "C" fn ncclAllGather(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    sendcount: usize,
    datatype: c_int,
    comm: Handle,
    _stream: *mut c_void,
) -> Code {
    submit(|| {
        let comm = comm::known(comm)?;
        let bytes = Kind::of(datatype)?.bytes(sendcount)?;
        let send = input(sendbuff, bytes)?;
        let outs = parts(recvbuff, bytes, comm.size, "recvbuff")?;
        operation(comm, move |comm, terms| as_it_is(comm.group.allgather(outs, send, terms)))
    })
}

/// Combines all ranks' `recvcount` elements for each rank at that rank.
#[unsafe(no_mangle)]
pub extern "C" fn ncclReduceScatter(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    recvcount: usize,
    datatype: c_int,
    op: c_int,
    comm: Handle,
    _stream: *mut c_void,
) -> Code {
    submit(|| {
        let (comm, reduction) = (comm::known(comm)?, Reduction::of(op, datatype)?);
        let bytes = reduction.kind.bytes(recvcount)?;
        let ins = parts(sendbuff.cast_mut(), bytes, comm.size, "sendbuff")?;
        let mut recv = output(recvbuff, bytes)?;
        operation(comm, move |comm, terms| {
            let mut ins: Vec<Buffer> = ins.into_iter().map(|part| own(reduction, part)).collect();
            ins.iter_mut().for_each(|part| before(reduction, part));
            let (dtype, how) = (reduction.kind.dtype, reduction.how);
            let work = comm.group.reduce_scatter(recv.lend_all(), ins, dtype, how, terms);
            finished_by(work, reduction, recv, comm.size)
        })
    })
}

/// Sends `count` elements to `to`; to the own rank only within a group.
#[unsafe(no_mangle)]
pub extern "C" fn ncclSend(
    sendbuff: *const c_void,
    count: usize,
    datatype: c_int,
    to: c_int,
    comm: Handle,
    _stream: *mut c_void,
) -> Code {
    submit(|| {
        let comm = comm::known(comm)?;
        let (bytes, to) = (Kind::of(datatype)?.bytes(count)?, peer(&comm, to, "peer")?);
        let send = input(sendbuff, bytes)?;
        if to == comm.rank {
            return Ok(Deed::SendToSelf(comm, send));
        }
        operation(comm, move |comm, _| as_it_is(comm.group.send(send, to, TAG, comm.timeout)))
    })
}

/// Receives `count` elements from `from`; from the own rank only within a group.
#[unsafe(no_mangle)]
pub extern "C" fn ncclRecv(
    recvbuff: *mut c_void,
    count: usize,
    datatype: c_int,
    from: c_int,
    comm: Handle,
    _stream: *mut c_void,
) -> Code {
    submit(|| {
        let comm = comm::known(comm)?;
        let (bytes, from) = (Kind::of(datatype)?.bytes(count)?, peer(&comm, from, "peer")?);
        let recv = output(recvbuff, bytes)?;
        if from == comm.rank {
            return Ok(Deed::ReceiveFromSelf(comm, recv));
        }
        operation(comm, move |comm, _| {
            as_it_is(comm.group.receive(recv, Some(from), TAG, comm.timeout))
        })
    })
}

/// Defers the following calls of this thread until `ncclGroupEnd`.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupStart() -> Code {
    call(|| {
        group_call::start();
        Ok(())
    })
}

/// The outermost one starts everything since the outermost `ncclGroupStart`, and returns when it is done.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupEnd() -> Code {
    call(group_call::end)
}

fn submit(make: impl FnOnce() -> Result<Deed, Failure>) -> Code {
    call(|| group_call::submit(make()))
}

fn operation(
    comm: Arc<Comm>,
    start: impl FnOnce(&Comm, Terms) -> Started + 'static,
) -> Result<Deed, Failure> {
    Ok(Deed::Operation(comm, Box::new(start)))
}

fn as_it_is(work: Work) -> Started {
    Started { work, finish: Box::new(|| ()) }
}

fn finished_by(work: Work, reduction: Reduction, mut result: Buffer, ranks: u32) -> Started {
    let finish = Box::new(move || {
        let all = 0..result.len();
        reduction.after(result.slice_mut(all), ranks);
    });
    Started { work, finish }
}

fn before(reduction: Reduction, values: &mut Buffer) {
    let all = 0..values.len();
    reduction.before(values.slice_mut(all));
}

/// A read-only buffer of the caller, or a copy if it would be changed.
fn own(reduction: Reduction, input: Buffer) -> Buffer {
    if reduction.changes_input() {
        Buffer::from_vec(input.slice(0..input.len()).to_vec())
    } else {
        input
    }
}

fn nothing() -> Buffer {
    Buffer::from_vec(Vec::new())
}

fn input(pointer: *const c_void, bytes: usize) -> Result<Buffer, Failure> {
    buffer(pointer.cast::<u8>().cast_mut(), bytes, "sendbuff")
}

fn output(pointer: *mut c_void, bytes: usize) -> Result<Buffer, Failure> {
    buffer(pointer.cast(), bytes, "recvbuff")
}

/// `ranks` consecutive parts of `bytes` each.
fn parts(
    pointer: *mut c_void,
    bytes: usize,
    ranks: u32,
    name: &str,
) -> Result<Vec<Buffer>, Failure> {
    let all = bytes.checked_mul(ranks as usize).filter(|&all| all <= isize::MAX as usize);
    all.ok_or_else(|| Failure::argument(format!("{name} is too large")))?;
    let mut all = buffer(pointer.cast(), bytes * ranks as usize, name)?;
    let parts = (0..ranks as usize).map(|rank| all.lend_mut(bytes * rank..bytes * (rank + 1)));
    Ok(parts.collect())
}

fn peer(comm: &Comm, rank: c_int, name: &str) -> Result<u32, Failure> {
    let known = u32::try_from(rank).ok().filter(|&rank| rank < comm.size);
    known.ok_or_else(|| {
        Failure::argument(format!("{name} {rank} is not one of {} ranks", comm.size))
    })
}

/// Messages between two ranks of a communicator keep their order, as in NCCL, and have no tags there.
const TAG: u64 = 0;
