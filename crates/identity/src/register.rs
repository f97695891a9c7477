//! The authority's register: one line for each certificate that it has issued and that is still valid.

use std::path::{Path, PathBuf};

use crate::error::IdentityError;
use crate::files;
use crate::identity::Role;

/// A certificate in the register. Times are seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Serial number, hexadecimal.
    pub serial: String,
    pub expires_s: i64,
    pub revoked_s: Option<i64>,
    pub role: Role,
}

/// The register's file.
#[derive(Debug)]
pub(crate) struct Register(PathBuf);

impl Register {
    pub fn in_folder(folder: &Path) -> Register {
        Register(folder.join("issued"))
    }

    /// All entries. A missing file is an empty register.
    pub fn read(&self) -> Result<Vec<Entry>, IdentityError> {
        if !self.0.exists() {
            return Ok(Vec::new());
        }
        let text = files::read_text(&self.0, "restore it from a copy of the authority's folder")?;
        let parse = |(i, line)| parse(line).ok_or_else(|| self.malformed(i));
        text.lines().enumerate().map(parse).collect()
    }

    /// Replaces all entries.
    pub fn write(&self, entries: &[Entry]) -> Result<(), IdentityError> {
        let text: String = entries.iter().map(line).collect();
        files::write(&self.0, text.as_bytes(), files::PRIVATE)
    }

    fn malformed(&self, line: usize) -> IdentityError {
        let problem =
            format!("line {} is damaged; restore the file from a copy of the folder", line + 1);
        files::invalid(&self.0, problem)
    }
}

fn line(entry: &Entry) -> String {
    let revoked = entry.revoked_s.map_or_else(|| "-".to_owned(), |at| at.to_string());
    format!("{} {} {revoked} {}\n", entry.serial, entry.expires_s, entry.role)
}

fn parse(line: &str) -> Option<Entry> {
    let words: Vec<&str> = line.split(' ').collect();
    let [serial, expires, revoked, role] = words[..] else { return None };
    let is_hex = !serial.is_empty() && serial.chars().all(|c| c.is_ascii_hexdigit());
    let revoked_s = match revoked {
        "-" => None,
        at => Some(at.parse().ok()?),
    };
    let (expires_s, role) = (expires.parse().ok()?, role.parse().ok()?);
    is_hex.then(|| Entry { serial: serial.to_owned(), expires_s, revoked_s, role })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_and_a_damaged_line_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let register = Register::in_folder(folder.path());
        assert_eq!(register.read().unwrap(), []);
        let entry = |serial: &str, revoked_s, role: &str| Entry {
            serial: serial.to_owned(),
            expires_s: 1_800_000_000,
            revoked_s,
            role: role.parse().unwrap(),
        };
        let all = [entry("0aff", None, "switch/rack0"), entry("01", Some(7), "operator")];
        register.write(&all).unwrap();
        assert_eq!(register.read().unwrap(), all);
        std::fs::write(folder.path().join("issued"), "01 7 - operator\n01 x - operator\n").unwrap();
        let error = register.read().unwrap_err().to_string();
        assert!(error.contains("issued: line 2 is damaged"), "{error}");
    }
}
