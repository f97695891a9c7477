"""`netsum capture` on a real fabric, and `netsum tools`: what Wireshark's programs see of a job."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from netsum.fabric.local import LocalFabric
from netsum.tools import dissector
from netsum.tools.capturing import Capture, packet_filter
from netsum.tools.errors import ToolError

BOUND_S = 300
"""Time limit of a command: a guard against hanging tests."""

ROOT = Path(__file__).parents[2]
DECODER = ROOT / "target" / "release" / "examples" / "decode"
"""`cargo test` builds it."""

needs_tshark = pytest.mark.skipif(shutil.which("tshark") is None, reason="no tshark; make setup-wireshark installs it")
needs_dumpcap = pytest.mark.skipif(
    shutil.which("dumpcap") is None or os.geteuid() != 0,
    reason="a capture needs root here, and dumpcap, which make setup-wireshark installs",
)


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-c", "from netsum.cli import main; main()", *map(str, arguments)]


def netsum(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess:
    ended = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=BOUND_S)
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended


def captured(file: Path, *arguments: str | Path, code: int = 0, during: tuple[str | Path, ...]) -> dict:
    """What `netsum capture` says of a capture while the command `during` runs."""
    running = subprocess.Popen(
        command("capture", file, "--interface", "lo", "--json", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert "capturing into" in running.stderr.readline()
    netsum(*during)
    running.send_signal(signal.SIGINT)
    out, said = running.communicate(timeout=BOUND_S)
    assert running.returncode == code, said
    return json.loads(out)


def tshark(file: Path, *arguments: str, home: Path) -> str:
    """What tshark prints with the dissector of this checkout, and no other."""
    script = ["-X", f"lua_script:{dissector.SCRIPT}", "-n", "-2", "-r", str(file)]
    environment = {**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home)}
    ended = subprocess.run(
        ["tshark", *script, *arguments], capture_output=True, text=True, timeout=BOUND_S, env=environment
    )
    assert ended.returncode == 0 and "Lua:" not in ended.stderr, ended.stderr
    return ended.stdout


def packets(file: Path, *names: str, home: Path, keys: Path | str) -> list[tuple[str, ...]]:
    """A tuple of fields for each packet; the packets of a train are one by one."""
    fields = [argument for name in names for argument in ("-e", name)]
    text = tshark(file, "-o", f"netsum.keys:{keys}", "-Y", "netsum", "-T", "fields", *fields, home=home)
    rows = [[column.split(",") for column in line.split("\t")] for line in text.splitlines()]
    return [packet for row in rows for packet in zip(*row, strict=True)]


@needs_tshark
@needs_dumpcap
def test_a_capture_of_a_job_is_explained_and_its_tags_are_right(fabric: LocalFabric, fabric_file, tmp_path):
    file, keys = tmp_path / "job.pcapng", tmp_path / "keys"
    result = captured(file, "--fabric", fabric_file, during=("doctor", "--fabric", fabric_file))
    assert result["packets"] > 0 and result["lost"] == 0
    netsum("tools", "keys", fabric_file, "-o", keys)
    assert keys.stat().st_mode & 0o077 == 0
    names = ("netsum.protocol", "netsum.sealed", "netsum.kind", "netsum.tag.status", "netsum.tag.hop", "netsum.tree")
    found = packets(file, *names, home=tmp_path, keys=keys)
    assert found and {packet[:2] for packet in found} <= {("panama", "1"), ("panama", "True")}
    assert {packet[3] for packet in found} == {"verified"}
    assert {"contribution", "partial", "result"} <= {packet[2] for packet in found}
    # The ranks' hops to their switches, and those of switches to the roots.
    assert {packet[4] for packet in found} >= {"rank 0", "rank 1"}
    # Every fragment that went up came back.
    trees = tshark(file, "-q", "-z", "netsum,trees", home=tmp_path).splitlines()
    assert trees[-1] == "malformed packets: 0" and len(trees) > 2
    for row in trees[1:-1]:
        assert int(row.split()[4]) == int(row.split()[5]) > 0, row


@needs_tshark
@needs_dumpcap
@pytest.mark.skipif(not DECODER.exists(), reason="not built: cargo build --release -p netsum-wire --example decode")
def test_fields_of_a_capture_are_those_of_the_decoder(fabric: LocalFabric, fabric_file, tmp_path):
    file = tmp_path / "job.pcapng"
    captured(file, "--fabric", fabric_file, during=("doctor", "--fabric", fabric_file))
    split = tshark(file, "-Y", "netsum", "-T", "fields", "-e", "udp.payload", "-e", "netsum.length", home=tmp_path)
    digits = []
    for payload, lengths in (line.split("\t") for line in split.splitlines()):
        at = 0
        for length in map(int, lengths.split(",")):
            digits.append(payload[2 * at : 2 * (at + length)])
            at += length
        assert 2 * at == len(payload)
    decoded = subprocess.run([DECODER], input="\n".join(digits), capture_output=True, text=True, check=True).stdout
    names, *expected = (line.split("|") for line in decoded.splitlines())
    assert len(expected) == len(digits) > 100
    # Fields that not all packets have: that of a switch which waits for a late rank has fewer than those with elements.
    some = [name for i, name in enumerate(names) if any(row[i] == "" for row in expected)]
    kind = names.index("netsum.kind")
    elements = [row for row in expected if row[kind] in ("contribution", "partial", "result")]
    assert all(len({row[names.index(name)] == "" for row in elements}) == 1 for name in some)
    common = [name for name in names if name not in some]
    seen = packets(file, *common, home=tmp_path, keys="")
    plain = [tuple(value.replace("True", "1").replace("False", "0") for value in packet) for packet in seen]
    assert plain == [tuple(row[names.index(name)] for name in common) for row in expected]


@needs_tshark
@needs_dumpcap
def test_a_capture_is_of_the_chosen_switch_and_job(fabric: LocalFabric, fabric_file, tmp_path):
    file = tmp_path / "none.pcapng"
    during = ("doctor", "--fabric", fabric_file)
    assert captured(file, "--fabric", fabric_file, "--job", "4000000000", during=during)["packets"] == 0
    rack = captured(file, "--fabric", fabric_file, "--at", "rack0", during=during)
    assert rack["packets"] > 0
    address = next(switch.address for switch in fabric.description.switches if switch.name == "rack0")
    ends = tshark(file, "-T", "fields", "-e", "ip.src", "-e", "ip.dst", home=tmp_path).splitlines()
    assert all(address.split(":")[0] in line.split("\t") for line in ends)


@needs_dumpcap
def test_a_capture_has_the_packets_sent_just_before_its_end(tmp_path):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver, socket.socket(type=socket.SOCK_DGRAM) as sender:
        receiver.bind(("127.0.0.1", 0))
        address = receiver.getsockname()
        capture = Capture(tmp_path / "end.pcapng", packet_filter([f"127.0.0.1:{address[1]}"], ()), "lo")
        for _ in range(10):
            sender.sendto(b"the end", address)
        assert capture.stop().packets == 10


@needs_tshark
@needs_dumpcap
def test_a_capture_may_keep_headers_alone(fabric: LocalFabric, fabric_file, tmp_path):
    file = tmp_path / "short.pcapng"
    arguments = ("--fabric", fabric_file, "--bytes", "128")
    result = captured(file, *arguments, during=("doctor", "--fabric", fabric_file))
    assert result["packets"] > 0 and file.stat().st_size < 200 * result["packets"] + 1000
    lines = tshark(
        file, "-T", "fields", "-e", "netsum.kind", "-e", "netsum.malformed", "-e", "frame.len", home=tmp_path
    )
    found = [line.split("\t") for line in lines.splitlines()]
    assert {"contribution", "partial", "result"} <= {kind for kind, _, _ in found}
    assert all(malformed == "" for _, malformed, _ in found)
    assert any(int(length) > 10_000 for _, _, length in found), "a train"


def test_the_filter_names_addresses_ports_and_jobs():
    assert packet_filter(["7701"], []) == "udp and (port 7701)"
    expected = "udp and ((host 10.0.2.1 and port 7701) or port 7801) and (udp[12:4] = 7 or udp[12:4] = 9)"
    assert packet_filter(["10.0.2.1:7701", "7801"], [7, 9]) == expected


def test_wrong_use_of_capture_is_named(fabric_file, tmp_path):
    assert "--at rack0 needs --fabric" in netsum("capture", tmp_path / "x", "--at", "rack0", code=1).stderr
    said = netsum("capture", tmp_path / "x", "--fabric", fabric_file, "--at", "rack9", code=1).stderr
    assert "has no switch or server 'rack9'" in said and "rack0" in said


@needs_dumpcap
def test_why_a_capture_cannot_begin_is_said(tmp_path):
    assert "no-such-device" in netsum("capture", tmp_path / "x", "--interface", "no-such-device", code=1).stderr
    assert "could not be opened" in netsum("capture", tmp_path / "none" / "x", "--interface", "lo", code=1).stderr


def test_a_missing_dumpcap_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "install Wireshark's package" in netsum("capture", tmp_path / "x", code=1).stderr


def test_the_dissector_is_installed_and_printed(tmp_path):
    folder = tmp_path / "plugins"
    assert str(folder / "netsum.lua") in netsum("tools", "wireshark", "--folder", folder).stdout
    assert (folder / "netsum.lua").read_text() == dissector.SCRIPT.read_text()
    assert netsum("tools", "wireshark", "--print").stdout == dissector.SCRIPT.read_text()
    (tmp_path / "file").touch()
    with pytest.raises(ToolError, match="choose another with --folder"):
        dissector.install(tmp_path / "file" / "plugins")


@needs_tshark
def test_an_installed_dissector_is_found_by_tshark(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert dissector.install(None).parent == dissector.plugin_folder()
    protocols = subprocess.run(["tshark", "-G", "protocols"], capture_output=True, text=True, timeout=BOUND_S)
    assert "netsum" in protocols.stdout.split()


def test_stores_that_cannot_be_read_are_named(fabric_file, tmp_path):
    keys = ("tools", "keys", fabric_file, "-o", tmp_path / "keys", "--store")
    assert "no such file" in netsum(*keys, tmp_path / "none", code=1).stderr
    (tmp_path / "text").write_text("this is no store, and is long enough to be looked at" * 20)
    assert "is not a controller's store" in netsum(*keys, tmp_path / "text", code=1).stderr
