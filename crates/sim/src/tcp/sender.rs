//! The sending end of a flow.

use std::collections::VecDeque;

use super::TcpConfig;

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
    /// Scoreboard from `una` on, once segments are acknowledged out of order; empty before.
    board: VecDeque<Fate>,
    /// One past the highest segment acknowledged.
    highest: u32,
    /// Segments below have been classified as lost or not.
    judged: u32,
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
}

/// Proportional rate reduction (RFC 6937): after a cut, the window decreases over a round trip, with a segment sent for
/// a share of those delivered, instead of a pause and a burst. Linux and ns-3 react to marks in this way.
#[derive(Clone, Copy, Debug, Default)]
struct Reduction {
    /// Segments in flight when it began.
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
            board: VecDeque::new(),
            highest: 0,
            judged: 0,
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
        }
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
        let in_flight = self.in_flight();
        let room = (self.window.min(config.window_max) as u32).saturating_sub(in_flight);
        if room == 0 {
            return None;
        }
        if self.lost > 0 {
            return Some(self.send_again(config));
        }
        if self.next == self.limit {
            return None;
        }
        let seq = self.next;
        let (end, last) = self.end_of(seq);
        let (count, payload) = match end - 1 - seq {
            0 => (1, last),
            full => (full.min(room), config.segment_bytes),
        };
        self.next += count;
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
        if ece && config.ecn && self.una >= self.cut_ends && self.recovery_ends.is_none() {
            self.ssthresh = (self.window * (1.0 - self.alpha / 2.0)).max(WINDOW_MIN);
            self.cut_ends = self.next;
            self.reduction = Reduction { flight: self.in_flight(), ..Reduction::default() };
            self.grown = 0;
        }
        let in_cut = self.una < self.cut_ends;
        let progress = cum > self.una;
        if progress {
            self.advance(config, now_ps, cum);
        }
        if seq >= self.una || !self.board.is_empty() {
            self.note_out_of_order(config, seq);
        }
        if self.recovery_ends.is_none() {
            match (in_cut, self.una < self.cut_ends) {
                (_, true) => self.reduce(),
                (true, false) => self.window = self.ssthresh,
                (false, false) if progress => self.grow(config),
                _ => {}
            }
        }
        if self.una > self.observation_ends {
            self.observe(config);
        }
    }

    /// Handles an expired deadline: all unacknowledged segments count as lost.
    pub fn time_out(&mut self, config: &TcpConfig, now_ps: u64) {
        self.timeouts += 1;
        self.backoffs += 1;
        self.ssthresh = (self.window / 2.0).max(WINDOW_MIN);
        self.window = 1.0;
        self.timing = None;
        self.recovery_ends = Some(self.next);
        self.make_board();
        self.lost = 0;
        for fate in &mut self.board {
            if *fate != Fate::Sacked {
                *fate = Fate::Lost;
                self.lost += 1;
            }
        }
        self.judged = self.next;
        self.deadline_ps = now_ps + self.rto_ps(config);
    }

    #[inline]
    fn advance(&mut self, config: &TcpConfig, now_ps: u64, cum: u32) {
        if !self.board.is_empty() {
            for _ in self.una..cum.min(self.next) {
                match self.board.pop_front() {
                    Some(Fate::Sacked) => self.sacked -= 1,
                    Some(Fate::Lost) => self.lost -= 1,
                    _ => {}
                }
            }
            if self.sacked == 0 && self.lost == 0 && self.recovery_ends.is_none() {
                self.board.clear();
            }
        }
        self.una = cum;
        self.highest = self.highest.max(cum);
        while self.ends.front().is_some_and(|&(end, _)| end <= cum) {
            self.ends.pop_front();
        }
        if self.recovery_ends.is_some_and(|end| cum >= end) {
            self.recovery_ends = None;
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
    }

    fn note_out_of_order(&mut self, config: &TcpConfig, seq: u32) {
        self.make_board();
        if seq >= self.una && seq < self.next {
            let fate = &mut self.board[(seq - self.una) as usize];
            match *fate {
                Fate::Sacked => {}
                before => {
                    *fate = Fate::Sacked;
                    self.sacked += 1;
                    self.lost -= u32::from(before == Fate::Lost);
                }
            }
            self.highest = self.highest.max(seq + 1);
        }
        self.judged = self.judged.max(self.una);
        let mut found = false;
        while self.judged + config.reordering < self.highest {
            let fate = &mut self.board[(self.judged - self.una) as usize];
            if *fate == Fate::Sent {
                *fate = Fate::Lost;
                self.lost += 1;
                found = true;
            }
            self.judged += 1;
        }
        if found && self.recovery_ends.is_none() {
            self.recovery_ends = Some(self.next);
            self.cut_ends = self.una;
            self.timing = None;
            // RFC 8257 §3.5: loss is handled as in TCP.
            self.window = (self.window / 2.0).max(WINDOW_MIN);
            self.ssthresh = self.window;
        }
    }

    fn make_board(&mut self) {
        if self.board.is_empty() {
            self.board.extend(std::iter::repeat_n(Fate::Sent, (self.next - self.una) as usize));
            self.judged = self.una;
        }
    }

    fn send_again(&mut self, config: &TcpConfig) -> Segments {
        let place = self.board.iter().position(|&f| f == Fate::Lost).expect("some are lost");
        self.board[place] = Fate::Resent;
        self.lost -= 1;
        self.resent += 1;
        let seq = self.una + place as u32;
        let (end, last) = self.end_of(seq);
        let payload = if seq + 1 == end { last } else { config.segment_bytes };
        Segments { seq, count: 1, payload }
    }

    /// Above `ssthresh` the window grows by whole segments, as in Linux and ns-3.
    #[inline]
    fn grow(&mut self, config: &TcpConfig) {
        if self.window < self.ssthresh {
            self.window += 1.0;
        } else {
            self.grown += 1;
            if f64::from(self.grown) >= self.window.floor() {
                self.grown = 0;
                self.window += 1.0;
            }
        }
        self.window = self.window.min(config.window_max.max(1.0));
    }

    /// One segment was delivered during a reduction of the window.
    fn reduce(&mut self) {
        let (in_flight, goal) = (f64::from(self.in_flight()), self.ssthresh);
        let Reduction { flight, delivered, sent } = &mut self.reduction;
        *delivered += 1;
        let (delivered, sent) = (f64::from(*delivered), f64::from(*sent));
        let more = match in_flight > goal {
            true => (delivered * goal / f64::from(*flight)).ceil() - sent,
            false => (goal - in_flight).min((delivered - sent).max(1.0)),
        };
        self.window = in_flight + more.max(0.0);
    }

    #[inline]
    fn in_flight(&self) -> u32 {
        self.next - self.una - self.sacked - self.lost
    }

    fn observe(&mut self, config: &TcpConfig) {
        let fraction = f64::from(self.marked) / f64::from(self.acked);
        self.alpha += config.gain * (fraction - self.alpha);
        (self.acked, self.marked) = (0, 0);
        self.observation_ends = self.next;
    }

    /// End of the message to which a segment belongs, and the payload of its last segment.
    #[inline]
    fn end_of(&self, seq: u32) -> (u32, u16) {
        let mut ends = self.ends.iter();
        *ends.find(|&&(end, _)| seq < end).expect("a segment belongs to a message")
    }

    /// Updates the round-trip estimate (RFC 6298).
    fn sample(&mut self, rtt_ps: u64) {
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

/// DCTCP makes too little progress with a window below two segments.
const WINDOW_MIN: f64 = 2.0;
/// The time-out grows up to 64 times.
const BACKOFFS_MAX: u32 = 6;
