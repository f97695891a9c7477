//! The system's accounts of processes and threads, from /proc.

use std::fs;
use std::path::Path;
use std::time::Instant;

use serde::Serialize;

/// A thread over the time of a sample.
#[derive(Clone, Debug, Serialize)]
pub struct ThreadSample {
    /// The system's number; the main thread has that of the process.
    pub tid: u32,
    /// Its name.
    pub name: String,
    /// State as the system names it: R runs, S sleeps, D waits for a device, T is stopped.
    pub state: char,
    /// Share of the sample during which it ran.
    pub running: f64,
    /// Share of the sample during which it could have run, and had no processor.
    pub delayed: f64,
    /// The system call that it is in, if the system says so: its name and the file that it is about.
    pub call: Option<String>,
}

/// A process of this host.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessState {
    /// Its number.
    pub pid: u32,
    /// State of its main thread; `None`: there is no such process.
    pub state: Option<char>,
}

/// How busy the host is.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Load {
    /// Processors.
    pub processors: usize,
    /// Threads that run or wait for a processor.
    pub runnable: u32,
    /// Share of the last ten seconds during which some thread waited for a processor, if the kernel counts that.
    pub pressure: Option<f64>,
}

/// Times of a thread, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Times {
    ran: u64,
    waited: u64,
}

/// The threads of this process over the time of a sample.
#[derive(Debug)]
pub(super) struct Threads {
    /// Those of the program, the main thread first.
    pub(super) program: Vec<ThreadSample>,
    /// Of this library's threads the one that waited longest for a processor.
    pub(super) library: Option<ThreadSample>,
}

/// Begins a sample of this process's threads.
pub(super) struct Sample {
    at: Instant,
    before: Vec<(u32, Times)>,
}

impl Sample {
    pub(super) fn begin() -> Sample {
        let threads = threads_of_this();
        let before = threads.into_iter().filter_map(|tid| Some((tid, times(tid)?))).collect();
        Sample { at: Instant::now(), before }
    }

    /// The threads since the beginning.
    pub(super) fn end(self) -> Threads {
        let elapsed_ns = self.at.elapsed().as_nanos().max(1) as f64;
        let main = std::process::id();
        let (mut program, mut library) = (Vec::new(), None::<ThreadSample>);
        for (tid, before) in self.before {
            let Some((name, state)) = state_of(Path::new(&format!("/proc/self/task/{tid}/stat")))
            else {
                continue;
            };
            let is_ours = tid != main && name.starts_with("netsum");
            let now = times(tid).unwrap_or(before);
            let share =
                |now: u64, before: u64| (now.saturating_sub(before) as f64 / elapsed_ns).min(1.0);
            let call = if is_ours { None } else { system_call(tid) };
            let running = share(now.ran, before.ran);
            let delayed = share(now.waited, before.waited);
            let found = ThreadSample { tid, name, state, running, delayed, call };
            match (is_ours, &library) {
                (false, _) => program.push(found),
                (true, Some(most)) if most.delayed >= delayed => {}
                (true, _) => library = Some(found),
            }
        }
        program.sort_by(|a, b| {
            (a.tid != main).cmp(&(b.tid != main)).then(b.running.total_cmp(&a.running))
        });
        program.truncate(THREADS_MAX);
        Threads { program, library }
    }
}

/// The state of a process of this host.
pub(super) fn process(pid: u32) -> ProcessState {
    let found = state_of(Path::new(&format!("/proc/{pid}/stat")));
    let is_gone = |state: char| matches!(state, 'Z' | 'X');
    ProcessState { pid, state: found.map(|(_, state)| state).filter(|&state| !is_gone(state)) }
}

/// How busy this host is.
pub(super) fn load() -> Load {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let runnable = fs::read_to_string("/proc/loadavg")
        .ok()
        .and_then(|text| text.split_whitespace().nth(3)?.split('/').next()?.parse().ok());
    let pressure = fs::read_to_string("/proc/pressure/cpu").ok().and_then(|text| {
        let text = text.split("avg10=").nth(1)?.split_whitespace().next()?.parse::<f64>();
        text.ok().map(|percent| percent / 100.0)
    });
    Load { processors, runnable: runnable.unwrap_or(0), pressure }
}

fn threads_of_this() -> Vec<u32> {
    let entries = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Name and state from a file `stat`; the name is in parentheses and may contain any character.
fn state_of(stat: &Path) -> Option<(String, char)> {
    let text = fs::read_to_string(stat).ok()?;
    let (start, end) = (text.find('(')?, text.rfind(')')?);
    let state = text.get(end + 1..)?.trim_start().chars().next()?;
    Some((text.get(start + 1..end)?.to_owned(), state))
}

fn times(tid: u32) -> Option<Times> {
    let text = fs::read_to_string(format!("/proc/self/task/{tid}/schedstat")).ok()?;
    let mut words = text.split_whitespace().map(str::parse);
    Some(Times { ran: words.next()?.ok()?, waited: words.next()?.ok()? })
}

/// "read of /path", or the name of the call.
fn system_call(tid: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/self/task/{tid}/syscall")).ok()?;
    let mut words = text.split_whitespace();
    let number: i64 = words.next()?.parse().ok()?;
    let &(_, name, has_file) = CALLS.iter().find(|(known, ..)| *known == number)?;
    let first =
        words.next().and_then(|word| i64::from_str_radix(word.trim_start_matches("0x"), 16).ok());
    let file =
        first.filter(|_| has_file).and_then(|fd| fs::read_link(format!("/proc/self/fd/{fd}")).ok());
    Some(match file {
        Some(file) => format!("{name} of {}", file.display()),
        None => name.to_owned(),
    })
}

/// System calls that a waiting program is in: number, name, whether the first argument is a file.
const CALLS: [(i64, &str, bool); 14] = [
    (libc::SYS_read, "read", true),
    (libc::SYS_readv, "read", true),
    (libc::SYS_pread64, "read", true),
    (libc::SYS_write, "write", true),
    (libc::SYS_openat, "open", false),
    (libc::SYS_recvfrom, "receive", true),
    (libc::SYS_recvmsg, "receive", true),
    (libc::SYS_ppoll, "poll", false),
    (libc::SYS_pselect6, "poll", false),
    (libc::SYS_epoll_pwait, "poll", false),
    (libc::SYS_clock_nanosleep, "sleep", false),
    (libc::SYS_nanosleep, "sleep", false),
    (libc::SYS_futex, "lock", false),
    (libc::SYS_wait4, "wait for a child", false),
];

/// Threads in an answer.
const THREADS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_thread_that_reads_and_one_that_computes_are_told_apart() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let flag = stop.clone();
        let reads = std::thread::Builder::new().name("reads".into()).spawn(move || {
            let _ = reader.read(&mut [0]);
        });
        let computes = std::thread::Builder::new()
            .name("computes".into())
            .spawn(move || while !flag.load(std::sync::atomic::Ordering::Relaxed) {});
        let begun = Instant::now();
        let found = loop {
            let sample = Sample::begin();
            std::thread::sleep(Duration::from_millis(50));
            let threads = sample.end().program;
            let of = |name: &str| threads.iter().find(|thread| thread.name == name).cloned();
            if let (Some(reads), Some(computes)) = (of("reads"), of("computes"))
                && reads.call.is_some()
                // The sample may have begun while the thread was on its way to its read.
                && reads.running == 0.0
                && computes.running > 0.0
            {
                break (reads, computes);
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{threads:?}");
        };
        assert!(found.0.call.as_deref().unwrap().starts_with("read of pipe:"), "{found:?}");
        assert_eq!(found.0.state, 'S');
        assert!(found.1.call.is_none());
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        drop(writer);
        reads.unwrap().join().unwrap();
        computes.unwrap().join().unwrap();
    }

    #[test]
    fn threads_of_this_library_are_no_threads_of_the_program() {
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let ours = std::thread::Builder::new().name("netsum-test".into());
        let ours = ours.spawn(move || receiver.recv()).unwrap();
        let sample = Sample::begin();
        let Threads { program, library } = sample.end();
        assert!(library.unwrap().name.starts_with("netsum"));
        assert!(program.iter().all(|thread| thread.name != "netsum-test"));
        drop(sender);
        ours.join().unwrap().unwrap_err();
    }

    #[test]
    fn processes_are_found_by_number() {
        assert!(process(std::process::id()).state.is_some());
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        while process(pid).state.is_some() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert_eq!(process(pid).state, None);
        let stat = std::env::temp_dir().join(format!("netsum-stat-{}", std::process::id()));
        fs::write(&stat, "7 (a ) T (b) S 1 2").unwrap();
        assert_eq!(state_of(&stat), Some(("a ) T (b".to_owned(), 'S')));
        fs::remove_file(stat).unwrap();
    }
}
