//! The sending end of a flow.

use std::collections::VecDeque;
use std::num::NonZeroU64;

use super::TcpConfig;
use super::swift::Swift;
use crate::visit::Visitor;

/// Segments in flight, their state, and DCTCP's window.
#[derive(Clone, Debug)]
pub struct Sender {
    window: f64,
    ssthresh: f64,
    alpha: f64,
    /// First segment that is not acknowledged cumulatively.
    una: u32,
    /// First segment that was never sent.
    next: u32,
    /// End of the segments submitted by the application.
    limit: u32,
    /// Acknowledgements counted towards the next increment of the window, above `ssthresh`.
    grown: u32,
    acked: u32,
    marked: u32,
    /// The current observation of marks ends with the acknowledgement of this segment.
    observation_ends: u32,
    /// The window is not cut again before this segment is acknowledged.
    cut_ends: u32,
    reduction: Reduction,
    /// Recovery from loss ends at this segment.
    recovery_ends: Option<u32>,
    /// Recovery began with a time-out: the window grows from one segment, as a new flow's does.
    timed_out: bool,
    /// Scoreboard from `una` on, once segments are acknowledged out of order; empty before.
    board: VecDeque<Fate>,
    /// Segments below have been classified as lost or not.
    judged: u32,
    /// Segments from `judged` on that are acknowledged.
    sacked_above: u32,
    /// Segments of the scoreboard that are acknowledged, and that are lost and not sent again.
    sacked: u32,
    lost: u32,
    /// End of each message, and the payload of its last segment.
    ends: VecDeque<(u32, u16)>,
    timing: Option<(u32, u64)>,
    smoothed_ps: u64,
    variation_ps: u64,
    backoffs: u32,
    deadline_ps: u64,
    /// Number of segments sent again.
    pub resent: u64,
    /// Number of time-outs.
    pub timeouts: u32,
    /// Number of times that the window held something back, a mark arrived, or anything else but growth affected the
    /// window.
    affected: u32,
    /// Number of observations of marks, and of segments by which the window has grown.
    observed: u32,
    enlarged: u32,
    /// The last sample of the round-trip time, until it is taken.
    sampled_ps: Option<NonZeroU64>,
    /// If the window follows delays instead of marks.
    swift: Option<Box<Swift>>,
}

/// What a sender estimates: numbers that may change for a long time before they matter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Estimates {
    window: f64,
    grown: u32,
    alpha: f64,
    smoothed_ps: u64,
    variation_ps: u64,
    affected: u32,
    observed: u32,
    enlarged: u32,
}

/// Proportional rate reduction (RFC 9937): after a cut, the window decreases over a round trip, with a segment sent for
/// a share of those delivered, instead of a pause and a burst. Linux and ns-3 react to marks in this way.
#[derive(Clone, Copy, Debug, Default)]
struct Reduction {
    /// Segments in flight when it began, without those that were acknowledged out of order before.
    flight: u32,
    delivered: u32,
    sent: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Sent,
    Sacked,
    Lost,
    Resent,
}

/// Segments to be sent: `count` segments from `seq` on, each of `payload` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segments {
    /// First segment.
    pub seq: u32,
    /// Number of segments.
    pub count: u32,
    /// Payload of each.
    pub payload: u16,
}

impl Sender {
    /// A flow with nothing to send.
    pub fn new(config: &TcpConfig) -> Sender {
        Sender {
            window: config.window_initial,
            ssthresh: f64::INFINITY,
            alpha: config.alpha_initial,
            una: 0,
            next: 0,
            limit: 0,
            grown: 0,
            acked: 0,
            marked: 0,
            observation_ends: 0,
            cut_ends: 0,
            reduction: Reduction::default(),
            recovery_ends: None,
            timed_out: false,
            board: VecDeque::new(),
            judged: 0,
            sacked_above: 0,
            sacked: 0,
            lost: 0,
            ends: VecDeque::new(),
            timing: None,
            smoothed_ps: 0,
            variation_ps: 0,
            backoffs: 0,
            deadline_ps: u64::MAX,
            resent: 0,
            timeouts: 0,
            affected: 0,
            observed: 0,
            enlarged: 0,
            sampled_ps: None,
            swift: config.swift.map(|_| Box::default()),
        }
    }

    /// Reads something from each of its cache lines, in the order of fields that the compiler has chosen.
    #[inline]
    pub(crate) fn touch(&self) -> u32 {
        let counts = self.una ^ self.cut_ends ^ self.enlarged ^ self.smoothed_ps as u32;
        counts ^ (self.board.len() + self.ends.len()) as u32 ^ self.window as u32
    }

    /// The first segment that is not acknowledged, from which all others are counted when states are compared.
    pub(crate) fn base(&self) -> u32 {
        self.una
    }

    /// Visits the state, with segments counted from `una`.
    pub(crate) fn visit(&mut self, v: &mut impl Visitor) {
        let Sender {
            window,
            ssthresh,
            alpha,
            una,
            next,
            limit,
            grown,
            acked,
            marked,
            observation_ends,
            cut_ends,
            reduction,
            recovery_ends,
            timed_out,
            board,
            judged,
            sacked_above,
            sacked,
            lost,
            ends,
            timing,
            smoothed_ps,
            variation_ps,
            backoffs,
            deadline_ps,
            resent,
            timeouts,
            affected,
            observed,
            enlarged,
            sampled_ps: _,
            swift,
        } = self;
        let una = *una;
        v.estimates(Estimates {
            window: *window,
            grown: *grown,
            alpha: *alpha,
            smoothed_ps: *smoothed_ps,
            variation_ps: *variation_ps,
            affected: *affected,
            observed: *observed,
            enlarged: *enlarged,
        });
        v.same(ssthresh.to_bits());
        v.both(*next - una, *limit - una);
        v.both(*marked, *acked);
        v.same(observation_ends.wrapping_sub(una).into());
        // A cut that has ended is like none.
        v.both(cut_ends.saturating_sub(una), (*timed_out).into());
        v.both(recovery_ends.is_some().into(), recovery_ends.unwrap_or(una).wrapping_sub(una));
        // Each reduction begins with new counts.
        if *cut_ends > una || recovery_ends.is_some() {
            let Reduction { flight, delivered, sent } = reduction;
            v.both(*flight, *delivered);
            v.same((*sent).into());
        }
        v.same(board.len() as u64);
        if !board.is_empty() {
            board.iter().for_each(|fate| v.same(*fate as u64));
            v.both(judged.wrapping_sub(una), *sacked_above);
        }
        v.both(*sacked, *lost);
        v.same(ends.len() as u64);
        ends.iter().for_each(|&(end, last)| v.both(end.wrapping_sub(una), last.into()));
        v.same(timing.is_some().into());
        if let Some((seq, sent_ps)) = timing {
            v.same(seq.wrapping_sub(una).into());
            v.time(sent_ps);
        }
        v.time(deadline_ps);
        // A flow that has sent something again keeps its number for a while.
        v.both(*backoffs, (*resent > 0).into());
        v.count(resent);
        v.count_u32(timeouts);
        if let Some(swift) = swift {
            let (sent_ps, cut_ps) = swift.times_ps();
            v.same(sent_ps.len() as u64);
            for at_ps in sent_ps {
                v.same((*at_ps == 0).into());
                if *at_ps > 0 {
                    v.time(at_ps);
                }
            }
            v.time(cut_ps);
        }
    }

    /// Whether a period that began with the estimates `then` and ended with those of `now`, with these samples of the
    /// round-trip time in between, can be repeated as far as the estimates go: they are the same, or without effect on
    /// anything else, now and in all repetitions.
    pub(crate) fn may_repeat(
        config: &TcpConfig,
        then: &Estimates,
        now: &Estimates,
        samples: &[u64],
    ) -> bool {
        let values = |e: &Estimates| (e.window, e.grown, e.alpha, e.smoothed_ps, e.variation_ps);
        if values(then) == values(now) {
            return true;
        }
        // Every delay matters to a window that follows delays.
        if config.swift.is_some() {
            return false;
        }
        // The window held nothing back, and only grew. The estimate of marks was not needed.
        let is_unaffected = then.affected == now.affected;
        // No estimate exceeds what it is made of, and the shortest time-out exceeds what they could make.
        let all = samples.iter().copied().chain([then.smoothed_ps, now.smoothed_ps]);
        let most_ps = all.max().unwrap_or(0);
        let variation_ps = most_ps.max(then.variation_ps).max(now.variation_ps);
        is_unaffected && most_ps + 4 * variation_ps < config.rto_min_ps
    }

    /// Brings the estimates to where they are after `times` repetitions of a period for which `may_repeat` holds.
    pub(crate) fn repeat(
        &mut self,
        config: &TcpConfig,
        (then, now): (&Estimates, &Estimates),
        samples: &[u64],
        times: u64,
    ) {
        let values = |e: &Estimates| (e.window, e.grown, e.alpha, e.smoothed_ps, e.variation_ps);
        let segments = u64::from(now.enlarged.wrapping_sub(then.enlarged));
        let observations = u64::from(now.observed.wrapping_sub(then.observed));
        if values(then) != values(now) {
            for _ in 0..times {
                let before = (self.smoothed_ps, self.variation_ps);
                samples.iter().for_each(|&rtt_ps| self.sample(rtt_ps));
                if before == (self.smoothed_ps, self.variation_ps) {
                    break;
                }
            }
            for _ in 0..segments * times {
                self.enlarge();
                self.window = self.window.min(config.window_max.max(1.0));
                if self.window < self.ssthresh && self.window == config.window_max {
                    break;
                }
            }
            for _ in 0..observations * times {
                self.estimate(config, 0.0);
                if self.alpha == 0.0 {
                    break;
                }
            }
        }
        self.enlarged = self.enlarged.wrapping_add((segments * times) as u32);
        self.observed = self.observed.wrapping_add((observations * times) as u32);
        self.affected = self
            .affected
            .wrapping_add((u64::from(now.affected.wrapping_sub(then.affected)) * times) as u32);
        self.sampled_ps = None;
    }

    /// The last sample of the round-trip time, once.
    #[inline]
    pub(crate) fn take_sample(&mut self) -> Option<u64> {
        self.sampled_ps.take().map(NonZeroU64::get)
    }

    /// Submits a message; returns its first segment and one past its last.
    pub fn submit(&mut self, config: &TcpConfig, bytes: u64) -> (u32, u32) {
        let start = self.limit;
        self.limit += config.segments(bytes);
        self.ends.push_back((self.limit, config.last_bytes(bytes)));
        (start, self.limit)
    }

    /// Whether everything submitted has been acknowledged.
    pub fn is_idle(&self) -> bool {
        self.una == self.limit
    }

    /// Window in segments.
    pub fn window(&self) -> f64 {
        self.window
    }

    /// Deadline at which `time_out` must be called; `u64::MAX` for none.
    #[inline]
    pub fn deadline_ps(&self) -> u64 {
        self.deadline_ps
    }

    /// The next segments to send; `None` if the window is full or nothing is left.
    #[inline]
    pub fn poll(&mut self, config: &TcpConfig, now_ps: u64) -> Option<Segments> {
        let room = (self.window as u32).saturating_sub(self.in_flight());
        if room > 0 && self.lost > 0 {
            self.affect();
            return Some(self.send_again(config));
        }
        // What the receiver holds out of order takes a place in the socket buffer.
        let buffer = (config.window_max as u32).saturating_sub(self.next - self.una);
        let room = room.min(buffer);
        if room == 0 || self.next == self.limit {
            if self.next != self.limit {
                self.affect();
            }
            return None;
        }
        let seq = self.next;
        let (end, last) = self.end_of(seq);
        let (count, payload) = match end - 1 - seq {
            0 => (1, last),
            full => {
                if full > room {
                    self.affect();
                }
                (full.min(room), config.segment_bytes)
            }
        };
        self.next += count;
        if let Some(swift) = &mut self.swift {
            swift.send(now_ps, count);
        }
        self.reduction.sent += count;
        if !self.board.is_empty() {
            self.board.extend(std::iter::repeat_n(Fate::Sent, count as usize));
        }
        if self.timing.is_none() {
            self.timing = Some((seq, now_ps));
        }
        if self.deadline_ps == u64::MAX {
            self.deadline_ps = now_ps + self.rto_ps(config);
        }
        Some(Segments { seq, count, payload })
    }

    /// Handles an acknowledgement: `cum` is the next expected segment, `seq` the one received, marked or not.
    #[inline]
    pub fn on_ack(&mut self, config: &TcpConfig, now_ps: u64, cum: u32, seq: u32, ece: bool) {
        self.acked += 1;
        self.marked += u32::from(ece);
        if ece || self.recovery_ends.is_some() {
            self.affect();
        }
        let place = seq.checked_sub(self.una).map(|place| place as usize);
        let delay_ps =
            self.swift.as_ref().zip(place).and_then(|(s, place)| s.delay_ps(now_ps, place));
        if ece
            && config.ecn
            && config.swift.is_none()
            && self.una >= self.cut_ends
            && self.recovery_ends.is_none()
        {
            self.ssthresh = (self.window * (1.0 - self.alpha / 2.0)).max(WINDOW_MIN);
            self.cut_ends = self.next;
            self.reduction = Reduction { flight: self.in_flight(), ..Reduction::default() };
            self.grown = 0;
        }
        let in_cut = self.una < self.cut_ends;
        let progress = cum > self.una;
        let (mut delivered, mut safe) = (0, progress);
        if progress {
            delivered += self.advance(config, now_ps, cum);
        }
        if seq >= self.una || !self.board.is_empty() {
            delivered += self.note_out_of_order(seq);
            safe &= !self.find_lost(config);
            // What was lost after a recovery began may be left when it ends.
            if self.lost > 0 {
                self.recover(delivered);
            }
        }
        if in_cut || delivered > 1 {
            self.affect();
        }
        match (self.recovery_ends.is_some() && !self.timed_out, in_cut, self.una < self.cut_ends) {
            (true, ..) | (false, _, true) => self.reduce(delivered, safe),
            (false, true, false) => self.window = self.ssthresh,
            (false, false, false) if config.swift.is_some() => {
                self.follow(config, now_ps, delay_ps, delivered);
            }
            (false, false, false) if progress => self.grow(config, delivered),
            _ => {}
        }
        if self.una > self.observation_ends {
            self.observe(config);
        }
    }

    /// Lets the window follow the delay of a segment.
    fn follow(&mut self, config: &TcpConfig, now_ps: u64, delay_ps: Option<u64>, delivered: u32) {
        let Some(((swift, config_of), delay_ps)) =
            self.swift.as_mut().zip(config.swift.as_ref()).zip(delay_ps)
        else {
            return;
        };
        let before = (self.window, self.window < self.ssthresh);
        let (window, is_cut) = swift.follow(config_of, now_ps, (delay_ps, delivered), before);
        self.window = window.min(config.window_max.max(1.0));
        if is_cut {
            self.ssthresh = self.window;
            self.affect();
        }
    }

    /// Handles an expired deadline: all unacknowledged segments count as lost, and the window begins anew with slow
    /// start (RFC 5681 §3.1, RFC 6298 §5). A repeated time-out of the same segment leaves the threshold as it is.
    pub fn time_out(&mut self, config: &TcpConfig, now_ps: u64) {
        self.affect();
        self.timeouts += 1;
        self.backoffs += 1;
        if self.backoffs == 1 {
            self.ssthresh = (self.window / 2.0).max(WINDOW_MIN);
        }
        self.window = 1.0;
        self.grown = 0;
        self.cut_ends = self.una;
        self.timing = None;
        self.recovery_ends = Some(self.next);
        self.timed_out = true;
        self.make_board();
        self.lost = 0;
        for fate in &mut self.board {
            if *fate != Fate::Sacked {
                *fate = Fate::Lost;
                self.lost += 1;
            }
        }
        (self.judged, self.sacked_above) = (self.next, 0);
        self.deadline_ps = now_ps + self.rto_ps(config);
    }

    /// Handles a cumulative acknowledgement; returns how many segments it is the first to acknowledge.
    #[inline]
    fn advance(&mut self, config: &TcpConfig, now_ps: u64, cum: u32) -> u32 {
        let mut delivered = cum - self.una;
        if !self.board.is_empty() {
            for seq in self.una..cum.min(self.next) {
                match self.board.pop_front() {
                    Some(Fate::Sacked) => {
                        delivered -= 1;
                        self.sacked -= 1;
                        self.sacked_above -= u32::from(seq >= self.judged);
                    }
                    Some(Fate::Lost) => self.lost -= 1,
                    _ => {}
                }
            }
            if self.sacked == 0 && self.lost == 0 && self.recovery_ends.is_none() {
                self.board.clear();
            }
        }
        if let Some(swift) = &mut self.swift {
            swift.advance(cum - self.una);
        }
        self.una = cum;
        self.judged = self.judged.max(cum);
        while self.ends.front().is_some_and(|&(end, _)| end <= cum) {
            self.ends.pop_front();
        }
        if self.recovery_ends.is_some_and(|end| cum >= end) {
            self.recovery_ends = None;
            if !std::mem::take(&mut self.timed_out) {
                self.window = self.ssthresh;
            }
            if self.sacked == 0 && self.lost == 0 {
                self.board.clear();
            }
        }
        if let Some((seq, sent_ps)) = self.timing
            && cum > seq
        {
            self.sample(now_ps - sent_ps);
            self.timing = None;
        }
        self.backoffs = 0;
        self.deadline_ps = match self.una == self.next {
            true => u64::MAX,
            false => now_ps + self.rto_ps(config),
        };
        delivered
    }

    /// Handles a selective acknowledgement; returns how many segments it is the first to acknowledge.
    fn note_out_of_order(&mut self, seq: u32) -> u32 {
        self.make_board();
        if seq < self.una || seq >= self.next {
            return 0;
        }
        let fate = &mut self.board[(seq - self.una) as usize];
        if *fate == Fate::Sacked {
            return 0;
        }
        self.lost -= u32::from(*fate == Fate::Lost);
        *fate = Fate::Sacked;
        self.sacked += 1;
        self.sacked_above += u32::from(seq >= self.judged);
        1
    }

    /// Begins recovery from loss, unless it has begun, with an acknowledgement of `delivered` segments.
    fn recover(&mut self, delivered: u32) {
        if self.recovery_ends.is_some() {
            return;
        }
        // RFC 8257 §3.5: loss is handled as in TCP. Marks of the same round trip count no more.
        self.recovery_ends = Some(self.next);
        self.cut_ends = self.una;
        self.timing = None;
        self.grown = 0;
        self.ssthresh = (self.window / 2.0).max(WINDOW_MIN);
        let flight = self.next - self.una - self.sacked + delivered;
        self.reduction = Reduction { flight, ..Reduction::default() };
    }

    /// Segments above which `reordering` others are acknowledged are lost (RFC 6675 §4); whether there is a new one.
    fn find_lost(&mut self, config: &TcpConfig) -> bool {
        let mut found = false;
        while self.sacked_above >= config.reordering.max(1) {
            match &mut self.board[(self.judged - self.una) as usize] {
                Fate::Sacked if self.sacked_above == config.reordering => break,
                Fate::Sacked => self.sacked_above -= 1,
                fate if *fate == Fate::Sent => {
                    *fate = Fate::Lost;
                    self.lost += 1;
                    found = true;
                }
                _ => {}
            }
            self.judged += 1;
        }
        found
    }

    fn make_board(&mut self) {
        if self.board.is_empty() {
            self.board.extend(std::iter::repeat_n(Fate::Sent, (self.next - self.una) as usize));
            (self.judged, self.sacked_above) = (self.una, 0);
        }
    }

    fn send_again(&mut self, config: &TcpConfig) -> Segments {
        let place = self.board.iter().position(|&f| f == Fate::Lost).expect("some are lost");
        self.board[place] = Fate::Resent;
        if let Some(swift) = &mut self.swift {
            swift.send_again(place);
        }
        self.lost -= 1;
        self.resent += 1;
        self.reduction.sent += 1;
        let seq = self.una + place as u32;
        let (end, last) = self.end_of(seq);
        let payload = if seq + 1 == end { last } else { config.segment_bytes };
        Segments { seq, count: 1, payload }
    }

    /// Growth by the segments that were delivered; above `ssthresh` by whole segments, as in Linux and ns-3.
    #[inline]
    fn grow(&mut self, config: &TcpConfig, delivered: u32) {
        (0..delivered).for_each(|_| self.enlarge());
        self.enlarged = self.enlarged.wrapping_add(delivered);
        self.window = self.window.min(config.window_max.max(1.0));
    }

    /// Growth by one segment.
    #[inline]
    fn enlarge(&mut self) {
        if self.window < self.ssthresh {
            self.window += 1.0;
            return;
        }
        self.grown += 1;
        if f64::from(self.grown) >= self.window.floor() {
            self.grown = 0;
            self.window += 1.0;
        }
    }

    /// Counts that something but growth affects the window, or is affected by it.
    #[inline]
    fn affect(&mut self) {
        self.affected = self.affected.wrapping_add(1);
    }

    /// An acknowledgement during a reduction of the window; `safe`: it advances and shows no further loss.
    fn reduce(&mut self, delivered: u32, safe: bool) {
        if delivered == 0 {
            return;
        }
        let (in_flight, goal) = (f64::from(self.in_flight()), self.ssthresh);
        let Reduction { flight, delivered: all, sent } = &mut self.reduction;
        *all += delivered;
        let (all, sent) = (f64::from(*all), f64::from(*sent));
        let more = match in_flight > goal {
            true => (all * goal / f64::from(*flight)).ceil() - sent,
            // In recovery from loss, as in slow start while it goes well.
            false => {
                let more = (all - sent).max(f64::from(delivered));
                (goal - in_flight)
                    .min(more + f64::from(u8::from(safe && self.recovery_ends.is_some())))
            }
        };
        // The first segment is sent again at once, whatever the window.
        let least = f64::from(u8::from(self.recovery_ends.is_some() && sent == 0.0));
        self.window = in_flight + more.max(least);
    }

    #[inline]
    fn in_flight(&self) -> u32 {
        self.next - self.una - self.sacked - self.lost
    }

    fn observe(&mut self, config: &TcpConfig) {
        self.estimate(config, f64::from(self.marked) / f64::from(self.acked));
        self.observed = self.observed.wrapping_add(1);
        (self.acked, self.marked) = (0, 0);
        self.observation_ends = self.next;
    }

    /// Updates the estimate of the fraction of marks.
    fn estimate(&mut self, config: &TcpConfig, fraction: f64) {
        self.alpha += config.gain * (fraction - self.alpha);
        // Without effect: neither 1 − alpha / 2 nor the next estimate, of at least one mark in 2³² segments, differs in
        // any bit. An estimate that decays for ever would never be the same again.
        if self.alpha < config.gain * ALPHA_LEAST {
            self.alpha = 0.0;
        }
    }

    /// End of the message to which a segment belongs, and the payload of its last segment.
    #[inline]
    fn end_of(&self, seq: u32) -> (u32, u16) {
        let mut ends = self.ends.iter();
        *ends.find(|&&(end, _)| seq < end).expect("a segment belongs to a message")
    }

    /// Updates the round-trip estimate (RFC 6298).
    fn sample(&mut self, rtt_ps: u64) {
        self.sampled_ps = NonZeroU64::new(rtt_ps);
        if self.smoothed_ps == 0 {
            (self.smoothed_ps, self.variation_ps) = (rtt_ps, rtt_ps / 2);
        } else {
            let error = self.smoothed_ps.abs_diff(rtt_ps);
            self.variation_ps = (3 * self.variation_ps + error) / 4;
            self.smoothed_ps = (7 * self.smoothed_ps + rtt_ps) / 8;
        }
    }

    #[inline]
    fn rto_ps(&self, config: &TcpConfig) -> u64 {
        let base = (self.smoothed_ps + 4 * self.variation_ps).max(config.rto_min_ps);
        base << self.backoffs.min(BACKOFFS_MAX)
    }
}

/// 2⁻¹⁰⁰.
const ALPHA_LEAST: f64 = 1.0 / (1u128 << 100) as f64;
/// DCTCP makes too little progress with a window below two segments.
const WINDOW_MIN: f64 = 2.0;
/// The time-out grows up to 64 times.
const BACKOFFS_MAX: u32 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(config: &TcpConfig, segments: u64) -> Sender {
        let mut sender = Sender::new(config);
        sender.submit(config, segments * u64::from(config.segment_bytes));
        while sender.poll(config, 0).is_some() {}
        sender
    }

    /// One packet that overtakes many is no sign of loss; three that overtake are.
    #[test]
    fn later_arrivals_are_counted_and_their_distance_is_not() {
        let config = TcpConfig::default();
        let mut sender = sent(&config, 10);
        for (seq, lost) in [(9, 0), (9, 0), (4, 0), (6, 4)] {
            sender.on_ack(&config, 1, 0, seq, false);
            assert_eq!(sender.lost, lost, "after {seq}");
        }
        // Above 5 only 6 and 9 have arrived; 8 makes it three.
        sender.on_ack(&config, 1, 0, 8, false);
        assert_eq!((sender.lost, sender.board[5]), (5, Fate::Lost));
    }

    /// What is in flight fills the halved window, and yet the first segment is sent again at once.
    #[test]
    fn the_first_segment_is_sent_again_at_once() {
        let config = TcpConfig::default();
        let mut sender = sent(&config, 100);
        // Of ten segments three have arrived and two are lost: five are in flight, as many as the halved window has.
        (2..5).for_each(|seq| sender.on_ack(&config, 1, 0, seq, false));
        assert_eq!((sender.in_flight(), sender.ssthresh), (5, 5.0));
        assert_eq!(sender.poll(&config, 1).map(|s| (s.seq, s.count)), Some((0, 1)));
    }

    /// Segments that were sent during a recovery are lost too: when it ends, the next one begins at once, with another
    /// half of the window.
    #[test]
    fn a_recovery_follows_a_recovery_that_left_losses() {
        let config = TcpConfig { window_initial: 20.0, ..TcpConfig::default() };
        let mut sender = sent(&config, 100);
        for seq in 1..20 {
            sender.on_ack(&config, 1, 0, seq, false);
            while sender.poll(&config, 1).is_some() {}
        }
        // Before the third duplicate two new segments have left.
        assert_eq!((sender.resent, sender.ssthresh, sender.recovery_ends), (1, 10.0, Some(22)));
        // Segment 22 is lost as well; the three after it arrive, and then the repetition of the first.
        (20..22).chain(23..26).for_each(|seq| sender.on_ack(&config, 1, 0, seq, false));
        assert_eq!((sender.lost, sender.board[22]), (1, Fate::Lost));
        sender.on_ack(&config, 1, 22, 0, false);
        assert_eq!((sender.ssthresh, sender.recovery_ends), (5.0, Some(sender.next)));
    }

    /// Any order of arrivals and losses: the counts agree with the scoreboard, and everything arrives.
    #[test]
    fn the_counts_agree_with_the_scoreboard() {
        use crate::random::Random;
        use crate::tcp::Receiver;
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let config = TcpConfig { reordering: 1 + seed as u32 % 4, ..TcpConfig::default() };
            let mut sender = Sender::new(&config);
            let mut receiver = Receiver::default();
            receiver.expect(sender.submit(&config, 400 * 1448).1);
            let (mut wire, mut now_ps) = (Vec::new(), 0);
            while !sender.is_idle() {
                now_ps += 1_000_000;
                while let Some(segments) = sender.poll(&config, now_ps) {
                    wire.extend(segments.seq..segments.seq + segments.count);
                }
                match wire.is_empty() {
                    true => {
                        now_ps = now_ps.max(sender.deadline_ps());
                        sender.time_out(&config, now_ps);
                    }
                    false => {
                        let seq = wire.remove(random.below(wire.len().min(6) as u64) as usize);
                        if random.below(10) > 0 {
                            receiver.take(seq);
                            if random.below(10) > 0 {
                                let cum = receiver.expected();
                                sender.on_ack(&config, now_ps, cum, seq, random.below(9) == 0);
                            }
                        }
                    }
                }
                let count = |fate| sender.board.iter().filter(|&&f| f == fate).count() as u32;
                assert_eq!((sender.sacked, sender.lost), (count(Fate::Sacked), count(Fate::Lost)));
                let outstanding = (sender.next - sender.una) as usize;
                assert!(sender.board.is_empty() || sender.board.len() == outstanding);
                for (place, fate) in sender.board.iter().enumerate() {
                    let above = sender.board.iter().skip(place + 1);
                    let above = above.filter(|&&f| f == Fate::Sacked).count() as u32;
                    assert!(*fate != Fate::Sent || above < config.reordering, "seed {seed}");
                }
                assert!(sender.window >= 1.0);
            }
            assert!(receiver.is_complete());
        }
    }
}
