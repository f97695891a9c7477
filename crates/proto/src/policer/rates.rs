//! The rate limit of a tenant: a bucket of bytes and one of packets.

use std::fmt::Debug;
use std::sync::Arc;

use super::bucket::{Bucket, Level, Size};
use super::{BURST_BYTES, BURST_PACKETS, RateLimit, depth};
use crate::Time;

/// The buckets of a tenant's limit.
#[derive(Clone, Copy, Debug)]
pub struct RateBuckets {
    bytes: Bucket,
    packets: Bucket,
}

impl RateBuckets {
    /// Full buckets.
    pub fn full(now: Time) -> RateBuckets {
        RateBuckets { bytes: Bucket::full(now), packets: Bucket::full(now) }
    }

    /// The level that a packet of `bytes` bytes meets. It takes its tokens if there are enough in both buckets and if
    /// `passes`: whether it passes what else is to be passed.
    #[inline]
    pub fn admit(&mut self, now: Time, limit: RateLimit, bytes: u64, passes: bool) -> Level {
        let of_bytes = limit.bytes_per_s.map(|rate| {
            let size = Size { rate, depth: depth(rate, BURST_BYTES) };
            self.bytes.level(now, size, bytes)
        });
        let of_packets = limit.packets_per_s.map(|rate| {
            let size = Size { rate, depth: depth(rate, BURST_PACKETS) };
            self.packets.level(now, size, 1)
        });
        let level = of_bytes.max(of_packets).unwrap_or(Level::High);
        if passes && level != Level::Empty {
            // A bucket that is not in use stays full.
            of_bytes.inspect(|_| self.bytes.take(bytes));
            of_packets.inspect(|_| self.packets.take(1));
        }
        level
    }
}

/// The buckets of a tenant whose packets several policers admit, each of them some: the threads of a switch.
pub trait SharedRates: Debug + Send + Sync {
    /// As [`RateBuckets::admit`]. `now` may be a little before that of an earlier call.
    fn admit(&self, now: Time, limit: RateLimit, bytes: u64, passes: bool) -> Level;
}

#[derive(Debug)]
pub(super) enum Rates {
    Own(RateBuckets),
    Shared(Arc<dyn SharedRates>),
}

impl Rates {
    #[inline]
    pub(super) fn admit(&mut self, now: Time, limit: RateLimit, bytes: u64, passes: bool) -> Level {
        match self {
            _ if limit == RateLimit::default() => Level::High,
            Rates::Own(buckets) => buckets.admit(now, limit, bytes, passes),
            Rates::Shared(shared) => shared.admit(now, limit, bytes, passes),
        }
    }
}
