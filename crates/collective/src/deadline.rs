//! Deadlines.

use std::time::{Duration, Instant};

/// `timeout` from now; the far future if the clock cannot represent it.
pub(crate) fn deadline(timeout: Duration) -> Instant {
    after(Instant::now(), timeout)
}

/// `timeout` from `now`; the far future if the clock cannot represent it.
pub(crate) fn after(now: Instant, timeout: Duration) -> Instant {
    now.checked_add(timeout).unwrap_or_else(|| now + Duration::from_secs(365 * 86_400))
}
