"""Rates of counters that processes report once a second."""

from collections import deque
from collections.abc import Hashable, Iterable, Mapping

WINDOW_S = 3.0
"""Counters arrive once a second at times of their own, so a shorter window would show waves that are not there."""

Counters = Mapping[Hashable, float]


class Rates:
    """The counters of the last seconds, by key."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Counters]] = deque()

    def add(self, at: float, counters: Counters) -> None:
        """Take the counters at a time, later than all before."""
        self._samples.append((at, counters))
        while len(self._samples) > 2 and self._samples[1][0] <= at - WINDOW_S:
            self._samples.popleft()

    def per_s(self, key: Hashable) -> float:
        """The mean rate of a counter over the window; 0 while it is unknown."""
        seconds = self._samples[-1][0] - self._samples[0][0] if self._samples else 0.0
        return self.growth(key) / seconds if seconds > 0 else 0.0

    def growth(self, key: Hashable) -> float:
        """By how much a counter has grown in the window. One that decreased has been restarted."""
        old, new = self._samples[0][1].get(key), self._samples[-1][1].get(key)
        if old is None or new is None:
            # A process that has just come: what it counted before is not of this window.
            return 0.0
        return new - old if new >= old else new


class Totals:
    """What the counters of several parts have counted together since they were first seen.

    Parts come and go, as the trees of a job do while its hosts add: what a part counted before it went is not counted
    again when it comes back. A counter that decreased has been restarted.
    """

    def __init__(self, counters: int) -> None:
        self._last: dict[Hashable, tuple[float, ...]] = {}
        self.sums = [0.0] * counters

    def add(self, parts: Iterable[tuple[Hashable, tuple[float, ...]]]) -> None:
        """Take the counters that each part has now."""
        for part, now in parts:
            last = self._last.get(part, now)
            self._last[part] = now
            for at, (old, new) in enumerate(zip(last, now, strict=True)):
                self.sums[at] += new - old if new >= old else new
