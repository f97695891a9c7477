"""Runs PyTorch's own DistributedTest on backend netsum: an independent test suite.

    python tests/peers/torch_distributed.py --ranks 3 [-k PATTERN]

The suite skips backends whose names it does not know, so netsum's creator is registered as "gloo": every case for gloo
then runs on netsum, which is verified by counting its calls. A skipped case ends a process with a special exit code;
the script counts cases that ran, not those that did not fail. Source:
torch/testing/_internal/distributed/distributed_test.py.
"""

import argparse
import collections
import os
import sys
import tempfile
import unittest
from multiprocessing import Value, get_context
from pathlib import Path

RUN_BY_GLOO = {2: 90, 3: 90, 4: 93}
"""Cases that run, and pass, on gloo with torch 2.15; the others need a GPU, NCCL or MPI."""

EXCUSED = {
    "test_ddp_logging_data_cpu": "asks whether the backend's name is gloo",
    "test_barrier_timeout_full_group": "asks for gloo's words; ours name the operation and the missing rank",
}
"""Cases that run and may fail, with the reason."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=3, choices=sorted(RUN_BY_GLOO))
    parser.add_argument("--backend", default="netsum", choices=["netsum", "gloo"], help="gloo checks the harness")
    parser.add_argument("-k", dest="pattern", default="", help="only cases whose name contains this")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="netsum-peers-") as folder:
        (Path(folder) / "barrier").touch()
        os.environ.update(BACKEND="gloo", WORLD_SIZE=str(arguments.ranks), TEMP_DIR=folder)
        return run(arguments.ranks, arguments.backend, arguments.pattern)


def run(ranks: int, backend: str, pattern: str) -> int:
    """Run the suite; 0 if as many cases ran as on gloo and all of them passed."""
    import torch

    torch.set_num_threads(1)
    groups = Value("i", 0)
    if backend == "netsum":
        answer_to_gloo(groups)
    suite = unittest.TestSuite(case for case in all_cases() if pattern in case.id())
    result = CountingResult(sys.stdout, descriptions=False, verbosity=1)
    suite.run(result)
    for test, trace in result.failures + result.errors:
        print(f"--- {test}\n{trace}")
    ran = result.testsRun - len(result.skipped)
    failed = [test.id().rpartition(".")[2] for test, _ in result.failures + result.errors]
    bad = len([name for name in failed if backend == "gloo" or name not in EXCUSED])
    print(
        f"{backend}, {ranks} ranks: {ran} run, {ran - len(failed)} passed, {len(failed) - bad} excused, "
        f"{len(result.skipped)} skipped",
        end="",
    )
    print(f"; {groups.value} groups made by netsum" if backend == "netsum" else "")
    expected = 0 if pattern else RUN_BY_GLOO[ranks]
    enough = ran >= expected and (backend == "gloo" or groups.value > 0)
    return 0 if enough and not bad else 1


class CountingResult(unittest.TextTestResult):
    """Prints a line per case that runs, so that a hang shows its name."""

    def __init__(self, stream, descriptions, verbosity) -> None:
        super().__init__(unittest.runner._WritelnDecorator(stream), descriptions, verbosity)
        self.outcomes = collections.Counter()

    def startTest(self, test) -> None:
        print(test.id().rpartition(".")[2], end=" ", flush=True)
        super().startTest(test)

    def stopTest(self, test) -> None:
        print(flush=True)
        super().stopTest(test)


def answer_to_gloo(groups, options=None) -> None:
    """Register netsum's creator as gloo in this process and its forks.

    groups: counts the created groups. options: netsum's, in place of those that the suite gives.
    """
    import torch.distributed as dist

    from netsum.torch import entries
    from netsum.torch.create import create

    def counting(group, given):
        with groups.get_lock():
            groups.value += 1
        return create(group, options or given)

    dist.Backend._plugins["GLOO"] = dist.Backend._BackendPlugin(counting, True)
    # The suite expects events "gloo:all_reduce" and so on.
    entries.event_prefix = "gloo"
    # Left at GLOO, DDP's C++ logger would cast netsum's backend to ProcessGroupGloo.
    dist.Backend.backend_type_map["gloo"] = dist.ProcessGroup.BackendType.CUSTOM


def all_cases():
    from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend

    class Suite(TestDistBackend, DistributedTest._DistTestBase):
        """Runs each case in forked processes: three times as fast as processes that import torch."""

        def setUp(self) -> None:
            super().setUp()
            self._start_processes(get_context("fork").Process)

    yield from unittest.defaultTestLoader.loadTestsFromTestCase(Suite)


if __name__ == "__main__":
    sys.exit(main())
