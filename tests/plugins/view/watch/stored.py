"""Run folders as a run leaves them, made without one: metrics, timelines, and any number of
rollouts.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pyarrow
import pyarrow.parquet

from quintain import Task
from quintain.store import RunFolder
from quintain.store.rollout_table import row, schema
from quintain.types.rollout import Group
from quintain.types.transcript import Branch, TokenSource, Transcript
from quintain_view.watch.trace import path_of, write_trace

from ..viewer.rollout_run import HOSTILE, TEXTS, failed, rollout
from .kit import Spans

RECIPE = """
[run]
name = "{name}"
seed = 3
steps = {steps}
[model]
name = "tiny"
[[environments]]
use = "arithmetic"
[algorithm]
use = "grpo"
[batch]
prompts = 2
group_size = 4
[evaluation]
split = "dev"
"""


def metrics_of(step: int, shift: float = 0.0) -> dict[str, object]:
    """The line of a step of a run that learns, and whose entropy is gone after step 8."""
    share = 1 - math.exp(-(step + 1) / 12) - shift
    record: dict[str, object] = {
        "step": step,
        "reward.mean": 1.2 * share,
        "reward.spread": 0.4,
        "samples": 8,
        "groups": 32,
        "success": share * 0.8,
        "length.mean": 40 - step / 2,
        "entropy": max(0.001, 1.2 - step / 9),
        "entropy.sampled": max(0.001, 1.2 - step / 9),
        "grad_norm": 0.5 + 0.1 * math.sin(step),
        "seconds.rollouts": 2.0,
        "seconds.update": 1.0,
        "tokens": 800,
        "queue.complete": 1,
        "queue.running": 3,
        "alerts": ["entropy_collapse"] if step > 12 else [],
    }
    if step % 4 == 0:
        record |= {
            "held_out.accuracy": share * 0.9,
            "held_out.low": share * 0.9 - 0.06,
            "held_out.high": share * 0.9 + 0.06,
            "held_out.tasks": 100,
            "held_out.temperature": 0.0,
        }
    return record


def branched(step: int, group: int, sample: int):  # type: ignore[no-untyped-def]
    """A rollout of two branches of different versions, whose texts are hostile."""
    first = Branch(
        ids=(1, 0, 2, 3, 4, 0),
        sources=tuple(map(TokenSource, (1, 0, 2, 2, 2, 3))),
        logps=(0.0, 0.0, -0.01, -0.7, -2.3, 0.0),
        versions=(-1, -1, step, step, step + 1, -1),
    )
    second = Branch(
        ids=(5, 2, 4),
        sources=tuple(map(TokenSource, (1, 2, 2))),
        logps=(0.0, -1.0, -0.2),
        versions=(-1, step + 1, step + 1),
        parent=0,
        fork=3,
    )
    return rollout(
        step,
        group,
        sample,
        transcripts={"": Transcript(branches=(first, second))},
        task=Task(prompt=f"What is 2+2? {HOSTILE}", answer="4"),
    )


def make_stored(path: Path, name: str = "sums", *, steps: int = 16, shift: float = 0.0) -> Path:
    """A run of *steps* with two groups of four rollouts each; the first of a step has branches, the
    last one failed.
    """
    with RunFolder.create(path / name, RECIPE.format(name=name, steps=steps)) as folder:
        folder.append(
            {
                "time": "2026-11-26T08:00:00Z",
                "versions": {"python": "3.11.7", "torch": "2.13.0"},
                "device": "cpu (x86_64)",
                "commit": "0123abc",
                "recipe": {},
            },
            folder.provenance_path,
        )
        for step in range(1, steps + 1):
            folder.append(metrics_of(step, shift))
            made = [[rollout(step, 2 * step + g, s) for s in range(4)] for g in range(2)]
            made[0][0] = branched(step, made[0][0].group, 0)
            made[-1][-1] = failed(step, made[-1][0].group, 3)
            advantages = {
                (r.group, r.sample): [1.0 if r.sample % 2 == 0 else -1.0]
                * (5 if i == j == 0 else 3)
                for i, group in enumerate(made)
                for j, r in enumerate(group)
                if r.valid
            }
            groups = [Group(task=g[0].task, rollouts=tuple(g)) for g in made]
            folder.write_rollouts(step, groups, advantages)
        folder.append(
            {"time": "2026-11-26T08:01:00Z", "step": 4, "steering": {"concurrency": 8}},
            folder.provenance_path,
        )
        model = folder.checkpoints / "step-000001" / "model"
        model.mkdir(parents=True)
        vocabulary = {text: i for i, text in enumerate(TEXTS)}
        model_of = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<end>"}
        tokenizer = {"version": "1.0", "added_tokens": [], "model": model_of}
        (model / "tokenizer.json").write_text(json.dumps(tokenizer))
        write_trace(path_of(folder.path, steps), slow_step().timeline(steps, name))
    return path / name


def slow_step() -> Spans:
    """A step in which one call of the tool `search`, one replica and one reward are slow."""
    spans = Spans()
    step = spans.add("step", 0, 10, step=16)
    rollouts = spans.add("rollouts", 0, 7, step)
    for sample in range(12):
        end = 6.0 if sample == 3 else 2.0 + 0.2 * sample
        episode = spans.episode(0, end, rollouts, sample=sample)
        turn = spans.turn(0, 1, episode, tokens=40)
        spans.add("replica", 0, 1, turn, replica=sample % 2)
        spans.tool(1, end - 0.5, episode, "search")
        turn = spans.turn(end - 0.5, end, episode, tokens=20)
        spans.add("replica", end - 0.5, end, turn, replica=sample % 2)
        score = spans.add("score", end, end + 0.9, rollouts, step=16)
        spans.add("grade", end, end + 0.9, score, reward="judge", rollouts=1)
    spans.add("update", 7, 9, step)
    sync = spans.add("sync", 9, 9.5, step)
    spans.add("transfer", 9, 9.1, sync, replica=0)
    spans.add("transfer", 9, 9.5, sync, replica=1)
    return spans


def add_many(folder: Path, count: int, *, per_step: int = 1_000) -> None:
    """Give the run in *folder* *count* rollouts of hostile and plain texts, a thousand a step."""
    first = 1_000
    rows = [row(0, rollout(1, n, n % 4), [0.5] * 3) for n in range(8)]
    for number in range(count // per_step):
        step = first + number
        data = [
            rows[n % 8] | {"step": step, "group": n // 4, "sample": n % 4, "outcome": (n % 11) / 10}
            for n in range(per_step)
        ]
        table = pyarrow.Table.from_pylist(data, schema=schema())
        path = folder / "rollouts" / f"step-{step:06d}.parquet"
        pyarrow.parquet.write_table(table, path, compression="zstd")
