//! `netsum-operator`: see `--help`.

use std::ffi::OsString;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, Subcommand};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use netsum_control::client::ControllerEndpoint;
use netsum_operator::admission::{Settings, review};
use netsum_operator::cache::watch;
use netsum_operator::certificate::{Place, serving};
use netsum_operator::fabric::{FabricKeeper, Objects};
use netsum_operator::names::{ClusterId, JOB};
use netsum_operator::resources::{AggregationJob, Fabric, definitions};
use netsum_operator::sweep::Sweeper;
use netsum_operator::webhook::Serving;
use netsum_operator::{OperatorError, webhook};
use parking_lot::RwLock;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tracing_subscriber::EnvFilter;

/// Runs netsum on Kubernetes.
#[derive(Parser)]
#[command(name = "netsum-operator", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Keep a fabric's file, admit pods, and end jobs whose pods are gone. Several replicas may run.
    Run(Box<Run>),
    /// Print the definitions of the custom resources, for kubectl apply.
    Crds,
}

#[derive(clap::Args)]
struct Run {
    /// Namespace of the operator, the controllers and the Fabric
    #[arg(long, value_name = "NAME", env = "POD_NAMESPACE")]
    namespace: String,
    /// Name of the Fabric
    #[arg(long, value_name = "NAME", default_value = "netsum")]
    fabric: String,
    /// ConfigMap for the fabric file
    #[arg(long, value_name = "NAME", default_value = "netsum-fabric")]
    config_map: String,
    /// StatefulSet of the controllers, which start anew with each fabric file
    #[arg(long, value_name = "NAME", default_value = "netsum-controller")]
    controllers: String,
    /// Labels of the controllers' Services, one for each controller
    #[arg(long, value_name = "SELECTOR", default_value = "netsum.dev/component=controller")]
    services: String,
    /// Addresses of the controllers, for the operator and for pods, separated by commas
    #[arg(long, value_name = "ADDR", env = "NETSUM_CONTROLLER")]
    controller: String,
    /// Folder with an operator's certificate, if the controllers demand one
    #[arg(long, value_name = "FOLDER", env = "NETSUM_CREDENTIALS")]
    credentials: Option<OsString>,
    /// Secret with the credentials of ranks, in the namespace of each job; without credentials of the operator it is not
    /// used
    #[arg(long, value_name = "NAME", default_value = "netsum-credentials")]
    job_credentials: String,
    /// Serve the admission here
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:9443")]
    listen: SocketAddr,
    /// Secret that keeps the certificate of the admission
    #[arg(long, value_name = "NAME", default_value = "netsum-admission")]
    secret: String,
    /// Service by which the API server reaches the admission
    #[arg(long, value_name = "NAME", default_value = "netsum-operator")]
    service: String,
    /// MutatingWebhookConfiguration of the admission
    #[arg(long, value_name = "NAME", default_value = "netsum")]
    webhook: String,
    /// Write the log as JSON, one object per event
    #[arg(long)]
    json_log: bool,
}

fn main() -> ExitCode {
    let run = match Arguments::parse().command {
        Command::Crds => {
            println!("{:#}", definitions());
            return ExitCode::SUCCESS;
        }
        Command::Run(run) => run,
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if run.json_log {
        log.json().init()
    } else {
        log.init()
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let done = runtime
        .map_err(|source| OperatorError::System { what: "cannot start a runtime", source })
        .and_then(|runtime| runtime.block_on(operate(*run)));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("netsum-operator: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn operate(run: Run) -> Result<(), OperatorError> {
    let stop = stop()?;
    let credentials = run.credentials.as_deref().filter(|folder| !folder.is_empty());
    let controllers =
        ControllerEndpoint::with_credentials(&run.controller, credentials.map(Path::new))?;
    let config = kube::Config::infer().await;
    let config = config.map_err(|error| OperatorError::Configuration(error.to_string()))?;
    let client = Client::try_from(config).map_err(OperatorError::api("the API server"))?;
    let cluster = cluster(&client).await?;
    let (nodes_changed, pods_changed) = (Arc::<Notify>::default(), Arc::<Notify>::default());
    let all = watcher::Config::default;
    let own = Api::<Fabric>::namespaced(client.clone(), &run.namespace);
    let (nodes, fabrics, pods, resources) = tokio::try_join!(
        watch(Api::<Node>::all(client.clone()), all(), slim_node, nodes_changed.clone()),
        watch(own, all(), drop_managed, nodes_changed.clone()),
        watch(Api::<Pod>::all(client.clone()), all().labels(JOB), slim_pod, pods_changed.clone()),
        watch(
            Api::<AggregationJob>::all(client.clone()),
            all(),
            drop_managed,
            pods_changed.clone()
        ),
    )?;
    let place = Place {
        namespace: run.namespace.clone(),
        secret: run.secret,
        service: run.service,
        webhook: run.webhook,
    };
    let certificate = Arc::new(RwLock::new(serving(&client, &place).await?));
    let settings = Settings {
        controllers: run.controller.clone(),
        credentials_secret: credentials.map(|_| run.job_credentials.clone()),
        cluster: cluster.clone(),
    };
    let jobs = resources.clone();
    let lookup = move |namespace: &str, name: &str| {
        let found = jobs.get(&ObjectRef::new(name).within(namespace))?;
        Some(found.spec.clone())
    };
    let review = move |asked: &serde_json::Value| review(&settings, asked, &lookup);
    let served = webhook::serve(run.listen, certificate.clone(), review).await?;
    let keeper = FabricKeeper {
        client: client.clone(),
        namespace: run.namespace,
        objects: Objects {
            fabric: run.fabric,
            config_map: run.config_map,
            stateful_set: run.controllers,
            services: run.services,
        },
        controllers: controllers.clone(),
        nodes,
        fabrics,
    };
    let sweeper = Sweeper { client: client.clone(), controllers, cluster, pods, resources };
    announce(run.listen);
    let renewed = renew(&client, &place, &certificate);
    let ended = |what| Err(OperatorError::Ended(what));
    tokio::select! {
        () = stop => Ok(()),
        ended_by = tokio::spawn(keeper.run(nodes_changed)) => { drop(ended_by); ended("the fabric's keeper") }
        ended_by = tokio::spawn(sweeper.run(pods_changed)) => { drop(ended_by); ended("the sweeper") }
        () = served => ended("the admission"),
        () = renewed => ended("the renewal"),
    }
}

/// Replaces the certificate of the admission before it ends, and takes it over from a replica that was faster.
async fn renew(client: &Client, place: &Place, certificate: &Serving) {
    loop {
        tokio::time::sleep(RENEWAL).await;
        match serving(client, place).await {
            Ok(new) => *certificate.write() = new,
            Err(error) => tracing::warn!(%error, "the certificate is not up to date"),
        }
    }
}

/// The cluster's identity: the UID of a namespace that exists as long as it.
async fn cluster(client: &Client) -> Result<ClusterId, OperatorError> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let system = namespaces.get("kube-system").await;
    let system = system.map_err(OperatorError::api("Namespace kube-system"))?;
    Ok(ClusterId::of_uid(&system.uid().unwrap_or_default()))
}

/// Images and conditions of nodes take most of their size, and change all the time.
fn slim_node(node: &mut Node) {
    node.metadata.managed_fields = None;
    node.metadata.annotations = None;
    node.spec = None;
    if let Some(status) = &mut node.status {
        let addresses = status.addresses.take();
        *status = k8s_openapi::api::core::v1::NodeStatus { addresses, ..Default::default() };
    }
}

fn slim_pod(pod: &mut Pod) {
    pod.metadata.managed_fields = None;
    pod.spec = None;
    if let Some(status) = &mut pod.status {
        let phase = status.phase.take();
        *status = k8s_openapi::api::core::v1::PodStatus { phase, ..Default::default() };
    }
}

fn drop_managed<K: kube::Resource>(object: &mut K) {
    object.meta_mut().managed_fields = None;
}

/// Tells whoever started the process that it serves. A closed stdout is no reason to stop.
fn announce(address: SocketAddr) {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "ready {address}");
    let _ = out.flush();
}

/// Completes on SIGTERM or SIGINT.
fn stop() -> Result<impl Future<Output = ()>, OperatorError> {
    let handler = |kind| {
        let what = "cannot handle signals";
        signal(kind).map_err(|source| OperatorError::System { what, source })
    };
    let (mut terminate, mut interrupt) =
        (handler(SignalKind::terminate())?, handler(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping");
    })
}

/// How often the certificate of the admission is looked at.
const RENEWAL: Duration = Duration::from_secs(60);
