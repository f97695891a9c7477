//! Rates of tenants at a switch, enforced before packets cost anything.
//!
//! Every packet of a leased neighbour meets the policer before it is decoded and its tag is checked. Two rules apply:
//!
//! * A **rate limit** of the fabric file, in bytes and packets per second: a token bucket each. In the lower half of a
//!   bucket packets are marked, so that workers with congestion control slow down; without tokens they are dropped.
//! * A **fair share** under overload, without any setting. While the driver is busy it reports every [`INTERVAL_NS`]
//!   how full the socket's receive buffer is. While that fills up, tenants are cut to a common rate at which their
//!   demands add up to less than what the switch has just processed; tenants that send less are not affected. The
//!   driver empties the socket faster then, because dropping costs little. When the buffer is empty again the rate rises
//!   until nobody is cut. A tenant that sends much more than the common rate is thinned out before that, by the system:
//!   the driver drops a part of the packets of its senders ([`Policer::thinned`]) where they cost neither the buffer nor
//!   the thread.
//!
//! The unit of the fair share is bytes, plus 512 per packet, which is about what packets cost a processor.
//! A packet counts for the tenant of its job only if the sender is a neighbour of that job, and else for the sender's own
//! tenant: forged job numbers cost the forger. Who forges a neighbour's *address* can use up that neighbour's rate;
//! networks must not route such packets.

mod bucket;
mod rates;
mod share;

use std::ops::AddAssign;
use std::sync::Arc;

use netsum_wire::{JobId, job_of};
use rustc_hash::{FxHashMap, FxHashSet};

use bucket::{Bucket, Size};
use rates::Rates;

pub use bucket::Level;
pub use rates::{RateBuckets, SharedRates};

use crate::{DropReason, PortId, Time};

/// The most that the jobs of a tenant may send to a switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimit {
    /// Bytes of UDP payload per second; `None`: no limit.
    pub bytes_per_s: Option<u64>,
    /// Packets per second; `None`: no limit.
    pub packets_per_s: Option<u64>,
}

/// Who a job belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Name of the tenant, whose jobs share its rates; `None`: the job stands for itself.
    pub tenant: Option<Arc<str>>,
    /// Limit of the tenant.
    pub limit: RateLimit,
}

/// What happens to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It passes.
    Pass,
    /// It passes as if the network had marked congestion.
    Mark,
    /// It is dropped for this reason.
    Drop(DropReason),
}

/// State of the receive buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Bytes in the buffer, as the system counts them.
    pub queued: u64,
    /// Size of the buffer, bytes.
    pub limit: u64,
    /// Packets that the system has dropped so far because the buffer was full.
    pub dropped: u64,
}

/// What a tenant has sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantCounters {
    /// Packets that passed.
    pub packets: u64,
    /// Bytes that passed.
    pub bytes: u64,
    /// Of the packets, those that were marked.
    pub marked: u64,
    /// Packets that were dropped.
    pub dropped: u64,
}

impl AddAssign for TenantCounters {
    fn add_assign(&mut self, other: TenantCounters) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.marked += other.marked;
        self.dropped += other.dropped;
    }
}

/// The policer of a switch.
#[derive(Debug, Default)]
pub struct Policer {
    tenants: Vec<Tenant>,
    jobs: FxHashMap<JobId, usize>,
    /// Tenant of a job's packets from one of the job's neighbours.
    senders: FxHashMap<(PortId, JobId), usize>,
    /// The tenant of a port whose jobs are all of one tenant, as those of a worker are; `None`: of several.
    only: FxHashMap<PortId, Option<usize>>,
    /// The last entry found: packets of one sender arrive in a row.
    last: Option<((PortId, JobId), usize)>,
    /// The rate to which tenants are cut, in cost per second; `None`: the switch is not overloaded.
    share: Option<u64>,
    /// The highest demand when the share was last cut.
    highest: u64,
    /// When the share was last cut or raised.
    changed: Time,
    backlog: Backlog,
    /// Start of the busy interval that is measured, and its number.
    measured_since: Time,
    period: u32,
    /// Cost of packets in that interval that no job accounts for.
    strange: u64,
    /// Whether the senders that the driver is to thin out may be others than when it last asked.
    thins_others: bool,
}

/// A sender of whose packets the driver drops a part before they reach the receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thinned {
    /// The sender.
    pub port: PortId,
    /// One of 2^`halvings` packets is left.
    pub halvings: u8,
}

#[derive(Debug)]
struct Tenant {
    owner: Owner,
    /// The job that stands for itself.
    job: Option<JobId>,
    rates: Rates,
    share: Bucket,
    /// Cost of what has arrived and of what has passed in the interval of that number.
    period: u32,
    arrived: u64,
    passed: u64,
    /// Cost of what has arrived since the share last changed.
    recent: u64,
    /// What the tenant sends, in cost per second, thinned packets included; kept up to date while there is a share.
    demand: u64,
    /// One of 2^`halvings` of its packets arrives.
    halvings: u8,
    counters: TenantCounters,
}

/// Time between two regulations of the fair share in a busy period.
pub const INTERVAL_NS: u64 = 10_000_000;
/// Cost of a packet in addition to its bytes.
const PACKET_COST: u64 = 512;
/// Eighths of the last interval's work that an overloaded switch admits.
const HEADROOM: u64 = 7;
/// The fair share is raised by one part in this many.
const RAISE: u64 = 16;
/// Most senders that are thinned out at a time: the system compares each packet with all of them.
pub const THINNED_MOST: usize = 64;
/// At least one of 2^12 packets is left, by which the switch notices that a flood has ended.
const HALVINGS_MOST: u8 = 12;
/// Buckets hold this much of their rate, and at least a few trains of packets.
const BURST_NS: u64 = 10_000_000;
const BURST_BYTES: u64 = 256 << 10;
const BURST_PACKETS: u64 = 256;

impl Policer {
    /// A policer without jobs.
    pub fn new() -> Policer {
        Policer::default()
    }

    /// Sets the owner of a job whose lease is about to be installed. A limit holds from now on for all jobs of the
    /// tenant.
    pub fn own(&mut self, now: Time, job: JobId, owner: Owner) {
        self.own_with(now, job, owner, Rates::Own(RateBuckets::full(now)));
    }

    /// The same for a tenant whose limit holds for the packets of other policers, too.
    pub fn own_shared(&mut self, now: Time, job: JobId, owner: Owner, rates: Arc<dyn SharedRates>) {
        self.own_with(now, job, owner, Rates::Shared(rates));
    }

    fn own_with(&mut self, now: Time, job: JobId, owner: Owner, rates: Rates) {
        let own_job = owner.tenant.is_none().then_some(job);
        let same = |tenant: &Tenant| tenant.owner.tenant == owner.tenant && tenant.job == own_job;
        let index = match self.tenants.iter().position(same) {
            Some(index) => {
                self.tenants[index].owner.limit = owner.limit;
                index
            }
            None => {
                self.tenants.push(Tenant::new(now, owner, own_job, rates));
                self.tenants.len() - 1
            }
        };
        self.jobs.insert(job, index);
    }

    /// Records that `ports` are neighbours of a job. A job without an owner stands for itself, without limit.
    pub fn lease(&mut self, now: Time, job: JobId, ports: impl Iterator<Item = PortId>) {
        if !self.jobs.contains_key(&job) {
            self.own(now, job, Owner::default());
        }
        let tenant = self.jobs[&job];
        for port in ports {
            self.senders.insert((port, job), tenant);
            attribute(&mut self.only, port, tenant);
        }
        self.thins_others |= self.tenants[tenant].halvings > 0;
        self.last = None;
    }

    /// Forgets all jobs but `jobs`, all ports but `ports`, and tenants without jobs.
    pub fn retain(&mut self, jobs: &FxHashSet<JobId>, ports: &FxHashSet<PortId>) {
        self.jobs.retain(|job, _| jobs.contains(job));
        self.senders.retain(|(port, job), _| ports.contains(port) && jobs.contains(job));
        self.last = None;
        self.thins_others |= self.tenants.iter().any(|tenant| tenant.halvings > 0);
        self.forget_tenants();
        self.only.clear();
        for (&(port, _), &tenant) in &self.senders {
            attribute(&mut self.only, port, tenant);
        }
    }

    /// Forgets tenants without jobs.
    fn forget_tenants(&mut self) {
        let used: FxHashSet<usize> = self.jobs.values().copied().collect();
        if used.len() == self.tenants.len() {
            return;
        }
        let mut index = 0;
        let mut kept = 0;
        let places: Vec<Option<usize>> = (0..self.tenants.len())
            .map(|old| {
                let place = used.contains(&old).then_some(kept);
                kept += usize::from(place.is_some());
                place
            })
            .collect();
        self.tenants.retain(|_| {
            index += 1;
            places[index - 1].is_some()
        });
        let moved = |place: &mut usize| *place = places[*place].expect("a tenant with jobs stays");
        self.jobs.values_mut().for_each(moved);
        self.senders.values_mut().for_each(moved);
    }

    /// Decides on a packet of `bytes` bytes. A packet of a job of which the sender is no neighbour counts for the tenant
    /// of the sender's own jobs; if these are of several tenants, it passes, and a machine drops it at once.
    #[inline]
    pub fn admit(&mut self, now: Time, from: PortId, job: JobId, bytes: usize) -> Verdict {
        let sender = (from, job);
        let index = match self.last {
            Some((last, index)) if last == sender => index,
            _ => {
                let neighbour = self.senders.get(&sender).copied();
                let Some(index) = neighbour.or_else(|| *self.only.get(&from)?) else {
                    self.stranger(bytes);
                    return Verdict::Pass;
                };
                self.last = Some((sender, index));
                index
            }
        };
        let share = self.share.map(|rate| Size { rate, depth: depth(rate, SHARE_BURST) });
        let tenant = &mut self.tenants[index];
        tenant.enter(self.period);
        tenant.admit(now, share, bytes as u64)
    }

    /// Counts a packet of `bytes` bytes that is dropped because no lease names its sender.
    #[inline]
    pub fn stranger(&mut self, bytes: usize) {
        self.strange = self.strange.saturating_add(bytes as u64 + PACKET_COST);
    }

    /// Decides on an undecoded packet; one too short for a header passes, and is dropped by its machine.
    #[inline]
    pub fn admit_packet(&mut self, now: Time, from: PortId, packet: &[u8]) -> Verdict {
        match job_of(packet) {
            Some(job) => self.admit(now, from, job, packet.len()),
            None => Verdict::Pass,
        }
    }

    /// Whether `regulate` is due.
    #[inline]
    pub fn is_due(&self, now: Time) -> bool {
        now.since(self.measured_since) >= INTERVAL_NS
    }

    /// Records that the receive buffer is empty: a busy period has ended.
    #[inline]
    pub fn drained(&mut self, now: Time) {
        self.backlog.queued = 0;
        self.measure_from(now);
        if self.share.is_some() {
            self.raise(now);
        }
    }

    /// Adapts the fair share to the state of the receive buffer, after a busy interval.
    pub fn regulate(&mut self, now: Time, backlog: Backlog) {
        let elapsed_ns = now.since(self.measured_since).max(1);
        let before = std::mem::replace(&mut self.backlog, backlog);
        // The system counts packets that were thinned out like those for which there was no room.
        let thins = self.tenants.iter().any(|tenant| tenant.halvings > 0);
        let overflows = backlog.dropped > before.dropped && !thins;
        let grows = backlog.queued >= before.queued || backlog.queued > backlog.limit / 8 * 7;
        if backlog.queued > backlog.limit / 2 && grows || overflows {
            self.cut(now, elapsed_ns);
        } else if backlog.queued <= backlog.limit / 4 && self.share.is_some() {
            self.raise(now);
        }
        self.measure_from(now);
    }

    /// Cuts the largest tenants until all demands fit into a part of what was processed. Where strangers send more than
    /// all tenants, that would not help.
    fn cut(&mut self, now: Time, elapsed_ns: u64) {
        let busy = || self.tenants.iter().filter(|tenant| tenant.period == self.period);
        let demand = |tenant: &Tenant| per_s(tenant.whole(tenant.arrived), elapsed_ns);
        let mut demands: Vec<u64> = busy().map(demand).collect();
        let passed: u64 = busy().map(|tenant| tenant.passed).sum();
        if self.strange > busy().map(|tenant| tenant.arrived).sum() {
            return;
        }
        let capacity = per_s(passed, elapsed_ns) / 8 * HEADROOM;
        let level = share::water_level(&mut demands, capacity);
        if let Some(level) = level {
            self.share = Some(level.max(SHARE_LEAST));
            self.highest = demands.last().copied().unwrap_or(0);
            self.changed = now;
            let period = self.period;
            for tenant in &mut self.tenants {
                let is_busy = tenant.period == period;
                tenant.demand = if is_busy { demand(tenant) } else { 0 };
            }
            self.thin();
        }
    }

    /// Raises the fair share a little, so that overload returns slowly; lifts it if nobody has sent more.
    fn raise(&mut self, now: Time) {
        let elapsed_ns = now.since(self.changed);
        if elapsed_ns >= INTERVAL_NS {
            self.changed = now;
            let raised = self.share.map(|share| share.saturating_add(share / RAISE));
            self.share = raised.filter(|&share| share <= self.highest);
            for tenant in &mut self.tenants {
                // Few packets may be left of a flood, and not in every interval.
                let demand = per_s(tenant.whole(tenant.recent), elapsed_ns);
                tenant.demand = demand.max(tenant.demand / 2);
            }
            self.thin();
        }
    }

    /// Decides which tenants are thinned out, and how much: twice their share is left, so that the buckets decide.
    fn thin(&mut self) {
        for tenant in &mut self.tenants {
            tenant.recent = 0;
            let left = self.share.map_or(u64::MAX, |share| share.saturating_mul(2));
            let halvings = (tenant.demand / left.max(1)).checked_ilog2().unwrap_or(0);
            let halvings = u8::try_from(halvings).unwrap_or(HALVINGS_MOST).min(HALVINGS_MOST);
            self.thins_others |= tenant.halvings != halvings;
            tenant.halvings = halvings;
        }
    }

    /// The senders of whose packets the driver is to drop a part before they reach the receive buffer, if they are
    /// others than those of the last answer. At most [`THINNED_MOST`]: those of the largest floods.
    #[inline]
    pub fn thinned(&mut self) -> Option<Vec<Thinned>> {
        std::mem::take(&mut self.thins_others).then(|| self.find_thinned())
    }

    fn find_thinned(&self) -> Vec<Thinned> {
        // A port with jobs of several tenants is a switch's: all of them would suffer.
        let of_one = self.only.iter().filter_map(|(&port, tenant)| Some((port, (*tenant)?)));
        let mut all: Vec<Thinned> = of_one
            .map(|(port, tenant)| Thinned { port, halvings: self.tenants[tenant].halvings })
            .filter(|thinned| thinned.halvings > 0)
            .collect();
        all.sort_unstable_by_key(|thinned| (u8::MAX - thinned.halvings, thinned.port.0));
        all.truncate(THINNED_MOST);
        all
    }

    fn measure_from(&mut self, now: Time) {
        self.measured_since = now;
        self.strange = 0;
        self.period = self.period.wrapping_add(1);
    }

    /// The rate to which tenants are cut, in bytes and packet costs per second; `None`: the switch is not overloaded.
    pub fn share(&self) -> Option<u64> {
        self.share
    }

    /// Every named tenant with its counters.
    pub fn tenants(&self) -> impl Iterator<Item = (&Arc<str>, &TenantCounters)> {
        let named = |tenant: &'_ Tenant| tenant.owner.tenant.is_some();
        let tenants = self.tenants.iter().filter(move |tenant| named(tenant));
        tenants.filter_map(|tenant| Some((tenant.owner.tenant.as_ref()?, &tenant.counters)))
    }
}

fn per_s(cost: u64, elapsed_ns: u64) -> u64 {
    let rate = u128::from(cost) * 1_000_000_000 / u128::from(elapsed_ns);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// The fair share is never less, in cost per second: some hundred packets.
const SHARE_LEAST: u64 = 1 << 20;
/// Notes that a port has a job of that tenant.
fn attribute(only: &mut FxHashMap<PortId, Option<usize>>, port: PortId, tenant: usize) {
    let entry = only.entry(port).or_insert(Some(tenant));
    *entry = entry.filter(|&other| other == tenant);
}

/// Cost of the trains that a bucket of the fair share holds at least.
const SHARE_BURST: u64 = BURST_BYTES + BURST_PACKETS * PACKET_COST;

impl Tenant {
    fn new(now: Time, owner: Owner, job: Option<JobId>, rates: Rates) -> Tenant {
        Tenant {
            owner,
            job,
            rates,
            share: Bucket::full(now),
            period: 0,
            arrived: 0,
            passed: 0,
            recent: 0,
            demand: 0,
            halvings: 0,
            counters: TenantCounters::default(),
        }
    }

    /// What was sent, if `arrived` of it arrived.
    fn whole(&self, arrived: u64) -> u64 {
        arrived.saturating_mul(1 << self.halvings)
    }

    /// Begins a new account in a new interval.
    #[inline]
    fn enter(&mut self, period: u32) {
        if self.period != period {
            (self.period, self.arrived, self.passed) = (period, 0, 0);
        }
    }

    #[inline]
    fn admit(&mut self, now: Time, share: Option<Size>, bytes: u64) -> Verdict {
        let cost = bytes + PACKET_COST;
        self.arrived += cost;
        self.recent += cost;
        let share = share.map(|size| self.share.level(now, size, cost));
        let has_share = share != Some(Level::Empty);
        let rate = self.rates.admit(now, self.owner.limit, bytes, has_share);
        if rate == Level::Empty || !has_share {
            self.counters.dropped += 1;
            return Verdict::Drop(match rate {
                Level::Empty => DropReason::OverRate,
                _ => DropReason::OverShare,
            });
        }
        // A bucket that is not in use stays full.
        share.inspect(|_| self.share.take(cost));
        self.passed += cost;
        self.counters.packets += 1;
        self.counters.bytes += bytes;
        if rate == Level::Low || share == Some(Level::Low) {
            self.counters.marked += 1;
            return Verdict::Mark;
        }
        Verdict::Pass
    }
}

/// Size of a bucket of that rate.
fn depth(rate: u64, least: u64) -> u64 {
    let burst = u128::from(rate) * u128::from(BURST_NS) / 1_000_000_000;
    u64::try_from(burst).unwrap_or(u64::MAX).max(least)
}

#[cfg(test)]
mod tests;
