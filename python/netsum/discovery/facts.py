"""What a machine says of itself: plain types, as JSON between machines."""

from dataclasses import dataclass, field
from typing import Any

from netsum.fabric.errors import FabricError

TEXT_MAX = 256
LIST_MAX = 4096
STATES = ("up", "no carrier", "disabled")
"""Bounds of what another machine may answer."""


@dataclass(frozen=True)
class Neighbour:
    """Who LLDP says is at the other end of a cable: its name, and its interface."""

    machine: str
    port: str


@dataclass(frozen=True)
class Interface:
    """state: one of STATES. rate_bps: of the link, or of a shaper on it if that is lower; None: unknown."""

    name: str
    state: str
    mtu: int
    rate_bps: int | None
    addresses: tuple[str, ...]
    neighbour: Neighbour | None


@dataclass(frozen=True)
class Machine:
    """own: addresses of the machine as a whole (of its loopback interface, 127.0.0.0/8 excepted)."""

    name: str
    forwards: bool
    own: tuple[str, ...]
    interfaces: tuple[Interface, ...]


@dataclass(frozen=True)
class Hop:
    """A machine on a path: the address from which it answered, and the ECN bits with which the probe came to it."""

    address: str
    ecn: int


@dataclass(frozen=True)
class Trace:
    """The way of one flow's probes. hops: in order; None: no answer."""

    destination: str
    hops: tuple[Hop | None, ...] = field(default=())


def machine_of(answer: Any, where: str) -> Machine:
    """A machine from its JSON. Raises FabricError, which names `where` it came from."""
    read = _Reader(where)
    table = read.table(answer, "the answer")
    interfaces = tuple(_interface(read, each) for each in read.items(table, "interfaces"))
    own = tuple(read.word(each, "own") for each in read.items(table, "own"))
    return Machine(read.text(table, "name"), read.flag(table, "forwards"), own, interfaces)


def traces_of(answer: Any, where: str) -> list[Trace]:
    """Traces from their JSON. Raises FabricError."""
    read = _Reader(where)
    return [
        Trace(
            read.text(read.table(each, "a trace"), "destination"),
            tuple(
                None if hop is None else Hop(read.text(hop, "address"), read.number(hop, "ecn"))
                for hop in read.items(each, "hops")
            ),
        )
        for each in read.items(read.table(answer, "the answer"), "traces")
    ]


def _interface(read: "_Reader", answer: Any) -> Interface:
    table = read.table(answer, "an interface")
    neighbour = table.get("neighbour")
    rate = table.get("rate_bps")
    return Interface(
        read.text(table, "name"),
        read.one_of(STATES, table, "state"),
        read.number(table, "mtu"),
        None if rate is None else read.number(table, "rate_bps"),
        tuple(read.word(each, "addresses") for each in read.items(table, "addresses")),
        None if neighbour is None else Neighbour(read.text(neighbour, "machine"), read.text(neighbour, "port")),
    )


class _Reader:
    """Takes values of the expected types out of JSON; other ones are errors that name the place."""

    def __init__(self, where: str) -> None:
        self.where = where

    def table(self, value: Any, what: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise FabricError(f"{self.where}: {what} is not an object of JSON")
        return value

    def items(self, table: Any, key: str) -> list[Any]:
        value = self.table(table, key).get(key)
        if not isinstance(value, list) or len(value) > LIST_MAX:
            raise FabricError(f"{self.where}: {key} is not a list of at most {LIST_MAX}")
        return value

    def text(self, table: Any, key: str) -> str:
        return self.word(self.table(table, key).get(key), key)

    def word(self, value: Any, key: str) -> str:
        if not isinstance(value, str) or not 0 < len(value) <= TEXT_MAX or not value.isprintable():
            raise FabricError(f"{self.where}: {key} is not a text of 1 to {TEXT_MAX} printable characters")
        return value

    def one_of(self, words: tuple[str, ...], table: Any, key: str) -> str:
        value = self.text(table, key)
        if value not in words:
            raise FabricError(f"{self.where}: {key} is none of {', '.join(words)}")
        return value

    def number(self, table: Any, key: str) -> int:
        value = self.table(table, key).get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
            raise FabricError(f"{self.where}: {key} is not a number")
        return value

    def flag(self, table: Any, key: str) -> bool:
        value = self.table(table, key).get(key)
        if not isinstance(value, bool):
            raise FabricError(f"{self.where}: {key} is not true or false")
        return value
