//! Topologies behind an optical circuit switch: figures of the slides, all methods compared with each other and with
//! independent oracles, and the verifier against planted faults.

mod exhaustive;
mod figures;
mod methods;
mod mutations;
mod sharing;

use netsum_plan::ocs::OcsPlan;
use netsum_topo::{OcsPorts, OcsSpec, Ratio};

fn ocs(workers: u32, worker_ports: u32, devices: u32, device_ports: u32) -> OcsSpec {
    spec(workers, worker_ports, devices, device_ports, OcsPorts::Simplex)
}

fn spec(n: u32, d: u32, m: u32, e: u32, ports: OcsPorts) -> OcsSpec {
    OcsSpec::new(n, d, m, e, ports).unwrap()
}

fn ratio(above: i128, below: i128) -> Ratio {
    Ratio::new(above, below)
}

/// Ports in use at each worker.
fn degrees(plan: &OcsPlan) -> Vec<u32> {
    let mut degrees = vec![0; plan.spec.workers as usize];
    for circuit in &plan.circuits {
        if let Some(degree) = degrees.get_mut(circuit.from.node.0 as usize) {
            *degree += 1;
        }
    }
    degrees
}
