//! Replaces `kernel_offload` in a build without the in-kernel switch.

use std::net::SocketAddr;
use std::sync::Arc;

use netsum_proto::atp::{Lease, Switch, SwitchConfig};
use netsum_proto::values::Rows;
use netsum_proto::{DropCounters, PortId, Secrets, SharedNumbers, Time};
use netsum_wire::{JobId, TreeId};

use super::SlotSnapshot;

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

    pub(super) fn offer(&mut self, _: &Switch<Rows>, _: &Lease<SocketAddr>, _: Option<&Secrets>) {}

    pub(super) fn leave(&mut self, _: &Lease<SocketAddr>) {}

    pub(super) fn numbers(
        &mut self,
        _: &Lease<SocketAddr>,
        _: &Secrets,
    ) -> Option<Vec<Arc<dyn SharedNumbers>>> {
        None
    }

    pub(super) fn retain(&mut self, _: &Switch<Rows>) {}

    pub(super) fn finished(&mut self, _: JobId, _: TreeId) {}

    pub(super) fn due(&self) -> Option<Time> {
        None
    }

    pub(super) fn tick(
        &mut self,
        _: Time,
        _: &mut Switch<Rows>,
        _: impl FnMut(SocketAddr) -> Option<PortId>,
    ) {
    }

    pub(super) fn add_slots(&self, _: &mut [SlotSnapshot]) {}

    pub(super) fn held(&self) -> u32 {
        0
    }

    pub(super) fn drops(&self) -> DropCounters {
        DropCounters::default()
    }
}
