//! The partial order of a program's steps.

/// A directed graph without cycles, closed under "before".
pub(super) struct Order {
    /// By position in `sequence`: bits of the steps that precede.
    before: Vec<Vec<u64>>,
    /// Steps in topological order.
    pub(super) sequence: Vec<usize>,
}

impl Order {
    /// `after[v]`: steps that must complete before v. Errors: steps that wait for each other.
    pub(super) fn new(after: &[Vec<usize>]) -> Result<Order, Vec<usize>> {
        let n = after.len();
        let mut waiting: Vec<usize> = after.iter().map(Vec::len).collect();
        let mut next = vec![Vec::new(); n];
        for (v, earlier) in after.iter().enumerate() {
            earlier.iter().for_each(|&u| next[u].push(v));
        }
        let mut sequence: Vec<usize> = (0..n).filter(|&v| waiting[v] == 0).collect();
        let mut head = 0;
        while head < sequence.len() {
            for &v in &next[sequence[head]] {
                waiting[v] -= 1;
                if waiting[v] == 0 {
                    sequence.push(v);
                }
            }
            head += 1;
        }
        if sequence.len() < n {
            return Err((0..n).filter(|&v| waiting[v] > 0).collect());
        }
        let words = n.div_ceil(64);
        let mut before = vec![vec![0u64; words]; n];
        for &v in &sequence {
            let mut own = std::mem::take(&mut before[v]);
            for &u in &after[v] {
                own.iter_mut().zip(&before[u]).for_each(|(a, b)| *a |= b);
                own[u / 64] |= 1 << (u % 64);
            }
            before[v] = own;
        }
        Ok(Order { before, sequence })
    }

    /// Whether one of the two completes before the other begins, in every run.
    pub(super) fn ordered(&self, a: usize, b: usize) -> bool {
        let before = |a: usize, b: usize| self.before[b][a / 64] >> (a % 64) & 1 == 1;
        before(a, b) || before(b, a)
    }
}
