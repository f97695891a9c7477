//! The program inside its sandbox: it keeps its store as another user, and every thread is confined.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use netsum_control::{client, pb};

use crate::scene::{PATIENCE, at, fabric};

/// A user without rights, for a controller that is started as root.
const NOBODY: u32 = 65_534;

fn start(fabric: &Path, store: &Path, user: Option<&str>) -> (Child, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netsum-controller"));
    command.arg("--fabric").arg(fabric).arg("--store").arg(store);
    command.args(["--listen", "127.0.0.1:0"]).args(user.map(|user| format!("--user={user}")));
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("ready ").unwrap().to_owned();
    (child, address)
}

fn end(mut child: Child) {
    Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_confined_controller_keeps_its_jobs() {
    let folder = tempfile::tempdir().unwrap();
    let (file, store) = (folder.path().join("fabric.toml"), folder.path().join("x.db"));
    std::fs::write(&file, fabric().to_toml()).unwrap();
    let is_root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    let user = is_root.then(|| format!("{NOBODY}:{NOBODY}"));
    if is_root {
        chown(folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let (child, address) = start(&file, &store, user.as_deref());
    let request = pb::CreateJobRequest { size: 2, name: "kept".to_owned(), ..Default::default() };
    let job = client::create_job(&at(&address), request, PATIENCE).unwrap().job;
    for task in std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap() {
        let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        for line in ["Seccomp:\t2", "NoNewPrivs:\t1", "CapEff:\t0000000000000000"] {
            assert!(status.contains(line), "{status}");
        }
        assert!(!is_root || status.contains(&format!("Uid:\t{NOBODY}\t{NOBODY}\t{NOBODY}")));
    }
    end(child);
    let (child, address) = start(&file, &store, user.as_deref());
    let jobs = client::status(&at(&address), PATIENCE).unwrap().jobs;
    assert_eq!(
        jobs.iter().map(|job| (job.job, job.name.as_str())).collect::<Vec<_>>(),
        [(job, "kept")]
    );
    end(child);
}
