"""A rank without torch: sums until it is told to stop, or for so many steps."""

from __future__ import annotations

import array
import os
import sys
import time

from netsum.communicator import connect


def main() -> None:
    steps = int(sys.argv[1])
    with connect() as world:
        for step in range(steps):
            ones = array.array("f", [1.0]) * (1 << 15)
            world.allreduce(ones)
            if ones[0] != float(os.environ["WORLD_SIZE"]) or ones[0] != ones[-1]:
                raise SystemExit(f"step {step}: the sum is {ones[0]}")
            time.sleep(0.05)


if __name__ == "__main__":
    main()
