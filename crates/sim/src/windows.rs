//! Conservative parallel simulation: regions of the network run on several threads, in windows of time in which they
//! cannot affect each other.
//!
//! A window is as long as the shortest link delay: a packet sent in it to another region arrives after its end. At the
//! end of a window a region hands over the packets that arrive before the end of the next one, and posts the time of
//! its next event. The next window begins with the earliest posted event, once all regions have finished this one.
//! Every region therefore processes its events in order of time, and the results equal those of one thread.
//!
//! Each thread has a home region, whose memory stays in its core's cache. If a thread is preempted, another thread
//! takes over its region until it returns. A thread therefore delays the others only if it loses its core within a
//! window.

use std::hint::spin_loop;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread;

use crate::aggregation::{Local, Mail, Payload};
use crate::hosts::HostSide;

/// Simulates `span`, in picoseconds, on the given number of threads; everything before `span` is done. `lookahead_ps`
/// is above 0. No host timer in `span` concerns another region.
pub(crate) fn run<'a, P: Payload>(
    hosts: HostSide<'a, P>,
    others: impl Iterator<Item = Local<'a, P>>,
    span: Range<u64>,
    lookahead_ps: u64,
) {
    let sides = std::iter::once(Side::Hosts(hosts)).chain(others.map(Side::Switches));
    let windows = &Windows::new(sides.collect(), span, lookahead_ps);
    thread::scope(|scope| {
        (1..windows.regions.len()).for_each(|thread| {
            scope.spawn(move || windows.work(thread));
        });
        windows.work(0);
    });
}

/// The contents of a region.
enum Side<'a, P: Payload> {
    Hosts(HostSide<'a, P>),
    Switches(Local<'a, P>),
}

/// State shared by the threads.
struct Windows<'a, P: Payload> {
    regions: Vec<Apart<Region<'a, P>>>,
    /// Packets from each region to each, double-buffered by window.
    mail: [Vec<Mutex<Mail<P>>>; 2],
    lookahead_ps: u64,
    /// Number of finished regions, summed over all windows.
    done: Apart<AtomicU64>,
    /// The last window, once it is known.
    last: AtomicU64,
    failed: AtomicBool,
    /// Number of threads that sleep until a window is done.
    sleepers: AtomicU64,
    asleep: Mutex<()>,
    wake: Condvar,
}

struct Region<'a, P: Payload> {
    /// The last window in which a thread took the region, times `THREADS`, plus the thread's number.
    taken: AtomicU64,
    posts: [Post; 2],
    work: Mutex<RegionProgress<'a, P>>,
}

struct RegionProgress<'a, P: Payload> {
    side: Side<'a, P>,
    /// Everything before this time is done in the region.
    reached_ps: u64,
    /// End of the run in this region's view.
    end_ps: u64,
}

/// What a region publishes at the end of a window; double-buffered by window.
#[derive(Default)]
struct Post {
    /// Time of the region's next event, including packets that it handed over.
    next_ps: AtomicU64,
    /// End of the run.
    end_ps: AtomicU64,
}

/// Aligned so that it shares no cache line.
#[derive(Default)]
#[repr(align(128))]
struct Apart<T>(T);

impl<'a, P: Payload> Windows<'a, P> {
    fn new(sides: Vec<Side<'a, P>>, span: Range<u64>, lookahead_ps: u64) -> Self {
        let pairs = sides.len() * sides.len();
        let mail = || std::iter::repeat_with(Mutex::default).take(pairs).collect();
        let region = |(number, side)| {
            let work = RegionProgress { side, reached_ps: span.start, end_ps: span.end };
            Apart(Region {
                taken: AtomicU64::new(number),
                posts: Default::default(),
                work: Mutex::new(work),
            })
        };
        Windows {
            regions: (0..).zip(sides).map(region).collect(),
            mail: [mail(), mail()],
            lookahead_ps,
            done: Apart::default(),
            last: AtomicU64::new(u64::MAX),
            failed: AtomicBool::new(false),
            sleepers: AtomicU64::new(0),
            asleep: Mutex::default(),
            wake: Condvar::new(),
        }
    }

    /// Body of a thread; its home region has the same number.
    fn work(&self, thread: usize) {
        let _watch = Watch(self);
        let count = self.regions.len();
        loop {
            let window = self.done.0.load(Ordering::SeqCst) / count as u64 + 1;
            if window > self.last.load(Ordering::SeqCst) {
                return;
            }
            self.try_advance(thread, window, thread);
            let others = || (0..count).filter(|&region| region != thread);
            // Regions whose own thread did not run the previous window.
            for region in others().filter(|&region| self.was_taken_by(region, thread)) {
                self.try_advance(region, window, thread);
            }
            if !self.spins_until_done(window) {
                others().for_each(|region| self.try_advance(region, window, thread));
                if !self.spins_until_done(window) {
                    self.sleep_until_done(window);
                }
            }
            assert!(!self.failed.load(Ordering::SeqCst), "another thread has failed");
        }
    }

    /// Whether a thread was the last to take a region.
    fn was_taken_by(&self, region: usize, thread: usize) -> bool {
        self.regions[region].0.taken.load(Ordering::Relaxed) % THREADS == thread as u64
    }

    /// Runs a region's part of a window, unless another thread runs it or has run it.
    fn try_advance(&self, region: usize, window: u64, thread: usize) {
        let taken = &self.regions[region].0.taken;
        let last = taken.load(Ordering::Relaxed);
        let mine = window * THREADS + thread as u64;
        let (ours, seen) = (Ordering::SeqCst, Ordering::Relaxed);
        if last / THREADS < window && taken.compare_exchange(last, mine, ours, seen).is_ok() {
            self.advance(region, window);
            let done = self.done.0.fetch_add(1, Ordering::SeqCst) + 1;
            if done.is_multiple_of(self.regions.len() as u64) {
                self.wake_all();
            }
        }
    }

    /// Runs a region's part of a window. The first window is empty and only posts the next event; the last has nothing
    /// left to do.
    fn advance(&self, number: usize, window: u64) {
        let [turn, before] = [window as usize % 2, (window as usize + 1) % 2];
        let mut work = locked(&self.regions[number].0.work);
        if window > 1 {
            self.take(number, work.side.local(), before);
            // Posts are not written until this region is done.
            let posts = || self.regions.iter().map(|Apart(region)| &region.posts[before]);
            let least = |of: fn(&Post) -> &AtomicU64| {
                posts().map(|post| of(post).load(Ordering::SeqCst)).min().expect("one is ours")
            };
            let begin_ps = least(|post| &post.next_ps);
            work.end_ps = work.end_ps.min(least(|post| &post.end_ps));
            assert!(begin_ps >= work.reached_ps, "a window begins before the last one has ended");
            let end_ps = work.end_ps;
            if begin_ps >= end_ps {
                work.side.advance(end_ps - 1);
                // All regions reach this in the same window, and none starts the next window before.
                self.last.store(window, Ordering::SeqCst);
                return;
            }
            work.reached_ps = begin_ps.saturating_add(self.lookahead_ps).min(end_ps);
            let until_ps = work.reached_ps - 1;
            work.side.advance(until_ps);
            if cfg!(debug_assertions) {
                work.side.local().audit();
            }
        }
        let post = &self.regions[number].0.posts[turn];
        post.end_ps.store(work.side.end_ps(), Ordering::SeqCst);
        let before_ps = work.reached_ps.saturating_add(self.lookahead_ps);
        let next_ps = self.hand_over(number, work.side.local(), turn, before_ps);
        post.next_ps.store(next_ps, Ordering::SeqCst);
    }

    /// Hands over packets that arrive in other regions before `before_ps`; returns the time of the next event.
    fn hand_over(&self, region: usize, local: &mut Local<P>, turn: usize, before_ps: u64) -> u64 {
        let next_ps = local.net.export(before_ps);
        for to in (0..self.regions.len()).filter(|&to| to != region) {
            local.send(to, &mut locked(&self.mail[turn][region * self.regions.len() + to]));
        }
        next_ps
    }

    fn take(&self, region: usize, local: &mut Local<P>, turn: usize) {
        for from in (0..self.regions.len()).filter(|&from| from != region) {
            local.receive(&mut locked(&self.mail[turn][from * self.regions.len() + region]));
        }
    }

    fn is_done(&self, window: u64) -> bool {
        let all = window * self.regions.len() as u64;
        self.done.0.load(Ordering::SeqCst) >= all || self.failed.load(Ordering::SeqCst)
    }

    /// Spins until the window ends, up to a limit; returns whether it ended.
    fn spins_until_done(&self, window: u64) -> bool {
        (0..PATIENCE).any(|_| {
            spin_loop();
            self.is_done(window)
        })
    }

    fn sleep_until_done(&self, window: u64) {
        let mut guard = locked(&self.asleep);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while !self.is_done(window) {
            guard = self.wake.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    fn wake_all(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(locked(&self.asleep));
            self.wake.notify_all();
        }
    }
}

impl<'a, P: Payload> Side<'a, P> {
    fn local(&mut self) -> &mut Local<'a, P> {
        match self {
            Side::Hosts(hosts) => &mut hosts.local,
            Side::Switches(local) => local,
        }
    }

    /// Advances up to and including `until_ps`.
    fn advance(&mut self, until_ps: u64) {
        match self {
            Side::Hosts(hosts) => {
                let control = hosts.run(until_ps);
                debug_assert!(control.is_none(), "a window holds what concerns all regions");
            }
            Side::Switches(local) => local.run(until_ps),
        }
    }

    /// End of the run, if it is in this region.
    fn end_ps(&self) -> u64 {
        match self {
            Side::Hosts(hosts) => hosts.hosts.stop_at_ps.saturating_add(1),
            Side::Switches(_) => u64::MAX,
        }
    }
}

/// Number of polls, some tens of microseconds, before a thread takes over another region, and again before it sleeps.
/// Longer than threads usually wait for each other: taking over loses the contents of a core's cache.
const PATIENCE: u32 = 2_000;
/// Exceeds the number of threads.
const THREADS: u64 = 1 << 8;

/// Wakes the other threads if this one panics.
struct Watch<'w, 'a, P: Payload>(&'w Windows<'a, P>);

impl<P: Payload> Drop for Watch<'_, '_, P> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.failed.store(true, Ordering::SeqCst);
            self.0.wake_all();
        }
    }
}

/// Ignores poisoning: a thread that panicked has set `failed`, and its data are not used.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
