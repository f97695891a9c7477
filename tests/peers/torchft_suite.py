"""Runs torchft's own process-group tests on netsum: `torchft/process_group_test.py` of its package.

    python tests/peers/torchft_suite.py [--backend gloo] [-k PATTERN]

Needs torchft and parameterized; without them the script prints a message and exits with 0. The cases that are written
for Gloo run with `ProcessGroupGloo` replaced by netsum's class; nothing else is changed. Ranks are threads of one
process. Cases that expect Gloo's error text, and found netsum's for the same error, are counted separately.
"""

import argparse
import sys
import unittest

CASES = ("test_gloo_apis", "test_gloo_timeout", "test_process_group_wrapper", "test_error_swallowing", "test_managed")
"""Cases of ProcessGroupTest that make a ProcessGroupGloo. Others are for NCCL, sub-processes or torchft alone."""

OURS = ("has left the group", "is lost:", "did not come to the meeting")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="netsum", choices=("netsum", "gloo"), help="gloo: a check of this script")
    parser.add_argument("-k", dest="pattern", default="", help="only cases whose name contains this")
    arguments = parser.parse_args()
    try:
        import torchft.process_group as groups
    except ImportError as error:
        print(f"skipped: torchft's tests; {error} (pip install torchft parameterized)")
        return 0
    if arguments.backend == "netsum":
        from netsum.torch.torchft import ProcessGroupNetsum

        groups.ProcessGroupGloo = ProcessGroupNetsum
    from torchft import process_group_test as suite

    load = unittest.defaultTestLoader.loadTestsFromTestCase
    alone = [test for test in load(suite.ProcessGroupTest) if any(case in test.id() for case in CASES)]
    chosen = unittest.TestSuite(
        test for test in [*alone, *load(suite.NormalGlooMultiPgTest)] if arguments.pattern in test.id()
    )
    result = unittest.TextTestRunner(verbosity=2).run(chosen)
    worded = [
        trace for _, trace in result.failures if "does not match" in trace and any(each in trace for each in OURS)
    ]
    failed = len(result.failures) + len(result.errors) - len(worded)
    passed = result.testsRun - failed - len(worded) - len(result.skipped)
    counts = f"{passed} passed, {len(worded)} failed in other words, {failed} failed, {len(result.skipped)} skipped"
    print(f"{arguments.backend}: {result.testsRun} cases, {counts}")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
