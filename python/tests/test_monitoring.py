"""Metrics of a live fabric in a live Prometheus; alerts, their tests and their runbook; dashboards."""

from __future__ import annotations

import json
import re
import shutil
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from processes import wait_until
from prometheus_client import generate_latest

from netsum.fabric.builtin import demo_toml
from netsum.fabric.credentials import folder_of
from netsum.fabric.description import Description
from netsum.fabric.local import LocalFabric, temporary
from netsum.fabric.processes import Daemon
from netsum.fabric.reservations import reserved_port
from netsum.metrics.families import JOBS_MAX, RANKS_MAX, REASONS_MAX, TENANTS_MAX, TEXT_MAX
from netsum.metrics.serving import registry

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "monitoring" / "alerts.yml"
ALERT_TESTS = ROOT / "monitoring" / "alerts.test.yml"
DASHBOARDS = sorted((ROOT / "monitoring" / "dashboards").glob("*.json"))
RUNBOOK = ROOT / "docs" / "monitoring.md"
BOUND_S = 300
RANKS = 2
TENANT = "research"
OPERATIONS = 1 << 30
"""More than any test waits for."""

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool; make setup-metrics installs it"
)
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="no prometheus; make setup-metrics installs it"
)


def promtool(*arguments: str | Path, text: str | None = None) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["promtool", *map(str, arguments)], input=text, capture_output=True, text=True, timeout=BOUND_S
    )


def alerts() -> list[str]:
    return re.findall(r"^ *- alert: (\w+)$", ALERTS.read_text(), flags=re.M)


# Alerts.


@needs_promtool
def test_alerts_are_right():
    checked = promtool("check", "rules", ALERTS)
    assert checked.returncode == 0 and f"{len(alerts())} rules found" in checked.stdout, checked.stdout + checked.stderr
    tested = promtool("test", "rules", ALERT_TESTS)
    assert tested.returncode == 0, tested.stdout + tested.stderr


@needs_promtool
@pytest.mark.parametrize("alert", alerts())
def test_each_alert_has_a_test_that_fails_without_it(alert, tmp_path):
    without = re.sub(rf"- alert: {alert}\b", f"- alert: {alert}Renamed", ALERTS.read_text())
    (tmp_path / ALERTS.name).write_text(without)
    shutil.copy(ALERT_TESTS, tmp_path)
    tested = promtool("test", "rules", tmp_path / ALERT_TESTS.name)
    assert tested.returncode != 0 and alert in tested.stdout + tested.stderr


def test_each_alert_has_a_page_in_the_runbook():
    pages = re.findall(r"^### (\w+)$", RUNBOOK.read_text(), flags=re.M)
    assert pages == alerts()
    named = re.findall(r"runbook: docs/monitoring\.md#(\w+)$", ALERTS.read_text(), flags=re.M)
    assert named == [alert.lower() for alert in alerts()]


# What comes from the network.


def hostile_status() -> dict:
    """A status of more jobs, ranks, tenants and reasons than are shown, all with long names that are no plain text."""
    odd = 'a"b\\c\n{}=,\x00é\u202e' * 100
    rank = {"host": odd, "pid": 1, "state": "connected", "udp_address": odd}
    tree = {
        "tree": 0,
        "window": 5,
        "rtt_ns": 7,
        "results": 1,
        "retransmits": 1,
        "spurious_retransmits": 1,
        "marks": 1,
        "bytes_tx": 1,
        "bytes_rx": 1,
    }
    counts = ("host_bytes_tx", "host_bytes_rx", "operations", "network_operations", "plan_epoch")
    statistics = dict.fromkeys(counts, 1) | {"trees": [tree], "pauses": [], "silent_trees": [], "unreachable_ranks": []}
    ranks = [{**rank, "rank": i, "statistics": statistics} for i in range(8)]
    job = {"name": odd, "state": "running", "epoch": 1, "trees": [], "ranks": ranks, "protocol": odd, "tenant": odd}
    tenant = {"packets": 1, "bytes": 1, "marked": 1, "dropped": 1}
    switch = {
        **dict.fromkeys(("memory_bytes", "memory_leased_bytes", "slots", "slots_held"), 1),
        **{"name": "s", "role": "switch", "state": "up"},
        "drops": {f"{i} {odd}": 1 for i in range(10 * REASONS_MAX)},
        "tenants": [{**tenant, "tenant": f"{i} {odd}"} for i in range(10 * TENANTS_MAX)],
    }
    return {
        **{"fabric": odd, "version": odd, "uptime_s": 1.0, "store": None, "links": [], "switches": [switch]},
        "jobs": [{**job, "job": i} for i in range(2 * JOBS_MAX)],
    }


def series(page: str, name: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith(f"{name}{{")]


@needs_promtool
def test_hostile_names_make_neither_many_series_nor_bad_ones():
    page = generate_latest(registry(hostile_status)).decode()
    checked = promtool("check", "metrics", text=page)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    assert len(series(page, "netsum_job_info")) == JOBS_MAX
    assert len(series(page, "netsum_rank_operations_total")) == RANKS_MAX
    assert f"netsum_ranks_not_shown {float(8 * JOBS_MAX - RANKS_MAX)}" in page
    assert len(series(page, "netsum_fabric_switch_dropped_packets_total")) == REASONS_MAX
    assert len(series(page, "netsum_fabric_tenant_packets_total")) == TENANTS_MAX
    longest = max(len(value) for value in re.findall(r'="((?:\\.|[^"\\])*)"', page))
    # An escaped character is two.
    assert longest <= 2 * TEXT_MAX
    assert "\x00" not in page and "\u202e" not in page


# A live fabric.


@pytest.fixture
def scraped(block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalFabric]:
    """The demo's fabric, whose switches serve metrics."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    lines = []
    for line in demo_toml(block).splitlines():
        lines.append(line)
        if match := re.match(r'address = "(127\.\d+\.2\.\d+):7701"', line):
            lines.append(f'metrics = "{match[1]}:9100"')
    lines += ["[[tenant]]", f'name = "{TENANT}"']
    (tmp_path / "fabric.toml").write_text("\n".join(lines) + "\n")
    with temporary(Description.read(tmp_path / "fabric.toml")) as running:
        yield running


@contextmanager
def process(*command: str | Path, ready: str, **options) -> Iterator[subprocess.Popen]:
    """A process that has said `ready` in a line of its output; it is stopped at the end."""
    running = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True, **options)
    try:
        said = []
        for line in running.stdout:
            said.append(line)
            if ready in line:
                break
        else:
            raise AssertionError("".join(said))
        running.said = said[-1]
        yield running
    finally:
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=BOUND_S)


def netsum(*arguments: str | Path) -> list[str | Path]:
    return [sys.executable, "-c", "from netsum.cli import main; main()", *arguments]


def sum_forever(rank: int, controller: str, credentials: str, tenant: str, end) -> None:
    """A rank of a job that sums on trees until it is stopped."""
    import array

    from netsum import Group

    options = {"min_bytes": "0", "credentials": credentials} | ({"tenant": tenant} if tenant else {})
    group = Group(rank, RANKS, "a job", controller, None, 60.0, options)
    end.send(group.address())
    group.connect(end.recv())
    values = array.array("f", [1.0] * 20_000)
    address, _ = values.buffer_info()
    for _ in range(OPERATIONS):
        group.allreduce(address, len(values), "float32", "max", 1.0, 60.0).wait(None)


@contextmanager
def job(fabric: LocalFabric, tenant: str = TENANT) -> Iterator[None]:
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(RANKS)]
    settings = fabric.environment()
    where = (settings["NETSUM_CONTROLLER"], settings["NETSUM_CREDENTIALS"], tenant)
    workers = [
        context.Process(target=sum_forever, args=(rank, *where, pipes[rank][1]), daemon=True) for rank in range(RANKS)
    ]
    try:
        for worker in workers:
            worker.start()
        addresses = [mine.recv() for mine, _ in pipes]
        for mine, _ in pipes:
            mine.send(addresses)
        yield
    finally:
        for worker in workers:
            worker.kill()
            worker.join()


def configuration(fabric: LocalFabric, exporter: str, folder: Path) -> Path:
    """Prometheus's, as docs/monitoring.md shows it, but with short intervals."""
    own = folder_of(fabric.folder, "operator")
    switches = [switch.metrics for switch in fabric.description.switches]
    text = f"""
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: ["{ALERTS}"]
scrape_configs:
  - job_name: netsum
    static_configs: [{{targets: ["{exporter}"]}}]
  - job_name: netsum-switches
    scheme: https
    tls_config:
      server_name: switch.{fabric.description.name}.netsum.invalid
      ca_file: {own}/ca.pem
      cert_file: {own}/identity.pem
      key_file: {own}/identity-key.pem
    static_configs: [{{targets: {json.dumps(switches)}}}]
"""
    path = folder / "prometheus.yml"
    path.write_text(text)
    return path


def ask(prometheus: str, path: str, **parameters: str) -> dict | list:
    url = f"http://{prometheus}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    try:
        with urllib.request.urlopen(url, timeout=BOUND_S) as answer:
            return json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{parameters}: {error.read().decode()}") from error


@contextmanager
def prometheus(fabric: LocalFabric, folder: Path) -> Iterator[str]:
    """A Prometheus that scrapes `netsum metrics` and the switches; its address."""
    arguments = netsum("metrics", "--fabric", fabric.description.path, "--listen", "127.0.0.1:0")
    with process(*arguments, ready="ready") as exporter, reserved_port() as port:
        target = exporter.said.split("/")[2]
        at = f"127.0.0.1:{port}"
        own = configuration(fabric, target, folder)
        options = (f"--config.file={own}", f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address={at}")
        with process("prometheus", *options, ready="ready to receive", stderr=subprocess.STDOUT):
            yield at


def expressions() -> list[tuple[str, str]]:
    """The title and the query of each line of each panel."""
    found = []
    for file in DASHBOARDS:
        for panel in json.loads(file.read_text())["panels"]:
            found += [(f"{file.stem}: {panel['title']}", target["expr"]) for target in panel["targets"]]
    return found


@needs_prometheus
def test_every_query_of_every_dashboard_has_data_from_a_live_fabric(scraped: LocalFabric, tmp_path):
    with job(scraped), prometheus(scraped, tmp_path) as at:
        wait_until(lambda: bool(ask(at, "query", query="netsum_job_info")["result"]))
        number = ask(at, "query", query="netsum_job_info")["result"][0]["metric"]["job"]
        for title, expression in expressions():
            query = expression.replace("$job", number)

            def has_data(query: str = query) -> bool:
                return bool(ask(at, "query", query=query)["result"])

            try:
                wait_until(has_data)
            except AssertionError as error:
                raise AssertionError(f"{title}: {query}") from error
        # The rules are loaded, and nothing is wrong with the fabric.
        rules = [rule for group in ask(at, "rules")["groups"] for rule in group["rules"]]
        assert {rule["name"] for rule in rules} == set(alerts())
        assert all(rule["health"] in ("ok", "unknown") for rule in rules)
        # A switch that is killed is seen to be down.
        scraped.process("spine1").stop()
        down = 'netsum_fabric_switch_up{switch="spine1"} == 0'
        wait_until(lambda: bool(ask(at, "query", query=down)["result"]))


def test_the_dashboards_have_queries():
    assert len(expressions()) > 20
    assert all("$job" in query for title, query in expressions() if title.startswith("job:"))


def page_of_switch(fabric: LocalFabric, address: str) -> str:
    """A switch's page as curl gets it, with leases of a job."""
    own = folder_of(fabric.folder, "operator")
    context = ssl.create_default_context(cafile=own / "ca.pem")
    context.load_cert_chain(own / "identity.pem", own / "identity-key.pem")
    # The certificate is for a name, not for the address.
    context.check_hostname = False
    request = urllib.request.Request(f"https://{address}/metrics", headers={"Accept": "*/*"})
    with urllib.request.urlopen(request, timeout=BOUND_S, context=context) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        page = answer.read().decode()
    assert series(page, "netsum_switch_tree_results_total")
    return page


@needs_promtool
def test_pages_of_a_live_fabric_pass_promtool(scraped: LocalFabric):
    arguments = netsum("metrics", "--fabric", scraped.description.path, "--listen", "127.0.0.1:0")
    with job(scraped), process(*arguments, ready="ready") as exporter:
        url = exporter.said.split()[1]

        def page() -> str:
            return urllib.request.urlopen(url, timeout=BOUND_S).read().decode()

        wait_until(lambda: bool(series(page(), "netsum_rank_results_total")))
        checked = promtool("check", "metrics", text=page())
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
        for switch in scraped.description.switches:
            checked = promtool("check", "metrics", text=page_of_switch(scraped, switch.metrics))
            assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
        scraped.process("controller").stop()
        assert "netsum_controller_up 0.0" in page()
    assert exporter.returncode == 0


class JsonLogs(LocalFabric):
    """A fabric whose daemons log JSON."""

    def daemon(self, name: str) -> Daemon:
        made = super().daemon(name)
        return Daemon(name, [*made.command, "--log", "json"], self.folder)


def test_logs_in_json_say_which_job_tree_and_epoch(fabric_file, tmp_path):
    fabric = JsonLogs(Description.read(fabric_file), tmp_path / "fabric")
    fabric.up(tied=True)
    try:
        with job(fabric, tenant=""):
            wait_until(lambda: "installed a lease" in fabric.process("rack0").log.read_text())
    finally:
        fabric.down()
    for name in fabric.names():
        events = [json.loads(line) for line in fabric.process(name).log.read_text().splitlines()]
        assert all({"timestamp", "level", "target", "fields"} <= set(event) for event in events)
        if name == "rack0":
            installed = next(e["fields"] for e in events if e["fields"]["message"] == "installed a lease")
            assert installed["epoch"] == 1 and {"job", "tree"} <= set(installed)


def test_what_cannot_be_served_is_named(fabric_file, tmp_path):
    ended = subprocess.run(
        netsum("metrics", "--fabric", fabric_file, "--secure", tmp_path),
        capture_output=True,
        text=True,
        timeout=BOUND_S,
    )
    assert ended.returncode == 1 and "identity.pem is missing" in ended.stderr
    at = ("--listen", "192.0.2.1:1")
    ended = subprocess.run(
        netsum("metrics", "--fabric", fabric_file, *at), capture_output=True, text=True, timeout=BOUND_S
    )
    assert ended.returncode == 1 and "192.0.2.1:1" in ended.stderr
