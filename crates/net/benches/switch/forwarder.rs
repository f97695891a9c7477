//! The bare forwarder: receives and sends as many packets as the switch, without adding.

#![allow(unsafe_code)]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use netsum_net::CpuTime;
use netsum_net::udp::{RecvBatch, SendBatch, Socket, SocketOptions, Wake};
use netsum_proto::Secrets;
use netsum_wire::panama::HEADER_LEN;

use crate::Middle;
use crate::load::WORKERS;

/// Maximum number of fragments in flight.
const RING: usize = 1 << 16;

pub struct Forwarder {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    address: SocketAddr,
}

struct Shared {
    wake: Wake,
    stop: AtomicBool,
    workers: Mutex<Vec<SocketAddr>>,
    cpu: Mutex<Option<CpuTime>>,
}

/// A packet in the receive memory, until the batch has been sent.
#[derive(Clone, Copy)]
struct Packet(*const u8, usize);

// SAFETY: it never leaves the forwarder's thread; the queue that holds it is empty when the thread starts.
unsafe impl Send for Packet {}

impl Forwarder {
    pub fn start(bind: SocketAddr) -> Forwarder {
        let socket = Socket::bind(bind, &SocketOptions::default()).expect("the address is free");
        let address = socket.local_addr();
        let shared = Arc::new(Shared {
            wake: Wake::new().expect("an eventfd"),
            stop: AtomicBool::new(false),
            workers: Mutex::default(),
            cpu: Mutex::default(),
        });
        let of_thread = shared.clone();
        let thread = std::thread::spawn(move || run(&socket, &of_thread));
        Forwarder { shared, thread: Some(thread), address }
    }
}

impl Middle for Forwarder {
    fn address(&self) -> SocketAddr {
        self.address
    }

    fn connect(&self, workers: &[SocketAddr], _window: u16, _secrets: Option<Secrets>) {
        *self.shared.workers.lock().expect("no panic") = workers.to_vec();
        self.shared.wake.ring();
        self.cpu();
    }

    fn cpu(&self) -> CpuTime {
        *self.shared.cpu.lock().expect("no panic") = None;
        self.shared.wake.ring();
        loop {
            if let Some(cpu) = *self.shared.cpu.lock().expect("no panic") {
                return cpu;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(socket: &Socket, shared: &Shared) {
    let mut batch = RecvBatch::new();
    let mut outbound = SendBatch::<Packet>::new();
    let mut workers: Vec<SocketAddr> = Vec::new();
    let mut arrived = vec![0u8; RING];
    while !shared.stop.load(Ordering::Acquire) {
        if shared.wake.take() {
            workers.clone_from(&shared.workers.lock().expect("no panic"));
            for (i, worker) in workers.iter().enumerate() {
                outbound.set_destination(i, *worker);
            }
            *shared.cpu.lock().expect("no panic") = Some(CpuTime::of_this_thread());
        }
        if batch.recv(socket).expect("the socket works") == 0 {
            socket.wait(&shared.wake, Duration::from_secs(1));
            continue;
        }
        for message in batch.messages() {
            let Some(worker) = workers.iter().position(|w| *w == message.from) else {
                continue;
            };
            for packet in batch.packets(message).filter(|packet| packet.len() >= HEADER_LEN) {
                let vid = u32::from_be_bytes([packet[8], packet[9], packet[10], packet[11]]);
                let slot = &mut arrived[vid as usize % RING];
                *slot |= 1 << worker;
                if slot.count_ones() as usize == WORKERS {
                    *slot = 0;
                    let packet = Packet(packet.as_ptr(), packet.len());
                    (0..WORKERS).for_each(|to| outbound.push(to, packet));
                }
            }
        }
        outbound.flush(socket, |packet| {
            // SAFETY: it lies in `batch`, which is not accessed until the next receive.
            [unsafe { std::slice::from_raw_parts(packet.0, packet.1) }, &[]]
        });
    }
}
