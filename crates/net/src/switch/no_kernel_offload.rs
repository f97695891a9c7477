//! Replaces `kernel_offload` in a build without the in-kernel switch.

use std::net::SocketAddr;
use std::sync::Arc;

use netsum_proto::atp::SwitchConfig;
use netsum_proto::row_machines::RowMachines;
use netsum_proto::{DropCounters, Lease, PortId, Secrets, SharedNumbers, Time};
use netsum_wire::{JobId, TreeId};

use super::{PoolSnapshot, SlotSnapshot};

#[derive(Default)]
pub(super) struct KernelOffload {}

impl KernelOffload {
    pub(super) fn start(_: SocketAddr, _: SwitchConfig, interfaces: &[String]) -> KernelOffload {
        if !interfaces.is_empty() {
            tracing::warn!(
                reason = "this program was built without it (feature `xdp`; `make setup-xdp`, then `make build`)",
                "no in-kernel switch; fragments are added in user space, which is slower"
            );
        }
        KernelOffload {}
    }

    pub(super) fn is_there(&self) -> bool {
        false
    }

    pub(super) fn offer(
        &mut self,
        _: Time,
        _: &RowMachines,
        _: &Lease<SocketAddr>,
        _: Option<&Secrets>,
    ) {
    }

    pub(super) fn has_pool_of(&self, _: &[u8]) -> bool {
        false
    }

    pub(super) fn leave(&mut self, _: &Lease<SocketAddr>) {}

    pub(super) fn numbers(
        &mut self,
        _: &Lease<SocketAddr>,
        _: &Secrets,
    ) -> Option<Vec<Arc<dyn SharedNumbers>>> {
        None
    }

    pub(super) fn retain(&mut self, _: &RowMachines) {}

    pub(super) fn finished(&mut self, _: JobId, _: TreeId) {}

    pub(super) fn due(&self) -> Option<Time> {
        None
    }

    pub(super) fn tick(
        &mut self,
        _: Time,
        _: &mut RowMachines,
        _: impl FnMut(SocketAddr) -> Option<PortId>,
    ) {
    }

    pub(super) fn add_counters(&self, _: &mut [SlotSnapshot], _: &mut [PoolSnapshot]) {}

    pub(super) fn held(&self) -> u32 {
        0
    }

    pub(super) fn drops(&self) -> DropCounters {
        DropCounters::default()
    }
}
