"""The `netsum` command on a real fabric: its output, its exit codes, and that no process is left running."""

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer
from processes import wait_until

from netsum.cli.app import app
from netsum.fabric import binaries
from netsum.fabric.description import Description
from netsum.fabric.local import LocalFabric

BOUND_S = 300
"""Time limit of a command that is not interrupted: a guard against hanging tests."""


@pytest.fixture
def environment(tmp_path):
    settings = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "COLUMNS": "200"}
    settings.pop("NETSUM_CONTROLLER", None)
    return settings


@pytest.fixture
def netsum(environment):
    def call(*arguments: str | Path, code: int | None = 0) -> subprocess.CompletedProcess:
        ended = subprocess.run(command(*arguments), capture_output=True, text=True, env=environment, timeout=BOUND_S)
        assert code is None or ended.returncode == code, ended.stdout + ended.stderr
        return ended

    return call


@pytest.fixture
def fabric(tmp_path, fabric_file):
    """A fabric file that no other test uses; its processes are stopped at the end."""
    yield fabric_file
    description = Description.read(fabric_file)
    LocalFabric(description, tmp_path / "state" / "netsum" / description.name).down()


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-c", "from netsum.cli import main; main()", *map(str, arguments)]


def test_the_command_does_not_load_torch():
    code = "import sys, netsum.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_reference_has_every_command():
    rows = (Path(__file__).parents[2] / "docs/reference/commands.md").read_text().splitlines()
    for name, each in typer.main.get_command(app).commands.items():
        named = " ".join(row.split("|")[1] for row in rows if re.match(rf"\| `netsum {name}\b", row))
        assert named, f"netsum {name} has no row"
        lacking = [sub for sub in getattr(each, "commands", ()) if not re.search(rf"[ `]{sub}[ `]", named)]
        assert not lacking, f"rows of netsum {name} lack {lacking}"


def test_lists_of_commands_say_whole_sentences():
    root = typer.main.get_command(app)
    groups = [root, *(each for each in root.commands.values() if hasattr(each, "commands"))]
    for group in groups:
        # What is left of 80 columns beside the names.
        width = 72 - max(map(len, group.commands))
        cut = [name for name, each in group.commands.items() if each.get_short_help_str(width).endswith("...")]
        assert not cut, f"{group.name}: the help of {cut} begins with a sentence that is cut off"


@pytest.mark.parametrize("program", ["netsum-controller", "netsum-job", "netsum-sim", "netsum-switch"])
def test_the_reference_uses_daemons_as_they_are(program):
    page = (Path(__file__).parents[2] / "docs/reference/commands.md").read_text()
    words = re.search(rf"^\| `{program} ([^`]*)`", page, flags=re.M)[1].split()
    commands = [word for word in words[:1] if word.islower() and not word.startswith("-")]
    called = [binaries.find(program), *commands, "--help"]
    usage = subprocess.run(called, capture_output=True, text=True, check=True).stdout
    assert "<COMMAND>" not in usage
    assert [word for word in words if word.startswith("--") and word not in usage] == []


def test_an_interruption_while_the_command_loads_shows_no_traceback():
    code = (
        "import sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'netsum.cli.app': raise KeyboardInterrupt\n"
        "from netsum.cli import main\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "main()"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, "")


def test_up_status_doctor_down(netsum, fabric):
    assert "4 switches, 2 servers" in netsum("fabric", "up", fabric).stdout
    assert "runs already" in netsum("fabric", "up", fabric, code=1).stderr
    status = json.loads(netsum("fabric", "status", fabric, "--json").stdout)
    assert all(part["alive"] for part in status["parts"]) and len(status["parts"]) == 7
    checks = json.loads(netsum("doctor", "--fabric", fabric, "--json").stdout)["checks"]
    assert "added in the network by 2 trees" in checks[-1]["found"]
    assert [check["name"] for check in checks].count("switch") == 4
    assert [check["name"] for check in checks].count("server") == 2
    top = json.loads(netsum("top", "--fabric", fabric, "--once", "--json").stdout)
    assert len(top["link_rates"]) == 8
    assert "rack0" in netsum("top", "--fabric", fabric, "--once").stdout
    # The doctor's job has ended in order: no rank was killed before it had left.
    (job,) = top["jobs"]
    assert job["state"] == "ended" and {rank["state"] for rank in job["ranks"]} == {"left"}
    number = str(job["job"])
    assert f"job {number} is over (ended)" in netsum("why", number, "--fabric", fabric, code=1).stderr
    assert "running are: none" in netsum("why", "1", "--fabric", fabric, code=1).stderr
    assert "is over; `netsum top` shows" in netsum("job", "stop", number, "--fabric", fabric, code=1).stderr
    assert "rack0" in netsum("fabric", "down", fabric).stdout
    assert "was not running" in netsum("fabric", "down", fabric).stdout
    netsum("fabric", "status", fabric, code=1)


def test_a_dead_switch_is_named(netsum, fabric):
    netsum("fabric", "up", fabric)
    parts = json.loads(netsum("fabric", "status", fabric, "--json").stdout)["parts"]
    os.kill(next(part["process"] for part in parts if part["name"] == "spine1"), signal.SIGKILL)
    wait_until(lambda: netsum("fabric", "status", fabric, code=None).returncode == 1)
    checks = json.loads(netsum("doctor", "--fabric", fabric, "--json", code=1).stdout)["checks"]
    failed = [check for check in checks if check["verdict"] == "fail"]
    assert len(failed) == 1 and "spine1" in failed[0]["found"] and failed[0]["advice"]


def test_a_busy_port_is_named_and_nothing_stays(netsum, fabric, block):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind((f"127.{block}.2.2", 7701))
        ended = netsum("fabric", "up", fabric, code=1)
    assert "switch rack1" in ended.stderr and f"process {os.getpid()}" in ended.stderr
    assert "was not running" in netsum("fabric", "down", fabric).stdout


def test_doctor_starts_a_fabric_and_stops_it(netsum, fabric):
    checks = json.loads(netsum("doctor", "--fabric", fabric, "--json").stdout)["checks"]
    assert "right" in checks[-1]["found"]
    assert "was not running" in netsum("fabric", "down", fabric).stdout


@pytest.mark.skipif(find_spec("torch") is None, reason="`netsum run` starts scripts by torchrun")
@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_leaves_nothing(environment, fabric, netsum, tmp_path, which):
    script = tmp_path / "sleep.py"
    script.write_text("import time; print('begun', flush=True); time.sleep(1e6)")
    arguments = ("run", "-n", "1", "--fabric", fabric, script)
    process = subprocess.Popen(
        command(*arguments), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "begun\n"
    process.send_signal(which)
    _, said = process.communicate(timeout=BOUND_S)
    assert process.returncode == 130
    assert said.endswith("stopped; nothing is left running\n") and "Traceback" not in said
    assert "was not running" in netsum("fabric", "down", fabric).stdout
    assert str(script) not in subprocess.run(["ps", "ax", "-o", "args"], capture_output=True, text=True).stdout


def test_run_names_jobs_after_the_script(netsum, fabric, environment, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import os; print(os.environ['NETSUM_JOB'])")
    run = ("run", "-n", "1", "--plain", "--fabric", fabric, script)
    assert re.fullmatch(r"train-\d+\n", netsum(*run).stdout)
    environment["NETSUM_JOB"] = "mine"
    assert netsum(*run).stdout == "mine\n"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("fabric", "up", "none.toml"), 1, "no such file"),
        (("top",), 1, "which fabric?"),
        (("top", "--json", "--fabric", "x"), 1, "--json needs --once"),
        (("demo", "--epochs", "1"), 2, "epochs"),
        (("sim", "run", "none.toml"), 1, "cannot read none.toml"),
        (("plan", "show", "none.json"), 1, "error: none.json: cannot be read: No such file or directory\n"),
        (("nonsense",), 2, "No such command"),
    ],
)
def test_wrong_use(netsum, arguments, code, said):
    errors = netsum(*arguments, code=code).stderr
    assert said in errors
    assert code == 2 or errors.startswith("error: "), "nothing is printed before"


def test_an_absent_controller_is_named(netsum, environment):
    environment["NETSUM_CONTROLLER"] = "127.0.0.1:1"
    errors = netsum("top", "--once", code=1).stderr
    assert "no controller answers at 127.0.0.1:1" in errors and "running there? `netsum fabric up" in errors


def test_missing_daemons_are_named(netsum, environment, fabric):
    environment.update(NETSUM_BIN="/nowhere", PATH="/nowhere")
    ended = netsum("fabric", "up", fabric, code=None)
    assert ended.returncode == 0 or "make build" in ended.stderr


def test_certificates_are_made_renewed_and_revoked(netsum, fabric_file, tmp_path):
    ca, out = ("--ca", tmp_path / "ca"), tmp_path / "credentials"
    assert "is the authority of fabric" in netsum("ca", "init", fabric_file, *ca).stdout
    made = netsum("ca", "issue", "operator", "tenant/a", "--fabric", fabric_file, *ca, "--out", out, "--json")
    made = {Path(row["folder"]): row for row in json.loads(made.stdout)["credentials"]}
    name = Description.read(fabric_file).name
    assert made[out / "tenant/a"]["identity"] == f"spiffe://{name}/tenant/a"
    # The operator and the tenant, the controller, 4 switches, 2 servers and 4 hosts.
    assert len(made) == 13 and all((folder / "identity.pem").is_file() for folder in made)
    before = (out / "operator" / "identity.pem").read_bytes()
    assert f"spiffe://{name}/operator" in netsum("ca", "renew", out / "operator", *ca, "--days", "7").stdout
    assert (out / "operator" / "identity.pem").read_bytes() != before
    revoked = json.loads(netsum("ca", "revoke", "operator", *ca, "--json").stdout)
    assert revoked == {"revoked": {"operator": 2}, "list": str(tmp_path / "ca" / "ca.crl"), "told": []}
    assert "revoked tenant/a: 1 certificate\n" in netsum("ca", "revoke", "tenant/a", *ca).stdout
    told = json.loads(netsum("ca", "revoke", "host/h0", *ca, "--to", out / "controller", "--json").stdout)["told"]
    assert told == [str(out / "controller")]
    assert (out / "controller" / "ca.crl").read_bytes() == (tmp_path / "ca" / "ca.crl").read_bytes()
    assert "has no credentials" in netsum("ca", "revoke", *ca, "--to", tmp_path / "none", code=1).stderr
    # Errors are one message that names the file or the role.
    assert "was revoked" in netsum("ca", "renew", out / "operator", *ca, code=1).stderr
    assert "is not a role" in netsum("ca", "issue", "king", *ca, code=1).stderr
    assert "netsum ca init" in netsum("ca", "issue", "viewer", "--ca", tmp_path / "none", code=1).stderr
    assert "name a role" in netsum("ca", "issue", *ca, code=2).stderr


def test_a_new_machine_gets_its_certificate_by_a_token(netsum, fabric_file, tmp_path):
    ca, machine = ("--ca", tmp_path / "ca"), tmp_path / "h0"
    netsum("ca", "init", fabric_file, *ca)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        at = f"127.0.0.1:{free.getsockname()[1]}"
    assert "no token that can be used" in netsum("ca", "serve", *ca, "--listen", at, code=1).stderr
    token = netsum("ca", "token", "host/h0", "--at", at, *ca).stdout.strip()
    assert token.startswith(f"host/h0,{at},")
    # Nobody serves yet; then a server ends by itself, because the only token is used.
    assert "does `netsum ca serve` run there?" in netsum("ca", "join", token, "--out", machine, code=1).stderr
    with ThreadPoolExecutor() as threads:
        serving = threads.submit(netsum, "ca", "serve", *ca, "--listen", at, "--days", "7")
        joined = netsum("ca", "join", token, "--out", machine, "--json", code=None)
        while joined.returncode and "ca serve" in joined.stderr and not serving.done():
            joined = netsum("ca", "join", token, "--out", machine, "--json", code=None)
        assert joined.returncode == 0, joined.stderr
        assert "no token is left" in serving.result().stdout
    name = Description.read(fabric_file).name
    (row,) = json.loads(joined.stdout)["credentials"]
    assert row["identity"] == f"spiffe://{name}/host/h0"
    assert stat.S_IMODE((machine / "identity-key.pem").stat().st_mode) == 0o600
    # Errors say what to do.
    assert "has credentials already" in netsum("ca", "join", token, "--out", machine, code=1).stderr
    assert "copy the whole line" in netsum("ca", "join", token[:-1], "--out", machine, code=1).stderr
    assert "write it as 90s" in netsum("ca", "token", "host/h0", "--valid", "soon", *ca, code=2).stderr


def test_a_local_fabric_demands_certificates_and_its_jobs_have_them(netsum, fabric, environment, tmp_path):
    printed = netsum("fabric", "up", fabric).stdout
    description = Description.read(fabric)
    folder = tmp_path / "state" / "netsum" / description.name
    assert f"export NETSUM_CREDENTIALS={folder / 'credentials' / 'operator'}" in printed
    # A stranger is told what it needs.
    environment |= {"NETSUM_CONTROLLER": description.controller, "NETSUM_CREDENTIALS": ""}
    assert "set NETSUM_CREDENTIALS" in netsum("top", "--once", code=1).stderr
    # A viewer of the same authority may look, and not start a job.
    viewer = tmp_path / "credentials" / "viewer"
    netsum("ca", "issue", "viewer", "--ca", folder / "ca", "--out", viewer.parent)
    environment["NETSUM_CREDENTIALS"] = str(viewer)
    assert "rack0" in netsum("top", "--once").stdout
    failed = [
        check for check in json.loads(netsum("doctor", "--json", code=1).stdout)["checks"] if check["verdict"] == "fail"
    ]
    assert "may not create a job of tenant" in failed[0]["found"]
    netsum("ca", "renew", viewer, "--ca", folder / "ca", "--days", "7")
    found = {check["name"]: check for check in json.loads(netsum("doctor", "--json", code=1).stdout)["checks"]}
    found = found["credentials"]
    assert found["verdict"] == "warn" and "/viewer, valid for 6 days" in found["found"] and "renew" in found["advice"]
    environment["NETSUM_CREDENTIALS"] = str(tmp_path / "nothing")
    found = json.loads(netsum("doctor", "--json", code=1).stdout)["checks"]
    assert any("nothing/identity.pem" in check["found"] for check in found if check["name"] == "credentials")
    # A second start keeps the certificates.
    before = (folder / "credentials" / "operator" / "identity.pem").read_bytes()
    netsum("fabric", "down", fabric)
    netsum("fabric", "up", fabric)
    assert (folder / "credentials" / "operator" / "identity.pem").read_bytes() == before
    environment["NETSUM_CREDENTIALS"] = str(folder / "credentials" / "operator")
    checks = json.loads(netsum("doctor", "--json").stdout)["checks"]
    assert "added in the network" in checks[-1]["found"]
    # What is said of this machine is about the controller's fabric, not about the one that is tried without any.
    said = {check["name"]: check["found"] for check in checks}
    assert said["hosts on this machine"] == ", ".join(host.name for host in description.hosts)
    assert description.hosts[0].address in said["ECN marks"]
