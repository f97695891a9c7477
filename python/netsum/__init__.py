"""netsum: gradient sums computed inside the network.

`import netsum` loads neither torch nor the compiled core; both come when something needs them. With torch
installed, `torch.distributed.init_process_group("netsum")` finds the backend by itself. Without torch,
`netsum.Group` sums host memory between processes (see `netsum.doctor.selftest` for a small user of it).
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as _installed_version

__all__ = [
    "ControllerUnavailable",
    "Group",
    "Mismatch",
    "NetsumError",
    "OperationTimeout",
    "PeerLost",
    "Unsupported",
    "Work",
    "status",
]

try:
    __version__ = _installed_version("netsum")
except PackageNotFoundError:
    __version__ = "0.1.0+source"


def __getattr__(name: str):
    """Take the public names from the compiled core on first use."""
    if name in __all__:
        return getattr(import_module("netsum._core"), name)
    raise AttributeError(f"module 'netsum' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
