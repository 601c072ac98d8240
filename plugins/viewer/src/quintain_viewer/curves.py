"""The learning curves of a run as a picture, and the hook that draws them at the end of a run."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quintain.errors import UsageError
from quintain.training import RunFolder, alert_intervals, write_atomically

from .figure import BLUE, GREEN, GREY, LINES, ORANGE, RED, add_legend, render_png, shade_between

Records = Sequence[Mapping[str, Any]]
_REWARD_PANEL = 1
_PANEL_OF = {"held_out_falls": 0, "all_solved": 0, "truncated": 2, "entropy_collapse": 3}


def quintain_on_run_end(event: Any) -> None:
    """Draw the curves of a run that has finished; one that was interrupted or failed has none yet."""
    if event.status == "finished":
        draw(RunFolder(event.folder, lock=False))


def draw(folder: RunFolder) -> Path:
    """Draw the curves of a run into its folder and return the path of the picture. Raises as `picture`."""
    path = folder.path / "curves.png"
    split = tomllib.loads(folder.recipe()).get("evaluation", {}).get("split", "dev")
    write_atomically(path, picture(folder.metrics(), title=folder.name, split=split))
    return path


def picture(metrics: Records, *, title: str = "", split: str = "dev") -> bytes:
    """Draw reward, held-out accuracy with its 95 % interval, lengths and entropy over the steps, as a PNG.

    The steps on which an alert was on are shaded in the panel that it concerns.

    Args:
        metrics: records of ``metrics.jsonl``.
        split: the split of the evaluations during the run.

    Raises:
        UsageError: there is no record.
    """
    if not metrics:
        raise UsageError("no metrics to draw: the run has not finished a step")

    def paint(figure: Any) -> None:
        panels = figure.subplots(2, 2, sharex=True)
        _accuracy(panels.flat[0], metrics, split)
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


def _accuracy(panel: Any, metrics: Records, split: str) -> None:
    panel.set_title("accuracy")
    panel.set_ylim(-0.03, 1.03)
    panel.yaxis.set_major_formatter("{x:.0%}")
    _line(panel, metrics, "success", GREY, "samples of training", alpha=0.8, width=1.2, style=LINES[1])
    measured = [m for m in metrics if m.get("held_out.accuracy") is not None]
    steps = [m["step"] for m in measured]
    low, high = ([m.get(f"held_out.{k}") for m in measured] for k in ("low", "high"))
    if measured and None not in low and None not in high:
        shade_between(panel, steps, low, high)
    if measured:
        values = [m["held_out.accuracy"] for m in measured]
        panel.plot(steps, values, "o-", color=BLUE, ms=4, lw=2, label=f"{split}, 95 % interval")
        beside = {"textcoords": "offset points", "va": "center", "annotation_clip": False}
        panel.annotate(f"{values[-1]:.1%}", (steps[-1], values[-1]), (7, 0), **beside)
    add_legend(panel, "above")


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
