"""The page in a real browser: every panel on a live fabric, a dead switch, names that are not markup, size, and axe."""

import contextlib
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="make setup-browser installs what tests of the page need")

from playwright.sync_api import Browser, Page, expect, sync_playwright
from processes import BOUND_S, wait_until
from synthetic import SyntheticFabric

import netsum
from netsum import pages, sim
from netsum.cli.dashboard import page_of
from netsum.communicator import connect
from netsum.dashboard.server import Dashboard
from netsum.dashboard.watch import Watch
from netsum.fabric.local import LocalFabric
from netsum.fabric.reservations import reserved_port
from netsum.sim import report

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
AXE = Path(__file__).parent / "node_modules/axe-core/axe.min.js"
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]
WIDTHS = (1400, 820, 390)
RANKS = 4
needs_axe = pytest.mark.skipif(not AXE.is_file(), reason="make setup-browser installs axe-core")
pytestmark = pytest.mark.skipif(
    not Path(CHROMIUM).is_file(), reason="make setup-browser installs the browser that tests of the page need"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # A new, empty profile: Playwright makes one for each launch.
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS, headless=True)
        yield opened
        opened.close()


@contextlib.contextmanager
def opened(browser: Browser, served: Dashboard, **options: Any) -> Iterator[Page]:
    """The page of a dashboard; fails if the page has had an error."""
    served.start()
    context = browser.new_context(viewport={"width": WIDTHS[0], "height": 900}, **options)
    context.set_default_timeout(BOUND_S * 1000)
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
    try:
        page.goto(served.url)
        page.wait_for_selector("#fabric canvas")
        yield page
        assert problems == []
    finally:
        context.close()
        served.stop()


def synthetic(fabric: SyntheticFabric) -> Dashboard:
    return Dashboard(Watch(fabric.status, fabric.operations))


def train_forever(rank: int, controller: str, credentials: str, end: Any) -> None:
    """Steps of two sums each until the end, with a pause in between as a training has."""
    import numpy as np

    os.environ.update(NETSUM_CONTROLLER=controller, NETSUM_CREDENTIALS=credentials, RANK=str(rank))
    with connect(name="<b>train</b>") as ours:
        large, small = np.ones(1 << 18, np.float32), np.ones(1 << 14, np.float32)
        going = np.ones(1, np.float32)
        while going[0] > 0:
            ours.allreduce(large)
            ours.allreduce(small)
            time.sleep(0.05 if rank != 2 else 0.12)
            going[0] = 0.0 if end.is_set() else 1.0
            ours.allreduce(going, op="min")


@contextlib.contextmanager
def training(fabric: LocalFabric) -> Iterator[None]:
    """A job of four ranks, of which rank 2 is late."""
    context = multiprocessing.get_context("spawn")
    end = context.Event()
    settings = fabric.environment()
    with reserved_port() as port, pytest.MonkeyPatch.context() as environment:
        for name, value in {
            "WORLD_SIZE": str(RANKS),
            "NETSUM_MEETING": f"127.0.0.1:{port}",
            "NETSUM_TOKEN": "ab" * 16,
        }.items():
            environment.setenv(name, value)
        arguments = (settings["NETSUM_CONTROLLER"], settings["NETSUM_CREDENTIALS"], end)
        ranks = [context.Process(target=train_forever, args=(rank, *arguments), daemon=True) for rank in range(RANKS)]
        for rank in ranks:
            rank.start()
        try:
            yield
        finally:
            end.set()
            for rank in ranks:
                rank.join(BOUND_S)
                rank.kill()


def eventually(page: Page, place: str, said: Callable[[str], bool]) -> str:
    """The text of a place once `said` holds of it."""
    found = ""

    def reached() -> bool:
        nonlocal found
        found = page.locator(place).inner_text() if page.locator(place).count() else ""
        return said(found)

    wait_until(reached)
    return found


def test_every_panel_shows_a_live_fabric_and_a_dead_switch_is_named(browser: Browser, fabric: LocalFabric) -> None:
    served = page_of(fabric.description.controller, Path(fabric.environment()["NETSUM_CREDENTIALS"]))
    with training(fabric), opened(browser, served) as page:
        jobs = eventually(page, "#jobs", lambda text: "bit/s" in text and "ms" in text and "Mbit" in text)
        assert "<b>train</b>" in jobs, "a name is text, not markup"
        label = page.locator("#fabric canvas").get_attribute("aria-label")
        assert label == "8 nodes and 8 links; all switches are up"
        eventually(page, "#stragglers", lambda text: "rank 2 (" in text)
        eventually(page, "#tenants", lambda text: "default" in text and "100%" in text)
        switches = page.locator("#switches").inner_text()
        assert all(name in switches for name in ("rack0", "spine1", "server0")) and "64 MiB" in switches
        # Arrow keys choose nodes, and their figures are told.
        page.locator("#fabric .picture").press("ArrowRight")
        expect(page.locator("#fabric #chosen")).to_contain_text("h0")

        page.locator("#jobs a").click()
        eventually(page, "#why", lambda text: "All wait for rank 2" in text)
        eventually(page, "#timeline", lambda text: "allreduce float32" in text)
        eventually(page, "#ranks", lambda text: all(f"h{rank}" in text for rank in range(RANKS)))
        eventually(page, "#trees", lambda text: "spine" in text and "%" in text)
        eventually(page, "#curves", lambda text: "Sent per rank" in text)
        check_trace(page)

        fabric.daemon("spine1").kill()
        eventually(page, "#pauses", lambda text: "spine1" in text)
        page.keyboard.press("Escape")
        eventually(page, "#events", lambda text: "switch spine1 is down" in text and "paused for" in text)
        eventually(page, "#switches", lambda text: "1 down" in text)
        wait_until(lambda: "down: spine1" in page.locator("#fabric canvas").get_attribute("aria-label"))


def check_trace(page: Page) -> None:
    """The trace file has the operations of all ranks."""
    trace = page.evaluate("async () => (await fetch(document.querySelector('#timeline a').href)).json()")
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert {event["tid"] for event in slices} >= {rank + 1 for rank in range(RANKS)}
    assert {event["name"] for event in slices} == {"allreduce float32"}
    assert all(event["dur"] >= 0 and event["args"]["bytes"] > 0 for event in slices)


def test_a_dead_controller_is_told_and_the_page_goes_on(browser: Browser, fabric: LocalFabric) -> None:
    served = page_of(fabric.description.controller, Path(fabric.environment()["NETSUM_CREDENTIALS"]))
    with opened(browser, served) as page:
        fabric.daemon("controller").kill()
        eventually(page, "#events", lambda text: "does not answer" in text)
        assert page.locator("[role=alert]").count() == 1
        fabric.daemon("controller").start(tied=True)
        eventually(page, "#events", lambda text: "answers again" in text)
        wait_until(lambda: page.locator("[role=alert]").count() == 0)


def test_a_slow_link_that_switches_see_is_told_in_words(browser: Browser) -> None:
    told = "he link from rank 2 to rack1 is slow: the others wait for"
    with opened(browser, synthetic(SyntheticFabric(racks=4, spines=2, hosts=4, jobs=2, ranks=4))) as page:
        eventually(page, "#stragglers", lambda text: "job 1 train-1: t" + told in text)
        page.locator("#jobs a").first.click()
        eventually(page, "#why", lambda text: "Attention. T" + told in text)


@needs_axe
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious_and_nothing_is_cut_off(browser: Browser, theme: str) -> None:
    fabric = SyntheticFabric(racks=4, spines=2, hosts=4, jobs=12, ranks=8)
    fabric.down = {"rack1"}
    with opened(browser, synthetic(fabric), color_scheme=theme, bypass_csp=True) as page:
        eventually(page, "#jobs", lambda text: "train-1" in text)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            for address, place in (("#/", "#switches"), ("#/job/1", "#ranks")):
                page.evaluate("address => (location.hash = address)", address)
                page.wait_for_selector(place)
                assert violations(page) == []
                wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
                assert wide <= 0, f"the page is {wide} pixels too wide at {width}, {address}"


def violations(page: Page) -> list[str]:
    """What axe calls serious or critical, with the first element of each."""
    if not page.evaluate("'axe' in window"):
        page.add_script_tag(path=AXE)
    found = page.evaluate("async () => (await axe.run()).violations")
    serious = [each for each in found if each["impact"] in ("serious", "critical")]
    return [f"{each['id']}: {each['nodes'][0]['html']}: {each['nodes'][0]['failureSummary']}" for each in serious]


CPU_MS_MAX = 100
HEAP_MAX = 100e6


def test_a_thousand_switches_and_two_hundred_jobs_stay_fluid(browser: Browser) -> None:
    fabric = SyntheticFabric(racks=960, spines=40, hosts=4, jobs=200, ranks=16)
    watch = (
        "window.took = 0; new PerformanceObserver((list) => (took += list.getEntriesByName('netsum-update').length))"
    )
    with opened(browser, synthetic(fabric)) as page:
        page.evaluate(f"() => {{ {watch}.observe({{ entryTypes: ['measure'] }}) }}")
        session = page.context.new_cdp_session(page)
        # The browser's own time on a processor, whatever else runs on this machine.
        session.send("Performance.enable", {"timeDomain": "threadTicks"})

        def updates() -> int:
            found: int = page.evaluate("took")
            return found

        wait_until(lambda: updates() >= 2)
        before, first = metrics(session), updates()
        wait_until(lambda: updates() >= first + 5)
        after, count = metrics(session), updates() - first
        session.send("HeapProfiler.collectGarbage")
        per_update_ms = 1000 * (after["TaskDuration"] - before["TaskDuration"]) / count
        heap = metrics(session)["JSHeapUsedSize"]
        print(f"{per_update_ms:.0f} ms of a processor per update, {heap / 1e6:.1f} MB")
        assert per_update_ms < CPU_MS_MAX and heap < HEAP_MAX
        fabric.down = {"rack17"}
        eventually(page, "#events", lambda text: "switch rack17 is down" in text)


def metrics(session: Any) -> dict[str, float]:
    return {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}


def test_the_bundle_is_what_its_sources_give() -> None:
    folder = Path(__file__).parent
    if not (folder / "node_modules/esbuild").is_dir():
        pytest.skip("make setup-browser installs what the bundle is made of")
    import subprocess

    page = Path(netsum.__file__).with_name("dashboard") / "page"
    names = ("vendor.js", "vendor.css", "LICENSES.txt")
    committed = {name: (page / name).read_bytes() for name in names}
    try:
        subprocess.run(["npm", "run", "--silent", "bundle"], cwd=folder, check=True, capture_output=True)
        assert {name: (page / name).read_bytes() for name in names} == committed
    finally:
        for name, content in committed.items():
            (page / name).write_bytes(content)


def test_pages_of_reports_do_not_scroll_sideways_on_phones(browser: Browser, tmp_path: Path) -> None:
    headings = [f"heading {number}" for number in range(12)]
    path = tmp_path / "report.html"
    path.write_text(pages.page("report", [pages.table(headings, [headings]), pages.figure("<svg></svg>")]))
    context = browser.new_context(viewport={"width": WIDTHS[-1], "height": 900})
    try:
        shown = context.new_page()
        shown.goto(path.as_uri())
        assert shown.evaluate("document.documentElement.scrollWidth") == WIDTHS[-1]
    finally:
        context.close()


def test_the_report_of_a_simulation_moves(browser: Browser, tmp_path: Path) -> None:
    fabric = {"kind": "single-switch", "hosts": 2}
    samples = {"every": "10us", "links": ["*"]}
    flows = [{"kind": "trace", "path": str(tmp_path / "flows.csv")}]
    (tmp_path / "flows.csv").write_text("0,0,1,1000000\n")
    run = sim.run({"duration": "1ms", "fabric": fabric, "flows": flows, "samples": samples}, tmp_path / "out")
    context = browser.new_context()
    try:
        page = context.new_page()
        errors: list[Any] = []
        page.on("pageerror", lambda error: errors.append(error))
        page.goto(report.write(run).as_uri())
        there, back = (
            page.locator(".animation line").filter(has=page.locator("title", has_text=name))
            for name in ("h0 → rack0", "rack0 → h0")
        )
        page.locator(".animation input").fill("40")
        expect(page.locator(".animation output")).to_have_text("0.41 to 0.42 ms")
        # One direction carries the flow, the other one its acknowledgements.
        expect(there).to_have_attribute("stroke-width", "2.3")
        expect(back).to_have_attribute("stroke-width", "0.7")
        page.locator(".animation button").click()
        expect(page.locator(".animation output")).not_to_have_text("0.41 to 0.42 ms")
        assert not errors
    finally:
        context.close()
