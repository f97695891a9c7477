//! Workers and aggregation devices whose ports are joined by an optical circuit switch.

use serde::{Deserialize, Serialize};

use crate::error::TopoError;

/// How the circuit switch treats the two fibres of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OcsPorts {
    /// Transmitter and receiver of a port may lead to different ports.
    Simplex,
    /// Two ports are joined in both directions or not at all.
    Paired,
}

/// OCS(N, D, M, E): workers, devices and their ports. Every port carries one unit of rate in each direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OcsSpec {
    /// N: workers, which contribute and receive the sum.
    pub workers: u32,
    /// D: ports of each worker.
    pub worker_ports: u32,
    /// M: devices that add and copy streams at line rate on all ports.
    pub devices: u32,
    /// E: ports of each device.
    pub device_ports: u32,
    /// Constraint of the circuit switch.
    pub ports: OcsPorts,
}

/// A worker (index below N) or device (N and above).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OcsNode(pub u32);

/// One port of a node, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OcsEnd {
    /// The node.
    pub node: OcsNode,
    /// Number of the port.
    pub port: u32,
}

/// A circuit: light from the transmitter of one port to the receiver of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Circuit {
    /// The sending port.
    pub from: OcsEnd,
    /// The receiving port.
    pub to: OcsEnd,
}

impl OcsSpec {
    /// Checks the numbers: 2 ≤ N ≤ 65,536 workers, D ≥ 1, E ≥ 2, at most 4,096 ports per node,
    /// 65,536 devices. Errors: [`TopoError::Shape`] with the number that is wrong.
    pub fn new(
        workers: u32,
        worker_ports: u32,
        devices: u32,
        device_ports: u32,
        ports: OcsPorts,
    ) -> Result<OcsSpec, TopoError> {
        let spec = OcsSpec { workers, worker_ports, devices, device_ports, ports };
        match spec.problem() {
            None => Ok(spec),
            Some(problem) => Err(TopoError::Shape { shape: spec.to_string(), problem }),
        }
    }

    /// What is wrong with the numbers, if anything; for a spec that was read, not built.
    pub fn problem(&self) -> Option<String> {
        let range = |what: &str, value: u32, from: u32, to: u32| {
            let wrong = !(from..=to).contains(&value);
            wrong.then(|| format!("{what} must be from {from} to {to}, not {value}"))
        };
        range("N, the number of workers,", self.workers, 2, NODES_MAX)
            .or_else(|| range("D, the ports of a worker,", self.worker_ports, 1, PORTS_MAX))
            .or_else(|| range("M, the number of devices,", self.devices, 0, NODES_MAX))
            .or_else(|| range("E, the ports of a device,", self.device_ports, 2, PORTS_MAX))
    }

    /// The same with another number of devices.
    pub fn with_devices(self, devices: u32) -> OcsSpec {
        OcsSpec { devices, ..self }
    }

    /// Workers and devices together.
    pub fn nodes(&self) -> u32 {
        self.workers + self.devices
    }

    /// Whether the node is a device.
    pub fn is_device(&self, node: OcsNode) -> bool {
        node.0 >= self.workers
    }

    /// The node of device `index`.
    pub fn device(&self, index: u32) -> OcsNode {
        OcsNode(self.workers + index)
    }

    /// Ports of the node.
    pub fn ports_of(&self, node: OcsNode) -> u32 {
        if self.is_device(node) { self.device_ports } else { self.worker_ports }
    }

    /// `w3` or `d0`.
    pub fn name(&self, node: OcsNode) -> String {
        match node.0.checked_sub(self.workers) {
            Some(device) => format!("d{device}"),
            None => format!("w{}", node.0),
        }
    }
}

impl std::fmt::Display for OcsSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let OcsSpec { workers, worker_ports, devices, device_ports, .. } = self;
        write!(f, "OCS(N={workers}, D={worker_ports}, M={devices}, E={device_ports})")
    }
}

/// More than any circuit switch has, and far from overflow of the planner's products.
const NODES_MAX: u32 = 65_536;
const PORTS_MAX: u32 = 4_096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_numbers_are_named() {
        let fail =
            |n, d, m, e| OcsSpec::new(n, d, m, e, OcsPorts::Simplex).unwrap_err().to_string();
        assert_eq!(
            fail(6, 3, 1, 1),
            "cannot build OCS(N=6, D=3, M=1, E=1): E, the ports of a device, must be from 2 to 4096, not 1"
        );
        assert!(fail(6, 0, 1, 4).contains("D, the ports of a worker, must be from 1"));
        assert!(fail(1, 3, 1, 4).contains("N, the number of workers, must be from 2"));
        assert!(fail(6, 3, 70_000, 4).contains("M, the number of devices"));
    }

    #[test]
    fn names_and_ports() {
        let spec = OcsSpec::new(6, 3, 2, 4, OcsPorts::Paired).unwrap();
        assert_eq!((spec.name(OcsNode(5)), spec.ports_of(OcsNode(5))), ("w5".to_owned(), 3));
        assert_eq!(
            (spec.name(spec.device(1)), spec.ports_of(spec.device(1))),
            ("d1".to_owned(), 4)
        );
    }
}
