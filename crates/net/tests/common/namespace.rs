//! Network namespaces, each with its own thread.

#![allow(unsafe_code)]

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Sender, channel};

type Task = Box<dyn FnOnce() + Send>;

/// A namespace; it ends with the last thread that was started in it.
pub struct Namespace {
    work: Option<Sender<Task>>,
    thread: Option<std::thread::JoinHandle<()>>,
    tid: i32,
}

impl Namespace {
    /// `None`, with a message, if not allowed.
    pub fn new() -> Option<Namespace> {
        let (work, inbox) = channel::<Task>();
        let (born, birth) = channel();
        let thread = std::thread::spawn(move || {
            // SAFETY: affects this thread only, and accesses no memory.
            let made = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
            let error = std::io::Error::last_os_error();
            // SAFETY: no arguments.
            born.send(if made { Ok(unsafe { libc::gettid() }) } else { Err(error) }).unwrap();
            if made {
                inbox.into_iter().for_each(|work| work());
            }
        });
        match birth.recv().unwrap() {
            Ok(tid) => {
                let namespace = Namespace { work: Some(work), thread: Some(thread), tid };
                namespace.ip(&["link set lo up".into()]).then_some(namespace)
            }
            Err(error) => {
                println!("skipped: no network namespace: {error}");
                None
            }
        }
    }

    /// Runs `what` in the namespace, and waits for it. Threads that it starts stay in the namespace.
    pub fn run<T: Send + 'static>(&self, what: impl FnOnce() -> T + Send + 'static) -> T {
        let (reply, answer) = channel();
        let work = Box::new(move || {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(what));
            reply.send(outcome).unwrap();
        });
        self.work.as_ref().unwrap().send(work).unwrap();
        answer.recv().unwrap().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Runs `ip -batch` in the namespace. False, with a message, if it fails.
    pub fn ip(&self, lines: &[String]) -> bool {
        let text = lines.join("\n");
        self.run(move || {
            let ip = Command::new("ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn();
            let done = ip.and_then(|mut ip| {
                ip.stdin.take().expect("it is piped").write_all(text.as_bytes())?;
                ip.wait()
            });
            let fine = done.as_ref().is_ok_and(|status| status.success());
            if !fine {
                println!("skipped: `ip` cannot do {text:?}: {done:?}");
            }
            fine
        })
    }

    /// A pair of interfaces between two namespaces, each end with the addresses of both, and able to receive what a
    /// driver's hook sends.
    pub fn link(
        &self,
        name: &str,
        own: &str,
        other: &Namespace,
        name_there: &str,
        theirs: &str,
    ) -> bool {
        let pair = format!("link add {name} type veth peer name {name_there} netns {}", other.tid);
        let up = |name: &str, own: &str, theirs: &str| {
            vec![
                format!("addr add {own}/32 peer {theirs} dev {name}"),
                format!("link set {name} up"),
            ]
        };
        let there = up(name_there, theirs, own);
        let made = self.ip(&[vec![pair], up(name, own, theirs)].concat()) && other.ip(&there);
        let (name, name_there) = (name.to_owned(), name_there.to_owned());
        made && self.run(move || join_on_receipt(&name))
            && other.run(move || join_on_receipt(&name_there))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.work.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// `ethtool -K NAME gro on`: only then does this end of a pair accept frames from the other's hook.
fn join_on_receipt(name: &str) -> bool {
    #[repr(C)]
    struct Value {
        command: u32,
        data: u32,
    }
    const ETHTOOL_SGRO: u32 = 0x2c;
    const SIOCETHTOOL: libc::c_ulong = 0x8946;
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    let mut value = Value { command: ETHTOOL_SGRO, data: 1 };
    // SAFETY: integers and pointers, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
    // SAFETY: request and value live through the call and have the types of this command.
    let set = unsafe { libc::ioctl(fd, SIOCETHTOOL as _, &raw mut request) } == 0;
    if !set {
        println!("skipped: gro on {name}: {}", std::io::Error::last_os_error());
    }
    set
}
