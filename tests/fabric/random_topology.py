"""Random networks of namespaces with lldpd in each, for discovery: hosts below switches, which are joined at random."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import random
import shutil
import subprocess
import tempfile
import time

from namespaces import GUARD_S, Namespaces, namespace, run

PROGRAMS = ("ip", "tc", "lldpd", "lldpcli")
RATES_MBPS = (100, 250, 400, 1000)
MTU = 1500


def why_not() -> str | None:
    """Why discovery cannot be tried here, or None."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    return f"needs {' and '.join(missing)} (make setup-discovery)" if missing else None


def why_no_ecn() -> str | None:
    """Why no machine can clear ECN bits here, or None."""
    return None if shutil.which("iptables") else "needs iptables (make setup-loss)"


@dataclasses.dataclass(frozen=True)
class Cable:
    """A veth pair; each end's device is called after its own number."""

    a: str
    b: str
    device_a: str
    device_b: str
    rate_mbps: int


class RandomTopology(Namespaces):
    """Drawn from a seed; a context manager. Each machine has an address of its own, and routes by the fewest hops."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self.switches = [f"s{i}" for i in range(chance.randint(1, 5))]
        self.hosts = [f"h{i}" for i in range(chance.randint(2, 5))]
        pairs = [(switch, chance.choice(self.switches[:i])) for i, switch in enumerate(self.switches) if i]
        # Some links more than a tree has; never two between the same machines.
        for _ in range(chance.randint(0, len(self.switches))):
            pair = tuple(chance.sample(self.switches, 2)) if len(self.switches) > 1 else None
            if pair and pair not in pairs and pair[::-1] not in pairs:
                pairs.append(pair)
        pairs += [(host, chance.choice(self.switches)) for host in self.hosts]
        chance.shuffle(pairs)
        ports = dict.fromkeys([*self.switches, *self.hosts], 0)
        self.cables = []
        for a, b in pairs:
            devices = []
            for end in (a, b):
                devices.append(f"p{ports[end]}")
                ports[end] += 1
            self.cables.append(Cable(a, b, *devices, chance.choice(RATES_MBPS)))
        self.address = {node: f"10.78.{number // 200}.{number % 200 + 1}" for number, node in enumerate(ports)}
        self.swapped = False
        self._numbers = itertools.count(1000)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="netsum-lldp-"))
        self.folder.chmod(0o755)

    def __exit__(self, *_: object) -> None:
        super().__exit__(*_)
        shutil.rmtree(self.folder)

    @property
    def via(self) -> str:
        """The command that runs another on machine {}."""
        return f"ip netns exec {namespace('{}')}"

    @property
    def lldp_socket(self) -> str:
        return f"{self.folder}/{{}}.sock"

    def _build(self) -> None:
        for node in self.address:
            run("ip", "netns", "add", namespace(node))
            inside = self.inside(node)
            run(*inside, "ip", "link", "set", "lo", "up")
            run(*inside, "ip", "address", "add", f"{self.address[node]}/32", "dev", "lo")
            forwards = int(node in self.switches)
            settings = [f"net.ipv4.ip_forward={forwards}", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.icmp_ratelimit=0"]
            run(*inside, "sysctl", "-qw", *settings, "net.ipv6.conf.all.disable_ipv6=1")
        for cable in self.cables:
            ends = ((cable.a, cable.device_a), (cable.b, cable.device_b))
            self._connect(*ends)
            for node, device in ends:
                self.shape(node, device, cable.rate_mbps)
        self.restore_routes()
        self.listen()

    def shape(self, node: str, device: str, rate_mbps: int) -> None:
        bucket = ("tbf", "rate", f"{rate_mbps}mbit", "burst", "20000", "limit", "300000")
        run(*self.inside(node), "tc", "qdisc", "replace", "dev", device, "root", *bucket)

    def two_host_cables(self) -> tuple[Cable, Cable]:
        """Cables of two hosts to different switches."""
        below = [cable for cable in self.cables if {cable.a, cable.b} & set(self.hosts)]
        for first in below:
            for second in below:
                if len({first.a, first.b, second.a, second.b}) == 4:
                    return first, second
        raise ValueError("all hosts are at one switch")

    def swap(self, first: Cable, second: Cable) -> None:
        """Exchange the switches' ends of two hosts' cables: each host's interface keeps its name, each port, too."""
        ends = []
        for cable in (first, second):
            host, port = ((cable.a, cable.device_a), (cable.b, cable.device_b))
            ends.append((host, port) if cable.a in self.hosts else (port, host))
        is_swapped = self.swapped
        (host_1, port_1), (host_2, port_2) = ends
        for node, device in (host_1, host_2):
            run(*self.inside(node), "ip", "link", "del", device)
        pairs = [(host_1, port_1), (host_2, port_2)] if is_swapped else [(host_1, port_2), (host_2, port_1)]
        rates = {host_1: first.rate_mbps, host_2: second.rate_mbps}
        for host, port in pairs:
            self._connect(host, port)
            for node, device in (host, port):
                self.shape(node, device, rates[host])
        self.swapped = not is_swapped
        if is_swapped:
            self.restore_routes()
        self.wait_heard(pairs)

    def _connect(self, one: tuple[str, str], other: tuple[str, str]) -> None:
        """Lay a cable between two (machine, device).

        lldpd takes the number of a device's peer, which is of another namespace, for one of its own: no number is
        given twice.
        """
        first, second = next(self._numbers), next(self._numbers)
        peer = ("type", "veth", "peer", "name", other[1], "index", str(second), "netns", namespace(other[0]))
        run("ip", "link", "add", one[1], "index", str(first), "netns", namespace(one[0]), *peer)
        for node, device in (one, other):
            run(*self.inside(node), "ip", "link", "set", device, "up")

    def listen(self) -> None:
        """Start lldpd everywhere, and wait until it has heard everybody."""
        for node in self.address:
            socket, settings = self.folder / f"{node}.sock", self.folder / f"{node}.conf"
            # From a file that lldpd reads before it sends: all machines share the kernel's name until then, and an
            # lldpd that is told something while it starts may stay silent.
            words = (f"system hostname {node}", "lldp tx-interval 1", "lldp portidsubtype ifname")
            settings.write_text("".join(f"configure {each}\n" for each in words))
            # It writes into /run, which is the machine's: each has one of its own.
            own = f"mount -t tmpfs tmpfs /run && mkdir /run/lldpd && exec lldpd -d -u {socket} -O {settings}"
            log = open(self.folder / f"{node}.log", "wb")
            subprocess.Popen([*self.inside(node), "sh", "-c", own], stdout=log, stderr=log)
        for node in self.address:
            self._wait_started(node)
        self.wait_heard()

    def wait_heard(self, ends: list[tuple[tuple[str, str], tuple[str, str]]] | None = None) -> None:
        """Until lldpd hears the machine and interface at the other end of each of these cables, of all if None.

        It remembers for a while what was there before, names that machines had before theirs included.
        """
        if ends is None:
            ends = [((cable.a, cable.device_a), (cable.b, cable.device_b)) for cable in self.cables]
        wanted: dict[str, dict[str, str]] = {}
        for one, other in [*ends, *((other, one) for one, other in ends)]:
            wanted.setdefault(one[0], {})[one[1]] = " ".join(other)
        deadline = time.monotonic() + GUARD_S
        for node, neighbours in wanted.items():
            while not neighbours.items() <= (heard := self._heard(node)).items():
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{node} hears {heard}, not {neighbours}")
                time.sleep(0.1)

    def _heard(self, node: str) -> dict[str, str]:
        """By interface the other end: "MACHINE INTERFACE"."""
        listed = self._lldpcli(node, "-f", "keyvalue", "show", "neighbors")
        values = dict(line.split("=", 1) for line in listed.splitlines() if "=" in line)
        names = {key.split(".")[1]: value for key, value in values.items() if key.endswith(".chassis.name")}
        return {device: f"{name} {values.get(f'lldp.{device}.port.ifname')}" for device, name in names.items()}

    def _wait_started(self, node: str) -> None:
        deadline = time.monotonic() + GUARD_S
        while not (self.folder / f"{node}.sock").is_socket():
            if time.monotonic() > deadline:
                raise RuntimeError(f"lldpd does not start: {(self.folder / f'{node}.log').read_text()}")
            time.sleep(0.05)

    def _lldpcli(self, node: str, *words: str) -> str:
        return run(*self.inside(node), "lldpcli", "-u", str(self.folder / f"{node}.sock"), *words)

    def restore_routes(self) -> None:
        """Routes by the fewest hops; those that were lost with a link, too."""
        ways = {node: {} for node in self.address}
        for cable in self.cables:
            ways[cable.a].setdefault(cable.b, cable.device_a)
            ways[cable.b].setdefault(cable.a, cable.device_b)
        for target in self.address:
            # From the target outwards: each machine's next hop is the one that it was found from.
            found, waiting = {target}, [target]
            while waiting:
                here = waiting.pop(0)
                for node in sorted(ways[here]):
                    if node in found:
                        continue
                    found.add(node)
                    if node in self.switches:
                        waiting.append(node)
                    via = ("via", self.address[here], "dev", ways[node][here], "onlink", "src", self.address[node])
                    run(*self.inside(node), "ip", "route", "replace", self.address[target], *via)
