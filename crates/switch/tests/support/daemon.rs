//! Switch daemons as processes.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Killed when it is dropped.
pub struct Daemon(Child);

impl Daemon {
    /// Starts a switch or server of a fabric file with more options, and waits until its data socket is open.
    pub fn start(fabric: &Path, name: &str, options: &[&str]) -> Daemon {
        let mut child = Command::new(env!("CARGO_BIN_EXE_netsum-switch"))
            .args(["--fabric".as_ref(), fabric.as_os_str(), "--name".as_ref(), name.as_ref()])
            .args(options)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with(&format!("ready {name} ")), "{line:?}");
        Daemon(child)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
