"""Runs Horovod's own test/parallel/test_torch.py, or its published examples, on `netsum.horovod.torch`.

    python tests/peers/horovod_suite.py --source horovod --ranks 2 [-k PATTERN]
    python tests/peers/horovod_suite.py --source horovod --examples

The files are not in Horovod's package on PyPI: --source is a clone of github.com/horovod/horovod, created if it does
not exist; without a network the script prints a message and exits with 0. Files run unchanged: `horovod.torch` is
netsum's module, and of Horovod's test helpers only those used by test_torch.py are provided. Examples get
scikit-learn's digits in place of MNIST, and a small network if torchvision is not installed.
"""

import argparse
import collections
import contextlib
import os
import runpy
import subprocess
import sys
import tempfile
import time
import types
import unittest
from multiprocessing import get_context
from pathlib import Path

from netsum.fabric.reservations import free_port

HOROVOD = "https://github.com/horovod/horovod"
REVISION = "v0.28.1"
_HALF = "wants 3x of float16 numbers to be exact, which no float16 result can be"
_RACE = "wants the first operation to be under way still at the second call, when two other ranks have called it"
EXCUSED: dict[int, dict[str, str]] = {
    3: {
        **{f"test_horovod_{name}_prescale": _HALF for name in ("allreduce", "reducescatter", "grouped_reducescatter")},
        **{
            f"test_horovod_{name}_duplicate_name_error": _RACE
            for name in ("allreduce", "allgather", "broadcast", "reducescatter")
        },
    }
}
"""Cases excluded with so many ranks, and why: failing at some ranks alone, they would block the others.

With two ranks the race is lost on a busy machine only.
"""

# Many times the duration of all cases.
LIMIT_S = 1200

EXAMPLES = {
    "pytorch_mnist.py": ["--epochs", "1", "--no-cuda", "--log-interval", "5"],
    "pytorch_synthetic_benchmark.py": [
        *("--no-cuda", "--model", "resnet18", "--batch-size", "2"),
        *("--num-warmup-batches", "1", "--num-batches-per-iter", "1", "--num-iters", "2"),
    ],
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, default=Path("out/peers/horovod"), help="a clone of Horovod")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--examples", action="store_true", help="the examples in place of the tests")
    parser.add_argument("-k", dest="pattern", default="", help="only cases whose name contains this")
    arguments = parser.parse_args()
    if not present(arguments.source):
        print(f"skipped: Horovod's tests; {HOROVOD} cannot be cloned, and {arguments.source} has none (--source)")
        return 0
    if arguments.examples:
        return max(run_example(arguments.source, name, arguments.ranks) for name in EXAMPLES)
    return run_suite(arguments.source, arguments.ranks, arguments.pattern)


def present(source: Path) -> bool:
    """Whether the files exist, after an attempt to clone them."""
    if not (source / "test/parallel/test_torch.py").exists():
        source.parent.mkdir(parents=True, exist_ok=True)
        clone = ["git", "clone", "--quiet", "--depth", "1", "--branch", REVISION, HOROVOD, str(source)]
        with contextlib.suppress(OSError):
            subprocess.run(clone, check=False)
    return (source / "test/parallel/test_torch.py").exists()


def ranks_of(target, size: int, arguments: tuple) -> list:
    """Run target(rank, queue, *arguments) in `size` processes; returns each one's queue item, None if it died or
    hung."""
    context = get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        queues = [context.SimpleQueue() for _ in range(size)]
        processes = []
        for rank in range(size):
            place = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size}
            settings = {"NETSUM_MEETING": f"127.0.0.1:{port}", "NETSUM_TOKEN": "none"}
            settings |= {"OMP_NUM_THREADS": "1", "HOROVOD_RANK": str(rank)}
            settings |= {name: str(value) for name, value in place.items()} | {"TMPDIR": folder}
            processes.append(
                context.Process(target=_rank, args=(target, rank, settings, queues[rank], arguments), daemon=True)
            )
        for process in processes:
            process.start()
        deadline = time.monotonic() + LIMIT_S
        for process in processes:
            process.join(max(0, deadline - time.monotonic()))
            process.kill()
        return [None if queue.empty() else queue.get() for queue in queues]


def run_suite(source: Path, size: int, pattern: str) -> int:
    """0 if every rank completed the suite and no case failed unexpectedly."""
    answers = ranks_of(_suite, size, (str(source), size, pattern))
    if None in answers:
        print(f"ranks {[rank for rank, answer in enumerate(answers) if answer is None]} did not end")
        return 1
    verdicts: dict[str, set[str]] = collections.defaultdict(set)
    for outcomes in answers:
        for name, verdict in outcomes.items():
            verdicts[name].add(verdict)
    failed = sorted(name for name, seen in verdicts.items() if "failed" in seen)
    skipped = sum(seen == {"skipped"} for seen in verdicts.values())
    left_out = len(EXCUSED.get(size, {}))
    print(
        f"netsum.horovod.torch, {size} ranks: {len(verdicts) - skipped} run, {len(verdicts) - skipped - len(failed)} "
        f"passed, {left_out} left out, {skipped} skipped; failed: {', '.join(failed) or 'none'}"
    )
    return 1 if failed or len(verdicts) == skipped else 0


def run_example(source: Path, name: str, size: int) -> int:
    answers = ranks_of(_example, size, (str(source / "examples/pytorch" / name), EXAMPLES[name]))
    good = answers == ["ended"] * size
    print(f"{name}, {size} ranks: {'ran to its end' if good else f'failed: {answers}'}")
    return 0 if good else 1


def _rank(target, rank: int, settings: dict[str, str], queue, arguments: tuple) -> None:
    os.environ.update(settings)
    _be_horovod()
    queue.put(target(rank, *arguments))


def _be_horovod() -> None:
    """Let `import horovod.torch` find netsum's module."""
    import torch

    import netsum.horovod.torch as ours

    torch.set_num_threads(1)
    package = types.ModuleType("horovod")
    package.__path__ = []
    package.torch = ours
    package.run = None
    sys.modules.update({"horovod": package, "horovod.torch": ours})


def _suite(rank: int, source: str, size: int, pattern: str) -> dict[str, str]:
    """Outcome by case: passed, failed or skipped."""
    sys.modules["common"] = _helpers(rank, size)
    # The suite tries every optimizer that torch has; Muon, which is newer, rejects its models.
    import torch

    if hasattr(torch.optim, "Muon"):
        torch.optim.Muon.__module__ = "hidden from a suite that is older"
    sys.path.insert(0, f"{source}/test/parallel")
    import test_torch

    cases = unittest.defaultTestLoader.loadTestsFromTestCase(test_torch.TorchTests)
    wanted = [case for case in cases if case.id().rpartition(".")[2] not in EXCUSED.get(size, {})]
    suite = unittest.TestSuite(case for case in wanted if pattern in case.id())
    result = _Outcomes(rank)
    suite.run(result)
    return result.outcomes


class _Outcomes(unittest.TestResult):
    """Prints each case of rank 0 before it runs, so that a hang shows its name, and each failure."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.outcomes: dict[str, str] = {}
        self._rank = rank

    def startTest(self, test) -> None:
        super().startTest(test)
        name = test.id().rpartition(".")[2]
        self.outcomes[name] = "passed"
        if self._rank == 0:
            print(name, flush=True)

    def addSkip(self, test, reason) -> None:
        self.outcomes[test.id().rpartition(".")[2]] = "skipped"

    def addFailure(self, test, err) -> None:
        self._failed(test, err)

    def addError(self, test, err) -> None:
        self._failed(test, err)

    def _failed(self, test, err) -> None:
        self.outcomes[test.id().rpartition(".")[2]] = "failed"
        print(f"--- rank {self._rank}: {test}\n{self._exc_info_to_string(err, test)}", flush=True)


def _helpers(rank: int, size: int) -> types.ModuleType:
    """The parts of Horovod's test/utils/common.py that test_torch.py uses, without Horovod's launcher."""
    helpers = types.ModuleType("common")

    @contextlib.contextmanager
    def temppath():
        with tempfile.TemporaryDirectory() as folder:
            yield os.path.join(folder, "file")

    def skip_or_fail_gpu_test(case, message):
        case.skipTest(message)

    helpers.mpi_env_rank_and_size = lambda: (rank, size)
    helpers.skip_or_fail_gpu_test = skip_or_fail_gpu_test
    helpers.temppath = temppath
    return helpers


def _example(rank: int, path: str, arguments: list[str]) -> str:
    sys.path.insert(0, str(Path(__file__).parent))
    import horovod_vision

    horovod_vision.stand_in()
    sys.argv = [path, *arguments]
    if rank:
        sys.stdout = open(os.devnull, "w")
    runpy.run_path(path, run_name="__main__")
    return "ended"


if __name__ == "__main__":
    sys.exit(main())
