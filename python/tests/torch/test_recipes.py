"""The programs of docs/recipes.md, as they are there, each in two processes."""

import os
import re
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[3] / "docs" / "recipes.md").read_text()
PROGRAMS = dict(re.findall(r"```python\n# (\w+)\n(.*?)```", PAGE, flags=re.S))
NEEDS = {"torchft": "torchft", "ray": "ray"}
BOUND_S = 240


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def test_every_program_of_the_page_is_found():
    assert set(PROGRAMS) == {"stores", "torchft", "ray"}
    assert PAGE.count("```python") == len(PROGRAMS)


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_a_recipe_runs(name: str, tmp_path: Path):
    needed = NEEDS.get(name)
    if needed and find_spec(needed) is None:
        pytest.skip(f"no {needed}")
    program = tmp_path / f"recipe_{name}.py"
    program.write_text(PROGRAMS[name])
    common = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "STORE_PORT": str(free_port()),
        "RENDEZVOUS_FILE": str(tmp_path / "rendezvous"),
    }
    started = [
        subprocess.Popen(
            [sys.executable, str(program)],
            env={**os.environ, **common, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=BOUND_S)[0] for process in started]
    assert not any(process.returncode for process in started), "".join(said)
