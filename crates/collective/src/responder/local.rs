//! The process's Unix socket: the user and root ask there, also without a controller.

use std::fs::{self, DirBuilder};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use netsum_net::Process;
use serde::{Deserialize, Serialize};

use super::gather;
use crate::Error;

/// A question, one line of JSON.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Question {
    /// Name of the group all of whose ranks are asked; empty: this process alone answers.
    #[serde(default)]
    group: String,
    /// Seconds to wait for other ranks.
    #[serde(default)]
    patience_s: f64,
}

/// The folder of the sockets of this user's processes, each named by its process: `XDG_RUNTIME_DIR/netsum`, else
/// `/tmp/netsum-UID`.
pub fn socket_folder() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| Path::new(folder).is_dir()) {
        Some(folder) => Path::new(&folder).join("netsum"),
        None => PathBuf::from(format!("/tmp/netsum-{}", user())),
    }
}

/// Opens the socket, and answers until the process ends.
pub(super) fn serve() -> io::Result<()> {
    let folder = socket_folder();
    own_folder(&folder)?;
    let path = folder.join(format!("{}.sock", std::process::id()));
    // Left behind by an earlier process of that number.
    let _ = fs::remove_file(&path);
    let listener = UnixListener::bind(&path)?;
    let process = Process::this();
    std::thread::Builder::new().name("netsum-why".to_owned()).spawn(move || {
        for stream in listener.incoming().flatten() {
            if !process.is_this() {
                return;
            }
            let body = move || {
                // A client that is gone needs no answer.
                let _ = reply(stream);
            };
            // Without a thread there is no answer; the client's patience ends.
            let _ = std::thread::Builder::new().name("netsum-why".to_owned()).spawn(body);
        }
    })?;
    remove_dead(&folder);
    Ok(())
}

/// Asks a process of this host over its socket; with `group`, all ranks of that group, by way of it. Returns JSON: an
/// [`super::Evidence`], or with `group` an object of these by rank. Errors: nobody answers within `patience`.
pub fn ask_process(socket: &Path, group: &str, patience: Duration) -> Result<String, Error> {
    let failed = |e: io::Error| Error::Unsupported(format!("{}: {e}", socket.display()));
    let stream = UnixStream::connect(socket).map_err(failed)?;
    stream.set_read_timeout(Some(patience + GRACE)).map_err(failed)?;
    let question = Question { group: group.to_owned(), patience_s: patience.as_secs_f64() };
    let line = serde_json::to_string(&question).map_err(|e| Error::Internal(e.to_string()))?;
    (&stream).write_all((line + "\n").as_bytes()).map_err(failed)?;
    let mut answer = String::new();
    (&stream).take(REPLY_MAX).read_to_string(&mut answer).map_err(failed)?;
    Ok(answer)
}

fn reply(stream: UnixStream) -> io::Result<()> {
    stream.set_read_timeout(Some(GRACE))?;
    stream.set_write_timeout(Some(GRACE))?;
    let mut line = String::new();
    BufReader::new((&stream).take(QUESTION_MAX)).read_line(&mut line)?;
    let question: Question = serde_json::from_str(&line)?;
    let answer = if question.group.is_empty() {
        super::answer()
    } else {
        let patience = Duration::try_from_secs_f64(question.patience_s).unwrap_or_default();
        let group = super::groups().into_iter().find(|group| group.core.name == question.group);
        let asked = group.map(|group| {
            let ranks: Vec<u32> = (0..group.core.size).collect();
            gather::ask(&group.core, &ranks, patience.min(PATIENCE_MAX))
        });
        asked.map_or_else(|| "null".to_owned(), |asked| asked.to_json())
    };
    (&stream).write_all(answer.as_bytes())
}

/// Makes the folder, if it is not there; one that belongs to somebody else, or that others may enter, is refused.
fn own_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let found = fs::symlink_metadata(folder)?;
    if !found.is_dir() || found.uid() != user() || found.mode() & 0o077 != 0 {
        let problem = format!("{} is not a folder of this user alone", folder.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, problem));
    }
    Ok(())
}

/// Removes sockets of processes that are gone.
fn remove_dead(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let pid = path.file_stem().and_then(|stem| stem.to_str()?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_file(path);
        }
    }
}

fn user() -> u32 {
    fs::metadata("/proc/self").map_or(u32::MAX, |own| own.uid())
}

/// Beyond the patience of a question, for what remains to be written.
const GRACE: Duration = Duration::from_secs(1);
const PATIENCE_MAX: Duration = Duration::from_secs(30);
const QUESTION_MAX: u64 = 64 << 10;
const REPLY_MAX: u64 = 1 << 30;
