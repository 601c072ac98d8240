"""`quintain watch --terminal`: the state of a run as text, drawn again every second."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from quintain.console import clock_text
from quintain.errors import QuintainError

from .state import overview
from .trace import read_trace
from .waits import waits_of

BARS = " ▁▂▃▄▅▆▇█"
CURVES = (
    ("held_out.accuracy", "held-out accuracy"),
    ("success", "right in training"),
    ("reward.mean", "reward"),
    ("length.mean", "length"),
    ("entropy", "entropy"),
)
POINTS = 50
"""Of a curve."""
ROLLOUTS = 6
WAITS = 5


def follow(folder: Path, *, once: bool = False, price: float | None = None) -> None:
    """Show the run in *folder* until it ends or Ctrl-C is pressed; *once* shows it as it is."""
    console = Console()
    if once:
        console.print(screen(folder, price))
        return
    with Live(screen(folder, price), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(1)
            state = overview(folder, price=price)
            live.update(drawn(folder, state), refresh=True)
            if not state["running"]:
                return


def screen(folder: Path, price: float | None = None) -> RenderableType:
    """Return the run in *folder* as text."""
    return drawn(folder, overview(folder, price=price))


def drawn(folder: Path, state: Mapping[str, Any]) -> RenderableType:
    """Return *state*, as `overview` gives it, as text."""
    head = Text(f"{state['name']}: {state['state']}, step {state['step']} of {state['steps']}")
    head.stylize("bold")
    parts: list[RenderableType] = [head, curves(state["metrics"])]
    if state["fault"]:
        parts.insert(1, Text(state["fault"], style="red"))
    if (live := state["live"]) is not None:
        kinds = Counter(span["kind"] for span in live["open"])
        now = ", ".join(f"{count} x {kind}" for kind, count in kinds.most_common())
        oldest = max((span["seconds"] for span in live["open"]), default=0.0)
        parts.append(
            Text(f"now: step {live['step']}, {now or 'nothing'}, the oldest {oldest:.1f} s")
        )
        if ages := [age for _, age in live["queue"]]:
            line = f"queue: {len(ages)} complete groups wait, the oldest for {max(ages):.1f} s"
            parts.append(Text(line))
        parts.append(latest(live["rollouts"]))
    for alert in state["alerts"]:
        if alert["on"]:
            names = ", ".join(alert["metrics"])
            line = f"alert {alert['name']} since step {alert['first']} ({names}): "
            parts.append(Text(line + alert["message"], style="red"))
    if state["timelines"]:
        parts.append(step_waits(folder, state["timelines"][-1]))
    cost = state["cost"]
    money = f", {cost['money']:.2f}" if "money" in cost else ""
    parts.append(Text(f"cost: {clock_text(cost['total'])}, {cost['tokens']:,} tokens{money}"))
    return Group(*parts)


def curves(metrics: Sequence[Mapping[str, Any]]) -> Table:
    """Return the curves as rows of bars."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, title in CURVES:
        values = [m[name] for m in metrics if isinstance(m.get(name), (int, float))]
        if values:
            table.add_row(title, bars(values[-POINTS:]), f"{values[-1]:.3g}")
    return table


def bars(values: Sequence[float]) -> str:
    """Return one character for each of *values*, from their smallest to their largest."""
    low, high = min(values), max(values)
    span = high - low or 1.0
    return "".join(BARS[1 + round((value - low) / span * (len(BARS) - 2))] for value in values)


def latest(rollouts: Sequence[Mapping[str, Any]]) -> Table:
    """Return the newest finished rollouts of the step that runs."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), expand=False)
    for rollout in rollouts[-ROLLOUTS:]:
        reward = "" if rollout["reward"] is None else f"{rollout['reward']:.2f}"
        reply = " ".join(rollout["reply"].split())[:70]
        table.add_row(rollout["result"], reward, Text(reply, overflow="ellipsis", no_wrap=True))
    return table


def step_waits(folder: Path, step: int) -> RenderableType:
    """Return what *step* waited for, the longest first."""
    try:
        waits = waits_of(read_trace(folder, step))
    except QuintainError as e:
        return Text(str(e))
    lines = [f"step {step} took {waits.seconds:.2f} s. It waited for"]
    lines += [
        f"  {wait.share:6.1%}  {wait.seconds:8.3f} s  {wait.label}" for wait in waits.waits[:WAITS]
    ]
    return Text("\n".join(lines))
