//! What can be wrong with a fabric or with what is read from text.

use std::path::PathBuf;

/// Why a fabric file was refused, or a text was not what it should be.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum TopoError {
    /// The file could not be read at all.
    #[error("cannot read the fabric file {}: {reason}; give the path of a fabric .toml file", file.display())]
    Unreadable {
        /// The path as given.
        file: PathBuf,
        /// The operating system's words.
        reason: String,
    },
    /// Not TOML, a missing field, or a field that a fabric does not have.
    #[error("{file}:{line}: {reason}")]
    Syntax {
        /// Where the text came from.
        file: String,
        /// Line, from 1.
        line: usize,
        /// The parser's message.
        reason: String,
    },
    /// TOML, but not a fabric that could work.
    #[error("{file}:{line}: {entry}: {problem}")]
    Invalid {
        /// Where the text came from.
        file: String,
        /// Line, from 1.
        line: usize,
        /// The entry, as `host "h0"`.
        entry: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// A size, rate or time that has no meaning.
    #[error("{text:?} is not a {what}; write it like {example:?}")]
    Unit {
        /// The text as given.
        text: String,
        /// "size", "rate" or "time".
        what: &'static str,
        /// A text that would be right.
        example: &'static str,
    },
    /// A topology that could be read, but not be used; or not be read.
    #[error("{file}: {place}: {problem}")]
    Import {
        /// Where the text came from.
        file: String,
        /// Line or entry.
        place: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// GPUs were chosen that cannot work together.
    #[error("GPUs {gpus} of {graph}: {problem}")]
    Selection {
        /// The graph's name.
        graph: String,
        /// The GPUs as given.
        gpus: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// A builder was asked for a shape that does not exist.
    #[error("cannot build {shape}: {problem}")]
    Shape {
        /// The builder and its arguments.
        shape: String,
        /// What is wrong and what to do.
        problem: String,
    },
}

/// Why a text is not a sum order such as `[[0,1],[2,3]]`.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum OrderError {
    /// A byte that cannot stand there.
    #[error("sum order: unexpected {found} at byte {at}")]
    Unexpected {
        /// What was found.
        found: String,
        /// Offset in the text.
        at: usize,
    },
    /// Deeper than any fabric.
    #[error("sum order: nested deeper than {limit}")]
    TooDeep {
        /// The bound.
        limit: usize,
    },
    /// A rank twice.
    #[error("sum order: rank {rank} stands in it twice")]
    Repeated {
        /// The rank.
        rank: u32,
    },
}

impl TopoError {
    /// What the parser of TOML says of `text`, in one line.
    pub(crate) fn syntax(text: &str, file: &str, error: &toml::de::Error) -> TopoError {
        let start = error.span().map_or(0, |span| span.start.min(text.len()));
        let line = text[..start].matches('\n').count() + 1;
        TopoError::Syntax {
            file: file.to_owned(),
            line,
            reason: error.message().replace('\n', "; "),
        }
    }
}
