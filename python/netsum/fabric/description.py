"""The parts of a fabric file that the command line needs.

The controller validates the file in full (`netsum-controller --fabric FILE --check`); here only wrong names and types
are errors.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from netsum.fabric.errors import FabricError


@dataclass(frozen=True)
class Host:
    """A machine that runs workers. address: where they bind, without a port."""

    name: str
    address: str


@dataclass(frozen=True)
class Switch:
    """A switch. address: of its data socket, `address:port`. metrics: of its Prometheus page, or None."""

    name: str
    address: str
    metrics: str | None = None


@dataclass(frozen=True)
class Server:
    """A server of protocol atp on a host. address, metrics: as for a switch."""

    name: str
    address: str
    metrics: str | None = None


@dataclass(frozen=True)
class Link:
    """A cable between two named ends. rate: bit/s as the file writes it, such as "10Gbit/s"."""

    ends: tuple[str, str]
    rate: str

    @property
    def name(self) -> str:
        return f"{self.ends[0]}-{self.ends[1]}"


@dataclass(frozen=True)
class Description:
    """A fabric as its file describes it."""

    name: str
    controller: str
    hosts: tuple[Host, ...]
    switches: tuple[Switch, ...]
    links: tuple[Link, ...]
    path: Path
    servers: tuple[Server, ...] = ()
    trusted: bool = False
    """Whether everything that protects the fabric is off, as on a closed network."""

    @classmethod
    def read(cls, path: Path) -> "Description":
        """Read a fabric file. Raises FabricError, which names the file and the entry."""
        path = path.absolute()
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise FabricError(
                f"{path}: no such file; docs/operations.md says how to write one; `netsum demo` needs none"
            ) from None
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise FabricError(f"{path}: cannot be read as TOML: {getattr(error, 'strerror', error)}") from error
        return _parse(data, path)

    @property
    def aggregators(self) -> tuple[Switch | Server, ...]:
        """Switches and servers: every aggregating process."""
        return (*self.switches, *self.servers)

    def neighbours(self, name: str) -> list[str]:
        """Names of the neighbours of `name`, in file order."""
        return [b if a == name else a for link in self.links for a, b in [link.ends] if name in (a, b)]


def parts(description: Description) -> str:
    """A summary such as "4 switches, 2 servers"."""
    counts = {"switch": len(description.switches), "server": len(description.servers)}
    return ", ".join(counted(count, name) for name, count in counts.items() if count or name == "switch")


def counted(count: int, name: str) -> str:
    """ "1 switch", "4 switches"."""
    return f"{count} {name}{'' if count == 1 else 'es' if name.endswith('ch') else 's'}"


def _parse(data: dict[str, Any], path: Path) -> Description:
    hosts = tuple(
        Host(_text(h, "name", path, f"host {i}"), _text(h, "address", path, f"host {i}"))
        for i, h in enumerate(_tables(data, "host", path))
    )
    switches = tuple(
        Switch(_text(s, "name", path, f"switch {i}"), _text(s, "address", path, f"switch {i}"), s.get("metrics"))
        for i, s in enumerate(_tables(data, "switch", path))
    )
    servers = tuple(
        Server(_text(s, "name", path, f"server {i}"), _text(s, "address", path, f"server {i}"), s.get("metrics"))
        for i, s in enumerate(_tables(data, "server", path))
    )
    links = tuple(_link(link, path, i) for i, link in enumerate(_tables(data, "link", path)))
    name = _text(data, "name", path, "the file")
    if not all(c.isalnum() or c in "-_" for c in name):
        raise FabricError(f"{path}: name '{name}' names a folder: use letters, digits, '-' and '_' only")
    trusted = data.get("trusted", False)
    if not isinstance(trusted, bool):
        raise FabricError(f"{path}: trusted is true or false")
    controller = _text(data, "controller", path, "the file")
    return Description(name, controller, hosts, switches, links, path, servers, trusted)


def _tables(data: dict[str, Any], key: str, path: Path) -> list[dict[str, Any]]:
    tables = data.get(key, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise FabricError(f"{path}: '{key}' must be written as tables, each under [[{key}]]")
    return tables


def _text(table: dict[str, Any], key: str, path: Path, what: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value:
        raise FabricError(f'{path}: {what} needs {key} = "…"')
    return value


def _link(table: dict[str, Any], path: Path, index: int) -> Link:
    ends = table.get("ends")
    if not isinstance(ends, list) or len(ends) != 2 or not all(isinstance(end, str) for end in ends):
        raise FabricError(f'{path}: link {index} needs ends = ["one", "other"]')
    return Link((ends[0], ends[1]), str(table.get("rate", "")))
