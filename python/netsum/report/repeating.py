"""Training steps in a rank's calls."""

import json
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from netsum.reports import TrainingStep

RARE = 128
"""One of so many pauses may be longer than that between steps: for a checkpoint, or because the machine is busy."""
LEAST = 3
LIKELY = 8
"""Numbers of repetitions between long pauses that are tried."""
LONGER = 1.5
"""The pause between steps is longer than any within them by this factor, in the median."""
MOSTLY = 0.6
"""Share of the steps before which the pause is longer than any within them."""


def training_steps(called: Sequence[tuple[str, int, float, float]]) -> list[TrainingStep]:
    """The steps in calls (name, bytes, time of the call, time of the end), oldest first.

    The core finds the shortest repetition of the calls. If all calls are alike, that is one call, and a step may have
    several: then longer pauses come after the same number of calls each time, and steps begin there.
    """
    from netsum import _core

    found: list[TrainingStep] = json.loads(_core.training_steps(called))
    if len(found) <= 2 * LEAST or found[0]["operations"] > 1:
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
    """After how many repetitions a long pause comes, and the place of the first one; (1, 0) if none is longer.

    Medians decide, because any call may be late once.
    """
    ordered = sorted(quiet, reverse=True)
    limit = ordered[max(len(ordered) // RARE, 1)] / 2
    long = [at for at, pause in enumerate(quiet) if pause > limit]
    apart = Counter(other - one for one, other in pairwise(long))
    for many in sorted(many for many, _ in apart.most_common(LIKELY) if many > 1):
        if len(quiet) < LEAST * many:
            continue
        pauses = [median(quiet[phase::many]) for phase in range(many)]
        longest, second = sorted(pauses, reverse=True)[:2]
        first = pauses.index(longest)
        groups = [quiet[at : at + many] for at in range(first, len(quiet) - many + 1, many)]
        share = sum(group[0] == max(group) for group in groups) / max(len(groups), 1)
        if longest > LONGER * second and share >= MOSTLY:
            return many, first
    return 1, 0


def _together(steps: Sequence[TrainingStep]) -> TrainingStep:
    return {
        "began_s": steps[0]["began_s"],
        "seconds": sum(step["seconds"] for step in steps),
        "communicating_s": sum(step["communicating_s"] for step in steps),
        "exposed_s": sum(step["exposed_s"] for step in steps),
        "operations": sum(step["operations"] for step in steps),
        "bytes": sum(step["bytes"] for step in steps),
    }
