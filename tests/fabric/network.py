"""A leaf-spine network of namespaces, with every link shaped.

Hosts have one link to their rack, racks one link to each spine. Host h of rack r is 10.77.r.h+1, rack r is
10.77.r.254, spine s is 10.77.100.s+1. Traffic between racks takes the spines by a hash of the flow (ECMP).
"""

from __future__ import annotations

import array
import dataclasses
import fcntl
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import tempfile

from namespaces import Namespaces, namespace, run

SIOCETHTOOL, ETHTOOL_SGRO = 0x8946, 0x2C
BURST_BYTES = 20_000
FAIR_CLASSES, FIRST_FAIR_CLASS = 128, 0x10
QUEUE_BYTES = 3_000_000
WIRES = "wires"
"""The namespace of a process that delays frames, if links have delays."""
DELAY_LINE = pathlib.Path(__file__).resolve().parents[2] / "target/release/examples/delay_line"
"""For kernels without netem: `cargo build --release -p netsum-net --example delay_line`."""


def why_not() -> str | None:
    """Why this machine cannot run such a network, or None."""
    if os.geteuid() != 0:
        return "needs root (network namespaces)"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"needs {' and '.join(missing)} (Debian: iproute2)"
    probe = subprocess.run(["ip", "netns", "add", namespace("probe")], capture_output=True, text=True)
    if probe.returncode != 0:
        return f"the kernel refuses network namespaces: {probe.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", namespace("probe")], check=True)
    return None


def why_no_loss() -> str | None:
    """Why packets cannot be dropped here, or None."""
    return None if shutil.which("iptables") else "needs iptables (make setup-loss)"


def why_no_marks() -> str | None:
    """Why there are no programs for packets here, which mark or give each flow a queue, or None."""
    if shutil.which("clang") is None or not pathlib.Path("/usr/include/bpf/bpf_helpers.h").exists():
        return "needs clang and libbpf's headers (make setup-xdp)"
    return None


def join_on_receipt(devices: list[str]) -> None:
    """Enable generic receive offload, in the current namespace."""
    value = array.array("I", [ETHTOOL_SGRO, 1])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for device in devices:
            request = struct.pack("16sP16x", device.encode(), value.buffer_info()[0])
            fcntl.ioctl(any_socket, SIOCETHTOOL, request)


def _compiled(name: str, given: dict[str, int]) -> str:
    """The object file of a BPF program for these constants."""
    folder = pathlib.Path(tempfile.gettempdir())
    target = folder / f"netsum-{'-'.join([name, *(str(value) for value in given.values())])}.o"
    source = pathlib.Path(__file__).with_name(f"{name}.bpf.c")
    include = subprocess.check_output(["gcc", "-print-multiarch"], text=True).strip()
    defines = [f"-D{constant}={value}ULL" for constant, value in given.items()]
    headers = f"-I/usr/include/{include}"
    # Another run may read or write the same file concurrently.
    own = f"{target}.{os.getpid()}"
    run("clang", "-O2", "-g", "-target", "bpf", headers, *defines, "-c", str(source), "-o", own)
    os.replace(own, target)
    return str(target)


@dataclasses.dataclass(frozen=True)
class Link:
    """One veth pair; its ends are named after the node at the other end."""

    a: str
    b: str
    rate_bps: int


class Network(Namespaces):
    """`racks` × `hosts_per_rack` hosts below `spines` spines; use as a context manager."""

    def __init__(
        self,
        racks: int,
        hosts_per_rack: int,
        spines: int,
        rate_bps: int,
        uplink_bps: int | None = None,
        mtu: int = 1500,
        queue_bytes: int = QUEUE_BYTES,
        trains: bool = True,
        mark_bytes: int | None = None,
        delay_us: int = 0,
        fair_hosts: bool = False,
    ):
        """trains: whether a burst of datagrams may pass a node as one; False: each is dropped independently.
        mark_bytes: packets that find a longer queue are marked (ECN), and TCP reacts to marks; None: queues drop and do
        not mark. delay_us: added by every link, each way. fair_hosts: a queue per flow in hosts in place of one for
        all, as with fq_codel, the default of most distributions."""
        self.racks = [f"rack{r}" for r in range(racks)]
        self.spines = [f"spine{s}" for s in range(spines)]
        self.hosts = [f"h{r * hosts_per_rack + i}" for r in range(racks) for i in range(hosts_per_rack)]
        self.rack_of = {h: f"rack{i // hosts_per_rack}" for i, h in enumerate(self.hosts)}
        self.rate_bps, self.mtu, self.queue_bytes, self.trains = rate_bps, mtu, queue_bytes, trains
        self.mark_bytes, self.delay_us, self.fair_hosts = mark_bytes, delay_us, fair_hosts
        uplink = uplink_bps or rate_bps
        self.links = [Link(h, self.rack_of[h], rate_bps) for h in self.hosts]
        self.links += [Link(rack, spine, uplink) for rack in self.racks for spine in self.spines]
        self.address = {f"rack{r}": f"10.77.{r}.254" for r in range(racks)}
        self.address |= {f"spine{s}": f"10.77.100.{s + 1}" for s in range(spines)}
        for i, host in enumerate(self.hosts):
            self.address[host] = f"10.77.{i // hosts_per_rack}.{i % hosts_per_rack + 1}"

    def _build(self) -> None:
        for node in self.address:
            self._add_node(node)
        if self.delay_us:
            run("ip", "netns", "add", namespace(WIRES))
        for number, link in enumerate(self.links):
            self._add_link(number, link)
        if self.delay_us:
            self._lay_wires()
        self._add_routes()

    def neighbours(self, node: str) -> list[str]:
        """Neighbours of a node; its devices have their names."""
        ends = [(link.a, link.b) for link in self.links] + [(link.b, link.a) for link in self.links]
        return [peer for own, peer in ends if own == node]

    def take_from_hooks(self) -> None:
        """Let devices receive what programs in the hook of the other end send, as by `ethtool -K DEV gro on`."""
        code = "import sys; sys.path.insert(0, sys.argv[1]); import network; network.join_on_receipt(sys.argv[2:])"
        here = str(pathlib.Path(__file__).parent)
        for node in self.address:
            run(*self.inside(node), sys.executable, "-c", code, here, *self.neighbours(node))

    def link_bytes(self) -> dict[str, int]:
        """Bytes sent so far in each direction: `h0>rack0` and so on, Ethernet headers included."""
        sent = {}
        for link in self.links:
            for node, peer in ((link.a, link.b), (link.b, link.a)):
                path = f"/sys/class/net/{peer}/statistics/tx_bytes"
                sent[f"{node}>{peer}"] = int(run(*self.inside(node), "cat", path))
        return sent

    def lose(self, share: float) -> None:
        """Drop this share of the UDP packets that arrive at each node; 0 ends it."""
        for node in self.address:
            inside = self.inside(node)
            if why_no_loss() is None:
                run(*inside, "iptables", "-F")
            if share:
                rule = ("-m", "statistic", "--mode", "random", "--probability", str(share), "-j", "DROP")
                run(*inside, "iptables", "-A", "INPUT", "-p", "udp", *rule)

    def _add_node(self, node: str) -> None:
        run("ip", "netns", "add", namespace(node))
        inside = self.inside(node)
        run(*inside, "ip", "link", "set", "lo", "up")
        if node not in self.rack_of:
            run(*inside, "ip", "address", "add", f"{self.address[node]}/32", "dev", "lo")
        for setting in ("ipv4.ip_forward=1", "ipv4.fib_multipath_hash_policy=1", "ipv4.conf.all.rp_filter=0"):
            run(*inside, "sysctl", "-qw", f"net.{setting}")
        if self.mark_bytes is not None:
            run(*inside, "sysctl", "-qw", "net.ipv4.tcp_ecn=1")
        # Gloo takes the first address of an interface, and link-local ones do not cross a router.
        run(*inside, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1")

    def _add_link(self, number: int, link: Link) -> None:
        if self.delay_us:
            self._add_pair(link.b, namespace(link.a), f"w{number}a", namespace(WIRES))
            self._add_pair(link.a, namespace(link.b), f"w{number}b", namespace(WIRES))
        else:
            self._add_pair(link.b, namespace(link.a), link.a, namespace(link.b))
        for node, peer in ((link.a, link.b), (link.b, link.a)):
            run(*self.inside(node), "ip", "link", "set", peer, "up")
            if not self.trains:
                run(*self.inside(node), "ip", "link", "set", peer, "gso_max_segs", "1")
            if self.fair_hosts and node in self.rack_of:
                self._add_fair_queues(node, peer, link.rate_bps)
            else:
                run(
                    *self.inside(node),
                    *("tc", "qdisc", "add", "dev", peer, "root", "tbf", "rate", f"{link.rate_bps}bit"),
                    *("burst", str(BURST_BYTES), "limit", str(self.queue_bytes)),
                )
            if self.mark_bytes is not None:
                run(*self.inside(node), "tc", "qdisc", "add", "dev", peer, "clsact")
                program = ("bpf", "direct-action", "obj", self._marker(link.rate_bps), "sec", "classifier")
                run(*self.inside(node), "tc", "filter", "add", "dev", peer, "egress", *program)

    def _add_fair_queues(self, node: str, peer: str, rate_bps: int) -> None:
        """A token bucket with classes that take turns: a flow waits in one of them."""
        bucket = f"rate {rate_bps}bit ceil {rate_bps}bit burst {BURST_BYTES} quantum {self.mtu + 14}"
        share = f"rate {rate_bps // FAIR_CLASSES}bit ceil {rate_bps}bit quantum {self.mtu + 14}"
        lines = [
            f"qdisc add dev {peer} root handle 1: htb",
            f"class add dev {peer} parent 1: classid 1:1 htb {bucket}",
        ]
        for number in range(FAIR_CLASSES):
            leaf = f"1:{FIRST_FAIR_CLASS + number:x}"
            lines.append(f"class add dev {peer} parent 1:1 classid {leaf} htb {share}")
            lines.append(f"qdisc add dev {peer} parent {leaf} bfifo limit {self.queue_bytes}")
        given = {"CLASSES": FAIR_CLASSES, "FIRST_CLASS": 0x10000 + FIRST_FAIR_CLASS}
        lines.append(f"filter add dev {peer} parent 1: bpf obj {_compiled('fair', given)} sec classifier")
        batch = subprocess.run([*self.inside(node), "tc", "-batch", "-"], input="\n".join(lines), text=True)
        if batch.returncode != 0:
            raise RuntimeError(f"tc refuses a queue per flow for {node}")

    def _add_pair(self, a: str, inside_a: str, b: str, inside_b: str) -> None:
        mtu = ("mtu", str(self.mtu))
        one = ("ip", "link", "add", a, *mtu, "netns", inside_a, "type", "veth")
        run(*one, "peer", "name", b, *mtu, "netns", inside_b)

    def _lay_wires(self) -> None:
        """Start the process that forwards frames between the two pairs of each link; it ends with the namespaces."""
        wires = [f"w{number}a-w{number}b" for number in range(len(self.links))]
        for end in (end for wire in wires for end in wire.split("-")):
            run(*self.inside(WIRES), "ip", "link", "set", end, "up")
        words = [*self.inside(WIRES), "nice", "-n", "-10", str(DELAY_LINE), str(self.delay_us), *wires]
        self.carrier = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        if self.carrier.stdout.readline() != "ready\n":
            raise RuntimeError("the wires cannot be laid: " + " ".join(words))

    def _marker(self, rate_bps: int) -> str:
        """The object file of the marking program for a link of that rate."""
        given = {"BYTES_PER_S": rate_bps // 8, "MARK_BYTES": self.mark_bytes, "LIMIT_BYTES": self.queue_bytes}
        return _compiled("marker", given)

    def _add_routes(self) -> None:
        for host, rack in self.rack_of.items():
            run(*self.inside(host), "ip", "address", "add", f"{self.address[host]}/32", "dev", rack)
            self._route(host, "10.77.0.0/16", rack)
            run(*self.inside(rack), "ip", "route", "add", self.address[host], "dev", host)
        for rack in self.racks:
            hops = [w for s in self.spines for w in ("nexthop", "via", self.address[s], "dev", s, "onlink")]
            source = ("src", self.address[rack])
            run(*self.inside(rack), "ip", "route", "add", "10.77.0.0/16", *source, *hops)
            subnet = self.address[rack].rsplit(".", 1)[0] + ".0/24"
            for spine in self.spines:
                self._route(rack, self.address[spine], spine)
                self._route(spine, subnet, rack)
        # The controller is at the first spine; the others reach it through a rack.
        for spine in self.spines[1:]:
            self._route(spine, self.address[self.spines[0]], self.racks[0])
            self._route(self.spines[0], self.address[spine], self.racks[0])

    def _route(self, node: str, destination: str, peer: str) -> None:
        via = ("via", self.address[peer], "dev", peer, "onlink", "src", self.address[node])
        run(*self.inside(node), "ip", "route", "add", destination, *via)
