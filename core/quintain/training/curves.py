"""The curves of a run as a picture."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .alerts import spells
from .run_folder import RunFolder
from .storage import write_atomically

_BLUE, _ORANGE, _GREEN, _RED, _GREY = "#1f5fa8", "#d9722e", "#3a8f5c", "#b3373f", "#8a8f98"
_STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#b6bac1",
    "axes.grid": True,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.labelcolor": "#4a4f57",
    "grid.color": "#e6e8eb",
    "font.size": 9.5,
    "legend.frameon": False,
    "xtick.color": "#6b7078",
    "ytick.color": "#6b7078",
}
Records = Sequence[Mapping[str, Any]]
_REWARD_PANEL = 1
_PANEL_OF = {"held_out_falls": 0, "all_solved": 0, "truncated": 2, "entropy_collapse": 3}


def draw(folder: RunFolder) -> Path:
    """Draw the curves of a run into its folder; the path of the picture. Raises as `picture`."""
    path = folder.path / "curves.png"
    write_atomically(path, picture(folder.metrics(), title=folder.name))
    return path


def picture(metrics: Records, *, title: str = "") -> bytes:
    """Reward, held-out accuracy with its 95 % interval, lengths and entropy over the steps, as a PNG; steps on which an
    alarm was on are shaded in the panel that it concerns.

    Args:
        metrics: records of ``metrics.jsonl``.

    Raises:
        UsageError: there is no record, or no matplotlib.
    """
    if not metrics:
        raise UsageError("no metrics to draw: the run has not finished a step")
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as e:
        raise UsageError("drawing curves needs matplotlib: pip install 'quintain[train]'") from e
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(9.6, 5.4), dpi=144, layout="constrained")
        FigureCanvasAgg(figure)  # type: ignore[no-untyped-call,unused-ignore]
        panels = figure.subplots(2, 2, sharex=True)
        for panel, paint in zip(panels.flat, (_accuracy, _reward, _lengths, _entropy), strict=True):
            paint(panel, metrics)
            panel.margins(x=0.01)
        for name, first, last in spells(metrics):
            _shade(panels.flat[_PANEL_OF.get(name, _REWARD_PANEL)], name, first, last)
        for panel in panels[1]:
            panel.set_xlabel("step")
        if title:
            figure.suptitle(title, fontsize=12, x=0.012, ha="left")
        out = io.BytesIO()
        figure.savefig(out, format="png")
    return out.getvalue()


def _column(metrics: Records, name: str) -> tuple[list[float], list[float]]:
    """Steps and values where *name* was recorded."""
    found = [(m["step"], m[name]) for m in metrics if m.get(name) is not None]
    return [x for x, _ in found], [y for _, y in found]


def _accuracy(panel: Any, metrics: Records) -> None:
    panel.set_title("held-out accuracy")
    panel.set_ylim(-0.03, 1.03)
    panel.yaxis.set_major_formatter("{x:.0%}")
    _line(panel, metrics, "success", _GREY, "train samples", alpha=0.8, width=1.2)
    found = [m for m in metrics if m.get("held_out.accuracy") is not None]
    steps = [m["step"] for m in found]
    low, high = ([m.get(f"held_out.{k}") for m in found] for k in ("low", "high"))
    if found and None not in low and None not in high:
        panel.fill_between(steps, low, high, color=_BLUE, alpha=0.18, linewidth=0)
    if found:
        values = [m["held_out.accuracy"] for m in found]
        panel.plot(steps, values, "o-", color=_BLUE, ms=4, lw=2, label="held out, 95 % interval")
        panel.annotate(f"{values[-1]:.1%}", (steps[-1], values[-1]), (-2, -14), textcoords="offset points", ha="right")
    _legend(panel, "lower right")


def _reward(panel: Any, metrics: Records) -> None:
    panel.set_title("reward of train samples")
    shaped = any("reward.shaping.mean" in m for m in metrics)
    _line(panel, metrics, "reward.mean", _ORANGE, "with shaping" if shaped else "")
    if shaped:
        _line(panel, metrics, "reward.verdict.mean", _BLUE, "verdict")
    _legend(panel, "best")


def _lengths(panel: Any, metrics: Records) -> None:
    panel.set_title("length (tokens)")
    _line(panel, metrics, "length.right", _GREEN, "right")
    _line(panel, metrics, "length.wrong", _RED, "wrong")
    _line(panel, metrics, "length.mean", _GREY, "all", alpha=0.8, width=1.2)
    _legend(panel, "best")


def _entropy(panel: Any, metrics: Records) -> None:
    panel.set_title("entropy (nats per token)")
    _line(panel, metrics, "entropy", _BLUE, "")
    panel.set_ylim(bottom=0)


def _shade(panel: Any, name: str, first: int, last: int) -> None:
    panel.axvspan(first - 0.5, last + 0.5, color=_RED, alpha=0.08, linewidth=0)
    place = {"xycoords": ("data", "axes fraction"), "rotation": 90, "va": "top", "ha": "left"}
    panel.annotate(name.replace("_", " "), (first, 0.97), color=_RED, fontsize=7.5, **place)


def _line(
    panel: Any, metrics: Records, name: str, colour: str, label: str, *, alpha: float = 1.0, width: float = 1.8
) -> None:
    steps, values = _column(metrics, name)
    if steps:
        mark = "o" if len(steps) == 1 else None
        panel.plot(steps, values, color=colour, lw=width, alpha=alpha, marker=mark, label=label or None)


def _legend(panel: Any, place: str) -> None:
    if panel.get_legend_handles_labels()[0]:
        panel.legend(loc=place, fontsize=8.5)
