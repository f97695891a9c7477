//! Deterministic simulation of the whole system: the controller's decisions, the machines of switches, servers and
//! workers, and the hand-overs of the ranks run under a simulated clock, network and store, with faults drawn from a
//! seed.
//!
//! Owns: the simulated world around those machines, the faults, the invariant checks, the minimiser. Must not know:
//! sockets, threads, the wall clock. No other crate depends on it. Start reading at [`Scenario`] (the input of a run)
//! and [`run`]. docs/simulation-testing.md describes what is simulated.

mod aggregator;
mod dataplane;
pub mod fault;
pub mod minimise;
mod oracle;
mod random;
pub mod report;
pub mod scenario;
mod store;
mod trace;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use report::{Class, Report, Violation};
pub use scenario::Scenario;

/// Runs a scenario. Panics of the machines are violations of class [`Class::Crash`].
pub fn run(scenario: &Scenario) -> Report {
    traced(scenario, false).0
}

/// As [`run`], and returns the trace.
pub fn run_with_trace(scenario: &Scenario) -> (Report, Vec<String>) {
    traced(scenario, true)
}

fn traced(scenario: &Scenario, lines: bool) -> (Report, Vec<String>) {
    crash::watch();
    let mut world = world::World::new(scenario, lines);
    let ended = catch_unwind(AssertUnwindSafe(|| world.run()));
    if let Err(panic) = ended {
        let what = crash::message(panic.as_ref());
        world.violation(Class::Crash, "no component panics", what);
    }
    world.into_report()
}

/// Catches panics of machines and records their location without printing it for each seed.
mod crash {
    use std::any::Any;
    use std::cell::RefCell;
    use std::sync::Once;

    thread_local! {
        static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
        static DEPTH: RefCell<bool> = const { RefCell::new(false) };
    }

    /// Records panics of this thread from now on instead of printing them.
    pub fn watch() {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                if DEPTH.with(|watched| *watched.borrow()) {
                    let place = info.location().map(|l| format!("{}:{}", l.file(), l.line()));
                    PLACE.with(|kept| *kept.borrow_mut() = place);
                } else {
                    before(info);
                }
            }));
        });
        DEPTH.with(|watched| *watched.borrow_mut() = true);
    }

    /// Message and location of a caught panic; ends the recording of this thread's panics.
    pub fn message(panic: &(dyn Any + Send)) -> String {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        let place = PLACE.with(|kept| kept.borrow_mut().take()).unwrap_or_default();
        format!("{text} ({place})")
    }
}
