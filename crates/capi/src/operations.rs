//! C functions of the operations. Semantics: NCCL's, with host memory; see `include/nccl.h`.
//!
//! Streams are ignored: outside a group a call returns when its operation is done.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use netsum_collective::{Buffer, Format, Terms, Work};
use netsum_nccl_core::{Code, Failure, Kind, Reduction};

use crate::comm::{self, Comm, Handle};
use crate::group_call::{self, Cost, Deed, Started};
use crate::pointers::{buffer, copy};
use crate::result::call;

exported! {
    /// Combines all ranks' `count` elements at all ranks.
    "pncclAllReduce" fn ncclAllReduce(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        count: usize,
        datatype: c_int,
        op: c_int,
        comm: Handle,
        _stream: *mut c_void,
    ) -> Code {
        submit(|| {
            let (comm, reduction) = (comm::usable(comm)?, Reduction::of(op, datatype)?);
            let bytes = reduction.kind.bytes(count)?;
            let (send, mut recv) = (input(sendbuff, bytes)?, output(recvbuff, bytes)?);
            let cost = summed("allreduce", reduction, bytes);
            operation(comm, cost, move |comm, terms| {
                copy(&send, &mut recv);
                before(reduction, &mut recv);
                let (dtype, how) = (reduction.kind.dtype, reduction.how);
                let work = comm.group.allreduce(&mut recv, dtype, how, terms);
                finished_by(work, reduction, recv, comm.size)
            })
        })
    }

    /// Combines all ranks' `count` elements at the root.
    #[allow(clippy::too_many_arguments)] // NCCL's signature.
    "pncclReduce" fn ncclReduce(
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
            let (comm, reduction) = (comm::usable(comm)?, Reduction::of(op, datatype)?);
            let (bytes, root) = (reduction.kind.bytes(count)?, peer(&comm, root, "root")?);
            let send = input(sendbuff, bytes)?;
            let recv = if comm.rank == root { Some(output(recvbuff, bytes)?) } else { None };
            operation(comm, summed("reduce", reduction, bytes), move |comm, terms| {
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
    "pncclBroadcast" fn ncclBroadcast(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        count: usize,
        datatype: c_int,
        root: c_int,
        comm: Handle,
        _stream: *mut c_void,
    ) -> Code {
        submit(|| {
            let comm = comm::usable(comm)?;
            let (bytes, root) = (Kind::of(datatype)?.bytes(count)?, peer(&comm, root, "root")?);
            let send = if comm.rank == root { Some(input(sendbuff, bytes)?) } else { None };
            let mut recv = output(recvbuff, bytes)?;
            operation(comm, Cost::moved("broadcast", bytes), move |comm, terms| {
                if let Some(send) = send {
                    copy(&send, &mut recv);
                }
                as_it_is(comm.group.broadcast(recv, root, terms))
            })
        })
    }

    /// Like `ncclBroadcast`, in place.
    "pncclBcast" fn ncclBcast(
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
    "pncclAllGather" fn ncclAllGather(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        sendcount: usize,
        datatype: c_int,
        comm: Handle,
        _stream: *mut c_void,
    ) -> Code {
        submit(|| {
            let comm = comm::usable(comm)?;
            let bytes = Kind::of(datatype)?.bytes(sendcount)?;
            let send = input(sendbuff, bytes)?;
            let outs = parts(recvbuff, bytes, comm.size, "recvbuff")?;
            operation(comm, Cost::moved("allgather", bytes), move |comm, terms| {
                as_it_is(comm.group.allgather(outs, send, terms))
            })
        })
    }

    /// Combines all ranks' `recvcount` elements for each rank at that rank.
    "pncclReduceScatter" fn ncclReduceScatter(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        recvcount: usize,
        datatype: c_int,
        op: c_int,
        comm: Handle,
        _stream: *mut c_void,
    ) -> Code {
        submit(|| {
            let (comm, reduction) = (comm::usable(comm)?, Reduction::of(op, datatype)?);
            let bytes = reduction.kind.bytes(recvcount)?;
            let ins = parts(sendbuff.cast_mut(), bytes, comm.size, "sendbuff")?;
            let mut recv = output(recvbuff, bytes)?;
            let all = bytes * comm.size as usize;
            operation(comm, summed("reduce_scatter", reduction, all), move |comm, terms| {
                let mut ins: Vec<Buffer> = ins.into_iter().map(|part| own(reduction, part)).collect();
                ins.iter_mut().for_each(|part| before(reduction, part));
                let (dtype, how) = (reduction.kind.dtype, reduction.how);
                let work = comm.group.reduce_scatter(recv.lend_all(), ins, dtype, how, terms);
                finished_by(work, reduction, recv, comm.size)
            })
        })
    }

    /// Copies this rank's elements for each rank to that rank, by rank.
    "pncclAlltoAll" fn ncclAlltoAll(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        count: usize,
        datatype: c_int,
        comm: Handle,
        _stream: *mut c_void,
    ) -> Code {
        submit(|| {
            let comm = comm::usable(comm)?;
            let bytes = Kind::of(datatype)?.bytes(count)?;
            let ins = parts(sendbuff.cast_mut(), bytes, comm.size, "sendbuff")?;
            let outs = parts(recvbuff, bytes, comm.size, "recvbuff")?;
            operation(comm, Cost::moved("alltoall", bytes), move |comm, terms| {
                as_it_is(comm.group.alltoall(outs, ins, terms))
            })
        })
    }

    /// Copies all ranks' elements to the root, by rank.
    "pncclGather" fn ncclGather(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        count: usize,
        datatype: c_int,
        root: c_int,
        comm: Handle,
        _stream: *mut c_void,
    ) -> Code {
        submit(|| {
            let comm = comm::usable(comm)?;
            let (bytes, root) = (Kind::of(datatype)?.bytes(count)?, peer(&comm, root, "root")?);
            let send = input(sendbuff, bytes)?;
            let outs = match comm.rank == root {
                true => parts(recvbuff, bytes, comm.size, "recvbuff")?,
                false => Vec::new(),
            };
            operation(comm, Cost::moved("gather", bytes), move |comm, terms| {
                as_it_is(comm.group.gather(outs, send, root, terms))
            })
        })
    }

    /// Copies the root's elements for each rank to that rank.
    "pncclScatter" fn ncclScatter(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        count: usize,
        datatype: c_int,
        root: c_int,
        comm: Handle,
        _stream: *mut c_void,
    ) -> Code {
        submit(|| {
            let comm = comm::usable(comm)?;
            let (bytes, root) = (Kind::of(datatype)?.bytes(count)?, peer(&comm, root, "root")?);
            let ins = match comm.rank == root {
                true => parts(sendbuff.cast_mut(), bytes, comm.size, "sendbuff")?,
                false => Vec::new(),
            };
            let recv = output(recvbuff, bytes)?;
            operation(comm, Cost::moved("scatter", bytes), move |comm, terms| {
                as_it_is(comm.group.scatter(recv, ins, root, terms))
            })
        })
    }

    /// Sends `count` elements to `to`; to the own rank only within a group.
    "pncclSend" fn ncclSend(
        sendbuff: *const c_void,
        count: usize,
        datatype: c_int,
        to: c_int,
        comm: Handle,
        _stream: *mut c_void,
    ) -> Code {
        submit(|| {
            let comm = comm::usable(comm)?;
            let (bytes, to) = (Kind::of(datatype)?.bytes(count)?, peer(&comm, to, "peer")?);
            let send = input(sendbuff, bytes)?;
            if to == comm.rank {
                return Ok(Deed::SendToSelf(comm, send));
            }
            operation(comm, Cost::moved("", bytes), move |comm, _| {
                as_it_is(comm.group.send(send, to, TAG, comm.timeout))
            })
        })
    }

    /// Receives `count` elements from `from`; from the own rank only within a group.
    "pncclRecv" fn ncclRecv(
        recvbuff: *mut c_void,
        count: usize,
        datatype: c_int,
        from: c_int,
        comm: Handle,
        _stream: *mut c_void,
    ) -> Code {
        submit(|| {
            let comm = comm::usable(comm)?;
            let (bytes, from) = (Kind::of(datatype)?.bytes(count)?, peer(&comm, from, "peer")?);
            let recv = output(recvbuff, bytes)?;
            if from == comm.rank {
                return Ok(Deed::ReceiveFromSelf(comm, recv));
            }
            operation(comm, Cost::moved("", bytes), move |comm, _| {
                as_it_is(comm.group.receive(recv, Some(from), TAG, comm.timeout))
            })
        })
    }
}

fn submit(make: impl FnOnce() -> Result<Deed, Failure>) -> Code {
    call(|| group_call::submit(make()))
}

fn operation(
    comm: Arc<Comm>,
    cost: Cost,
    start: impl FnOnce(&Comm, Terms) -> Started + 'static,
) -> Result<Deed, Failure> {
    Ok(Deed::Operation(comm, cost, Box::new(start)))
}

/// What an operation that combines costs.
fn summed(operation: &'static str, reduction: Reduction, bytes: usize) -> Cost {
    let format = Format { dtype: reduction.kind.dtype, op: reduction.how.reduce_op() };
    Cost { operation, format, bytes }
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

/// A rank of the communicator.
pub(crate) fn peer(comm: &Comm, rank: c_int, name: &str) -> Result<u32, Failure> {
    let known = u32::try_from(rank).ok().filter(|&rank| rank < comm.size);
    known.ok_or_else(|| {
        Failure::argument(format!("{name} {rank} is not one of {} ranks", comm.size))
    })
}

/// Messages between two ranks of a communicator keep their order, as in NCCL, and have no tags there.
const TAG: u64 = 0;
