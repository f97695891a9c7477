"""Programs that load NCCL, on `libnetsum_nccl.so` under NCCL's name: vLLM's way by ctypes, NVIDIA's nccl4py, torch.

Each goes as far as it does without CUDA; the tests say where it stops.
"""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_RELEASE = ROOT / "target" / "release"
_BUILT = [path for path in (_RELEASE / "libnetsum_nccl.so", _RELEASE / "deps" / "libnetsum_nccl.so") if path.exists()]
PACKAGES = ROOT / ".venv" / "nccl"

pytestmark = pytest.mark.skipif(not _BUILT, reason="no libnetsum_nccl.so: cargo build --release -p netsum-capi")


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """The library under the name that programs look for."""
    path = tmp_path / "libnccl.so.2"
    path.symlink_to(max(_BUILT, key=lambda path: path.stat().st_mtime))
    return path


def ranks_of(script: str, library: Path, size: int = 2, **variables: str) -> list[str]:
    """What each rank prints. A script has `rank`, `size`, `library` and `exchange(bytes)` from rank 0 to all."""
    prelude = """
        import os, sys, time
        from pathlib import Path
        rank, size, library = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]

        def exchange(value: bytes | None) -> bytes:
            file = Path(library).with_name("id")
            if rank == 0:
                file.with_suffix(".part").write_bytes(value)
                file.with_suffix(".part").rename(file)
            while not file.exists():
                time.sleep(0.005)
            return file.read_bytes()
    """
    text = textwrap.dedent(prelude) + textwrap.dedent(script)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library.parent), "NETSUM_TIMEOUT_S": "60", **variables}
    environment.pop("NETSUM_CONTROLLER", None)
    command = [sys.executable, "-c", text]
    started = [
        subprocess.Popen(
            [*command, str(rank), str(size), str(library)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    said = [process.communicate(timeout=120)[0] for process in started]
    assert not any(process.returncode for process in started), "".join(said)
    return said


def test_the_calls_of_vllms_loader(library: Path):
    """Functions with their types, looked up by name when the library is loaded; then what its communicator calls."""
    script = """
        import ctypes

        class Id(ctypes.Structure):
            _fields_ = [("internal", ctypes.c_byte * 128)]

        handle, whole, pointer, size_t = ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t
        collective = [pointer, pointer, size_t, whole]
        types = {
            "ncclGetVersion": [ctypes.POINTER(whole)],
            "ncclGetUniqueId": [ctypes.POINTER(Id)],
            "ncclCommInitRank": [ctypes.POINTER(handle), whole, Id, whole],
            "ncclAllReduce": [*collective, whole, handle, pointer],
            "ncclReduce": [*collective, whole, whole, handle, pointer],
            "ncclAllGather": [*collective, handle, pointer],
            "ncclReduceScatter": [*collective, whole, handle, pointer],
            "ncclSend": [pointer, size_t, whole, whole, handle, pointer],
            "ncclRecv": [pointer, size_t, whole, whole, handle, pointer],
            "ncclBroadcast": [*collective, whole, handle, pointer],
            "ncclGroupStart": [],
            "ncclGroupEnd": [],
            "ncclCommWindowRegister": [handle, pointer, size_t, ctypes.POINTER(handle), whole],
            "ncclCommWindowDeregister": [handle, handle],
            "ncclCommDestroy": [handle],
        }
        nccl = ctypes.CDLL(library)
        nccl.ncclGetErrorString.restype, nccl.ncclGetErrorString.argtypes = ctypes.c_char_p, [whole]

        def call(name, *arguments):
            function = getattr(nccl, name)
            function.restype, function.argtypes = whole, types[name]
            code = function(*arguments)
            assert code == 0, (name, nccl.ncclGetErrorString(code))

        version = whole()
        call("ncclGetVersion", ctypes.byref(version))
        assert version.value == 23203
        unique = Id()
        if rank == 0:
            call("ncclGetUniqueId", ctypes.byref(unique))
        ctypes.memmove(ctypes.byref(unique), exchange(bytes(unique)), 128)
        comm = handle()
        call("ncclCommInitRank", ctypes.byref(comm), size, unique, rank)
        import array
        FLOAT, SUM = 7, 0
        memory = lambda *values: array.array("f", values)
        at = lambda values: values.buffer_info()[0]
        # A first allreduce, as a warm-up.
        one = memory(1)
        call("ncclAllReduce", at(one), at(one), 1, FLOAT, SUM, comm, None)
        assert one[0] == size
        mine, all_, part = memory(rank, rank), memory(*[9] * 2 * size), memory(0, 0)
        call("ncclAllGather", at(mine), at(all_), 2, FLOAT, comm, None)
        assert list(all_) == [r for r in range(size) for _ in range(2)]
        call("ncclReduceScatter", at(all_), at(part), 2, FLOAT, SUM, comm, None)
        assert list(part) == [size * rank] * 2
        call("ncclBroadcast", at(mine), at(part), 2, FLOAT, 1, comm, None)
        assert list(part) == [1, 1]
        call("ncclReduce", at(one), at(one), 1, FLOAT, SUM, 0, comm, None)
        # Uneven parts, by a broadcast of each rank's in a group.
        parts = [memory(*[r + 5 if r == rank else 0] * (r + 1)) for r in range(size)]
        call("ncclGroupStart")
        for r, values in enumerate(parts):
            call("ncclBroadcast", at(values), at(values), r + 1, FLOAT, r, comm, None)
        call("ncclGroupEnd")
        assert [list(values) for values in parts] == [[r + 5] * (r + 1) for r in range(size)]
        call("ncclGroupStart")
        call("ncclSend", at(mine), 2, FLOAT, (rank + 1) % size, comm, None)
        call("ncclRecv", at(part), 2, FLOAT, (rank - 1) % size, comm, None)
        call("ncclGroupEnd")
        assert list(part) == [(rank - 1) % size] * 2
        window = handle()
        call("ncclCommWindowRegister", comm, at(all_), 8 * size, ctypes.byref(window), 1)
        call("ncclCommWindowDeregister", comm, window)
        call("ncclCommDestroy", comm)
    """
    ranks_of(script, library, 3)


@pytest.mark.skipif(not (PACKAGES / "nccl").exists(), reason="no nccl4py: make setup-nccl")
def test_nccl4pys_bindings_run_on_it(library: Path):
    """The lower of its two layers takes addresses: everything runs.

    It looks for an NCCL in site-packages first, where torch brings one, unless the process has one already.
    """
    script = """
        import ctypes
        import numpy as np
        from nccl.bindings import nccl

        assert nccl.get_version() == 23203
        assert nccl.get_library_path().endswith("libnccl.so.2")
        unique = nccl.get_unique_id() if rank == 0 else nccl.UniqueId()
        told = exchange(ctypes.string_at(unique.ptr, 128))
        ctypes.memmove(unique.ptr, told, 128)
        comm = nccl.comm_init_rank(size, unique, rank)
        assert (nccl.comm_count(comm), nccl.comm_user_rank(comm)) == (size, rank)
        x, y = np.arange(5.0), np.zeros(5)
        FLOAT64, SUM = nccl.DataType.Float64, nccl.RedOp.Sum
        nccl.all_reduce(x.ctypes.data, y.ctypes.data, 5, FLOAT64, SUM, comm, 0)
        assert (y == size * x).all()
        many = np.zeros(5 * size)
        nccl.gather(x.ctypes.data, many.ctypes.data, 5, FLOAT64, 0, comm, 0)
        assert rank or (many.reshape(size, 5) == x).all()
        nccl.allto_all(many.ctypes.data, np.zeros(5 * size).ctypes.data, 5, FLOAT64, comm, 0)
        part = nccl.comm_split(comm, 0, -rank, nccl.Config())
        assert nccl.comm_user_rank(part) == size - 1 - rank
        nccl.comm_destroy(part)
        try:
            nccl.all_reduce(x.ctypes.data, y.ctypes.data, 5, 99, SUM, comm, 0)
        except nccl.NCCLError as error:
            print(error)
        nccl.comm_finalize(comm)
        nccl.comm_destroy(comm)
    """
    said = ranks_of(script, library, PYTHONPATH=str(PACKAGES), LD_PRELOAD=str(library))
    assert all("InvalidArgument" in text for text in said), said


@pytest.mark.skipif(not (PACKAGES / "cuda" / "core").exists(), reason="no cuda-core: make setup-nccl")
def test_nccl4pys_communicators_stop_at_the_driver(library: Path):
    """The upper layer makes and splits communicators; its collectives ask cuda-core for a stream, and that for CUDA."""
    pytest.importorskip("cuda.pathfinder", reason="no CUDA packages, which torch brings")
    script = f"""
        import cuda
        cuda.__path__.append({str(PACKAGES / "cuda")!r})
        import nccl.core as nccl
        import numpy as np

        assert str(nccl.get_version().libnccl.version) == "2.32.3"
        own = nccl.get_unique_id() if rank == 0 else None
        told = exchange(bytes(own.as_bytes if not callable(own.as_bytes) else own.as_bytes()) if own else None)
        comm = nccl.Communicator.init(size, rank, nccl.UniqueId.from_bytes(told))
        assert (comm.nranks, comm.rank) == (size, rank)
        part = comm.split(0, rank)
        assert part.nranks == size
        try:
            comm.allreduce(np.ones(4, np.float32), np.zeros(4, np.float32), nccl.SUM)
        except Exception as error:
            print(type(error).__name__, error)
        part.destroy()
        comm.destroy()
    """
    for text in ranks_of(script, library, PYTHONPATH=str(PACKAGES), LD_PRELOAD=str(library)):
        assert "driver" in text, text


def test_torch_takes_it_for_nccl(library: Path):
    """Ids come from it (the version that torch reports was compiled in); the process group asks for a GPU first."""
    torch = pytest.importorskip("torch")
    if not hasattr(torch._C, "_nccl_version"):
        pytest.skip("this torch has no NCCL")
    script = """
        import torch, torch.distributed as dist
        assert torch.cuda.nccl.unique_id().startswith(b"netsumid")
        assert dist.is_nccl_available()
        if not torch.cuda.is_available():
            store = dist.HashStore()
            try:
                dist.ProcessGroupNCCL(store, 0, 1)
            except Exception as error:
                print(error)
    """
    (said,) = ranks_of(script, library, 1, LD_PRELOAD=str(library))
    assert torch.cuda.is_available() or "no GPUs found" in said, said
