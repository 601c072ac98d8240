"""The table at the end of a run."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..console.metrics import alert_intervals
from ..console.screen import clock_text, printable, program_name
from ..recipe.resolve import EnvironmentSpec, is_model_source
from ..registry.discovery import short_name
from ..registry.known import known_plugins
from ..registry.lookup import current
from ..store.storage import steps_in
from ..types.sampling import decoding

if TYPE_CHECKING:
    from ..recipe.tables import Recipe
    from ..store.run_folder import RunFolder

PHASES = {"model": "preparing the model", "record": "writing metrics"}


def show(summary: Mapping[str, Any], folder: RunFolder) -> None:
    """Print accuracy before and after, costs, paths and next commands."""
    print()
    for name, text in rows(summary, folder):
        print(printable(f"{name:<26}{text}"))


def rows(summary: Mapping[str, Any], folder: RunFolder) -> list[tuple[str, str]]:
    """Return the rows of the table."""
    from ..recipe.tables import Recipe

    seconds = dict(summary["seconds"])
    total = seconds.pop("total")
    spent = sorted(((k, v) for k, v in seconds.items() if v >= 0.05), key=lambda x: -x[1])
    spent_on = ", ".join(f"{PHASES.get(k, k)} {v:.1f} s" for k, v in spent)
    alerted = alerts(folder.metrics()) or missing("alerts", "warns when a run becomes unhealthy")
    measured = summary["held_out"]
    return [
        *held_out(measured["before"] if summary["steps"] else None, measured["after"], folder),
        *yardsticks(measured),
        (
            "steps, samples, tokens",
            f"{summary['steps']:,}, {summary['samples']:,}, {summary['tokens']:,}",
        ),
        *([("stopped by", summary["stopped"])] if summary.get("stopped") else []),
        *(
            ("" if i else "time", part)
            for i, part in enumerate(textwrap.wrap(f"{clock_text(total)} ({spent_on})", 53))
        ),
        *(
            [("failures left out", str(sum(summary["failures"].values())))]
            if summary["failures"]
            else []
        ),
        *([("alerts", alerted)] if alerted else []),
        ("run folder", str(folder.shown)),
        *([("curves", text)] if (text := curves(folder)) else []),
        *model_rows(folder),
        *(
            ("" if i else "next", text)
            for i, text in enumerate(next_commands(folder, summary["stopped"]))
        ),
        *([] if model_of(folder) == "none" else own_commands(Recipe.parse(folder.recipe()))),
    ]


def next_commands(folder: RunFolder, stopped: str) -> list[str]:
    """Return what to do after a run: commands that fit a terminal; where nothing was trained, what
    *stopped* it.
    """
    if model_of(folder) == "none":
        return [f"nothing was trained: {stopped}"]
    commands = [["chat", str(folder.shown)], ["eval", "--like", str(folder.shown)]]
    if steps_in(folder.rollouts):
        commands.insert(1, ["rollouts", str(folder.shown)])
    return [f"{program_name()} {shlex.join(words)}" for words in commands]


def own_commands(recipe: Recipe) -> list[tuple[str, str]]:
    """Return the commands that train the model of *recipe* on a file and with a reward of the user."""
    model = recipe.model.name
    name = short_name(model) if is_model_source(model) else model
    # a run on such a file goes on with it
    own = [
        t.args for t in recipe.environments if short_name(t.use) == "dataset" and "path" in t.args
    ]
    words = ["train", "dataset"]
    for key, value in (own[0] if own else {"path": "FILE.csv"}).items():
        words += ["--arg", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
    words += [] if name == "default" else ["--model", name]
    command = f"{program_name()} {shlex.join(words)}"
    reward = ("your own reward", f"{command} --reward FILE.py:FUNCTION")
    return [reward] if own else [("your own file", command), reward]


def held_out(
    before: Mapping[str, Any] | None, after: Mapping[str, Any], folder: RunFolder
) -> list[tuple[str, str]]:
    """Return the accuracies, or the rewards where every outcome is a proxy on a scale of its own: 1
    is no success there. *before* is ``None`` where no step was made.
    """
    from ..recipe.tables import Recipe

    specs = [EnvironmentSpec.of(table) for table in Recipe.parse(folder.recipe()).environments]
    rewards = [spec.reward or spec.component.reward for spec in specs]
    if (
        not all(reward.proxy and reward.range is None for reward in rewards)
        or after.get("reward") is None
    ):
        return accuracies(before, after)
    means = " -> ".join(
        "not measured" if m.get("reward") is None else f"{m['reward']:.3f}"
        for m in (before, after)
        if m is not None
    )
    return [
        ("held-out reward", f"{means} (a scale of its own, on {tasks_of(after)}; no success rate)")
    ]


def accuracies(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return a heading, and before and after with their intervals for each way of decoding."""
    if (before or {}).get("accuracy") is None and after.get("accuracy") is None:
        return [("held-out accuracy", "not measured")]
    what = "no step was made" if before is None else "before -> after"
    heading = [("held-out accuracy", f"{what}, 95 % intervals, {tasks_of(after)}")]
    ways = [(before, after)]
    if "other_decoding" in after:
        first = None if before is None else before.get("other_decoding", {})
        ways.append((first, after["other_decoding"]))
    overlapping = list[str]()
    for first, last in ways:
        fewer = (
            "" if last.get("tasks") == after.get("tasks") else f", first {last.get('tasks')} tasks"
        )
        name = f"{decoding(last['temperature']) if 'temperature' in last else 'success'}{fewer}"
        then = "" if first is None else f"{accuracy(first)} -> "
        heading.append((f"  {name}", f"{then}{accuracy(last)}"))
        if before is not None and not _differ(first or {}, last):
            overlapping.append(name)
    if overlapping:
        which = "" if len(overlapping) == len(ways) else f", {' and '.join(overlapping)}"
        heading.append(("", f"the intervals before and after overlap{which}"))
    return heading


def _differ(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Return whether the intervals of two accuracies have nothing in common, or are not known."""
    if any(measured.get(end) is None for measured in (before, after) for end in ("low", "high")):
        return True
    return bool(after["low"] > before["high"] or after["high"] < before["low"])


def tasks_of(measured: Mapping[str, Any]) -> str:
    """Return number and split of the tasks of an evaluation."""
    return " ".join(str(measured[key]) for key in ("tasks", "split") if key in measured) + " tasks"


def accuracy(measured: Mapping[str, Any]) -> str:
    """Return a percentage with its interval."""
    if measured.get("accuracy") is None:
        return "not measured"
    text, low, high = f"{measured['accuracy']:.1%}", measured.get("low"), measured.get("high")
    return text if low is None or high is None else f"{text} ({100 * low:.1f} to {100 * high:.1f})"


def yardsticks(held_out: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the score that did not train, before and after; no rows without one."""
    return [
        (
            f"yardstick {when}",
            f"{measured['yardstick']:.3f} (95 % interval {measured['yardstick.low']:.3f} to "
            f"{measured['yardstick.high']:.3f}; not trained on)",
        )
        for when in ("before", "after")
        if (measured := held_out[when]).get("yardstick") is not None
    ]


def alerts(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the alerts and their steps; empty if there were none."""
    intervals: dict[str, list[str]] = {}
    for name, first, last in alert_intervals(records):
        still = (
            " to the end" if last == records[-1]["step"] else f" to {last}" if last > first else ""
        )
        intervals.setdefault(name, []).append(f"{first}{still}")
    return ", ".join(f"{name} (step {' and '.join(when)})" for name, when in intervals.items())


def curves(folder: RunFolder) -> str:
    """Return the path of the learning curves, or the plugin that draws them; empty if the installed
    plugin drew none.
    """
    if (folder.path / "curves.png").is_file():
        return str(folder.shown / "curves.png")
    return missing("curves", "draws the learning curves")


def missing(hook: str, benefit: str) -> str:
    """Return the pip line of the plugin with *hook* and what it does; empty if it is installed."""
    if current().matching(hook, "hooks"):
        return ""
    return f"pip install {known_plugins()['hooks', hook]} {benefit}"


def model_rows(folder: RunFolder) -> list[tuple[str, str]]:
    """Return the model folder that the commands below take, and which checkpoint it is of."""
    from ..store.best import checkpoint_note

    model = model_of(folder)
    note = checkpoint_note(model)
    return [("model", str(model)), *([("", note)] if note else [])]


def model_of(folder: RunFolder) -> Path | str:
    """Return the model folder of the best checkpoint, which a run is as a model."""
    from ..store.checkpoint import best

    checkpoint = best(folder)
    return folder.shown / checkpoint.model.relative_to(folder.path) if checkpoint else "none"
