//! The sandbox of daemons, from inside. Each case runs in a process of its own: a process stays confined until its end,
//! and must have one thread when it is confined, so there is no test harness here.

#![allow(unsafe_code)]

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use netsum_sandbox::{Daemon, Sandbox, User};

type Case = (&'static str, fn(&Path));

const CASES: [Case; 9] = [
    ("programs_cannot_be_started", programs_cannot_be_started),
    ("processes_cannot_be_traced", processes_cannot_be_traced),
    ("memory_cannot_become_code", memory_cannot_become_code),
    ("sockets_of_other_families_are_refused", sockets_of_other_families_are_refused),
    ("threads_and_sockets_work", threads_and_sockets_work),
    ("files_are_written_in_their_folder_only", files_are_written_in_their_folder_only),
    ("privileges_are_gone", privileges_are_gone),
    ("a_user_has_no_way_back", a_user_has_no_way_back),
    ("other_threads_are_refused", other_threads_are_refused),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, name, folder] = &arguments[..]
        && flag == "--case"
    {
        let case = CASES.iter().find(|(known, _)| known == name).expect("a case of that name");
        case.1(Path::new(folder));
        return ExitCode::SUCCESS;
    }
    let wanted = arguments.iter().find(|argument| !argument.starts_with('-'));
    let wanted = |name: &str| wanted.is_none_or(|part| name.contains(part.as_str()));
    let failed = CASES.iter().filter(|(name, _)| wanted(name) && !passes(name)).count();
    println!("{failed} cases failed");
    ExitCode::from(u8::from(failed > 0))
}

fn passes(name: &str) -> bool {
    let folder = std::env::temp_dir().join(format!("netsum-sandbox-{}-{name}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let own = std::env::current_exe().unwrap();
    let status = Command::new(own).args(["--case", name]).arg(&folder).status().unwrap();
    fs::remove_dir_all(&folder).unwrap();
    println!("test {name} ... {}", if status.success() { "ok" } else { "FAILED" });
    status.success()
}

fn confine(daemon: Daemon, writable: Option<PathBuf>) {
    let writable = writable.into_iter().collect();
    let sandbox = Sandbox { daemon, user: None, keep: Vec::new(), writable };
    sandbox.enter().unwrap();
}

fn refused(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOSYS) || error.kind() == ErrorKind::PermissionDenied
}

fn programs_cannot_be_started(_: &Path) {
    confine(Daemon::Controller, None);
    let error = Command::new("/bin/true").spawn().unwrap_err();
    assert!(refused(&error), "{error}");
    let path = c"/bin/true".as_ptr();
    // SAFETY: a path and two empty lists that end with null; the call returns only if it fails.
    let result =
        unsafe { libc::execve(path, [std::ptr::null()].as_ptr(), [std::ptr::null()].as_ptr()) };
    assert_eq!(result, -1);
    assert!(refused(&io::Error::last_os_error()));
    // SAFETY: if it worked, the child would end at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        std::process::exit(0);
    }
    assert_eq!(child, -1);
    assert!(refused(&io::Error::last_os_error()));
}

fn processes_cannot_be_traced(_: &Path) {
    confine(Daemon::Switch, None);
    // SAFETY: requests without memory of this process.
    for result in unsafe {
        [
            libc::ptrace(libc::PTRACE_TRACEME),
            libc::ptrace(libc::PTRACE_SEIZE, libc::getppid(), 0, 0),
            libc::kill(libc::getppid(), 0).into(),
            libc::unshare(libc::CLONE_NEWUSER).into(),
        ]
    } {
        assert_eq!(result, -1);
    }
    assert!(refused(&io::Error::last_os_error()));
}

fn memory_cannot_become_code(_: &Path) {
    confine(Daemon::Switch, None);
    let (flags, code) =
        (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::PROT_READ | libc::PROT_EXEC);
    let map = |protection| {
        // SAFETY: new memory at an address that the system chooses.
        unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0) }
    };
    assert_eq!(map(code), libc::MAP_FAILED);
    let memory = map(libc::PROT_READ);
    assert_ne!(memory, libc::MAP_FAILED);
    // SAFETY: the page mapped above, which nothing else uses.
    assert_eq!(unsafe { libc::mprotect(memory, 4096, code) }, -1);
}

fn sockets_of_other_families_are_refused(_: &Path) {
    confine(Daemon::Switch, None);
    for family in [libc::AF_PACKET, libc::AF_ALG, libc::AF_VSOCK, libc::AF_BLUETOOTH] {
        // SAFETY: numbers only.
        assert_eq!(unsafe { libc::socket(family, libc::SOCK_RAW, 0) }, -1);
        let error = io::Error::last_os_error();
        assert_eq!(error.raw_os_error(), Some(libc::ENOSYS), "family {family}: {error}");
    }
}

fn threads_and_sockets_work(_: &Path) {
    confine(Daemon::Controller, None);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let named = std::thread::Builder::new().name("named".to_owned());
    let thread = named.spawn(move || TcpStream::connect(address).is_ok()).unwrap();
    listener.accept().unwrap();
    assert!(thread.join().unwrap());
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.send_to(b"hello", socket.local_addr().unwrap()).unwrap();
    let caught = std::thread::spawn(|| panic!("a panic in a confined process")).join();
    assert!(caught.is_err());
    assert!(netsum_net::mtu_of("127.0.0.1".parse().unwrap()).is_some());
}

fn files_are_written_in_their_folder_only(folder: &Path) {
    let (inside, outside) = (folder.join("inside"), folder.join("outside"));
    fs::create_dir(&inside).unwrap();
    fs::write(&outside, "before").unwrap();
    // Before Linux 5.13, or where it is switched off, there is no Landlock; the sandbox warns then.
    const VERSION: libc::c_long = 1;
    let nothing = std::ptr::null::<u8>();
    // SAFETY: asks for the version and takes no memory.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0, VERSION) };
    let supported = version > 0;
    confine(Daemon::Controller, Some(inside.clone()));
    fs::write(inside.join("store"), "data").unwrap();
    fs::remove_file(inside.join("store")).unwrap();
    assert_eq!(fs::read_to_string(&outside).unwrap(), "before", "reading is allowed");
    println!("Landlock, version {version}");
    if supported {
        assert!(refused(&fs::write(&outside, "after").unwrap_err()));
        assert!(refused(&fs::write(folder.join("new"), "").unwrap_err()));
    }
}

/// A line of the process's own status.
fn status(name: &str) -> String {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap().trim().to_owned()
}

fn privileges_are_gone(_: &Path) {
    confine(Daemon::Switch, None);
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(u64::from_str_radix(&status(set), 16), Ok(0), "{set}");
    }
    assert_eq!((status("NoNewPrivs"), status("Seccomp")), ("1".to_owned(), "2".to_owned()));
}

fn a_user_has_no_way_back(_: &Path) {
    let root = status("Uid").starts_with('0');
    let user = User::find("nobody").unwrap();
    let sandbox = Sandbox {
        daemon: Daemon::Switch,
        user: Some(user),
        keep: Vec::new(),
        writable: Vec::new(),
    };
    if !root {
        let error = sandbox.enter().unwrap_err().to_string();
        assert!(error.contains("start the process as root, or without --user"), "{error}");
        return;
    }
    sandbox.enter().unwrap();
    let ids = status("Uid");
    assert!(ids.split_whitespace().all(|id| id != "0"), "{ids}");
    assert!(!status("Groups").split_whitespace().any(|group| group == "0"));
    assert_eq!(u64::from_str_radix(&status("CapEff"), 16), Ok(0));
    // SAFETY: a number only.
    assert_eq!(unsafe { libc::setuid(0) }, -1);
    assert!(fs::read("/etc/shadow").is_err());
}

fn other_threads_are_refused(_: &Path) {
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || receiver.recv().is_err());
    let sandbox =
        Sandbox { daemon: Daemon::Switch, user: None, keep: Vec::new(), writable: Vec::new() };
    let error = sandbox.enter().unwrap_err().to_string();
    assert!(error.contains("2 threads"), "{error}");
    drop(sender);
    assert!(thread.join().unwrap());
}
