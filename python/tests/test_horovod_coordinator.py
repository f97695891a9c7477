"""The coordinator's responses, without processes: every rule of matching by name."""

import itertools
import random

from netsum.horovod.coordinator import Coordinator
from netsum.horovod.requests import (
    ADD_SET,
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BARRIER,
    BROADCAST,
    JOIN,
    REDUCESCATTER,
    REMOVE_SET,
    SHUTDOWN,
    Request,
    Response,
    from_message,
    to_message,
)


def reduction(name: str, *shape: int, dtype: str = "float32", kind: str = ALLREDUCE, **fields) -> Request:
    return Request(kind, name, tensors=((dtype, shape),), **fields)


def submit(coordinator: Coordinator, *requests: tuple[int, Request], now: float = 0.0) -> list[Response]:
    for rank, request in requests:
        coordinator.submit(rank, request, now)
    return [response for _, response in coordinator.take()]


def names(responses: list[Response]) -> list[list[str]]:
    return [[request.name for request in response.requests] for response in responses]


def test_an_operation_is_ready_when_the_last_rank_has_called_it():
    coordinator = Coordinator(3)
    assert submit(coordinator, (0, reduction("a", 4)), (2, reduction("a", 4))) == []
    (ready,) = submit(coordinator, (1, reduction("a", 4)))
    assert ready == Response((reduction("a", 4),))
    assert submit(coordinator, (0, reduction("a", 4))) == [], "the name is free again, and waits again"


def test_any_order_of_calls_gives_each_operation_once():
    calls = [(rank, reduction(f"t{i}", i + 1)) for rank, i in itertools.product(range(3), range(5))]
    for seed in range(50):
        random.Random(seed).shuffle(calls)
        coordinator = Coordinator(3, fusion_bytes=0)
        responses = [each for call in calls for each in submit(coordinator, call)]
        assert sorted(names(responses)) == [[f"t{i}"] for i in range(5)]
        assert not any(response.error for response in responses)


def test_what_is_ready_together_is_fused_up_to_a_size():
    for most, expected in ((0, [["a"], ["b"], ["c"], ["d"]]), (40, [["a", "b"], ["c"], ["d"]])):
        coordinator = Coordinator(1, fusion_bytes=most)
        calls = [reduction("a", 5), reduction("b", 5), reduction("c", 5), reduction("d", 5, dtype="float64")]
        assert names(submit(coordinator, *[(0, call) for call in calls])) == expected
    coordinator = Coordinator(1)
    mixed = [reduction("a", 1), reduction("b", 1, op="max"), reduction("c", 1, prescale=2.0), reduction("d", 1)]
    assert names(submit(coordinator, *[(0, call) for call in mixed])) == [["a"], ["b"], ["c"], ["d"]]


def test_disagreement_fails_at_all_ranks_and_names_two():
    def error(mine: Request, theirs: Request) -> str:
        (response,) = submit(Coordinator(2), (0, mine), (1, theirs))
        return response.error or ""

    assert "rank 0 has shapes [[17]], rank 1 has [[18]]" in error(reduction("a", 17), reduction("a", 18))
    assert "ranks of tensors [2], rank 1 has [1]" in error(reduction("a", 2, 3), reduction("a", 6))
    assert "types ['float32'], rank 1 has ['int32']" in error(reduction("a", 1), reduction("a", 1, dtype="int32"))
    assert "rank 0 has reduction sum, rank 1 has max" in error(reduction("a", 1), reduction("a", 1, op="max"))
    assert "prescale_factor 1.0" in error(reduction("a", 1), reduction("a", 1, prescale=0.5))
    assert "operation allreduce, rank 1 has barrier" in error(reduction("a", 1), Request(BARRIER, "a"))
    gather = [reduction("g", 2, 3, kind=ALLGATHER), reduction("g", 2, 4, kind=ALLGATHER)]
    assert "shapes beyond the first dimension [[3]], rank 1 has [[4]]" in error(*gather)
    assert "rank 1 has a tensor without dimensions" in error(gather[0], reduction("g", kind=ALLGATHER))
    assert "rank 0 has a tensor without" in error(*[reduction("s", kind=REDUCESCATTER)] * 2)
    roots = [reduction("b", 1, kind=BROADCAST, root=root) for root in (0, 1)]
    assert "root rank 0, rank 1 has 1" in error(*roots)
    assert "root rank 7 is not in the process set" in error(*[reduction("b", 1, kind=BROADCAST, root=7)] * 2)


def test_members_learn_each_others_rows():
    gathers = [reduction("g", rows, 3, kind=ALLGATHER) for rows in (2, 5)]
    (response,) = submit(Coordinator(2), (1, gathers[1]), (0, gathers[0]))
    assert response.details == {"rows": [[2, 5]]}
    alltoalls = [reduction("x", 4, kind=ALLTOALL, splits=splits) for splits in ((1, 3), (4, 0))]
    (response,) = submit(Coordinator(2), (1, alltoalls[1]), (0, alltoalls[0]))
    assert response.details == {"splits": [[1, 3], [4, 0]]}


def test_joined_ranks_count_as_zeros_in_sums_alone():
    coordinator = Coordinator(3)
    waiting = submit(coordinator, (0, reduction("a", 1)), (1, reduction("a", 1)), (0, reduction("m", 1, op="max")))
    assert waiting == []
    (ready,) = submit(coordinator, (2, Request(JOIN, JOIN)))
    assert ready.error is None and ready.first.name == "a"
    (failed,) = submit(coordinator, (1, reduction("m", 1, op="max")))
    assert failed.error == "allreduce with max 'm' is not supported while a rank has joined"
    gathers = [(rank, reduction("g", 1, kind=ALLGATHER)) for rank in (0, 1)]
    (failed,) = submit(coordinator, *gathers)
    assert failed.error == "allgather 'g' is not supported while a rank has joined"
    assert submit(coordinator, (0, Request(JOIN, JOIN))) == []
    (joined,) = submit(coordinator, (1, Request(JOIN, JOIN)))
    assert joined.details == {"last": 1}
    assert submit(coordinator, (0, reduction("b", 1)), (1, reduction("b", 1))) == [], "all take part again"


def test_process_sets_live_beside_each_other():
    coordinator = Coordinator(4)
    even = Request(ADD_SET, "add.0", ranks=(0, 2))
    (added,) = submit(coordinator, *[(rank, even) for rank in range(4)])
    assert added.details == {"set": 1}
    (refused,) = submit(coordinator, *[(rank, even) for rank in range(4)])
    assert refused.error == "process set 1 has these ranks already: [0, 2]"
    (refused,) = submit(coordinator, *[(rank, Request(ADD_SET, "add.2", ranks=(0, 9))) for rank in range(4)])
    assert refused.error == "a process set of ranks [0, 9] is not possible in a job of 4"
    inside = reduction("a", 1, process_set=1)
    coordinator.submit(0, inside, 0.0)
    coordinator.submit(0, reduction("a", 1), 0.0)
    coordinator.submit(2, inside, 0.0)
    assert coordinator.take() == [((0, 2), Response((inside,)))], "the same name in another set is another operation"
    (stranger,) = submit(coordinator, (1, inside))
    assert "rank 1 is not in process set 1" in (stranger.error or "")
    coordinator.submit(2, inside, 0.0)
    removed = submit(coordinator, *[(rank, Request(REMOVE_SET, "remove.0", root=1)) for rank in range(4)])
    assert [response.error for response in removed] == ["process set 1 was removed before 'a' ran", None]
    (again,) = submit(coordinator, *[(rank, Request(REMOVE_SET, "remove.1", root=1)) for rank in range(4)])
    assert again.error == "there is no process set 1 that could be removed"


def test_a_name_that_is_under_way_is_refused_to_its_caller():
    coordinator = Coordinator(2)
    coordinator.submit(0, reduction("a", 1), 0.0)
    coordinator.submit(0, reduction("a", 1), 0.0)
    ((members, refused),) = coordinator.take()
    assert members == (0,) and "rank 0 called allreduce 'a' again" in (refused.error or "")


def test_who_keeps_others_waiting_is_named():
    coordinator = Coordinator(3)
    coordinator.submit(1, reduction("late", 1), 10.0)
    assert coordinator.overdue(69.0, 60.0) == []
    assert coordinator.overdue(71.0, 60.0) == ["allreduce 'late' waits since 61 s for ranks [0, 2]"]


def test_shutdown_is_told_to_all_and_ends_everything():
    coordinator = Coordinator(2)
    coordinator.submit(0, reduction("a", 1), 0.0)
    (told,) = submit(coordinator, (1, Request(SHUTDOWN, SHUTDOWN)))
    assert told.details == {"rank": 1}
    assert submit(coordinator, (1, reduction("a", 1))) == []


def test_messages_come_back_as_they_were():
    requests = [
        reduction("a", 3, 0, op="avg", postscale=0.5),
        Request(ALLTOALL, "é", 3, (("bfloat16", (2, 2)),), splits=(1, 0)),
        Request(ADD_SET, "add", ranks=(1, 2)),
        Request(BARRIER, "b"),
    ]
    for request in requests:
        assert Request.from_bytes(request.to_bytes()) == request
    responses = [Response(tuple(requests), None, {"rows": [[1]]}), Response((requests[0],), "no")]
    assert from_message(to_message(responses)) == responses
