//! The clock that drivers pass to state machines, and the processor time of threads.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ops::AddAssign;
use std::time::{Duration, Instant};

use netsum_proto::Time;

/// Monotonic time since the clock was created.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Instant,
}

impl Clock {
    pub(crate) fn start() -> Clock {
        Clock { origin: Instant::now() }
    }

    pub(crate) fn now(&self) -> Time {
        Time(self.origin.elapsed().as_nanos() as u64)
    }
}

/// Processor time of one thread since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// Time in this program.
    pub user: Duration,
    /// Time in the kernel: for a data thread, the network stack.
    pub system: Duration,
}

impl AddAssign for CpuTime {
    fn add_assign(&mut self, other: CpuTime) {
        self.user += other.user;
        self.system += other.system;
    }
}

impl CpuTime {
    /// The processor time of the calling thread.
    pub fn of_this_thread() -> CpuTime {
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the structure is writable; it is all integers, so valid even if the call failed.
        let usage = unsafe {
            libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
            usage.assume_init()
        };
        let duration = |t: libc::timeval| {
            Duration::new(t.tv_sec as u64, 0) + Duration::from_micros(t.tv_usec as u64)
        };
        CpuTime { user: duration(usage.ru_utime), system: duration(usage.ru_stime) }
    }
}
