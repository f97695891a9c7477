"""Runs PyTorch's own tests of FSDP2, DTensor, device meshes and ZeRO on backend netsum.

    python tests/peers/torch_sharded.py --source pytorch [-k PATTERN] [--jobs 4] [--switches]

The files are not in torch's wheel: --source is a clone of github.com/pytorch/pytorch, or its source package (`apt-get
source pytorch` with Debian's `deb-src`), of a version near torch's own; without it the script prints a message and
exits with 0. Most cases ask for several GPUs. They run on the CPU: each file is read with "cpu" in place of "cuda", and
nothing is skipped for want of a GPU. What needs one for more than its memory (clocks, memory statistics, inductor), or
more than 2 GiB per rank, fails on every backend, so each case runs on gloo first, and on netsum if it passed there.
Cases whose ranks are threads have a backend of their own and are left out.

With --switches, the operations of all groups that switches know pass the switches of the demo's fabric, whatever their
size; the script prints what the switches received, and fails if that is nothing.
"""

import argparse
import collections
import contextlib
import dataclasses
import multiprocessing
import os
import resource
import sys
import time
import types
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from torch_distributed import answer_to_gloo

if TYPE_CHECKING:
    from netsum.torch.backend import Options

FILES = [
    "_composable/fsdp/test_fully_shard_*.py",
    "_composable/test_composability/test_*.py",
    "_tensor/test_*.py",
    "tensor/test_*.py",
    "tensor/parallel/test_*.py",
    "test_device_mesh.py",
    "optim/test_zero_redundancy_optimizer.py",
]
"""Below test/distributed."""

ON_THE_CPU = {
    '"cuda"': '"cpu"',
    "'cuda'": "'cpu'",
    ".cuda()": ".cpu()",
    "torch.cuda.": "torch.cpu.",
    ", device_ids=[self.rank]": "",
    "device_ids=[self.rank],": "",
}

EXCUSED: dict[str, str] = {}
"""Cases that pass on gloo and may fail on netsum, with the reason."""

HEARTBEAT_S = 1.5
"""By then the last counters of the switches have reached the controller."""
CASE_S = 300
"""A case that takes longer has failed."""
RANK_BYTES = 2 << 30
"""Convolutions of some cases take more, which four ranks of two jobs do not find on every machine."""
GPUS = 4
"""As many as the suites find: their numbers of ranks follow."""


@dataclasses.dataclass
class Outcome:
    """The end of one case on one backend. kind: passed, failed or skipped."""

    name: str
    kind: str
    trace: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, default=Path("out/peers/pytorch"), help="a clone or source package")
    parser.add_argument("-k", dest="pattern", default="", help="only cases whose name contains this")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time; each has up to 8 ranks")
    parser.add_argument("--switches", action="store_true", help="the network path, over the demo's fabric")
    parser.add_argument("--log", type=Path, default=Path("out/peers/torch_sharded.log"), help="what the cases print")
    arguments = parser.parse_args()
    folder = arguments.source / "test/distributed"
    if not folder.is_dir():
        print(f"skipped: PyTorch's tests of FSDP2 and DTensor; {folder} is not there (--source)")
        return 0
    arguments.log.parent.mkdir(parents=True, exist_ok=True)
    pretend_gpus()
    sys.path.insert(0, str(folder))
    cases, missing = all_cases(folder, arguments.pattern)
    on_gloo = run(cases, "gloo", arguments.jobs, arguments.log)
    able = [case for case in cases if on_gloo[case.id()].kind == "passed"]
    with through_switches() if arguments.switches else contextlib.nullcontext() as options:
        on_netsum = run(able, "netsum", arguments.jobs, arguments.log, options)
    return report(on_gloo, on_netsum, missing)


@contextlib.contextmanager
def through_switches() -> Iterator["Options"]:
    """A fabric for this process and its forks; the options of groups that use it."""
    from netsum.demo.meter import LinkMeter
    from netsum.fabric.builtin import demo_description
    from netsum.fabric.local import temporary
    from netsum.torch.backend import Options

    with temporary(demo_description()) as fabric:
        os.environ.update(fabric.environment(), NETSUM_COLLECTIVES="all", NETSUM_MIN_BYTES="1")
        meter = LinkMeter(fabric.description)
        meter.read(fabric.status())
        yield Options(in_network=True)
        time.sleep(HEARTBEAT_S)
        meter.read(fabric.status())
        received = sum(meter.link_bytes().values())
        print(f"{received / 1e6:.1f} MB on the links of {', '.join(s.name for s in fabric.description.switches)}")
        assert received > 0, "no packet passed a switch"


def pretend_gpus() -> None:
    """Let cases for several GPUs run on the CPU. Before the files are loaded, which take these names."""
    import torch
    from torch.testing._internal import common_cuda, common_distributed, common_fsdp

    torch.set_num_threads(1)
    # A fork's thread pool is recreated on first use; torch crashes if two threads do so at once.
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))
    # Of torch 2.6: runs a case a second time, compiled.
    common_fsdp.test_compiled_fsdp = lambda **_options: lambda case: case
    # Cases let kernels sleep so that races show; their results do not depend on it.
    torch.cpu._sleep = lambda _cycles: None
    torch.cpu.device_count = torch.accelerator.device_count = lambda: GPUS
    common_cuda.TEST_CUDA = True
    common_distributed.TIMEOUT_DEFAULT = CASE_S
    for name in ("skip_if_lt_x_gpu", "requires_nccl", "requires_accelerator_dist_backend"):
        setattr(common_distributed, name, lambda *_args, **_options: lambda case: case)


def all_cases(folder: Path, pattern: str) -> tuple[list[unittest.TestCase], dict[str, str]]:
    """The cases whose ranks are processes, and by file the reason why it cannot be loaded."""
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    cases, missing = [], {}
    for file in (path for glob in FILES for path in sorted(folder.glob(glob))):
        name = str(file.relative_to(folder).with_suffix("")).replace("/", ".")
        try:
            module = load(name, file)
        except Exception as error:
            missing[name] = f"{type(error).__name__}: {error}"
            continue
        for kind in vars(module).values():
            if isinstance(kind, type) and issubclass(kind, MultiProcessTestCase) and kind.__module__ == name:
                # A new process would import torch again for each rank.
                kind._spawn_processes = lambda self: self._start_processes(multiprocessing.get_context("fork").Process)
                found = unittest.defaultTestLoader.loadTestsFromTestCase(kind)
                cases += [case for case in found if pattern in case.id()]
    return cases, missing


def load(name: str, file: Path) -> types.ModuleType:
    text = file.read_text()
    for old, new in ON_THE_CPU.items():
        text = text.replace(old, new)
    module = types.ModuleType(name)
    module.__file__ = str(file)
    sys.modules[name] = module
    exec(compile(text, str(file), "exec"), vars(module))
    return module


def run(
    cases: list[unittest.TestCase], backend: str, jobs: int, log: Path, options: "Options | None" = None
) -> dict[str, Outcome]:
    """The outcomes by case. Prints a line for each. options: of all groups of netsum."""
    context = multiprocessing.get_context("fork")
    outcomes, groups = context.SimpleQueue(), context.Value("i", 0)
    # Neighbours in a file take about as long as each other.
    parts = [cases[first::jobs] for first in range(jobs)]
    workers = [context.Process(target=_run, args=(part, backend, outcomes, groups, log, options)) for part in parts]
    for worker in workers:
        worker.start()
    found = {}
    for _ in cases:
        outcome = outcomes.get()
        found[outcome.name] = outcome
        print(f"{backend} {len(found)}/{len(cases)} {outcome.kind} {outcome.name}", flush=True)
    for worker in workers:
        worker.join()
    if backend == "netsum" and cases:
        assert groups.value > 0, "no group was made by netsum"
        print(f"{groups.value} groups made by netsum")
    return found


def _run(cases: list[unittest.TestCase], backend: str, outcomes, groups, log: Path, options) -> None:
    with log.open("a") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    resource.setrlimit(resource.RLIMIT_DATA, (RANK_BYTES, RANK_BYTES))
    if backend == "netsum":
        answer_to_gloo(groups, options)
    for case in cases:
        result = unittest.TestResult()
        with contextlib.suppress(SystemExit):
            case.run(result)
        wrong = result.failures + result.errors
        kind = "failed" if wrong or not result.testsRun else "skipped" if result.skipped else "passed"
        outcomes.put(Outcome(case.id(), kind, "\n".join(trace for _, trace in wrong)))


def report(on_gloo: dict[str, Outcome], on_netsum: dict[str, Outcome], missing: dict[str, str]) -> int:
    """Print the tables; 0 if netsum passes what gloo passes."""
    rows = collections.defaultdict(collections.Counter)
    for name, outcome in on_gloo.items():
        rows[name.rsplit(".", 2)[0]][f"gloo {outcome.kind}"] += 1
    bad = []
    for name, outcome in on_netsum.items():
        excused = outcome.kind != "passed" and name.rpartition(".")[2] in EXCUSED
        rows[name.rsplit(".", 2)[0]]["excused" if excused else f"netsum {outcome.kind}"] += 1
        if outcome.kind != "passed":
            print(f"--- {name}\n{outcome.trace[-3000:]}")
            bad += [] if excused else [name]
    for name, reason in missing.items():
        print(f"not loaded: {name}: {reason}")
    for name, counts in rows.items():
        passed, able = counts["netsum passed"], counts["gloo passed"]
        others = f"{counts['gloo failed']} need a GPU or another torch, {counts['gloo skipped']} skipped"
        print(f"{name}: {passed} of {able} that pass on gloo pass on netsum; {others}")
    total = sum(rows.values(), collections.Counter())
    print(
        f"{len(on_gloo)} cases, {total['gloo passed']} pass on gloo, {total['netsum passed']} of them on netsum, "
        f"{total['excused']} excused; failed on netsum: {', '.join(bad) or 'none'}"
    )
    return 1 if bad or not total["netsum passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
