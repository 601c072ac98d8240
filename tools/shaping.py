"""Draw ``docs/images/shaping/*.png``, a plot of each reward of quintain-rewards, by scoring
rollouts with the rewards.

Run it after changing a reward; a test fails where a reward has no plot.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import quintain_rewards.shaping as shaping
from quintain import Reward, Rollout, Score, Task, Turn
from quintain.interfaces.reward import RewardContext
from quintain.testing import rollout
from quintain.types.transcript import Branch, TokenSource, Transcript
from quintain_view.viewer import COLOURS, add_legend, render_png

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images" / "shaping"
TASK = Task(prompt="What is 2 + 2?", answer="4")


def of_length(tokens: int) -> Rollout[Any, Any]:
    """Return a rollout of one turn with *tokens* sampled tokens."""
    return rollout(TASK).replace(turns=(Turn(text="4", reply="4", tokens=tokens),))


def of_probability(probability: float) -> Rollout[Any, Any]:
    """Return a rollout whose tokens all have this probability."""
    branch = Branch(
        ids=(1,), sources=(TokenSource.MODEL,), logps=(math.log(probability),), versions=(0,)
    )
    return rollout(TASK, "4", transcripts={"": Transcript(branches=(branch,))})


def totals(reward: Reward, rollouts: Iterable[Rollout[Any, Any]]) -> list[float]:
    """Return the total of each of *rollouts*, which are one group."""
    scores = asyncio.run(reward.score_all(list(rollouts), RewardContext()))
    return [score.total if isinstance(score, Score) else math.nan for score in scores]


def lines(
    panel: Any,
    x: Sequence[float],
    rollouts: Sequence[Rollout[Any, Any]],
    rewards: Mapping[str, Reward],
    style: str = "-",
) -> None:
    """One line per reward; *x* has a number for each of *rollouts*."""
    for colour, (label, reward) in zip(COLOURS, rewards.items(), strict=False):
        panel.plot(
            x,
            totals(reward, rollouts),
            style,
            label=label,
            linewidth=1.8,
            markersize=4,
            color=colour,
        )
    if len(rewards) > 1:
        add_legend(panel)


def over_length(
    longest: int, rewards: Mapping[str, Reward], *, shortest: int = 0
) -> Callable[[Any], None]:
    def paint(panel: Any) -> None:
        lengths = [shortest + round((longest - shortest) * i / 200) for i in range(201)]
        lines(panel, lengths, [of_length(n) for n in lengths], rewards)
        panel.set_xlabel("length in tokens")

    return paint


def over_replies(reward: Reward, replies: Sequence[str]) -> Callable[[Any], None]:
    """Return a bar for each of *replies*, the first on top."""

    def paint(panel: Any) -> None:
        panel.barh(
            range(len(replies)),
            totals(reward, [rollout(TASK, text) for text in replies]),
            height=0.5,
        )
        panel.set_yticks(range(len(replies)), replies, family="monospace", fontsize=8)
        panel.invert_yaxis()
        panel.set_xlim(-0.02, 1.05)

    return paint


def repetition(panel: Any) -> None:
    sentence = " ".join(f"w{i}" for i in range(20))
    times = list(range(1, 13))
    rollouts = [rollout(TASK, " ".join([sentence] * n)) for n in times]
    lines(
        panel,
        times,
        rollouts,
        {f"ngram={n}": shaping.repetition(ngram=n) for n in (3, 10, 40)},
        "o-",
    )
    panel.set_xlabel("times that a sentence of 20 words is said")


def language_consistency(panel: Any) -> None:
    english = list(range(21))
    rollouts = [rollout(TASK, f"<think>{'so ' * n}{'好' * (20 - n)}</think>4") for n in english]
    rewards = {
        f'script="{name}"': shaping.language_consistency(script=name) for name in ("han", "latin")
    }
    lines(panel, english, rollouts, rewards, "o-")
    panel.set_xticks(range(0, 21, 4))
    panel.set_xlabel("English words among 20 words, the others Chinese")


def keyword(panel: Any) -> None:
    words = ("first", "then", "because", "so", "check")
    present = list(range(len(words) + 1))
    rollouts = [rollout(TASK, " ".join(words[:n])) for n in present]
    rewards = {
        "all needed": shaping.keyword(words=words),
        "needed=2": shaping.keyword(words=words, needed=2),
    }
    lines(panel, present, rollouts, rewards, "o-")
    panel.set_xlabel("different keywords that appear, of 5")


def mean_log_prob(panel: Any) -> None:
    probabilities = [math.exp(-6 * (1 - i / 200)) for i in range(201)]
    rollouts = [of_probability(p) for p in probabilities]
    rewards = {f"floor={floor:g}": shaping.mean_log_prob(floor=floor) for floor in (-10.0, -3.0)}
    lines(panel, probabilities, rollouts, rewards)
    panel.set_xlabel("probability of each token (geometric mean)")


PLOTS: Mapping[str, Callable[[Any], None]] = {
    "format_tags": over_replies(
        shaping.format_tags,
        [
            "<think>2+2</think><answer>4</answer>",
            "<think>2+2</think>4",
            "Well, <think>2+2</think><answer>4</answer>",
            "4",
        ],
    ),
    "boxed": over_replies(
        shaping.boxed,
        [r"so \boxed{4}", r"\boxed{4} or \boxed{5}", r"\boxed{}", r"\boxed{4", "so 4"],
    ),
    "length_l1": over_length(
        6000,
        {
            'form="exact"': shaping.length_l1(target=2000),
            'form="maximum"': shaping.length_l1(target=2000, form="maximum"),
        },
    ),
    "length_kimi": over_length(
        900,
        {
            'answers="right"': shaping.length_kimi,
            'answers="wrong"': shaping.length_kimi(answers="wrong"),
        },
        shortest=300,
    ),
    "length_cosine": over_length(
        5000,
        {
            "right: limit=4096, start=1, end=0, over=-1": shaping.length_cosine(limit=4096),
            "wrong: limit=4096, start=-1, end=0, over=-1": shaping.length_cosine(
                limit=4096, start=-1.0
            ),
        },
    ),
    "soft_overlong": over_length(24000, {"": shaping.soft_overlong(limit=20480, buffer=4096)}),
    "repetition": repetition,
    "language_consistency": language_consistency,
    "keyword": keyword,
    "mean_log_prob": mean_log_prob,
}
"""The rewards in the order of docs/shaping.md, each with what paints its plot on a panel."""


def render(name: str) -> bytes:
    """Return the plot of one reward, as a PNG."""

    def paint(figure: Any) -> None:
        panel = figure.subplots()
        PLOTS[name](panel)
        panel.set_title(name)

    return render_png(paint, size=(5.6, 2.6), dpi=100)


if __name__ == "__main__":
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name in PLOTS:
        (IMAGES / f"{name}.png").write_bytes(render(name))
    sys.stdout.write(f"wrote {len(PLOTS)} plots to {IMAGES.relative_to(ROOT)}\n")
