//! The last window of results, retained for peers that lack them when a tree fails; and of contributions to results
//! that only others take.

use std::ops::Range;

use netsum_proto::panama::Submission;

use crate::Buffer;

/// Results, or contributions, by fragment number, in memory allocated once per epoch.
#[derive(Default)]
pub(super) struct Retained {
    bytes: Vec<u8>,
    /// Fragment and length of each entry.
    places: Vec<Option<(u64, usize)>>,
    fragment_bytes: usize,
}

impl Retained {
    /// Memory for the last `fragments` results of at most `fragment_bytes`.
    pub(super) fn new(fragments: usize, fragment_bytes: usize) -> Retained {
        Retained {
            bytes: vec![0; fragments * fragment_bytes],
            places: vec![None; fragments],
            fragment_bytes,
        }
    }

    /// Stores a result, replacing the one a full window earlier.
    #[inline]
    pub(super) fn keep(&mut self, fragment: u64, payload: &[u8]) {
        let place = self.place(fragment);
        let start = place * self.fragment_bytes;
        self.bytes[start..start + payload.len()].copy_from_slice(payload);
        self.places[place] = Some((fragment, payload.len()));
    }

    /// The result of a fragment, if it is still retained.
    pub(super) fn get(&self, fragment: u64) -> Option<&[u8]> {
        if self.places.is_empty() {
            return None;
        }
        let place = self.place(fragment);
        let (held, len) = self.places[place]?;
        let start = place * self.fragment_bytes;
        (held == fragment).then(|| &self.bytes[start..start + len])
    }

    /// Memory of an operation that is done here, with the contributions that are to be repeated: number, operation and
    /// elements of each.
    pub(super) fn contributions(
        &self,
        submission: &Submission,
        repeated: &[(u64, u64, Range<u64>)],
    ) -> Buffer {
        let size = submission.format.dtype.size();
        // Zeroed memory takes pages only where it is written.
        let mut bytes = vec![0; submission.numel as usize * size];
        for (fragment, _, elements) in repeated.iter().filter(|(_, id, _)| *id == submission.id) {
            let kept = self.get(*fragment).expect("contributions of the last window are retained");
            let start = elements.start as usize * size;
            bytes[start..start + kept.len()].copy_from_slice(kept);
        }
        Buffer::from_vec(bytes)
    }

    fn place(&self, fragment: u64) -> usize {
        (fragment % self.places.len() as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_the_last_window_and_nothing_else() {
        let mut retained = Retained::new(4, 8);
        assert_eq!(Retained::default().get(0), None);
        for fragment in 0..10u64 {
            retained.keep(fragment, &[fragment as u8; 8][..(fragment % 8 + 1) as usize]);
        }
        assert_eq!(retained.get(5), None);
        assert_eq!(retained.get(6), Some(&[6u8; 7][..]));
        assert_eq!(retained.get(9), Some(&[9u8; 2][..]));
        assert_eq!(retained.get(10), None);
    }
}
