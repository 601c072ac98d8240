"""Which device does what: what the cluster of a recipe says of it before anything starts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .plan import RunPlan
from .resolve import is_model_source

_ABSENT = object()


@dataclass(frozen=True, kw_only=True)
class DeviceTask:
    """What a process does on a device.

    Attributes:
        what: as ``rank 0 of 2``.
        bytes: that it takes of the device at most; ``None`` if that is not known.
        detail: of the bytes.
    """

    what: str
    bytes: int | None = None
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class DeviceRow:
    """A device and what is done on it.

    Attributes:
        device: its name.
        tasks: all at once, or by *turns*.
        memory: bytes of the device; ``None`` if it is not seen here.
    """

    device: str
    tasks: tuple[DeviceTask, ...] = ()
    turns: bool = False
    memory: int | None = None


def placement_of(plan: RunPlan, module: Any = _ABSENT) -> Sequence[DeviceRow]:
    """Return what each device does, if the plan's cluster says so: a kind of cluster may have a class
    method ``placement`` of its settings, a plan and the module without weights, or ``None``.

    Args:
        module: what `module_of` returned; left out, it is made where it is needed.

    Raises:
        UsageError: the devices do not suffice.
    """
    cluster = plan.cluster
    if cluster is None or (placement := getattr(cluster.kind, "placement", None)) is None:
        return ()
    module = module_of(plan) if module is _ABSENT else module
    rows: Sequence[DeviceRow] = placement(cluster.args, plan, module)
    return rows


def named_model(plan: RunPlan) -> str | None:
    """Return the folder or the id of the model of *plan*; ``None`` where a source makes it for the
    environments.
    """
    name = plan.model.name
    if not is_model_source(name):
        return name
    return plan.model.source.named(name)


def module_of(plan: RunPlan) -> Any:
    """Return the module of *plan* without weights; ``None`` where a source makes it for the
    environments, or its configuration cannot be had.

    Raises:
        UsageError: the settings of the adapters are refused.
    """
    name = named_model(plan)
    return None if name is None else plan.model.source.on_paper(name, plan.model.lora)


def placement_table(rows: Iterable[DeviceRow]) -> list[str]:
    """Return lines that say what each device does, and what it takes of its memory."""
    lines = []
    for row in rows:
        tasks = (", then " if row.turns else ", ").join(map(_task_text, row.tasks)) or "free"
        size = "" if row.memory is None else f" (of {row.memory / 1e9:,.1f} GB)"
        lines.append(f"  {row.device:<12}{tasks}{size}")
    return ["devices:", *lines] if lines else []


def _task_text(task: DeviceTask) -> str:
    size = "" if task.bytes is None else f" {task.bytes / 1e9:,.2f} GB"
    return f"{task.what}:{size}{task.detail and ' ' + task.detail}" if size else task.what


def placement_data(rows: Iterable[DeviceRow]) -> list[dict[str, Any]]:
    """Return *rows* as plain data."""
    return [asdict(row) for row in rows]
