"""Who makes a job's trees wait, by the meters of its switches."""

import json

from netsum import _core
from netsum.reports import ControllerStatus, Straggler


def between(before: ControllerStatus, now: ControllerStatus, seconds: float) -> list[Straggler]:
    """Children of jobs' trees for which the others waited between two statuses so many seconds apart, worst first."""
    found: list[Straggler] = json.loads(_core.stragglers(_meters(before), _meters(now), seconds))
    return found


def sentence(straggler: Straggler) -> str:
    """A straggler in words."""
    child, at, share = straggler["child"], straggler["at"], f"{straggler['share']:.1%}"
    return {
        "rank": f"{child} begins late: {at} waits for it for {share} of the time",
        "link": f"the link from {child} to {at} is slow: the others wait for {share} of the time",
        "rack": f"all ranks below {child} begin late: {at} waits for them for {share} of the time",
    }[straggler["slow"]]


def _meters(status: ControllerStatus) -> str:
    """The part of a status that the comparison reads: of a large fabric it is small."""
    switches = [
        {
            "name": switch["name"],
            "trees": [
                {"job": tree["job"], "tree": tree["tree"], "epoch": tree["epoch"], "children": tree["children"]}
                for tree in switch["trees"]
                if tree["children"]
            ],
        }
        for switch in status["switches"]
    ]
    return json.dumps({"switches": [switch for switch in switches if switch["trees"]]})
