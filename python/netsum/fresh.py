"""Operations of a group that have ended since the last look at its recorder."""

from netsum.reports import Recorded, RecordedOperation


class FreshOperations:
    """Gives out every collective of one group once, when it has ended."""

    def __init__(self) -> None:
        self._ended: set[int] = set()
        self._newest = -1
        self.lost = 0
        """Operations that had left the recorder before they were read."""

    def take(self, recorded: Recorded) -> list[tuple[int, RecordedOperation]]:
        """What has ended since the last call, by number."""
        numbered = {each["number"]: each for each in recorded["operations"] if each["number"] is not None}
        if numbered:
            self.lost += max(min(numbered) - self._newest - 1, 0)
            self._newest = max(self._newest, *numbered)
        # What has left the recorder does not come back.
        self._ended &= numbered.keys()
        fresh = [(n, each) for n, each in numbered.items() if each["seconds"] is not None and n not in self._ended]
        self._ended |= {number for number, _ in fresh}
        return fresh
