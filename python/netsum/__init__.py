"""netsum: gradient sums computed inside the network.

`import netsum` loads the compiled core, and not torch. With torch installed,
`torch.distributed.init_process_group("netsum")` finds the backend by itself. Without torch, `netsum.Group` sums host
memory between processes (`netsum.doctor.selftest` is a small example).
"""

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as _installed_version
from typing import TYPE_CHECKING

from netsum._core import (
    ControllerUnavailable,
    Group,
    Mismatch,
    NetsumError,
    OperationTimeout,
    PeerLost,
    Unsupported,
    Work,
    job_operations,
    rekey_job,
    status,
    stop_job,
)

if TYPE_CHECKING:
    from netsum.diagnosis.verdict import Verdict

__all__ = [
    "ControllerUnavailable",
    "Group",
    "Mismatch",
    "NetsumError",
    "OperationTimeout",
    "PeerLost",
    "Unsupported",
    "Work",
    "job_operations",
    "rekey_job",
    "status",
    "stop_job",
    "why",
]


def why() -> "Verdict":
    """Why this process's job is slow or stuck, from all ranks that answer within two seconds: `fault` is "well" if
    nothing is wrong, `words` says it in a sentence. Works on any thread while the others wait."""
    from netsum.diagnosis.own import verdict

    return verdict()


try:
    __version__ = _installed_version("netsum")
except PackageNotFoundError:
    __version__ = "0.2.0+source"
