"""`make test-gpu`: NCCL with netsum's plug-in, and netsum's backend with CUDA tensors, where there is a GPU.

Two ranks share one GPU and count as two hosts of a local fabric with real switches. Without a GPU each part runs on its
stand-in: NCCL's library on one of the CUDA runtime (`crates/nccl-net/tests/library`), the backend on a simulated
accelerator, which checks streams, events and pinned memory (`python/tests/torch/accelerator`). The table says what ran
where, and what was skipped.
"""

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from netsum.fabric.builtin import demo_toml, free_block
from netsum.fabric.description import Description
from netsum.fabric.local import temporary

ROOT = Path(__file__).parents[2]
RANKS = 2
LIMIT_S = 600
BUILD_LIMIT_S = 3600
PLUGINS = [ROOT / "target/release/libnccl_net_netsum.so", ROOT / "target/release/deps/libnccl_net_netsum.so"]


class Failed(Exception):
    """A part that ran and did not do what it should."""


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


def run_ranks(arguments: list[str], environment: dict[str, str], per_rank: Callable[[int], dict[str, str]]) -> str:
    """All that the ranks printed. Raises Failed with it if one fails."""
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(RANKS)}
    processes = []
    for rank in range(RANKS):
        variables = {**os.environ, **environment, **rendezvous, "RANK": str(rank), **per_rank(rank)}
        command = [sys.executable, str(Path(__file__).with_name("rank.py")), *arguments]
        processes.append(
            subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    said = []
    try:
        for process in processes:
            said.append(process.communicate(timeout=LIMIT_S)[0])
    except subprocess.TimeoutExpired as error:
        raise Failed(f"no end within {LIMIT_S} s: {''.join(said)}") from error
    finally:
        for process in processes:
            process.kill()
    text = "".join(said)
    if any(process.returncode for process in processes):
        raise Failed(text)
    return text


def result_of(text: str) -> dict[str, object]:
    found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    if len(found) != 1:
        raise Failed(f"rank 0 printed no result: {text}")
    result: dict[str, object] = found[0]
    return result


def on_fabric(body: Callable[[dict[str, str]], dict[str, object]]) -> dict[str, object]:
    """Runs `body` with the environment of a local fabric."""
    block = free_block(random.sample(range(150, 180), 30))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "fabric.toml")
        path.write_text(demo_toml(block.number))
        os.environ["XDG_STATE_HOME"] = folder
        with temporary(Description.read(path)) as fabric:
            return body(fabric.environment())


def on_host(rank: int) -> dict[str, str]:
    return {"NETSUM_HOST": f"h{rank}"}


def nccl_with_collnet() -> dict[str, object]:
    plugin = next(path for path in PLUGINS if path.exists())

    def body(environment: dict[str, str]) -> dict[str, object]:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "libnccl-net-netsum.so").symlink_to(plugin)
            nccl = {
                "LD_LIBRARY_PATH": f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}",
                "NCCL_NET_PLUGIN": "netsum",
                "NCCL_COLLNET_ENABLE": "1",
                "NCCL_MULTI_RANK_GPU_ENABLE": "1",
                "NCCL_P2P_DISABLE": "1",
                "NCCL_SHM_DISABLE": "1",
                "NCCL_DEBUG": "INFO",
                "NCCL_DEBUG_SUBSYS": "INIT,NET,TUNING,COLL",
                "NETSUM_SHARED_MEMORY": "off",
            }
            hosts = lambda rank: {"NCCL_HOSTID": f"host{rank}", **on_host(rank)}  # noqa: E731
            text = run_ranks(["--backend", "nccl", "--device", "cuda"], {**environment, **nccl}, hosts)
            for words in ("NET/netsum: version", "COLLNET/netsum: joined as", "COLLNET"):
                if words not in text:
                    raise Failed(f"NCCL's log does not have {words!r}: {text}")
            return result_of(text)

    return on_fabric(body)


def nccl_with_sockets() -> dict[str, object]:
    nccl = {"NCCL_NET": "Socket", "NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
    hosts = lambda rank: {"NCCL_HOSTID": f"host{rank}"}  # noqa: E731
    return result_of(run_ranks(["--backend", "nccl", "--device", "cuda"], nccl, hosts))


def netsum_on(device: str, *more: str) -> dict[str, object]:
    def body(environment: dict[str, str]) -> dict[str, object]:
        arguments = ["--backend", "netsum", "--device", device, *more]
        return result_of(run_ranks(arguments, {**environment, "NETSUM_SHARED_MEMORY": "off"}, on_host))

    return on_fabric(body)


def gloo() -> dict[str, object]:
    return result_of(run_ranks(["--backend", "gloo", "--device", "cuda"], {}, lambda _: {}))


def simulated() -> dict[str, object]:
    sys.path.insert(0, str(ROOT / "python/tests/torch"))
    import accelerator

    folder = ROOT / "out/gpu"
    folder.mkdir(parents=True, exist_ok=True)
    return netsum_on("simulated", "--quick", "--simulated", str(accelerator.build(folder)))


def cases_of_the_accelerator(kind: str) -> dict[str, object]:
    command = [sys.executable, "-m", "pytest", "-q", "python/tests/torch/test_accelerator.py", "-k", kind]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode:
        raise Failed(done.stdout + done.stderr)
    return {"pytest": done.stdout.splitlines()[-1]}


def library_on_stand_in(packages: list[str]) -> dict[str, object]:
    command = ["cargo", "test", "--release", "--quiet", *packages, "--test", "library", "--", "--nocapture"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=BUILD_LIMIT_S)
    text = done.stdout + done.stderr
    if done.returncode:
        raise Failed(text)
    return {"cargo": "skipped: NCCL is not installed" if "skipped" in text else "passed"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "out/gpu/result.json")
    parser.add_argument(
        "--cargo", default="-p netsum-nccl-net", help="packages and features for cargo: those of an earlier build"
    )
    options = parser.parse_args()
    packages = options.cargo.split()
    gpu = torch.cuda.is_available()
    why = None if gpu else "torch sees no CUDA device"
    plugin = why or (None if any(p.exists() for p in PLUGINS) else "cargo build --release -p netsum-nccl-net")
    parts: list[tuple[str, str | None, Callable[[], dict[str, object]]]] = [
        ("NCCL with CollNet over switches, on the GPU", plugin, nccl_with_collnet),
        ("NCCL over its sockets, on the GPU", why, nccl_with_sockets),
        ("netsum's backend, CUDA tensors over switches", why, lambda: netsum_on("cuda")),
        ("Gloo, CUDA tensors", why, gloo),
        ("test_accelerator on CUDA", why, lambda: cases_of_the_accelerator("cuda")),
        ("netsum's backend on the simulated accelerator, over switches", None, simulated),
        ("test_accelerator on the simulated accelerator", None, lambda: cases_of_the_accelerator("simulated")),
        ("NCCL's library on a stand-in for the CUDA runtime", None, lambda: library_on_stand_in(packages)),
    ]
    results: list[dict[str, object]] = []
    for name, missing, part in parts:
        if missing:
            results.append({"part": name, "state": "skipped", "why": missing})
        else:
            try:
                results.append({"part": name, "state": "passed", **part()})
            except (Failed, subprocess.TimeoutExpired) as error:
                results.append({"part": name, "state": "failed", "why": str(error)})
        last = results[-1]
        detail = str(last["why"])[-3000:] if "why" in last else json.dumps({k: last[k] for k in list(last)[2:]})
        print(f"{last['state']:8} {name}: {detail}", flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    device = torch.cuda.get_device_name(0) if gpu else None
    options.out.write_text(json.dumps({"device": device, "parts": results}, indent=2) + "\n")
    print(f"wrote {options.out}")
    sys.exit(any(result["state"] == "failed" for result in results))


if __name__ == "__main__":
    main()
