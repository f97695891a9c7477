"""`python -m netsum.launcher`, used by `netsum run --plain`: ranks get their numbers, meet, and fail together."""

import os
import subprocess
import sys
from pathlib import Path

from netsum.launch import Workers

SCRIPT = r"""
import array, os, sys, time
from netsum.communicator import connect
with connect(timeout_s=60.0) as world:
    values = array.array("d", [float(world.rank)])
    world.allreduce(values)
    # In one piece: the ranks share the pipe.
    os.write(1, f"{world.rank} {world.size} {values[0]} {sys.argv[1]}\n".encode())
"""


def launch(tmp_path: Path, script: str, count: int, *arguments: str) -> subprocess.CompletedProcess:
    path = tmp_path / "script.py"
    path.write_text(script)
    command = [sys.executable, "-m", "netsum.launcher", str(count), str(path), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_ranks_meet_by_themselves(tmp_path):
    ended = launch(tmp_path, SCRIPT, 3, "word")
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == [f"{rank} 3 3.0 word" for rank in range(3)]


def test_ranks_that_end_leave_no_socket(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    counts = """
import os
from pathlib import Path
from netsum.communicator import connect
with connect(timeout_s=60.0) as world:
    world.barrier()
    folder = Path(os.environ["XDG_RUNTIME_DIR"], "netsum")
    os.write(1, f"{len(list(folder.glob('*.sock')))}\\n".encode())
    world.barrier()
"""
    ended = launch(tmp_path, counts, 2)
    assert ended.stdout.splitlines() == ["2", "2"], ended.stderr
    assert list(tmp_path.glob("netsum/*.sock")) == []


def test_ranks_of_a_run_share_a_token_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("NETSUM_TOKEN", "none")
    script = "import os; os.write(1, (os.environ['NETSUM_TOKEN'] + '\\n').encode())"
    runs = [set(launch(tmp_path, script, 2).stdout.split()) for _ in range(2)]
    assert [len(tokens) for tokens in runs] == [1, 1]
    assert len(runs[0] | runs[1]) == 2
    assert all(len(token) == 32 for token in runs[0] | runs[1])


def test_the_first_that_fails_ends_the_others(tmp_path):
    waits = "import os, sys, time\nos.environ['RANK'] == '1' and sys.exit(7)\ntime.sleep(1e6)"
    ended = launch(tmp_path, waits, 3)
    assert ended.returncode == 7
    assert "netsum: rank 1 ended with exit code 7; the others are ended" in ended.stderr
    killed = launch(tmp_path, "import os\nos.environ['RANK'] == '0' and os.kill(os.getpid(), 9)", 2)
    assert killed.returncode == 137 and "rank 0 ended with signal SIGKILL" in killed.stderr


def test_the_end_of_workers_removes_sockets_of_processes_that_are_gone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = tmp_path / "netsum"
    folder.mkdir()
    gone, alive = folder / f"{2**31}.sock", folder / f"{os.getpid()}.sock"
    gone.touch()
    alive.touch()
    workers = Workers(["-c", "pass"], 1, {}, plain=True)
    assert workers.wait() == 0
    workers.stop()
    assert not gone.exists() and alive.exists()
