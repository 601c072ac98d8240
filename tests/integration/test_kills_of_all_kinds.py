"""A run whose processes of all kinds are killed, and what is compared of it; the command
`studies.benchmarks.kills` makes a thousand kills.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs quintain[train]")

import torch
from studies.benchmarks.kill_parts import expected_reward, logp_of
from studies.benchmarks.kills import (
    KINDS,
    Life,
    check,
    check_rows,
    differences,
    prepared,
    undisturbed,
)

STEPS, OF_EACH = 40, 2


def row(**changes: Any) -> dict[str, Any]:
    """A rollout of two tokens of version 3, whose weights were ``"content"``."""
    replies = ["one", "two"]
    return {
        "step": 4,
        "termination": "truncated",
        "outcome": expected_reward(replies),
        "token_logps": [0.0, logp_of("content"), logp_of("content")],
        "token_versions": [-1, 3, 3],
        "rollout": json.dumps({"result": [*replies, "123"]}),
        **changes,
    }


def test_tokens_of_other_weights_and_scored_failures_are_found() -> None:
    contents = {2: "old", 3: "content"}
    lost = {"termination": "infrastructure_error", "rollout": json.dumps({"result": None})}
    assert check_rows([row()], contents) == {}
    assert check_rows([row(token_versions=[-1, 3, 2])], contents) == {
        "tokens of other weights than their version says": 1
    }
    assert check_rows([row(outcome=0.0), row(outcome=0.1)], contents) == {
        "failures that were scored": 2
    }
    assert check_rows([row(**lost)], contents) == {"rollouts that ended as infrastructure_error": 1}


def test_what_differs_from_the_undisturbed_run_is_found() -> None:
    def outcome(weight: float, loss: float, reply: str) -> dict[str, Any]:
        rows = [dict.fromkeys(("group", "sample", "seed", "reply"), reply) | {"step": 1}]
        rows[0] |= dict.fromkeys(
            ("task_id", "messages", "outcome", "advantages", "termination", "token_ids"), 0
        )
        rows[0] |= dict.fromkeys(("token_logps", "token_versions", "token_sources"), 0)
        return {
            "weights": {"w": torch.tensor([weight])},
            "optimizer": {},
            "metrics": [{"step": 1, "loss": loss}],
            "rows": rows,
        }

    whole = outcome(1.0, 0.5, "a")
    assert differences(whole, outcome(1.0, 0.5, "a")) == []
    found = differences(whole, outcome(1.0 + 2**-23, 0.6, "b") | {"rows": whole["rows"] * 2})
    assert [text.partition(":")[0] for text in found] == [
        "weights",
        "metrics of step 1",
        "2 rows, expected 1",
    ]
    assert differences(whole, outcome(1.0, 0.5, "b")) == ["1 rollouts, the first of step 1"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
def test_kills_of_all_kinds_change_nothing(tmp_path: Path) -> None:
    """Ranks, servers, episode processes, sandboxes and the driver."""
    folder = prepared(tmp_path, "sync, sharded", "process", STEPS)
    expected = undisturbed(folder, "sync, sharded", STEPS)
    life, draw = Life(folder, "killed"), random.Random(3)
    for kind in [*KINDS] * OF_EACH:
        made = len(life.kills)
        while len(life.kills) == made and life.look():  # the moment may not come, or none be there
            life.kill_once(draw, {kind: 1})
    outcome = check(life, "sync, sharded", STEPS, expected)
    assert outcome.faults == []
    assert Counter(kill.kind for kill in outcome.kills) == dict.fromkeys(KINDS, OF_EACH)
    assert outcome.counted == {"steps": STEPS, "drawn": 3 * STEPS, "abandoned": 0}
