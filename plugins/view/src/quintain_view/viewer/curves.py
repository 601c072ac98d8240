"""The learning curves of a run as a picture, and the hook that draws them at the end of a run."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quintain.console import alert_intervals
from quintain.errors import UsageError
from quintain.store import RunFolder, write_atomically
from quintain.types import decoding

from .figure import BLUE, GREEN, GREY, LINES, ORANGE, RED, add_legend, render_png, shade_between

Records = Sequence[Mapping[str, Any]]
_REWARD_PANEL = 1
_PANEL_OF = {"held_out_falls": 0, "all_solved": 0, "truncated": 2, "entropy_collapse": 3}


def quintain_on_run_end(event: Any) -> None:
    """Draw the curves of a run that has finished; one that was interrupted or failed has none
    yet.
    """
    if event.status == "finished":
        draw(RunFolder(event.folder, lock=False))


def draw(folder: RunFolder) -> Path:
    """Draw the curves of a run into its folder and return the path of the picture. Raises as
    `picture`.
    """
    path = folder.path / "curves.png"
    recipe = tomllib.loads(folder.recipe())
    split = recipe.get("evaluation", {}).get("split", "dev")
    temperature = recipe.get("sampling", {}).get("temperature")
    held_out = (folder.summary() or {}).get("held_out", {})
    text = picture(
        folder.metrics(), title=folder.name, split=split, temperature=temperature, held_out=held_out
    )
    write_atomically(path, text)
    return path


def picture(
    metrics: Records,
    *,
    title: str = "",
    split: str = "dev",
    temperature: float | None = None,
    held_out: Mapping[str, Any] | None = None,
) -> bytes:
    """Draw reward, held-out accuracy with its 95 % interval, lengths and entropy over the steps, as
    a PNG.

    The steps on which an alert was on are shaded in the panel that it concerns.

    Args:
        metrics: records of ``metrics.jsonl``.
        split: the split of the evaluations during the run.
        temperature: of the training samples.
        held_out: that of the summary, for the accuracies before and after.

    Raises:
        UsageError: there is no record.
    """
    if not metrics:
        raise UsageError("no metrics to draw: the run has not finished a step")

    def paint(figure: Any) -> None:
        panels = figure.subplots(2, 2, sharex=True)
        _accuracy(panels.flat[0], metrics, split, temperature)
        _before_and_after(panels.flat[0], metrics, held_out or {})
        add_legend(panels.flat[0], "lower right")  # too long to stand above the panel
        for panel, paint_panel in zip(panels.flat[1:], (_reward, _lengths, _entropy), strict=True):
            paint_panel(panel, metrics)
        for panel in panels.flat:
            panel.margins(x=0.01)
        for name, first, last in alert_intervals(metrics):
            _shade_alarm(panels.flat[_PANEL_OF.get(name, _REWARD_PANEL)], name, first, last)
        for panel in panels[1]:
            panel.set_xlabel("step")
        if title:
            figure.suptitle(title, fontsize=12, x=0.012, ha="left")

    return render_png(paint, size=(9.6, 5.4))


def _accuracy(panel: Any, metrics: Records, split: str, temperature: float | None) -> None:
    panel.set_title("accuracy")
    panel.set_ylim(-0.03, 1.03)
    panel.yaxis.set_major_formatter("{x:.0%}")
    of = "" if temperature is None else f" (T {temperature:g})"
    _line(
        panel,
        metrics,
        "success",
        GREY,
        f"samples of training{of}",
        alpha=0.8,
        width=1.2,
        style=LINES[1],
    )
    measured = [m for m in metrics if m.get("held_out.accuracy") is not None]
    steps = [m["step"] for m in measured]
    low: list[Any] = [m.get("held_out.low") for m in measured]
    high: list[Any] = [m.get("held_out.high") for m in measured]
    if measured and None not in low and None not in high:
        shade_between(panel, steps, low, high)
    if measured:
        values = [m["held_out.accuracy"] for m in measured]
        how = measured[-1].get("held_out.temperature")
        label = (
            f"{split}, 95 % interval" if how is None else f"{split}, {decoding(how)}, 95 % interval"
        )
        panel.plot(steps, values, "o-", color=BLUE, ms=4, lw=2, label=label)
        beside = {"textcoords": "offset points", "va": "center", "annotation_clip": False}
        panel.annotate(f"{values[-1]:.1%}", (steps[-1], values[-1]), (7, 0), **beside)
    _line(
        panel,
        measured,
        "held_out.yardstick",
        RED,
        f"{split}, yardstick (not trained on)",
        style=LINES[2],
    )


def _before_and_after(panel: Any, metrics: Records, held_out: Mapping[str, Any]) -> None:
    """Mark the accuracies of the summary, in both ways of decoding: the result that the end of the
    run prints, which may be of another split than the curve.
    """
    steps = (metrics[0]["step"], metrics[-1]["step"])
    ends = [held_out.get(when) or {} for when in ("before", "after")]
    others = [measured.get("other_decoding") or {} for measured in ends]
    for found, marker, colour in ((ends, "D", BLUE), (others, "s", ORANGE)):
        values = [measured.get("accuracy") for measured in found]
        if None in values:
            continue
        how = found[-1].get("temperature")
        split = ends[-1].get("split", "")
        label = split if how is None else f"{split}, {decoding(how)}"
        panel.plot(steps, values, marker, color=colour, ms=5, mfc="none", label=label)


def _reward(panel: Any, metrics: Records) -> None:
    panel.set_title("reward")
    shaped = any("reward.shaping.mean" in m for m in metrics)
    _line(panel, metrics, "reward.mean", ORANGE, "with shaping" if shaped else "")
    if shaped:
        _line(panel, metrics, "reward.outcome.mean", BLUE, "outcome", style=LINES[1])
    add_legend(panel, "above")


def _lengths(panel: Any, metrics: Records) -> None:
    panel.set_title("length (tokens)")
    _line(panel, metrics, "length.right", GREEN, "right")
    _line(panel, metrics, "length.wrong", RED, "wrong", style=LINES[1])
    _line(panel, metrics, "length.mean", GREY, "all", alpha=0.8, width=1.2, style=LINES[2])
    add_legend(panel, "above")


def _entropy(panel: Any, metrics: Records) -> None:
    panel.set_title("entropy (nats per token)")
    _line(panel, metrics, "entropy", BLUE, "")
    panel.set_ylim(0, panel.get_ylim()[1] * 1.05)


def _shade_alarm(panel: Any, name: str, first: int, last: int) -> None:
    panel.axvspan(first - 0.5, last + 0.5, color=RED, alpha=0.08, linewidth=0)
    place = {"xycoords": ("data", "axes fraction"), "rotation": 90, "va": "top", "ha": "left"}
    panel.annotate(name.replace("_", " "), (first, 0.97), color=RED, fontsize=7.5, **place)


def _line(
    panel: Any,
    metrics: Records,
    name: str,
    colour: str,
    label: str,
    *,
    alpha: float = 1.0,
    width: float = 1.8,
    style: Any = "-",
) -> None:
    points = [(m["step"], m[name]) for m in metrics if m.get(name) is not None]
    if points:
        mark = "o" if len(points) == 1 else None
        look = {"color": colour, "lw": width, "ls": style, "alpha": alpha, "marker": mark}
        panel.plot(*zip(*points, strict=True), label=label or None, **look)
