"""Rollouts in a terminal."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from rich.console import Console
from rich.rule import Rule
from rich.style import Style
from rich.text import Text

from quintain.console import printable

from .stored import SOURCES, Row

MARKS = {
    "right": ("right", "bold green"),
    "wrong": ("wrong", "bold red"),
    "failed": ("failed", "bold magenta"),
}
TOOL = "dark_orange3"
ROLES = {"system": "magenta", "user": "cyan", "assistant": "green", "tool": TOOL}
REWRITE = "bold blue"
FEW = 4
"""Messages that are printed again below a rollout that begins with them."""
LIKELY, UNLIKELY = (0, 90, 160), (190, 80, 0)


def show(
    views: Sequence[Row], decode: Callable[[int], str], console: Console | None = None
) -> None:
    """Print *views*, each with its tokens if it has them."""
    console = console or Console(highlight=False)
    if not console.is_terminal and not console.width:
        console.width = 100
    before: Sequence[Any] = ()
    for view in views:
        _header(console, view)
        _conversation(console, view, decode, _as_before(before, view["messages"]))
        before = view["messages"] if view["tokens"] is None else ()
        for other in view["conversations"]:
            score = "" if other["score"] is None else f", score {other['score']:.4g}"
            console.print(Text(printable(f"player {other['player']}{score}"), style="bold"))
            _conversation(console, other, decode)
        _scores(console, view)
    console.print()


def _as_before(before: Sequence[Any], messages: Sequence[Any]) -> int:
    """Return how many of *messages* begin the rollout *before*, too, less the last of them; 0 if they
    are few.
    """
    pairs = zip(before, messages, strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) - 1
    return same if same >= FEW else 0


def _conversation(
    console: Console, part: Row, decode: Callable[[int], str], skipped: int = 0
) -> None:
    """Print the messages of a player behind those that are *skipped*, or its tokens; where the
    context was rewritten, the lengths before and after.
    """
    if part["tokens"] is None:
        if skipped:
            _block(console, "as above", f"{skipped} messages", "dim")
        for number, message in enumerate(part["messages"]):
            for place in _rewrites(part, "messages", number):
                _block(console, "context", place, REWRITE)
            if number >= skipped:
                _message(console, message)
    else:
        _tokens(console, part, decode)


def _rewrites(part: Row, unit: str, number: int) -> list[str]:
    """Return what to say of the rewrites that come after *number* messages or tokens."""
    return [
        f"rewritten: {place['before']:,} tokens before, {place['after']:,} after"
        for place in part["rewrites"]
        if place[unit] == number
    ]


def _header(console: Console, view: Row) -> None:
    mark, style = MARKS[view["result"]]
    title = Text.assemble(
        (mark, style),
        printable(
            f"  step {view['step']}  {view['environment']}  group {view['group']}  sample "
            f"{view['sample']}"
        ),
    )
    console.print()
    console.print(Rule(title, align="left", style="dim", characters="-"))


def _message(console: Console, message: Mapping[str, Any]) -> None:
    role = message["role"]
    if message.get("reasoning"):
        _block(console, "reasoning", message["reasoning"], "dim")
    if message.get("content") or not message.get("calls"):
        _block(console, role, message.get("content") or "(empty)", ROLES.get(role, ""))
    for call in message.get("calls") or ():
        arguments = json.dumps(call.get("arguments"), ensure_ascii=False)
        _block(console, "calls", f"{call['name']}({arguments})", TOOL)
        if call.get("error"):
            _block(console, "error", call["error"], "red")


def _block(console: Console, label: str, text: str, style: str) -> None:
    """Print *text* beside its *label*, wrapped to the width."""
    label = printable(label)
    width = max(20, console.width - 11)
    lines = Text(printable(text.rstrip("\n"))).wrap(console, width, tab_size=4) or [Text()]
    for i, line in enumerate(lines):
        line.rstrip()
        console.print(
            Text.assemble((f"{label if i == 0 else '':>9}", style), "  ", line), soft_wrap=True
        )


def _scores(console: Console, view: Row) -> None:
    values = [("reward", view["reward"])]
    if view["shaping"] is not None:
        values += [("outcome", view["outcome"]), ("shaping", view["shaping"])]
    if view["yardstick"] is not None:
        values += [("yardstick", view["yardstick"])]
    values += [("advantage", view["advantage"])]
    text = "  ".join(
        f"{name} {'none' if value is None else f'{value:.4g}'}" for name, value in values
    )
    _block(console, "score", text, "bold")
    if parts := {
        k: v for k, v in view["parts"].items() if len(view["parts"]) > 1 or v != view["reward"]
    }:
        _block(
            console,
            "parts",
            "  ".join(f"{name} {value:.4g}" for name, value in parts.items()),
            "bold",
        )
    if view["why"]:
        _block(console, "why", view["why"], "bold")
    if view["answer"] is not None:
        _block(console, "expected", str(view["answer"])[:400], "bold")
    end = view["termination"] + (f": {view['reason']}" if view["reason"] else "")
    tries = f", attempt {view['attempts']}" if view["attempts"] > 1 else ""
    _block(
        console,
        "ended",
        f"{end}{tries}; {view['sampled']:,} tokens, {view['seconds']:.2f} s",
        "bold",
    )
    if view["metrics"]:
        _block(
            console,
            "metrics",
            "  ".join(f"{k} {v:.4g}" for k, v in view["metrics"].items()),
            "bold",
        )


def _tokens(console: Console, part: Row, decode: Callable[[int], str]) -> None:
    """Print the text of all tokens, policy tokens on a colour by probability; then a table of the
    policy's.
    """
    text, tokens = Text(), part["tokens"]
    for number, (token, source, logp, _, _) in enumerate(tokens):
        for place in _rewrites(part, "tokens", number):
            text.append(f"\n[context {place}]\n", REWRITE)
        piece = printable(decode(token))
        style = Style(dim=True) if logp is None else Style(bgcolor=_colour(logp), color="#ffffff")
        text.append(piece, style if SOURCES[source] != "tool" else Style(color=TOOL))
    console.print(text)
    legend = Text("probability of sampled tokens: ")
    for p in (1.0, 0.5, 0.1, 0.01):
        legend.append(f" {p:g} ", Style(bgcolor=_colour(math.log(p)), color="#ffffff"))
    console.print(
        legend.append("  dim: prompt and template", Style(dim=True)).append("  orange: tools", TOOL)
    )
    console.print(
        Text(
            f"{'token':<22}{'source':<10}{'log-prob':>9}{'p':>8}{'advantage':>11}{'version':>9}",
            "bold",
        )
    )
    for number, (token, source, logp, version, advantage) in enumerate(tokens):
        for place in _rewrites(part, "tokens", number):
            console.print(Text(f"context {place}", REWRITE))
        shown = printable(repr(decode(token)))[:20]
        name = SOURCES[source]
        if logp is None:
            console.print(Text(f"{shown:<22}{name:<10}", "dim"))
            continue
        row = Text(f"{shown:<22}{name:<10}{logp:>9.3f}{math.exp(min(logp, 0)):>8.3f}")
        adv = f"{'none' if advantage is None else f'{advantage:+.3f}':>11}"
        row.append(adv, "" if not advantage else "green" if advantage > 0 else "red")
        console.print(row.append(f"{version:>9}"))


def _colour(logp: float) -> str:
    """Return a colour from blue for probability 1 over to orange for 0.01 and less."""
    share = min(1.0, max(0.0, -logp / -math.log(0.01)))
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(LIKELY, UNLIKELY, strict=True))
    return f"#{red:02x}{green:02x}{blue:02x}"
