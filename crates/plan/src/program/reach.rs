//! The partial order of a program's steps.

use std::cell::RefCell;

/// A directed graph without cycles, and the relation "before" of its vertices.
pub(super) struct Order {
    /// Steps that must complete before each step.
    after: Vec<Vec<usize>>,
    /// Steps in topological order.
    pub(super) sequence: Vec<usize>,
    /// By step, its position in `sequence`.
    position: Vec<usize>,
    search: RefCell<Search>,
}

/// Memory of the searches, which is used again.
struct Search {
    /// By step the last search that has seen it.
    seen: Vec<u64>,
    count: u64,
    stack: Vec<usize>,
}

impl Order {
    /// `after[v]`: steps that must complete before v. Errors: steps that wait for each other.
    pub(super) fn new(after: Vec<Vec<usize>>) -> Result<Order, Vec<usize>> {
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
        let mut position = vec![0; n];
        sequence.iter().enumerate().for_each(|(place, &v)| position[v] = place);
        let search = RefCell::new(Search { seen: vec![0; n], count: 0, stack: Vec::new() });
        Ok(Order { after, sequence, position, search })
    }

    /// Position of a step in one possible run.
    pub(super) fn position(&self, step: usize) -> usize {
        self.position[step]
    }

    /// Whether `early` completes before `late` begins, in every run.
    pub(super) fn before(&self, early: usize, late: usize) -> bool {
        // Accesses to one memory are nearly always one or two dependencies apart.
        if self.after[late].contains(&early) {
            return true;
        }
        let mut search = self.search.borrow_mut();
        let Search { seen, count, stack } = &mut *search;
        *count += 1;
        stack.clear();
        stack.push(late);
        while let Some(here) = stack.pop() {
            for &earlier in &self.after[here] {
                if earlier == early {
                    return true;
                }
                let between = self.position[earlier] > self.position[early];
                if between && seen[earlier] != *count {
                    seen[earlier] = *count;
                    stack.push(earlier);
                }
            }
        }
        false
    }
}
