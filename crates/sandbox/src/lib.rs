//! What a daemon gives up once its sockets are open: the user, capabilities, system calls, and writes to files.
//!
//! Owns: the lists of what each daemon needs, and the order in which it gives up the rest. Must not know: what daemons
//! do. Start reading at [`Sandbox::enter`].
//!
//! A process enters the sandbox before it starts threads: each of its steps holds for the calling thread and for the
//! threads that this one starts later. What the system does not support is logged, and the daemon goes on; a daemon that
//! cannot become the user that it was told to become ends.

mod arguments;
mod calls;
mod files;
mod privileges;
mod user;

use std::path::PathBuf;

pub use arguments::SandboxArguments;
pub use privileges::Privilege;
pub use user::User;

/// A kind of daemon, which determines its system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Daemon {
    /// The controller: it writes a store.
    Controller,
    /// A switch or server.
    Switch,
    /// A switch whose work is done in the kernel: it changes the maps of its programs.
    InKernelSwitch,
}

/// What a process keeps.
#[derive(Clone, Debug)]
pub struct Sandbox {
    /// The daemon.
    pub daemon: Daemon,
    /// The user to become; `None`: the present one.
    pub user: Option<User>,
    /// Capabilities to keep, as far as the process has them.
    pub keep: Vec<Privilege>,
    /// Folders in which files may be written.
    pub writable: Vec<PathBuf>,
}

/// Why a process cannot be confined as it was told.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The user is not in the password file.
    #[error("there is no user {0:?} in /etc/passwd; give the name of one, or UID:GID, with --user")]
    NoUser(String),
    /// The password file cannot be read.
    #[error("cannot look up user {name:?}: {source}")]
    Lookup {
        /// The user.
        name: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The system refuses a step without which the process would keep its rights.
    #[error("cannot {step}: {source}; start the process as root, or without --user")]
    Refused {
        /// The step.
        step: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// Other threads would stay outside.
    #[error("the process has {0} threads; the sandbox holds for one and those that it starts")]
    Threads(usize),
}

impl Sandbox {
    /// Confines the calling thread, which must be the only one of the process, and all threads that it starts.
    ///
    /// Errors: other threads, or a user that the process may not become. Anything else that the system does not support
    /// is logged as a warning.
    pub fn enter(&self) -> Result<(), SandboxError> {
        match threads() {
            1 => {}
            count => return Err(SandboxError::Threads(count)),
        }
        privileges::drop(self.user.as_ref(), &self.keep)?;
        if let Err(reason) = files::restrict(&self.writable) {
            tracing::warn!(%reason, "files are not protected from this process: the system has no Landlock");
        }
        if let Err(reason) = calls::restrict(self.daemon) {
            tracing::warn!(%reason, "system calls are not filtered");
        }
        tracing::info!(user = %rustix::process::geteuid().as_raw(), "confined: see docs/security.md");
        Ok(())
    }
}

/// Number of threads of the process; 1 if the system does not tell.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count)
}
