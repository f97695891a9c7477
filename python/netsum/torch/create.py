"""Creates a group on torch's request: settings, meeting of the ranks, choice of interface."""

import os
import warnings
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from netsum import _core
from netsum.config import Settings, job_name
from netsum.recorder import watch
from netsum.torch.backend import ElasticProcessGroup, NetsumBackend, NetsumProcessGroup, Options
from netsum.torch.engine import Engine
from netsum.torch.reconfiguring import Membership, Unconfigured

BACKENDS: dict[str, NetsumBackend] = {}
"""Backends of this process by torch's name of their group, until they are shut down.

This also keeps them alive: torch's debug wrapper holds only the C++ part of a backend, and the methods are in Python.
"""

_warned = False


def create(group: dist.ProcessGroup, options: Any) -> Any:
    """The creator that torch calls on every rank of a new group.

    group: `_DistributedBackendOptions`. options: `netsum.torch.Options` or None. Blocks until all ranks have met.
    Raises netsum's errors if they do not, and ValueError for options that netsum does not support.
    """
    own = options if isinstance(options, Options) else Options(in_network=not group.global_ranks_in_group)
    settings = _settings_for(own)
    if group.enable_reconfigure and not _whole_group_is_ours(group, settings.torch_shape):
        raise ValueError(
            "netsum: a group that changes its size must be netsum's alone, without TORCH_DISTRIBUTED_DEBUG=DETAIL, "
            "TORCH_DIST_NAN_CHECK and NETSUM_TORCH_SHAPE=backend: rank and size of a backend in Python are fixed"
        )
    if group.enable_reconfigure:
        engine = _without_members(group, settings)
    else:
        engine = _meet(group.store, group.group_rank, group.group_size, group.timeout, group.group_id, settings)
    backend = _kept_backend(engine, own)
    if group.enable_reconfigure:
        return ElasticProcessGroup(group.store, backend)
    return NetsumProcessGroup(group.store, backend) if _whole_group_is_ours(group, settings.torch_shape) else backend


def split_off(
    parent: Engine, store: Any, ranks: list[int], name: str, timeout: timedelta, options: Options | None
) -> NetsumBackend:
    """The subset of a group that torch splits off, at one of its ranks: `ranks` of the parent, in the new order.

    store: of the subset alone. Hosts aggregate unless `options` say otherwise. Blocks and raises as `create` does.
    """
    own = options if isinstance(options, Options) else Options(in_network=False)
    engine = _meet(store, ranks.index(parent.rank), len(ranks), timeout, name, _settings_for(own))
    return _kept_backend(engine, own)


def group_over(store: Any, rank: int, size: int, timeout: timedelta, name: str) -> NetsumProcessGroup:
    """A separate group, unknown to torch, for callers that create groups themselves.

    store: through which its ranks meet; new, or under a prefix of its own. Blocks and raises as `create` does.
    """
    engine = _meet(store, rank, size, timeout, name, Settings.from_environment())
    return NetsumProcessGroup(store, NetsumBackend(engine, Options()))


def _settings_for(own: Options) -> Settings:
    """The settings of the environment, as far as they apply to a group with these options."""
    settings = Settings.from_environment()
    if own.plan or (own.in_network and settings.names_plan):
        return settings.with_plan(own.plan)
    if not own.in_network:
        return settings.host_path_only()
    if settings.controller is None:
        _warn_of_host_path()
    return settings


def _kept_backend(engine: Engine, options: Options) -> NetsumBackend:
    backend = NetsumBackend(engine, options)
    BACKENDS[engine.name] = backend
    engine.at_close = lambda: BACKENDS.pop(engine.name, None)
    return backend


def _meet(store: Any, rank: int, size: int, timeout: timedelta, name: str, settings: Settings) -> Engine:
    """Exchange addresses through the store and connect."""
    timeout_s = timeout.total_seconds()
    core = _core.Group(rank, size, _job_name(name), settings.controller, settings.host, timeout_s, settings.options)
    watch(core)
    # A store may outlive a group of the same name: the n-th creation of a group reads the n-th addresses.
    making = store.add(f"netsum/making/{rank}", 1)
    store.set(f"netsum/{making}/{rank}", core.address())
    keys = [f"netsum/{making}/{peer}" for peer in range(size)]
    _wait_for_all(store, keys, timeout)
    core.connect([store.get(key) for key in keys])
    return Engine(core, rank, size, timeout_s, name)


def _without_members(group: dist.ProcessGroup, settings: Settings) -> Engine:
    """A group without members until it is reconfigured."""
    if "plan" in settings.options:
        raise ValueError("netsum: a group with a tree plan has its members for good; leave enable_reconfigure unset")
    rank, size, timeout_s = group.group_rank, group.group_size, group.timeout.total_seconds()
    membership = Membership(_job_name(group.group_id), settings)
    core: Any = Unconfigured()
    return Engine(core, rank, size, timeout_s, group.group_id, membership)


def _job_name(group: str) -> str:
    """The name of a group's job in `netsum top`: after a scheduler's or torchrun's id, if there is one."""
    return job_name(group, os.environ.get("TORCHELASTIC_RUN_ID") or "torch")


def _wait_for_all(store: Any, keys: list[str], timeout: timedelta) -> None:
    try:
        store.wait(keys, timeout)
    except dist.DistStoreError as error:
        missing = [peer for peer, key in enumerate(keys) if not store.check([key])]
        raise _core.OperationTimeout(
            f"netsum: ranks {missing} of {len(keys)} did not come to the meeting of the group in "
            f"{timeout.total_seconds():.0f} s; look at what they wrote last"
        ) from error


def _whole_group_is_ours(group: dist.ProcessGroup, shape: str) -> bool:
    """Whether the process group may be replaced: it has no second backend, and torch adds no wrapper."""
    outer = group.process_group
    return (
        shape == "auto"
        and outer.name() == "custom"
        and not outer._device_types
        and dist.get_debug_level() != dist.DebugLevel.DETAIL
        and os.environ.get("TORCH_DIST_NAN_CHECK", "0") != "1"
    )


def _warn_of_host_path() -> None:
    global _warned
    if not _warned and os.environ.get("RANK", "0") == "0":
        warnings.warn(
            "netsum: NETSUM_CONTROLLER is not set, so hosts do all the adding and no switch does; "
            "start a fabric by `netsum fabric up FABRIC.toml` and set NETSUM_CONTROLLER=address:port",
            stacklevel=2,
        )
    _warned = True
