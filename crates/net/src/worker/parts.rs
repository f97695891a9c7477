//! The memory of an operation.

use std::ops::Range;

use crate::Buffer;

/// The bytes of an operation's elements, in one part or several: of a reduce-scatter or an all-gather, a part per
/// shard. A fragment lies within one part.
#[derive(Debug)]
pub struct Parts {
    parts: Vec<Part>,
    /// Where results of these bytes go. All others replace the elements.
    output: Option<Part>,
}

#[derive(Debug)]
struct Part {
    /// Offset of its first byte among those of all parts.
    start: usize,
    buffer: Buffer,
}

impl Part {
    fn range(&self) -> Range<usize> {
        self.start..self.start + self.buffer.len()
    }

    fn within(&self, range: &Range<usize>) -> Range<usize> {
        range.start - self.start..range.end - self.start
    }
}

impl Parts {
    /// Parts in the order of their elements.
    pub fn new(parts: impl IntoIterator<Item = Buffer>) -> Parts {
        let mut start = 0;
        let part = |buffer: Buffer| {
            let part = Part { start, buffer };
            start = part.range().end;
            part
        };
        Parts { parts: parts.into_iter().map(part).collect(), output: None }
    }

    /// The same elements; results that replace those from byte `start` on go to `output`, as far as it reaches.
    pub fn with_output(self, start: usize, output: Buffer) -> Parts {
        Parts { output: Some(Part { start, buffer: output }), ..self }
    }

    /// Bytes of all parts.
    pub fn len(&self) -> usize {
        self.parts.last().map_or(0, |part| part.range().end)
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The buffer, if there is one for elements and results.
    pub fn one(&mut self) -> Option<&mut Buffer> {
        match (self.parts.as_mut_slice(), &self.output) {
            ([part], None) => Some(&mut part.buffer),
            _ => None,
        }
    }

    /// The bytes of `range`, which lies within one part.
    #[inline]
    pub fn slice(&self, range: Range<usize>) -> &[u8] {
        if range.is_empty() {
            return &[];
        }
        let part = &self.parts[self.part_of(range.start)];
        part.buffer.slice(part.within(&range))
    }

    /// The place of results for the bytes of `range`.
    #[inline]
    pub fn result_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        if range.is_empty() {
            return &mut [];
        }
        let index = self.part_of(range.start);
        let part = match &mut self.output {
            Some(output) if output.range().contains(&range.start) => output,
            _ => &mut self.parts[index],
        };
        let within = part.within(&range);
        part.buffer.slice_mut(within)
    }

    /// Index of the part with a byte.
    #[inline]
    fn part_of(&self, byte: usize) -> usize {
        match self.parts.len() {
            1 => 0,
            _ => self.parts.partition_point(|part| part.range().end <= byte),
        }
    }
}

impl From<Buffer> for Parts {
    fn from(buffer: Buffer) -> Parts {
        Parts::new([buffer])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_found_in_their_parts_and_results_go_to_the_output() {
        let part = |bytes: &[u8]| Buffer::from_vec(bytes.to_vec());
        let parts = Parts::new([part(&[0, 1]), part(&[]), part(&[2, 3, 4]), part(&[5])]);
        assert_eq!(parts.len(), 6);
        assert_eq!(
            (parts.slice(0..2), parts.slice(3..5), parts.slice(5..6)),
            (&[0, 1][..], &[3, 4][..], &[5][..])
        );
        let mut parts = parts.with_output(2, Buffer::from_vec(vec![0; 3]));
        parts.result_mut(3..5).copy_from_slice(&[8, 9]);
        parts.result_mut(5..6).copy_from_slice(&[7]);
        assert_eq!(
            (parts.slice(2..5), parts.slice(5..6)),
            (&[2, 3, 4][..], &[7][..]),
            "its input stays"
        );
        assert_eq!(parts.output.unwrap().buffer.slice(0..3), [0, 8, 9]);
        let mut nothing = Parts::new([]);
        assert!(
            nothing.is_empty()
                && nothing.slice(0..0).is_empty()
                && nothing.result_mut(0..0).is_empty()
        );
    }
}
