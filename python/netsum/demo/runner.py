"""One training of the demo as processes, and its results."""

import json
import statistics
import sys
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from netsum import private
from netsum.demo.errors import DemoError
from netsum.launch import Workers

RANKS = 4
# By path: an import would load torch into the command line.
SCRIPT = Path(__file__).with_name("train.py")


@dataclass
class Record:
    """The results of a completed training. Times are Unix seconds if the name ends in `_at`, else seconds."""

    backend: str
    start: dict[str, Any]
    steps: list[dict[str, Any]]
    epochs: list[dict[str, Any]]
    ranks: list[dict[str, Any]] = field(default_factory=list)

    @property
    def score(self) -> float:
        """The quality on test data; `Workload` says which."""
        found: float = self.ranks[0]["score"]
        return found

    @property
    def bit_identical(self) -> bool:
        return len({rank["digest"] for rank in self.ranks}) == 1

    @property
    def digest(self) -> str:
        found: str = self.ranks[0]["digest"]
        return found

    @property
    def step_time_s(self) -> float:
        """Median over steps; the first, which sets up buckets and shards, is excluded."""
        found: float = statistics.median(step["seconds"] for step in self.steps[1:])
        return found

    @property
    def samples_per_s(self) -> float:
        """Images or characters per second of training, control sums and pauses included."""
        seconds = self.steps[-1]["at_unix_s"] - self.steps[0]["at_unix_s"]
        found: float = (len(self.steps) - 1) * self.start["batch"] * self.start["ranks"] / seconds
        return found

    @property
    def wrong_elements(self) -> int:
        return sum(rank["wrong_elements"] for rank in self.ranks)

    @property
    def control_sums(self) -> int:
        return sum(rank["control_sums"] for rank in self.ranks)

    def pause_after(self, unix_s: float, within_s: float = 15.0) -> float:
        """By how much the longest step that ends within `within_s` exceeded the median."""
        times = [step["at_unix_s"] for step in self.steps]
        gaps = [(end, end - begin) for begin, end in pairwise(times)]
        usual = statistics.median(gap for _, gap in gaps)
        after = [gap for end, gap in gaps if unix_s < end <= unix_s + within_s]
        found: float = max(max(after, default=usual) - usual, 0.0)
        return found


class Training:
    """A running training: `read` returns its events since the last call."""

    def __init__(
        self, backend: str, out: Path, workload: str, epochs: int, seed: int, environment: dict[str, str]
    ) -> None:
        self.backend = backend
        self.out = out
        private.make_folder(out)
        for old in [out / "events.jsonl", *out.glob("rank-*.json")]:
            old.unlink(missing_ok=True)
        script = [str(SCRIPT), backend, str(out), "--workload", workload]
        script += ["--epochs", str(epochs), "--seed", str(seed)]
        self.workers = Workers(script, RANKS, environment, log=self.log)
        self._read_bytes = 0
        self._events: list[dict[str, Any]] = []

    @property
    def log(self) -> Path:
        return self.out / "workers.log"

    def read(self) -> list[dict[str, Any]]:
        """Events since the last call. Raises DemoError if the workers have failed."""
        code = self.workers.poll()
        fresh = self._read_events()
        self._events += fresh
        if code not in (None, 0):
            raise DemoError(f"the training on {self.backend} failed (exit code {code}):\n{self._log_tail()}")
        return fresh

    def running(self) -> bool:
        return self.workers.poll() is None

    def record(self) -> Record:
        """The results. Call it when `running` is False and `read` returns nothing more."""
        by_kind = {kind: [e for e in self._events if e["event"] == kind] for kind in ("start", "step", "epoch")}
        ranks = [json.loads((self.out / f"rank-{r}.json").read_text()) for r in range(RANKS)]
        return Record(self.backend, by_kind["start"][0], by_kind["step"], by_kind["epoch"], ranks)

    def stop(self) -> None:
        self.workers.stop()

    def _read_events(self) -> list[dict[str, Any]]:
        try:
            with (self.out / "events.jsonl").open("rb") as file:
                file.seek(self._read_bytes)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        return [json.loads(line) for line in whole.splitlines()]

    def _log_tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(["  " + line for line in lines[-25:]] + [f"  (log: {self.log}; python: {sys.executable})"])
