"""PANAMA Fig. 2: transfer sizes in a shared training cluster. The paper's curve is not available; these are ours."""

import math

from figures import Claim, Figure, Plot

# Published tables (docs/simulator.md): bytes, and share of flows up to that size.
WEB_SEARCH = [
    (1e4, 0.15),
    (2e4, 0.2),
    (3e4, 0.3),
    (5e4, 0.4),
    (8e4, 0.53),
    (2e5, 0.6),
    (1e6, 0.7),
    (2e6, 0.8),
    (5e6, 0.9),
    (1e7, 0.97),
    (3e7, 1.0),
]
DATA_MINING = [
    (180, 0.1),
    (216, 0.2),
    (560, 0.3),
    (900, 0.4),
    (1100, 0.5),
    (1870, 0.6),
    (3160, 0.7),
    (1e4, 0.8),
    (4e5, 0.9),
    (3.16e6, 0.95),
    (1e8, 0.98),
    (1e9, 1.0),
]
GRADIENTS = [26_499_616, 95_000_000, 102_000_000, 241_000_000, 244_403_360, 553_000_000]
AGGREGATED_FROM = 40e6


def make(figure: Figure, tell) -> dict:
    """No simulation: the distributions used by the other figures."""
    least, most = DATA_MINING[0][0], DATA_MINING[-1][0]
    below = [size for size in GRADIENTS if size < AGGREGATED_FROM]
    claims = [
        Claim(
            "transfers from a few kB to hundreds of GB",
            "few kB to 100s of GB",
            f"{least:.0f} B to {most / 1e9:.0f} GB",
            False,
            "the published flow sizes end at 1 GB; larger data sets would last longer than any run here. The "
            "paper's own distribution is lost",
        ),
        Claim(
            "gradients are among the large transfers (over 40 MB)",
            "yes",
            f"{len(GRADIENTS) - len(below)} of {len(GRADIENTS)} models",
            True,
            "GoogLeNet's 26.5 MB lie below, so by the paper's rule its jobs would not "
            "be aggregated; here they are, for one rule for all jobs",
        ),
    ]

    def logs(points):
        return [(math.log10(size), share) for size, share in points]

    gradients = [(size, (i + 1) / len(GRADIENTS)) for i, size in enumerate(GRADIENTS)]
    series = {"web search": logs(WEB_SEARCH), "data mining": logs(DATA_MINING), "gradients": logs(gradients)}
    return figure.write(claims, [Plot("Share of transfers that are not larger", "", "log10 of bytes", series)], series)
