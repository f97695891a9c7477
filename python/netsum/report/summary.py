"""All figures of a job's report, as JSON has them."""

from dataclasses import asdict
from typing import Any

from netsum.dashboard.view import merged_pauses
from netsum.fabric.ring import ring_link_bytes
from netsum.report.advice import advise, lateness
from netsum.report.files import Job
from netsum.report.model import Model, switched
from netsum.report.network import Net
from netsum.report.steps import Rhythm, rhythm


def summarize(job: Job) -> dict[str, Any]:
    """Times in seconds, bytes of links by direction. Parts that are not known are None, and `notes` say why."""
    found = rhythm(job)
    model = Model(job, found) if found is not None else None
    controller = job.first.controller or {}
    plan = controller.get("job")
    stats = job.first.stats
    return {
        "folder": str(job.folder),
        "group": job.group,
        "job": stats["job"],
        "name": plan["name"] if plan else job.group,
        "size": job.size,
        "placement": {str(rank): file.place for rank, file in sorted(job.ranks.items())},
        "path": stats["path"],
        "protocol": stats["protocol"],
        "trees": len(stats["trees"]),
        "settings": {name: value for name, value in job.first.settings.items() if name not in _OF_THE_MACHINE},
        "steps": _steps(job, found),
        "calls": _calls(job),
        "links": _links(job, model),
        "ring": _ring(model),
        "stragglers": _stragglers(model, controller),
        "recoveries": _recoveries(job, controller),
        "advice": [asdict(each) | {"gain": each.gain, "worth": each.is_worth} for each in advise(model)]
        if model
        else [],
        "notes": _notes(job, found, model),
    }


_OF_THE_MACHINE = ("NETSUM_REPORT", "NETSUM_MEETING", "NETSUM_CONTROLLER", "NETSUM_CREDENTIALS", "NETSUM_HOST")
"""Settings that differ between runs and ranks without making them faster."""


def _steps(job: Job, found: Rhythm | None) -> dict[str, Any] | None:
    if found is None:
        return None
    communicating, exposed = found.communicating(), found.exposed()
    return {
        # Rows are written as steps are recognised while they pass, those looked at are found afterwards.
        "count": max(sum(row.count for row in job.first.steps), len(found.steps)),
        "looked_at": len(found.steps),
        "seconds": found.seconds,
        "communicating_s": communicating,
        "exposed_s": exposed,
        "overlap": 1 - exposed / communicating if communicating else None,
        "operations": len(found.calls),
        "bytes": sum(job.first.calls[call].nbytes for call in found.calls),
    }


def _calls(job: Job) -> list[dict[str, Any]]:
    by_switches = switched(job)
    return [
        {
            "call": call.name,
            "bytes": call.nbytes,
            "count": call.count,
            "seconds": call.seconds / call.count if call.count else 0.0,
            "by": "switches" if call in by_switches else "hosts",
            "failed": call.failed,
        }
        for call in sorted(job.first.calls, key=lambda call: -call.seconds)
    ]


def _links(job: Job, model: Model | None) -> list[dict[str, Any]] | None:
    """Bytes of each link, those of a ring for the same sums, and how much of the time of sums the link was busy."""
    controller = job.first.controller or {}
    if not controller.get("fabric"):
        return None
    net = Net.of(controller["fabric"])
    placement = model.placement if model else []
    summed = sum(call.nbytes * call.count for call in job.first.calls if call.kind == "allreduce")
    ring = ring_link_bytes(net.description, placement, summed) if placement else {}
    bursts = model.bursts() if model else []
    seconds = sum(each for _, _, each in bursts)
    nbytes = sum(each for _, each, _ in bursts)
    busy = net.seconds(model.loads) if model else {}
    return [
        {
            **link,
            "ring_bytes": round(ring[f"{link['a']}-{link['b']}"]) if ring else None,
            "busy": busy.get(frozenset((link["a"], link["b"])), 0.0) * nbytes / seconds if seconds else None,
        }
        for link in controller["fabric"]["links"]
    ]


def _ring(model: Model | None) -> dict[str, Any] | None:
    """The step if the same allreduces went round a ring of the ranks; None if the ranks have measured no pace."""
    if model is None or not model.is_known:
        return None
    sums = [call.kind == "allreduce" and call.nbytes > 0 for call in model.calls]
    if not any(sums) or model.ring(1.0) is None:
        return None
    step_s = model.step_with(lambda at: model.ring(model.calls[at].nbytes) if sums[at] else model.cost(at))
    return {"step_s": step_s, "gain": 1 - model.rhythm.seconds / step_s if step_s else 0.0}


def _stragglers(model: Model | None, controller: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"rank": None, "late_s": None, "waits": {}, "switches": controller.get("stragglers", [])}
    if model is None:
        return found
    ranks = sorted(model.rhythm.steps[0].ranks)
    found["waits"] = {str(rank): model.rhythm.exposed(rank) for rank in ranks}
    if len(ranks) > 1:
        found["rank"], found["late_s"] = lateness(model)
    return found


def _recoveries(job: Job, controller: dict[str, Any]) -> dict[str, Any]:
    pauses = merged_pauses([pause for file in job.ranks.values() for pause in file.stats["pauses"]])
    return {
        "pauses": pauses,
        "paused_s": sum(pause["seconds"] for pause in pauses),
        "plans": controller.get("plans", []),
        "redone": sum(file.stats["redone"] for file in job.ranks.values()),
    }


def _notes(job: Job, found: Rhythm | None, model: Model | None) -> list[str]:
    """What limits the report."""
    notes = []
    if job.missing:
        shown = ", ".join(map(str, job.missing[:8])) + (", …" if len(job.missing) > 8 else "")
        notes.append(f"{len(job.missing)} of {job.size} ranks left no file: {shown}")
    running = [str(rank) for rank, file in sorted(job.ranks.items()) if not file.ended]
    if running:
        notes.append(f"ranks that had not ended, or were killed, when their files were written: {', '.join(running)}")
    notes += [f"rank {rank} failed: {file.failure}" for rank, file in sorted(job.ranks.items()) if file.failure]
    lost = max(file.lost for file in job.ranks.values())
    if lost:
        notes.append(f"up to {lost} operations of a rank came too fast to be read")
    if found is None:
        notes.append("no steps are known: the calls of the ranks do not repeat, or are too few")
    controller = job.first.controller
    if controller is None:
        why = "the hosts added without a controller" if job.first.stats["job"] is None else "rank 0 left no file of it"
        notes.append(f"nothing is known of links and switches: {why}")
    elif controller["problem"] or not controller["fabric"]:
        notes.append(f"rank 0 could not read the controller's status: {controller['problem'] or 'it came too late'}")
    elif controller.get("other_jobs"):
        notes.append(f"{controller['other_jobs']} other jobs ran on the fabric; bytes of links include theirs")
    if model is not None and not model.pace_holds:
        notes.append("what hosts or a ring would take is not predicted: the times of sums vary too much for that")
    if model is not None and not model.is_known:
        notes.append("nothing can be predicted: the cost of some operations is unknown")
    return notes
