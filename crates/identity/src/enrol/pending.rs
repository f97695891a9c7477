//! The authority's tokens: a file with one line for each. It has hashes of the secrets, so that who reads a copy of it
//! cannot use a token.

use std::path::{Path, PathBuf};

use super::sha256;
use crate::error::IdentityError;
use crate::files;
use crate::hex::hexadecimal;
use crate::identity::Role;

/// A token in the file. Times are seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pending {
    hash: String,
    expires_s: i64,
    used: bool,
    role: Role,
}

impl Pending {
    pub(super) fn new(secret: &[u8; 16], expires_s: i64, role: &Role) -> Pending {
        Pending { hash: hash(secret), expires_s, used: false, role: role.clone() }
    }

    /// Whether the token can be used.
    pub(super) fn is_open(&self, now_s: i64) -> bool {
        !self.used && self.expires_s > now_s
    }
}

/// The file; the authority's folder must be locked.
pub(super) struct PendingTokens {
    file: PathBuf,
    all: Vec<Pending>,
}

impl PendingTokens {
    /// Those in the folder of an authority, without those that expired long ago.
    pub(super) fn read(folder: &Path, now_s: i64) -> Result<PendingTokens, IdentityError> {
        let file = folder.join("tokens");
        if !file.exists() {
            return Ok(PendingTokens { file, all: Vec::new() });
        }
        let text = files::read_text(&file, "remove it: tokens can be made anew")?;
        let line = |(i, line): (usize, &str)| {
            let problem =
                || format!("line {} is damaged; remove the file, and make new tokens", i + 1);
            parse(line).ok_or_else(|| files::invalid(&file, problem()))
        };
        let all: Result<Vec<Pending>, _> = text.lines().enumerate().map(line).collect();
        let mut all = all?;
        all.retain(|token| token.expires_s > now_s - REMEMBERED_S);
        Ok(PendingTokens { file, all })
    }

    pub(super) fn open(&self, now_s: i64) -> usize {
        self.all.iter().filter(|token| token.is_open(now_s)).count()
    }

    pub(super) fn add(&mut self, token: Pending) -> Result<(), IdentityError> {
        self.all.push(token);
        self.write()
    }

    /// Marks a token as used. Error: why it cannot be used, as a sentence.
    pub(super) fn take(
        &mut self,
        secret: &[u8],
        role: &Role,
        now_s: i64,
    ) -> Result<(), IdentityError> {
        let hash = hash(secret);
        let token = self.all.iter_mut().find(|token| token.hash == hash);
        let refused = |reason: String| Err(IdentityError::NotGranted(reason));
        match token {
            None => refused(format!("the authority does not know this token; {ANOTHER}")),
            Some(token) if token.used => refused(format!(
                "this token was used already; if it was not you, revoke {role} at once; {ANOTHER}"
            )),
            Some(token) if token.expires_s <= now_s => {
                refused(format!("this token has expired; {ANOTHER}"))
            }
            Some(token) if token.role != *role => {
                refused(format!("this token is for {}, not for {role}; {ANOTHER}", token.role))
            }
            Some(token) => {
                token.used = true;
                self.write()
            }
        }
    }

    fn write(&self) -> Result<(), IdentityError> {
        let line = |token: &Pending| {
            let state = if token.used { "used" } else { "open" };
            format!("{} {} {state} {}\n", token.hash, token.expires_s, token.role)
        };
        let text: String = self.all.iter().map(line).collect();
        files::write(&self.file, text.as_bytes(), files::PRIVATE)
    }
}

fn parse(line: &str) -> Option<Pending> {
    let words: Vec<&str> = line.split(' ').collect();
    let [hash, expires, state, role] = words[..] else { return None };
    let used = match state {
        "used" => true,
        "open" => false,
        _ => return None,
    };
    let (expires_s, role) = (expires.parse().ok()?, role.parse().ok()?);
    Some(Pending { hash: hash.to_owned(), expires_s, used, role })
}

fn hash(secret: &[u8]) -> String {
    hexadecimal(&sha256(secret))
}

const ANOTHER: &str = "make another by `netsum ca token`";
/// Long enough to tell who comes late what is wrong.
const REMEMBERED_S: i64 = 30 * 24 * 3600;
