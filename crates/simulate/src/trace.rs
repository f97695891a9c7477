//! What happened, for people, and its digest, which two runs of one scenario share.

use std::fmt::{Arguments, Write as _};
use std::hash::Hasher;

use rustc_hash::FxHasher;

use crate::world::clock::Nanos;

/// Records what happens.
#[derive(Default)]
pub struct Trace {
    /// The lines, if wanted.
    lines: Option<Vec<String>>,
    digest: FxHasher,
}

impl Trace {
    /// `lines`: whether to keep what happened in words.
    pub fn new(lines: bool) -> Trace {
        Trace { lines: lines.then(Vec::new), digest: FxHasher::default() }
    }

    /// Whether words are wanted.
    pub fn is_on(&self) -> bool {
        self.lines.is_some()
    }

    /// Something happened. `code` and `detail` go into the digest.
    #[inline]
    pub fn note(&mut self, at: Nanos, code: u32, detail: u64) {
        self.digest.write_u64(at);
        self.digest.write_u32(code);
        self.digest.write_u64(detail);
    }

    /// The same in words; `actor` says who.
    pub fn say(&mut self, at: Nanos, actor: &dyn std::fmt::Display, what: Arguments<'_>) {
        let Some(lines) = &mut self.lines else { return };
        let mut line = format!("{:>12.6} s  ", at as f64 / 1e9);
        let actor = actor.to_string();
        let _ = write!(line, "{actor:<22}  {what}");
        lines.push(line);
    }

    /// Equal for equal runs.
    pub fn digest(&self) -> u64 {
        self.digest.finish()
    }

    /// The words.
    pub fn into_lines(self) -> Vec<String> {
        self.lines.unwrap_or_default()
    }
}
