"""Forks of this process in network namespaces: ranks of torch jobs, and queries to daemons.

A new interpreter needs seconds of processor time to import torch, and a job has several ranks. Forks have imported it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

CLONE_NEWNS, CLONE_NEWNET = 0x20000, 0x40000000
MS_REC, MS_SLAVE, MNT_DETACH = 0x4000, 0x80000, 2
LOOK_S = 0.02


class Rank:
    """A script that runs in a namespace, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, namespace: str, script: Path, arguments: tuple[str, ...], environment: dict, log: Path) -> None:
        _import_torch()
        self.command, self.returncode = [str(script), *arguments], None
        sys.stdout.flush()
        sys.stderr.flush()
        # Tests read it at once.
        log.write_bytes(b"")
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                _enter(namespace, environment, log)
                code = _run(self.command)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)

    def poll(self) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.command, timeout)
            time.sleep(LOOK_S)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def ask(namespace: str, question: Callable[[], str]) -> str:
    """The result of `question`, called by a fork in a namespace. On failure RuntimeError has its traceback."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reading)
            _join(namespace)
            answer, code = question(), 0
        except BaseException:
            answer = traceback.format_exc()
        try:
            with os.fdopen(writing, "w") as out:
                out.write(answer)
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as answers:
        answer = answers.read()
    _, status = os.waitpid(pid, 0)
    if status != 0:
        raise RuntimeError(f"in {namespace}: {answer}")
    return answer


def _import_torch() -> None:
    # DistributedDataParallel's constructor imports torch._dynamo, which takes seconds.
    import torch._dynamo
    import torch.distributed
    import torch.distributed.fsdp
    import torch.nn.parallel

    torch.set_num_threads(1)


def _enter(namespace: str, environment: dict, log: Path) -> None:
    """Give this fork the environment of `ip netns exec`: the namespace, with a /sys that shows its devices."""
    os.setsid()
    out = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    # Pipes and sockets of the tests: their readers must see the end when the tests close them.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    # Objects of the parent that are garbage would close descriptors that are others' here.
    gc.freeze()
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    for which in (signal.SIGALRM, signal.SIGTERM):
        signal.signal(which, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    libc = _join(namespace)
    _check(libc.unshare(CLONE_NEWNS), "unshare")
    _check(libc.mount(b"none", b"/", None, MS_REC | MS_SLAVE, None), "mount")
    libc.umount2(b"/sys", MNT_DETACH)
    _check(libc.mount(namespace.encode(), b"/sys", b"sysfs", 0, None), "mount /sys")
    os.environ.clear()
    os.environ.update(environment)


def _join(namespace: str) -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}", "rb") as file:
        _check(libc.setns(file.fileno(), CLONE_NEWNET), "setns")
    return libc


def _check(code: int, what: str) -> None:
    if code != 0:
        raise OSError(ctypes.get_errno(), what)


def _run(command: list[str]) -> int:
    """The script's exit code."""
    sys.argv = command
    sys.path.insert(0, str(Path(command[0]).parent))
    code = 0
    try:
        runpy.run_path(command[0], run_name="__main__")
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    return code
