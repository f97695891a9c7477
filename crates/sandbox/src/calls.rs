//! System calls that daemons need. All others fail as on a system without them (`ENOSYS`), so that libraries fall back
//! to what they know of.
//!
//! The lists were derived with strace from daemons under load, with and without credentials, renewals, metrics and a
//! store on disk. Beyond them they have what libraries call on errors, at a panic, and on other versions of libc.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::SeccompCmpArgLen::Dword;
use seccompiler::SeccompCmpOp::{Eq, MaskedEq};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

use crate::Daemon;

/// Calls of all daemons, with any arguments.
const COMMON: &[c_long] = &[
    // memory
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    // threads, signals, time
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_set_tid_address,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getcpu,
    libc::SYS_membarrier,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_getrusage,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    // descriptors
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_fcntl,
    libc::SYS_ppoll,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    libc::SYS_pipe2,
    // files, which Landlock protects from writes
    libc::SYS_openat,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    // sockets
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_shutdown,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
    // the machine
    libc::SYS_getrandom,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_prlimit64,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
];

/// Older forms of the same calls, which newer architectures lack.
#[cfg(target_arch = "x86_64")]
const OLDER: &[c_long] = &[
    libc::SYS_poll,
    libc::SYS_epoll_wait,
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_pipe,
    libc::SYS_arch_prctl,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[c_long] = &[];

/// Calls of the controller's store.
const STORE: &[c_long] = &[
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_unlinkat,
    libc::SYS_fchmod,
    libc::SYS_fchown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
];

/// Requests of `ioctl`: what a terminal is asked, what waits in a socket, and modes of descriptors. Other requests could
/// type into the terminal (`TIOCSTI`).
const IOCTLS: &[libc::Ioctl] =
    &[libc::TCGETS, libc::TIOCGWINSZ, libc::TIOCOUTQ, libc::FIONREAD, libc::FIONBIO, libc::FIOCLEX];

/// Families of sockets: Unix, IPv4 and IPv6, and the tables of interfaces.
const FAMILIES: &[libc::c_int] = &[libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// Options of `prctl`: names of threads.
const PRCTLS: &[libc::c_int] = &[libc::PR_SET_NAME, libc::PR_GET_NAME];

/// Filters the system calls of the calling thread and of those that it starts. Errors: the reason why it does not.
pub(crate) fn restrict(daemon: Daemon) -> Result<(), String> {
    let program = program(daemon).map_err(|error| error.to_string())?;
    seccompiler::apply_filter(&program).map_err(|error| error.to_string())
}

fn program(daemon: Daemon) -> Result<BpfProgram, seccompiler::BackendError> {
    let (unknown, known) = (SeccompAction::Errno(libc::ENOSYS as u32), SeccompAction::Allow);
    let architecture = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules(daemon)?, unknown, known, architecture)?.try_into()
}

/// By number: allowed arguments; none: all.
fn rules(daemon: Daemon) -> Result<BTreeMap<i64, Vec<SeccompRule>>, seccompiler::BackendError> {
    let special = match daemon {
        Daemon::Controller => STORE,
        Daemon::Switch => &[],
        Daemon::InKernelSwitch => &[libc::SYS_bpf],
    };
    let plain = [COMMON, OLDER, special].concat();
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        plain.into_iter().map(|call| (call, Vec::new())).collect();
    let of_arguments = |place: u8, values: &[u64]| {
        values.iter().map(|&value| argument(place, Eq, value)).collect::<Result<Vec<_>, _>>()
    };
    let numbers = |values: &[libc::c_int]| values.iter().map(|&v| v as u64).collect::<Vec<_>>();
    #[allow(clippy::unnecessary_cast)] // Its width differs between C libraries.
    let requests: Vec<u64> = IOCTLS.iter().map(|&request| request as u64).collect();
    rules.insert(libc::SYS_ioctl, of_arguments(1, &requests)?);
    rules.insert(libc::SYS_prctl, of_arguments(0, &numbers(PRCTLS))?);
    rules.insert(libc::SYS_socket, of_arguments(0, &numbers(FAMILIES))?);
    rules.insert(libc::SYS_socketpair, of_arguments(0, &numbers(&[libc::AF_UNIX]))?);
    // Signals to the own process, such as that of an abort.
    rules.insert(libc::SYS_tgkill, of_arguments(0, &[std::process::id().into()])?);
    // Threads, no processes. `clone3` has its flags in memory, which a filter cannot see; libc falls back to `clone`.
    let threads = libc::CLONE_THREAD as u64;
    rules.insert(libc::SYS_clone, vec![argument(0, MaskedEq(threads), threads)?]);
    // No new code.
    let executable = libc::PROT_EXEC as u64;
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        rules.insert(call, vec![argument(2, MaskedEq(executable), 0)?]);
    }
    Ok(rules)
}

fn argument(
    place: u8,
    comparison: SeccompCmpOp,
    value: u64,
) -> Result<SeccompRule, seccompiler::BackendError> {
    SeccompRule::new(vec![SeccompCondition::new(place, Dword, comparison, value)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_daemon_has_a_filter_that_names_no_call_twice() {
        for daemon in [Daemon::Controller, Daemon::Switch, Daemon::InKernelSwitch] {
            assert!(program(daemon).is_ok());
        }
        let mut all = [COMMON, OLDER, STORE].concat();
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn calls_that_start_programs_or_look_into_others_are_in_no_list() {
        let forbidden = [
            libc::SYS_execve,
            libc::SYS_execveat,
            libc::SYS_clone3,
            libc::SYS_ptrace,
            libc::SYS_process_vm_readv,
            libc::SYS_process_vm_writev,
            libc::SYS_kill,
            libc::SYS_setns,
            libc::SYS_unshare,
            libc::SYS_mount,
            libc::SYS_init_module,
            libc::SYS_keyctl,
            libc::SYS_io_uring_setup,
            libc::SYS_userfaultfd,
            libc::SYS_perf_event_open,
            libc::SYS_memfd_create,
        ];
        for daemon in [Daemon::Controller, Daemon::Switch, Daemon::InKernelSwitch] {
            let rules = rules(daemon).unwrap();
            assert!(forbidden.iter().all(|call| !rules.contains_key(call)));
            assert_eq!(rules.contains_key(&libc::SYS_bpf), daemon == Daemon::InKernelSwitch);
        }
    }
}
