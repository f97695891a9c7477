//! Arithmetic shared by all methods.

use netsum_topo::{OcsPorts, OcsSpec, Ratio};

/// N, D, M and E as wide integers.
#[derive(Clone, Copy)]
pub(super) struct Numbers {
    pub n: u64,
    pub d: u64,
    pub m: u64,
    pub e: u64,
    pub paired: bool,
}

impl Numbers {
    pub fn of(spec: &OcsSpec) -> Numbers {
        Numbers {
            n: spec.workers.into(),
            d: spec.worker_ports.into(),
            m: spec.devices.into(),
            e: spec.device_ports.into(),
            paired: spec.ports == OcsPorts::Paired,
        }
    }

    /// 2(N−1): worker ports of a tree without devices, and the denominator of every rate.
    pub fn line(&self) -> u64 {
        2 * (self.n - 1)
    }

    /// Number of worker ports.
    pub fn worker_ports(&self) -> u64 {
        self.n * self.d
    }

    /// K: devices of a full tree; 0 if devices have only two ports, and cannot branch.
    pub fn full(&self) -> u64 {
        if self.e > 2 { (self.n - 2).div_ceil(self.e - 2) } else { 0 }
    }

    /// Worker ports of a tree with `k` ≤ K devices.
    pub fn tree_ports(&self, k: u64) -> u64 {
        self.line().saturating_sub(k * (self.e - 2)).max(self.n)
    }

    /// Worker ports that the last of K devices saves; the others save E − 2 each.
    pub fn last_saving(&self) -> u64 {
        self.full().checked_sub(1).map_or(0, |whole| self.n - 2 - whole * (self.e - 2))
    }

    /// Rings that fit into `ports` worker ports: with paired ports, two directions of each cycle.
    pub fn rings(&self, ports: u64) -> u64 {
        let rings = ports / self.n;
        if self.paired { rings - rings % 2 } else { rings }
    }

    /// The rate of `units` 2(N−1)ths.
    pub fn rate(&self, units: u64) -> Ratio {
        Ratio::new(units.into(), self.line().into())
    }
}
