"""Training steps in a rank's calls."""

import json
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from netsum.reports import TrainingStep

RARE = 128
"""One of so many pauses may be longer than that between steps: for a checkpoint, or because the machine is busy."""
LEAST = 3
REGULAR = 0.7
"""Share of the long pauses that must follow each other after the same number of repetitions."""


def training_steps(called: Sequence[tuple[str, int, float, float]]) -> list[TrainingStep]:
    """The steps in calls (name, bytes, time of the call, time of the end), oldest first.

    The core finds the shortest repetition of the calls. If all calls of a step are alike, that is a part of a step:
    then longer pauses come after the same number of repetitions each time, and steps begin there.
    """
    from netsum import _core

    found: list[TrainingStep] = json.loads(_core.training_steps(called))
    if len(found) <= 2 * LEAST:
        return found
    place = {at: index for index, (_, _, at, _) in enumerate(called)}
    begins = [place[step["began_s"]] for step in found]
    quiet = [_quiet_before(called, begin, found[0]["operations"]) for begin in begins]
    many, first = _regular(quiet)
    groups = [found[at : at + many] for at in range(first, len(found) - many + 1, many)]
    return [_together(group) for group in groups]


def _quiet_before(called: Sequence[tuple[str, int, float, float]], begin: int, period: int) -> float:
    """The time without an operation before a call."""
    ended = max((end for _, _, _, end in called[max(begin - period, 0) : begin]), default=called[begin][2])
    return max(called[begin][2] - ended, 0.0)


def _regular(quiet: Sequence[float]) -> tuple[int, int]:
    """After how many repetitions a long pause comes, and the place of the first one; (1, 0) if none is longer."""
    ordered = sorted(quiet, reverse=True)
    limit = ordered[max(len(ordered) // RARE, 1)] / 2
    long = [at for at, pause in enumerate(quiet) if pause > limit]
    apart = Counter(other - one for one, other in pairwise(long))
    if len(long) < LEAST or not apart:
        return 1, 0
    many, times = apart.most_common(1)[0]
    if many == 1 or times < REGULAR * apart.total():
        return 1, 0
    # The phase that most of the long pauses have.
    phase = Counter(at % many for at in long).most_common(1)[0][0]
    return many, phase


def _together(steps: Sequence[TrainingStep]) -> TrainingStep:
    return {
        "began_s": steps[0]["began_s"],
        "seconds": sum(step["seconds"] for step in steps),
        "communicating_s": sum(step["communicating_s"] for step in steps),
        "exposed_s": sum(step["exposed_s"] for step in steps),
        "operations": sum(step["operations"] for step in steps),
        "bytes": sum(step["bytes"] for step in steps),
    }
