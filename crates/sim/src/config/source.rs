//! The text of a configuration, and errors that name one of its lines.

use std::io::Read;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::keys::key_at;

/// Why a run was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A file could not be read.
    #[error("cannot read {}: {reason}; give the path of an existing file", path.display())]
    Unreadable {
        /// Path.
        path: PathBuf,
        /// The system's error message.
        reason: String,
    },
    /// Invalid TOML, an unknown or missing key, or a value of the wrong type.
    #[error("{file}:{line}: {reason}")]
    Syntax {
        /// File.
        file: String,
        /// Line, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// A valid TOML value that the simulator refuses.
    #[error("{file}:{line}: {key}: {reason}")]
    Invalid {
        /// File.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Key, as "flows.0.load".
        key: String,
        /// What is wrong and what to do.
        reason: String,
    },
    /// A schedule that cannot be run.
    #[error("{place}: {reason}")]
    Schedule {
        /// File, rank and node.
        place: String,
        /// What is wrong.
        reason: String,
    },
    /// The fabric is invalid.
    #[error(transparent)]
    Fabric(#[from] netsum_topo::TopoError),
}

pub(super) fn from_toml<T: serde::de::DeserializeOwned>(
    text: &str,
    file: &str,
) -> Result<T, ConfigError> {
    toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let (file, reason) = (file.to_owned(), error.message().replace('\n', "; "));
        match key_at::<T>(text, at, &error) {
            Some((key, at)) => ConfigError::Invalid { file, line: line_at(text, at), key, reason },
            None => ConfigError::Syntax { file, line: line_at(text, at), reason },
        }
    })
}

/// Reads a file of at most `most` bytes.
pub(super) fn read(path: &Path, most: u64) -> Result<String, ConfigError> {
    let unreadable = |reason| ConfigError::Unreadable { path: path.to_owned(), reason };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| unreadable(error.to_string()))?;
    let read = file.take(most + 1).read_to_string(&mut text);
    match read.map_err(|error| unreadable(error.to_string()))? as u64 > most {
        true => Err(unreadable(format!("it has more than {} MiB", most >> 20))),
        false => Ok(text),
    }
}

/// Maximum size of a configuration, a scenario or a fabric file.
pub(super) const TOML_MAX: u64 = 64 << 20;

/// The origin of a configuration, for line numbers in errors.
pub(super) struct Source<'a> {
    pub text: &'a str,
    pub file: &'a str,
    pub folder: &'a Path,
}

impl Source<'_> {
    /// An error at a key, given as "flows.0.load"; an absent key counts as the start of its table.
    pub(super) fn invalid(&self, key: &str, reason: impl Into<String>) -> ConfigError {
        ConfigError::Invalid {
            file: self.file.to_owned(),
            line: self.line_of(key),
            key: key.to_owned(),
            reason: reason.into(),
        }
    }

    fn line_of(&self, key: &str) -> usize {
        let Ok(table) = DeTable::parse(self.text) else { return 1 };
        let mut at = 0;
        let mut value = DeValue::Table(table.into_inner());
        for part in key.split('.') {
            let next = match value {
                DeValue::Table(mut table) => table.remove(part),
                DeValue::Array(array) => array.into_iter().nth(part.parse().unwrap_or(usize::MAX)),
                _ => None,
            };
            let Some(next) = next else { break };
            at = next.span().start;
            value = next.into_inner();
        }
        line_at(self.text, at)
    }
}

fn line_at(text: &str, byte: usize) -> usize {
    text[..byte.min(text.len())].matches('\n').count() + 1
}
