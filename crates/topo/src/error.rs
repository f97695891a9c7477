//! Errors of fabrics, topologies and orders read from text.

use std::path::PathBuf;

/// Why a fabric file or another text was refused.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum TopoError {
    /// The file could not be read.
    #[error("cannot read the fabric file {}: {reason}; give the path of a fabric .toml file", file.display())]
    Unreadable {
        /// The path as given.
        file: PathBuf,
        /// The operating system's error message.
        reason: String,
    },
    /// Invalid TOML, a missing field, or an unknown field.
    #[error("{file}:{line}: {reason}")]
    Syntax {
        /// Name of the text.
        file: String,
        /// Line, from 1.
        line: usize,
        /// The parser's message.
        reason: String,
    },
    /// Valid TOML, but an invalid fabric.
    #[error("{file}:{line}: {entry}: {problem}")]
    Invalid {
        /// Name of the text.
        file: String,
        /// Line, from 1.
        line: usize,
        /// The entry, as `host "h0"`.
        entry: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// Text that is not a size, rate or time.
    #[error("{text:?} is not a {what}; write it like {example:?}")]
    Unit {
        /// The text as given.
        text: String,
        /// "size", "rate" or "time".
        what: &'static str,
        /// An example of a valid text.
        example: &'static str,
    },
    /// A topology that could not be read or is invalid.
    #[error("{file}: {place}: {problem}")]
    Import {
        /// Name of the text.
        file: String,
        /// Line or entry.
        place: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// A selection of GPUs that cannot work together.
    #[error("GPUs {gpus} of {graph}: {problem}")]
    Selection {
        /// The graph's name.
        graph: String,
        /// The GPUs as given.
        gpus: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// A builder cannot build the requested shape.
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
    /// An unexpected byte.
    #[error("sum order: unexpected {found} at byte {at}")]
    Unexpected {
        /// What was found.
        found: String,
        /// Offset in the text.
        at: usize,
    },
    /// Nested deeper than any fabric.
    #[error("sum order: nested deeper than {limit}")]
    TooDeep {
        /// The maximum depth.
        limit: usize,
    },
    /// A repeated rank.
    #[error("sum order: rank {rank} stands in it twice")]
    Repeated {
        /// The rank.
        rank: u32,
    },
}

impl TopoError {
    /// The TOML parser's message about `text`, in one line.
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
