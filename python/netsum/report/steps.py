"""The steps of a job's sample, and how long they would take with other operations.

A step is replayed from one rank's calls. Calls that overlap form a burst, which the network serves in order. Whether
a call waited for the burst before it, or came when computing was ready for it, is seen from all steps: the time from
call to call follows the burst's duration in the first case, and does not in the second.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from netsum.report.files import Job, Operation, RankFile
from netsum.report.repeating import training_steps

STEPS_MAX = 64
"""Steps of the sample that are looked at, spread over the job."""
WINDOW = 1024
"""Operations in which a repetition is looked for."""
SKIP_MAX = 64
"""Operations that are skipped at once where calls do not repeat."""
SHORT = 0.1
"""If a call comes so soon after a burst, as a part of the burst's duration, then it has waited for it."""
OVERLAPS = 0.1
"""Share of the steps in which calls overlap, from which they are taken to."""


@dataclass(frozen=True)
class Step:
    """A step: the number of its first operation, and by rank its operations and the first call of the next step."""

    first: int
    ranks: dict[int, tuple[list[Operation], float]]

    def seconds(self, rank: int) -> float:
        operations, following = self.ranks[rank]
        return following - operations[0].called_s


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
    """What the steps of a job have in common. calls: index of each operation's call. lead: the rank that is replayed:
    it waits least for others."""

    steps: list[Step]
    calls: list[int]
    bursts: list[Burst]
    lead: int

    @property
    def seconds(self) -> float:
        """The median step."""
        return median(step.seconds(self.lead) for step in self.steps)

    def communicating(self, rank: int) -> float:
        """Median time of a step with an operation in progress."""
        return median(sum(_lasting(step.ranks[rank][0], burst) for burst in self.bursts) for step in self.steps)

    def exposed(self, rank: int) -> float:
        """Median time of a step that communication adds: a burst that is waited for, after its last call; else 0."""

        def of(step: Step) -> float:
            operations, _ = step.ranks[rank]
            return sum(
                max(_end(operations, burst) - operations[burst.end - 1].called_s, 0.0)
                for burst in self.bursts
                if burst.waited
            )

        return median(of(step) for step in self.steps)

    def burst_seconds(self, burst: Burst) -> float:
        """The median duration of a burst at the rank that came last: the time of communication alone."""
        return median(min(_lasting(each, burst) for each, _ in step.ranks.values()) for step in self.steps)

    def replayed(self, now: Costs, then: Costs) -> float:
        """The median step if its operations cost `then`, by the model in which they cost `now`."""
        return median(self._replay(step, now, then) for step in self.steps)

    def _replay(self, step: Step, now: Costs, then: Costs) -> float:
        operations, following = step.ranks[self.lead]
        at = operations[0].called_s
        for place, burst in enumerate(self.bursts):
            calls = [operation.called_s for operation in operations[burst.begin : burst.end]]
            lasted = _lasting(operations, burst)
            modelled = _served(calls, burst.begin, now)
            changed = _served(calls, burst.begin, then)
            lasts = lasted - modelled + changed if lasted >= modelled else lasted * changed / modelled
            next_call = operations[self.bursts[place + 1].begin].called_s if burst.end < len(operations) else following
            end = calls[0] + lasted
            if burst.waited:
                # The last call of the burst itself comes when computing is ready for it.
                at += max(lasts, calls[-1] - calls[0]) + (next_call - end)
            else:
                at += next_call - calls[0]
        return at - operations[0].called_s


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
    lengths = [len(next(iter(step.ranks.values()))[0]) for step in steps]
    usual = max(set(lengths), key=lengths.count)
    steps = [step for step, length in zip(steps, lengths, strict=True) if length == usual]
    ranks = sorted(steps[0].ranks)
    calls = [operation.call for operation in steps[0].ranks[ranks[0]][0]]
    bursts = _bursts(steps, usual)
    found = Rhythm(steps, calls, bursts, ranks[0])
    lead = min(ranks, key=found.exposed)
    return Rhythm(steps, calls, bursts, lead)


def _steps(job: Job) -> list[Step]:
    reference = job.first
    found: list[Step] = []
    for run in _runs(reference.operations):
        end = len(run)
        skip = 1
        while end > 0:
            # The core looks for calls that repeat until the last one.
            part = run[max(end - WINDOW, 0) : end]
            names = [(reference.calls[o.call].name, reference.calls[o.call].nbytes) for o in part]
            calls = [(*name, o.called_s, o.ended_s) for name, o in zip(names, part, strict=True)]
            number = {operation.called_s: operation.number for operation in part}
            steps = [(number[each["began_s"]], each["operations"]) for each in training_steps(calls)]
            found += [step for first, count in steps if (step := _step(job, first, count))]
            end = steps[0][0] - run[0].number + 1 if steps else end - skip
            skip = 1 if steps else min(2 * skip, SKIP_MAX)
    found.sort(key=lambda step: step.first)
    every = max(len(found) // STEPS_MAX, 1)
    return found[::every]


def _runs(operations: Sequence[Operation]) -> list[list[Operation]]:
    """Operations whose numbers follow each other."""
    runs: list[list[Operation]] = [[]]
    for operation in operations:
        if runs[-1] and operation.number != runs[-1][-1].number + 1:
            runs.append([])
        runs[-1].append(operation)
    return [run for run in runs if run]


def _step(job: Job, first: int, count: int) -> Step | None:
    ranks = {}
    for rank, file in job.ranks.items():
        operations = _numbered(file, first, count)
        if operations is None:
            return None
        *own, following = operations
        ranks[rank] = (own, following.called_s)
    return Step(first, ranks)


def _numbered(file: RankFile, first: int, count: int) -> list[Operation] | None:
    """Operations of a step and the one after it."""
    known = file.by_number
    found = [known[number] for number in range(first, first + count + 1) if number in known]
    return found if len(found) == count + 1 else None


def _bursts(steps: Sequence[Step], count: int) -> list[Burst]:
    """Which operations overlap, and whether the call after a burst waits for it."""
    samples = [each for step in steps for each in step.ranks.values()]
    begins = [0]
    for at in range(1, count):
        overlapping = sum(
            operations[at].called_s < _end(operations, Burst(begins[-1], at, True)) for operations, _ in samples
        )
        if overlapping <= OVERLAPS * len(samples):
            begins.append(at)
    return [Burst(begin, end, _waited(steps, begin, end)) for begin, end in pairwise([*begins, count])]


def _waited(steps: Sequence[Step], begin: int, end: int) -> bool:
    """Whether the call after a burst waits for it: then the time from the burst's last call to that call follows the
    time from the last call to the end; else it does not depend on it."""
    pairs: dict[int, list[tuple[float, float]]] = {}
    for step in steps:
        for rank, (operations, following) in step.ranks.items():
            last = operations[end - 1].called_s
            next_call = operations[end].called_s if end < len(operations) else following
            pairs.setdefault(rank, []).append((_end(operations, Burst(begin, end, True)) - last, next_call - last))
    lasting = median(x for each in pairs.values() for x, _ in each)
    after = median(y - x for each in pairs.values() for x, y in each)
    if after < 0:
        # The next call has come before the end.
        return False
    if after <= SHORT * lasting:
        return True
    return _slope(list(pairs.values())) > 0.5


def _slope(groups: Sequence[Sequence[tuple[float, float]]]) -> float:
    """The median slope of y over x within the groups (Theil and Sen, on pairs of neighbours in order of x); 1 if x
    hardly varies."""
    slopes = []
    for group in groups:
        ordered = sorted(group)
        half = len(ordered) // 2
        spread = ordered[-1][0] - ordered[0][0]
        for one, other in zip(ordered[:half], ordered[-half:], strict=True) if half else ():
            if other[0] - one[0] > max(0.2 * spread, 1e-5):
                slopes.append((other[1] - one[1]) / (other[0] - one[0]))
    return median(slopes) if len(slopes) >= 3 else 1.0
