"""Runs PyTorch's own test/distributed/test_c10d_fault_tolerance.py on backend netsum: groups that shrink and grow.

    python tests/peers/fault_tolerance_suite.py --source pytorch [--backend netsum] [-k PATTERN]

The file is not in torch's wheel: --source is a clone of github.com/pytorch/pytorch of torch's version, or the file
itself; without it the script prints a message and exits with 0. Backends are added to the suite's list, which is made
for that; in addition, ranks are forked and not spawned, which would import torch again for every case.
"""

import argparse
import importlib.util
import sys
import unittest
from multiprocessing import get_context
from pathlib import Path

import netsum.torch

NAME = "test_c10d_fault_tolerance"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--source", type=Path, default=Path("out/peers/pytorch"), help="a clone of PyTorch, or the file"
    )
    parser.add_argument("--backend", default="netsum", help="gloo for a check of this script")
    parser.add_argument("-k", dest="pattern", default="", help="only cases whose name contains this")
    arguments = parser.parse_args()
    file = arguments.source if arguments.source.is_file() else arguments.source / f"test/distributed/{NAME}.py"
    if not file.is_file():
        print(f"skipped: PyTorch's fault-tolerance tests; {file} is not there (--source)")
        return 0
    netsum.torch.register()
    case = load(file, arguments.backend)
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(case)
    chosen = unittest.TestSuite(test for test in suite if arguments.pattern in test.id())
    result = unittest.TextTestRunner(verbosity=2).run(chosen)
    failed = len(result.failures) + len(result.errors)
    passed = result.testsRun - failed - len(result.skipped)
    print(
        f"{arguments.backend}: {result.testsRun} cases, {passed} passed, {failed} failed, {len(result.skipped)} skipped"
    )
    return 1 if failed or not passed else 0


def load(file: Path, backend: str) -> type:
    """The file's test class for one backend on the CPU."""
    spec = importlib.util.spec_from_file_location(NAME, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    case = module._make_fault_tolerance_test_class(backend, "cpu")
    case._spawn_processes = lambda self: self._start_processes(get_context("fork").Process)
    return case


if __name__ == "__main__":
    sys.exit(main())
