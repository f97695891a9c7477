"""The two interfaces of a netsum group to torch.

`NetsumBackend` is a full `Backend` of c10d: it works wherever a backend does, `cpu:netsum,cuda:nccl` and torch's debug
wrappers included. `NetsumProcessGroup` replaces the whole process group and bypasses the dispatcher, which costs 5 µs
per call; it also forwards `Work.is_completed` and the source rank, which torch's wrapper of a Python backend's Work
does not.
"""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from netsum import Unsupported
from netsum.torch.device import accelerator
from netsum.torch.engine import Engine
from netsum.torch.entries import with_entries
from netsum.torch.movements import Movements
from netsum.torch.points import Points, monitored_barrier
from netsum.torch.reductions import Reductions

_BackendBase: Any = getattr(dist, "BackendBase", c10d.Backend)


class Options(_BackendBase.Options):
    """Options of one group, for `new_group(pg_options=…)`.

    in_network: whether switches aggregate for this group. Default: true for the world, false for a sub-group, because
    switch memory is divided among jobs and most sub-groups have little traffic. plan: file of a tree plan for this
    group's allreduces, with one rank per GPU of the plan; the world uses that of NETSUM_PLAN by default.
    """

    def __init__(self, in_network: bool = True, plan: str | None = None) -> None:
        super().__init__("netsum")
        self.in_network = in_network
        self.plan = plan


class _Common(Reductions, Movements, Points):
    """The methods common to both interfaces."""

    engine: Engine

    def getBackendName(self) -> str:
        return "netsum"

    def set_timeout(self, timeout: timedelta) -> None:
        self.engine.timeout_s = timeout.total_seconds()

    def shutdown(self) -> None:
        self.engine.close()

    @property
    def supports_reconfigure(self) -> bool:
        return self.engine.membership is not None

    def get_reconfigure_handle(self) -> str:
        if self.engine.membership is None:
            raise Unsupported("netsum: make the group with enable_reconfigure=True to have a handle")
        return self.engine.membership.handle

    def reconfigure(self, opts: Any) -> Any:
        seconds = None if opts.timeout is None else opts.timeout.total_seconds()
        return self.engine.reconfigure(opts.uuid, opts.handles, seconds)

    def abort(self) -> None:
        self.engine.abort(f"rank {self.engine.rank} called abort on group '{self.engine.name}'")

    def _set_sequence_number_for_group(self) -> None:
        """Every rank counts from 0, so no agreement is needed."""

    def _get_sequence_number_for_group(self) -> int:
        return self.engine.operations


@with_entries
class NetsumBackend(_Common, _BackendBase):
    """A backend of c10d written in Python. Made by `netsum.torch.create`."""

    def __init__(self, engine: Engine, options: Options) -> None:
        super().__init__(engine.rank, engine.size)
        self.engine = engine
        self._options = options

    @property
    def supports_coalescing(self) -> bool:
        return True

    @property
    def supports_splitting(self) -> bool:
        return True

    def split(self, store: Any, ranks: Any, opts: Any) -> Any:
        """The backend of a subset of this group, for `torch.distributed.split_group`, at one of its ranks."""
        from netsum.torch.create import split_off

        if self.engine.rank not in ranks:
            raise Unsupported(
                f"netsum split_group: rank {self.engine.rank} is in no part, which torch does not let a backend in "
                "Python say; name every rank in a part, or use new_group"
            )
        return split_off(self.engine, store, list(ranks), opts.group_name, opts._timeout, opts)

    # Torch calls these if it could split and the group is bound to a device: subsets are created by their members
    # alone, and all ranks are connected from the start.
    def perform_nocolor_split(self, device: Any) -> None:
        pass

    def eager_connect_single_device(self, device: Any) -> None:
        pass

    @property
    def options(self) -> Options:
        # Without this, the inherited property recurses infinitely.
        return self._options

    def monitored_barrier(self, opts: Any, wait_all_ranks: bool = False) -> None:
        monitored_barrier(self.engine, self.engine.seconds(opts), wait_all_ranks)


@with_entries
class NetsumProcessGroup(_Common, dist.ProcessGroup):
    """A process group with netsum as its only backend, called without torch's dispatcher."""

    def __init__(self, store: Any, backend: NetsumBackend) -> None:
        super().__init__(store, backend.engine.rank, backend.engine.size)
        self.engine = backend.engine
        # CUSTOM and not GLOO: torch's DDP logger casts a backend of that type to its own class.
        self._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        for kind in filter(None, ("cpu", accelerator())):
            self._register_backend(torch.device(kind), dist.ProcessGroup.BackendType.CUSTOM, backend)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        seconds = self.engine.timeout_s if timeout is None else timeout.total_seconds()
        monitored_barrier(self.engine, seconds, wait_all_ranks)

    def split_group(
        self,
        ranks: Any,
        timeout: Any = None,
        opts: Any = None,
        group_name: Any = None,
        group_desc: Any = None,
        device_types: Any = None,
    ) -> Any:
        """A subset of this group, in the same shape; None at a rank that is not in it. Torch passes every argument."""
        from netsum.torch.create import split_off

        if self.engine.rank not in ranks:
            return None
        store = dist.PrefixStore(f"{group_name}/", self.get_group_store())
        part = NetsumProcessGroup(store, split_off(self.engine, store, list(ranks), group_name, timeout, opts))
        part._set_group_name(group_name)
        part._set_group_desc(group_desc or "")
        return part

    def register_pre_hook(self, *_args: Any) -> None:
        raise _no_hooks("register_pre_hook")

    def register_post_hook(self, *_args: Any) -> None:
        raise _no_hooks("register_post_hook")


class ElasticProcessGroup(NetsumProcessGroup):
    """A process group whose rank and size change when it is reconfigured.

    Torch stores both where Python cannot change them, so these methods override its accessors; other groups keep
    torch's.
    """

    def rank(self) -> int:
        return self.engine.rank

    def size(self) -> int:
        return self.engine.size

    # The method names that C++ calls.
    getRank, getSize = rank, size


def _no_hooks(name: str) -> NotImplementedError:
    return NotImplementedError(
        f"netsum: {name} works in the pure backend shape only; set NETSUM_TORCH_SHAPE=backend before init_process_group"
    )
