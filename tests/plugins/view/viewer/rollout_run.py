"""A run folder with rollouts for tests of viewers, hostile texts included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from quintain import Message, Rollout, Score, Task, ToolCall
from quintain.store import RunFolder
from quintain.types.rollout import AnyRollout, Group, Termination, TerminationKind, Turn
from quintain.types.transcript import Branch, TokenSource, Transcript

HOSTILE = (
    "</script><script>document.title='injected'</script><img src=x "
    "onerror=\"document.title='injected'\"><!--<script>&lt;b&gt; \u2028 {{DATA}} "
    "\x1b[2J\x1b]0;title\x07 </textarea></style>"
)
RECIPE = '[[environments]]\nuse = "arithmetic"\n'
TEXTS = ("<end>", "What is 2+2?", "The answer", " is", " 4", "</script>")
"""The tokens of the tokenizer of the run, by id."""


def rollout(step: int, group: int, sample: int, **fields: Any) -> AnyRollout:
    """Right if *sample* is even: one turn with a tool call before the reply."""
    right = sample % 2 == 0
    reply = "The answer is 4" if right else f"It is 5 {HOSTILE}"
    branch = Branch(
        ids=(1, 0, 2, 3, 4 if right else 5, 0),
        sources=tuple(map(TokenSource, (1, 0, 2, 2, 2, 3))),
        logps=(0.0, 0.0, -0.01, -0.7, -2.3, 0.0),
        versions=(-1, -1, step, step, step, -1),
    )
    given: dict[str, Any] = {
        "task": Task(prompt=f"What is 2+2? (group {group})", answer="4"),
        "turns": (Turn(text=reply, reply=reply, tokens=3),),
        "messages": (
            Message("system", "Use the calculator."),
            Message("user", f"What is 2+2? (group {group})"),
            Message(
                "assistant",
                "",
                reasoning="I add.",
                calls=(ToolCall(name="add", arguments={"a": 2, "b": 2}),),
            ),
            Message("tool", "4", name="add"),
            Message("assistant", reply),
        ),
        "transcripts": {"": Transcript(branches=(branch,))},
        "outcome": Score(
            value=float(right),
            parts={"exact": float(right), "format": 1.0},
            reason="" if right else HOSTILE,
        ),
        "shaping": Score(value=0.25),
        "environment": "arithmetic",
        "group": group,
        "sample": sample,
        "seconds": 0.5,
    }
    return Rollout(**(given | fields))


def failed(step: int, group: int, sample: int) -> AnyRollout:
    ended = Termination(TerminationKind.TIMEOUT, "60 seconds are over", 2)
    return rollout(step, group, sample, termination=ended, outcome=None, shaping=None)


def make_run(
    path: Path, *, steps: int = 2, groups: int = 2, samples: int = 4, name: str = "sums"
) -> Path:
    """A run with *steps* files; the last rollout of each step failed. Its checkpoint has a
    tokenizer of `TEXTS`.
    """
    with RunFolder.create(path / name, RECIPE) as folder:
        for step in range(1, steps + 1):
            folder.append({"step": step, "reward.mean": 0.5})
            made = [
                [rollout(step, g, s) for s in range(samples)]
                for g in range(step * groups, (step + 1) * groups)
            ]
            made[-1][-1] = failed(step, made[-1][0].group, samples - 1)
            advantages = {
                (r.group, r.sample): [1.0 if r.sample % 2 == 0 else -1.0] * 3
                for g in made
                for r in g
                if r.valid
            }
            folder.write_rollouts(
                step, [Group(task=g[0].task, rollouts=tuple(g)) for g in made], advantages
            )
        model = folder.checkpoints / "step-000001" / "model"
        model.mkdir(parents=True)
        vocabulary = {text: i for i, text in enumerate(TEXTS)}
        tokenizer = {
            "version": "1.0",
            "added_tokens": [],
            "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<end>"},
        }
        (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    return path / name
