"""The simulated accelerator of `simulated.cpp`: built once per torch version, loaded into processes that need it."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import torch
from torch.utils import cpp_extension

NAME = "simulated"
_SOURCE = Path(__file__).with_name("simulated.cpp")


def why_not() -> str | None:
    """Why it cannot be built here, or None."""
    return None if shutil.which("g++") else "the simulated accelerator needs g++ (Debian: g++)"


def build(folder: Path) -> Path:
    """The library, built in `folder` unless present; takes about 10 s."""
    source = _SOURCE.read_bytes() + torch.__version__.encode()
    library = folder / f"simulated-{hashlib.sha256(source).hexdigest()[:16]}.so"
    if not library.exists():
        includes = [f"-I{path}" for path in cpp_extension.include_paths()]
        linked = [f"-L{path}" for path in cpp_extension.library_paths()] + ["-ltorch", "-ltorch_cpu", "-lc10"]
        # Another run may build the same library.
        made = library.with_suffix(f".{os.getpid()}")
        command = ["g++", "-std=c++20", "-O1", "-fPIC", "-shared", *includes, _SOURCE, "-o", made, *linked]
        subprocess.run(command, check=True)
        made.rename(library)
    return library


def load(library: Path) -> None:
    """Make it this process's accelerator."""
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _Module)
    torch.utils.generate_methods_for_privateuse1_backend()
    torch.ops.load_library(library)


class _Module:
    """The interface of `torch.simulated`."""

    @staticmethod
    def is_available() -> bool:
        return True

    is_initialized = is_available

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def set_device(_index: int) -> None:
        """There is only one device."""

    @staticmethod
    def manual_seed_all(_seed: int) -> None:
        """It has no random numbers of its own."""

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False
