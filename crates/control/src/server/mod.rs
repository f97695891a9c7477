//! The controller as a process: one task owns the state, gRPC handlers send it events.

mod accept;
mod actor;
mod authorisation;
mod call_layer;
mod connections;
mod enrolment;
mod handshakes;
mod incomplete;
mod owner;
mod revocations;
mod service;
mod status_cache;

use std::net::SocketAddr;
use std::path::PathBuf;
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
use self::owner::Owner;
use crate::client::MESSAGE_MAX;
use crate::decide::Settings;
use crate::engine::Engine;
use crate::error::ControlError;
use crate::limits::{CALLS_PER_CONNECTION, REPORT_MAX, STREAM_WINDOW};
use crate::pb::controller_server::ControllerServer;
use crate::security::Security;
use crate::store::{MemoryStore, SqliteStore, Store};

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
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("netsum-controller")
            .enable_all()
            .build()
            .map_err(|source| ControlError::System { what: "cannot start a runtime", source })?;
        let listener = runtime.block_on(listen(config.listen))?;
        let address =
            listener.local_addr().map_err(|error| not_listening(config.listen, &error))?;
        let (stop, stopped) = oneshot::channel();
        let (finished, done) = std::sync::mpsc::channel();
        let serving = serve(config, store, listener, address, stopped)?;
        runtime.spawn(async move {
            serving.await;
            let _ = finished.send(());
        });
        Ok(Controller { address, stop: Some(stop), runtime: Some(runtime), done })
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

/// Loads the store and returns the future that serves until `stopped`.
fn serve(
    config: Config,
    store: Box<dyn Store>,
    listener: TcpListener,
    address: SocketAddr,
    stopped: oneshot::Receiver<()>,
) -> Result<impl Future<Output = ()> + Send, ControlError> {
    check_security(&config.security, &config.fabric.name)?;
    let place = store.place();
    let engine = Engine::new(config.fabric, config.settings, store)?;
    let state = engine.state();
    let (fabric, incarnation) = (&state.fabric().name, format!("{:016x}", state.incarnation()));
    let jobs = state.job_list(false).len();
    tracing::info!(%address, %fabric, store = place, incarnation, jobs, "controller is up");
    let (owner, inbox) = Owner::queue();
    let (quit, quitting) = oneshot::channel();
    let service = service::Service::new(owner, address, engine.state().fabric_reply());
    let service = ControllerServer::new(service)
        .max_decoding_message_size(REPORT_MAX)
        .max_encoding_message_size(MESSAGE_MAX);
    let connections = Connections::new(ConnectionLimits::of_system());
    let service = CallLayer::new(service, connections.clone());
    Ok(async move {
        // A thread of its own: gRPC's threads may be busy with a storm of calls.
        let here = tokio::runtime::Handle::current();
        let run = move || here.block_on(actor::run(engine, inbox, quitting));
        let actor = tokio::task::spawn_blocking(run);
        let (accepted, secured) = mpsc::channel(CONNECTIONS_QUEUED);
        let incoming = connections.accept(listener);
        let acceptor = tokio::spawn(accept::run(incoming, config.security, accepted));
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
        let _ = actor.await;
        // The address is free again once the acceptor has ended.
        let _ = acceptor.await;
    })
}

/// Checks that the credentials are the controller's. Without any, warns once.
fn check_security(security: &Security, fabric: &str) -> Result<(), ControlError> {
    let Security::Tls(credentials) = security else {
        tracing::warn!(
            "no credentials: whoever reaches this port may start and stop jobs; see docs/security.md"
        );
        return Ok(());
    };
    let found = credentials.identity();
    if found.fabric() == fabric && *found.role() == Role::Controller {
        return Ok(());
    }
    let (folder, found) = (credentials.folder().to_owned(), found.to_string());
    Err(ControlError::NotController { folder, found, fabric: fabric.to_owned() })
}

const THREADS: usize = 2;
const BACKLOG: u32 = 1024;
/// Connections that wait for the gRPC server, which takes them at once.
const CONNECTIONS_QUEUED: usize = 16;
/// A frozen peer is detected within twice this.
const KEEP_ALIVE: Duration = Duration::from_secs(2);
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
