"""Settings of a group, read from the environment.

| variable | meaning | default |
|---|---|---|
| NETSUM_CONTROLLER | `address:port` of the controller; several, with commas | none: hosts add, switches do not |
| NETSUM_CREDENTIALS | folder of certificates (docs/security.md), if the controller demands them | none |
| NETSUM_HOST | name of this machine in the fabric file | found by the addresses of this machine |
| NETSUM_PROTOCOL | a name of `netsum._core.PROTOCOLS`; `auto`: the controller chooses | panama |
| NETSUM_TENANT | tenant of the job, from the fabric file | default |
| NETSUM_JOB | what names of jobs begin with, in `netsum top`; `netsum run` sets it | Ray's job, torchrun's run id |
| NETSUM_SCALE | factor between reals and integers of slots; 0: exponents shared by all ranks | 0 |
| NETSUM_ENCRYPT | `on`: nobody between ranks and switches can read values; needs NETSUM_CREDENTIALS | off |
| NETSUM_COLLECTIVES | `all`: switches do reduce-scatter, all-gather, broadcast and reduce, too | allreduce |
| NETSUM_MAX_TREES | maximum number of aggregation trees of a job | the controller's choice |
| NETSUM_RELEASE_FRACTION | share of its children that suffices for a switch to release a sum | 1: all of them |
| NETSUM_CONGESTION | `panama`, `per-branch`, `coupled` or `none` | per-branch |
| NETSUM_MIN_BYTES | smaller buffers use hosts; `measured` | measured costs; on one machine the controller's choice |
| NETSUM_SHARED_MEMORY | `on`: ranks of one host share memory; `off`: they use the network | on |
| NETSUM_ORDER | `ranks`: sums do not depend on placement; `hosts`: faster if ranks alternate between hosts | ranks |
| NETSUM_NETWORK | `tcp`, or `ucx` for InfiniBand, RoCE and other networks of UCX | tcp |
| NETSUM_TRUSTED_NETWORK | `on`: nobody else reaches UCX's network; needed for it with credentials | off |
| NETSUM_ALGORITHMS | `allreduce=ring,broadcast=binomial`: see docs/algorithms.md | by the cost model |
| NETSUM_LINK_LATENCY_S | for the cost model: seconds of a small message between two ranks | measured |
| NETSUM_LINK_BYTES_PER_S | for the cost model: bytes per second of a rank, each way | measured |
| NETSUM_DIGEST_EVERY | of so many sums by switches the ranks compare the result of one; 0: of none | 256 |
| NETSUM_PLAN | tree plan (`netsum plan pack --out`) for allreduces of the world; excludes a controller | none |
| NETSUM_INTERFACES | `eth0,eth1` or addresses, in the same order on all hosts: allreduces of the world use all | one |
| NETSUM_PLAN_TOPOLOGY | the plan's fabric (file or name), for plans after link failures, for the cost model | none |
| NETSUM_PLAN_ADDRESSES | `NEIGHBOUR=ADDRESS,…`: own addresses on links to GPUs or switches | shared memory |
| NETSUM_PLAN_SILENCE_S | a link of the plan that accepts nothing for this long is lost | 3 |
| NETSUM_PLAN_SHARES | which shares of a plan adapt to the traffic: `same-order`, `any`, or `plan`: none | same-order |
| NETSUM_PLAN_MEASURE | 1: measure the plan's links at the start, for `stats()["links"]` | 0 |
| NETSUM_RECORDER | folder to which ranks write their last operations when one fails, or on SIGUSR1 | none |
| NETSUM_REPORT | folder to which each rank writes a file about its steps, for `netsum report` | none |
| NETSUM_MEETING | `host:port` at which ranks connect to rank 0 without torch | MASTER_ADDR:MASTER_PORT |
| NETSUM_TOKEN | their secret, 16 or more characters; `none`: anybody may join | drawn by `netsum run` |
| NETSUM_TORCH_SHAPE | `auto`, or `backend` for torch's hooks, at 5 µs more per call | auto |
"""

import ipaddress
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from netsum._core import CONGESTION_RULES, NETWORKS, PROTOCOLS

ORDERS = ("ranks", "hosts")
SHARINGS = ("same-order", "any", "plan")
TORCH_SHAPES = ("auto", "backend")


class SettingError(ValueError):
    """A NETSUM_* variable has a value that cannot be used."""


@dataclass(frozen=True)
class Settings:
    """Parameters of a `netsum._core.Group`; `options` is passed to the core unchanged."""

    controller: str | None = None
    host: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    torch_shape: str = "auto"
    plan_options: dict[str, str] = field(default_factory=dict)
    """Options of a tree plan, for the world's group."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Settings":
        """Read and check the NETSUM_* variables. Raises SettingError with the name of an invalid variable."""
        options = _read(environment, _OPTIONS)
        plan_options = _read(environment, _PLAN_OPTIONS)
        controller = environment.get("NETSUM_CONTROLLER", "").strip() or None
        if controller:
            complaint = _addresses(controller)
            if complaint:
                raise SettingError(f"NETSUM_CONTROLLER={controller}: {complaint}")
        ways = [f"NETSUM_{option.upper()}" for option in ("plan", "interfaces") if option in plan_options]
        ways += ["NETSUM_CONTROLLER"] if controller else []
        if len(ways) > 1:
            raise SettingError(f"{ways[0]} and {ways[1]} are both set; unset one of them")
        shape = environment.get("NETSUM_TORCH_SHAPE", "").strip() or "auto"
        if shape not in TORCH_SHAPES:
            raise SettingError(f"NETSUM_TORCH_SHAPE={shape}: expected one of {', '.join(TORCH_SHAPES)}")
        return cls(controller, environment.get("NETSUM_HOST", "").strip() or None, options, shape, plan_options)

    @property
    def credentials(self) -> Path | None:
        """The folder of this process's certificates."""
        folder = self.options.get("credentials")
        return Path(folder) if folder else None

    @property
    def names_plan(self) -> bool:
        """Whether sums of the world use a tree plan: one from a file, or one over several interfaces."""
        return bool({"plan", "interfaces"} & self.plan_options.keys())

    def with_plan(self, plan: str | None) -> "Settings":
        """The same settings with a tree plan: of the file `plan`, of NETSUM_PLAN, or one over NETSUM_INTERFACES.
        Unchanged without any of these.

        Raises SettingError if there is a controller, too.
        """
        options = self.plan_options | ({"plan": plan} if plan else {})
        if plan:
            options.pop("interfaces", None)
        if not {"plan", "interfaces"} & options.keys():
            return self
        if self.controller:
            raise SettingError(f"plan {plan}: NETSUM_CONTROLLER is set too; unset one of them")
        return replace(self, options=self.options | options)

    def host_path_only(self) -> "Settings":
        """The same settings without a controller: only hosts add.

        The host name is dropped too, because it is defined by the fabric.
        """
        return replace(self, controller=None, host=None) if self.controller else self


def job_name(group: str, otherwise: str = "", environment: Mapping[str, str] = os.environ) -> str:
    """The controller's name for a group: after NETSUM_JOB, by which a scheduler finds its jobs, after Ray's job in its
    processes, else after `otherwise`."""
    run = environment.get("NETSUM_JOB", "").strip() or _ray_job() or otherwise
    return f"{run}/{group}" if run else group


def _ray_job() -> str:
    """`ray-ID` in a process of a job of Ray. Such a process has imported Ray."""
    ray = sys.modules.get("ray")
    if ray is None or not hasattr(ray, "is_initialized") or not ray.is_initialized():
        return ""
    return f"ray-{ray.get_runtime_context().get_job_id()}"


def _read(environment: Mapping[str, str], known: dict[str, Any]) -> dict[str, str]:
    options = {}
    for variable, (option, check) in known.items():
        value = environment.get(variable, "").strip()
        if value:
            complaint = check(value)
            if complaint:
                raise SettingError(f"{variable}={value}: {complaint}")
            options[option] = value
    return options


def _addresses(value: str) -> str | None:
    return next((complaint for word in value.split(",") if (complaint := _address(word.strip()))), None)


def _address(value: str) -> str | None:
    host, colon, port = value.rpartition(":")
    if not colon or not host:
        return "expected address:port, such as 127.77.0.1:7700"
    if not port.isdigit() or not 0 < int(port) < 65536:
        return f"port '{port}' is not a number from 1 to 65535"
    return None


def _protocol(value: str) -> str | None:
    return None if value in PROTOCOLS else f"expected one of {', '.join(PROTOCOLS)}"


def _tenant(value: str) -> str | None:
    return None if all(c.isalnum() or c in "._-" for c in value) else "expected the name of a tenant"


def _scale(value: str) -> str | None:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    return None if 0 <= number < 2**126 else "expected a factor such as 1e8, or 0 for shared exponents"


def _trees(value: str) -> str | None:
    return None if value.isdigit() and 1 <= int(value) <= 255 else "expected a whole number from 1 to 255"


def _count(value: str) -> str | None:
    return None if value.isdigit() and int(value) < 1 << 64 else "expected a whole number, 0 for never"


def _fraction(value: str) -> str | None:
    try:
        number = float(value)
    except ValueError:
        return "expected a number above 0 and at most 1"
    return None if 0 < number <= 1 else "expected a number above 0 and at most 1"


def _congestion(value: str) -> str | None:
    return None if value in CONGESTION_RULES else f"expected one of {', '.join(CONGESTION_RULES)}"


def _bytes(value: str) -> str | None:
    return None if value.isdigit() else "expected a number of bytes, such as 4096"


def _threshold(value: str) -> str | None:
    usual = value.isdigit() or value == "measured"
    return None if usual else "expected a number of bytes, such as 4096, or measured"


def _ways(value: str) -> str | None:
    for word in value.split(","):
        name, equals, address = word.partition("=")
        try:
            ipaddress.ip_address(address.strip())
        except ValueError:
            return f"'{word}' is not NEIGHBOUR=ADDRESS, such as gpu1=10.78.0.1"
        if not name.strip() or not equals:
            return f"'{word}' is not NEIGHBOUR=ADDRESS, such as gpu1=10.78.0.1"
    return None


def _seconds(value: str) -> str | None:
    try:
        return None if 1 <= float(value) < 1e6 else "expected at least 1 second"
    except ValueError:
        return "expected a number of seconds"


def _flag(value: str) -> str | None:
    return None if value in ("0", "1") else "expected 0 or 1"


def _order(value: str) -> str | None:
    return None if value in ORDERS else f"expected one of {', '.join(ORDERS)}"


def _collectives(value: str) -> str | None:
    return None if value in ("allreduce", "all") else "expected allreduce or all"


def _network(value: str) -> str | None:
    return None if value in NETWORKS else f"expected one of {', '.join(NETWORKS)}"


def _sharing(value: str) -> str | None:
    return None if value in SHARINGS else f"expected one of {', '.join(SHARINGS)}"


def _switch(value: str) -> str | None:
    return None if value in ("on", "off") else "expected on or off"


def _positive(value: str) -> str | None:
    try:
        return None if 0 < float(value) < float("inf") else "expected a number above 0"
    except ValueError:
        return "expected a number above 0"


def _any(value: str) -> str | None:
    return None


_OPTIONS = {
    "NETSUM_PROTOCOL": ("protocol", _protocol),
    "NETSUM_TENANT": ("tenant", _tenant),
    "NETSUM_SCALE": ("scale", _scale),
    "NETSUM_ENCRYPT": ("encrypt", _switch),
    "NETSUM_COLLECTIVES": ("collectives", _collectives),
    "NETSUM_MAX_TREES": ("max_trees", _trees),
    "NETSUM_RELEASE_FRACTION": ("release_fraction", _fraction),
    "NETSUM_CONGESTION": ("congestion", _congestion),
    "NETSUM_MIN_BYTES": ("min_bytes", _threshold),
    "NETSUM_SHARED_MEMORY": ("shared_memory", _switch),
    "NETSUM_ORDER": ("order", _order),
    "NETSUM_NETWORK": ("network", _network),
    "NETSUM_TRUSTED_NETWORK": ("trusted_network", _switch),
    "NETSUM_DIGEST_EVERY": ("digest_every", _count),
    # The core reads the files.
    "NETSUM_CREDENTIALS": ("credentials", _any),
    # The core validates the names.
    "NETSUM_RECORDER": ("recorder", _any),
    "NETSUM_ALGORITHMS": ("algorithms", _any),
    "NETSUM_LINK_LATENCY_S": ("link_latency_s", _positive),
    "NETSUM_LINK_BYTES_PER_S": ("link_bytes_per_s", _positive),
}
_PLAN_OPTIONS = {
    "NETSUM_PLAN": ("plan", _any),
    "NETSUM_INTERFACES": ("interfaces", _any),
    "NETSUM_PLAN_TOPOLOGY": ("plan_topology", _any),
    "NETSUM_PLAN_ADDRESSES": ("plan_addresses", _ways),
    "NETSUM_PLAN_SILENCE_S": ("plan_silence_s", _seconds),
    "NETSUM_PLAN_SHARES": ("plan_shares", _sharing),
    "NETSUM_PLAN_MEASURE": ("plan_measure", _flag),
}
