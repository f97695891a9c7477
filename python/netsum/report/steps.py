"""The steps of a job's sample, and how long they would take with other operations.

The clocks of ranks are aligned by the ends of their operations. An operation then begins when the last rank has called
it, and ends when the last rank has its result: what is between them is communication, what is before it is computing
of the slowest rank. Operations that overlap form a burst, which the network serves in order. Whether a call waited for
the burst before it, or came when computing was ready for it, is seen from all steps: the time from call to call follows
the burst's duration in the first case, and does not in the second.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from statistics import median

from netsum.report.files import Job, Operation
from netsum.report.repeating import training_steps

STEPS_MAX = 64
"""Steps of the sample that are looked at, spread over the job."""
RUN = 1024
"""Operations in which a repetition is looked for, and clocks are taken to go alike."""
SKIP_MAX = 64
"""Operations that are skipped at once where calls do not repeat."""
SHORT = 0.1
"""If a call comes so soon after a burst, as a part of the burst's duration, then it has waited for it."""
OUTLIER = 4
"""So many median deviations from the median count."""
CALL_MOST_S = 1e-4
"""Where the pauses between an end and the next call are all longer, the program computes in them."""
OVERLAPS = 0.1
"""Share of the steps in which calls overlap, from which they are taken to."""


@dataclass(frozen=True)
class Course:
    """The operations of a step, and the first call of the next one; seconds by the clock of the reference rank."""

    operations: list[Operation]
    following_s: float

    @property
    def seconds(self) -> float:
        return self.following_s - self.operations[0].called_s


@dataclass(frozen=True)
class Step:
    """A step: as each rank had it, and of all ranks together, with the last call and the last end of each operation."""

    ranks: dict[int, Course]
    together: Course


@dataclass(frozen=True)
class Burst:
    """Operations `begin` to `end` (exclusive) of a step, which overlap. waited: whether the next call waits for it."""

    begin: int
    end: int
    waited: bool


@dataclass(frozen=True)
class Cost:
    """Seconds of an operation: alone, and while the network is busy with the one before it."""

    alone_s: float
    following_s: float


Costs = Callable[[int], Cost | None]
"""The cost of the n-th operation of a step; None: it is left out, because another one takes its bytes along."""


@dataclass(frozen=True)
class Rhythm:
    """What the steps of a job have in common. calls: index of each operation's call at the reference rank."""

    steps: list[Step]
    calls: list[int]
    bursts: list[Burst]

    @property
    def seconds(self) -> float:
        """The median step."""
        return median(step.together.seconds for step in self.steps)

    @cached_property
    def call_s(self) -> float:
        """What a call costs the program beside the operation: the shortest usual time between an end and a call that
        waited for it, but for computing."""
        pauses = [
            median(
                step.together.operations[burst.end].called_s - _end(step.together.operations, burst)
                for step in self.steps
            )
            for burst in self.bursts
            if burst.waited and burst.end < len(self.calls)
        ]
        return min(max(min(pauses, default=0.0), 0.0), CALL_MOST_S)

    def communicating(self, rank: int | None = None) -> float:
        """Median time of a step with an operation in progress, at a rank or of all together."""

        def of(course: Course) -> float:
            return sum(_lasting(course.operations, burst) for burst in self.bursts)

        return median(of(self._course(step, rank)) for step in self.steps)

    def exposed(self, rank: int | None = None) -> float:
        """Median time of a step that communication adds: a burst that is waited for, after its last call; else 0."""

        def of(course: Course) -> float:
            return sum(
                max(_end(course.operations, burst) - course.operations[burst.end - 1].called_s, 0.0)
                for burst in self.bursts
                if burst.waited
            )

        return median(of(self._course(step, rank)) for step in self.steps)

    def burst_seconds(self, burst: Burst) -> float:
        """The median duration of a burst, from the last rank's call to the last rank's end."""
        return median(_lasting(step.together.operations, burst) for step in self.steps)

    def varies(self, burst: Burst) -> float:
        """The median duration of a burst as a multiple of the shortest."""
        lasting = [_lasting(step.together.operations, burst) for step in self.steps]
        return median(lasting) / min(lasting) if min(lasting) else math.inf

    def replayed(self, now: Costs, then: Costs) -> float:
        """The median step if its operations cost `then`, by the model in which they cost `now`."""
        return median(self._replay(step.together, now, then) for step in self.steps)

    def _course(self, step: Step, rank: int | None) -> Course:
        return step.together if rank is None else step.ranks[rank]

    def _replay(self, course: Course, now: Costs, then: Costs) -> float:
        operations = course.operations
        at = 0.0
        for place, burst in enumerate(self.bursts):
            calls = [operation.called_s for operation in operations[burst.begin : burst.end]]
            lasted = _lasting(operations, burst)
            modelled = _served(calls, burst.begin, now)
            changed = _served(calls, burst.begin, then)
            places = range(burst.begin, burst.end)
            omitted = [each for each in places if now(each) is not None and then(each) is None]
            if len(omitted) == len(places):
                # What delayed it is gone with it.
                lasts = 0.0
            else:
                lasts = lasted - modelled + changed if lasted >= modelled else lasted * changed / modelled
            is_last = burst.end == len(operations)
            next_call = course.following_s if is_last else operations[self.bursts[place + 1].begin].called_s
            if burst.waited:
                # The last call of the burst itself comes when computing is ready for it.
                at += max(lasts, calls[-1] - calls[0]) + (next_call - calls[0] - lasted) - len(omitted) * self.call_s
            else:
                at += next_call - calls[0]
        return at


def _served(calls: Sequence[float], begin: int, costs: Costs) -> float:
    """From the first call of a burst to its end, by the model."""
    end = calls[0]
    for at, called in enumerate(calls):
        cost = costs(begin + at)
        if cost is not None:
            end = max(called + cost.alone_s, end + cost.following_s) if end > called else called + cost.alone_s
    return max(end - calls[0], 1e-9)


def _end(operations: Sequence[Operation], burst: Burst) -> float:
    return max(operation.ended_s for operation in operations[burst.begin : burst.end])


def _lasting(operations: Sequence[Operation], burst: Burst) -> float:
    return _end(operations, burst) - operations[burst.begin].called_s


def rhythm(job: Job) -> Rhythm | None:
    """The steps in the sample that all ranks have; None if the calls do not repeat."""
    steps = _steps(job)
    if not steps:
        return None
    lengths = [len(step.together.operations) for step in steps]
    usual = max(set(lengths), key=lengths.count)
    steps = [step for step, length in zip(steps, lengths, strict=True) if length == usual]
    steps = steps[:: max(len(steps) // STEPS_MAX, 1)]
    calls = [operation.call for operation in steps[0].ranks[job.first.rank].operations]
    return Rhythm(steps, calls, _bursts(steps, usual))


def _steps(job: Job) -> list[Step]:
    reference = job.first
    found: list[Step] = []
    for run in _runs(reference.operations):
        clocks = _clocks(job, run)
        end = len(run)
        skip = 1
        while end > 0:
            # Calls that repeat are looked for from the last one backwards.
            part = run[:end]
            names = [(reference.calls[o.call].name, reference.calls[o.call].nbytes) for o in part]
            calls = [(*name, o.called_s, o.ended_s) for name, o in zip(names, part, strict=True)]
            number = {operation.called_s: operation.number for operation in part}
            steps = [(number[each["began_s"]], each["operations"]) for each in training_steps(calls)]
            found += [step for first, count in steps if (step := _step(job, clocks, first, count))]
            end = steps[0][0] - run[0].number + 1 if steps else end - skip
            skip = 1 if steps else min(2 * skip, SKIP_MAX)
    return sorted(found, key=lambda step: step.together.operations[0].number)


def _clocks(job: Job, run: Sequence[Operation]) -> dict[int, float]:
    """By rank, by how much its clock is ahead of the reference rank's during these operations: all end together."""
    clocks = {}
    for rank, file in job.ranks.items():
        known = file.by_number
        apart = [known[o.number].ended_s - o.ended_s for o in run if o.number in known]
        clocks[rank] = median(apart) if apart else 0.0
    return clocks


def _runs(operations: Sequence[Operation]) -> list[list[Operation]]:
    """Operations whose numbers follow each other, at most RUN of them."""
    runs: list[list[Operation]] = [[]]
    for operation in operations:
        if len(runs[-1]) == RUN or (runs[-1] and operation.number != runs[-1][-1].number + 1):
            runs.append([])
        runs[-1].append(operation)
    return [run for run in runs if run]


def _step(job: Job, clocks: dict[int, float], first: int, count: int) -> Step | None:
    ranks = {}
    for rank, file in job.ranks.items():
        known = file.by_number
        found = [known[number] for number in range(first, first + count + 1) if number in known]
        if len(found) != count + 1:
            return None
        *own, following = (replace(each, called_s=each.called_s - clocks[rank]) for each in found)
        ranks[rank] = Course(own, following.called_s)
    together = []
    for same in zip(*(course.operations for course in ranks.values()), strict=True):
        called = max(operation.called_s for operation in same)
        ended = max(operation.ended_s for operation in same)
        together.append(replace(same[0], called_s=called, seconds=max(ended - called, 0.0)))
    return Step(ranks, Course(together, max(course.following_s for course in ranks.values())))


def _bursts(steps: Sequence[Step], count: int) -> list[Burst]:
    """Which operations overlap, and whether the call after a burst waits for it."""
    courses = [course for step in steps for course in step.ranks.values()]
    begins = [0]
    for at in range(1, count):
        before = Burst(begins[-1], at, True)
        overlapping = sum(each.operations[at].called_s < _end(each.operations, before) for each in courses)
        if overlapping <= OVERLAPS * len(courses):
            begins.append(at)
    return [Burst(begin, end, _waited(steps, begin, end)) for begin, end in pairwise([*begins, count])]


def _waited(steps: Sequence[Step], begin: int, end: int) -> bool:
    """Whether the call after a burst waits for it.

    If it does, the time from the burst's last call to the next call follows the time from there to the burst's end: the
    slope of the one over the other is 1. If computing sets the pace, it is 0. Where it cannot be told, calls are taken
    to wait.
    """
    lasting: list[float] = []
    pauses: list[float] = []
    pairs: list[tuple[float, float]] = []
    for rank in steps[0].ranks:
        own = []
        for step in steps:
            operations, following_s = step.ranks[rank].operations, step.ranks[rank].following_s
            next_call = operations[end].called_s if end < len(operations) else following_s
            called, ended = operations[end - 1].called_s, _end(operations, Burst(begin, end, True))
            own.append((ended - called, next_call - called))
            pauses.append(next_call - ended)
        lasting += [x for x, _ in own]
        pairs += zip(_centred([x for x, _ in own]), _centred([y for _, y in own]), strict=True)
    pause = median(pauses)
    if pause < 0:
        # The next call has come before the end.
        return False
    if pause <= SHORT * median(lasting):
        return True
    slope, error = _slope(pairs)
    return slope >= 0.5 or slope + 2 * error >= 1


def _centred(values: Sequence[float]) -> list[float]:
    """Differences from the median, those of single outliers limited."""
    usual = median(values)
    limit = OUTLIER * median(abs(value - usual) for value in values)
    return [min(max(value - usual, -limit), limit) for value in values]


def _slope(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The slope of y over x through the origin by least squares, and its standard error."""
    xx = sum(x * x for x, _ in pairs)
    if not xx or len(pairs) < 3:
        return 1.0, 1.0
    slope = sum(x * y for x, y in pairs) / xx
    rest = sum((y - slope * x) ** 2 for x, y in pairs)
    return slope, float((rest / (len(pairs) - 1) / xx) ** 0.5)
