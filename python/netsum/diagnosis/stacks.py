"""The call stacks of this process, for whoever asks what it is doing.

A thread waits for questions of the core and reads `sys._current_frames`. It needs the interpreter lock to answer; the
core has another way if it does not get it.
"""

import atexit
import contextlib
import json
import os
import socket
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from netsum import _core

FRAMES_MAX = 40
"""Frames of a thread, innermost first."""
THREADS_MAX = 16
_process = 0
_lock = threading.Lock()


def serve() -> None:
    """Start the thread, once per process: a forked process has none of its parent's threads."""
    global _process
    with _lock:
        if _process == os.getpid():
            return
        _process = os.getpid()
        ours, theirs = socket.socketpair()
        threading.Thread(target=_answer, args=(ours,), name="netsum-stacks", daemon=True).start()
        _core.answer_stacks(theirs.detach())
        atexit.register(_remove_socket)


def _remove_socket() -> None:
    """A process that ends leaves no socket at which nobody answers `netsum why`; a killed one does for a while."""
    # Nobody may have been able to ask: the folder can be another user's.
    with contextlib.suppress(OSError):
        Path(_core.socket_folder(), f"{os.getpid()}.sock").unlink()


def _answer(questions: socket.socket) -> None:
    with questions, questions.makefile("r") as lines:
        for line in lines:
            found = {"id": int(line), **current()}
            questions.sendall((json.dumps(found) + "\n").encode())


def current() -> dict[str, Any]:
    """The stacks of all threads but the caller's: the main thread first."""
    frames = sys._current_frames()
    handled = {ident: _exception(each) for ident, each in sys._current_exceptions().items()}
    main = threading.main_thread()
    named = {thread.ident: thread for thread in threading.enumerate()}
    own = threading.get_ident()
    order = sorted((ident for ident in frames if ident != own), key=lambda ident: ident != main.ident)
    threads = []
    for ident in order[:THREADS_MAX]:
        thread = named.get(ident)
        threads.append(
            {
                "name": thread.name if thread else "",
                "tid": thread.native_id if thread else None,
                "main": ident == main.ident,
                "exception": handled.get(ident),
                "frames": _frames(frames[ident]),
            }
        )
    last = getattr(sys, "last_value", None)
    return {"threads": threads, "uncaught": _text(last) if isinstance(last, BaseException) else None}


def _frames(frame: FrameType | None) -> list[list[Any]]:
    found: list[list[Any]] = []
    while frame is not None and len(found) < FRAMES_MAX:
        code = frame.f_code
        found.append([code.co_filename, frame.f_lineno, code.co_qualname])
        frame = frame.f_back
    return found


def _exception(current: Any) -> str | None:
    # A triple before Python 3.12, the exception from then on.
    value = current[1] if isinstance(current, tuple) else current
    return _text(value) if isinstance(value, BaseException) else None


def _text(error: BaseException) -> str:
    # An exception's own text may fail; its type says enough.
    try:
        words = str(error)
    except Exception:
        words = ""
    return f"{type(error).__name__}: {words[:300]}" if words else type(error).__name__
