//! The controller as a process: one task owns the state, gRPC handlers send it events.

mod accept;
mod actor;
mod authorisation;
mod call_layer;
mod connections;
mod election_state;
mod enrolment;
mod handshakes;
mod incomplete;
mod leadership;
mod owner;
mod questions;
mod refusal;
mod revocations;
mod service;
mod status_cache;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use netsum_identity::Role;
use netsum_topo::Fabric;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;

pub use self::enrolment::{Attempt, EnrolmentServer, join};

use self::call_layer::CallLayer;
use self::connections::{ConnectionLimits, Connections};
use self::election_state::{ElectionState, ElectionView, LeaderState};
use self::leadership::{Leadership, TermConfig};
use self::owner::Owner;
use self::service::Service;
use self::status_cache::StatusCache;
use crate::client::MESSAGE_MAX;
use crate::decide::Settings;
use crate::engine::Engine;
use crate::error::ControlError;
use crate::limits::{CALLS_PER_CONNECTION, REPORT_MAX, STREAM_WINDOW};
use crate::pb::controller_server::ControllerServer;
use crate::security::Security;
use crate::store::{Cluster, EtcdCredentials, MemoryStore, SqliteStore, Store, Threads};

/// Configuration of a controller.
#[derive(Debug, Clone)]
pub struct Config {
    /// The fabric.
    pub fabric: Fabric,
    /// Listening address; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// The store file; `None`: in memory, until the controller ends.
    pub store: Option<PathBuf>,
    /// Times and limits.
    pub settings: Settings,
    /// How connections are secured: the credentials are those of the fabric's controller.
    pub security: Security,
}

/// The store that several controllers share.
#[derive(Debug, Clone)]
pub struct SharedStore {
    /// Members of the etcd cluster, as `host:port`, separated by commas.
    pub endpoints: String,
    /// The credentials for the cluster; `None`: it demands none.
    pub credentials: Option<EtcdCredentials>,
    /// Where clients and the other controllers reach this one, as `host:port`; `None`: at its listening address.
    pub advertise: Option<String>,
}

/// A running controller, on its own threads.
#[derive(Debug)]
pub struct Controller {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    runtime: Option<tokio::runtime::Runtime>,
    done: std::sync::mpsc::Receiver<()>,
}

impl Controller {
    /// Opens the store, listens, and serves. Errors name the file or the address and the remedy.
    pub fn start(config: Config) -> Result<Controller, ControlError> {
        let store: Box<dyn Store> = match &config.store {
            Some(file) => Box::new(SqliteStore::open(file)?),
            None => Box::new(MemoryStore::drawn()?),
        };
        Controller::start_with(config, store)
    }

    /// Like [`Controller::start`], with an open store; `config.store` is ignored.
    pub fn start_with(config: Config, store: Box<dyn Store>) -> Result<Controller, ControlError> {
        let opened = Opened::open(&config)?;
        let term_config = TermConfig {
            fabric: config.fabric,
            settings: config.settings,
            address: opened.address.to_string(),
            security: config.security.clone(),
        };
        let address = term_config.address.clone();
        let (election, work, quit) = single(term_config, store)?;
        Ok(opened.serve(config.security, Service::new(election, address), work, quit))
    }

    /// Starts one of several controllers, which share an etcd cluster as their store; one of them leads. Does not wait
    /// for the cluster. `config.store` is ignored.
    pub fn start_in_cluster(
        config: Config,
        shared: SharedStore,
    ) -> Result<Controller, ControlError> {
        let cluster = Cluster::new(&shared.endpoints, shared.credentials, &config.fabric.name)?;
        let opened = Opened::open(&config)?;
        let address = shared.advertise.unwrap_or_else(|| opened.address.to_string());
        let (fabric, store) = (config.fabric.name.clone(), cluster.place());
        tracing::info!(address, fabric, store, "controller is up; another one may lead");
        let term_config = TermConfig {
            fabric: config.fabric,
            settings: Settings {
                switch_expected_ms: config.settings.switch_expected_ms.max(SWITCH_WAIT_MS),
                ..config.settings
            },
            address: address.clone(),
            security: config.security.clone(),
        };
        let (election, view) = ElectionView::channel(ElectionState::Following { leader: None });
        let (quit, quitting) = oneshot::channel();
        let threads = Threads::start()?;
        let work = async move {
            // Threads of its own: a leader whose gRPC is busy with a storm of calls must renew its record.
            let leadership = Leadership::new(term_config, cluster, election).run(quitting);
            threads.run(leadership).await;
        };
        Ok(opened.serve(config.security, Service::new(view, address), work, quit))
    }

    /// Listening address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops: streams are closed, then the store. Returns within about two seconds.
    pub fn stop(mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        let _ = self.done.recv_timeout(STOP_TIMEOUT);
    }

    /// Stops immediately, like a crash.
    pub fn kill(self) {}
}

impl Drop for Controller {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_millis(500));
        }
    }
}

/// An open port, before it serves.
struct Opened {
    runtime: tokio::runtime::Runtime,
    listener: TcpListener,
    address: SocketAddr,
}

impl Opened {
    fn open(config: &Config) -> Result<Opened, ControlError> {
        check_security(&config.security, &config.fabric)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("netsum-controller")
            .enable_all()
            .build()
            .map_err(|source| ControlError::System { what: "cannot start a runtime", source })?;
        let listener = runtime.block_on(listen(config.listen))?;
        let address =
            listener.local_addr().map_err(|error| not_listening(config.listen, &error))?;
        Ok(Opened { runtime, listener, address })
    }

    fn serve(
        self,
        security: Security,
        service: Service,
        work: impl Future<Output = ()> + Send + 'static,
        quit: oneshot::Sender<()>,
    ) -> Controller {
        let Opened { runtime, listener, address } = self;
        let (stop, stopped) = oneshot::channel();
        let (finished, done) = std::sync::mpsc::channel();
        let serving = serve(listener, security, service, work, quit, stopped);
        runtime.spawn(async move {
            serving.await;
            let _ = finished.send(());
        });
        Controller { address, stop: Some(stop), runtime: Some(runtime), done }
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, ControlError> {
    let attempt = || -> std::io::Result<TcpListener> {
        let socket = if address.is_ipv4() {
            tokio::net::TcpSocket::new_v4()
        } else {
            tokio::net::TcpSocket::new_v6()
        }?;
        // A restarted controller can use its port while old connections linger.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    attempt().map_err(|error| not_listening(address, &error))
}

fn not_listening(address: SocketAddr, error: &std::io::Error) -> ControlError {
    let reason = match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "another process listens there; stop it, or choose another port in the fabric file or with --listen"
                .to_owned()
        }
        std::io::ErrorKind::AddrNotAvailable => {
            "this machine does not have that address; correct `controller` in the fabric file, or use --listen"
                .to_owned()
        }
        std::io::ErrorKind::PermissionDenied => "ports below 1024 need root; choose a higher one".to_owned(),
        _ => error.to_string(),
    };
    ControlError::Listen { address: address.to_string(), reason }
}

/// A controller that has the store for itself: its only term begins now.
fn single(
    config: TermConfig,
    store: Box<dyn Store>,
) -> Result<(ElectionView, impl Future<Output = ()> + Send, oneshot::Sender<()>), ControlError> {
    let (address, place) = (config.address, store.place());
    let engine = Engine::new(config.fabric, config.settings, store)?;
    let state = engine.state();
    let (fabric, incarnation) = (&state.fabric().name, format!("{:016x}", state.incarnation()));
    let (jobs, term) = (state.job_list(false).len(), engine.term());
    tracing::info!(address, %fabric, store = place, incarnation, term, jobs, "controller is up");
    let (owner, inbox) = Owner::queue();
    let (fabric, status_cache) = (state.fabric_reply(), StatusCache::new(owner.clone(), address));
    let leader_state = LeaderState { owner, status_cache, fabric, term };
    let (election, view) = ElectionView::channel(ElectionState::Leading(Arc::new(leader_state)));
    let (quit, quitting) = oneshot::channel();
    let work = async move {
        // A thread of its own: gRPC's threads may be busy with a storm of calls.
        let here = tokio::runtime::Handle::current();
        let run = move || here.block_on(actor::run(engine, inbox, quitting));
        let _ = tokio::task::spawn_blocking(run).await;
        drop(election);
    };
    Ok((view, work, quit))
}

/// Serves until `stopped`. `work` decides, and ends after `quit`.
async fn serve(
    listener: TcpListener,
    security: Security,
    service: Service,
    work: impl Future<Output = ()> + Send + 'static,
    quit: oneshot::Sender<()>,
    stopped: oneshot::Receiver<()>,
) {
    let service = ControllerServer::new(service)
        .max_decoding_message_size(REPORT_MAX)
        .max_encoding_message_size(MESSAGE_MAX);
    let connections = Connections::new(ConnectionLimits::of_system());
    let service = CallLayer::new(service, connections.clone());
    let work = tokio::spawn(work);
    let (accepted, secured) = mpsc::channel(CONNECTIONS_QUEUED);
    let incoming = connections.accept(listener);
    let acceptor = tokio::spawn(accept::run(incoming, security, accepted));
    let shutdown = async move {
        let _ = stopped.await;
        // Streams end with their owner; otherwise the server would wait for them.
        let _ = quit.send(());
    };
    let served = Server::builder()
        .max_concurrent_streams(CALLS_PER_CONNECTION)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(4 * STREAM_WINDOW)
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
        .add_service(service)
        .serve_with_incoming_shutdown(ReceiverStream::new(secured), shutdown)
        .await;
    if let Err(error) = served {
        tracing::error!(%error, "the server ended");
    }
    let _ = work.await;
    // The address is free again once the acceptor has ended.
    let _ = acceptor.await;
}

/// Checks that the credentials are the controller's. Warns once of all that is unprotected.
fn check_security(security: &Security, fabric: &Fabric) -> Result<(), ControlError> {
    if fabric.trusted {
        tracing::warn!(
            "trusted = true: packets have no tags, so whoever reaches the network can change sums; see docs/security.md"
        );
    }
    let Security::Tls(credentials) = security else {
        tracing::warn!(
            "no credentials: whoever reaches this port may start and stop jobs; see docs/security.md"
        );
        return Ok(());
    };
    let found = credentials.identity();
    if found.fabric() == fabric.name && *found.role() == Role::Controller {
        return Ok(());
    }
    let (folder, found) = (credentials.folder().to_owned(), found.to_string());
    Err(ControlError::NotController { folder, found, fabric: fabric.name.clone() })
}

const THREADS: usize = 2;
const BACKLOG: u32 = 1024;
/// Connections that wait for the gRPC server, which takes them at once.
const CONNECTIONS_QUEUED: usize = 16;
/// A frozen peer is detected within twice this.
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// Switches of a leader that was cut off notice that within 2 s, and look for the next one: plans that need them wait.
const SWITCH_WAIT_MS: u64 = 4_000;
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
