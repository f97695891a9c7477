"""How the ranks of a job find each other without torch: ranks and the meeting address come from the environment.

| variable | meaning |
|---|---|
| RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE | torchrun's; HOROVOD_*, OMPI_COMM_WORLD_*, PMI_*, SLURM_* too |
| NETSUM_MEETING | `host:port` at which rank 0 waits for the others |
| MASTER_ADDR, MASTER_PORT | the same, unless torchrun holds that port itself: then its store is used |
| NETSUM_TOKEN | the secret of those who meet there; `netsum run --plain` draws one |
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass

from netsum.communicator.communicator import Communicator
from netsum.config import SettingError, Settings, job_name
from netsum.recorder import watch

TIMEOUT_S = 1800.0
"""Default timeout of operations and of the meeting; long, because ranks may spend long loading data."""
TOKEN_MIN = 16
"""Minimum length of NETSUM_TOKEN, in characters."""
_NO_TOKEN = bytes(16)
_NAMES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_TASKS_PER_NODE"),
)


@dataclass(frozen=True)
class Place:
    """This process's rank within its job and within its machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Place":
        """Read from the launcher's variables; one rank without a launcher. Raises SettingError, which names the
        variable.

        Without local numbers all ranks are assumed to be on one machine.
        """
        for names in _NAMES:
            if names[0] in environment and names[1] in environment:
                rank, size = _number(environment, names[0]), _number(environment, names[1])
                if rank >= size:
                    raise SettingError(f"{names[0]}={rank} is not below {names[1]}={size}")
                # SLURM writes "4(x2)" for two machines with four tasks each.
                local = environment.get(names[3], str(size)).partition("(")[0]
                local_rank = _number(environment, names[2]) if names[2] in environment else rank
                return cls(rank, size, local_rank, int(local) if local.isdigit() else size)
        return cls()


def connect(
    rank: int | None = None,
    size: int | None = None,
    at: str | None = None,
    *,
    name: str = "world",
    timeout_s: float = TIMEOUT_S,
    in_network: bool = True,
    token: bytes | None = None,
) -> Communicator:
    """Meet the other ranks and connect; blocks until all have joined.

    rank, size: from the environment if None. at: `host:port` where rank 0 waits, from the environment if None. name: of
    the job, equal at all ranks. in_network: whether switches aggregate, if NETSUM_CONTROLLER names a controller, or a
    tree plan is followed, if NETSUM_PLAN names one. token: 16 bytes known to the ranks of this job only, from
    NETSUM_TOKEN if None: who has it receives the secrets of the ranks and can take a rank's place. Raises SettingError
    for settings, NetsumError if ranks do not join, and the errors of `netsum.Group`.
    """
    from netsum import _core

    place = Place.from_environment()
    rank, size = place.rank if rank is None else rank, place.size if size is None else size
    settings = Settings.from_environment()
    if not in_network:
        settings = settings.host_path_only()
    elif "plan" in settings.plan_options and settings.controller is None:
        settings = settings.with_plan(None)
    meets = size > 1
    if meets and at is None and not _torchrun_store():
        at = _meeting_place()
    if meets and at is not None and token is None:
        token = _token(at)
    token = token or _NO_TOKEN
    options, credentials = dict(settings.options), settings.credentials
    if at is not None:
        options.setdefault("rendezvous", at.rpartition(":")[0].strip("[]"))
    # Rank 0 listens before anything that may take long, so that the others need not retry.
    meeting = None
    if meets and at is not None and rank == 0:
        meeting = _core.Meeting(at, token, timeout_s, credentials)
    core = _core.Group(rank, size, job_name(name), settings.controller, settings.host, timeout_s, options)
    watch(core)
    own = bytes(core.address())
    if not meets:
        addresses = [own]
    elif at is None:
        addresses = _meet_in_store(name, rank, size, own, timeout_s)
    else:
        addresses = _core.meet(at, token, rank, size, own, timeout_s, credentials)
    del meeting
    core.connect(addresses)
    return Communicator(core, rank, size, name, timeout_s)


def _meeting_place() -> str:
    at = os.environ.get("NETSUM_MEETING", "").strip()
    if at:
        host, _, port = at.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise SettingError(f"NETSUM_MEETING={at}: expected host:port, such as node0:29500")
        return at
    host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    if host and port:
        return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
    raise SettingError("NETSUM_MEETING is not set: several ranks need the host:port at which rank 0 waits")


def _token(at: str) -> bytes:
    """The secret of NETSUM_TOKEN, for ranks that meet at `at`. Raises SettingError without one."""
    text = os.environ.get("NETSUM_TOKEN", "").strip()
    if text == "none":
        return _NO_TOKEN
    if not text:
        raise SettingError(
            f"NETSUM_TOKEN is not set: without a secret, anybody who reaches {at} can pose as a rank; give all ranks "
            "the same, such as that of `openssl rand -hex 16`, or `none` on a network of your own"
        )
    if len(text) < TOKEN_MIN:
        raise SettingError(f"NETSUM_TOKEN has {len(text)} characters; a secret needs {TOKEN_MIN} or more, or `none`")
    return hashlib.sha256(text.encode()).digest()[:16]


def _torchrun_store() -> bool:
    """Whether MASTER_PORT is torchrun's store, which is used if no other meeting address is given."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and not os.environ.get("NETSUM_MEETING")


def _meet_in_store(name: str, rank: int, size: int, own: bytes, timeout_s: float) -> list[bytes]:
    from datetime import timedelta

    from torch.distributed import TCPStore

    from netsum import OperationTimeout

    patience = timedelta(seconds=timeout_s)
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(host, port, is_master=False, timeout=patience)
    making = store.add(f"netsum/{name}/making/{rank}", 1)
    store.set(f"netsum/{name}/{making}/{rank}", own)
    keys = [f"netsum/{name}/{making}/{peer}" for peer in range(size)]
    try:
        store.wait(keys, patience)
    except RuntimeError as error:
        missing = [peer for peer, key in enumerate(keys) if not store.check([key])]
        raise OperationTimeout(f"netsum: ranks {missing} of {size} did not come in {timeout_s:.0f} s") from error
    return [store.get(key) for key in keys]


def _number(environment: Mapping[str, str], name: str) -> int:
    value = environment[name].strip()
    if not value.isdigit():
        raise SettingError(f"{name}={value}: expected a whole number")
    return int(value)
