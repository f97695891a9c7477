"""Several interfaces of two hosts at once, without a plan and without configured rates."""

from __future__ import annotations

import statistics

import pytest

from fragment import Fragment
from test_plans import PAYLOAD, bytes_of, pair
from test_replan import Job
from test_throughput import write

MBIT = (100, 40)


class Interfaces(Job):
    """Ranks configured with their interfaces' names only: a link between the hosts, and one through a router."""

    def settings(self, links: Fragment, name: str) -> dict[str, str]:
        other = next(each for each in links.gpus if each != name)
        return {"NETSUM_INTERFACES": f"{other},net0"}


# As for plans: on a busy machine bytes are compared and not times.
THOROUGH = pytest.param(30, 0.9, marks=pytest.mark.figures, id="thorough")
BRIEF = pytest.param(12, None, id="brief")


@pytest.mark.parametrize(("count", "least"), [BRIEF, THOROUGH])
def test_unequal_interfaces_are_used_together_without_a_plan(count, least, tmp_path):
    size = bytes_of(3, sum(MBIT) / 8000)
    with Fragment(pair(MBIT)) as links:
        job = Interfaces(links, pair(MBIT), tmp_path, {"elements": size // 8, "steps": count, "pause_s": 0.0})
        ranks = job.results()
        sent = links.sent_bytes(links.gpus[0])
    steps = [max(times) for times in zip(*(rank["seconds"] for rank in ranks), strict=True)]
    of_wire = [size * 8 / seconds / (sum(MBIT) * 1e6) for seconds in steps]
    last = statistics.median(of_wire[-4:])
    write("interfaces", {"mbit": MBIT, "of_wire": of_wire, "last_of_wire": last, "last_of_payload": last / PAYLOAD})
    assert least is None or last >= least, of_wire
    # Shares begin equal, and those of the links are 0.71 and 0.29.
    assert max(sent.values()) / sum(sent.values()) > 0.55, sent


def test_an_interface_that_dies_is_left_out(tmp_path):
    arguments = {"elements": 200_000, "steps": 30, "pause_s": 0.02}
    with Fragment(pair(MBIT)) as links:
        job = Interfaces(links, pair(MBIT), tmp_path, arguments)
        job.wait_for_step(6)
        links.cut("host0", "host1")
        ranks = job.results()
    found = [rank["stats"] for rank in ranks]
    assert {stats["plan"]["epoch"] for stats in found} == {2}, found
    assert "host0–net0–host1" in found[0]["reason"] or "host1–net0–host0" in found[0]["reason"], found[0]
