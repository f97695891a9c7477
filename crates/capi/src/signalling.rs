//! How one-sided messages travel between the ranks of a communicator.

use netsum_collective::Buffer;
use netsum_nccl_core::Failure;

use crate::comm::Comm;
use crate::signals::{HEAD, Head, Put, Signal, TAG, key};

impl Comm {
    /// Sends a signal, behind bytes for a window if there are any.
    pub(crate) fn signal(&self, to: Signal, put: Option<Put>) -> Result<(), Failure> {
        let put = put.unwrap_or(Put { window: 0, offset: 0, bytes: Vec::new() });
        if to.peer == self.rank {
            if put.window != 0 {
                let (offset, bytes) = (put.offset, put.bytes.len() as u64);
                let target = self.windows.target(put.window, offset, bytes, self.rank);
                target?.write(0, &put.bytes);
            }
            *self.signals.arrived.lock().entry(key(to)).or_default() += 1;
            return Ok(());
        }
        let head = Head {
            window: put.window,
            offset: put.offset,
            bytes: put.bytes.len() as u64,
            number: to.number,
            context: to.context,
        };
        // Held while both messages start, so that nobody's come between them.
        let mut sending = self.signals.sending.lock();
        sending.retain(|work| !work.is_done());
        let send =
            |bytes: Vec<u8>| self.group.send(Buffer::from_vec(bytes), to.peer, TAG, self.timeout);
        sending.push(send(head.to_bytes().to_vec()));
        if head.bytes > 0 {
            sending.push(send(put.bytes));
        }
        Ok(())
    }

    /// Waits until `count` signals have come, and takes them.
    pub(crate) fn wait_for(&self, from: Signal, count: u64) -> Result<(), Failure> {
        let mut arrived = self.signals.arrived.lock();
        loop {
            let here = arrived.entry(key(from)).or_default();
            if *here >= count {
                *here -= count;
                return Ok(());
            }
            if from.peer == self.rank {
                let words =
                    format!("{count} signals of this rank are awaited, and {here} were sent");
                return Err(Failure::usage(words));
            }
            let mut head = Buffer::from_vec(vec![0; HEAD]);
            self.take(from.peer, &mut head)?;
            let mut bytes = [0; HEAD];
            head.read(0, &mut bytes);
            let head = Head::from_bytes(&bytes);
            if head.bytes > 0 {
                let target = self.windows.target(head.window, head.offset, head.bytes, self.rank);
                self.take(from.peer, &mut target?)?;
            }
            let signal = Signal { peer: from.peer, context: head.context, number: head.number };
            *arrived.entry(key(signal)).or_default() += 1;
        }
    }

    /// Waits until everything that was signalled has been sent.
    pub(crate) fn flush(&self) -> Result<(), Failure> {
        let sending = std::mem::take(&mut *self.signals.sending.lock());
        sending.iter().try_for_each(|work| work.wait(None).map_err(Failure::from))
    }

    fn take(&self, from: u32, target: &mut Buffer) -> Result<(), Failure> {
        let work = self.group.receive(target.lend_all(), Some(from), TAG, self.timeout);
        work.wait(None).map_err(Failure::from)
    }
}
