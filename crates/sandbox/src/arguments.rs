//! Options that all daemons have.

use clap::Args;

use crate::{Daemon, Privilege, Sandbox, SandboxError, User};

/// Options of the sandbox.
#[derive(Clone, Debug, Default, Args)]
pub struct SandboxArguments {
    /// Become this user once sockets are open: a name of /etc/passwd, or UID:GID
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// Keep all system calls, capabilities and files; for debuggers
    #[arg(long, conflicts_with = "user")]
    pub no_sandbox: bool,
}

impl SandboxArguments {
    /// The sandbox of a daemon that keeps nothing beyond what its kind needs; `None`, with a warning: none is wanted.
    /// Errors: an unknown user.
    pub fn sandbox(&self, daemon: Daemon) -> Result<Option<Sandbox>, SandboxError> {
        if self.no_sandbox {
            tracing::warn!(
                "--no-sandbox: whoever takes over this process can do all that its user can"
            );
            return Ok(None);
        }
        let user = self.user.as_deref().map(User::find).transpose()?;
        let keep = match daemon {
            Daemon::Controller | Daemon::Switch => Vec::new(),
            Daemon::InKernelSwitch => {
                vec![Privilege::BPF, Privilege::NET_ADMIN, Privilege::PERFMON]
            }
        };
        Ok(Some(Sandbox { daemon, user, keep, writable: Vec::new() }))
    }
}
