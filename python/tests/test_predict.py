"""`netsum predict`, and jobs that replay files of other tools. Runs the real simulator."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from processes import BOUND_S, run_ranks

from netsum import sim
from netsum.communicator import connect
from netsum.recorder import dump
from netsum.sim.errors import SimError
from netsum.sim.files import named
from netsum.sim.predict import part, predict

COMMAND = "from netsum.cli import main; main()"
HOST = '[[host]]\nname = "h{0}"\naddress = "10.0.0.{0}"\n[[link]]\nends = ["h{0}", "s"]\nrate = "10Gbit/s"\n'
SWITCH = 'name = "lab"\n[[switch]]\nname = "s"\naddress = "10.0.1.1:5000"\nmemory = "64MiB"\n'
FABRIC = SWITCH + "".join(HOST.format(rank) for rank in range(4))
BYTES = 4_000_000


def _record(folder: Path, ranks: int, steps: int, computing_s: float, lasts_s: float) -> None:
    """Files of ranks that compute and then sum, waiting for each sum."""
    for rank in range(ranks):
        operations = [
            {
                "number": step,
                "call": f"allreduce float32[{BYTES // 4}] sum",
                "called_unix_s": 100.0 + rank + (step + 1) * computing_s + step * lasts_s,
                "seconds": lasts_s,
                "error": None,
                "dtype": "float32",
                "bytes": BYTES,
            }
            for step in range(steps)
        ]
        dumped = {
            "format": 1,
            "group": "the/world",
            "rank": rank,
            "size": ranks,
            "place": "",
            "why": "",
            "failure": None,
            "written_unix_s": 200.0,
            "operations": operations,
        }
        (folder / f"netsum-the-world-rank{rank}.json").write_text(json.dumps(dumped))


def _command(*arguments: str | Path, code: int = 0) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", COMMAND, "predict", *map(str, arguments)], capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout if code == 0 else ended.stderr


def test_a_recording_takes_as_long_as_a_job_of_its_numbers(tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    recording.mkdir()
    _record(recording, 4, 12, computing_s=0.002, lasts_s=0.009)
    fabric = tmp_path / "fabric.toml"
    fabric.write_text(FABRIC)
    found = part(recording)
    assert (found.ranks, found.first, found.operations) == (4, 1, 1)
    assert found.recorded_s == pytest.approx(0.011, rel=1e-6)
    for scheme in ("ring", "panama"):
        ours = predict(recording, fabric, scheme=scheme)
        config: dict[str, Any] = {
            "duration": "10s",
            "fabric": {"kind": "file", "path": str(fabric)},
            "scheme": {"kind": scheme},
            "jobs": [{"compute": "2ms", "bytes": BYTES, "workers": 4, "steps": ours.steps}],
            "stop_with_jobs": True,
        }
        steps = sim.run(config, tmp_path / scheme).rows("steps")
        theirs = (steps[-1]["end_us"] - steps[0]["start_us"]) * 1e-6 / len(steps)
        # Times of recordings are rounded: a nanosecond in some milliseconds.
        assert ours.predicted_s == pytest.approx(theirs, rel=1e-4), scheme
        assert ours.computing_s == pytest.approx(0.002, rel=1e-2)


def test_the_command_prints_all_schemes(tmp_path: Path) -> None:
    _record(tmp_path, 4, 12, computing_s=0.002, lasts_s=0.009)
    (tmp_path / "fabric.toml").write_text(FABRIC)
    found = json.loads(_command(tmp_path, tmp_path / "fabric.toml", "--json"))
    assert [each["scheme"] for each in found] == ["ring", "shares", "panama"]
    ring, shares, panama = found
    assert min(ring["predicted_s"], shares["predicted_s"]) > panama["predicted_s"] > panama["computing_s"]
    text = _command(tmp_path, tmp_path / "fabric.toml", "--scheme", "ring", "--compute-scale", "0.5")
    assert "4 ranks" in text and "ring" in text
    assert "4 ranks need 4 hosts" not in text


def test_recordings_without_steps_are_refused(tmp_path: Path) -> None:
    (tmp_path / "fabric.toml").write_text(FABRIC)
    assert "no files netsum-" in _command(tmp_path, tmp_path / "fabric.toml", code=1)
    _record(tmp_path, 3, 2, computing_s=0.002, lasts_s=0.009)
    with pytest.raises(SimError, match="no steps that repeat"):
        part(tmp_path)
    with pytest.raises(SimError, match=r"no files of a group 'x'; there are the/world"):
        part(tmp_path, "x")
    (tmp_path / "netsum-the-world-rank1.json").unlink()
    with pytest.raises(SimError, match="the file of rank 1 is missing"):
        part(tmp_path)


def test_the_recording_of_real_ranks_is_replayed(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        world = connect(timeout_s=BOUND_S)
        for _ in range(20):
            world.allreduce(bytearray(200_000), "band")
            world.allreduce(bytearray(40_000), "band")
            world.barrier()
        dump()

    run_ranks(body, 3, NETSUM_RECORDER=str(tmp_path))
    fabric = {"kind": "single-switch", "hosts": 3}
    found = predict(tmp_path, fabric)
    assert (found.ranks, found.operations) == (3, 3)
    # Two thirds of the bytes go twice over each host's link.
    least_s = 4 / 3 * 240_000 * 8 / 10e9
    assert found.steps >= 2
    assert found.predicted_s >= max(found.computing_s, least_s)
    assert found.predicted_s <= found.computing_s + 10 * least_s


def test_a_chakra_trace_by_protobufs_own_encoder(tmp_path: Path) -> None:
    pool = pytest.importorskip("google.protobuf.descriptor_pool", reason="needs protobuf")
    from google.protobuf import descriptor_pb2, message_factory

    # The published schema, as far as traces use it.
    fields = {
        "AttributeProto": [("name", 1, "string"), ("int64_val", 9, "int64"), ("bool_val", 27, "bool")],
        "GlobalMetadata": [("version", 1, "string")],
        "Node": [
            ("id", 1, "uint64"),
            ("name", 2, "string"),
            ("type", 3, "int32"),
            ("data_deps", 5, "*uint64"),
            ("duration_micros", 7, "uint64"),
            ("attr", 10, "*.c.AttributeProto"),
        ],
    }
    numbers = {"string": 9, "int64": 3, "uint64": 4, "int32": 5, "bool": 8}
    file = descriptor_pb2.FileDescriptorProto(name="c.proto", package="c", syntax="proto3")
    for name, members in fields.items():
        message = file.message_type.add(name=name)
        for field, number, kind in members:
            plain = kind.removeprefix("*")
            added = message.field.add(name=field, number=number, label=3 if kind != plain else 1)
            if field.endswith("_val"):
                # Members of a oneof are written even if they are 0.
                if not message.oneof_decl:
                    message.oneof_decl.add(name="value")
                added.oneof_index = 0
            added.type = numbers.get(plain, 11)
            if plain not in numbers:
                added.type_name = plain
    schema = pool.DescriptorPool()
    schema.Add(file)
    node_type = message_factory.GetMessageClass(schema.FindMessageTypeByName("c.Node"))
    metadata = message_factory.GetMessageClass(schema.FindMessageTypeByName("c.GlobalMetadata"))(version="0.0.4")

    def framed(message: Any) -> bytes:
        content: bytes = message.SerializeToString()
        length, prefix = len(content), b""
        while length > 127:
            prefix, length = prefix + bytes([length & 127 | 128]), length >> 7
        return prefix + bytes([length]) + content

    for rank in range(4):
        compute = node_type(id=3, name="matmul", type=4, duration_micros=2000)
        compute.attr.add(name="is_cpu_op", bool_val=False)
        reduce = node_type(id=9, name="all_reduce", type=7, data_deps=[3])
        reduce.attr.add(name="comm_type", int64_val=0)
        reduce.attr.add(name="comm_size", int64_val=BYTES)
        trace = framed(metadata) + framed(compute) + framed(reduce)
        (tmp_path / f"trace.{rank}.et").write_bytes(trace)
    replayed = {"replay": {"format": "chakra", "path": str(tmp_path / "trace")}, "steps": 2}
    direct = {"compute": "2ms", "bytes": BYTES, "workers": 4, "steps": 2}
    ends = []
    for name, job in (("replayed", replayed), ("direct", direct)):
        config = {
            "duration": "1s",
            "fabric": {"kind": "single-switch", "hosts": 4},
            "scheme": {"kind": "ring"},
            "jobs": [job],
        }
        ends.append([row["end_us"] for row in sim.run(config, tmp_path / name).rows("steps")])
    assert ends[0] == ends[1] and len(ends[0]) == 2
    # A sweep runs again if a trace changes.
    assert [path.name for path in named(replayed)] == [f"trace.{rank}.et" for rank in range(4)]


def test_settings_describe_the_cluster(tmp_path: Path) -> None:
    _record(tmp_path, 4, 6, 0.010, 0.004)
    fabric = tmp_path / "fabric.toml"
    fabric.write_text(FABRIC)
    usual = predict(tmp_path, fabric)
    given = tmp_path / "settings.toml"
    given.write_text('[tcp]\ninitial_window = 1\nsocket = "2KiB"\n')
    slower = json.loads(_command(tmp_path, fabric, "--scheme", "ring", "--settings", given, "--json"))[0]
    assert slower["predicted_s"] > 1.02 * usual.predicted_s and slower["computing_s"] == usual.computing_s
    with pytest.raises(SimError, match=r"settings: jobs: expected host, switch, tcp"):
        predict(tmp_path, fabric, settings={"jobs": []})
    assert "nowhere.toml" in _command(tmp_path, fabric, "--settings", tmp_path / "nowhere.toml", code=1)
