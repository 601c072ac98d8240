"""The table at the end of a run."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..registry.discovery import PLUGINS
from ..registry.lookup import current
from ..services.manager import find_service
from .metrics import alert_intervals
from .resolve import chosen, resolve_algorithm, resolve_environment_table
from .screen import clock, printable, program
from .storage import steps_in

if TYPE_CHECKING:
    from .run_folder import RunFolder

PHASES = {"model": "preparing the model", "record": "writing metrics"}


def show(summary: Mapping[str, Any], folder: RunFolder) -> None:
    """Print accuracy before and after, costs, paths and next commands."""
    print()
    for name, text in rows(summary, folder):
        print(printable(f"{name:<26}{text}"))


def rows(summary: Mapping[str, Any], folder: RunFolder) -> list[tuple[str, str]]:
    """The rows of the table."""
    seconds = dict(summary["seconds"])
    total = seconds.pop("total")
    spent = sorted(((k, v) for k, v in seconds.items() if v >= 0.05), key=lambda x: -x[1])
    spent_on = ", ".join(f"{PHASES.get(k, k)} {v:.1f} s" for k, v in spent)
    alerted = alerts(folder.metrics()) or missing("alerts", "warns when a run becomes unhealthy")
    return [
        ("held-out accuracy before", accuracy(summary["held_out"]["before"])),
        ("held-out accuracy after", accuracy(summary["held_out"]["after"])),
        ("steps, samples, tokens", f"{summary['steps']:,}, {summary['samples']:,}, {summary['tokens']:,}"),
        *([("stopped by", summary["stopped"])] if summary.get("stopped") else []),
        *(("" if i else "time", part) for i, part in enumerate(textwrap.wrap(f"{clock(total)} ({spent_on})", 53))),
        *([("failures left out", str(sum(summary["failures"].values())))] if summary["failures"] else []),
        *([("alerts", alerted)] if alerted else []),
        ("run folder", str(folder.shown)),
        *([("curves", text)] if (text := curves(folder)) else []),
        ("model", str(model_of(folder))),
        ("next", f"{program()} {shlex.join(['chat', str(folder.shown)])}"),
        *([("", f"{program()} {shlex.join(['rollouts', str(folder.shown)])}")] if steps_in(folder.rollouts) else []),
        ("", f"{program()} {shlex.join(evaluation_of(folder))}"),
    ]


def evaluation_of(folder: RunFolder) -> list[str]:
    """The words of the command that evaluates the run's model on its first environment, configured as in training."""
    from .recipe.tables import Recipe

    recipe = Recipe.parse(folder.recipe())
    environment, test = recipe.environments[0], recipe.evaluation.test
    slots, services = resolve_environment_table(environment).slots, chosen(recipe, resolve_algorithm(recipe))
    words = ["eval", environment.use, "--model", str(folder.shown), "--samples", "8"]
    words += [word for key, value in environment.args.items() for word in ("--arg", f"{key}={toml(value)}")]
    for slot, service in sorted((slot, services[slot]) for slot in slots & services.keys()):
        stand_in = getattr(current().resolve(find_service(service.use)), "in_evaluation", None)  # needs a learner
        use, args = stand_in(slot, service.args, str(folder.shown)) if stand_in else (service.use, service.args)
        words += ["--service", f"{slot}={use}"]
        words += [w for key, value in args.items() for w in ("--service-arg", f"{slot}.{key}={toml(value)}")]
    split, tasks = (test.split, test.tasks) if test.tasks != 0 else (recipe.evaluation.split, recipe.evaluation.tasks)
    measured = ((folder.summary() or {}).get("held_out", {}).get("after") or {}).get("tasks")
    if tasks and measured and measured < tasks and len(recipe.evaluated) == 1:
        tasks = None  # the whole split has fewer
    for option, value, default in (
        ("--reward", environment.reward, None),
        ("--system", environment.system, None),
        ("--split", split, "test"),
        ("--tasks", tasks, None),
        ("--max-tokens", recipe.evaluation.max_tokens or recipe.sampling.max_tokens, None),
    ):
        words += [option, str(value)] if value != default else []
    return words


def toml(value: Any) -> str:
    """A plain value as TOML on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(str(k))} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml, value))}]"
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return text if isinstance(value, (str, bool)) else str(value)


def accuracy(measured: Mapping[str, Any]) -> str:
    """A percentage with its interval."""
    if measured.get("accuracy") is None:
        return "not measured"
    text, low, high = f"{measured['accuracy']:.1%}", measured.get("low"), measured.get("high")
    if low is None or high is None:
        return text
    of = f" {measured['split']}" if "split" in measured else ""
    return f"{text} (95 % interval {low:.1%} to {high:.1%}, {measured['tasks']}{of} tasks)"


def alerts(records: Sequence[Mapping[str, Any]]) -> str:
    """The alerts and their steps; empty if there were none."""
    intervals: dict[str, list[str]] = {}
    for name, first, last in alert_intervals(records):
        still = " to the end" if last == records[-1]["step"] else f" to {last}" if last > first else ""
        intervals.setdefault(name, []).append(f"{first}{still}")
    return ", ".join(f"{name} (step {' and '.join(when)})" for name, when in intervals.items())


def curves(folder: RunFolder) -> str:
    """The path of the learning curves, or the plugin that draws them; empty if the installed plugin drew none."""
    if (folder.path / "curves.png").is_file():
        return str(folder.shown / "curves.png")
    return missing("curves", "draws the learning curves")


def missing(hook: str, benefit: str) -> str:
    """The pip line of the plugin with *hook* and what it does; empty if it is installed."""
    plugin = PLUGINS["hooks", hook]
    installed = any(component.distribution == plugin for component in current().components("hooks"))
    return "" if installed else f"pip install {plugin} {benefit}"


def model_of(folder: RunFolder) -> Path | str:
    """The model folder of the last checkpoint."""
    from .checkpoint import latest

    checkpoint = latest(folder)
    return folder.shown / checkpoint.model.relative_to(folder.path) if checkpoint else "none"
