//! GOAL schedules in text, the format of LogGOPSim and ATLAHS (Hoefler, Siebert and Lumsdaine, "Group operation
//! assembly language", ICPP 2009).
//!
//! ```text
//! num_ranks 2
//! rank 0 {
//!   l1: calc 1000 cpu 0
//!   l2: send 4096b to 1 tag 7
//!   l2 requires l1
//! }
//! ```
//!
//! `calc` counts nanoseconds. `requires` waits for the end of a node, `irequires` for its start. `cpu` is the unit that
//! computes; what `nic` names is read and not used, since a simulated host has one link. A receive from any rank or
//! with any tag (`-1`) is refused: which message it takes would depend on times.

use std::collections::HashMap;

use super::{Builder, Names, Op, Schedule, ScheduleError};

/// Reads a schedule; `file` names it in errors.
pub fn parse(text: &str, file: &str) -> Result<Schedule, ScheduleError> {
    let mut parser = Parser { file, words: Words::new(text) };
    let mut builder = parser.header()?;
    let mut seen = vec![false; builder.ranks() as usize];
    while let Some((line, word)) = parser.words.next_word() {
        if word != "rank" {
            return Err(parser.error(line, format!("{word:?} is not \"rank\"")));
        }
        let rank: u32 = parser.number("a rank")?;
        match seen.get_mut(rank as usize) {
            None => {
                let reason = format!("there is no rank {rank}: num_ranks is {}", builder.ranks());
                return Err(parser.error(line, reason));
            }
            Some(seen) if *seen => {
                return Err(parser.error(line, format!("rank {rank} is there twice")));
            }
            Some(seen) => *seen = true,
        }
        parser.rank(rank, &mut builder)?;
    }
    if let Some(rank) = seen.iter().position(|seen| !seen) {
        return Err(ScheduleError::new(file, format!("rank {rank} is missing")));
    }
    builder.build()
}

struct Parser<'a> {
    file: &'a str,
    words: Words<'a>,
}

impl<'a> Parser<'a> {
    fn error(&self, line: usize, reason: impl Into<String>) -> ScheduleError {
        ScheduleError::new(format!("{}:{line}", self.file), reason)
    }

    fn header(&mut self) -> Result<Builder, ScheduleError> {
        match self.words.next_word() {
            Some((_, "num_ranks")) => {}
            Some((line, word)) => {
                let reason = format!("{word:?} is not \"num_ranks\", with which GOAL begins");
                return Err(self.error(line, reason));
            }
            None => return Err(self.error(1, "the file is empty; GOAL begins with \"num_ranks\"")),
        }
        let ranks = self.number("a number of ranks")?;
        Builder::new(Names::Lines(self.file.to_owned()), ranks)
    }

    /// The block of a rank.
    fn rank(&mut self, rank: u32, builder: &mut Builder) -> Result<(), ScheduleError> {
        self.expect("{")?;
        let mut labels: HashMap<&str, u32> = HashMap::new();
        // Labels may be used before they are defined.
        let mut waits: Vec<(usize, &str, &str, bool)> = Vec::new();
        loop {
            let (line, word) = self.next("\"}\"")?;
            if word == "}" {
                break;
            }
            if is_operation(word) {
                self.operation(rank, line, word, builder)?;
                continue;
            }
            if !word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
                let reason = format!("{word:?} is neither a label nor an operation");
                return Err(self.error(line, reason));
            }
            match self.next("\":\", \"requires\" or \"irequires\"")? {
                (_, ":") => {
                    let (line, operation) = self.next("an operation")?;
                    if !is_operation(operation) {
                        let reason =
                            format!("{operation:?} is no operation; GOAL has calc, send and recv");
                        return Err(self.error(line, reason));
                    }
                    let node = self.operation(rank, line, operation, builder)?;
                    if labels.insert(word, node).is_some() {
                        return Err(self.error(line, format!("label {word:?} is there twice")));
                    }
                }
                (_, by @ ("requires" | "irequires")) => {
                    let (_, before) = self.next("a label")?;
                    waits.push((line, word, before, by == "irequires"));
                }
                (line, other) => {
                    let reason = format!("{other:?} is not \":\", \"requires\" or \"irequires\"");
                    return Err(self.error(line, reason));
                }
            }
        }
        for (line, node, before, at_start) in waits {
            let of = |label| {
                let reason = || format!("rank {rank} has no label {label:?}");
                labels.get(label).copied().ok_or_else(|| self.error(line, reason()))
            };
            builder.wait(rank, of(node)?, of(before)?, at_start)?;
        }
        Ok(())
    }

    fn operation(
        &mut self,
        rank: u32,
        line: usize,
        word: &str,
        builder: &mut Builder,
    ) -> Result<u32, ScheduleError> {
        let amount: u64 = self.number(if word == "calc" { "nanoseconds" } else { "bytes" })?;
        let mut other = 0;
        if word != "calc" {
            self.expect("b")?;
            self.expect(if word == "send" { "to" } else { "from" })?;
            other = self.rank_or_any()?;
        }
        let (mut tag, mut cpu) = (0, 0);
        while let Some((_, option @ ("tag" | "cpu" | "nic"))) = self.words.peek() {
            self.words.next_word();
            match option {
                "tag" => tag = self.tag_or_any()?,
                "cpu" => cpu = self.number("a processor from 0 to 255")?,
                _ => _ = self.number::<u32>("a network interface")?,
            }
        }
        let op = match word {
            "calc" => Op::Compute { ps: amount.saturating_mul(1000), unit: cpu },
            "send" => Op::Send { to: other, bytes: amount, tag },
            _ => Op::Recv { from: other, bytes: amount, tag },
        };
        builder.add(rank, line as u64, op)
    }

    fn rank_or_any(&mut self) -> Result<u32, ScheduleError> {
        self.refuse_any("rank")?;
        self.number("a rank")
    }

    fn tag_or_any(&mut self) -> Result<u32, ScheduleError> {
        self.refuse_any("tag")?;
        self.number("a tag")
    }

    fn refuse_any(&mut self, what: &str) -> Result<(), ScheduleError> {
        match self.words.peek() {
            Some((line, "-")) => {
                let reason = format!(
                    "any {what} is not taken: which message it would receive depends on times"
                );
                Err(self.error(line, reason))
            }
            _ => Ok(()),
        }
    }

    fn next(&mut self, wanted: &str) -> Result<(usize, &'a str), ScheduleError> {
        let end = self.words.line;
        self.words
            .next_word()
            .ok_or_else(|| self.error(end, format!("the file ends where {wanted} should be")))
    }

    fn expect(&mut self, wanted: &str) -> Result<(), ScheduleError> {
        match self.next(&format!("{wanted:?}"))? {
            (_, word) if word == wanted => Ok(()),
            (line, word) => Err(self.error(line, format!("{word:?} is not {wanted:?}"))),
        }
    }

    fn number<T: std::str::FromStr>(&mut self, what: &str) -> Result<T, ScheduleError> {
        let (line, word) = self.next(what)?;
        word.parse().map_err(|_| self.error(line, format!("{word:?} is not {what}")))
    }
}

fn is_operation(word: &str) -> bool {
    matches!(word, "calc" | "send" | "recv")
}

/// Words, numbers and signs of a text, each with its line, without comments.
struct Words<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> Words<'a> {
    fn new(text: &'a str) -> Words<'a> {
        Words { rest: text, line: 1 }
    }

    fn peek(&mut self) -> Option<(usize, &'a str)> {
        self.skip();
        let first = self.rest.chars().next()?;
        let number = first.is_ascii_digit();
        let goes_on = |c: char| match number {
            // "4096b" is a number and a unit.
            true => c.is_ascii_digit(),
            false => c.is_ascii_alphanumeric() || c == '_',
        };
        let end = match first.is_ascii_alphanumeric() || first == '_' {
            true => self.rest.find(|c| !goes_on(c)).unwrap_or(self.rest.len()),
            false => first.len_utf8(),
        };
        Some((self.line, &self.rest[..end]))
    }

    fn next_word(&mut self) -> Option<(usize, &'a str)> {
        let found = self.peek()?;
        self.rest = &self.rest[found.1.len()..];
        Some(found)
    }

    /// Skips blanks and comments.
    fn skip(&mut self) {
        loop {
            let text = self.rest.trim_start();
            let comment = if text.starts_with("//") {
                text.find('\n').unwrap_or(text.len())
            } else if text.starts_with("/*") {
                text.find("*/").map_or(text.len(), |at| at + 2)
            } else {
                0
            };
            let skipped = self.rest.len() - text.len() + comment;
            self.line += self.rest.as_bytes()[..skipped].iter().filter(|&&b| b == b'\n').count();
            self.rest = &self.rest[skipped..];
            if skipped == 0 || comment == 0 {
                return;
            }
        }
    }
}
