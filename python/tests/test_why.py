"""Verdicts by a table of evidence, and answers of real processes that hang."""

from dataclasses import replace
from typing import Any

import pytest

from netsum.diagnosis.asking import WhyError, choose, others_than
from netsum.diagnosis.evidence import Call, Case, Membership, Process, Round, Stack, Thread, process
from netsum.diagnosis.verdict import judge
from netsum.diagnosis.words import as_json, lines

USER = ("/home/me/train.py", 42, "train")
WAITING = (("/x/site-packages/torch/distributed/distributed_c10d.py", 9, "all_reduce"), USER)
COMPUTING = (("/home/me/model.py", 7, "forward"), USER)
LOADING = (("/usr/lib/python3.11/socket.py", 5, "recv"), ("/home/me/data.py", 3, "load_batch"), USER)
NOW = 1000.0


def _stats(**trees: Any) -> dict[str, Any]:
    counters = dict.fromkeys(("results", "retransmits", "spurious_retransmits", "marks", "waiting_for"), 0)
    tree = {"tree": 0, "switch": "rack0", "window": 32, **counters}
    return {"job": 7, "trees": [{**tree, **trees}], "pauses": []}


def _calls(ended: int, pending: float | None, words: str = "allreduce float32[9] sum") -> tuple[Call, ...]:
    calls = [Call(n, words, 36, NOW - 60 + n, 0.1, None) for n in range(max(ended - 8, 0), ended)]
    if pending is not None:
        calls.append(Call(ended, words, 36, NOW - pending, None, None))
    return tuple(calls)


def _process(
    rank: int,
    calls: tuple[Call, ...],
    frames: Any = WAITING,
    call: str | None = "lock",
    running: float = 0.0,
    delayed: float = 0.0,
    **more: Any,
) -> Process:
    """A process of the group "world" of four."""
    membership = Membership(
        group="world",
        rank=rank,
        size=4,
        places=tuple(f"host h{n}, pid {100 + n}" for n in range(4)),
        failure=more.pop("failure", None),
        away=more.pop("away", None),
        next=max((c.number for c in calls if c.number is not None), default=-1) + 1,
        calls=calls,
        silent=frozenset(),
        peers={},
        stats=more.pop("stats", _stats()),
    )
    pid = 100 + rank
    groups = {"world": membership, **more.pop("groups", {})}
    stack = Stack("MainThread", True, pid, tuple(frames), more.pop("exception", None))
    thread = Thread(pid, "python", more.pop("state", "S"), running, delayed, call)
    return Process(pid, NOW, 1, 2, None, (thread,), groups, (stack,), **more)


def _waits(rank: int, **more: Any) -> Process:
    return _process(rank, _calls(20, 5.0), **more)


def _behind(rank: int, **more: Any) -> Process:
    return _process(rank, _calls(20, None), **more)


def _case(*processes: Process, first: list[Process] | None = None, **more: Any) -> Case:
    places = {n: f"host h{n}, pid {100 + n}" for n in range(4)}
    by_rank = [{p.groups["world"].rank: p for p in each} for each in (first or processes, processes)]
    return Case("world", 4, [Round(each) for each in by_rank], places=places, job=7, **more)


def _others(*ranks: int, **more: Any) -> list[Process]:
    return [_waits(rank, **more) for rank in ranks]


def _in_group(name: str, rank: int, calls: tuple[Call, ...]) -> dict[str, Membership]:
    base = _behind(rank).groups["world"]
    following = max((c.number for c in calls if c.number is not None), default=-1) + 1
    return {name: replace(base, group=name, size=2, calls=calls, next=following)}


def _status(**more: Any) -> Any:
    """Ranks 0 and 1 below rack0, ranks 2 and 3 below rack1, and a spine."""
    ranks = [
        {"rank": n, "host": f"h{n}", "pid": 100 + n, "state": "connected", "udp_address": "", "statistics": None}
        for n in range(4)
    ]
    nodes = [_node("spine0", []), _node("rack0", [0, 1]), _node("rack1", [2, 3])]
    tree = {"tree": 0, "root": "spine0", "nodes": nodes}
    job = {"job": 7, "name": "world", "size": 4, "state": "running", "trees": [tree], "reason": "", "ranks": ranks}
    switch = {"name": "rack0", "role": "switch", "state": "up", "state_for_s": 9.0, "trees": []}
    links = [{"a": f"h{n}", "b": f"rack{n // 2}"} for n in range(4)] + [
        {"a": f"rack{n}", "b": "spine0"} for n in (0, 1)
    ]
    job |= more.pop("job", {})
    return {"jobs": [job], "switches": [{**switch, **more.pop("switch", {})}], "links": links}


def _node(switch: str, ranks: list[int]) -> dict[str, Any]:
    children = [{"branch": rank, "child": {"Rank": rank}} for rank in ranks]
    return {"switch": switch, "address": "", "children": children, "parent": "", "via": []}


def _silent(*silent: int, trees: bool = True) -> Any:
    """A status in which these ranks report that tree 0 does not answer, or one without trees."""
    found = _status(job={} if trees else {"trees": [], "reason": "0 of 1 trees: spine0 does not answer"})
    for rank in found["jobs"][0]["ranks"]:
        rank["statistics"] = {"silent_trees": [0] if rank["rank"] in silent else []}
    return found


def _stopped(stopped_s: dict[int, float], ago_s: float, back: bool = False) -> list[Process]:
    """Healthy processes whose trees did not answer for so long, until `ago_s` ago; `back`: they use trees again."""
    found = []
    for rank in range(4):
        seconds = stopped_s.get(rank, 0.001)
        what = "the trees did not answer: on the host path with plan 2 (spine0 does not answer on the data plane)"
        pauses = [{"what": what, "at_unix_s": NOW - ago_s - seconds, "seconds": seconds}]
        stats = {**_stats(results=9, retransmits=1), "pauses": pauses}
        found.append(_process(rank, _calls(20, 0.1), stats=stats if back else {**stats, "trees": []}))
    return found


def _grown(**counters: int) -> tuple[list[Process], list[Process]]:
    """Healthy processes before and after counters of all trees grew."""
    before = [_process(rank, _calls(20, 0.1), stats=_stats()) for rank in range(4)]
    after = [_process(rank, _calls(20, 0.1), stats=_stats(**counters)) for rank in range(4)]
    return before, after


def _meters(awaited_s: dict[str, float]) -> Any:
    """A status in which switches have waited for these children for so long."""
    below = {"spine0": ["rack0", "rack1"], "rack0": ["rank 0", "rank 1"], "rack1": ["rank 2", "rank 3"]}
    found = _status()
    found["switches"] = []
    for name, names in below.items():
        children = [{"name": n, "histogram": [9], "awaited_ns": int(awaited_s.get(n, 0.01) * 1e9)} for n in names]
        tree = {"job": 7, "tree": 0, "epoch": 1, "children": children}
        found["switches"].append({"name": name, "role": "switch", "state": "up", "state_for_s": 9.0, "trees": [tree]})
    return found


WAITED = {"before": _meters({}), "now": _meters({"rank 2": 1.0, "rack1": 0.9})}
LATE = {"slow": "rank", "child": "rank 2", "at": "rack1", "share": 0.5, "job": 7, "tree": 0}
LINK = {**LATE, "slow": "link"}
TRIO = _others(0, 1, 3)
CASES: dict[str, tuple[Case, str, tuple[int, ...]]] = {
    "well": (_case(*[_process(rank, _calls(20, 0.2)) for rank in range(4)]), "well", ()),
    "computing": (_case(*TRIO, _behind(2, frames=COMPUTING, call=None, running=0.9)), "computing", (2,)),
    "sleeping": (_case(*TRIO, _behind(2, frames=COMPUTING, call="sleep")), "computing", (2,)),
    "loading": (_case(*TRIO, _behind(2, frames=LOADING, call="sleep")), "slow input", (2,)),
    "reading": (_case(*TRIO, _behind(2, frames=COMPUTING, call="read of /mnt/x")), "slow input", (2,)),
    "disk": (_case(*TRIO, _behind(2, frames=COMPUTING, call=None, state="D")), "slow input", (2,)),
    "native": (_case(*TRIO, _behind(2, frames=COMPUTING, call=None, running=0.9, silent_s=3.0)), "native code", (2,)),
    "native, busy host": (_case(*TRIO, _behind(2, call=None, running=0.2, delayed=0.8, silent_s=0.0)), "host", (2,)),
    "raising": (_case(*TRIO, _behind(2, frames=COMPUTING, exception="ValueError: no")), "exception", (2,)),
    "raised": (_case(*TRIO, _behind(2, frames=COMPUTING, uncaught="ValueError: no")), "exception", (2,)),
    "overloaded": (_case(*TRIO, _behind(2, frames=COMPUTING, call=None, running=0.1, delayed=0.8)), "host", (2,)),
    "stopped": (_case(*TRIO, outside={2: "T"}), "stopped", (2,)),
    "dead": (_case(*TRIO, outside={2: None}), "dead", (2,)),
    "silent": (_case(*TRIO), "silent", (2,)),
    "different": (
        _case(*TRIO, _process(2, _calls(20, 5.0, "allreduce float32[8] sum"))),
        "different call",
        (2,),
    ),
    "told": (
        _case(
            *_others(
                0,
                1,
                3,
                failure="rank 2 called barrier, rank 0 called allreduce float32[9] sum (operation #20); "
                "rank 2 differs from most ranks",
            ),
        ),
        "different call",
        (2,),
    ),
    "gone": (_case(*_others(0, 1, 3, failure="rank 2 (host h2, pid 102) is lost: reset")), "dead", (2,)),
    "switch": (
        _case(*_others(0, 1, 2, 3), before=_status(), now=_status(switch={"state": "down"})),
        "switch",
        (),
    ),
    "marks": (_case(*_grown(results=500, marks=490)[1], first=_grown()[0]), "marks", ()),
    "slow link": (_case(*_grown(results=500)[1], first=_grown()[0], stragglers=[LINK], **WAITED), "slow link", (2,)),
    "small window": (
        _case(
            *[_process(n, _calls(20, 0.1), stats=_stats(results=500, window=5 if n == 2 else 32)) for n in range(4)],
            first=_grown()[0],
            stragglers=[LINK],
            **WAITED,
        ),
        "well",
        (),
    ),
    "behind its sibling": (
        _case(
            *_grown(results=500)[1],
            first=_grown()[0],
            stragglers=[LINK],
            before=_meters({}),
            now=_meters({"rank 2": 1.0}),
        ),
        "well",
        (),
    ),
    "lossy up": (
        _case(
            *[
                _process(rank, _calls(20, 0.1), stats=_stats(results=500, retransmits=100 if rank == 2 else 80))
                for rank in range(4)
            ],
            first=_grown()[0],
        ),
        "lossy link",
        (2,),
    ),
    "lossy up, and others send again in vain": (
        _case(
            *[
                _process(
                    rank,
                    _calls(20, 0.1),
                    stats=_stats(results=500, retransmits=110, spurious_retransmits=20 if rank == 2 else 105),
                )
                for rank in range(4)
            ],
            first=_grown()[0],
        ),
        "lossy link",
        (2,),
    ),
    "all send again in vain": (
        _case(
            *[
                _process(rank, _calls(20, 0.1), stats=_stats(results=500, retransmits=100, spurious_retransmits=95))
                for rank in range(4)
            ],
            first=_grown()[0],
        ),
        "well",
        (),
    ),
    "late": (
        _case(
            *[_process(rank, _calls(20, 0.1), frames=LOADING if rank == 2 else WAITING) for rank in range(4)],
            stragglers=[LATE],
            **WAITED,
        ),
        "slow input",
        (2,),
    ),
    "controller": (
        _case(*[_process(rank, _calls(20, 0.1), away="connection refused") for rank in range(4)]),
        "controller",
        (),
    ),
    "stuck": (_case(*_others(0, 1, 2, 3)), "unknown", (0, 1, 2, 3)),
    "under way": (
        _case(*_others(0, 1, 2, 3, stats=_stats(results=7)), first=_others(0, 1, 2, 3)),
        "well",
        (),
    ),
    "one rank without answers": (_case(*_others(0, 1, 2, 3), now=_silent(3)), "large packets", (3,)),
    "a rack without answers": (_case(*_others(0, 1, 2, 3), now=_silent(2, 3)), "switch", ()),
    "nobody with answers": (_case(*_others(0, 1, 2, 3), now=_silent(0, 1, 2, 3)), "switch", ()),
    "one rank had none": (_case(*_stopped({3: 1.8}, 30.0), now=_silent(trees=False)), "large packets", (3,)),
    "a rack had none": (_case(*_stopped({0: 1.8, 1: 1.9}, 30.0), now=_silent(trees=False)), "switch", ()),
    "back on trees": (_case(*_stopped({3: 1.8}, 3.0, back=True), now=_silent()), "large packets", (3,)),
    "back on trees and well": (_case(*_stopped({3: 1.8}, 30.0, back=True), now=_silent()), "well", ()),
    "all stopped at once": (_case(*_stopped({}, 3.0, back=True), now=_silent()), "well", ()),
    "new trees": (
        _case(
            *[_process(rank, _calls(20, 0.1), stats=_stats(results=4000, retransmits=400)) for rank in range(4)],
            first=[_process(rank, _calls(20, 0.1), stats={**_stats(), "trees": []}) for rank in range(4)],
        ),
        "well",
        (),
    ),
    "starved": (
        _case(*[_process(rank, _calls(20, 0.1), starved=0.8 * (rank == 2)) for rank in range(4)], stragglers=[LINK]),
        "host",
        (2,),
    ),
    "starved, and others send again": (
        _case(
            *[
                _process(rank, _calls(20, 0.1), starved=0.8 * (rank == 1), stats=_stats(results=500, retransmits=60))
                for rank in range(4)
            ],
            first=[_process(rank, _calls(20, 0.1), starved=0.8 * (rank == 1)) for rank in range(4)],
            stragglers=[LINK],
        ),
        "host",
        (1,),
    ),
    "starved and stuck": (
        _case(*[_waits(rank, starved=0.9 * (rank == 3)) for rank in range(4)]),
        "host",
        (3,),
    ),
}


@pytest.mark.parametrize(
    ("silent", "place"),
    [((0, 1), "rack0"), ((2, 3), "rack1"), ((0, 1, 2, 3), "spine0"), ((1,), "link h1 - rack0")],
)
def test_what_does_not_answer_is_what_the_silent_ranks_have_in_common(silent, place):
    assert judge(_case(*_others(0, 1, 2, 3), now=_silent(*silent))).place == place


@pytest.mark.parametrize("name", CASES)
def test_verdicts(name):
    case, fault, ranks = CASES[name]
    found = judge(case)
    assert (found.fault, found.ranks) == (fault, ranks), found.words
    assert lines(case, found)
    assert as_json(case, found, 0.1)["fault"] == fault


def test_a_deadlock_of_two_groups_is_shown_as_its_cycle():
    one, other = _calls(3, 5.0), _calls(3, None)
    first = _behind(1, groups={**_in_group("a", 0, one), **_in_group("b", 0, other)})
    second = _behind(3, groups={**_in_group("b", 1, one), **_in_group("a", 1, other)})
    found = judge(_case(*_others(0, 2), first, second))
    assert found.fault == "deadlock"
    assert found.cycle == ((1, "a"), (3, "b"))


@pytest.mark.parametrize(
    ("late", "named"),
    [
        ({8: (2, 1.0), 10: (2, 1.05)}, 2),
        ({6: (1, 0.1), 8: (1, 0.12), 10: (1, 0.09)}, 1),
        ({8: (1, 0.1), 10: (1, 0.12)}, None),
        ({6: (1, 0.02), 8: (1, 0.3), 10: (1, 0.09)}, None),
        ({6: (1, 0.1), 7: (0, 0.1), 8: (1, 0.12), 9: (3, 0.1), 10: (1, 0.09)}, None),
    ],
)
def test_a_rank_that_is_late_at_one_operation_of_each_step_is_named(late, named):
    """Operations by number with the rank that comes last, and by how much; before them a tenth of a second of work."""
    at, called = NOW - 10, []
    for number in range(12):
        rank, seconds = late.get(number, (0, 0.0))
        at += 0.1
        called.append({each: at + (seconds if each == rank else 0.001 * each) for each in range(4)})
        at += seconds
    rounds = []
    for counters in ({}, {"results": 500, "retransmits": 60}):
        rounds.append([])
        for rank in range(4):
            calls = [Call(n, "allreduce", 36, each[rank], 0.01, None) for n, each in enumerate(called)]
            frames = COMPUTING if rank == named else WAITING
            rounds[-1].append(_process(rank, tuple(calls), frames=frames, stats=_stats(**counters)))
    # The meter of a switch names a rank that waits.
    found = judge(_case(*rounds[1], first=rounds[0], stragglers=[{**LATE, "child": "rank 0"}]))
    assert (found.fault == "computing" and found.ranks == (named,)) == (named is not None), found.words


@pytest.mark.parametrize(("heard", "fault"), [(0, "large packets"), (7, "lossy link")])
def test_a_link_that_passes_some_fragments_is_lossy(heard, fault):
    """All ranks wait in one operation, and send again; the switches wait for rank 2."""

    def status(fragments: int) -> Any:
        child = {"name": "rank 2", "histogram": [fragments, 0]}
        return _status(switch={"trees": [{"job": 7, "tree": 0, "epoch": 1, "children": [child]}]})

    def ranks(retransmits: int) -> list[Process]:
        stats = [_stats(results=9, retransmits=retransmits, waiting_for=0 if n == 2 else 4) for n in range(4)]
        return [_process(n, _calls(20, 0.9), stats=stats[n]) for n in range(4)]

    found = judge(_case(*ranks(5), first=ranks(3), before=status(90), now=status(90 + heard)))
    assert (found.fault, found.ranks) == (fault, (2,)), found.words


def test_a_window_that_is_sent_again_once_is_no_lossy_link():
    """As after a moment without a processor."""
    before, after = _grown(results=500, retransmits=200)
    later = [_process(rank, _calls(20, 0.1), stats=_stats(results=1000, retransmits=200)) for rank in range(4)]
    rounds = [Round(dict(enumerate(each))) for each in (before, after, later)]
    assert judge(Case("world", 4, rounds[:2])).fault == "lossy link"
    assert judge(Case("world", 4, rounds)).fault == "well"


def test_lost_results_make_one_rank_send_again():
    before, after = _grown(results=500)
    after[1] = _process(1, _calls(20, 0.1), stats=_stats(results=500, retransmits=60))
    found = judge(_case(*after, first=before, now=_status(), before=_status()))
    assert (found.fault, found.ranks) == ("lossy link", (1,))
    assert "on the way down" in found.words


def test_jobs_of_one_host_with_groups_of_one_name_are_told_apart():
    ours, theirs = (replace(_behind(0).groups["world"], stats={"job": job}) for job in (7, 8))
    assert choose([theirs, ours], None, 7) is ours
    assert choose([theirs, ours], "world", 8) is theirs
    with pytest.raises(WhyError, match=r"in a group 'world' of job 9; groups are: world"):
        choose([theirs, ours], "world", 9)


def test_several_jobs_of_one_host_are_not_confused():
    def of(job: int, name: str, rank: int) -> Process:
        known = replace(_in_group(name, rank, _calls(9, None))[name], places=(f"pid {job}0", f"pid {job}1"))
        return replace(_process(rank, ()), groups={name: known})

    ours = [of(7, "torch/0", rank) for rank in range(2)]
    chosen = ours[0].groups["torch/0"]
    idle = replace(_process(0, ()), groups={})
    assert others_than(chosen, [*ours, idle]) == []
    assert others_than(chosen, [*ours, of(8, "world", 0)]) == ["torch/0", "world"]
    assert others_than(chosen, [*ours, of(8, "torch/0", 0)]) == ["torch/0"]


def test_communicators_of_nccl_are_judged_with_the_job():
    def of_nccl(rank: int, waits: bool) -> Process:
        calls = _calls(9, 5.0 if waits else None, "allreduce float32[9] by COLLNET_CHAIN, SIMPLE")
        known = replace(_in_group("nccl-world-1", rank, calls)["nccl-world-1"], size=4, places=(), stats={})
        return _process(rank, _calls(20, None), groups={"nccl-world-1": known})

    processes = [of_nccl(rank, rank != 2) for rank in range(4)]
    case = _case(*processes)
    verdict = judge(case)
    assert verdict.ranks == (2,) and "has not called it" in verdict.words
    said = lines(case, verdict)
    assert said[1] == "waited for: operation #9 of group nccl-world-1, allreduce float32[9] by COLLNET_CHAIN, SIMPLE"
    # Without the job's own group, as on a host without a head of CollNet.
    alone = [replace(each, groups={"nccl-world-1": each.groups["nccl-world-1"]}) for each in processes]
    case = Case("nccl-world-1", 4, [Round(dict(enumerate(alone)))])
    assert judge(case).ranks == (2,)
    ours, theirs = processes[0].groups["world"], processes[0].groups["nccl-world-1"]
    assert choose([replace(theirs, size=64), ours], None, None) is ours
    assert choose([theirs, ours], "nccl-world-1", None) is theirs


def test_who_waits_for_whom_and_where():
    case = _case(*TRIO, _behind(2, frames=LOADING, call="sleep"))
    said = lines(case, judge(case))
    assert said[0].startswith("slow input: rank 2 (host h2, pid 102) has not called it: it is loading data")
    assert "operation #20 of group world, allreduce float32[9] sum" in said[1]
    assert "rank 0 waits for rank 2 since 5.0 s, at /home/me/train.py:42 in train" in said[2]
    assert "rank 2 is awaited (host h2, pid 102), at /home/me/data.py:3 in load_batch" in said[-1]


def test_stacks_without_the_interpreter_are_read_from_its_crash_report():
    dump = """Thread 0x1 (most recent call first):
  File "/x/threading.py", line 3 in wait
  File "/x/a b, line 2.py", line 9 in run

Thread 0x2 (most recent call first):
  File "/home/me/train.py", line 42 in train
"""
    answer = {
        "pid": 5,
        "unix_s": NOW,
        "load": {"processors": 2, "runnable": 1, "pressure": None},
        "threads": [],
        "groups": [],
        "stacks": {"silent_s": 1.5, "dump": dump},
    }
    found = process(answer)
    assert found.silent_s == 1.5
    assert found.main_stack() == Stack("", True, None, (USER,))
    assert found.stacks[0].frames[1] == ("/x/a b, line 2.py", 9, "run")
