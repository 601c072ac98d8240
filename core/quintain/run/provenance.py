"""The origin of a run: recipe, versions, device and commit of each of its processes, in
``provenance.jsonl``.
"""

from __future__ import annotations

import json
import platform
import subprocess
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

import torch

from ..errors import UsageError
from ..models.load import DTYPES
from ..recipe.on_cpu import LARGE, remark_on_cpu
from ..recipe.plan import RunPlan
from ..recipe.tables import Recipe
from ..registry.lookup import current
from ..store.checkpoint import latest
from ..store.run_folder import RunFolder
from ..store.storage import plain_data


def provenance(plan: RunPlan, module: Any) -> dict[str, Any]:
    """Return the record of this process, which trains *module* by *plan*.

    Its versions are those of Python, the libraries and every installed distribution with
    components.
    """
    device = next(module.parameters()).device
    versions = {"python": platform.python_version()} | {
        name: version(name) for name in ("torch", "transformers")
    }
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": versions
        | {c.distribution: c.version for c in current().components() if c.version},
        "device": torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{device} ({platform.machine()})",
        "commit": commit(),
        "recipe": plan.record,
    }


def header(plan: RunPlan, module: Any, *, cache: int = 0) -> str:
    """Return one line: parameters, device, precision, samples a step, and the memory of weights,
    optimizer and the engine's copy, and of the *cache* of keys and values, in bytes; activations
    come on top.
    """
    device = next(module.parameters()).device
    gpu = device.type == "cuda"
    where = (
        torch.cuda.get_device_name(device) if gpu else f"CPU (threads: {torch.get_num_threads()})"
    )
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    parameters = sum(p.numel() for p in module.parameters())
    needed = plan.learner.bytes
    size = int((needed.weights * (needed.module != "nowhere") + needed.own) * parameters)
    size += int((needed.gradients + needed.moments + needed.host) * trained)
    # the engine has a copy
    if trained < parameters or plan.model.dtype in ("bfloat16", "float16"):
        size += parameters * DTYPES[plan.model.dtype].itemsize
    slow = "" if gpu or parameters < LARGE else f"; {remark_on_cpu(plan, parameters)}"
    precision = f"engine {plan.model.dtype}, learner {plan.learner.precision}"
    samples = f"{plan.rollouts.groups} tasks x {plan.rollouts.group_size} samples a step"
    memory = f"{size / 1e9:.2g} GB of weights and optimizer"
    memory += f", up to {cache / 1e9:.2g} GB of KV cache" if cache else ""
    return f"{parameters / 1e6:,.1f}M parameters on {where}, {precision}, {samples}, {memory}{slow}"


def commit() -> str:
    """Return the git commit of the working directory, with ``-dirty`` if tracked files differ;
    empty without one.
    """
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def check_unchanged(folder: RunFolder, recipe: Recipe) -> None:
    """Check that *recipe* is the one that the last process of the run in *folder* used.

    Raises:
        UsageError: it differs; the message has each key as ``key: was -> is``.
        RunError: a line of the record is damaged, or the last checkpoint.
    """
    if (checkpoint := latest(folder)) is not None:
        folder.compare_logs(checkpoint.path, moved=True)
    processes = folder.processes()
    if not processes:
        return
    before = dict(_flat(processes[-1].get("recipe", {})))
    after = dict(_flat(plain_data(recipe.model_dump(mode="json"))))
    keys = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    lines = [f"  {key}: {before.get(key, 'unset')} -> {after.get(key, 'unset')}\n" for key in keys]
    if lines:
        raise UsageError(
            f"{folder.shown / 'recipe.toml'} was edited since the run last used it:\n"
            f"{''.join(lines)}Undo that, or add --force to continue with the recipe as it is now"
        )


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the keys of a recipe by dotted path with their values as JSON; those without a value
    are left out.
    """
    items: Any = value.items() if isinstance(value, Mapping) else ()
    if isinstance(value, list) and all(isinstance(v, Mapping) for v in value):
        items = list(enumerate(value))
    for key, inner in items:
        yield from _flat(inner, f"{path}.{key}" if path else str(key))
    if not items and value not in (None, {}):
        yield path, json.dumps(value)
