"""`netsum.communicator` between real processes, on arrays of several kinds."""

import array
import os
import signal

import numpy as np
import pytest
from processes import Latch, run_ranks

from netsum import Mismatch, NetsumError, OperationTimeout, PeerLost, Unsupported, _core
from netsum.communicator import Place, connect, memory
from netsum.config import SettingError

SOON = 60.0


class OnlyDLPack:
    """An array that supports DLPack only, as those of other frameworks may."""

    def __init__(self, values: np.ndarray, device: int = 1) -> None:
        self.values = values
        self.device = device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self, **arguments):
        return self.values.__dlpack__(**arguments)


class OldDLPack(OnlyDLPack):
    """As before DLPack 1.0: the capsule does not report whether the array is read-only."""

    def __dlpack__(self):
        return self.values.__dlpack__()


def test_arrays_of_all_kinds_are_summed_in_place():
    def body(rank: int):
        with connect(timeout_s=SOON) as world:
            kinds = [
                np.full((3, 5), rank + 1.0),
                array.array("q", [rank + 1] * 4),
                bytearray([rank + 1] * 3),
                memoryview(bytearray([rank + 1] * 3)),
                OnlyDLPack(np.full(7, rank + 1, np.int32)),
                OldDLPack(np.full(7, rank + 1, np.float16)),
                np.full(2, (rank + 1) * (1 + 2j), np.complex64),
                np.array(rank + 1.0, np.float32),
                np.empty((0, 3), np.float32),
            ]
            for each in kinds:
                assert world.allreduce(each) is each
            whole = [np.asarray(getattr(each, "values", each)).ravel().tolist() for each in kinds]
            assert world.stats()["path"] == "host"
            return whole

    expected = [[6.0] * 15, [6] * 4, [6] * 3, [6] * 3, [6] * 7, [6.0] * 7, [6 + 12j] * 2, [6.0], []]
    assert run_ranks(body, 3) == [expected] * 3


def test_every_collective():
    def body(rank: int):
        world = connect(timeout_s=SOON)
        mine = np.arange(6, dtype=np.float32) + 10 * rank
        total = sum(np.arange(6, dtype=np.float32) + 10 * each for each in range(3))
        out = np.zeros(6, np.float32)
        assert world.allreduce(mine, out=out) is out
        assert (out == total).all() and mine[0] == 10 * rank
        assert (world.allreduce(mine, "avg", out=out) == total / 3).all()
        assert (world.allreduce(mine, "premul_sum", out=out, factor=2.0) == 2 * total).all()
        assert (world.allreduce(mine, "max", out=out) == np.arange(6) + 20).all()
        copied = mine.copy()
        world.reduce(copied, 1)
        assert (copied == (total if rank == 1 else mine)).all()
        copied = mine.copy()
        world.broadcast(copied, 2)
        assert (copied == np.arange(6) + 20).all()
        gathered = world.allgather(mine, np.zeros((3, 6), np.float32))
        assert (gathered == np.arange(6) + 10 * np.arange(3)[:, None]).all()
        uneven = [np.zeros(each + 1, np.int16) for each in range(3)]
        world.allgather(np.full(rank + 1, rank, np.int16), uneven)
        assert [each.tolist() for each in uneven] == [[0], [1, 1], [2, 2, 2]]
        gathered = np.zeros((3, 6), np.float32)
        world.gather(mine, gathered if rank == 0 else None, 0)
        assert rank or (gathered[2] == np.arange(6) + 20).all()
        piece = world.scatter(np.arange(6.0) if rank == 1 else None, np.zeros(2), 1)
        assert piece.tolist() == [2 * rank, 2 * rank + 1]
        assert (world.reduce_scatter(mine, np.zeros(2, np.float32)) == total[2 * rank : 2 * rank + 2]).all()
        pairs = world.reduce_scatter((mine + 1j).astype(np.complex64), np.zeros(2, np.complex64))
        assert (pairs == total[2 * rank : 2 * rank + 2] + 3j).all()
        swapped = world.alltoall(np.arange(3) + 10 * rank, np.zeros(3, np.int64))
        assert swapped.tolist() == [rank, 10 + rank, 20 + rank]
        if rank:
            world.send(mine, 0, tag=rank)
        else:
            for source in (2, 1):
                assert world.receive(out, source, tag=source)[0] == 10 * source
        assert world.exchange(b"x" * rank) == [b"", b"x", b"xx"]
        world.barrier()
        pending = [world.allreduce(np.full(1000, float(each)), wait=False) for each in range(200)]
        assert [each.wait(SOON)[0] for each in pending] == [3.0 * each for each in range(200)]
        assert all(each.done() for each in pending)
        world.close()
        with pytest.raises(NetsumError, match="closed"):
            world.barrier()

    run_ranks(body, 3)


def test_splits_work_beside_each_other():
    def body(rank: int):
        with connect(timeout_s=SOON) as world:
            part = world.split([2, 0] if rank in (0, 2) else [1, 3] if rank != 4 else None)
            if rank == 4:
                assert part is None
                return None
            value = part.allreduce(np.array([10.0**rank]))[0]
            part.close()
            return part.rank, part.size, value

    assert run_ranks(body, 5) == [(1, 2, 101.0), (0, 2, 1010.0), (0, 2, 101.0), (1, 2, 1010.0), None]


def test_split_with_itself_left_out_is_refused():
    def made(rank: int):
        with connect(timeout_s=SOON) as world:
            if rank:
                with pytest.raises(ValueError, match=r"members \[0\] must be different ranks below 2"):
                    world.split([0])
            else:
                assert world.split([0]).size == 1

    run_ranks(made, 2)


def test_what_is_no_array_is_refused_by_name():
    fine = memory(np.zeros((2, 3), np.float32), "test")
    assert (fine.count, fine.dtype, fine.shape, fine.nbytes) == (6, "float32", (2, 3), 24)
    assert memory(b"abc", "test").span[1] == 3
    assert memory(OnlyDLPack(np.zeros(3)), "test", written=True).dtype == "float64"
    constant = np.zeros(3)
    constant.flags.writeable = False
    for read_only in (b"abc", constant, memoryview(b"abc")):
        with pytest.raises(Unsupported, match=r"netsum test: the \w+ is read-only; pass a copy that can be written"):
            memory(read_only, "test", written=True)
    for gaps in (np.zeros((4, 4))[:, :2], np.zeros((4, 4)).T, memoryview(bytearray(8))[::2]):
        with pytest.raises(Unsupported, match="netsum test: the array is not dense"):
            memory(gaps, "test")
    with pytest.raises(Unsupported, match="OnlyDLPack is not in host memory"):
        memory(OnlyDLPack(np.zeros(3), device=2), "test")
    with pytest.raises(Unsupported, match="netsum test: list is no array"):
        memory([1, 2], "test")


def test_errors_name_what_is_wrong():
    def body(rank: int):
        with connect(timeout_s=SOON) as world:
            with pytest.raises(Unsupported, match="uint32 cannot be reduced"):
                world.allreduce(np.zeros(3, np.uint32))
            with pytest.raises(Unsupported, match="big-endian float32 cannot be reduced"):
                world.allreduce(np.zeros(3, ">f4"))
            with pytest.raises(Unsupported, match="operation 'mean' does not exist; use one of sum, avg"):
                world.allreduce(np.zeros(3), "mean")
            with pytest.raises(ValueError, match="4 elements of float64 do not fit in out, 3 of float64"):
                world.allreduce(np.zeros(4), out=np.zeros(3))
            with pytest.raises(ValueError, match="3 elements cannot be cut into 2 equal parts"):
                world.alltoall(np.zeros(3), np.zeros(4))
            with pytest.raises(ValueError, match="1 arrays for 2 ranks"):
                world.allgather(np.zeros(3), [np.zeros(3)])
            world.timeout_s = 0.3
            with pytest.raises(OperationTimeout, match="receive of 8 bytes from rank"):
                world.receive(np.zeros(1), 1 - rank)
            world.timeout_s = SOON
            with pytest.raises(Mismatch, match=r"allreduce float64\[[45]\] sum"):
                world.allreduce(np.zeros(4 + rank))

    run_ranks(body, 2)


def test_a_rank_that_dies_is_named():
    waiting = Latch()

    def body(rank: int):
        world = connect(timeout_s=SOON)
        if rank == 1:
            waiting.wait(2)
            os.kill(os.getpid(), signal.SIGKILL)
        pending = world.allreduce(np.zeros(1000), wait=False)
        waiting.set()
        with pytest.raises(PeerLost, match="rank 1") as raised:
            pending.wait()
        return raised.value.rank

    assert run_ranks(body, 3) == [1, None, 1]


def test_an_exception_ends_the_group_at_all_ranks():
    def body(rank: int):
        with pytest.raises((NetsumError, KeyError)), connect(timeout_s=SOON) as world:
            if rank == 0:
                raise KeyError("lost")
            world.allreduce(np.zeros(10))

    run_ranks(body, 2)


def test_who_does_not_come_is_named():
    def body(rank: int):
        if rank == 1:
            return
        with pytest.raises(NetsumError, match=r"ranks \[1\] of 3 did not come|did not get everybody's address"):
            connect(timeout_s=1.0)

    run_ranks(body, 3)


def test_places_come_from_launchers():
    assert Place.from_environment({}) == Place(0, 1, 0, 1)
    torchrun = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    assert Place.from_environment(torchrun) == Place(5, 8, 1, 4)
    assert Place.from_environment({"PMI_RANK": "1", "PMI_SIZE": "2"}) == Place(1, 2, 1, 2)
    slurm = {"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_LOCALID": "3", "SLURM_TASKS_PER_NODE": "4(x2)"}
    assert Place.from_environment(slurm) == Place(3, 8, 3, 4)
    with pytest.raises(SettingError, match="RANK=2 is not below WORLD_SIZE=2"):
        Place.from_environment({"RANK": "2", "WORLD_SIZE": "2"})
    with pytest.raises(SettingError, match="RANK=x: expected a whole number"):
        Place.from_environment({"RANK": "x", "WORLD_SIZE": "2"})


def test_a_meeting_place_is_asked_for(monkeypatch):
    for name in ("NETSUM_MEETING", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SettingError, match="NETSUM_MEETING is not set"):
        connect(0, 2)
    monkeypatch.setenv("NETSUM_MEETING", "nowhere")
    with pytest.raises(SettingError, match="NETSUM_MEETING=nowhere: expected host:port"):
        connect(0, 2)
    with connect(0, 1) as alone:
        assert alone.allreduce(np.ones(3)).tolist() == [1, 1, 1]


def test_ranks_that_meet_need_a_secret(monkeypatch):
    monkeypatch.setenv("NETSUM_MEETING", "127.0.0.1:1")
    monkeypatch.delenv("NETSUM_TOKEN", raising=False)
    with pytest.raises(SettingError, match=r"NETSUM_TOKEN is not set.*127\.0\.0\.1:1 .*openssl rand"):
        connect(1, 2)
    monkeypatch.setenv("NETSUM_TOKEN", "short")
    with pytest.raises(SettingError, match="NETSUM_TOKEN has 5 characters; a secret needs 16"):
        connect(1, 2)


def test_a_stranger_takes_no_seat_and_learns_no_address():
    def body(rank: int) -> str:
        if rank == 0:
            with connect(timeout_s=SOON) as world:
                return world.name
        at = os.environ["NETSUM_MEETING"]
        try:
            _core.meet(at, bytes(16), 1, 2, b"stranger", SOON)
        except NetsumError as error:
            refusal = str(error)
        with connect(timeout_s=SOON):
            return refusal

    assert "this meeting has another token" in run_ranks(body, 2)[1]
