"""`netsum bench`: patterns against an oracle, sizes, detection of wrong results, rows, launchers, Ctrl-C."""

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from processes import wait_until

from netsum.bench import BenchError, Case, Plan, Row, sizes, values
from netsum.bench.cases import REDUCTIONS, WIDTHS, cases
from netsum.bench.measure import measure
from netsum.bench.picture import picture, words
from netsum.bench.ranks import Buffers, Command, execute, point

COMMAND = "from netsum.cli import main; main()"


def bench(*arguments: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess:
    settings = {key: value for key, value in os.environ.items() if not key.startswith("NETSUM_")}
    ended = subprocess.run(
        [sys.executable, "-c", COMMAND, "bench", *arguments],
        capture_output=True,
        text=True,
        env=settings | environment,
        timeout=300,
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", [each for each in WIDTHS if each != "bfloat16"])
@pytest.mark.parametrize("size", [2, 3, 7, 60])
def test_patterns_combine_as_numpy_combines_them(dtype, reduction, size):
    numpy = pytest.importorskip("numpy")
    if reduction == "avg" and "int" in dtype:
        return
    case = Case("allreduce", dtype, reduction, 900 * WIDTHS[dtype])
    given = numpy.stack([numpy.frombuffer(values.of_rank(case, r, size, case.nbytes), dtype) for r in range(size)])
    combine = {"sum": "sum", "avg": "mean", "min": "min", "max": "max", "product": "prod"}[reduction]
    wide = {"sum": {"dtype": dtype}, "product": {"dtype": dtype}, "avg": {"dtype": "float64"}}.get(reduction, {})
    with numpy.errstate(over="ignore"):
        expected = getattr(numpy, combine)(given, axis=0, **wide).astype(dtype)
    found = values.combined(case, size, case.nbytes)
    assert numpy.array_equal(numpy.frombuffer(found, dtype), expected)


def test_bfloat16_is_the_upper_half_of_float32():
    case = Case("allreduce", "bfloat16", "sum", 1680)
    single = Case("allreduce", "float32", "sum", 3360)
    halves = struct.unpack("<840H", values.combined(case, 5, 1680))
    whole = struct.unpack("<840I", values.combined(single, 5, 3360))
    assert [each >> 16 for each in whole] == list(halves)


def test_sizes_grow_by_the_factor_and_bad_ones_are_named():
    assert sizes("8", "1K", 4) == [8, 32, 128, 512]
    assert sizes("1MiB", "1M", 2) == [1 << 20]
    assert sizes("1", "4", 1.1) == [1, 2, 3, 4]
    for begin, end, factor, said in (("8", "4", 2, "-b 8"), ("8", "16", 1, "-f 1"), ("x", "16", 2, "x: expected")):
        with pytest.raises(BenchError, match=said):
            sizes(begin, end, factor)


def test_sizes_are_whole_elements_of_every_part_and_rates_those_of_nccl_tests():
    (small,) = cases("reduce_scatter", "float32", "sum", [8, 12], 3)
    assert (small.nbytes, small.part(3)) == (12, 4)
    assert [case.nbytes for case in cases("barrier", "int8", "sum", [8, 16], 3)] == [0]
    assert Case("allreduce", "float32", "sum", 1000).busbw(1.0, 4) == pytest.approx(1500)
    assert Case("alltoall", "float32", "sum", 1000).busbw(1.0, 4) == pytest.approx(750)
    assert Case("broadcast", "float32", "sum", 1000).busbw(1.0, 4) == pytest.approx(1000)
    assert (words(8), words(3 << 19)) == ("8 B", "1.5 MiB")


class Alone:
    """One rank whose operation adds `error` to the first element."""

    rank, size = 0, 1

    def __init__(self, error: int) -> None:
        self.error = error

    def call(self, buffers: Buffers):
        def run() -> None:
            buffers.source[0:1] = bytes([(buffers.source[0] + self.error) % 256])

        return run

    def barrier(self) -> None:
        pass

    def combine(self, numbers, reduction):
        return list(numbers)


@pytest.mark.parametrize("error", [0, 1])
def test_a_wrong_element_is_counted(error):
    command = Command(Case("allreduce", "uint8", "sum", 100), warmup=1, iterations=3, check=True)
    wrong, times = execute(Alone(error), command)
    assert (wrong, len(times)) == (error, 3)
    assert Command.parse(command.line()) == command


def test_libraries_take_turns_and_another_one_begins():
    asked = []

    class World:
        def __init__(self, name: str) -> None:
            self.name = name

        def measure(self, command):
            asked.append(self.name)
            return 0, [1e-3] * command.iterations

    case = Case("allreduce", "float32", "sum", 8)
    ((first, second),) = measure([World("a"), World("b")], [case], 2, Plan(rounds=2, iterations=4))
    assert asked == ["a", "b", "b", "a"]
    assert (first.library, len(first.seconds), second.wrong) == ("a", 8, 0)


def test_p99_and_the_picture():
    row = Row(Case("allreduce", "float32", "sum", 8), "netsum", 2, [float(n) for n in range(1, 101)], 0)
    assert (row.median, row.best, row.p99) == (50.5, 1.0, 99.0)
    other = Row(Case("barrier", "float32", "sum", 0), "gloo", 2, [1e-5], 0)
    svg = picture([row, other])
    assert svg.count("<polyline") == 4 and "busbw, GB/s" in svg and "time, µs" in svg


def test_every_operation_is_right_and_told_as_rows(tmp_path: Path):
    plot = tmp_path / "new" / "busbw.svg"
    arguments = ("all", "-n", "3", "-b", "12", "-e", "48K", "-f", "64", "--rounds", "1", "-i", "3", "--json")
    ended = bench(*arguments, "--plot", str(plot))
    rows = json.loads(ended.stdout)["rows"]
    assert {row["operation"] for row in rows} >= {"alltoall", "barrier", "sendrecv"}
    assert len(rows) == 11 * 3 + 1
    assert all(row["wrong"] == 0 and row["iterations"] == 3 for row in rows)
    assert plot.read_text().startswith("<svg")


def test_peers_that_are_missing_are_named():
    ended = bench("-e", "8", "-i", "2", "--rounds", "1", "--peers", "openmpi,mpich,ucx", PATH="/nowhere")
    assert "left out: openmpi: mpicc.openmpi" in ended.stderr and "mpich libmpich-dev" in ended.stderr
    assert "left out: ucx: ucx_perftest" in ended.stderr
    assert "netsum" in ended.stdout


@pytest.mark.skipif(shutil.which("mpicc.openmpi") is None, reason="Open MPI is not installed")
def test_open_mpi_answers_and_says_what_it_lacks():
    arguments = ("-n", "2", "-b", "64", "-e", "64", "-i", "3", "--rounds", "1", "--peers", "openmpi", "--json")
    operations = ("all", *arguments)
    rows = json.loads(bench(*operations).stdout)["rows"]
    theirs = [row for row in rows if row["library"] == "openmpi"]
    assert len(theirs) == 12 and all(row["wrong"] == 0 for row in theirs)
    rows = json.loads(bench("allreduce", *arguments, "-d", "bfloat16").stdout)["rows"]
    assert "bfloat16" in rows[1]["problem"] and rows[0]["wrong"] == 0


@pytest.mark.skipif(shutil.which("ucx_perftest") is None, reason="ucx_perftest is not installed")
def test_ucx_perftest_answers_for_messages_between_two_ranks():
    operations = ("latency", "bandwidth", "barrier")
    arguments = ("-n", "3", "-b", "8", "-e", "1M", "-f", "1024", "-i", "3", "--rounds", "2", "--peers", "ucx", "--json")
    rows = json.loads(bench(*operations, *arguments, UCX_TLS="tcp").stdout)["rows"]
    theirs = [row for row in rows if row["library"] == "ucx"]
    assert [row["operation"] for row in theirs] == ["latency"] * 2 + ["bandwidth"] * 2 + ["barrier"]
    assert all(row["seconds"]["best"] > 0 and row["wrong"] is None and row["iterations"] == 2 for row in theirs[:4])
    assert "latency and bandwidth only" in theirs[4]["problem"]
    failing = bench("latency", *arguments, UCX_TLS="nowhere", code=1)
    assert "ucx_perftest" in failing.stderr


def test_a_call_of_messages_in_a_row_counts_as_one_message():
    log = []

    def start(name: str):
        return lambda nbytes: log.append((name, nbytes)) or (lambda: log.append("wait"))

    case = Case("latency", "float32", "sum", 4 << 20)
    assert case.messages == 2 and Case("bandwidth", "float32", "sum", 8).messages == 64
    assert all(Case("latency", "uint8", "sum", nbytes).messages % 2 == 0 for nbytes in range(1, 9 << 20, 99_991))
    point(case, 1, start("send"), start("receive"))()
    assert log == [("receive", 4 << 20), "wait", ("send", 4 << 20), "wait"]
    log.clear()
    point(Case("bandwidth", "float32", "sum", 4 << 20), 0, start("send"), start("receive"))()
    assert log == [("send", 4 << 20)] * 2 + ["wait"] * 2 + [("receive", 4), "wait"]


@pytest.mark.skipif(find_spec("torch") is None, reason="Gloo is called through torch")
def test_gloo_is_measured_beside():
    arguments = ("all", "-n", "2", "-b", "64", "-e", "64", "-i", "3", "--rounds", "1", "--json")
    rows = json.loads(bench(*arguments, "--peers", "gloo,netsum-torch").stdout)["rows"]
    assert len(rows) == 36 and all(row["wrong"] == 0 for row in rows)


def test_ranks_of_a_launcher_print_one_table(tmp_path: Path):
    script = tmp_path / "command.py"
    script.write_text(COMMAND)
    arguments = ["allreduce", "barrier", "-b", "1K", "-e", "4K", "-i", "3", "--rounds", "1"]
    ended = subprocess.run(
        [sys.executable, "-m", "netsum.launcher", "3", str(script), "bench", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    assert len(ended.stdout.splitlines()) == 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("allredcue",), "allredcue"),
        (("-d", "complex64"), "complex64"),
        (("--peers", "nccl"), "nccl"),
        (("--plot", "x.pdf"), "x.pdf"),
        (("-d", "int32", "-o", "avg"), "averages"),
        (("--protocol", "tcp"), "panama"),
        (("latency", "-n", "1"), "needs 2 ranks"),
    ],
)
def test_wrong_use_is_named(arguments, said):
    assert said in bench(*arguments, code=1).stderr


def test_ctrl_c_leaves_nothing():
    arguments = ["bench", "all", "-n", "2", "-e", "64M", "--rounds", "50"]
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    process.stdout.readline()
    process.stdout.readline()
    ranks = _children(process.pid)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert process.returncode == 130
    assert len(ranks) == 2
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in ranks))


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
