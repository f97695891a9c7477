"""From recorded operations and pauses to spans."""

import hashlib
import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.sampling import Decision, Sampler
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from netsum.fresh import FreshOperations
from netsum.reports import GroupStats, Pause, Recorded, RecordedOperation

if TYPE_CHECKING:
    from netsum._core import Group

SCOPE = InstrumentationScope("netsum")
_RUN = ("TORCHELASTIC_RUN_ID", "NETSUM_MEETING", "MASTER_ADDR", "MASTER_PORT")
"""Tells runs without a controller apart."""


class GroupSpans:
    """The spans of one group, each given out once."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._fresh = FreshOperations()
        self._pauses = 0
        self._resource: Resource | None = None

    def fresh(self, core: "Group") -> list[ReadableSpan]:
        """What has ended since the last call; nothing before the group is connected, and after its end."""
        recorded: Recorded | None = json.loads(core.recorded()) or None
        stats: GroupStats | None = json.loads(core.stats()) or None
        if recorded is None or stats is None:
            return []
        return [*self._operations(recorded, stats), *self._failovers(recorded, stats)]

    def _operations(self, recorded: Recorded, stats: GroupStats) -> Iterator[ReadableSpan]:
        for number, operation in self._fresh.take(recorded):
            yield from self._operation(number, operation, recorded, stats)

    def _operation(
        self, number: int, operation: RecordedOperation, recorded: Recorded, stats: GroupStats
    ) -> Iterator[ReadableSpan]:
        attributes: dict[str, str | int] = {
            "netsum.operation.number": number,
            "netsum.operation.call": operation["call"],
            "netsum.operation.bytes": operation.get("bytes", 0),
        }
        name = f"netsum {operation['call'].split()[0]}"
        key = ("operation", str(number))
        seconds = operation["seconds"] or 0.0
        times = (operation["called_unix_s"], operation["called_unix_s"] + seconds)
        yield from self._span(name, key, times, attributes, operation["error"], recorded, stats)

    def _failovers(self, recorded: Recorded, stats: GroupStats) -> Iterator[ReadableSpan]:
        pauses: list[Pause] = stats["pauses"]
        for at in range(self._pauses, len(pauses)):
            pause = pauses[at]
            times = (pause["at_unix_s"], pause["at_unix_s"] + pause["seconds"])
            attributes: dict[str, str | int] = {"netsum.failover.cause": pause["what"], "netsum.epoch": stats["epoch"]}
            yield from self._span("netsum failover", ("failover", str(at)), times, attributes, None, recorded, stats)
        self._pauses = max(self._pauses, len(pauses))

    def _span(
        self,
        name: str,
        key: tuple[str, str],
        times: tuple[float, float],
        attributes: dict[str, str | int],
        error: str | None,
        recorded: Recorded,
        stats: GroupStats,
    ) -> Iterator[ReadableSpan]:
        """The span of this rank, whose parent is that of rank 0, if its trace is sampled."""
        run = [str(stats["job"])] if stats["job"] is not None else [os.environ.get(name, "") for name in _RUN]
        trace = _number(16, *run, recorded["group"], *key)
        if self._sampler.should_sample(None, trace, name).decision is not Decision.RECORD_AND_SAMPLE:
            return
        flags = TraceFlags(TraceFlags.SAMPLED)
        rank = recorded["rank"]
        own, root = (
            SpanContext(trace, _number(8, str(trace), str(each)), is_remote=each != rank, trace_flags=flags)
            for each in (rank, 0)
        )
        if self._resource is None:
            self._resource = _resource(recorded, stats)
        yield ReadableSpan(
            name,
            context=own,
            parent=root if rank else None,
            resource=self._resource,
            attributes={**attributes, "netsum.rank": rank, "netsum.group": recorded["group"]},
            kind=SpanKind.INTERNAL,
            instrumentation_scope=SCOPE,
            status=Status(StatusCode.ERROR, error) if error else Status(StatusCode.OK),
            start_time=round(times[0] * 1e9),
            end_time=round(times[1] * 1e9),
        )


def _resource(recorded: Recorded, stats: GroupStats) -> Resource:
    """Who this process is; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES come first."""
    found: dict[str, str | int] = {
        "process.pid": os.getpid(),
        "host.name": recorded["place"],
        "netsum.size": recorded["size"],
    }
    if stats["job"] is not None:
        found["netsum.job"] = stats["job"]
    given = Resource.create({})
    if "OTEL_SERVICE_NAME" not in os.environ and str(given.attributes["service.name"]).startswith("unknown_service"):
        found["service.name"] = "netsum"
    return Resource.create(found)


def _number(size: int, *parts: str) -> int:
    """A number of so many bytes, not 0, that follows from texts: all ranks make the same."""
    digest = hashlib.sha256("\0".join(parts).encode()).digest()
    return int.from_bytes(digest[:size], "big") or 1
