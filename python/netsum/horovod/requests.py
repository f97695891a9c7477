"""Messages between ranks and the coordinator, and their encoding (JSON: small, and safe to parse)."""

import json
from dataclasses import MISSING, dataclass, field
from dataclasses import fields as fields_of
from typing import Any

ALLREDUCE = "allreduce"
ALLGATHER = "allgather"
BROADCAST = "broadcast"
ALLTOALL = "alltoall"
REDUCESCATTER = "reducescatter"
BARRIER = "barrier"
JOIN = "join"
ADD_SET = "add_process_set"
REMOVE_SET = "remove_process_set"
SHUTDOWN = "shutdown"


@dataclass(frozen=True)
class Request:
    """One rank's call of an operation.

    tensors: (element type, shape) of each tensor; several form a group, which runs as one operation. op: of reductions,
    one of `netsum.communicator.OPERATIONS`. root: a global rank. splits: rows for each rank of the set, for an
    alltoall. ranks: of a set to be added; a set to be removed is given by `process_set`.
    """

    kind: str
    name: str
    process_set: int = 0
    tensors: tuple[tuple[str, tuple[int, ...]], ...] = ()
    op: str = "sum"
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = 0
    splits: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()

    def to_list(self) -> list[Any]:
        """The fields in their order, without trailing fields that have their default values."""
        fields = [getattr(self, name) for name in _FIELDS]
        while fields and fields[-1] == _DEFAULTS[len(fields) - 1]:
            fields.pop()
        return fields

    @classmethod
    def from_list(cls, fields: list[Any]) -> "Request":
        """Decode the output of `to_list`. Raises TypeError or ValueError for anything else."""
        kind, name, process_set, tensors, *rest = fields + _DEFAULTS[len(fields) :]
        tensors = tuple((dtype, tuple(shape)) for dtype, shape in tensors)
        op, prescale, postscale, root, splits, ranks = rest
        return cls(kind, name, process_set, tensors, op, prescale, postscale, root, tuple(splits), tuple(ranks))

    def to_bytes(self) -> bytes:
        return json.dumps(self.to_list()).encode()

    @classmethod
    def from_bytes(cls, message: bytes) -> "Request":
        return cls.from_list(json.loads(message))


_FIELDS = [each.name for each in fields_of(Request)]
_DEFAULTS = [None if each.default is MISSING else each.default for each in fields_of(Request)]


@dataclass(frozen=True)
class Response:
    """An operation that every member of a set runs next.

    requests: of one member that called each operation; several are allreduces that run as one. error: why all of them
    fail instead. details: data that the members need of each other: `rows` of an allgather (by tensor, by member), the
    matrix `splits` of an alltoall (by sender), the `last` rank of a join, the number of a `set`.
    """

    requests: tuple[Request, ...]
    error: str | None = None
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def first(self) -> Request:
        return self.requests[0]

    def to_list(self) -> list[Any]:
        return [[each.to_list() for each in self.requests], self.error, self.details]

    @classmethod
    def from_list(cls, fields: list[Any]) -> "Response":
        requests, error, details = fields
        return cls(tuple(map(Request.from_list, requests)), error, details)


def to_message(responses: list[Response]) -> bytes:
    return json.dumps([each.to_list() for each in responses]).encode()


def from_message(message: bytes) -> list[Response]:
    return [Response.from_list(each) for each in json.loads(message)]
