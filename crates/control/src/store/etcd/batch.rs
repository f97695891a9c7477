//! Changes that are too large for one transaction of etcd: their parts are written beside the store, one write makes
//! the batch, and then the parts are moved into the store. A leader that dies before that write has changed nothing;
//! after it, the next leader completes the batch.

use super::rows::{BATCH, part_key, removal};
use crate::pb::store::{Part, Write};
use prost::Message;
use std::collections::VecDeque;

/// The transactions of a batch.
#[derive(Debug)]
pub(super) struct Batch {
    steps: VecDeque<Vec<Write>>,
    /// Number of steps after the one that makes the batch.
    after: usize,
}

impl Batch {
    /// A batch of at least one part.
    pub fn new(parts: Vec<Vec<Write>>) -> Batch {
        let count = parts.len() as u32;
        let parts: Vec<(u32, Part)> =
            (0..count).zip(parts.into_iter().map(|writes| Part { writes })).collect();
        let put = |(number, part): &(u32, Part)| {
            vec![Write { key: part_key(*number), value: Some(part.encode_to_vec()) }]
        };
        let mut steps: VecDeque<Vec<Write>> = parts.iter().map(put).collect();
        steps.push_back(vec![Write {
            key: BATCH.to_owned(),
            value: Some(count.to_string().into_bytes()),
        }]);
        let moves = Batch::rest(parts);
        let after = moves.len();
        steps.extend(moves);
        Batch { steps, after }
    }

    /// The transactions that complete a batch with these parts left.
    pub fn rest(parts: Vec<(u32, Part)>) -> Vec<Vec<Write>> {
        let last = parts.len().saturating_sub(1);
        let step = |(index, (number, part)): (usize, (u32, Part))| {
            let mut writes = part.writes;
            writes.push(removal(part_key(number)));
            writes.extend((index == last).then(|| removal(BATCH)));
            writes
        };
        match parts.is_empty() {
            true => vec![vec![removal(BATCH)]],
            false => parts.into_iter().enumerate().map(step).collect(),
        }
    }

    /// The next transaction.
    pub fn next(&mut self) -> Option<Vec<Write>> {
        self.steps.pop_front()
    }

    /// Whether the transaction before the last one that [`Batch::next`] returned has made the batch.
    pub fn is_made(&self) -> bool {
        self.steps.len() < self.after
    }
}

/// Divides writes into parts that fit into a transaction each; at least one part.
pub(super) fn split(writes: Vec<Write>) -> Vec<Vec<Write>> {
    let mut parts = vec![Vec::new()];
    let mut bytes = 0;
    for write in writes {
        let length = write.encoded_len();
        let part: &Vec<Write> = parts.last().expect("there is one");
        if part.len() >= WRITES_MAX || (bytes + length > BYTES_MAX && !part.is_empty()) {
            parts.push(Vec::new());
            bytes = 0;
        }
        bytes += length;
        parts.last_mut().expect("there is one").push(write);
    }
    parts
}

/// Maximum number of writes of a part: etcd takes 128 operations by default (--max-txn-ops), and up to three more
/// complete a part.
const WRITES_MAX: usize = 100;
/// Maximum number of bytes of a part: etcd takes 1.5 MiB by default (--max-request-bytes).
const BYTES_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn write(key: usize, bytes: usize) -> Write {
        Write { key: key.to_string(), value: Some(vec![7; bytes]) }
    }

    #[test]
    fn parts_fit_into_transactions() {
        let writes: Vec<Write> = (0..250).map(|key| write(key, 1)).collect();
        let lengths: Vec<usize> = split(writes.clone()).iter().map(Vec::len).collect();
        assert_eq!(lengths, [100, 100, 50]);
        assert_eq!(split(writes.clone()).concat(), writes);
        assert_eq!(split(Vec::new()).len(), 1);
        let large = vec![write(0, BYTES_MAX / 2), write(1, BYTES_MAX), write(2, 1), write(3, 1)];
        let lengths: Vec<usize> = split(large).iter().map(Vec::len).collect();
        assert_eq!(lengths, [1, 1, 2], "a value alone may be larger than a part");
    }

    #[test]
    fn a_batch_is_made_by_one_write_and_completed_in_order() {
        let mut batch = Batch::new(vec![vec![write(1, 1)], vec![write(2, 1)]]);
        let mut steps = Vec::new();
        while let Some(writes) = batch.next() {
            let keys: Vec<String> = writes.into_iter().map(|write| write.key).collect();
            steps.push((batch.is_made(), keys.join(" ")));
        }
        let (first, second) = (part_key(0), part_key(1));
        assert_eq!(
            steps,
            [
                (false, first.clone()),
                (false, second.clone()),
                (false, BATCH.to_owned()),
                (true, format!("1 {first}")),
                (true, format!("2 {second} {BATCH}")),
            ]
        );
    }
}
