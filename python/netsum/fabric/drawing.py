"""A fabric before it is a file: nodes and links that were found somewhere, and how they are written."""

import json
import re
from dataclasses import dataclass, field

SWITCH_PORT = 7701
_UNITS = {"bit/s": 1, "kbit/s": 10**3, "mbit/s": 10**6, "gbit/s": 10**9, "tbit/s": 10**12}
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?bit/s)", re.IGNORECASE)
MEMORY = "64MiB"
"""Of a switch, unless something better is known: the default of `netsum-switch --memory`."""


@dataclass(frozen=True)
class DrawnNode:
    """kind: "host" or "switch". address: IP without a port. memory: of a switch."""

    name: str
    kind: str
    address: str
    memory: str = MEMORY


@dataclass(frozen=True)
class DrawnLink:
    """rate: as the fabric file writes it, such as "10Gbit/s"."""

    ends: tuple[str, str]
    rate: str


@dataclass
class Drawing:
    """A fabric; `toml` is its file."""

    name: str
    controller: str
    nodes: list[DrawnNode] = field(default_factory=list)
    links: list[DrawnLink] = field(default_factory=list)

    def toml(self, comment: str = "") -> str:
        """The fabric file: nodes and links in the order of this drawing."""
        lines = [f"# {line}" for line in comment.splitlines()]
        lines += [f"name = {_text(self.name)}", f"controller = {_text(self.controller)}"]
        for node in self.nodes:
            lines += ["", f"[[{node.kind}]]", f"name = {_text(node.name)}"]
            if node.kind == "host":
                lines += [f"address = {_text(node.address)}"]
            else:
                host = f"[{node.address}]" if ":" in node.address else node.address
                lines += [f"address = {_text(f'{host}:{SWITCH_PORT}')}", f"memory = {_text(node.memory)}"]
        for link in self.links:
            ends = ", ".join(_text(end) for end in link.ends)
            lines += ["", "[[link]]", f"ends = [{ends}]", f"rate = {_text(link.rate)}"]
        return "\n".join(lines) + "\n"


def rate_text(bits_per_s: int) -> str:
    """A rate as a fabric file writes it, in the largest unit that keeps it whole."""
    for unit, size in (("Gbit/s", 10**9), ("Mbit/s", 10**6), ("kbit/s", 10**3)):
        if bits_per_s >= size and bits_per_s % size == 0:
            return f"{bits_per_s // size}{unit}"
    return f"{bits_per_s}bit/s"


def parse_rate(text: str) -> int | None:
    """Bits per second of what a fabric file has as a rate; None for another form."""
    found = _RATE.fullmatch(text.strip())
    return round(float(found[1]) * _UNITS[found[2].lower()]) if found else None


def _text(value: str) -> str:
    """A basic string of TOML: JSON's escapes are among TOML's."""
    return json.dumps(value, ensure_ascii=False)
