"""What to use when: times of an allreduce, and of training steps, by fabric, size, load and scheme, as fluids."""

import itertools
import statistics

from figures import Claim, Figure, Plot

# Workers, link rates in Gbit/s, gradient bytes, hosts' bandwidth over that of the racks' uplinks, share of the hosts'
# links that other flows take.
SCALES = {
    "small": ([8, 32], [1, 100], [100_000, 10_000_000], [1, 4], [0.0, 0.4]),
    "medium": ([8, 32, 128], [1, 10, 100], [100_000, 1_000_000, 100_000_000], [1, 4], [0.0, 0.2, 0.4]),
    "full": (
        [8, 32, 128, 512],
        [1, 10, 100, 400],
        [100_000, 1_000_000, 10_000_000, 100_000_000],
        [1, 4],
        [0.0, 0.2, 0.4],
    ),
}
SPINES = 4
# Beyond, every worker is a server of too many shares.
SERVERS_MAX = 128
# A name, the scheme, and the bytes that travel, as a share of those of float32. Of sparse gradients a tenth of the
# blocks are not zero at some rank.
SCHEMES = {
    "trees": ("panama", 1.0),
    "trees, bf16": ("panama", 0.5),
    "trees, sparse": ("panama", 0.1),
    "ring": ("ring", 1.0),
    "ring, bf16": ("ring", 0.5),
    "halving and doubling": ("halving-doubling", 1.0),
    "parameter servers": ("parameter-server", 1.0),
}
FULL_PRECISION = ["trees", "ring", "halving and doubling", "parameter servers"]
# Seconds of computing per step at the batch of its benchmark (crates/sim/src/job/models.rs), and bytes of gradients.
MODELS = {"googlenet": (0.119, 26_499_616), "resnet50": (0.292, 102_000_000), "vgg16": (0.416, 553_000_000)}
STEPS = 3
LITTLE = 1.05
"""A step that is faster by less than this factor is not worth a network of switches that add."""

Cell = tuple[int, int, int, int, float]


def make(figure: Figure, tell) -> dict:
    """Times by cell and scheme; which scheme is fastest, and by how much; from when trees are useless."""
    cells = list(itertools.product(*SCALES[figure.scale]))
    configs = {
        _name(cell, scheme): _config(cell, scheme) for cell in cells for scheme in SCHEMES if _is_possible(cell, scheme)
    }
    runs = figure.run(configs, tell)

    def reduce_ms(cell: Cell, scheme: str) -> float:
        return runs[_name(cell, scheme)].summary["steps"]["reduce_us"]["mean"] / 1e3

    times = {
        cell: {scheme: reduce_ms(cell, scheme) for scheme in SCHEMES if _is_possible(cell, scheme)} for cell in cells
    }
    gains = {cell: _best_of_hosts(of)[1] / of["trees"] for cell, of in times.items()}
    return figure.write(_claims(times, gains), _plots(figure.scale, times), _rows(times, gains))


def _is_possible(cell: Cell, scheme: str) -> bool:
    return scheme != "parameter servers" or cell[0] <= SERVERS_MAX


def _name(cell: Cell, scheme: str) -> str:
    workers, rate, size, over, load = cell
    return f"{scheme},workers={workers},gbits={rate},bytes={size},over={over},load={load}"


def _config(cell: Cell, scheme: str) -> dict:
    workers, rate, size, over, load = cell
    kind, share = SCHEMES[scheme]
    # The other half of each rack's hosts only sends and receives what loads the links.
    racks = max(2, workers // 8)
    in_rack = workers // racks
    hosts = [rack * 2 * in_rack + host for rack in range(racks) for host in range(in_rack)]
    uplink = 2 * in_rack * rate / SPINES / over
    config = {
        "duration": "1000s",
        "stop_with_jobs": True,
        "fabric": {
            "kind": "leaf-spine",
            "racks": racks,
            "hosts_per_rack": 2 * in_rack,
            "spines": SPINES,
            "rate": f"{rate}Gbit/s",
            "uplink_rate": f"{uplink}Gbit/s",
        },
        "scheme": {"kind": "fluid"},
        "jobs": [
            {"compute": "1us", "bytes": round(size * share), "hosts": hosts, "steps": STEPS, "scheme": {"kind": kind}}
        ],
    }
    if load:
        config["flows"] = [{"kind": "poisson", "load": load, "sizes": "web-search"}]
        config["duration"] = f"{_seconds(cell) * 20:.6f}s"
    return config


def _seconds(cell: Cell) -> float:
    """How long a ring alone takes, about."""
    workers, rate, size, over, _ = cell
    return STEPS * (2 * size * 8 / (rate * 1e9) * max(1, over / 2) + 2 * workers * 10e-6)


def _best_of_hosts(of: dict[str, float]) -> tuple[str, float]:
    return min(((name, of[name]) for name in FULL_PRECISION[1:] if name in of), key=lambda pair: pair[1])


def _claims(times: dict[Cell, dict[str, float]], gains: dict[Cell, float]) -> list[Claim]:
    """Predictions, written before the first run."""
    alone = {cell: gain for cell, gain in gains.items() if cell[4] == 0 and cell[3] == 1}
    largest = max(cell[2] for cell in alone)
    large = [gain for cell, gain in alone.items() if cell[2] == largest]
    bound = {cell: 2 * (cell[0] - 1) / cell[0] for cell in alone}
    small = {cell: gain for cell, gain in alone.items() if cell[2] < largest and cell[1] == max(c[1] for c in alone)}
    over = [
        times[cell]["ring"] / times[cell]["trees"]
        for cell in times
        if cell[3] > 1 and cell[4] == 0 and cell[2] == largest
    ]
    loaded = [gain for cell, gain in gains.items() if cell[4] > 0 and cell[2] == largest]
    halves = [of["ring, bf16"] / of["trees"] for cell, of in times.items() if cell[2] == largest and cell[4] == 0]
    return [
        Claim(
            "large gradients on an idle fabric: trees take 2(N-1)/N times less than the best of the hosts",
            "1.75 to 2",
            f"{min(large):.2f} to {max(large):.2f}",
            all(abs(alone[cell] / bound[cell] - 1) < 0.05 for cell in alone if cell[2] == largest),
            "every link carries the gradients once each way instead of 2(N-1)/N times",
        ),
        Claim(
            "small gradients on fast links: trees gain more than 2, since a ring takes 2(N-1) steps",
            "> 2",
            f"{min(small.values()):.2f} to {max(small.values()):.2f}" if small else "none",
            all(gain > 2 for gain in small.values()),
            "the prediction forgot parameter servers, whose two steps are the best of the hosts",
        ),
        Claim(
            "racks with a quarter of the uplinks: rings lose no more than on a full fabric",
            "at most 2.1",
            f"{min(over):.2f} to {max(over):.2f}",
            max(over) < 2.1,
            "where hashing puts two connections of a ring on one thin uplink it is slower; trees are planned apart",
        ),
        Claim(
            "beside other flows trees gain less than on an idle fabric, and still gain",
            "1 to 2",
            f"{min(loaded):.2f} to {max(loaded):.2f}, median {statistics.median(loaded):.2f}",
            1 < statistics.median(loaded) < 2,
            "shares are per connection: parameter servers have more of them than four trees, and a ring has one",
        ),
        Claim(
            "a ring of bf16 takes as long as trees of float32",
            "0.88 to 1.05",
            f"{min(halves):.2f} to {max(halves):.2f}",
            all(0.88 <= half <= 1.05 for half in halves),
            "half of the bytes, twice; where connections of a ring share an uplink it takes longer",
        ),
    ]


def _rows(times: dict[Cell, dict[str, float]], gains: dict[Cell, float]) -> list[dict]:
    """The map: a row per cell."""
    rows = []
    for cell, of in times.items():
        workers, rate, size, over, load = cell
        hosts, host_ms = _best_of_hosts(of)
        rows.append(
            {
                "workers": workers,
                "gbits": rate,
                "bytes": size,
                "oversubscribed": over,
                "load": load,
                "ms": {name: round(ms, 4) for name, ms in of.items()},
                "best_of_hosts": hosts,
                "trees_gain": round(gains[cell], 3),
                "useless_from_compute_ms": round(max(0.0, (host_ms - LITTLE * of["trees"]) / (LITTLE - 1)), 1),
            }
        )
    return rows


def _plots(scale: str, times: dict[Cell, dict[str, float]]) -> list[Plot]:
    """Gains of each scheme over the ring by workers, on idle fabrics; steps of models by batch."""
    workers, rates, sizes, *_ = SCALES[scale]
    plots = []
    for rate, size in itertools.product(rates, sizes):
        of = {n: times[n, rate, size, 1, 0.0] for n in workers}
        series = {
            scheme: [(n, of[n]["ring"] / of[n][scheme]) for n in workers if scheme in of[n]]
            for scheme in SCHEMES
            if scheme != "ring"
        }
        plots.append(Plot(f"{size / 1e6:g} MB at {rate} Gbit/s, idle", "times as fast as a ring", "workers", series))
    most, largest = max(workers), max(sizes)
    for rate in rates:
        of = times[most, rate, largest, 1, 0.0]
        series = {
            model: [(batch, _step_gain(of, batch * compute_s * 1e3, gradient / largest)) for batch in BATCHES]
            for model, (compute_s, gradient) in MODELS.items()
        }
        title = f"steps of {most} workers at {rate} Gbit/s: trees over the best of the hosts, without overlap"
        plots.append(Plot(title, "times as fast", "batch, of the benchmark's", series))
    return plots


BATCHES = [1 / 64, 1 / 16, 1 / 4, 1, 4]


def _step_gain(of: dict[str, float], compute_ms: float, scale: float) -> float:
    return (compute_ms + scale * _best_of_hosts(of)[1]) / (compute_ms + scale * of["trees"])
