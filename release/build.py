"""Compiles the daemons and libraries for a processor, with the same bytes wherever the checkout and cargo are."""

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "target" / "dist"
PROFILE = "dist"
GLIBC = "2.17"
"""What manylinux2014 has: the oldest distributions on which the dynamic programs run."""
DAEMONS = {"netsum-controller": "netsum-control", "netsum-switch": "netsum-switch"}
"""The package of each program."""
IMAGES = {**DAEMONS, "netsum-operator": "netsum-operator"}
"""The same of the programs that have an image."""
PROGRAMS = {**DAEMONS, "netsum-job": "netsum-control", "netsum-sim": "netsum-sim"}
LIBRARIES = {
    "netsum-capi": ("libnetsum_nccl.so", "libnetsum_nccl.so"),
    "netsum-nccl-net": ("libnccl_net_netsum.so", "libnccl-net-netsum.so"),
}
"""Of each package: what cargo calls its library, and what programs look for."""
MODULE = ("netsum-py", "lib_core.so")
"""The package of the Python module, and what cargo calls it."""


@dataclass(frozen=True)
class Processor:
    """A kind of processor, and what rustc, Debian and container images call it."""

    rust: str
    debian: str
    oci: str


PROCESSORS = {
    each.rust: each for each in (Processor("x86_64", "amd64", "amd64"), Processor("aarch64", "arm64", "arm64"))
}


@dataclass(frozen=True)
class Built:
    """The files of one processor: programs, libraries and Python module against glibc, daemons that need nothing."""

    programs: dict[str, Path]
    libraries: dict[str, Path]
    module: Path
    static: dict[str, Path]


def compile_all(processor: Processor, epoch: int) -> Built:
    """Compile everything. Raises CalledProcessError.

    One call of cargo per C library: features of dependencies follow from all packages of a call, and a second call for
    some of the packages would compile most of the workspace once more. For that reason maturin does not compile here.
    """
    dynamic, static = f"{processor.rust}-unknown-linux-gnu", f"{processor.rust}-unknown-linux-musl"
    packages = {*PROGRAMS.values(), *LIBRARIES, MODULE[0]}
    _cargo(["cargo", "build"], dynamic, packages, _with_glibc(processor, epoch))
    _cargo(["cargo", "zigbuild"], static, set(IMAGES.values()), reproducible(epoch))
    made = TARGET / dynamic / PROFILE
    return Built(
        {program: made / program for program in PROGRAMS},
        {name: made / file for file, name in LIBRARIES.values()},
        made / MODULE[1],
        {program: TARGET / static / PROFILE / program for program in IMAGES},
    )


def _cargo(command: list[str], triple: str, packages: set[str], environment: dict[str, str]) -> None:
    chosen = [word for package in sorted(packages) for word in ("-p", package)]
    options = ["--quiet", "--locked", "--profile", PROFILE, "--target", triple, *chosen]
    began = time.monotonic()
    subprocess.run([*command, *options], cwd=ROOT, env=environment, check=True)
    print(f"{triple}: compiled in {time.monotonic() - began:.0f} s", flush=True)


def _with_glibc(processor: Processor, epoch: int) -> dict[str, str]:
    """The environment in which cargo compiles against GLIBC by zig.

    Not by `cargo zigbuild`, whose linker for it is a file of the user's cache.
    """
    triple = f"{processor.rust}-unknown-linux-gnu"
    folder = TARGET / "zig" / triple
    folder.mkdir(parents=True, exist_ok=True)
    target = f"-g -fno-sanitize=all -target {processor.rust}-linux-gnu.{GLIBC}"
    for name, words in (("cc", f"cc -- {target}"), ("c++", f"c++ -- {target}"), ("ar", "ar")):
        (folder / name).write_text(f'#!/bin/sh\nexec cargo-zigbuild zig {words} "$@"\n')
        (folder / name).chmod(0o755)
    tools = {"CC": "cc", "CXX": "c++", "AR": "ar"}
    variables = {f"{tool}_{triple.replace('-', '_')}": str(folder / name) for tool, name in tools.items()}
    linker = {f"CARGO_TARGET_{triple.replace('-', '_').upper()}_LINKER": str(folder / "cc")}
    # The module is for every Python of the stable ABI, so no interpreter is asked.
    return {**reproducible(epoch), **variables, **linker, "PYO3_NO_PYTHON": "1"}


def reproducible(epoch: int) -> dict[str, str]:
    """The environment of compilers: no path of this machine, and no time but `epoch`, gets into what they write."""
    places = {
        str(ROOT): "/netsum",
        str(Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo")).resolve()): "/cargo",
        _sysroot(): "/rust",
    }
    # cargo-zigbuild finds zig by the interpreter that comes first.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("CARGO_PROFILE", "CARGO_BUILD"))},
        "PATH": path,
        "CARGO_INCREMENTAL": "0",
        "CARGO_TARGET_DIR": str(TARGET),
        "RUSTFLAGS": " ".join(f"--remap-path-prefix={place}={name}" for place, name in places.items()),
        "CFLAGS": " ".join(f"-ffile-prefix-map={place}={name}" for place, name in list(places.items())[:2]),
        "SOURCE_DATE_EPOCH": str(epoch),
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
    }


def _sysroot() -> str:
    command = ["rustc", "--print", "sysroot"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def missing(processors: list[Processor]) -> list[str]:
    """What the build needs and this machine lacks, as commands to install it."""
    triples = [f"{p.rust}-unknown-linux-{libc}" for p in processors for libc in ("gnu", "musl")]
    lacking = [t for t in triples if not (Path(_sysroot()) / "lib/rustlib" / t / "lib").is_dir()]
    needs = [f"rustup target add {' '.join(lacking)}"] if lacking else []
    if shutil.which("dpkg-deb") is None:
        needs.append("apt-get install dpkg")
    return needs
