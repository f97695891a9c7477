"""What a process is doing, from its stacks, its threads and the system's accounts of them."""

import itertools
import re
import statistics
from collections import Counter

from netsum.diagnosis.evidence import Case, Frame, Process, Stack
from netsum.diagnosis.network import is_bottleneck

BUSY = 0.3
"""Share of the time on a processor from which a thread computes."""
DELAYED = 0.5
"""Share of the time that a thread waits for a processor from which its host is overloaded."""
SILENT_S = 0.4
"""For so long a busy host does not keep an interpreter from answering."""
STEPS_MAX = 3
"""Processor time of so many steps is no matter of a busy host."""
LATE_SHARE = 0.25
"""Part of the time between two operations by which a rank must be late to be named."""
LATE_S = 0.02
TIMES_MIN = 3
LONG_S = 0.25
"""Waits so long make a rank late that has come last twice; of shorter ones it takes `TIMES_MIN`."""
_LIBRARY = re.compile(r"/netsum/(?!.*tests/)|/torch/|/lib/python3[.\d]*/|/site-packages/|^<")
_LOADER = re.compile(
    r"(?:^|[._])_*(?:load\w*|read\w*|fetch\w*|next_batch|next_data|__next__|__getitem__)|loader|dataset", re.IGNORECASE
)
_BLOCKED = ("read", "open", "receive", "poll")
_DIFFERENT = re.compile(r"rank (\d+) called .*, rank (\d+) called .*\(operation #\d+\)(?:; rank (\d+) differs)?")
_LOST = re.compile(r"rank (\d+) \(host [^)]*\) (?:is lost|has left)")


def call_site(stack: Stack | None) -> Frame | None:
    """The innermost frame of the program itself; without one, the innermost of all."""
    if stack is None or not stack.frames:
        return None
    return next((frame for frame in stack.frames if not _LIBRARY.search(frame[0])), stack.frames[0])


def exception_of(process: Process) -> str | None:
    """The exception that the main thread handles, or that has ended it."""
    stack = process.main_stack()
    return process.uncaught or (stack.exception if stack else None)


def classify(rounds: list[Process], waited_s: float = 0.0, period_s: float = 0.0) -> tuple[str, str]:
    """What keeps a rank that others wait for: the class that most rounds show, and words for it.

    waited_s: for how long they wait; period_s: of its steps. A busy host explains no wait in which the rank has had the
    processor time of several steps.
    """
    shares = [main.running for process in rounds if (main := process.main_thread())]
    had_enough = period_s > 0 and waited_s * statistics.fmean(shares or [0.0]) > STEPS_MAX * period_s
    found = [_of_one(process, had_enough) for process in rounds]
    if not found:
        return "unknown", "it did not answer"
    # A rank that is late in every step is seen where it spends its time, and now and then elsewhere.
    counts = Counter(fault for fault, _ in found if fault != "waiting") or Counter(fault for fault, _ in found)
    fault = counts.most_common(1)[0][0]
    return fault, next(words for each, words in reversed(found) if each == fault)


def _of_one(process: Process, had_enough: bool) -> tuple[str, str]:
    main, stack = process.main_thread(), process.main_stack()
    site = call_site(stack)
    at = f" at {site[0]}:{site[1]} in {site[2]}" if site else ""
    error = exception_of(process)
    if error:
        return "exception", f"an exception is on its way: {error}{at}"
    call = main.call if main else None
    blocked = (call is not None and call.startswith(_BLOCKED)) or (main is not None and main.state == "D")
    if process.silent_s is not None:
        if main is not None and main.delayed >= DELAYED and not had_enough and process.silent_s < SILENT_S:
            return "host", f"its host is overloaded: its main thread waits for a processor{at}"
        words = f"its interpreter does not answer: it is in C code since {max(process.silent_s, 0.2):.1f} s or more{at}"
        return ("slow input", words + f" ({call})") if blocked else ("native code", words)
    if _in_netsum(stack):
        return "waiting", f"it waits in an operation of its own{at}"
    if blocked:
        return "slow input", f"it waits for input ({call or 'a device'}){at}"
    if stack is not None and any(_is_loader(frame) for frame in stack.frames):
        return "slow input", f"it is loading data{at}"
    if main is not None and not had_enough and main.delayed >= DELAYED and main.delayed > main.running:
        words = f"{main.delayed:.0%} of the time it waits for one of {process.processors} processors"
        return "host", f"its host is overloaded: {words}{at}"
    if main is not None and call == "sleep":
        return "computing", f"it sleeps{at}"
    return "computing", f"it is computing{at}"


def _is_loader(frame: Frame) -> bool:
    file, _, function = frame
    if "/torch/utils/data/" in file:
        return True
    return not _LIBRARY.search(file) and bool(_LOADER.search(function))


def _in_netsum(stack: Stack | None) -> bool:
    """Whether the innermost calls are an operation of this library, or torch's wait for one."""
    if stack is None:
        return False
    inner = next((frame for frame in stack.frames if not frame[0].startswith("<")), None)
    return inner is not None and (
        ("/netsum/" in inner[0] and "/tests/" not in inner[0]) or "torch/distributed" in inner[0]
    )


def weight(process: Process) -> float:
    """How much a process explains a wait, to choose among several that are awaited."""
    main = process.main_thread()
    odd = exception_of(process) is not None or process.silent_s is not None
    return 2.0 * odd + (main.delayed if main else 0.0)


def period_of(process: Process, group: str) -> float:
    """The median time between two operations of a process, in seconds."""
    membership = process.groups.get(group)
    called = sorted(call.called for call in membership.calls if call.number is not None) if membership else []
    gaps = [later - earlier for earlier, later in itertools.pairwise(called)]
    return statistics.median(gaps) if gaps else 0.0


def late_ranks(case: Case) -> list[int]:
    """Ranks that begin operations much later than all others, by the ranks' clocks, else by switches' meters."""
    called: dict[int, dict[int, float]] = {}
    for round_ in case.rounds:
        for rank, process in round_.processes.items():
            membership = process.groups.get(case.group)
            for call in membership.calls if membership else ():
                if call.number is not None:
                    called.setdefault(call.number, {})[rank] = call.called
    whole = [called[number] for number in sorted(called) if len(called[number]) == case.size]
    found = [_late_always(whole), _late_at_times(whole)] if len(whole) >= 4 and case.size > 1 else []
    for straggler in case.stragglers:
        is_rank = straggler["slow"] == "rank" and straggler["child"].startswith("rank ")
        if is_rank and straggler["share"] >= LATE_SHARE and is_bottleneck(case, straggler):
            found.append(int(straggler["child"][5:]))
    return [rank for rank in found if rank is not None]


def _late_always(whole: list[dict[int, float]]) -> int | None:
    """The rank that is late at most operations. Each of `whole` is the time of an operation's call, by rank."""
    late = {rank: statistics.median(each[rank] - min(each.values()) for each in whole) for rank in whole[0]}
    last = max(late, key=lambda rank: late[rank])
    others = sorted(late[rank] for rank in late if rank != last)
    starts = [min(each.values()) for each in whole]
    period = (starts[-1] - starts[0]) / (len(whole) - 1)
    return last if late[last] >= max(LATE_S, LATE_SHARE * period, 3 * others[-1]) else None


def _late_at_times(whole: list[dict[int, float]]) -> int | None:
    """The rank that comes last again and again, by about as much each time: at the first operation of each step."""
    alone: dict[int, list[tuple[float, float]]] = {}
    for each in whole:
        second, last = sorted(each, key=lambda rank: each[rank])[-2:]
        late_s = each[last] - each[second]
        if late_s >= LATE_S:
            alone.setdefault(last, []).append((min(each.values()), late_s))
    if not alone:
        return None
    sums = {rank: sum(late_s for _, late_s in times) for rank, times in alone.items()}
    rank = max(sums, key=lambda rank: sums[rank])
    latest = [late_s for _, late_s in alone[rank]][-TIMES_MIN:]
    elapsed = min(whole[-1].values()) - alone[rank][0][0] + latest[-1]
    often = len(latest) == TIMES_MIN or (len(latest) > 1 and min(latest) >= LONG_S)
    regular = max(latest) <= 2 * min(latest)
    others = sum(sums.values()) - sums[rank]
    return rank if often and regular and sums[rank] >= max(LATE_SHARE * elapsed, 3 * others) else None


def read_failure(reason: str) -> tuple[str, list[int]]:
    """The kind of a group's failure and the ranks that it names."""
    if match := _DIFFERENT.search(reason):
        other, ours, differs = match.groups()
        return "different call", [int(differs)] if differs else sorted({int(other), int(ours)})
    if match := _LOST.search(reason):
        return "lost", [int(match[1])]
    return "", []
