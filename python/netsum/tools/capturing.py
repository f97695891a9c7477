"""Captures of packets of sums, by Wireshark's dumpcap.

dumpcap needs the right to capture only for itself, the kernel drops what is not asked for before it is copied, and the
daemons do nothing: what is not captured costs nothing.
"""

import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from netsum.tools.errors import ToolError

DUMPCAP = "dumpcap"
_BUFFER_MIB = 64
"""The kernel's buffer for packets that dumpcap has not written yet: a fifth of a second at 2.5 Gbit/s."""
_HAND_OVER_S = 0.25
"""The kernel collects packets for this time before dumpcap sees them; dumpcap drops what it has not seen at its end."""


@dataclass(frozen=True)
class Captured:
    """The end of a capture. lost: packets that came faster than they could be written."""

    file: Path
    packets: int
    lost: int


def packet_filter(addresses: Sequence[str], jobs: Sequence[int]) -> str:
    """The filter in libpcap's language: packets from or to one of `addresses` ("ip:port"; a bare port: any host), of
    one of `jobs`. Without jobs: of all."""
    ends = " or ".join(_end(address) for address in addresses)
    # All protocols have the job in bytes 4 to 7 of the payload, which is behind the 8 bytes of UDP's header.
    of_jobs = " or ".join(f"udp[12:4] = {job}" for job in jobs)
    return f"udp and ({ends})" + (f" and ({of_jobs})" if jobs else "")


def _end(address: str) -> str:
    host, _, port = address.rpartition(":")
    return f"(host {host} and port {port})" if host else f"port {port}"


class Capture:
    """A running capture into a pcapng file."""

    def __init__(self, file: Path, packet_filter: str, interface: str, limits: Sequence[str] = ()) -> None:
        """Start it, and wait until every packet that is sent from now on is captured.

        limits: dumpcap's options for the end and for what is kept, such as ("-a", "duration:10", "-s", "128"). Raises
        ToolError without dumpcap, or if it refuses.
        """
        program = shutil.which(DUMPCAP)
        if program is None:
            raise ToolError("dumpcap is missing; install Wireshark's package (wireshark-common on Debian)")
        command = [program, "-i", interface, "-f", packet_filter, "-B", str(_BUFFER_MIB), "-w", str(file), *limits]
        self._file = file
        self._said: list[str] = []
        # Ctrl-C is for this process, which then ends the capture in order.
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        if not any(line.startswith("File: ") for line in self._lines()):
            self._process.wait()
            raise ToolError("".join(self._said).strip())

    def wait(self) -> Captured:
        """Wait until the capture ends by itself. Raises ToolError if it failed."""
        for _ in self._lines():
            pass
        said = "".join(self._said)
        counts = re.search(r"Packets received/dropped on interface .*: (\d+)/(\d+) ", said)
        if self._process.wait() != 0 or counts is None:
            raise ToolError(said.strip())
        return Captured(self._file, int(counts[1]), int(counts[2]))

    def stop(self) -> Captured:
        """End the capture, with every packet that was sent before. Raises ToolError if it failed."""
        # Twice the time, because dumpcap must also be scheduled.
        time.sleep(2 * _HAND_OVER_S)
        self._process.send_signal(signal.SIGINT)
        return self.wait()

    def _lines(self) -> Iterator[str]:
        """What dumpcap says, line by line as it comes; all of it is kept."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._said.append(line)
            yield line
