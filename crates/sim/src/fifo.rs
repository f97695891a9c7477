//! Queues of packets in chunks of one pool: memory use follows the queue lengths, and recently used chunks are reused
//! first.

use crate::packet::Packet;

/// Packets per chunk: 256 bytes, four cache lines that are read in order.
const CHUNK: u32 = 8;
const NONE: u32 = u32::MAX;

/// The memory of all queues.
#[derive(Default)]
pub struct Pool {
    packets: Vec<Packet>,
    next: Vec<u32>,
    free: Vec<u32>,
}

/// One queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fifo {
    head: u32,
    tail: u32,
    len: u32,
}

impl Pool {
    fn chunk(&mut self) -> u32 {
        if let Some(chunk) = self.free.pop() {
            return chunk;
        }
        let chunk = self.next.len() as u32;
        let blank = Packet::new(crate::packet::Kind::Data, 0, 0, 0);
        self.packets.resize(self.packets.len() + CHUNK as usize, blank);
        self.next.push(NONE);
        chunk
    }
}

impl Fifo {
    /// Number of entries; a run is one entry.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether nothing is queued.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first entry, to be read. Meaningless if there is none.
    #[inline]
    pub fn first<'a>(&self, pool: &'a Pool) -> &'a Packet {
        &pool.packets[self.head as usize]
    }

    /// Reads some of the memory of what follows the first entry.
    #[inline]
    pub(crate) fn touch_second(&self, pool: &Pool) -> u32 {
        pool.packets.get(self.head as usize + 1).map_or(0, |packet| packet.address)
    }

    /// Reads some of the memory of the last entry.
    #[inline]
    pub(crate) fn touch_last(&self, pool: &Pool) -> u32 {
        pool.packets.get(self.tail as usize).map_or(0, |packet| packet.address)
    }

    /// The first entry. Meaningless if there is none.
    #[inline]
    pub fn front<'a>(&self, pool: &'a mut Pool) -> &'a mut Packet {
        &mut pool.packets[self.head as usize]
    }

    /// The last entry. Meaningless if there is none.
    #[inline]
    pub fn back<'a>(&self, pool: &'a mut Pool) -> &'a mut Packet {
        &mut pool.packets[self.tail as usize]
    }

    /// Appends an entry.
    #[inline]
    pub fn push(&mut self, pool: &mut Pool, packet: Packet) {
        if self.len == 0 {
            self.head = pool.chunk() * CHUNK;
            self.tail = self.head;
        } else if (self.tail + 1).is_multiple_of(CHUNK) {
            let chunk = pool.chunk();
            pool.next[(self.tail / CHUNK) as usize] = chunk;
            self.tail = chunk * CHUNK;
        } else {
            self.tail += 1;
        }
        self.len += 1;
        pool.packets[self.tail as usize] = packet;
    }

    /// Removes the first entry. Panics if the queue is empty.
    #[inline]
    pub fn pop(&mut self, pool: &mut Pool) -> Packet {
        assert!(self.len > 0, "a queue without packets gives none");
        let packet = pool.packets[self.head as usize];
        self.len -= 1;
        let chunk = self.head / CHUNK;
        if self.len == 0 {
            pool.free.push(chunk);
        } else if (self.head + 1).is_multiple_of(CHUNK) {
            self.head = pool.next[chunk as usize] * CHUNK;
            pool.free.push(chunk);
        } else {
            self.head += 1;
        }
        packet
    }

    /// Calls `visit` with each entry, first to last, to change it.
    pub(crate) fn for_each_mut(&self, pool: &mut Pool, mut visit: impl FnMut(&mut Packet)) {
        let mut at = self.head;
        for i in 0..self.len {
            if i > 0 {
                at = match (at + 1).is_multiple_of(CHUNK) {
                    true => pool.next[(at / CHUNK) as usize] * CHUNK,
                    false => at + 1,
                };
            }
            visit(&mut pool.packets[at as usize]);
        }
    }

    /// All entries, first to last.
    pub fn iter<'a>(&self, pool: &'a Pool) -> impl Iterator<Item = &'a Packet> + use<'a> {
        let (mut at, len) = (self.head, self.len);
        (0..len).map(move |i| {
            if i > 0 {
                at = match (at + 1).is_multiple_of(CHUNK) {
                    true => pool.next[(at / CHUNK) as usize] * CHUNK,
                    false => at + 1,
                };
            }
            &pool.packets[at as usize]
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::packet::Kind;
    use crate::random::Random;

    #[test]
    fn many_queues_of_one_pool_each_keep_their_order() {
        let mut random = Random::new(7);
        let (mut pool, mut queues) = (Pool::default(), vec![Fifo::default(); 5]);
        let mut model = vec![VecDeque::new(); 5];
        for seq in 0..20_000 {
            let q = random.below(5) as usize;
            if random.below(100) < 52 {
                queues[q].push(&mut pool, Packet::new(Kind::Ack, 0, seq, 64));
                model[q].push_back(seq);
            } else if let Some(expected) = model[q].pop_front() {
                assert_eq!(queues[q].front(&mut pool).seq, expected);
                assert_eq!(queues[q].pop(&mut pool).seq, expected);
            }
            if seq % 500 == 0 {
                let seen: Vec<u32> = queues[q].iter(&pool).map(|p| p.seq).collect();
                assert_eq!(seen, Vec::from(model[q].clone()));
            }
        }
        let held: usize = model.iter().map(VecDeque::len).sum();
        while let Some(q) = model.iter().position(|m| !m.is_empty()) {
            assert_eq!(queues[q].pop(&mut pool).seq, model[q].pop_front().unwrap());
        }
        assert!(held > 0 && pool.free.len() == pool.next.len(), "a chunk was lost");
    }
}
