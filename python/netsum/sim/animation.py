"""The links of a fabric over simulated time: a heat map that moves, with a slider, for runs that sample all links."""

import base64
import json
from collections import defaultdict
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

from netsum.sim.picture import LEVELS, colour, heat_map, strength, thickness

SCRIPT = Path(__file__).with_name("animation.js")
FRAMES = 240
"""More moments are thinned out: twelve seconds."""
BYTES = 4_000_000
"""More values than this are left out: a byte each, in the report."""


def animation(
    links: list[dict[str, Any]], samples: list[dict[str, Any]], hosts: set[str], simulated_us: float
) -> str | None:
    """HTML of a moving heat map; None if not every link was sampled at three moments or more.

    links, samples: rows of these tables of one part. simulated_us: the length of the run.
    """
    carried = defaultdict(list)
    for row in samples:
        carried[row["from"], row["to"]].append((row["time_us"], row["carried_bytes"]))
    series = [carried.get((link["from"], link["to"]), []) for link in links]
    if not series or min(map(len, series)) < 3:
        return None
    # A run waits for what is on its way, at most for its `drain`.
    busy_until = max(sum(count < rows[-1][1] for _, count in rows) for rows in series) + 1
    series = [rows[: max(busy_until, 3)] for rows in series]
    every = -(-(len(series[0]) - 1) // FRAMES)
    moments = [time for time, _ in series[0]][::every]
    if (len(moments) - 1) * len(series) > BYTES:
        return None
    frames = bytearray()
    for link, rows in zip(links, series, strict=True):
        # The whole run's share of time, divided by the bytes that took it.
        us_per_byte = link["utilisation"] * simulated_us / link["carried_bytes"] if link["carried_bytes"] else 0.0
        for before, after in pairwise(rows[::every]):
            busy = (after[1] - before[1]) * us_per_byte / (after[0] - before[0])
            frames.append(min(round(busy * (LEVELS - 1)), LEVELS - 1))
    facts = {
        "links": len(series),
        "times": [f"{before / 1e3:.4g} to {after / 1e3:.4g} ms" for before, after in pairwise(moments)],
        "levels": [[colour(at), strength(at), thickness(at)] for at in (i / (LEVELS - 1) for i in range(LEVELS))],
        "busy": base64.b64encode(frames).decode(),
    }
    # Lines of links that are equally busy are drawn in the order of the rows, in which the script counts them.
    still = heat_map([link | {"utilisation": 0.0} for link in links], hosts, figures=False)
    data = escape(json.dumps(facts, separators=(",", ":")), quote=True)
    return (
        f'<div class="animation" data-animation="{data}">{still}'
        '<p class="controls"><button type="button">play</button> '
        '<input type="range" min="0" value="0" aria-label="simulated time"> <output></output></p></div>'
        f"<script>{SCRIPT.read_text()}</script>"
    )
