"""The stub of the core against the core, and the types of reports against reports."""

import json
import subprocess
import sys
from typing import Any, Literal, get_args, get_origin, get_type_hints, is_typeddict

import numpy as np
import pytest
from processes import run_ranks

import netsum
from netsum import _core, reports
from netsum.communicator import connect


def check(value: Any, kind: Any, path: str) -> None:
    """Fail if a value does not match a type; missing and additional keys fail as well."""
    if is_typeddict(kind):
        assert isinstance(value, dict), f"{path}: {value!r} is no object"
        hints = get_type_hints(kind)
        missing, unknown = kind.__required_keys__ - value.keys(), value.keys() - hints.keys()
        assert not missing and not unknown, f"{path}: missing {missing}, unknown {unknown}"
        for key, each in value.items():
            check(each, hints[key], f"{path}.{key}")
    elif get_origin(kind) is list:
        assert isinstance(value, list), f"{path}: {value!r} is no list"
        for index, each in enumerate(value):
            check(each, get_args(kind)[0], f"{path}[{index}]")
    elif get_origin(kind) is dict:
        assert isinstance(value, dict), f"{path}: {value!r} is no object"
        for key, each in value.items():
            check(each, get_args(kind)[1], f"{path}.{key}")
    elif get_origin(kind) is Literal:
        assert value in get_args(kind), f"{path}: {value!r} is none of {get_args(kind)}"
    elif get_args(kind):
        matching = [one for one in get_args(kind) if (one is type(None)) == (value is None)]
        assert len(matching) == 1, f"{path}: {value!r} is not of {kind}"
        if value is not None:
            check(value, matching[0], path)
    else:
        wanted = (int, float) if kind is float else kind
        assert isinstance(value, wanted) and (kind is bool or not isinstance(value, bool)), f"{path}: {value!r}"


def test_the_check_sees_what_is_wrong():
    pause = {"what": "x", "at_unix_s": 1.0, "seconds": 2.0}
    check(pause, reports.Pause, "pause")
    for wrong in ({**pause, "more": 1}, {"what": "x"}, {**pause, "what": 3}, {**pause, "seconds": True}, []):
        with pytest.raises(AssertionError):
            check(wrong, reports.Pause, "pause")
    with pytest.raises(AssertionError, match=r"stats\.path"):
        check({"path": "else"}, reports.TypedDict("T", {"path": Literal["trees"]}), "stats")


def test_the_stub_is_the_cores():
    command = [sys.executable, "-m", "mypy.stubtest", "netsum._core", "--ignore-disjoint-bases"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_public_names_are_the_cores_and_need_no_hook():
    assert not hasattr(netsum, "__getattr__")
    for name in netsum.__all__:
        # The verdict on the own job is Python's: it joins what the core's ranks say.
        assert vars(netsum)[name] is (netsum.why if name == "why" else getattr(_core, name))


def test_what_groups_report_is_of_its_type(fabric):
    def body(rank: int):
        with connect(timeout_s=60.0) as world:
            for _ in range(3):
                world.allreduce(np.ones(100_000, np.float32))
            world.send(b"12345678", to=1 - rank, wait=False)
            world.receive(bytearray(8), source=1 - rank)
            world.barrier()
            status = fabric.status()
            stats, recorded = world.stats(), json.loads(world.core.recorded("asked for"))
            choice = json.loads(world.core.explain("allreduce", 1 << 20, "float32", "sum"))
            world.barrier()
            return stats, recorded, choice, status

    for stats, recorded, choice, status in run_ranks(body, 2, **fabric.environment()):
        check(stats, reports.GroupStats, "stats")
        check(recorded, reports.Recorded, "recorded")
        check(choice, reports.Choice, "choice")
        check(status, reports.ControllerStatus, "status")
        assert stats["trees"] and status["jobs"] and status["jobs"][0]["trees"] and recorded["operations"]
