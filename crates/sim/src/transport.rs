//! The flows of all hosts: [`tcp`](crate::tcp) over the simulated network.

use crate::network::{Expected, Region};
use crate::packet::{Kind, Packet};
use crate::random::Random;
use crate::tcp::{Estimates, Receiver, Sender, TcpConfig};
use crate::timer::{CLASS, Timer};
use crate::visit::Visitor;

/// Timer class of retransmission (bits 56 to 62 of the key).
pub(crate) const RTO: u64 = 2 << 56;
/// Timer class of slots whose flow left packets in the network: the slot is reused after this timer.
pub(crate) const SLOT: u64 = 3 << 56;
/// Samples of round-trip times are noted up to this many: with more of them the log is not complete.
pub(crate) const SAMPLES_MAX: usize = 4 << 20;
/// Longer than any packet stays in a network whose queues hold milliseconds of traffic.
const SLOT_REST_PS: u64 = 1_000_000_000_000;

/// The receiver of a flow's completion events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A flow of the workload, by its number; the flow ends with its message.
    Workload(u32),
    /// A persistent stream between two workers of a job: job, and the stream's number in the job.
    Job(u32, u32),
}

struct Flow {
    src: u32,
    dst: u32,
    entropy: u16,
    open: bool,
    /// Whether the receiver echoes marks.
    ecn: bool,
    timer: Timer,
    owner: Owner,
    /// The owner is told once this segment is the first that is not acknowledged, or an earlier one is; `u32::MAX`:
    /// it has not asked.
    reported: u32,
}

/// Slots that can be used again, by the host whose flows had them: which of two flows has the lower slot, and so whose
/// timer comes first at equal times, depends on no third host.
#[derive(Default)]
struct FreeSlots(Vec<Vec<u32>>);

impl FreeSlots {
    fn take(&mut self, host: u32) -> Option<u32> {
        self.0.get_mut(host as usize)?.pop()
    }

    fn put(&mut self, host: u32, slot: u32) {
        let hosts = self.0.len().max(host as usize + 1);
        self.0.resize_with(hosts, Vec::new);
        self.0[host as usize].push(slot);
    }
}

/// An event of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Number of messages that have arrived completely.
    Messages(Owner, u32),
    /// The segments are acknowledged for which the owner has asked.
    Acknowledged(Owner),
    /// The message of a `Workload` flow has arrived.
    Complete {
        /// Number in the workload.
        number: u32,
        /// Number of segments sent again.
        resent: u64,
        /// Number of time-outs.
        timeouts: u32,
    },
}

/// All flows.
pub struct Transport {
    config: TcpConfig,
    flows: Vec<Flow>,
    senders: Vec<Sender>,
    receivers: Vec<Receiver>,
    free: FreeSlots,
    entropies: Entropies,
    /// Samples of round-trip times, by flow, for those who look for repetitions; `None` if nobody does.
    pub(crate) samples: Option<Vec<(u32, u64)>>,
    spraying: bool,
    /// Flows that are open.
    pub active: u32,
}

/// Samples of round-trip times by flow, each in the order of time.
pub(crate) struct Samples {
    /// Flows in order, each with the end of its samples.
    ends: Vec<(u32, usize)>,
    all: Vec<u64>,
}

impl Samples {
    pub(crate) fn new(log: &[(u32, u64)]) -> Samples {
        let mut log = log.to_vec();
        log.sort_by_key(|&(flow, _)| flow);
        let mut ends: Vec<(u32, usize)> = Vec::new();
        for (at, &(flow, _)) in log.iter().enumerate() {
            match ends.last_mut() {
                Some(last) if last.0 == flow => last.1 = at + 1,
                _ => ends.push((flow, at + 1)),
            }
        }
        Samples { ends, all: log.into_iter().map(|(_, rtt_ps)| rtt_ps).collect() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn of(&self, flow: u32) -> &[u64] {
        let Ok(at) = self.ends.binary_search_by_key(&flow, |&(flow, _)| flow) else { return &[] };
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before].1);
        &self.all[start..self.ends[at].1]
    }
}

/// Random numbers that select the paths of flows. That of a flow depends on whose it is, and not on which others were
/// opened before.
pub(crate) struct Entropies(Random);

impl Entropies {
    pub(crate) fn new(seed: u64) -> Entropies {
        Entropies(Random::derived(seed, "paths"))
    }

    pub(crate) fn of(&self, owner: Owner) -> u16 {
        let number = match owner {
            Owner::Workload(number) => u64::from(number),
            Owner::Job(job, stream) => (u64::from(job) + 1) << 32 | u64::from(stream),
        };
        self.0.nth(number) as u16
    }
}

impl Transport {
    /// `spraying`: packets of a flow may be reordered.
    pub fn new(config: TcpConfig, seed: u64, spraying: bool) -> Transport {
        Transport {
            config,
            flows: Vec::new(),
            senders: Vec::new(),
            receivers: Vec::new(),
            free: FreeSlots::default(),
            entropies: Entropies::new(seed),
            samples: None,
            spraying,
            active: 0,
        }
    }

    /// By flow, the segment from which its segments are counted when states are compared.
    pub(crate) fn bases(&self) -> Vec<u32> {
        self.senders.iter().map(Sender::base).collect()
    }

    /// Notes samples of round-trip times from now on, or not any more.
    pub(crate) fn note_samples(&mut self, wanted: bool) {
        if wanted != self.samples.is_some() {
            self.senders.iter_mut().for_each(|sender| _ = sender.take_sample());
            self.samples = wanted.then(Vec::new);
        }
    }

    /// Whether a period can be repeated as far as estimates go: `then` and `now` are those at its ends, by flow, and
    /// `samples` the samples in between.
    pub(crate) fn may_repeat(
        &self,
        then: &[Estimates],
        now: &[Estimates],
        samples: &Samples,
    ) -> bool {
        let mut flows = (0..).zip(then.iter().zip(now));
        flows.all(|(flow, (then, now))| {
            Sender::may_repeat(&self.config, then, now, samples.of(flow))
        })
    }

    /// Brings the estimates to where they are after `times` repetitions of such a period.
    pub(crate) fn repeat(
        &mut self,
        (then, now): (&[Estimates], &[Estimates]),
        samples: &Samples,
        times: u64,
    ) {
        for ((flow, sender), both) in (0..).zip(&mut self.senders).zip(then.iter().zip(now)) {
            sender.repeat(&self.config, both, samples.of(flow), times);
        }
    }

    /// Visits the state.
    pub(crate) fn visit(&mut self, v: &mut impl Visitor) {
        let Transport {
            config: _,
            flows,
            senders,
            receivers,
            free,
            // Constant.
            entropies: _,
            // Runs in which it is set are not compared.
            spraying: _,
            samples: _,
            active,
        } = self;
        v.both(flows.len() as u32, *active);
        v.same(free.0.len() as u64);
        for slots in &free.0 {
            v.same(slots.len() as u64);
            slots.iter().for_each(|slot| v.same((*slot).into()));
        }
        let both = senders.iter_mut().zip(receivers);
        for (flow, (sender, receiver)) in flows.iter_mut().zip(both) {
            let Flow { src, dst, entropy, open, ecn, timer, owner, reported } = flow;
            v.same(match *reported {
                u32::MAX => u64::MAX,
                segment => (segment - sender.base()).into(),
            });
            v.both(*src, *dst);
            v.both((*entropy).into(), u32::from(*open) << 1 | u32::from(*ecn));
            match *owner {
                Owner::Workload(number) => v.both(0, number),
                Owner::Job(job, stream) => v.both(job + 1, stream),
            }
            timer.visit(v);
            let una = sender.base();
            sender.visit(v);
            receiver.visit(v, una);
        }
    }

    /// Reads what these packets will need, so that all of it comes into the cache together.
    pub(crate) fn look_ahead(&self, expected: &[Expected]) {
        let mut sum = 0;
        for &Expected { flow, kind } in expected {
            let flow = flow as usize;
            sum ^= self.flows[flow].src;
            sum ^= match kind {
                Kind::Ack => self.senders[flow].touch(),
                _ => self.receivers[flow].touch(),
            };
        }
        std::hint::black_box(sum);
    }

    /// Parameters.
    pub fn config(&self) -> &TcpConfig {
        &self.config
    }

    /// Opens a flow between hosts; without `ecn` its sender gets no marks.
    pub fn open(&mut self, src: u32, dst: u32, owner: Owner, ecn: bool) -> u32 {
        let slot = self.free.take(src);
        let timer = slot.map_or(Timer::default(), |s| self.flows[s as usize].timer);
        let (entropy, reported) = (self.entropies.of(owner), u32::MAX);
        let flow = Flow { src, dst, entropy, open: true, ecn, timer, owner, reported };
        let (sender, receiver) = (Sender::new(&self.config), Receiver::default());
        self.active += 1;
        match slot {
            Some(slot) => {
                let at = slot as usize;
                (self.flows[at], self.senders[at], self.receivers[at]) = (flow, sender, receiver);
                slot
            }
            None => {
                self.flows.push(flow);
                self.senders.push(sender);
                self.receivers.push(receiver);
                self.flows.len() as u32 - 1
            }
        }
    }

    /// Queues a message on a flow; returns the end of its segments.
    pub fn submit(&mut self, net: &mut Region, flow: u32, bytes: u64) -> u32 {
        let (_, end) = self.senders[flow as usize].submit(&self.config, bytes);
        self.receivers[flow as usize].expect(end);
        self.pump(net, flow);
        end
    }

    /// The first segment of a flow that is not acknowledged.
    pub(crate) fn acknowledged(&self, flow: u32) -> u32 {
        self.senders[flow as usize].base()
    }

    /// Reports once that all segments of a flow before `end` are acknowledged, which they are not yet.
    pub(crate) fn report_acknowledgement(&mut self, flow: u32, end: u32) {
        self.flows[flow as usize].reported = end;
    }

    /// Closes a flow of a job.
    pub fn close(&mut self, net: &mut Region, flow: u32) {
        let state = &mut self.flows[flow as usize];
        if std::mem::replace(&mut state.open, false) {
            self.active -= 1;
            net.set_timer(net.now_ps() + SLOT_REST_PS, SLOT | u64::from(flow));
        }
    }

    /// Handles a packet that has arrived at a host.
    #[inline]
    pub fn on_packet(&mut self, net: &mut Region, packet: &Packet) -> Option<Progress> {
        match packet.kind() {
            Kind::Data => self.on_data(net, packet),
            _ => self.on_ack(net, packet),
        }
    }

    /// Handles a timer of the transport's classes.
    pub fn on_timer(&mut self, net: &mut Region, key: u64) {
        let slot = (key & !CLASS) as u32;
        if key & CLASS == SLOT {
            self.free.put(self.flows[slot as usize].src, slot);
            return;
        }
        let (flow, sender) = (&mut self.flows[slot as usize], &mut self.senders[slot as usize]);
        flow.timer.ring(net.now_ps());
        if !flow.open {
            return;
        }
        if sender.deadline_ps() <= net.now_ps() {
            sender.time_out(&self.config, net.now_ps());
        }
        self.pump(net, slot);
    }

    /// Window of a flow, in segments.
    pub fn window(&self, flow: u32) -> f64 {
        self.senders[flow as usize].window()
    }

    /// Flows of the workload that are not complete: number, and payload bytes received in order.
    pub fn unfinished(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.flows.iter().zip(&self.receivers).filter_map(|(flow, receiver)| match flow.owner {
            Owner::Workload(number) if flow.open && !receiver.is_complete() => {
                let bytes = u64::from(receiver.expected()) * u64::from(self.config.segment_bytes);
                Some((number, bytes))
            }
            _ => None,
        })
    }

    /// Segments of a flow received in order.
    pub fn received(&self, flow: u32) -> u32 {
        self.receivers[flow as usize].expected()
    }

    #[inline]
    fn on_data(&mut self, net: &mut Region, packet: &Packet) -> Option<Progress> {
        let slot = packet.flow as usize;
        let receiver = &mut self.receivers[slot];
        let complete = receiver.take(packet.seq);
        let flow = &self.flows[slot];
        let ack = Packet::new(Kind::Ack, packet.flow, receiver.expected(), self.config.ack_bytes);
        let mut ack = ack.to(flow.src);
        ack.aux = packet.seq;
        ack.entropy = !flow.entropy;
        ack.set_ece(packet.ce() && flow.ecn);
        let link = net.uplink(flow.dst);
        net.send(link, ack);
        if complete == 0 {
            return None;
        }
        Some(match flow.owner {
            Owner::Workload(number) => Progress::Complete {
                number,
                resent: self.senders[slot].resent,
                timeouts: self.senders[slot].timeouts,
            },
            owner => Progress::Messages(owner, complete),
        })
    }

    #[inline]
    fn on_ack(&mut self, net: &mut Region, packet: &Packet) -> Option<Progress> {
        let slot = packet.flow;
        if !self.flows[slot as usize].open {
            return None;
        }
        let sender = &mut self.senders[slot as usize];
        sender.on_ack(&self.config, net.now_ps(), packet.seq, packet.aux, packet.ece());
        if let Some(samples) = &mut self.samples
            && let Some(rtt_ps) = sender.take_sample()
            && samples.len() < SAMPLES_MAX
        {
            samples.push((slot, rtt_ps));
        }
        self.pump(net, slot);
        let sender = &self.senders[slot as usize];
        let flow = &mut self.flows[slot as usize];
        if sender.is_idle() && matches!(flow.owner, Owner::Workload(_)) {
            flow.open = false;
            self.active -= 1;
            if sender.resent > 0 || self.spraying {
                net.set_timer(net.now_ps() + SLOT_REST_PS, SLOT | u64::from(slot));
            } else {
                self.free.put(flow.src, slot);
            }
        }
        let due = sender.base() >= flow.reported;
        due.then(|| {
            flow.reported = u32::MAX;
            Progress::Acknowledged(flow.owner)
        })
    }

    #[inline]
    fn pump(&mut self, net: &mut Region, slot: u32) {
        let (flow, sender) = (&mut self.flows[slot as usize], &mut self.senders[slot as usize]);
        while let Some(segments) = sender.poll(&self.config, net.now_ps()) {
            let bytes = segments.payload + self.config.header_bytes;
            let mut packet = Packet::new(Kind::Data, slot, segments.seq, bytes).to(flow.dst);
            packet.aux = segments.count;
            packet.entropy = flow.entropy;
            let link = net.uplink(flow.src);
            net.send(link, packet);
        }
        flow.timer.set(net, sender.deadline_ps(), RTO | u64::from(slot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_goes_to_a_flow_of_the_same_host() {
        let mut free = FreeSlots::default();
        [(3, 7), (5, 2), (3, 4)].into_iter().for_each(|(host, slot)| free.put(host, slot));
        assert_eq!(
            [3, 3, 3, 5, 9].map(|host| free.take(host)),
            [Some(4), Some(7), None, Some(2), None]
        );
    }
}
