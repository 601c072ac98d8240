"""What a page shows of a run beside its rollouts: metrics, alerts, cost, what runs now, replicas."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from quintain.console import alert_intervals
from quintain.errors import RunError, UsageError
from quintain.store import RunFolder, lock_owner

from ..alerts.conditions import ALERTS
from ..alerts.monitor import AlertMonitor
from ..viewer.runs import RunInfo, run_info
from .replicas import replicas_of
from .steering import is_running, waiting_orders
from .trace import (
    FOLDER,
    ROOMS,
    RUN,
    TimelineFile,
    lanes_of,
    path_of,
    public_form,
    read_trace,
    steps_of,
)
from .waits import resources_of, waits_of

__all__ = ["alerts_of", "cost_of", "overview", "timeline_of"]

RUNS = 16
"""Whose last state stays in memory."""
MOST_SPANS = 20_000
"""Spans of a step that a page draws; of longer steps the longest."""


def overview(folder: Path, *, after: int = -1, price: float | None = None) -> dict[str, Any]:
    """Return the state of the run in *folder*, with its metrics after step *after*.

    Args:
        price: of an hour.
    """
    run = RunFolder(folder, lock=False)
    owner = lock_owner(folder / "run.lock")
    info, metrics, alerts = _read(
        folder, owner, stamp_of(run.metrics_path), stamp_of(run.summary_path)
    )
    timelines = steps_of(folder)
    newest = timelines[-1] if timelines else 0
    return {
        "name": info.name,
        "state": info.state,
        "running": bool(owner),
        "step": info.step,
        "steps": info.steps,
        "split": info.split,
        "fault": info.fault,
        "model": info.model,
        "algorithm": info.algorithm,
        "environments": info.environments,
        "metrics": [record for record in metrics if record["step"] > after],
        "alerts": alerts,
        "cost": cost_of(info, metrics, price),
        "live": live_of(folder),
        "timelines": timelines,
        "workers": workers_of(
            folder, newest, stamp_of(path_of(folder, newest)), stamp_of(run.replicas_path)
        ),
        "steering": run.steering(),
        "asked": [asdict(order) for _, order in waiting_orders(folder)],
        "machine": machine_of(run),
    }


def stamp_of(path: Path) -> tuple[int, int]:
    """Return what changes when the file *path* does; zeros if there is none."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


@lru_cache(maxsize=RUNS)
def _read(folder: Path, owner: str, *stamps: tuple[int, int]) -> tuple[Any, Any, Any]:
    """Return what a run has said so far, which takes long to read and changes once a step."""
    metrics = RunFolder(folder, lock=False).metrics()
    return run_info(folder), metrics, alerts_of(metrics)


def alerts_of(metrics: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each alert of a run with its steps, its message, and the metrics that raised it."""
    by_name = {alert.name: alert for alert in ALERTS}
    messages: dict[tuple[str, int], str] = {}
    monitor = AlertMonitor()
    for record in metrics:
        for name, message in monitor.see(record).items():
            messages.setdefault((name, record["step"]), message)
    last = metrics[-1]["step"] if metrics else 0
    return [
        {
            "name": name,
            "first": first,
            "last": final,
            "on": final == last,
            "message": next(
                (messages[name, s] for s in range(first, final + 1) if (name, s) in messages), ""
            ),
            "metrics": list(by_name[name].shows) if name in by_name else [],
        }
        for name, first, final in alert_intervals(metrics)
    ]


def cost_of(
    info: RunInfo, metrics: Sequence[Mapping[str, Any]], price: float | None
) -> dict[str, Any]:
    """Return seconds by phase, sampled tokens and rollouts so far; with the *price* of an hour also
    the money.
    """
    seconds: dict[str, float] = {}
    for record in metrics:
        for name, value in record.items():
            if name.startswith("seconds.") and isinstance(value, (int, float)):
                phase = name.removeprefix("seconds.")
                seconds[phase] = seconds.get(phase, 0.0) + value
    total = sum(seconds.values())
    tokens = info.tokens or sum(int(record.get("tokens") or 0) for record in metrics)
    cost: dict[str, Any] = {"seconds": seconds, "total": total, "tokens": tokens}
    if tokens and total:
        cost["tokens_per_second"] = tokens / total
    if price is not None:
        cost["price"] = price
        cost["money"] = price * total / 3600
    return cost


def live_of(folder: Path) -> dict[str, Any] | None:
    """Return what runs now, as `TimelineRecorder.write_live` wrote it; ``None`` if nothing does."""
    try:
        live: dict[str, Any] = json.loads((folder / FOLDER / "live.json").read_bytes())
    except (OSError, ValueError):
        return None
    return live if is_running(folder) else None


@lru_cache(maxsize=RUNS)
def workers_of(folder: Path, step: int, *stamps: tuple[int, int]) -> list[dict[str, Any]]:
    """Return replicas and ranks as *step* saw them: their speed, and whether one failed to take new
    weights. The state of a replica that died or was added since is that of now. Other *stamps* read
    the files again.
    """
    try:
        spans = read_trace(folder, step).spans
    except (RunError, UsageError):  # damaged, or deleted by the run meanwhile
        spans = []
    workers: dict[str, dict[str, Any]] = {}

    def of(name: str) -> dict[str, Any]:
        empty = {"name": name, "state": "works", "turns": 0, "seconds": 0.0, "tokens": 0}
        return workers.setdefault(name, empty | {"step": step})

    by_id = {span.id: span for span in spans}
    for span in spans:
        if span.kind == "replica":
            worker = of(f"replica {span.attributes['replica']}")
            turn = by_id.get(span.parent)
            worker["turns"] += 1
            worker["seconds"] += span.seconds
            worker["tokens"] += turn.attributes.get("tokens", 0) if turn else 0
        elif span.kind == "transfer":
            worker = of(f"replica {span.attributes['replica']}")
            worker["transfer"] = span.seconds
            if span.error:
                worker["state"] = f"did not take the weights: {span.error}"
        elif span.kind == "ranks":
            for rank, seconds in (span.attributes.get("seconds") or {}).items():
                worker = of(f"rank {rank}")
                worker["turns"] += 1
                worker["seconds"] += seconds
    try:
        replicas = replicas_of(folder)
    except RunError as e:
        of("replicas")["state"] = str(e)  # a damaged log hides nothing else of the run
        replicas = []
    for record in replicas:
        name, state = f"replica {record['replica']}", record["state"]
        if state == "removed":
            workers.pop(name, None)
        elif state != "healthy":
            of(name)["state"] = f"{state}: {record['why']}"
    return [workers[name] for name in sorted(workers)]


def machine_of(run: RunFolder) -> dict[str, Any]:
    """Return device, versions and commit of the last process of *run*."""
    processes = run.processes()
    if not processes:
        return {}
    last = processes[-1]
    return {key: last.get(key) for key in ("time", "device", "commit", "versions")}


def timeline_of(folder: Path, step: int) -> dict[str, Any]:
    """Return the lanes of *step* and what it waited for. Raises as `read_trace`."""
    timeline = read_trace(folder, step)
    waits = waits_of(timeline)
    whole = timeline.whole
    record = asdict(waits) | {"resources": [asdict(each) for each in resources_of(timeline)]}
    record["pieces"] = [
        (piece.label, piece.began - whole.began, piece.ended - whole.began)
        for piece in waits.pieces
    ]
    return record | {"spans": _drawn(timeline), "total": len(timeline.spans)}


def _drawn(timeline: TimelineFile) -> list[list[Any]]:
    lanes, whole = lanes_of(timeline.spans), timeline.whole
    longest = sorted(timeline.spans, key=lambda span: -span.seconds)[:MOST_SPANS]
    drawn: list[list[Any]] = []
    for span in sorted(longest, key=lambda span: (span.began, -span.ended)):
        name, attributes = public_form(span)
        room = ROOMS.get(span.kind, RUN)
        place = [room, lanes[span.id], span.began - whole.began, span.ended - whole.began]
        drawn.append([span.kind, name, *place, attributes])
    return drawn
