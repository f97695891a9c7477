"""The recorder: the dumps of ranks when one is stopped, late or out of order, and the diagnosis."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import BOUND_S, Latch, run_ranks, wait_until

import netsum
from netsum.communicator import connect
from netsum.recorder import Dump, Operation, RecorderError, dump, judge, read

COMMAND = "from netsum.cli import main; main()"


def _recorder(*arguments: str | Path, code: int) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", COMMAND, "recorder", *map(str, arguments)], capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def _the_only(folder: Path) -> dict[int, Dump]:
    (dumps,) = read(folder).values()
    return dumps


def test_a_stopped_rank_is_named(tmp_path: Path):
    given_up = Latch()

    def body(rank):
        world = connect(timeout_s=3.0)
        pids = [int(pid) for pid in world.exchange(str(os.getpid()).encode())]
        world.barrier()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
            os._exit(0)
        try:
            with pytest.raises(netsum.NetsumError):
                world.allreduce(bytearray(64), "band")
        finally:
            given_up.set()
            if rank == 0:
                # A dead rank would be another error than a stopped one.
                given_up.wait(2)
                os.kill(pids[1], signal.SIGKILL)

    run_ranks(body, 3, NETSUM_RECORDER=str(tmp_path))
    dumps = _the_only(tmp_path)
    assert sorted(dumps) == [0, 2]
    absent, stall = judge(dumps)
    assert (absent.kind, absent.ranks) == ("absent", [1])
    assert (stall.kind, stall.ranks) == ("stall", [1])
    assert "allreduce uint8[64] band" in stall.text
    last = dumps[0].operations[-1]
    assert (last.dtype, last.nbytes, last.number) == ("uint8", 64, stall.number)
    assert "absent: rank 1 left no file" in _recorder(tmp_path, code=1)


@pytest.mark.parametrize("shared_memory", ["on", "off"])
def test_a_signal_shows_who_is_late_and_the_job_goes_on(tmp_path: Path, shared_memory):
    waiting = Latch()

    def body(rank):
        world = connect(timeout_s=BOUND_S)
        pids = [int(pid) for pid in world.exchange(str(os.getpid()).encode())]
        world.barrier()
        if rank == 1:
            waiting.wait(2)
            for pid in pids:
                os.kill(pid, signal.SIGUSR1)
            wait_until(lambda: len(list(tmp_path.glob("*.json"))) == 3)
        total = bytearray([1] * 8)
        pending = world.allreduce(total, wait=False)
        waiting.set()
        pending.wait()
        world.close()
        return list(total)

    answers = run_ranks(body, 3, NETSUM_RECORDER=str(tmp_path), NETSUM_SHARED_MEMORY=shared_memory)
    assert answers == [[3] * 8] * 3
    dumps = _the_only(tmp_path)
    (stall,) = judge(dumps)
    assert (stall.kind, stall.ranks) == ("stall", [1])
    assert "ranks 0, 2 wait in operation #" in stall.text and "its last is #" in stall.text
    assert dumps[0].why == "SIGUSR1" and dumps[0].operations[-1].seconds is None


def test_calls_in_another_order_are_named(tmp_path: Path):
    left, called, told = Latch(), Latch(), Latch()

    def body(rank):
        world = connect(timeout_s=BOUND_S)
        world.barrier()
        # The group's failure would reach a rank that is still in this barrier, or has not called yet.
        left.set()
        left.wait(3)
        with pytest.raises(netsum.Mismatch):
            if rank == 2:
                called.wait(2)
                world.barrier()
            else:
                pending = world.allreduce(bytearray(8), wait=False)
                called.set()
                pending.wait()
        told.set()
        told.wait(3)

    run_ranks(body, 3, NETSUM_RECORDER=str(tmp_path))
    (finding,) = judge(_the_only(tmp_path))
    assert (finding.kind, finding.ranks, finding.number) == ("mismatch", [2], 1)
    assert "ranks 0, 1 called allreduce uint8[8] sum; rank 2 called barrier" in finding.text
    told = json.loads(_recorder(tmp_path, "--json", code=1))
    assert told["world"][0]["kind"] == "mismatch"


def test_the_last_512_are_kept_and_written_when_asked(tmp_path: Path):
    def body(rank):
        world = connect()
        for _ in range(600):
            world.barrier()
        if rank == 0:
            world.send(b"12345678", to=1, tag=7)
        else:
            world.receive(bytearray(8), source=0, tag=7)
        world.barrier()
        files = dump(tmp_path)
        world.barrier()
        world.close()
        assert dump(tmp_path) == []
        return [file.name for file in files]

    assert run_ranks(body, 2) == [["netsum-world-rank0.json"], ["netsum-world-rank1.json"]]
    dumps = _the_only(tmp_path)
    operations = dumps[1].operations
    assert len(operations) == 512 and operations[-1].number == 600
    assert all(each.seconds is not None and each.error is None for each in operations)
    assert "receive of 8 bytes from rank 0 (tag 7)" in [each.call for each in operations]
    assert [finding.kind for finding in judge(dumps)] == ["well"]
    assert "well" in _recorder(tmp_path, code=0)


def _dump(rank: int, size: int, *operations: Operation) -> Dump:
    return Dump("g", rank, size, f"host h{rank}, pid {rank}", "", None, 100.0, list(operations))


def _op(number, call="barrier", seconds: float | None = 0.1, called=90.0, error=None) -> Operation:
    return Operation(number, call, called, seconds, error)


def test_all_waiting_is_told_apart_from_one_late():
    slow = {rank: _dump(rank, 2, _op(0), _op(1, seconds=None)) for rank in range(2)}
    (finding,) = judge(slow)
    assert (finding.kind, finding.ranks) == ("slow", [0, 1]) and "for 10.0 s" in finding.text
    late = {0: slow[0], 1: _dump(1, 2, _op(0))}
    (finding,) = judge(late)
    assert (finding.kind, finding.ranks, finding.number) == ("stall", [1], 1)
    assert "ended 9.9 s before it wrote" in finding.text


def test_a_rank_that_ran_ahead_is_not_blamed():
    ahead = _dump(1, 2, *[_op(number) for number in range(40, 44)])
    behind = _dump(0, 2, _op(39, seconds=None))
    (finding,) = judge({0: behind, 1: ahead})
    assert (finding.kind, finding.ranks) == ("slow", [0])


def test_messages_that_nobody_sent_are_named():
    receive = "receive of 8 bytes from rank 1 (tag 3)"
    sent = _op(None, "send of 8 bytes to rank 0 (tag 3)")
    waits = _dump(0, 2, _op(None, receive), _op(None, receive, seconds=None))
    (finding,) = judge({0: waits, 1: _dump(1, 2, sent)})
    assert (finding.kind, finding.ranks) == ("message", [1])
    assert [f.kind for f in judge({0: waits, 1: _dump(1, 2, sent, sent)})] == ["well"]


def test_operations_of_all_groups_are_a_timeline(tmp_path: Path):
    for group, rank, call in [("g", 0, "barrier"), ("nccl-x-1", 0, "allreduce bfloat16[9] by COLLNET_CHAIN, SIMPLE")]:
        operation = {**DUMP["operations"][0], "call": call, "called_unix_s": 2.0}
        ended = {**operation, "called_unix_s": 1.0, "seconds": 0.5}
        text = json.dumps({**DUMP, "group": group, "written_unix_s": 5.0, "operations": [ended, operation]})
        (tmp_path / f"netsum-{group}-rank{rank}.json").write_text(text)
    file = tmp_path / "timeline.json"
    assert f"{file}: open it in" in _recorder(tmp_path, "--timeline", file, code=1)
    events = json.loads(file.read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {1: "g", 2: "nccl-x-1"}
    spans = [
        (event["pid"], event["tid"], event["name"], event["ts"], event["dur"]) for event in events if event["ph"] == "X"
    ]
    collnet = "allreduce bfloat16[9] by COLLNET_CHAIN, SIMPLE"
    assert spans == [
        (1, 1, "barrier", 1e6, 0.5e6),
        (1, 1, "barrier", 2e6, 3e6),
        (2, 1, collnet, 1e6, 0.5e6),
        (2, 1, collnet, 2e6, 3e6),
    ]


def test_files_that_cannot_be_used_are_named(tmp_path: Path):
    with pytest.raises(RecorderError, match="NETSUM_RECORDER"):
        read(tmp_path)
    bad = tmp_path / "netsum-world-rank0.json"
    bad.write_text("{}")
    with pytest.raises(RecorderError, match="rank0"):
        read(tmp_path)
    bad.write_text('{"format": 9}')
    assert "format 9" in _recorder(tmp_path, code=1)
    with pytest.raises(ValueError, match="NETSUM_RECORDER"):
        dump()


DUMP = {
    "format": 1,
    "group": "g",
    "rank": 0,
    "size": 2,
    "place": "host h, pid 1",
    "why": "it was asked",
    "failure": None,
    "written_unix_s": 1.0,
    "operations": [{"number": 0, "call": "barrier", "called_unix_s": 1.0, "seconds": None, "error": None}],
}
STRANGE = ["null", "-1", "1e999", "10000000000000", '"x"', "[]", "{}", "[[{}]]", "[" * 100_000, "\ud800"]


@pytest.mark.parametrize("field", [*DUMP, "number", "call", "called_unix_s", "seconds", "error"])
@pytest.mark.parametrize("value", STRANGE, ids=lambda value: value[:16].encode("ascii", "replace").decode())
def test_any_file_is_read_or_refused(tmp_path: Path, field: str, value: str):
    """Dumps come from other hosts: whatever a field has, the file is refused by its name, or can be judged."""
    text = json.dumps(DUMP)
    own = DUMP if field in DUMP else DUMP["operations"][0]
    text = text.replace(f'"{field}": {json.dumps(own[field])}', f'"{field}": {value}')
    (tmp_path / "netsum-g-rank0.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        dumps = _the_only(tmp_path)
    except RecorderError as error:
        assert "netsum-g-rank0.json" in str(error)
    else:
        assert judge(dumps)


def test_an_impossible_rank_is_refused(tmp_path: Path):
    for rank, size in [(2, 2), (-1, 2), (0, 10**12)]:
        (tmp_path / "netsum-g-rank0.json").write_text(json.dumps({**DUMP, "rank": rank, "size": size}))
        with pytest.raises(RecorderError, match=f"rank {rank} of {size} is impossible"):
            read(tmp_path)
