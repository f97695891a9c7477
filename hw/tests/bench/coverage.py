"""Functional coverage: events by state, counted at the device's own decisions, and events observed on the lines.

Benches count into a file; `hw/tests/test_hdl.py` adds the files up, prints the table, and fails if a bin is empty.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from .registers import DROPS

PHASES = ("none", "filling", "sent up", "summed")
KINDS = ("contribution", "partial", "result")
OUTCOMES = tuple(DROPS)
NET, CHIP = "net", "sw"

DECISIONS = [
    *((kind, state, outcome) for kind in ("contribution", "partial") for state, outcome in (
        ("none", "contribution"), ("filling", "contribution"), ("filling", "released"), ("filling", "duplicate"),
        ("filling", "waiting"),
    )),
    ("contribution", "none", "released"), ("contribution", "filling", "mismatch_told"),
    ("contribution", "sent up", "duplicate"), ("contribution", "sent up", "answered"),
    ("contribution", "summed", "duplicate"), ("contribution", "summed", "answered"),
    ("result", "none", "unexpected"), ("result", "filling", "unexpected"), ("result", "sent up", "result"),
    ("result", "sent up", "mismatch"), ("result", "summed", "duplicate"),
]  # fmt: skip
"""The bins of the protocol's table: kind of packet, state of its slot, outcome."""

REFUSALS = [name for name in OUTCOMES if OUTCOMES.index(name) >= OUTCOMES.index("too_old")]
LINES = [
    *(f"{line}: {what}" for line in ("net in", "sw in") for what in ("stalled", "idle within a frame", "back to back")),
    *(f"{line}: {what}" for line in ("net out", "sw out") for what in ("stalled", "back to back")),
]
CASES = [
    "frame: runt", "frame: jumbo", "frame: jumbo with a sum's header", "frame: smallest sum", "frame: largest sum",
    "frame: one bit from a sum",
    "sum: odd float32", "sum: even float32", "sum: odd bfloat16", "sum: even bfloat16", "members: one",
    "members: sparse", "members: all", "jobs in opposite order", "fin passed on", "order left out",
    "queue full: answer left out", "sum waits for room", "CE",
]  # fmt: skip

BINS = [
    *(f"{kind} / {state}: {outcome}" for kind, state, outcome in DECISIONS),
    *(f"refused: {name}" for name in REFUSALS),
    *LINES,
    *CASES,
]


class Coverage:
    """Counts of one run, added to a file at the end."""

    def __init__(self, dut):
        self.counts: Counter[str] = Counter()
        self.control, self.engine = dut.core.mind, dut.core.engine

    def hit(self, name: str) -> None:
        """Count a case produced by a bench."""
        assert name in BINS, name
        self.counts[name] += 1

    def sample(self) -> None:
        """Sample the device at a clock edge."""
        engine, control = self.engine, self.control
        fetch = int(engine.fetch.value)
        if fetch == 4 and not int(engine.clear.value):
            self.counts["sum waits for room"] += 1
        if (fetch == 3 and int(engine.vid.value) & 255 != int(engine.next_vid.value)) or (
            fetch and int(engine.begins_i.value) and int(engine.begins_slot_i.value) == int(engine.next_slot.value)
        ):
            self.counts["order left out"] += 1
        if not int(control.act.value):
            return
        outcome = OUTCOMES[int(control.outcome.value)]
        if outcome in REFUSALS:
            self.counts[f"refused: {outcome}"] += 1
            return
        kind = KINDS[int(control.h_kind.value)]
        state = PHASES[int(control.q_phase.value)] if int(control.known.value) else "none"
        self.counts[f"{kind} / {state}: {outcome}"] += 1
        if outcome == "answered" and not int(control.few.value):
            self.counts["queue full: answer left out"] += 1
        if int(control.take.value):
            parity = "odd" if int(control.h_n_elems.value) & 1 else "even"
            self.counts[f"sum: {parity} {'bfloat16' if int(control.h_bf16.value) else 'float32'}"] += 1
            self.counts["CE"] += int(control.ce.value)
            members = int(control.members.value)
            count, ports = members.bit_count(), len(control.members)
            where = "all" if count == ports else "one" if count == 1 else "sparse"
            self.counts[f"members: {where}"] += 1

    def save(self, name: str) -> None:
        """Adds to the run's file."""
        path = Path(f"coverage-{name}.json")
        path.write_text(json.dumps(self.counts))


def table(folders: list[Path]) -> tuple[str, list[str]]:
    """All counts of several runs as a table, and the empty bins."""
    counts: Counter[str] = Counter()
    for folder in folders:
        for path in folder.glob("coverage-*.json"):
            counts.update(json.loads(path.read_text()))
    strange = sorted(set(counts) - set(BINS))
    assert not strange, f"what the table does not know: {strange}"
    lines = ["| bin | hits |", "|---|---|", *(f"| {name} | {counts[name]} |" for name in BINS)]
    return "\n".join(lines), [name for name in BINS if not counts[name]]
