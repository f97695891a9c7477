//! A controller and switches on loopback addresses: two racks of two hosts, two spines.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netsum_control::decide::Settings;
use netsum_control::{Config, Controller, Security};
use netsum_switch::{Daemon, Role};
use netsum_topo::{Addressing, Rate, leaf_spine};
use serde_json::Value;
use tokio::sync::oneshot::{Sender, channel};

/// Hosts, with a rank on each.
pub const RANKS: usize = 4;

pub struct Fabric {
    controller: Controller,
    /// Name, how to stop it, its thread.
    switches: Vec<(String, Sender<()>, JoinHandle<()>)>,
}

impl Fabric {
    pub fn start() -> Fabric {
        static NEXT: AtomicU8 = AtomicU8::new(0);
        let net = crate::FIRST_BLOCK + NEXT.fetch_add(1, Ordering::Relaxed);
        let rate = Rate(10_000_000_000);
        let addressing = Addressing { base: [127, net], ..Addressing::default() };
        let fabric = leaf_spine(2, 2, 2, rate, rate, addressing).unwrap();
        let settings = Settings { min_bytes: 1024, return_hold_ms: 100, ..Settings::default() };
        let listen = SocketAddr::new(fabric.controller.ip(), 0);
        let (store, security) = (None, Security::Trusted);
        let config = Config { fabric: fabric.clone(), listen, store, settings, security };
        let controller = Controller::start(config).unwrap();
        let address = controller.address().to_string();
        let start = |switch: &netsum_topo::Switch| {
            let config = netsum_switch::Config {
                threads: 1,
                name: switch.name.clone(),
                controller: address.clone(),
                credentials: None,
                role: Role::Switch,
                listen: switch.address,
                slots: switch.slots,
                policy: switch.policy,
                memory: switch.memory.0,
                ports: Vec::new(),
                metrics: None,
                accelerator: None,
            };
            let (stop, stopped) = channel::<()>();
            let thread = std::thread::spawn(move || {
                let runtime =
                    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    let daemon = Daemon::start(config).await.unwrap();
                    let _ = daemon.run(async { drop(stopped.await) }).await;
                });
            });
            (switch.name.clone(), stop, thread)
        };
        let switches: Vec<_> = fabric.switches.iter().map(start).collect();
        let fabric = Fabric { controller, switches };
        fabric.wait_until("all switches are up", |status| {
            let switches = status["switches"].as_array().unwrap();
            switches.iter().filter(|switch| switch["state"] == "up").count() == 4
        });
        fabric
    }

    pub fn controller(&self) -> String {
        self.controller.address().to_string()
    }

    pub fn kill(&mut self, name: &str) {
        let index = self.switches.iter().position(|(other, ..)| other == name).unwrap();
        let (_, stop, thread) = self.switches.remove(index);
        drop(stop);
        thread.join().unwrap();
    }

    fn status(&self) -> Value {
        let patience = Duration::from_secs(30);
        let status = netsum_collective::controller_status(&self.controller(), None, patience);
        serde_json::from_str(&status.unwrap()).unwrap()
    }

    fn wait_until(&self, what: &str, condition: impl Fn(&Value) -> bool) {
        let started = Instant::now();
        while !condition(&self.status()) {
            assert!(started.elapsed() < Duration::from_secs(60), "waited until {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
