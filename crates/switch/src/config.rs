//! The configuration, from command line and fabric file.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Parser, ValueEnum};
use netsum_net::switch::THREADS_MOST;
use netsum_sandbox::SandboxArguments;
use netsum_topo::{Bytes, Fabric, SLOTS_USUAL, SlotPolicy};

use crate::SwitchError;

/// Aggregates gradient fragments for the jobs that its controller grants memory.
///
/// As a switch it adds for all protocols at once. With --role server it completes the sums of protocol atp that
/// switches did not.
///
/// Either --fabric and --name, with the rest in the file, or --name, --controller and --listen. Prints "ready NAME
/// ADDRESS" on stdout once the data socket is open; logs go to stderr (RUST_LOG sets the level). The controller may be
/// unavailable at the start and at any later time.
#[derive(Clone, Debug, Parser)]
#[command(name = "netsum-switch", version)]
pub struct Arguments {
    /// Fabric file (TOML) that has this switch or server, its addresses and its memory
    #[arg(long, value_name = "FILE", required_unless_present = "controller")]
    #[arg(conflicts_with_all = ["controller", "listen", "memory", "slots", "policy"])]
    pub fabric: Option<PathBuf>,
    /// Role of the process
    #[arg(long, value_enum, default_value_t = Role::Switch)]
    pub role: Role,
    /// Name of this switch or server in the fabric
    #[arg(long, value_name = "NAME")]
    pub name: String,
    /// Address of the controller, as 127.77.0.1:7700; of several all, separated by commas
    #[arg(long, value_name = "ADDR", requires = "listen")]
    pub controller: Option<String>,
    /// UDP address for data, as 127.77.2.1:7701
    #[arg(long, value_name = "ADDR", requires = "controller")]
    pub listen: Option<SocketAddr>,
    /// Aggregation memory, as 64MiB
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub memory: Bytes,
    /// Slots of a switch for protocol atp, and as many for static pools; 0 for none
    #[arg(long, value_name = "N", default_value_t = SLOTS_USUAL)]
    pub slots: u32,
    /// How jobs share the slots: partition, first-come or preempt
    #[arg(long, value_name = "POLICY", default_value_t = SlotPolicy::default())]
    pub policy: SlotPolicy,
    /// Data threads of a switch, at most one per core: trees of protocol panama are divided among them by job and tree;
    /// the other protocols stay on the first
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "accelerator")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=THREADS_MOST as i64))]
    pub threads: u16,
    /// Use an accelerator for sums: the Unix socket of its device (docs/accelerator-device.md); allowed with a fabric
    /// file too
    #[arg(long, value_name = "SOCKET", conflicts_with = "dataplane")]
    pub accelerator: Option<PathBuf>,
    /// Where fragments of protocol atp are added: in this process, or in the kernel, in the drivers of --port; what the
    /// kernel does not support is done in this process, and a warning gives the reason
    #[arg(long, value_enum, default_value_t = Dataplane::Udp)]
    pub dataplane: Dataplane,
    /// Interfaces towards neighbours, for --dataplane xdp, as eth1 eth2; native XDP only
    #[arg(long, value_name = "IFACE", num_args = 1.., required_if_eq("dataplane", "xdp"))]
    pub port: Vec<String>,
    /// Folder with this switch's certificate (identity.pem, identity-key.pem, ca.pem, ca.crl), if the controller
    /// demands one
    #[arg(long, value_name = "FOLDER", env = "NETSUM_CREDENTIALS")]
    pub credentials: Option<OsString>,
    /// Serve Prometheus metrics here, as 127.77.2.1:9100, over TLS with credentials; overrides the fabric file
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<SocketAddr>,
    /// Form of the log: for people, or one JSON object per event, with job, tree and epoch as fields
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log: LogFormat,
    /// What the process gives up once it has started
    #[command(flatten)]
    pub sandbox: SandboxArguments,
}

/// Role of a process in the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Adds on the way to the root.
    Switch,
    /// Completes sums that switches did not.
    Server,
}

/// Form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// A line of text per event.
    Text,
    /// A JSON object per event, on a line.
    Json,
}

/// Where fragments are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Dataplane {
    /// In the process, from its UDP socket.
    Udp,
    /// In the in-kernel switch, as far as possible.
    Xdp,
}

/// Configuration of a switch or server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Name in the fabric.
    pub name: String,
    /// The controller's address, as "ip:port"; of several all, separated by commas.
    pub controller: String,
    /// The folder of this switch's credentials; `None`: the controller demands none.
    pub credentials: Option<PathBuf>,
    /// Role.
    pub role: Role,
    /// UDP data address.
    pub listen: SocketAddr,
    /// Number of slots of a switch.
    pub slots: u32,
    /// Policy by which jobs share the slots.
    pub policy: SlotPolicy,
    /// Aggregation memory in bytes.
    pub memory: u64,
    /// Number of data threads.
    pub threads: usize,
    /// Interfaces to whose drivers the in-kernel switch is attached.
    pub ports: Vec<String>,
    /// Address of the metrics, if they are served.
    pub metrics: Option<SocketAddr>,
    /// The socket of the accelerator's device, if one is used.
    pub accelerator: Option<PathBuf>,
}

impl Config {
    /// Builds the configuration, and reads the fabric file if there is one. Errors: `Fabric`, `UnknownName`,
    /// `SwitchOnly`.
    pub fn new(arguments: Arguments) -> Result<Config, SwitchError> {
        let elsewhere = [
            (arguments.accelerator.is_some(), "--accelerator"),
            (arguments.dataplane == Dataplane::Xdp, "--dataplane xdp"),
            (arguments.threads > 1, "--threads"),
        ];
        if let (Role::Server, Some((_, option))) =
            (arguments.role, elsewhere.into_iter().find(|(given, _)| *given))
        {
            return Err(SwitchError::SwitchOnly(option));
        }
        let Arguments { fabric, role, name, controller, listen, .. } = arguments;
        let Arguments { memory, slots, policy, metrics, .. } = arguments;
        if arguments.threads > 1 && arguments.dataplane == Dataplane::Xdp {
            return Err(SwitchError::ThreadsWithKernel);
        }
        let Arguments { dataplane, port, accelerator, credentials, threads, .. } = arguments;
        let mut config = match (fabric, controller, listen) {
            (None, Some(controller), Some(listen)) => Config {
                name,
                controller,
                credentials: None,
                role,
                listen,
                slots,
                policy,
                memory: memory.0,
                threads: 1,
                ports: Vec::new(),
                metrics,
                accelerator: None,
            },
            (file, ..) => Config::from_fabric(&file.unwrap_or_default(), role, &name, metrics)?,
        };
        if dataplane == Dataplane::Xdp {
            config.ports = port;
        }
        if accelerator.is_some() {
            // An accelerator adds for trees only.
            config.slots = 0;
        }
        config.accelerator = accelerator;
        config.threads = threads.into();
        // An empty variable is an absent one.
        config.credentials = credentials.filter(|folder| !folder.is_empty()).map(PathBuf::from);
        Ok(config)
    }

    fn from_fabric(
        file: &Path,
        role: Role,
        name: &str,
        metrics: Option<SocketAddr>,
    ) -> Result<Config, SwitchError> {
        let fabric = Fabric::load(file)?;
        let controller = fabric.controllers();
        let unknown = |what, names: Vec<&str>| SwitchError::UnknownName {
            what,
            file: file.to_owned(),
            fabric: fabric.name.clone(),
            name: name.to_owned(),
            known: if names.is_empty() { "none".to_owned() } else { names.join(", ") },
        };
        match role {
            Role::Switch => {
                let switch = fabric.switch(name).ok_or_else(|| {
                    unknown("switch", fabric.switches.iter().map(|s| s.name.as_str()).collect())
                })?;
                Ok(Config {
                    name: switch.name.clone(),
                    controller,
                    credentials: None,
                    role,
                    listen: switch.address,
                    slots: switch.slots,
                    policy: switch.policy,
                    memory: switch.memory.0,
                    threads: 1,
                    ports: Vec::new(),
                    metrics: metrics.or(switch.metrics),
                    accelerator: None,
                })
            }
            Role::Server => {
                let server = fabric.server(name).ok_or_else(|| {
                    unknown("server", fabric.servers.iter().map(|s| s.name.as_str()).collect())
                })?;
                Ok(Config {
                    name: server.name.clone(),
                    controller,
                    credentials: None,
                    role,
                    listen: server.address,
                    slots: 0,
                    policy: SlotPolicy::default(),
                    memory: server.memory.0,
                    threads: 1,
                    ports: Vec::new(),
                    metrics: metrics.or(server.metrics),
                    accelerator: None,
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(arguments: &[&str]) -> Result<Config, String> {
        let all = std::iter::once("netsum-switch").chain(arguments.iter().copied());
        let arguments = Arguments::try_parse_from(all).map_err(|e| e.to_string())?;
        Config::new(arguments).map_err(|e| e.to_string())
    }

    #[test]
    fn a_fabric_file_is_a_complete_configuration() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let fabric = netsum_topo::single_switch(
            2,
            netsum_topo::Rate(10_000_000_000),
            netsum_topo::Addressing { metrics: true, ..Default::default() },
        );
        let fabric = fabric.unwrap();
        std::fs::write(file.path(), fabric.to_toml()).unwrap();
        let path = file.path().to_str().unwrap();
        let switch = &fabric.switches[0];
        let got = config(&["--fabric", path, "--name", &switch.name]).unwrap();
        assert_eq!(got.listen, switch.address);
        assert_eq!(got.memory, switch.memory.0);
        assert_eq!(got.controller, fabric.controller.to_string());
        assert_eq!(got.metrics, switch.metrics);
        let error = config(&["--fabric", path, "--name", "nobody"]).unwrap_err();
        assert!(error.contains(path) && error.contains("no switch \"nobody\""), "{error}");
        assert!(error.contains(&switch.name), "{error}");
        let error = config(&["--fabric", path, "--role=server", "--name", "ps0"]).unwrap_err();
        assert!(error.contains("no server \"ps0\"; it has none"), "{error}");
        let mut fabric = fabric;
        fabric.servers.push(netsum_topo::Server {
            name: "ps0".to_owned(),
            address: SocketAddr::new(fabric.hosts[1].address, 7801),
            memory: Bytes(1 << 20),
            metrics: None,
        });
        std::fs::write(file.path(), fabric.to_toml()).unwrap();
        let got = config(&["--fabric", path, "--role=server", "--name", "ps0"]).unwrap();
        assert_eq!((got.listen, got.memory), (fabric.servers[0].address, 1 << 20));
    }

    #[test]
    fn the_command_line_sets_every_value() {
        let got = config(&[
            "--controller=127.0.0.1:1",
            "--name=s",
            "--listen=127.0.0.1:2",
            "--memory=1MiB",
            "--slots=64",
            "--policy=first-come",
            "--credentials=/etc/netsum",
        ]);
        let got = got.unwrap();
        assert_eq!(got.credentials, Some(PathBuf::from("/etc/netsum")));
        assert_eq!((got.memory, got.metrics), (1 << 20, None));
        assert_eq!((got.slots, got.policy, got.role), (64, SlotPolicy::FirstCome, Role::Switch));
        assert_eq!(got.listen, "127.0.0.1:2".parse().unwrap());
    }

    #[test]
    fn the_kernel_needs_ports() {
        let base = ["--controller=127.0.0.1:1", "--name=s", "--listen=127.0.0.1:2"];
        let with = |more: &[&str]| config(&[&base[..], more].concat());
        assert!(with(&["--dataplane=xdp"]).unwrap_err().contains("--port"));
        let got = with(&["--dataplane=xdp", "--port", "eth1", "eth2"]).unwrap();
        assert_eq!(got.ports, ["eth1", "eth2"]);
        assert!(with(&[]).unwrap().ports.is_empty());
        let server = with(&["--role=server", "--dataplane=xdp", "--port", "eth1"]).unwrap_err();
        assert!(server.contains("--dataplane xdp goes with a switch"), "{server}");
    }

    #[test]
    fn an_accelerator_adds_for_trees_at_a_switch() {
        let base = ["--controller=127.0.0.1:1", "--name=s", "--listen=127.0.0.1:2"];
        let with =
            |more: &[&str]| config(&[&base[..], &["--accelerator=/dev/sums"], more].concat());
        let got = with(&[]).unwrap();
        assert_eq!((got.accelerator, got.slots), (Some(PathBuf::from("/dev/sums")), 0));
        assert!(with(&["--role=server"]).unwrap_err().contains("--accelerator goes with a switch"));
        assert!(with(&["--dataplane=xdp", "--port=eth1"]).unwrap_err().contains("cannot be used"));
    }

    #[test]
    fn several_threads_are_for_a_switch_that_adds_itself() {
        let base = ["--controller=127.0.0.1:1", "--name=s", "--listen=127.0.0.1:2"];
        let with = |more: &[&str]| config(&[&base[..], more].concat());
        assert_eq!(with(&[]).unwrap().threads, 1);
        assert_eq!(with(&["--threads=4"]).unwrap().threads, 4);
        for wrong in ["0", "65", "-1", "many"] {
            let error = with(&[&format!("--threads={wrong}")]).unwrap_err();
            assert!(error.contains("--threads"), "{error}");
        }
        let server = with(&["--role=server", "--threads=2"]).unwrap_err();
        assert!(server.contains("--threads goes with a switch"), "{server}");
        let kernel = with(&["--threads=2", "--dataplane=xdp", "--port=eth1"]).unwrap_err();
        assert!(kernel.contains("leave out --threads or --dataplane xdp"), "{kernel}");
        assert!(with(&["--threads=2", "--accelerator=/x"]).unwrap_err().contains("cannot be used"));
    }

    #[test]
    fn missing_or_wrong_values_are_named() {
        let error = |arguments: &[&str]| config(arguments).unwrap_err();
        assert!(error(&["--name=s"]).contains("--fabric"));
        assert!(error(&["--name=s", "--controller=a:1"]).contains("--listen"));
        assert!(error(&["--fabric=/nowhere.toml", "--name=s"]).contains("/nowhere.toml"));
        let memory = ["--name=s", "--controller=a:1", "--listen=127.0.0.1:2", "--memory=lots"];
        assert!(error(&memory).contains("\"lots\" is not a size"));
    }
}
