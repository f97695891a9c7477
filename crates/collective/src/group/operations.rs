//! All operations: argument checks, a description of the call, and the body.

use std::borrow::{Borrow, BorrowMut};
use std::sync::Arc;

use netsum_net::Buffer;
use netsum_wire::{Dtype, Format, Protocol};

use super::Group;
use super::connected::{Connected, Issued};
use super::quick::Small;
use crate::algorithm::{Alltoall, Gather, Scatter};
use crate::call::Call;
use crate::combine::{Combine, check_combination};
use crate::core::Core;
use crate::planned::session::PlanJob;
use crate::task::Task;
use crate::terms::Terms;
use crate::work::Work;
use crate::{Error, algorithm, point};

/// Buffers of at most so many bytes are added with others: some ten packets, beside which a header more or less and the
/// copy do not count.
const TOGETHER_MAX: usize = 16 << 10;

impl Group {
    /// Reduces the buffers of all ranks in place, as `how` specifies. `buffer`: a buffer, or a reference to one.
    pub fn allreduce(
        &self,
        mut buffer: impl BorrowMut<Buffer>,
        dtype: Dtype,
        how: Combine,
        terms: impl Into<Terms>,
    ) -> Work {
        let buffer = buffer.borrow_mut();
        let numel = (buffer.len() / dtype.size()) as u64;
        let (call, terms) = (Call::Allreduce { dtype, numel, how }, terms.into());
        let format = Format { dtype, op: how.reduce_op() };
        if let Some(work) =
            self.at_once(&call, terms, Some(Small { format, how, buffer: &mut *buffer }))
        {
            return work;
        }
        let buffer = buffer.lend_all();
        self.start(call, terms, Some((dtype, how)), move |connected, issued| {
            if let Some(session) = connected.on_plan(buffer.len()) {
                let Issued { sequence, fingerprint, deadline, work, turn: _turn, .. } = issued;
                let job = PlanJob { sequence, fingerprint, format, how, buffer, deadline, work };
                return session.push(job);
            }
            connected.on_network(issued, Task::Allreduce { dtype, how, buffer });
        })
    }

    /// As [`Group::allreduce`] of every buffer; ends with the last of them. Small buffers are added as one, so that
    /// neighbours share packets. Which ones depends on nothing but their sizes and the group's options, on which all
    /// ranks agree.
    pub fn allreduce_all(
        &self,
        buffers: Vec<Buffer>,
        dtype: Dtype,
        how: Combine,
        terms: impl Into<Terms>,
    ) -> Work {
        let terms = terms.into();
        let joins = |buffer: &Buffer| buffer.len() <= TOGETHER_MAX && self.adds_together(dtype);
        let (mut small, large): (Vec<Buffer>, Vec<Buffer>) = buffers.into_iter().partition(joins);
        // The last of the calls can be done here, while the others are in progress.
        let last = if small.is_empty() { terms.in_background() } else { terms };
        let terms = terms.in_background();
        let alone = |buffer| self.allreduce(buffer, dtype, how, terms);
        let mut works: Vec<Work> = large.into_iter().map(alone).collect();
        if small.len() > 1 {
            works.push(self.allreduce_together(small, dtype, how, last));
        } else {
            works.extend(small.pop().map(|buffer| self.allreduce(buffer, dtype, how, last)));
        }
        Work::of_all(works)
    }

    fn allreduce_together(
        &self,
        parts: Vec<Buffer>,
        dtype: Dtype,
        how: Combine,
        terms: Terms,
    ) -> Work {
        let counts = parts.iter().map(|part| (part.len() / dtype.size()) as u64).collect();
        let call = Call::AllreduceTogether { dtype, counts, how };
        self.start(call, terms, Some((dtype, how)), move |connected, issued| {
            let len = parts.iter().map(Buffer::len).sum();
            let mut bytes = Vec::with_capacity(len);
            parts.iter().for_each(|part| bytes.extend_from_slice(part.slice(0..part.len())));
            let together = Buffer::from_vec(bytes);
            let task = Task::AllreduceTogether { dtype, how, parts, together };
            connected.on_network(issued, task);
        })
    }

    /// Whether a value's sum is the same beside other values. Those of slots share an exponent per packet, so that
    /// gradients of another layer would cost them bits; and a tree plan has chunks of its own.
    fn adds_together(&self, dtype: Dtype) -> bool {
        let float = matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::Bf16);
        let panama = self.config.options.protocol == Protocol::Panama.name();
        let exact = self.config.controller.is_none() || panama;
        (exact || !float) && self.config.plan.is_none()
    }

    /// Sums the buffers of all ranks in the root's; the other ranks' buffers are unchanged.
    pub fn reduce(
        &self,
        buffer: Buffer,
        dtype: Dtype,
        how: Combine,
        root: u32,
        terms: impl Into<Terms>,
    ) -> Work {
        let numel = (buffer.len() / dtype.size()) as u64;
        let call = Call::Reduce { dtype, numel, how, root };
        self.start_rooted(call, terms, Some((dtype, how)), root, move |connected, issued| {
            connected.on_network(issued, Task::Reduce { dtype, how, buffer, root });
        })
    }

    /// Sums `inputs[rank]` of all ranks in `output`, or with `None` in place of the own input; each input has the size
    /// of its rank's output.
    pub fn reduce_scatter(
        &self,
        output: impl Into<Option<Buffer>>,
        inputs: Vec<Buffer>,
        dtype: Dtype,
        how: Combine,
        terms: impl Into<Terms>,
    ) -> Work {
        let counts = inputs.iter().map(|b| (b.len() / dtype.size()) as u64).collect();
        let call = Call::ReduceScatter { dtype, counts, how };
        let output = output.into();
        let own = output.as_ref().map(|output| (output, "output"));
        let wrong = self.check_parts(&call, "inputs", &inputs, own);
        if let Some(failed) = wrong {
            return failed;
        }
        self.start(call, terms, Some((dtype, how)), move |connected, issued| {
            connected.on_network(issued, Task::ReduceScatter { dtype, how, output, inputs });
        })
    }

    /// Copies the root's buffer to every rank's.
    pub fn broadcast(&self, buffer: Buffer, root: u32, terms: impl Into<Terms>) -> Work {
        let terms = terms.into();
        let (bytes, elements) = (buffer.len() as u64, terms.elements);
        let call = Call::Broadcast { bytes, root, elements };
        self.start_rooted(call, terms, None, root, move |connected, issued| {
            connected.on_network(issued, Task::Broadcast { buffer, root });
        })
    }

    /// Copies every rank's input to every rank's outputs, by rank; sizes may differ between ranks.
    pub fn allgather(&self, outputs: Vec<Buffer>, input: Buffer, terms: impl Into<Terms>) -> Work {
        let sizes = outputs.iter().map(|b| b.len() as u64).collect();
        let terms = terms.into();
        let call = Call::Allgather { sizes, elements: terms.elements };
        if let Some(failed) = self.check_parts(&call, "outputs", &outputs, Some((&input, "input")))
        {
            return failed;
        }
        self.start(call, terms, None, move |connected, issued| {
            connected.on_network(issued, Task::Allgather { input, outputs });
        })
    }

    /// Copies every rank's input to the root's outputs, by rank; elsewhere `outputs` is empty.
    pub fn gather(
        &self,
        outputs: Vec<Buffer>,
        input: Buffer,
        root: u32,
        terms: impl Into<Terms>,
    ) -> Work {
        let terms = terms.into();
        let (bytes, elements) = (input.len() as u64, terms.elements);
        let call = Call::Rooted { name: "gather", root, bytes, elements };
        let own = Some((&input, "input"));
        if let Some(failed) = self.check_at_root(&call, "outputs", &outputs, own, root) {
            return failed;
        }
        self.start_rooted(call, terms, None, root, move |connected, issued| {
            connected.on_host(issued, move |comm| {
                algorithm::gather(comm, &mut Gather { input, outputs, root })
            });
        })
    }

    /// Copies the root's inputs, by rank, to every rank's output; elsewhere `inputs` is empty.
    pub fn scatter(
        &self,
        output: Buffer,
        inputs: Vec<Buffer>,
        root: u32,
        terms: impl Into<Terms>,
    ) -> Work {
        let terms = terms.into();
        let (bytes, elements) = (output.len() as u64, terms.elements);
        let call = Call::Rooted { name: "scatter", root, bytes, elements };
        let own = Some((&output, "output"));
        if let Some(failed) = self.check_at_root(&call, "inputs", &inputs, own, root) {
            return failed;
        }
        self.start_rooted(call, terms, None, root, move |connected, issued| {
            connected.on_host(issued, move |comm| {
                algorithm::scatter(comm, &mut Scatter { output, inputs, root })
            });
        })
    }

    /// Copies input i of rank r to output r of rank i.
    pub fn alltoall(
        &self,
        outputs: Vec<Buffer>,
        inputs: Vec<Buffer>,
        terms: impl Into<Terms>,
    ) -> Work {
        let bytes = inputs.iter().map(|b| b.len() as u64).sum();
        let terms = terms.into();
        let call = Call::Bare { name: "alltoall", bytes, elements: terms.elements };
        let own = inputs.get(self.config.rank as usize).map(|own| (own, "input"));
        let wrong = self
            .check_parts(&call, "outputs", &outputs, own)
            .or_else(|| self.check_parts(&call, "inputs", &inputs, None));
        if let Some(failed) = wrong {
            return failed;
        }
        self.start(call, terms, None, move |connected, issued| {
            connected.on_host(issued, move |comm| {
                algorithm::alltoall(comm, &mut Alltoall { outputs, inputs })
            });
        })
    }

    /// Completes when every rank has called it.
    pub fn barrier(&self, terms: impl Into<Terms>) -> Work {
        let (call, terms) = (Call::barrier(), terms.into());
        if let Some(work) = self.at_once(&call, terms, None) {
            return work;
        }
        self.start(call, terms, None, |connected, issued| {
            connected.on_network(issued, Task::Barrier);
        })
    }

    /// Sends a message; independent of the order of collectives. `buffer`: a buffer, or a reference to one.
    pub fn send(
        &self,
        buffer: impl Borrow<Buffer>,
        to: u32,
        tag: u64,
        terms: impl Into<Terms>,
    ) -> Work {
        let name = || format!("send to rank {to} (tag {tag})");
        self.point(name, |core| point::send(core, buffer.borrow(), to, tag, terms.into()))
    }

    /// Receives a message of exactly the buffer's size, from one rank or any. `buffer`: as for [`Group::send`].
    pub fn receive(
        &self,
        mut buffer: impl BorrowMut<Buffer>,
        from: Option<u32>,
        tag: u64,
        terms: impl Into<Terms>,
    ) -> Work {
        let name = || format!("receive (tag {tag})");
        self.point(name, |core| point::receive(core, buffer.borrow_mut(), from, tag, terms.into()))
    }

    /// Numbers a collective and queues it.
    fn start(
        &self,
        call: Call,
        terms: impl Into<Terms>,
        combines: Option<(Dtype, Combine)>,
        go: impl FnOnce(&Connected, Issued<'_>),
    ) -> Work {
        let connected = self.connected.load();
        match self.usable(&connected, combines) {
            Ok(connected) => connected.issue(call, terms.into(), go),
            Err(error) => Work::failed(call.to_string(), error),
        }
    }

    fn start_rooted(
        &self,
        call: Call,
        terms: impl Into<Terms>,
        combines: Option<(Dtype, Combine)>,
        root: u32,
        go: impl FnOnce(&Connected, Issued<'_>),
    ) -> Work {
        if root >= self.config.size {
            let message =
                format!("{call}: there is no rank {root} in a group of {}", self.config.size);
            return Work::failed(call.to_string(), Error::Unsupported(message));
        }
        self.start(call, terms, combines, go)
    }

    fn point(&self, name: impl Fn() -> String, go: impl FnOnce(&Arc<Core>) -> Work) -> Work {
        let connected = self.connected.load();
        match self.usable(&connected, None) {
            Ok(connected) => {
                let work = go(&connected.core);
                connected.core.recorder.add(&work);
                work
            }
            Err(error) => Work::failed(name(), error),
        }
    }

    fn usable<'a>(
        &self,
        connected: &'a Option<Arc<Connected>>,
        combines: Option<(Dtype, Combine)>,
    ) -> Result<&'a Connected, Error> {
        self.check_process()?;
        if let Some((dtype, how)) = combines {
            check_combination(dtype, how)?;
        }
        let connected = connected.as_deref();
        let connected = connected.ok_or_else(|| Error::Closed(self.config.name.clone()))?;
        connected.core.failure().map_or(Ok(connected), Err)
    }

    /// Checks that there is one part per rank, and that the own part has the size of `own`.
    fn check_parts(
        &self,
        call: &Call,
        what: &str,
        parts: &[Buffer],
        own: Option<(&Buffer, &str)>,
    ) -> Option<Work> {
        let (rank, size) = (self.config.rank as usize, self.config.size as usize);
        let problem = if parts.len() != size {
            format!("{} {what} for {size} ranks", parts.len())
        } else if let Some((own, name)) = own.filter(|(own, _)| own.len() != parts[rank].len()) {
            format!("{what}[{rank}] has {} bytes, the {name} {}", parts[rank].len(), own.len())
        } else {
            return None;
        };
        let error = Error::Unsupported(format!("{call}: {problem}"));
        Some(Work::failed(call.to_string(), error))
    }

    fn check_at_root(
        &self,
        call: &Call,
        what: &str,
        parts: &[Buffer],
        own: Option<(&Buffer, &str)>,
        root: u32,
    ) -> Option<Work> {
        if self.config.rank == root { self.check_parts(call, what, parts, own) } else { None }
    }
}
