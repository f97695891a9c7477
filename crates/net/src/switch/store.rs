//! The switch's memory: sums in buffers, and contributions in the receive memory.
//!
//! A contribution whose sum completes within the receive call that brought it is never copied: it is added from the
//! receive memory. A contribution that waits longer moves to a buffer before the next call. Under load a call brings
//! trains of all children, and most sums are complete at the end of the call.

use std::io;

use netsum_proto::panama::{BufferId, Divisible, Memory, Slab};
use netsum_wire::panama::{HEADER_LEN, Header, Kind};
use netsum_wire::{Encoding, Input};

use super::strays::Strays;
use crate::udp::{BatchSpan, RecvBatch, Socket};

/// Receive memory and buffers behind the machine's handles.
pub(super) struct Store {
    slab: Slab,
    batch: RecvBatch,
    /// By buffer: location of a payload that is still in the receive memory; of length 0 once it is in the buffer.
    places: Vec<BatchSpan>,
    /// Buffers allocated for packets of this batch.
    arriving: Vec<BufferId>,
    /// Freed buffers that may still be queued for sending.
    freed: Vec<BufferId>,
}

impl Store {
    /// `limit`: total bytes of all buffers.
    pub(super) fn new(limit: u64) -> Store {
        let slab = Slab::new(limit);
        let (places, arriving, freed) = Default::default();
        Store { slab, batch: RecvBatch::new(), places, arriving, freed }
    }

    /// Receives packets; payloads of the previous batch that are still needed move to their buffers first.
    pub(super) fn recv(&mut self, socket: &Socket) -> io::Result<usize> {
        self.settle();
        self.batch.recv(socket)
    }

    /// As `recv`, of what other threads have received for this one; returns the number of packets.
    pub(super) fn recv_strays(&mut self, strays: &mut Strays) -> usize {
        self.settle();
        strays.receive(&mut self.batch)
    }

    pub(super) fn batch(&self) -> &RecvBatch {
        &self.batch
    }

    pub(super) fn batch_mut(&mut self) -> &mut RecvBatch {
        &mut self.batch
    }

    pub(super) fn slab(&self) -> &Slab {
        &self.slab
    }

    /// Header and payload of a packet to send.
    #[inline]
    pub(super) fn packet(&self, buffer: BufferId) -> [&[u8]; 2] {
        let bytes = self.slab.packet(buffer);
        match self.place(buffer) {
            Some(place) => [&bytes[..HEADER_LEN], self.batch.bytes(place)],
            None => [bytes, &[]],
        }
    }

    /// The header and the payload of a packet to send.
    #[inline]
    pub(super) fn header_and_payload(&self, buffer: BufferId) -> (&[u8; HEADER_LEN], &[u8]) {
        let (header, kept) =
            self.slab.packet(buffer).split_first_chunk().expect("a buffer holds a header");
        (header, self.place(buffer).map_or(kept, |place| self.batch.bytes(place)))
    }

    fn settle(&mut self) {
        for buffer in self.arriving.drain(..) {
            let place = std::mem::take(&mut self.places[buffer.index()]);
            if !place.is_empty() {
                self.slab.payload_mut(buffer).copy_from_slice(self.batch.bytes(place));
            }
        }
    }

    #[inline]
    fn place(&self, buffer: BufferId) -> Option<BatchSpan> {
        let place = self.places.get(buffer.index()).copied();
        place.filter(|place| !place.is_empty())
    }
}

impl Divisible for Store {
    fn set_limit(&mut self, bytes: u64) -> u64 {
        self.slab.set_limit(bytes)
    }
}

impl Memory for Store {
    type Payload = BatchSpan;
    type Buffer = BufferId;

    #[inline]
    fn store(&mut self, header: &Header, payload: &BatchSpan) -> Option<BufferId> {
        let buffer = self.slab.reserve(header)?;
        if header.kind == Kind::Result {
            self.slab.write_header(buffer, header);
        }
        let index = buffer.index();
        if index >= self.places.len() {
            self.places.resize(index + 1, BatchSpan::default());
        }
        self.places[index] = *payload;
        self.arriving.push(buffer);
        Some(buffer)
    }

    fn holds(&self, buffer: BufferId, payload: &BatchSpan) -> bool {
        let (_, kept) = self.header_and_payload(buffer);
        kept == self.batch.bytes(*payload)
    }

    #[inline]
    fn reduce(
        &mut self,
        header: &Header,
        stored: &[Option<BufferId>],
        arriving: Option<(usize, &Header, &BatchSpan)>,
    ) -> Option<BufferId> {
        let mut sum = self.slab.begin_sum(header)?;
        sum.add(header, stored.len(), |position| match (arriving, stored[position]) {
            (Some((at, header, place)), _) if at == position => Some(Input {
                bytes: self.batch.bytes(*place),
                encoding: header.encoding().unwrap_or(Encoding::Element),
            }),
            (_, Some(buffer)) => {
                let kept = self.slab.input(buffer);
                let place = self.place(buffer);
                Some(place.map_or(kept, |p| Input { bytes: self.batch.bytes(p), ..kept }))
            }
            _ => None,
        });
        Some(self.slab.end_sum(sum))
    }

    fn mark_resent(&mut self, buffer: BufferId) {
        self.slab.mark_resent(buffer);
    }

    #[inline]
    fn free(&mut self, buffer: BufferId) {
        self.freed.push(buffer);
    }

    fn flushed(&mut self) {
        for buffer in self.freed.drain(..) {
            if let Some(place) = self.places.get_mut(buffer.index()) {
                *place = BatchSpan::default();
            }
            self.slab.free(buffer);
        }
        self.slab.flushed();
    }

    fn cost(&self, fragment_bytes: u16) -> u64 {
        self.slab.cost(fragment_bytes)
    }

    fn limit(&self) -> u64 {
        self.slab.limit()
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use netsum_wire::panama::NO_CAP;
    use netsum_wire::{Dtype, Epoch, Format, JobId, ReduceOp, TreeId, Vid};

    use super::*;
    use crate::udp::{SocketOptions, Wake};

    const FORMAT: Format = Format { dtype: Dtype::F32, op: ReduceOp::Sum };

    fn header(kind: Kind) -> Header {
        Header {
            kind,
            resent: false,
            congested_down: false,
            tree: TreeId(0),
            format: FORMAT,
            job: JobId(1),
            vid: Vid(0),
            chunk: 0,
            epoch: Epoch(1),
            window_cap: NO_CAP,
            n_elems: 2,
            marks: 0,
            missing: 0,
            parties: netsum_wire::Parties::All,
            empty: false,
            asks: false,
            others: 0,
        }
    }

    struct Scene {
        store: Store,
        socket: Socket,
        peer: UdpSocket,
    }

    impl Scene {
        fn new() -> Scene {
            let any = "127.0.0.1:0".parse().unwrap();
            let socket = Socket::bind(any, &SocketOptions::default()).unwrap();
            let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
            peer.connect(socket.local_addr()).unwrap();
            Scene { store: Store::new(1 << 20), socket, peer }
        }

        /// Sends a fragment of two values in a call of its own; returns the location of the payload.
        fn arrive(&mut self, kind: Kind, values: [f32; 2]) -> (Header, BatchSpan) {
            let header = header(kind);
            let mut packet = [0; HEADER_LEN + 8];
            header.encode(packet.first_chunk_mut().unwrap());
            packet[HEADER_LEN..][..4].copy_from_slice(&values[0].to_le_bytes());
            packet[HEADER_LEN + 4..].copy_from_slice(&values[1].to_le_bytes());
            self.peer.send(&packet).unwrap();
            self.socket.wait(&Wake::new().unwrap(), Duration::from_secs(5));
            assert_eq!(self.store.recv(&self.socket).unwrap(), 1);
            let place = self.store.batch().message(0).packets().next().unwrap();
            (header, place.after(HEADER_LEN, 8))
        }

        fn values(&self, buffer: BufferId) -> Vec<f32> {
            let bytes = self.store.packet(buffer).concat();
            assert_eq!(Header::decode(&bytes).unwrap().0.job, JobId(1));
            let payload = bytes[HEADER_LEN..].chunks_exact(4);
            payload.map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect()
        }
    }

    #[test]
    fn stored_payloads_outlive_their_receive_call() {
        let mut scene = Scene::new();
        let (first, place) = scene.arrive(Kind::Contribution, [1.0, 2.0]);
        let early = scene.store.store(&first, &place).unwrap();
        let (second, place) = scene.arrive(Kind::Contribution, [10.0, 20.0]);
        let here = scene.store.store(&second, &place).unwrap();
        // A sum of a value from a buffer, one stored in this call and one just received.
        let sum = header(Kind::Result);
        let stored = [Some(early), Some(here), None, None];
        let sum = scene.store.reduce(&sum, &stored, Some((3, &second, &place))).unwrap();
        assert_eq!(scene.values(sum), [21.0, 42.0]);
    }

    #[test]
    fn a_result_can_be_sent_until_it_is_flushed() {
        let mut scene = Scene::new();
        let (result, place) = scene.arrive(Kind::Result, [3.0, 4.0]);
        let buffer = scene.store.store(&result, &place).unwrap();
        assert_eq!(scene.values(buffer), [3.0, 4.0]);
        scene.store.free(buffer);
        assert_eq!(scene.values(buffer), [3.0, 4.0], "freed, and not yet sent");
        scene.store.flushed();
        let (result, place) = scene.arrive(Kind::Result, [5.0, 6.0]);
        let again = scene.store.store(&result, &place).unwrap();
        assert_eq!(again, buffer, "its memory is used again");
        scene.store.settle();
        assert_eq!(scene.values(again), [5.0, 6.0]);
        assert_eq!(scene.store.slab().used(), scene.store.cost(8));
    }
}
