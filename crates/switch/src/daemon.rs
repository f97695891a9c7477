//! The process: a data thread that works with or without a controller, and a session with the controller.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use netsum_control::client::{ControllerEndpoint, LeaseOffer, SwitchClient, SwitchNotice};
use netsum_control::{Security, pb};
use netsum_identity::Role as IdentityRole;
use netsum_net::switch::{self, SwitchDriver, SwitchOptions};
use netsum_net::udp::SocketOptions;
use netsum_net::{NetError, mtu_of};
use netsum_proto::atp::{Policy, SwitchConfig};
use netsum_proto::values::row_cost;
use netsum_topo::SlotPolicy;
use netsum_wire::tag::Mac;
use netsum_wire::{Epoch, HEADERS_MAX, JobId};
use tokio::net::TcpListener;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::metrics::Metrics;
use crate::{Config, Role, SwitchError, convert, http};

/// MTU reported to the controller if the interface's is unknown.
const USUAL_MTU: u32 = 1500;
/// How often the end of the own certificate is looked at.
const REMINDER: Duration = Duration::from_secs(60);
/// Interval of counters for the controller; its heartbeats carry the last ones.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// A window of several jobs; with less, the controller plans smaller windows.
const ENOUGH_RECEIVE_BUFFER: usize = 16 << 20;

/// Payloads for MTUs of 1500, about 4200 and 9000.
const FRAGMENTS: [u16; 3] = [8832, 4096, 1408];
/// Time without an addition after which a slot is flushed: more than a round trip on a busy machine.
const STRAGGLER_NS: u64 = 200_000_000;
/// With preemption, time without an addition after which a slot yields.
const PATIENCE_NS: u64 = 20_000_000;

/// A switch or server with open sockets.
pub struct Daemon {
    config: Config,
    controller: ControllerEndpoint,
    driver: Arc<SwitchDriver>,
    metrics: Option<TcpListener>,
    /// When the connection to the controller was lost.
    away_since: Option<Instant>,
    /// Incarnation of the controller that granted the leases; 0 before the first.
    incarnation: Arc<AtomicU64>,
    /// The longest of all leases: neighbours that are silent for longer have no job here any more.
    idle_expiry: Option<Duration>,
}

impl Daemon {
    /// Opens the sockets and starts the data thread; the controller is not needed for that.
    pub async fn start(config: Config) -> Result<Daemon, SwitchError> {
        Daemon::start_confined(config, |_| Ok(())).await
    }

    /// The same. Once all sockets are open and before a thread is started, `confine` may restrict the process. It is told
    /// whether the in-kernel switch is at work. Errors: also those of `confine`.
    pub async fn start_confined(
        config: Config,
        confine: impl FnOnce(bool) -> Result<(), SwitchError>,
    ) -> Result<Daemon, SwitchError> {
        let controller = endpoint(&config)?;
        let options = SwitchOptions {
            bind: config.listen,
            memory: if config.role == Role::Switch { config.memory } else { 0 },
            role: role(&config),
            socket: SocketOptions::default(),
            threads: config.threads,
        };
        let metrics = match config.metrics {
            None => None,
            Some(address) => {
                let listener = TcpListener::bind(address).await;
                Some(listener.map_err(|source| SwitchError::Metrics { address, source })?)
            }
        };
        let driver = match &config.accelerator {
            None => SwitchDriver::start_confined(&options, &config.ports, confine)?,
            Some(device) => SwitchDriver::start_confined_on(&options, device, || confine(false))?,
        };
        let driver = Arc::new(driver);
        let socket = driver.socket();
        tracing::info!(name = config.name, address = %driver.local_addr(), ?socket, "listening");
        if socket.recv_buffer < ENOUGH_RECEIVE_BUFFER {
            tracing::warn!(
                bytes = socket.recv_buffer,
                "a small receive buffer makes small windows; raise net.core.rmem_max or give the process CAP_NET_ADMIN"
            );
        }
        Ok(Daemon {
            config,
            controller,
            driver,
            metrics,
            away_since: Some(Instant::now()),
            incarnation: Arc::default(),
            idle_expiry: None,
        })
    }

    /// Address of the data socket.
    pub fn local_addr(&self) -> SocketAddr {
        self.driver.local_addr()
    }

    /// Address of the metrics, if they are served.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// Serves until `shutdown` completes. Errors: the data thread or the session has ended.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) -> Result<(), SwitchError> {
        let metrics = self.metrics.take().map(|listener| {
            let metrics = Arc::new(Metrics::new(&self.config.name, self.driver.clone()));
            let security = self.controller.security().clone();
            tokio::spawn(http::serve(listener, security, move || metrics.text(), http::PATIENCE))
        });
        let (client, notices) = SwitchClient::spawn(&self.controller, self.hello());
        let outcome = self.serve(&client, notices, shutdown).await;
        client.close();
        if let Some(task) = metrics {
            task.abort();
        }
        outcome
    }

    async fn serve(
        &mut self,
        client: &SwitchClient,
        mut notices: UnboundedReceiver<SwitchNotice>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), SwitchError> {
        let mut shutdown = std::pin::pin!(shutdown);
        let mut clock = tokio::time::interval(HEARTBEAT);
        let mut calendar = tokio::time::interval(REMINDER);
        loop {
            tokio::select! {
                () = &mut shutdown => return Ok(()),
                _ = clock.tick() => self.tick(client)?,
                _ = calendar.tick() => self.remind(),
                notice = notices.recv() => {
                    self.obey(client, notice.ok_or(SwitchError::SessionEnded)?)?;
                }
            }
        }
    }

    /// The hello message at each connection.
    fn hello(&self) -> impl Fn() -> pb::SwitchHello + Send + 'static {
        let (driver, name) = (self.driver.clone(), self.config.name.clone());
        let incarnation = self.incarnation.clone();
        let memory_bytes = self.config.memory;
        let (slots, slot_bytes) = (self.config.slots, row_bytes(self.config.listen.ip()).into());
        let (server, policy) = (self.config.role == Role::Server, self.config.policy.to_string());
        // An accelerator's buffers are as large as fragments of one MTU.
        let largest = if driver.fragment_limit().is_some() { USUAL_MTU } else { u32::MAX };
        // Two processes of one switch do not start in the same nanosecond.
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let instance = since_1970.as_nanos() as u64;
        // The kernel's program cannot use AES instructions.
        let aes = Mac::fastest() == Mac::Aegis && self.config.ports.is_empty();
        // The process behind the kernel's program decrypts; for an accelerator's line rate it would be too slow.
        let encrypts = Mac::has_aes() && driver.fragment_limit().is_none();
        let all_collectives = driver.fragment_limit().is_none();
        move || {
            let address = driver.local_addr();
            let snapshot = driver.snapshot();
            pb::SwitchHello {
                name: name.clone(),
                udp_address: address.to_string(),
                memory_bytes,
                receive_buffer_bytes: driver.socket().recv_buffer as u64,
                mtu: mtu_of(address.ip()).unwrap_or(USUAL_MTU).min(largest),
                // Without a data thread there are none, and the process is about to end.
                installed: snapshot.map_or_else(
                    |_| Vec::new(),
                    |s| convert::installed(&s, incarnation.load(Ordering::Relaxed)),
                ),
                server,
                slots,
                slot_bytes,
                policy: policy.clone(),
                instance,
                aes,
                encrypts,
                all_collectives,
                ..pb::SwitchHello::default()
            }
        }
    }

    fn tick(&mut self, client: &SwitchClient) -> Result<(), NetError> {
        client.heartbeat(convert::heartbeat(&self.driver.snapshot()?));
        if let (Some(since), Some(idle)) = (self.away_since, self.idle_expiry)
            && since.elapsed() >= idle
        {
            for lease in self.driver.expire(idle)? {
                tracing::warn!(
                    job = lease.job.0,
                    tree = lease.tree.0,
                    epoch = lease.epoch.0,
                    "took a lease back: its neighbours are silent and the controller is away"
                );
            }
        }
        Ok(())
    }

    /// Warns before the own certificate ends.
    fn remind(&self) {
        if let Security::Tls(credentials) = self.controller.security() {
            credentials.remind_of_end();
        }
    }

    fn obey(&mut self, client: &SwitchClient, notice: SwitchNotice) -> Result<(), NetError> {
        match notice {
            SwitchNotice::Connected => {
                self.away_since = None;
                tracing::info!(controller = self.config.controller, "connected");
            }
            SwitchNotice::Away { reason } => {
                self.away_since.get_or_insert_with(Instant::now);
                tracing::warn!(
                    controller = self.config.controller,
                    reason,
                    "away; leases stay, trying again"
                );
            }
            SwitchNotice::Refused { reason } => {
                self.away_since.get_or_insert_with(Instant::now);
                tracing::error!(
                    controller = self.config.controller,
                    reason,
                    "refused this switch; trying again"
                );
            }
            SwitchNotice::Incarnation(incarnation) => self.meet(incarnation)?,
            SwitchNotice::Install(offer) => {
                let LeaseOffer { job, tree, epoch, .. } = *offer;
                let outcome = match self.install(&offer) {
                    Err(SwitchError::Net(NetError::Stopped)) => return Err(NetError::Stopped),
                    Err(error) => Err(error.to_string()),
                    Ok(()) => Ok(()),
                };
                match &outcome {
                    Ok(()) => tracing::info!(job, tree, epoch, "installed a lease"),
                    Err(reason) => tracing::warn!(job, tree, epoch, reason, "refused a lease"),
                }
                client.ack(&offer, outcome);
            }
            SwitchNotice::Revoke { job, up_to } => {
                self.driver.revoke(job, up_to)?;
                tracing::info!(job = job.0, up_to = up_to.0, "revoked");
            }
        }
        Ok(())
    }

    /// Revokes leases of another incarnation of the controller, which may give their numbers to other jobs.
    fn meet(&mut self, incarnation: u64) -> Result<(), NetError> {
        let before = self.incarnation.swap(incarnation, Ordering::Relaxed);
        if before == 0 || before == incarnation {
            return Ok(());
        }
        for lease in convert::installed(&self.driver.snapshot()?, before) {
            self.driver.revoke(JobId(lease.job), Epoch(lease.epoch as u16))?;
            tracing::warn!(
                job = lease.job,
                tree = lease.tree,
                epoch = lease.epoch,
                "dropped a lease: the controller has another store than the one that granted it"
            );
        }
        Ok(())
    }

    fn install(&mut self, offer: &LeaseOffer) -> Result<(), SwitchError> {
        let terms = offer.terms.clone().map_err(SwitchError::Lease)?;
        self.driver.own(terms.lease.key().job, terms.owner)?;
        self.driver.install_with(terms.lease, terms.secrets)?;
        self.idle_expiry = self.idle_expiry.max(terms.idle_expiry);
        Ok(())
    }
}

/// The controller, with the switch's own credentials.
fn endpoint(config: &Config) -> Result<ControllerEndpoint, SwitchError> {
    let credentials = config.credentials.as_deref();
    let endpoint = ControllerEndpoint::with_credentials(&config.controller, credentials)?;
    let Security::Tls(credentials) = endpoint.security() else { return Ok(endpoint) };
    match credentials.identity().role() {
        IdentityRole::Switch(name) if *name == config.name => Ok(endpoint),
        _ => Err(SwitchError::OtherIdentity {
            folder: credentials.folder().to_owned(),
            found: credentials.identity().to_string(),
            name: config.name.clone(),
        }),
    }
}

/// The driver's role for protocols with slots.
fn role(config: &Config) -> switch::Role {
    let row_bytes = row_bytes(config.listen.ip());
    match config.role {
        Role::Switch => {
            let policy = match config.policy {
                SlotPolicy::Partition => Policy::Partition,
                SlotPolicy::FirstCome => Policy::FirstCome,
                SlotPolicy::Preempt => Policy::Preempt { patience_ns: PATIENCE_NS },
            };
            let (slots, straggler_ns) = (config.slots, STRAGGLER_NS);
            switch::Role::Switch(SwitchConfig { slots, row_bytes, policy, straggler_ns })
        }
        Role::Server => {
            let rows = config.memory / row_cost(row_bytes);
            switch::Role::Server { row_bytes, rows: rows as usize }
        }
    }
}

/// The largest payload for the interface's MTU.
fn row_bytes(ip: std::net::IpAddr) -> u16 {
    let room = mtu_of(ip).unwrap_or(USUAL_MTU).saturating_sub(HEADERS_MAX);
    let usual = FRAGMENTS.into_iter().find(|&bytes| u32::from(bytes) <= room);
    usual.unwrap_or((room / 4 * 4).max(4) as u16)
}
