"""OpenTelemetry traces of operations and failovers, sent by OTLP if OTEL_EXPORTER_OTLP_ENDPOINT is set.

A collective is a trace in which each rank has a span, a pause of the trees another. `following` reads the groups of
this process on a thread of its own, so that calls cost what they cost without; `spans` makes spans of what it finds.
Needs `pip install netsum[traces]`.
"""

from netsum.traces.following import flush, follow

__all__ = ["flush", "follow"]
