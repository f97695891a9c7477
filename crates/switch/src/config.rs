//! Command line and fabric file as one configuration.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Parser;
use netsum_topo::{Bytes, Fabric};

use crate::SwitchError;

/// Aggregates gradient fragments for the jobs that its controller grants memory.
///
/// Either --fabric and --name, and the file says the rest, or --name, --controller and --listen.
/// Prints "ready NAME ADDRESS" on stdout once the data socket is open; logs go to stderr (RUST_LOG sets
/// what is logged). The controller may be away at the start and at any time later.
#[derive(Clone, Debug, Parser)]
#[command(name = "netsum-switch", version)]
pub struct Arguments {
    /// Fabric file (TOML) that has this switch, its addresses and its memory
    #[arg(long, value_name = "FILE", conflicts_with_all = ["controller", "listen", "memory"])]
    #[arg(required_unless_present = "controller")]
    pub fabric: Option<PathBuf>,
    /// Name of this switch in the fabric
    #[arg(long, value_name = "NAME")]
    pub name: String,
    /// Address of the controller, as 127.77.0.1:7700
    #[arg(long, value_name = "ADDR", requires = "listen")]
    pub controller: Option<String>,
    /// UDP address for data, as 127.77.2.1:7701
    #[arg(long, value_name = "ADDR", requires = "controller")]
    pub listen: Option<SocketAddr>,
    /// Aggregation memory, as 64MiB
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub memory: Bytes,
    /// Let an accelerator add: the Unix socket of its device (docs/accelerator-device.md); goes with a fabric file too
    #[arg(long, value_name = "SOCKET")]
    pub accelerator: Option<PathBuf>,
    /// Serve Prometheus metrics over HTTP here, as 127.77.2.1:9100; goes before the fabric file
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<SocketAddr>,
}

/// What a switch is started with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Name in the fabric.
    pub name: String,
    /// The controller's address, as "ip:port".
    pub controller: String,
    /// UDP data address.
    pub listen: SocketAddr,
    /// Aggregation memory, bytes.
    pub memory: u64,
    /// Where metrics are served, if wanted.
    pub metrics: Option<SocketAddr>,
    /// The socket of the device that adds, if one does.
    pub accelerator: Option<PathBuf>,
}

impl Config {
    /// Reads the fabric file if one is named. Errors: `Fabric`, `UnknownName`.
    pub fn new(arguments: Arguments) -> Result<Config, SwitchError> {
        let Arguments { fabric, name, controller, listen, memory, metrics, accelerator } =
            arguments;
        match (fabric, controller, listen) {
            (None, Some(controller), Some(listen)) => {
                Ok(Config { name, controller, listen, memory: memory.0, metrics, accelerator })
            }
            (file, ..) => {
                let config = Config::from_fabric(&file.unwrap_or_default(), &name, metrics)?;
                Ok(Config { accelerator, ..config })
            }
        }
    }

    fn from_fabric(
        file: &Path,
        name: &str,
        metrics: Option<SocketAddr>,
    ) -> Result<Config, SwitchError> {
        let fabric = Fabric::load(file)?;
        let Some(switch) = fabric.switch(name) else {
            let names: Vec<_> = fabric.switches.iter().map(|s| s.name.as_str()).collect();
            return Err(SwitchError::UnknownName {
                file: file.to_owned(),
                fabric: fabric.name.clone(),
                name: name.to_owned(),
                known: names.join(", "),
            });
        };
        Ok(Config {
            name: switch.name.clone(),
            controller: fabric.controller.to_string(),
            listen: switch.address,
            memory: switch.memory.0,
            metrics: metrics.or(switch.metrics),
            accelerator: None,
        })
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
    fn a_fabric_file_says_it_all() {
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
    }

    #[test]
    fn the_command_line_can_say_it_all() {
        let got = config(&[
            "--controller=127.0.0.1:1",
            "--name=s",
            "--listen=127.0.0.1:2",
            "--memory=1MiB",
        ]);
        let got = got.unwrap();
        assert_eq!((got.memory, got.metrics), (1 << 20, None));
        assert_eq!(got.listen, "127.0.0.1:2".parse().unwrap());
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let error = |arguments: &[&str]| config(arguments).unwrap_err();
        assert!(error(&["--name=s"]).contains("--fabric"));
        assert!(error(&["--name=s", "--controller=a:1"]).contains("--listen"));
        assert!(error(&["--fabric=/nowhere.toml", "--name=s"]).contains("/nowhere.toml"));
        let memory = ["--name=s", "--controller=a:1", "--listen=127.0.0.1:2", "--memory=lots"];
        assert!(error(&memory).contains("\"lots\" is not a size"));
    }
}
