"""Settings of a group, read from the environment.

| variable | meaning | default |
|---|---|---|
| NETSUM_CONTROLLER | `address:port` of the controller | none: hosts add, no switch does |
| NETSUM_HOST | name of this machine in the fabric file | by the addresses of this machine |
| NETSUM_PROTOCOL | `panama`, `atp`, `switchml`, or `auto`: the controller chooses | panama |
| NETSUM_TENANT | whose the job is, of the fabric file | default |
| NETSUM_SCALE | factor between reals and integers of slots; 0: by exponents that all ranks share | 0 |
| NETSUM_MAX_TREES | most aggregation trees a job asks for | the controller's choice |
| NETSUM_RELEASE_FRACTION | share of its children with which a switch releases a sum | 1: all of them |
| NETSUM_CONGESTION | `panama`, `per-branch` or `none` | per-branch |
| NETSUM_MIN_BYTES | smaller buffers go by the host path | the controller's choice |
| NETSUM_TORCH_SHAPE | `auto`, or `backend` for torch's hooks at 5 µs more per call | auto |
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

PROTOCOLS = ("panama", "atp", "switchml", "auto")
CONGESTION_RULES = ("panama", "per-branch", "none")
TORCH_SHAPES = ("auto", "backend")


class SettingError(ValueError):
    """A NETSUM_* variable has a value that cannot be used."""


@dataclass(frozen=True)
class Settings:
    """What a `netsum._core.Group` is made with; `options` goes to the core as it stands."""

    controller: str | None = None
    host: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    torch_shape: str = "auto"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Settings":
        """Read and check the NETSUM_* variables. Raises SettingError, which names the variable."""
        options = {}
        for variable, (option, check) in _OPTIONS.items():
            value = environment.get(variable, "").strip()
            if value:
                complaint = check(value)
                if complaint:
                    raise SettingError(f"{variable}={value}: {complaint}")
                options[option] = value
        controller = environment.get("NETSUM_CONTROLLER", "").strip() or None
        if controller:
            complaint = _address(controller)
            if complaint:
                raise SettingError(f"NETSUM_CONTROLLER={controller}: {complaint}")
        shape = environment.get("NETSUM_TORCH_SHAPE", "").strip() or "auto"
        if shape not in TORCH_SHAPES:
            raise SettingError(f"NETSUM_TORCH_SHAPE={shape}: expected one of {', '.join(TORCH_SHAPES)}")
        return cls(controller, environment.get("NETSUM_HOST", "").strip() or None, options, shape)

    def host_path_only(self) -> "Settings":
        """The same settings without a controller: hosts do all the adding."""
        return replace(self, controller=None)


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


_OPTIONS = {
    "NETSUM_PROTOCOL": ("protocol", _protocol),
    "NETSUM_TENANT": ("tenant", _tenant),
    "NETSUM_SCALE": ("scale", _scale),
    "NETSUM_MAX_TREES": ("max_trees", _trees),
    "NETSUM_RELEASE_FRACTION": ("release_fraction", _fraction),
    "NETSUM_CONGESTION": ("congestion", _congestion),
    "NETSUM_MIN_BYTES": ("min_bytes", _bytes),
}
