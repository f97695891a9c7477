"""Runs ns3_permutation.cc: k, bytes, marking threshold and the receivers by sender; completion times in µs, as JSON."""

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path


def main() -> None:
    """The arguments are k, bytes, mark, then a receiver for each sender."""
    k, size, mark, *to = (int(argument) for argument in sys.argv[1:])
    import cppyy
    from ns import ns  # noqa: F401  Loads ns-3's libraries and headers into cling.

    for name in ("ns3_flows.cc", "ns3_permutation.cc"):
        cppyy.cppdef(Path(__file__).with_name(name).read_text())
    before = time.process_time()
    times = cppyy.gbl.peer.Permutation(k, cppyy.gbl.std.vector["uint32_t"](to), size, mark)
    result = {"fct_us": [t / 1e6 for t in times], "cpu_s": time.process_time() - before, "version": version("ns3")}
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
