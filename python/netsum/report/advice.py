"""What would make the steps of a job shorter, each with the step that the model predicts."""

from collections.abc import Iterator
from dataclasses import dataclass

from netsum.dashboard.words import milliseconds
from netsum.report.model import Curve, Model
from netsum.report.network import Net, placements, plan_trees, tree_loads
from netsum.report.steps import Cost

WORTH = 0.03
"""Share of a step that an advice must save to be given."""
TREES_MAX = 255
AGREES = 0.05
"""The planner's trees and those computed here may differ by so much in their fullest link."""
BUCKETS = [1 << 20, 4 << 20, 16 << 20, 25 << 20, 64 << 20]
NEAR = 0.02
"""Of bucket sizes whose steps differ by no more, the smallest is advised."""
LATE_S, LATE_SHARE = 0.001, 0.03


@dataclass(frozen=True)
class Advice:
    """One change. what: in a few words. how: the setting, or what to do. why: what the prediction rests on."""

    key: str
    what: str
    how: str
    why: str
    step_s: float
    now_s: float

    @property
    def gain(self) -> float:
        """The share of the step that it saves; below 0 if it costs time."""
        return 1 - self.step_s / self.now_s if self.now_s else 0.0

    @property
    def is_worth(self) -> bool:
        return self.gain >= WORTH


def advise(model: Model) -> list[Advice]:
    """All changes that the model can judge, the best first, also those that gain nothing."""
    found = [*_late(model)]
    if model.is_known:
        found += [*_trees(model), *_placement(model), *_bfloat16(model), *_buckets(model), *_hosts(model)]
    return sorted(found, key=lambda advice: advice.step_s)


def lateness(model: Model) -> tuple[int, float]:
    """The rank for which the others wait, and by how much less it waits than their median in each step."""
    rhythm = model.rhythm
    ranks = sorted(rhythm.steps[0].ranks)
    waits = {rank: rhythm.exposed(rank) for rank in ranks}
    latest = min(ranks, key=lambda rank: waits[rank])
    others = sorted(waits[rank] for rank in ranks if rank != latest)
    return latest, (others[len(others) // 2] - waits[latest]) if others else 0.0


def _late(model: Model) -> Iterator[Advice]:
    rank, late_s = lateness(model)
    now_s = model.rhythm.seconds
    if len(model.job.ranks) < 3 or late_s <= max(LATE_S, LATE_SHARE * now_s):
        return
    how = f"look at {model.job.ranks[rank].place} for a slow loader, a busy core or a throttled device"
    why = f"it calls its sums {milliseconds(late_s)} later than the others in each step"
    yield Advice("straggler", f"rank {rank} as fast as the others", how, why, now_s - late_s, now_s)


def _trees(model: Model) -> Iterator[Advice]:
    net, curve = model.net, model.curve
    if net is None or curve is None or not _plans_alike(model):
        return
    have = len(model.trees)
    whole = Net.of((model.job.first.controller or {})["fabric"], also_down=True)
    most = plan_trees(whole, model.placement, TREES_MAX)
    if len(most) <= have:
        return
    loads = tree_loads(most, [1 / len(most)] * len(most))
    changed, why = _relieved(model, curve, net.fullest(loads) * model.wire)
    reason = (model.plan or {}).get("reason", "")
    limit = model.job.first.settings.get("NETSUM_MAX_TREES")
    how = f"NETSUM_MAX_TREES={len(most)} instead of {limit}" if limit else f"the controller says: {reason}"
    step_s = model.step_with(lambda at: model.cost(at, curve=changed))
    yield Advice("trees", f"{len(most)} trees instead of {have}", how, why, step_s, model.rhythm.seconds)


def _placement(model: Model) -> Iterator[Advice]:
    net, curve = model.net, model.curve
    if net is None or curve is None or not _plans_alike(model):
        return
    taken = set((model.job.first.controller or {}).get("other_hosts", ()))
    best: tuple[float, list[str]] | None = None
    for hosts in placements(net, model.placement, taken):
        trees = plan_trees(net, hosts, max(len(model.trees), 1))
        if trees:
            link_s = net.fullest(tree_loads(trees, [1 / len(trees)] * len(trees))) * model.wire
            if best is None or link_s < best[0]:
                best = link_s, hosts
    if best is None:
        return
    link_s, hosts = best
    changed, why = _relieved(model, curve, link_s)
    step_s = model.step_with(lambda at: model.cost(at, curve=changed))
    where = _shortened(hosts)
    yield Advice("placement", "other hosts", f"run the ranks on {where}", why, step_s, model.rhythm.seconds)


def _relieved(model: Model, curve: Curve, link_s: float) -> tuple[Curve, str]:
    """The costs if the fullest link needed so long per byte, and why they are so."""
    if not model.is_link_bound:
        return curve, "no link of the trees is the limit"
    less = min(link_s / model.link_s, 1.0)
    return curve.with_links(less), f"the fullest link of the trees would carry {less:.0%} of what it carries"


def _plans_alike(model: Model) -> bool:
    """Whether the trees that the controller has planned are as good as those that are computed here."""
    net = model.net
    if net is None or not model.trees or not net.rates_known:
        return False
    trees = plan_trees(net, model.placement, len(model.trees))
    if not trees:
        return False
    ours = net.fullest(tree_loads(trees, [1 / len(trees)] * len(trees))) * model.wire
    return abs(ours - model.link_s) <= AGREES * model.link_s


def _bfloat16(model: Model) -> Iterator[Advice]:
    halved = [call.dtype == "float32" and call.kind in ("allreduce", "reduce_scatter") for call in model.calls]
    if not any(halved) or not _knows_bytes(model):
        return

    def cost(at: int) -> Cost | None:
        return model.cost(at, model.calls[at].nbytes / 2) if halved[at] else model.cost(at)

    how = "sum gradients as bfloat16, as by DDP's bf16_compress_hook; they lose 16 bits of precision"
    why = "float32 sums would have half the bytes; converting is not counted"
    yield Advice("bfloat16", "bfloat16 gradients", how, why, model.step_with(cost), model.rhythm.seconds)


def _knows_bytes(model: Model) -> bool:
    """Whether it is known what fewer bytes save: from several sizes, from a full link, or from the hosts' model."""
    curve = model.curve
    return curve is None or curve.measured or model.is_link_bound


def _buckets(model: Model) -> Iterator[Advice]:
    best: Advice | None = None
    for limit in BUCKETS:
        sizes = _merged(model, limit)
        remaining = sum(size is not None for size in sizes)
        if remaining == len(sizes):
            continue

        def cost(at: int, sizes: list[float | None] = sizes) -> Cost | None:
            size = sizes[at]
            return None if size is None else model.cost(at, size)

        step_s = model.step_with(cost)
        if best is None or step_s < best.step_s * (1 - NEAR):
            how = f"sum in buckets of {limit >> 20} MiB, as by DDP's bucket_cap_mb={limit >> 20}"
            what = f"{remaining} operation{'s' if remaining > 1 else ''} per step instead of {len(sizes)}"
            why = "each operation has a cost that does not depend on its size"
            best = Advice("buckets", what, how, why, step_s, model.rhythm.seconds)
    if best is not None:
        yield best


def _merged(model: Model, limit: int) -> list[float | None]:
    """The bytes of the step's operations if neighbours of one kind are summed together up to a limit; None: of one
    that goes with a later one."""
    sizes: list[float | None] = [float(call.nbytes) for call in model.calls]
    for at in range(1, len(sizes)):
        one, other = model.calls[at - 1], model.calls[at]
        alike = (one.kind, one.dtype, one.op) == (other.kind, other.dtype, other.op)
        before, own = sizes[at - 1], sizes[at]
        if alike and one.kind == "allreduce" and before is not None and own is not None and before + own <= limit:
            sizes[at - 1], sizes[at] = None, before + own
    return sizes


def _hosts(model: Model) -> Iterator[Advice]:
    """The other way for the smallest sums: by hosts instead of switches."""
    if not model.pace_holds:
        return
    sizes = sorted({call.nbytes for call, switched in zip(model.calls, model.by_switches, strict=True) if switched})
    best: Advice | None = None
    for limit in sizes:

        def cost(at: int, limit: int = limit) -> Cost | None:
            call = model.calls[at]
            moved = model.by_switches[at] and call.nbytes <= limit
            return (model.hosts.cost(call, call.nbytes) or model.cost(at)) if moved else model.cost(at)

        moved = [call for call, by in zip(model.calls, model.by_switches, strict=True) if by and call.nbytes <= limit]
        if any(model.hosts.cost(call, call.nbytes) is None for call in moved):
            continue
        step_s = model.step_with(cost)
        if best is None or step_s < best.step_s:
            how = f"NETSUM_MIN_BYTES={limit + 1}, or no controller at all" if limit == sizes[-1] else ""
            how = how or f"NETSUM_MIN_BYTES={limit + 1}"
            what = "the hosts add, not the switches" if limit == sizes[-1] else f"hosts add up to {limit} bytes"
            why = "by the cost model of the hosts, with the pace that the ranks measured at the start"
            best = Advice("hosts", what, how, why, step_s, model.rhythm.seconds)
    if best is not None:
        yield best


def _shortened(hosts: list[str]) -> str:
    return ", ".join(hosts) if len(hosts) <= 16 else f"{', '.join(hosts[:15])} and {len(hosts) - 15} more"
