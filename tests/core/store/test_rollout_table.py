"""The advantages in the table of rollouts, and the answers that a run shows at an evaluation."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.console.screen import Screen
from quintain.store.rollout_table import advantages_of, row
from quintain.store.run_folder import RunFolder
from quintain.types.rollout import (
    AnyRollout,
    Group,
    Rollout,
    Score,
    Termination,
    TerminationKind,
    Turn,
)
from quintain.types.task import Task
from quintain.types.transcript import Branch, TokenSource, Transcript

from ...lanes import examples

PROMPT, MODEL = TokenSource.PROMPT, TokenSource.MODEL
TASK = Task(prompt="2+2=?\nEnd with ####.", answer="4")


def branch(sources: tuple[int, ...], parent: int = -1, fork: int = 0) -> Branch:
    versions = tuple(1 if s == MODEL else -1 for s in sources)
    return Branch(parent, fork, (7,) * len(sources), sources, (0.0,) * len(sources), versions)


def rollout(sample: int, *branches: Branch, **fields: Any) -> AnyRollout:
    transcripts = {"": Transcript(branches=branches), **fields.pop("others", {})}
    return Rollout(task=TASK, group=5, sample=sample, transcripts=transcripts, **fields)


def of(values: Any, *rollouts: AnyRollout) -> Any:
    return advantages_of(
        [Group(task=TASK, rollouts=rollouts, index=5)], SimpleNamespace(values=values)
    )


def test_advantages_per_sample_and_per_token() -> None:
    """One value per sample is that of each of its sampled tokens; failed rollouts are in no
    batch.
    """
    failed = rollout(1, branch((PROMPT, MODEL)), termination=Termination(TerminationKind.TIMEOUT))
    rollouts = (
        rollout(0, branch((PROMPT, MODEL, MODEL))),
        failed,
        rollout(2, branch((PROMPT, MODEL))),
    )

    assert of([1.5, -1.5], *rollouts) == {(5, 0): [1.5, 1.5], (5, 2): [-1.5]}
    assert of([1.0, 2.0, 3.0], *rollouts) == {(5, 0): [1.0, 2.0], (5, 2): [3.0]}
    assert of([], *rollouts) == {}
    assert advantages_of([Group(task=TASK, rollouts=rollouts)], None) == {}


def test_advantages_of_other_players_are_skipped() -> None:
    """Each player is a sample of the batch; the table shows the policy's own player, over all
    branches.
    """
    other = {"rival": Transcript(branches=(branch((PROMPT, MODEL)),)), "silent": Transcript()}
    first = rollout(0, branch((PROMPT, MODEL)), branch((MODEL,), parent=0, fork=1), others=other)

    assert of([1.0, 2.0, 3.0, 4.0], first, rollout(1, branch((PROMPT, MODEL)))) == {
        (5, 0): [1.0, 2.0],
        (5, 1): [4.0],
    }


@pytest.mark.more
@examples(60)
@given(st.text(), st.floats(), st.integers(), st.sampled_from(["", "\ud800", "\udfff\ud800 a"]))
def test_the_json_columns_hold_the_record_exactly(
    text: str, number: float, whole: int, lone: str
) -> None:
    """Any text, lone surrogates too, any float with NaN and infinities, and integers of any
    size.
    """
    task = Task(prompt=text + lone, answer={"n": number, "i": whole * 2**80})
    columns = row(
        1, Rollout(task=task, outcome=Score(value=1.0, parts={lone: number}), metrics={"m": number})
    )

    record = Rollout(
        task=task, outcome=Score(value=1.0, parts={lone: number}), metrics={"m": number}
    ).to_json()
    assert repr(record) == repr(json.loads(columns["rollout"]))
    assert repr(record["task"]) == repr(json.loads(columns["task"]))
    assert repr({lone: number}) == repr(json.loads(columns["outcome_parts"]))
    columns["rollout"].encode()  # Parquet stores UTF-8


def test_advantages_are_stored(tmp_path: Path) -> None:
    rollouts = (rollout(0, branch((PROMPT, MODEL, MODEL))), rollout(1, branch((PROMPT, MODEL))))
    with RunFolder.create(tmp_path / "run", "x = 1") as folder:
        folder.write_rollouts(
            3, [Group(task=TASK, rollouts=rollouts, index=5)], {(5, 0): [0.5, 1.5]}
        )
        rows = folder.read_rollouts(3)

    assert [(row["advantage"], row["advantages"]) for row in rows] == [
        (1.0, [0.5, 1.5]),
        (None, None),
    ]


def answered(reply: str, value: float, reason: str = "") -> AnyRollout:
    return Rollout(
        task=TASK, turns=(Turn(text=reply, reply=reply),), outcome=Score(value=value, reason=reason)
    )


@pytest.mark.parametrize("columns", [80, 40])
def test_one_right_and_one_wrong_answer_are_shown(columns: int) -> None:
    """They fit the terminal, show no control characters, and change with the step."""
    out = io.StringIO()
    rollouts = [
        answered("#### 4", 1.0),
        answered("FOUR", 1.0),
        answered("5 \x1b[2J" * 90, 0.0, "'5' is not 4"),
    ]
    with patch.dict(os.environ, COLUMNS=str(columns)):
        Screen(out).answers("dev", 2, rollouts)
        Screen(out, quiet=True).answers("dev", 2, rollouts)
    text = out.getvalue()

    assert text.startswith(
        "dev, step 2, right:\n  2+2=? / End with ####.\n  -> #### 4\ndev, step 2, wrong:\n"
    )
    assert text.endswith("  ('5' is not 4)\n")
    assert columns >= max(map(len, text.splitlines()))
    assert "\x1b" not in text
    Screen(out).answers("dev", 3, rollouts[:2])
    assert "-> FOUR" in out.getvalue()
