"""ATP's experiments in the simulator, at its testbed's 100 Gbit/s: scarce slots, tenants, losses, congestion, racks.

The same claims on daemons and shaped links: atp_slots, atp_tenants, atp_loss, atp_congestion, atp_racks.
"""

import statistics
from collections import defaultdict

from figures import Claim, Figure, Plot

# Steps of a job; bytes of an allreduce: ATP's micro-benchmark has tensors of 4 MB.
SCALES = {"small": (2, 1_000_000), "medium": (5, 4_000_000), "full": (20, 4_000_000)}
WORKERS, WINDOW = 8, 256
SHARES_OF_SLOTS = [0.125, 0.25, 0.5, 0.75, 1.0]
SERVERS = [1, 2, 4, 8]
LOSSES = [0.0, 0.0001, 0.001, 0.01]
TENANTS = 3
# Parts of the time in which a job reduces. The claim is for a third: on average one of three jobs reduces.
DUTIES = [1.0, 1 / 2, 1 / 3, 1 / 5, 1 / 10]
DUTY = 1 / 3
# Parts of the slots that one job's window needs.
TENANTS_SLOTS = [0.25, 0.5, 1.0]


def make(figure: Figure, tell) -> dict:
    """Five small studies; each compares rates of the same job or jobs."""
    configs = _slots(figure) | _tenants(figure) | _losses(figure) | _congestion(figure) | _racks(figure)
    runs = figure.run(configs, tell)
    rates = {name: _rate(figure, runs[name]) for name in configs}
    half = {n: rates[f"slots=0.5,servers={n}"] / rates[f"slots=1.0,servers={n}"] for n in SERVERS}
    gain = {
        (policy, duty, share): rates[_tenants_name(policy, duty, share)]
        / rates[_tenants_name("partition", duty, share)]
        for policy in ("first-come", "preempt")
        for duty in DUTIES
        for share in TENANTS_SLOTS
    }
    shared, preempt = gain["first-come", DUTY, 1.0], gain["preempt", DUTY, 1.0]
    most = max((g, duty, share) for (policy, duty, share), g in gain.items() if policy == "first-come")
    control = rates["congestion,atp"] / rates["congestion,atp-no-control"]
    saved = 1 - _uplink_bytes(runs["racks,slots"]) / _uplink_bytes(runs["racks,none"])
    worst = min(rates[f"loss={loss},atp"] / rates[f"loss={loss},switchml"] for loss in LOSSES[1:])
    claims = [
        *(
            Claim(
                f"with half of the slots that it needs a job is at most 10 % slower: {n} server{'s' * (n > 1)}",
                "5 to 10 %",
                f"{1 - half[n]:.1%}",
                half[n] >= 0.9,
                "what finds no slot comes to a server from all eight workers: the link of one is full of it, those of "
                "four have room; the paper does not say how many there were",
            )
            for n in SERVERS
        ),
        Claim(
            "dynamic sharing beats a static partition when slots are scarce",
            1.38,
            round(shared, 2),
            shared >= 1.38,
            f"{TENANTS} jobs that reduce for a third of the time, slots for the window of one",
        ),
        Claim(
            "the same, the most over duties and numbers of slots",
            1.38,
            f"{most[0]:.2f} where a job reduces {most[1]:.0%} of the time and the slots are {most[2]:.0%} of a window",
            most[0] >= 1.38,
            "the fewer jobs reduce at a time, the more a partition leaves idle",
        ),
        Claim(
            "guarantees, priorities and preemption do no worse than first come",
            "not in the paper",
            round(preempt, 2),
            preempt >= 0.95 * shared,
            "against the partition, as the row before",
        ),
        Claim(
            "losses cost less than with SwitchML (worst of 0.01, 0.1 and 1 % per link)",
            1.34,
            round(worst, 2),
            worst >= 1.34,
            "rate of atp over rate of switchml; a pool waits for time-outs of 10 ms, slots for a round trip",
        ),
        Claim(
            "with congestion control the jobs are faster when they overload one server's link",
            3,
            round(control, 2),
            control >= 3,
            "four jobs, servers on one host, rate of all together; what is lost is sent again after a round trip, "
            "so without control less is lost than ATP's time-outs lost",
        ),
        Claim(
            "between racks two thirds of the traffic is saved",
            0.667,
            round(saved, 3),
            abs(saved - 2 / 3) <= 0.01,
            "three workers in each of two racks, the server in a third",
        ),
    ]
    plots = [
        Plot(
            "rate over the slots that a window needs",
            " Gbit/s",
            "per cent",
            {
                f"{n} server{'s' * (n > 1)}": [
                    (100 * share, rates[f"slots={share},servers={n}"]) for share in SHARES_OF_SLOTS
                ]
                for n in SERVERS
            },
        ),
        Plot(
            "rate where links lose packets",
            " Gbit/s",
            "per cent",
            {kind: [(100 * loss, rates[f"loss={loss},{kind}"]) for loss in LOSSES] for kind in ("atp", "switchml")},
        ),
    ]
    plots.append(
        Plot(
            "first come over partition",
            "times",
            "per cent of the time that a job reduces",
            {
                f"slots for {share:.0%} of a window": [(100 * duty, gain["first-come", duty, share]) for duty in DUTIES]
                for share in TENANTS_SLOTS
            },
        )
    )
    return figure.write(claims, plots, {"gbps": {name: round(rate, 3) for name, rate in rates.items()}})


def _config(figure: Figure, name: str, fabric: dict, jobs: list[dict], **more) -> dict:
    """Options of all studies: ATP's fragments, marking and queues as in the other studies."""
    steps, size = SCALES[figure.scale]
    scheme = {"kind": "atp", "window": WINDOW, "fragment_bytes": 248} | more.pop("scheme", {})
    jobs = [{"compute": "0ns", "bytes": size, "steps": steps} | job for job in jobs]
    switch = {"mark_packets": 85, "queue_packets": 250} | more.pop("switch", {})
    return {
        "name": f"atp, {name}",
        "duration": "1s",
        "drain": "100s",
        "stop_with_jobs": True,
        "fabric": fabric,
        "switch": switch,
        "host": {"queue": "fifo"},
        "scheme": scheme,
        "jobs": jobs,
    } | more


def _rack(hosts: int) -> dict:
    return {"kind": "single-switch", "hosts": hosts, "rate": "100Gbit/s", "latency": "1us"}


def _slots(figure: Figure) -> dict[str, dict]:
    """One job at one switch with a share of the slots that its windows need, its servers on hosts of their own."""
    return {
        f"slots={share},servers={n}": _config(
            figure,
            f"slots {share}, servers {n}",
            _rack(WORKERS + n),
            [{"hosts": list(range(WORKERS)), "servers": list(range(WORKERS, WORKERS + n))}],
            switch={"slots": {"count": int(WINDOW * share)}},
            scheme={"window": WINDOW // n},
        )
        for share in SHARES_OF_SLOTS
        for n in SERVERS
    }


def _tenants_name(policy: str, duty: float, share: float) -> str:
    return f"tenants,{policy},duty={duty:.2f},slots={share}"


def _tenants(figure: Figure) -> dict[str, dict]:
    """Jobs that compute between their sums, at one switch with few slots."""
    _, size = SCALES[figure.scale]
    reduce_us = size * 8 / 100e9 * 1e6
    configs = {}
    for duty in DUTIES:
        jobs = [
            {
                "compute": f"{round(reduce_us * (1 / duty - 1))}us",
                "hosts": list(range(4 * job, 4 * job + 4)),
                "servers": [4 * TENANTS + job],
                "start": f"{int(reduce_us * job)}us",
            }
            for job in range(TENANTS)
        ]
        for share in TENANTS_SLOTS:
            for policy in ("partition", "first-come", "preempt"):
                name = _tenants_name(policy, duty, share)
                slots = int(WINDOW * share)
                configs[name] = _config(
                    figure,
                    name.replace(",", " "),
                    _rack(5 * TENANTS),
                    jobs,
                    switch={"slots": {"count": slots, "policy": policy}},
                    scheme={"guaranteed_slots": slots // TENANTS, "window": WINDOW},
                )
    return configs


def _losses(figure: Figure) -> dict[str, dict]:
    """A job with all the slots that it wants, where every link loses packets."""
    configs = {}
    for loss in LOSSES:
        for kind in ("atp", "switchml"):
            config = _config(
                figure,
                f"loss {loss}, {kind}",
                _rack(WORKERS + 1),
                [{"hosts": list(range(WORKERS)), "servers": [WORKERS]}],
                scheme={"kind": kind},
            )
            if loss:
                scenario = figure.out / "runs" / f"loss-{loss}.toml"
                scenario.parent.mkdir(parents=True, exist_ok=True)
                scenario.write_text(f'name = "every link loses"\n\n[[faults]]\nkind = "loss"\nshare = {loss}\n')
                config["scenario"] = str(scenario.resolve())
            configs[f"loss={loss},{kind}"] = config
    return configs


def _congestion(figure: Figure) -> dict[str, dict]:
    """Four jobs with almost no slots, whose servers share one host's link."""
    jobs = [{"hosts": list(range(4 * job, 4 * job + 4)), "servers": [16]} for job in range(4)]
    return {
        f"congestion,{kind}": _config(
            figure,
            f"congestion, {kind}",
            _rack(17),
            jobs,
            switch={"slots": {"count": 64}},
            scheme={"kind": kind},
        )
        for kind in ("atp", "atp-no-control")
    }


def _racks(figure: Figure) -> dict[str, dict]:
    """Workers of two racks, the server in a third: traffic out of the first rack, with slots and with almost none."""
    fabric = {
        "kind": "leaf-spine",
        "racks": 3,
        "hosts_per_rack": 4,
        "spines": 1,
        "rate": "100Gbit/s",
        "uplink_rate": "100Gbit/s",
    }
    return {
        f"racks,{name}": _config(
            figure,
            f"racks, {name}",
            fabric,
            [{"hosts": [0, 1, 2, 4, 5, 6], "servers": [8]}],
            switch={"slots": {"count": count}, "queue_packets": 10_000},
            scheme={"kind": "atp-no-control", "window": 64},
        )
        for name, count in (("slots", 1 << 16), ("none", 1))
    }


def _uplink_bytes(run) -> int:
    return sum(r["carried_bytes"] for r in run.rows("links") if r["from"] == "rack0" and r["to"].startswith("spine"))


def _rate(figure: Figure, run) -> float:
    """Gbit/s of gradients that the jobs reduce together while they reduce; for each job the mean over its steps."""
    _, size = SCALES[figure.scale]
    times = defaultdict(list)
    for row in run.rows("steps"):
        times[row["job"]].append(row["end_us"] - row["reduce_start_us"])
    return sum(size * 8 / 1e3 / statistics.mean(of_job) for of_job in times.values())
