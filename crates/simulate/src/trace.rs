//! Trace of a run in text, and its digest, which is equal for runs of equal scenarios.

use std::fmt::{Arguments, Write as _};
use std::hash::Hasher;

use rustc_hash::FxHasher;

use crate::world::clock::Nanos;

/// Records the events of a run.
#[derive(Default)]
pub struct Trace {
    /// Lines of text, if enabled.
    lines: Option<Vec<String>>,
    digest: FxHasher,
}

impl Trace {
    /// `lines`: whether to keep the trace as text.
    pub fn new(lines: bool) -> Trace {
        Trace { lines: lines.then(Vec::new), digest: FxHasher::default() }
    }

    /// Whether text is kept.
    pub fn is_on(&self) -> bool {
        self.lines.is_some()
    }

    /// Records an event. `code` and `detail` are added to the digest.
    #[inline]
    pub fn note(&mut self, at: Nanos, code: u32, detail: u64) {
        self.digest.write_u64(at);
        self.digest.write_u32(code);
        self.digest.write_u64(detail);
    }

    /// Adds a line of text; `actor` is the subject.
    pub fn log(&mut self, at: Nanos, actor: &dyn std::fmt::Display, what: Arguments<'_>) {
        let Some(lines) = &mut self.lines else { return };
        let mut line = format!("{:>12.6} s  ", at as f64 / 1e9);
        let actor = actor.to_string();
        let _ = write!(line, "{actor:<22}  {what}");
        lines.push(line);
    }

    /// Digest of all recorded events.
    pub fn digest(&self) -> u64 {
        self.digest.finish()
    }

    /// Returns the lines of text.
    pub fn into_lines(self) -> Vec<String> {
        self.lines.unwrap_or_default()
    }
}
