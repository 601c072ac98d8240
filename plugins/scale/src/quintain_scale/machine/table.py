"""What a division of devices means for a recipe, and the table that says what each device does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quintain.errors import UsageError
from quintain.recipe import (
    DeviceRow,
    DeviceTask,
    Recipe,
    RunPlan,
    engine_kind,
    learner_kind,
    memory_on,
    names_cluster,
)
from quintain.registry import check_args, current

from .division import Division, device_ids, devices_here, taken

SHARE = 0.6
"""Of the memory of a device that a server may take, where it takes turns with the learner."""
NO_LIMIT = 2**50
"""Bytes of a device whose memory is not known."""
BYTES = 2
"""Of a weight of a server."""


def gpus_of_each(places: bool | Sequence[int]) -> Sequence[int]:
    """Return the GPUs of each process of an engine whose kind says *places*: one, if it says no
    number.
    """
    if isinstance(places, bool):
        return (1,) if places else ()
    return places


def changes_of(recipe: Recipe) -> Mapping[str, Any]:
    """Return what the division of the devices says of other tables: the number of ranks, and the
    arguments of an engine that starts as many servers.

    Raises:
        UsageError: the tables do not fit.
    """
    args = recipe.cluster.args
    check_args(current().load("cluster", recipe.cluster.use or ""), args, who="[cluster]")
    learner, engine = learner_kind(recipe), engine_kind(recipe)
    division = _division(args, learner, written=recipe.learner.args.get("ranks"))
    changes: dict[str, Any] = {}
    if not division.turns:
        changes["cluster.args"] = {
            **args,
            "learn": args.get("learn") or _as_written(division.learn, like=args.get("sample")),
            "sample": args.get("sample") or _as_written(division.sample, like=args.get("learn")),
        }
    if names_cluster(learner):
        changes["learner.args.ranks"] = len(division.learn)
    if names_cluster(engine) and engine.places(recipe.engine.args):
        changes["engine.args"] = _engine_args(recipe, engine, division)
    return changes


def _division(args: Mapping[str, Any], learner: Any, *, written: int | None) -> Division:
    """Return the division of the devices.

    Args:
        learner: kind of it.
        written: ranks that the recipe has, if it says so.

    Raises:
        UsageError: the devices do not suffice, or the learner takes another number of them.
    """
    learn, sample, turns = args.get("learn"), args.get("sample"), bool(args.get("turns"))
    if learn is None and sample is None and not turns:
        learn = written if names_cluster(learner) else 1
    count = int(args.get("machines", 1)) * len(device_ids(args.get("devices")))
    division = Division.of(count, sample=sample, learn=learn, turns=turns)
    learning = len(division.learn)
    if not names_cluster(learner):
        if learning != 1:
            raise UsageError(
                f"cluster machine: {learning} devices learn, and the learner computes in the process "
                'of the run, on one: set learner.use = "fsdp", or cluster.args.learn = 1'
            )
    elif not learning:
        raise UsageError("cluster machine: no device learns: set cluster.args.learn to 1 or more")
    elif written not in (None, learning):
        raise UsageError(
            f"cluster machine: {learning} devices learn, and learner.args.ranks is {written}: leave "
            f"ranks out, or set cluster.args.learn = {written}"
        )
    return division


def _as_written(devices: Sequence[int], *, like: Any) -> int | list[int]:
    return [*devices] if isinstance(like, list) else len(devices)


def _engine_args(recipe: Recipe, engine: Any, division: Division) -> Mapping[str, Any]:
    """Return the arguments with which the engine starts servers on the devices that sample.

    Raises:
        UsageError: it starts others.
    """
    args, sampling = recipe.engine.args, len(division.sample)
    if not sampling:
        raise UsageError(
            f"cluster machine: all {division.count} devices learn, and engine {recipe.engine.use!r} "
            "starts servers: lower cluster.args.learn, or set cluster.args.turns = true"
        )
    if hasattr(engine, "on_gpus"):
        placed: Mapping[str, Any] = engine.on_gpus(args, sampling, turns=division.turns)
        return placed
    if (asked := sum(gpus_of_each(engine.places(args)))) != sampling:
        raise UsageError(
            f"cluster machine: {sampling} devices sample, and engine {recipe.engine.use!r} takes "
            f'{asked}: set cluster.args.sample = {asked}, or take several with engine.use = "pool"'
        )
    if division.turns:
        raise UsageError(
            f"cluster machine: engine {recipe.engine.use!r} does not sleep, so it takes no turns with "
            "the learner: leave cluster.args.turns out"
        )
    return args


def rows_of(args: Mapping[str, Any], plan: RunPlan, module: Any) -> Sequence[DeviceRow]:
    """Return what each device does in a run of *plan*, and what it takes of its memory.

    Args:
        args: of the cluster.
        module: the model without weights, or ``None``.

    Raises:
        UsageError: a device is too small, or the run cannot take turns.
    """
    kind, learner = plan.engine.kind, plan.learner.kind
    division = _division(args, learner, written=getattr(learner, "ranks", None))
    servers = gpus_of_each(kind.places(plan.engine.args)) if names_cluster(kind) else ()
    _check_use(args, plan, division, servers)
    memory = args.get("memory") or _memory_here()
    sizes = None if module is None else _sizes(args, plan, module, division, memory)
    tasks: dict[int, list[DeviceTask]] = {number: [] for number in range(division.count)}
    names = device_ids(args.get("devices"))
    each, free = len(names), [*division.sample]
    for number, gpus in enumerate(servers, start=1):
        what = f"server {number} of {len(servers)}"
        if (own := taken(free, gpus, each=each)) is None:
            raise UsageError(
                f"cluster machine: {what} takes {gpus} devices, and no machine has as many of its "
                f"{each} left: lower its GPUs, or divide the devices at the end of a machine"
            )
        for worker, device in enumerate(own, start=1):
            part = f" (worker {worker} of {gpus})" if gpus > 1 else ""
            tasks[device].append(_server_task(what + part, sizes, gpus))
    ranks = len(division.learn)
    for rank, device in enumerate(division.learn):
        what = f"rank {rank} of {ranks}" if names_cluster(learner) else "learner"
        tasks[device].append(DeviceTask(what=what, bytes=None if sizes is None else sizes.learner))
    if plan.engine.beside_learner:
        size = None if sizes is None else sizes.copy
        tasks[division.learn[0] if not names_cluster(learner) else 0].append(
            DeviceTask(what="engine in the process of the run", bytes=size)
        )
    several = division.count > each
    return [
        DeviceRow(
            device=f"{number // each}: " * several + f"GPU {names[number % each]}",
            tasks=tuple(tasks[number]),
            turns=division.turns,
            memory=None if memory is None else int(memory),
        )
        for number in range(division.count)
    ]


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    """Bytes of a device.

    Attributes:
        learner: that a rank, or the learner, takes in an update.
        copy: of an engine in the process of the run.
        weights: of a whole model in a server.
        server: that a server may take; ``None`` is all that it finds.
    """

    learner: int
    copy: int
    weights: int
    server: int | None


def _sizes(
    args: Mapping[str, Any], plan: RunPlan, module: Any, division: Division, memory: float | None
) -> _Sizes:
    """Return what is on a device with *memory*.

    Raises:
        UsageError: it is too small for the learner, or for a server beside it.
    """
    count = len(division.learn)
    planned = memory_on(plan, module, devices=count, free=int(memory or NO_LIMIT))
    update = planned.each or planned.fixed - planned.copy + planned.activations
    share = args.get("share", SHARE if division.turns else None)
    if memory is not None and update > memory:
        raise UsageError(
            f"cluster machine: the learner takes {update / 1e9:,.1f} GB on each of {count} devices of "
            f"{memory / 1e9:,.1f} GB: raise cluster.args.learn, train adapters (model.lora={{}}), or "
            "set learner.checkpoint_activations = true"
        )
    stays = update - planned.activations - planned.gradients
    if division.turns and memory is not None and share * memory + stays > memory:
        raise UsageError(
            f"cluster machine: a server may take {share:g} of a device, beside {stays / 1e9:,.1f} GB "
            f"of {memory / 1e9:,.1f} GB that the learner keeps: set cluster.args.share = "
            f"{int(100 * (1 - stays / memory)) / 100:g} or less"
        )
    return _Sizes(
        learner=update,
        copy=planned.copy + planned.cache,
        weights=BYTES * planned.parameters,
        server=None if share is None or memory is None else int(share * memory),
    )


def _server_task(what: str, sizes: _Sizes | None, gpus: int) -> DeviceTask:
    if sizes is None:
        return DeviceTask(what=what)
    if sizes.server is not None:
        return DeviceTask(what=what, bytes=sizes.server)
    detail = "of weights, the rest for keys and values"
    return DeviceTask(what=what, bytes=sizes.weights // gpus, detail=detail)


def _check_use(
    args: Mapping[str, Any], plan: RunPlan, division: Division, servers: Sequence[int]
) -> None:
    """Raise a `UsageError` if the engine does not use the devices that sample, or cannot take turns."""
    if not servers and (args.get("sample") or division.turns):
        raise UsageError(
            f"cluster machine: {len(division.sample)} devices sample, and engine {plan.engine.kind.name!r} "
            'starts no server: set engine.use = "pool" and engine.args = { engine = "vllm-server" }, or '
            "leave cluster.args.sample and turns out"
        )
    if servers and sum(servers) != len(division.sample):
        raise UsageError(
            f"cluster machine: {len(division.sample)} devices sample, and the servers of the engine "
            f"take {sum(servers)}: set cluster.args.sample = {sum(servers)}, or other engine.args"
        )
    if division.turns and plan.copies_weights:
        raise UsageError(
            "cluster machine: with turns = true nothing samples while the learner updates, and the "
            'schedule lets sampling run ahead: set schedule.use = "sync", or give devices to each with '
            "cluster.args.learn in place of turns"
        )


def _memory_here() -> float | None:
    """Return the bytes of a device, if torch sees one."""
    if not devices_here():
        return None
    import torch  # here: it takes seconds

    return float(torch.cuda.get_device_properties(0).total_memory)
