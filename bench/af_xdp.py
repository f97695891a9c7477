"""What a packet in and a packet out cost a switch's process: AF_XDP in copy mode beside UDP; medians and best.

    python bench/af_xdp.py [--rounds N] [--seconds S] [--out FILE]

Two namespaces and a veth link between them; the one makes load, the other sends every datagram of 1,440 bytes back.
Once on a link that takes trains of datagrams as one (segmentation offload), and once on one that takes single packets,
as devices without it. Ways alternate. Needs root, gcc, clang and libbpf's headers (`make setup-xdp`).
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
WAYS = ("trains", "packets", "af_xdp")
NEAR, FAR, PORT = "10.78.9.1", "10.78.9.2", "7000"
SPACES = ("netsum-bench-a", "netsum-bench-b")
READY_S = 0.5


def run(*command: str | pathlib.Path) -> str:
    return subprocess.run([*map(str, command)], check=True, capture_output=True, text=True).stdout


def build(folder: pathlib.Path) -> None:
    run("gcc", "-O2", "-Wall", "-o", folder / "reflect", HERE / "peers/reflect.c", "-lbpf")
    include = next(iter(pathlib.Path("/usr/include").glob("*-linux-gnu")))
    source = HERE / "peers/redirect.bpf.c"
    run("clang", "-O2", "-g", "-target", "bpf", "-I", include, "-c", source, "-o", folder / "redirect.o")


def link(single: bool) -> None:
    """Two namespaces with a link; single: of packets that the sender cuts itself."""
    for space in SPACES:
        run("ip", "netns", "add", space)
    run("ip", "link", "add", "bench", "netns", SPACES[0], "type", "veth", "peer", "name", "bench", "netns", SPACES[1])
    for space, address in zip(SPACES, (NEAR, FAR), strict=True):
        run("ip", "-n", space, "address", "add", f"{address}/24", "dev", "bench")
        if single:
            run("ip", "-n", space, "link", "set", "bench", "gso_max_segs", "1")
        run("ip", "-n", space, "link", "set", "bench", "up")


def measure(folder: pathlib.Path, way: str, seconds: float) -> dict[str, float]:
    """Packets per second, and nanoseconds of the reflecting and of both processes per packet."""
    program = folder / "reflect"
    arguments = ["bench", str(folder / "redirect.o")] if way == "af_xdp" else [FAR, PORT]
    command = ["ip", "netns", "exec", SPACES[1], str(program), way, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reflecting:
        try:
            reflecting.wait(READY_S)
            raise SystemExit(f"{way}: the reflecting process ended with {reflecting.returncode}")
        except subprocess.TimeoutExpired:
            pass
        said = run("ip", "netns", "exec", SPACES[0], program, "load", NEAR, FAR, PORT, str(seconds))
        reflecting.send_signal(signal.SIGTERM)
        reflected_s = float(reflecting.communicate()[0])
    back, _, elapsed_s, load_s = map(float, said.split())
    if back == 0:
        raise SystemExit(f"{way}: nothing came back")
    each = reflected_s / back * 1e9
    return {"packets_per_s": back / elapsed_s, "ns": each, "ns_with_load": each + load_s / back * 1e9}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--out", type=pathlib.Path)
    given = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("needs root: network namespaces, and programs in the kernel")
    result: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="netsum-af-xdp-") as name:
        folder = pathlib.Path(name)
        build(folder)
        for kind, single in (("trains pass", False), ("single packets", True)):
            rows: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
            try:
                link(single)
                for _ in range(given.rounds):
                    for way in WAYS:
                        rows[way].append(measure(folder, way, given.seconds))
            finally:
                for space in SPACES:
                    subprocess.run(["ip", "netns", "del", space], capture_output=True)
            for way, found in rows.items():
                ns = [each["ns"] for each in found]
                row = {key: statistics.median(each[key] for each in found) for key in found[0]} | {"best_ns": min(ns)}
                result.setdefault(kind, {})[way] = row
                print(
                    f"{kind}, {way}: {row['ns']:,.0f} ns per packet (best {row['best_ns']:,.0f}), with the load "
                    f"{row['ns_with_load']:,.0f}; {row['packets_per_s'] / 1e6:.2f} M packets/s",
                    flush=True,
                )
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
