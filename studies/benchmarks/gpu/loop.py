"""Part 4: the whole loop. Replies of several turns by both engines, the quickstart with its accuracy
sampled and greedy, two runs of one recipe, of which one is killed and resumed, bit for bit, and a
step of the loop over the sum of its parts.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..common import THREADS, child_environment
from ..overhead import AIM, measure
from ..quintain_step import RECIPE
from ..shapes import folder
from .part import Part, start

STEPS = 6
CLOCKS = ("seconds", "per_second")
"""Words in the names of metrics that a clock gives."""


def loop_over_parts(part: Part, rounds: int, *shape: Any, **options: Any) -> dict[str, Any]:
    """`studies.benchmarks.overhead` on this device."""
    args = argparse.Namespace(
        rounds=rounds,
        quick=part.rehearse,
        threads=1 if part.rehearse else THREADS,
        device=str(part.device),
    )
    found = measure(*shape, args, **options)
    return {
        "parts_seconds": found["parts"]["median"],
        "loop_seconds": found["loop"]["median"],
        "ratio": found["ratio"]["median"],
        "ratio_q1": found["ratio"]["q1"],
        "ratio_q3": found["ratio"]["q3"],
        "rounds": rounds,
        "phases": found["phases"],
        "aim": AIM,
    }


def quintain(words: Sequence[str], place: Path) -> subprocess.Popen[str]:
    """Start ``quintain`` with *words* in the folder *place*."""
    command = [sys.executable, "-m", "quintain", *words]
    with (place / "errors.txt").open("a") as errors:
        return subprocess.Popen(
            command,
            cwd=place,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=child_environment(THREADS),
        )


def finished(process: subprocess.Popen[str], place: Path, seconds: float) -> str:
    """Return the standard output of *process* once it has ended well.

    Raises:
        RuntimeError: it failed, or took longer than *seconds*.
    """
    try:
        output, _ = process.communicate(timeout=max(1.0, seconds))
    except subprocess.TimeoutExpired as error:
        process.kill()
        process.communicate()
        raise RuntimeError(f"{process.args}: longer than {seconds:.0f} s") from error
    if process.returncode:
        tail = (place / "errors.txt").read_text()[-2000:]
        raise RuntimeError(f"{process.args}: status {process.returncode}: {tail}")
    return output


def quickstart(part: Part) -> dict[str, Any]:
    """`quintain train` as it is, on this device; accuracies are those of the held-out test split
    before and after, at the recipe's temperature and greedy.
    """
    words = ["train", "--json", "--name", "run", "--set", f"model.device={part.device}"]
    if part.rehearse:
        small = ("run.steps=1", "batch.prompts=2", "evaluation.tasks=4", "evaluation.test.tasks=4")
        words += [word for change in small for word in ("--set", change)]
    with tempfile.TemporaryDirectory(prefix="quintain-kit-") as where:
        place = Path(where)
        began = time.monotonic()
        summary = json.loads(finished(quintain(words, place), place, part.left - 5))
        seconds = time.monotonic() - began
    held_out = summary["held_out"]
    figures: dict[str, Any] = {
        "seconds": seconds,
        "steps": summary["steps"],
        "samples": summary["samples"],
        "tokens": summary["tokens"],
        "stopped": summary["stopped"],
        "seconds_by_phase": summary["seconds"],
    }
    for when in ("before", "after"):
        sampled, greedy = held_out[when], held_out[when]["other_decoding"]
        figures[f"{when}_temperature"] = sampled["temperature"]
        figures[f"{when}_sampled"] = sampled["accuracy"]
        figures[f"{when}_greedy"] = greedy["accuracy"]
        figures[f"{when}_tasks"] = sampled["tasks"]
    return figures


def turns(part: Part, engine: str) -> dict[str, Any]:
    """`quintain train guess`, whose episodes have several turns with hints, for some steps
    by *engine*; the share of the GPU that its plan gives it.
    """
    small = part.rehearse
    changes = [f"engine.use={engine}", f"model.device={part.device}"]
    changes += [f"run.steps={1 if small else 5}", "evaluation.tasks=4", "evaluation.test.tasks=4"]
    changes += ["batch.prompts=2"] if small else []
    changes += ["engine.args.options.enforce_eager=true"] if engine.startswith("vllm") else []
    words = [word for change in changes for word in ("--set", change)]
    with tempfile.TemporaryDirectory(prefix="quintain-kit-") as where:
        place = Path(where)
        planned = quintain(["train", "guess", "--dry-run", *words], place)
        finished(planned, place, part.left - 5)
        said = (place / "errors.txt").read_text().splitlines()
        command = ["train", "guess", "--json", "--name", "run", *words]
        summary = json.loads(finished(quintain(command, place), place, part.left - 5))
        steps = records(place / "runs" / "run")[1:]
    return {
        "plan": [line.strip() for line in said if "of the GPU" in line],
        "steps": summary["steps"],
        "samples": summary["samples"],
        "tokens": summary["tokens"],
        "failures": summary["failures"],
        "seconds_by_phase": summary["seconds"],
        "mismatch": max((step.get("mismatch.sample") or 0.0 for step in steps), default=None),
        "ok": not summary["failures"],
    }


def recipe_for(part: Part, precision: str) -> str:
    """Return the recipe of `resumes`: every step is saved."""
    half, small = precision == "bf16", part.rehearse
    text = RECIPE.format(
        model=folder("0.1M" if small else "4.46M"),
        dtype="bfloat16" if half else "float32",
        device=part.device,
        engine_args="",
        high=8 if small else 64,
        groups=4 if small else 16,
        group_size=4,
        lr=1e-4,
        precision=precision,
        learner_extra="",
    )
    text = text.replace("steps = 100000", f"steps = {STEPS}")
    return text.replace("[checkpoint]\nevery = 0", "[checkpoint]\nevery = 1\nkeep = 1")


def records(run: Path) -> list[dict[str, Any]]:
    """Return the metrics of *run*, without what a clock says."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [
        {k: v for k, v in json.loads(line).items() if not any(word in k for word in CLOCKS)}
        for line in lines
    ]


def differences(
    one: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]], most: int = 8
) -> dict[str, float | str]:
    """Return the metrics that differ in any step with their largest relative difference, the *most*
    different first; what only one side has, or is no number, differs by "all".
    """
    found: dict[str, float] = {}
    for left, right in zip(one, other, strict=False):
        for key in left.keys() | right.keys():
            a, b = left.get(key), right.get(key)
            if a == b:
                continue
            numbers = isinstance(a, int | float) and isinstance(b, int | float)
            gap = abs(a - b) / max(abs(a), abs(b)) if numbers else math.inf
            found[key] = max(gap, found.get(key, 0.0))
    if len(one) != len(other):
        found["steps"] = math.inf
    ordered = sorted(found.items(), key=lambda item: (-item[1], item[0]))[:most]
    return {key: gap if math.isfinite(gap) else "all" for key, gap in ordered}


def state_of(run: Path) -> dict[str, str]:
    """Return the SHA-256 of the weights of the last checkpoint of *run*."""
    last = sorted((run / "checkpoints").glob("step-*"))[-1]
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted((last / "model").glob("*.safetensors"))
    }


def wait_for_step(run: Path, step: int, process: subprocess.Popen[str], seconds: float) -> None:
    """Wait until the checkpoint of *step* or a later one is whole.

    Raises:
        RuntimeError: *process* ended before, or it takes longer than *seconds*.
    """
    ends = time.monotonic() + seconds
    while not any(
        int(file.parent.name[5:]) >= step
        for file in (run / "checkpoints").glob("step-*/checkpoint.json")
    ):
        if process.poll() is not None or time.monotonic() > ends:
            raise RuntimeError(f"no checkpoint of step {step} (status {process.poll()})")
        time.sleep(0.02)


def resumes(part: Part, precision: str) -> dict[str, Any]:
    """Two runs without a kill, and one that SIGKILL ends after its second checkpoint and that is
    resumed: metrics of all steps and the last weights are equal.
    """
    with tempfile.TemporaryDirectory(prefix="quintain-kit-") as where:
        place = Path(where)
        (place / "recipe.toml").write_text(recipe_for(part, precision))
        for name in ("first", "second"):
            words = ["train", "recipe.toml", "--name", name, "--quiet"]
            finished(quintain(words, place), place, part.left - 5)
        process = quintain(["train", "recipe.toml", "--name", "killed", "--quiet"], place)
        wait_for_step(place / "runs" / "killed", 2, process, part.left - 5)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        left = len(records(place / "runs" / "killed")) - 1
        finished(quintain(["train", "--resume", "killed", "--quiet"], place), place, part.left - 5)
        runs = {name: place / "runs" / name for name in ("first", "second", "killed")}
        metrics = {name: records(run) for name, run in runs.items()}
        states = {name: state_of(run) for name, run in runs.items()}

    def equal(name: str) -> bool:
        return metrics[name] == metrics["first"] and states[name] == states["first"]

    return {
        "status": process.returncode,
        "steps_before_the_kill": left,
        "steps": len(metrics["killed"]) - 1,
        "two_runs_equal": equal("second"),
        "resumed_equal": equal("killed"),
        "second_differs_by": differences(metrics["first"], metrics["second"]),
        "resumed_differs_by": differences(metrics["first"], metrics["killed"]),
        "ok": left < STEPS and equal("second") and equal("killed"),
    }


def run(part: Part) -> None:
    small = part.rehearse
    part.measure("turns embedded", lambda: turns(part, "embedded"), expected=45)
    if importlib.util.find_spec("vllm") is None:
        part.record["steps"]["turns vllm"] = {"skipped": "vLLM is not importable"}
        part.save()
    else:
        part.measure("turns vllm", lambda: turns(part, "vllm"), expected=90)
    part.measure("quickstart", lambda: quickstart(part), expected=60)
    for precision in ("float32", "bf16"):
        part.measure(f"resume {precision}", lambda p=precision: resumes(part, p), expected=60)
    shape = ("0.1M", 4, 4, 2, 16) if small else ("1.05M", 64, 4, 8, 48)
    part.measure(
        f"loop over parts {shape[0]} fp32",
        lambda: loop_over_parts(part, 2 if small else 15, *shape),
        expected=60,
    )
    if not small:
        part.measure(
            "loop over parts 0.6B bf16",
            lambda: loop_over_parts(part, 5, "0.6B", 16, 8, 64, 256, precision="bf16", slots=128),
            expected=150,
        )


if __name__ == "__main__":
    start(run, __doc__, "4-loop")
