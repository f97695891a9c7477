"""Keeps what fuzzing has found: in `fuzz/kept/TARGET` as few inputs as reach all that the corpus reaches.

`unpack TARGET …` adds the kept inputs to the corpora that `make fuzz` goes on from, `pack TARGET …` keeps the corpora.
A file of kept inputs is their number of bytes (32 bits, little-endian) and their bytes, one after the other.
"""

import hashlib
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
LENGTH = struct.Struct("<I")
# Longer inputs seldom reach more, and tests run all of them.
MOST_BYTES = 2048


def unpack(target: str) -> int:
    """Write the kept inputs of a target into its corpus; returns their number."""
    folder, file = HERE / "corpus" / target, HERE / "kept" / target
    folder.mkdir(parents=True, exist_ok=True)
    rest, number = file.read_bytes() if file.exists() else b"", 0
    while rest:
        (length,) = LENGTH.unpack_from(rest)
        data, rest = rest[LENGTH.size : LENGTH.size + length], rest[LENGTH.size + length :]
        (folder / hashlib.sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)
        number += 1
    return number


def pack(target: str) -> int:
    """Keep what a target's corpus reaches beyond the seeds; returns the number of inputs."""
    program = next(HERE.glob(f"target/*/release/{target}"), None)
    if program is None:
        raise SystemExit(f"{target} is not built: cargo +nightly fuzz build")
    with tempfile.TemporaryDirectory() as folder:
        reached = Path(shutil.copytree(HERE / "seeds" / target, Path(folder) / "reached"))
        seeds = set(reached.iterdir())
        command = [program, "-set_cover_merge=1", f"-max_len={MOST_BYTES}", "-rss_limit_mb=2048"]
        done = subprocess.run([*command, reached, HERE / "corpus" / target], capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{target}: {done.stderr[-2000:]}")
        inputs = sorted((file.read_bytes() for file in set(reached.iterdir()) - seeds), key=lambda d: (len(d), d))
    file = HERE / "kept" / target
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"".join(LENGTH.pack(len(data)) + data for data in inputs))
    return len(inputs)


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in ("pack", "unpack"):
        raise SystemExit(f"usage: {sys.argv[0]} pack|unpack TARGET …")
    for each in sys.argv[2:]:
        print(f"{each}: {(pack if sys.argv[1] == 'pack' else unpack)(each)} inputs", flush=True)
