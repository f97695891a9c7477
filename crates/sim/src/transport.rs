//! The flows of all hosts: [`tcp`](crate::tcp) over the simulated network.

use crate::network::Region;
use crate::packet::{Kind, Packet};
use crate::random::Random;
use crate::tcp::{Receiver, Sender, TcpConfig};
use crate::timer::{CLASS, Timer};

/// Timer class of retransmission (bits 56 to 62 of the key).
pub(crate) const RTO: u64 = 2 << 56;
/// Timer class of slots whose flow left packets in the network: the slot is reused after this timer.
pub(crate) const SLOT: u64 = 3 << 56;
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
    src: u16,
    dst: u16,
    entropy: u16,
    open: bool,
    /// Whether the receiver echoes marks.
    ecn: bool,
    timer: Timer,
    owner: Owner,
}

/// An event of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Number of messages that have arrived completely.
    Messages(Owner, u32),
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
    free: Vec<u32>,
    entropies: Entropies,
    spraying: bool,
    /// Flows that are open.
    pub active: u32,
}

/// Random numbers that select the paths of flows, one per flow in the order of opening.
pub(crate) struct Entropies(Random);

impl Entropies {
    pub(crate) fn new(seed: u64) -> Entropies {
        Entropies(Random::derived(seed, "paths"))
    }

    pub(crate) fn draw(&mut self) -> u16 {
        self.0.bits() as u16
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
            free: Vec::new(),
            entropies: Entropies::new(seed),
            spraying,
            active: 0,
        }
    }

    /// Parameters.
    pub fn config(&self) -> &TcpConfig {
        &self.config
    }

    /// Opens a flow between hosts; without `ecn` its sender gets no marks.
    pub fn open(&mut self, src: u32, dst: u32, owner: Owner, ecn: bool) -> u32 {
        let slot = self.free.pop();
        let timer = slot.map_or(Timer::default(), |s| self.flows[s as usize].timer);
        let flow = Flow {
            src: src as u16,
            dst: dst as u16,
            entropy: self.entropies.draw(),
            open: true,
            ecn,
            timer,
            owner,
        };
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

    /// Queues a message on a flow.
    pub fn submit(&mut self, net: &mut Region, flow: u32, bytes: u64) {
        let (_, end) = self.senders[flow as usize].submit(&self.config, bytes);
        self.receivers[flow as usize].expect(end);
        self.pump(net, flow);
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
            _ => {
                self.on_ack(net, packet);
                None
            }
        }
    }

    /// Handles a timer of the transport's classes.
    pub fn on_timer(&mut self, net: &mut Region, key: u64) {
        let slot = (key & !CLASS) as u32;
        if key & CLASS == SLOT {
            self.free.push(slot);
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
        let mut ack =
            Packet::new(Kind::Ack, packet.flow, receiver.expected(), self.config.ack_bytes);
        ack.aux = packet.seq;
        ack.dst = flow.src;
        ack.entropy = !flow.entropy;
        ack.set_ece(packet.ce() && flow.ecn);
        let link = net.uplink(u32::from(flow.dst));
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
    fn on_ack(&mut self, net: &mut Region, packet: &Packet) {
        let slot = packet.flow;
        if !self.flows[slot as usize].open {
            return;
        }
        let sender = &mut self.senders[slot as usize];
        sender.on_ack(&self.config, net.now_ps(), packet.seq, packet.aux, packet.ece());
        self.pump(net, slot);
        let sender = &self.senders[slot as usize];
        let flow = &mut self.flows[slot as usize];
        if sender.is_idle() && matches!(flow.owner, Owner::Workload(_)) {
            flow.open = false;
            self.active -= 1;
            if sender.resent > 0 || self.spraying {
                net.set_timer(net.now_ps() + SLOT_REST_PS, SLOT | u64::from(slot));
            } else {
                self.free.push(slot);
            }
        }
    }

    #[inline]
    fn pump(&mut self, net: &mut Region, slot: u32) {
        let (flow, sender) = (&mut self.flows[slot as usize], &mut self.senders[slot as usize]);
        while let Some(segments) = sender.poll(&self.config, net.now_ps()) {
            let bytes = segments.payload + self.config.header_bytes;
            let mut packet = Packet::new(Kind::Data, slot, segments.seq, bytes);
            packet.aux = segments.count;
            packet.dst = flow.dst;
            packet.entropy = flow.entropy;
            let link = net.uplink(u32::from(flow.src));
            net.send(link, packet);
        }
        flow.timer.set(net, sender.deadline_ps(), RTO | u64::from(slot));
    }
}
