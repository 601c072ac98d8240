"""All shaping rewards in one recipe: a real step scores with each of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quintain.cli import main

from ....core.models.tiny import save_tiny

RECIPE = """
run.name = "shaped"
run.steps = 2
model.name = "model"
sampling.max_tokens = 8
batch = { prompts = 2, group_size = 4 }
evaluation = { every = 0, test = { tasks = 0 } }

[[environments]]
use = "arithmetic"
shaping = '''
0.1 * format_tags + 0.1 * boxed + length_l1(target=6) + 0.1 * length_l1(target=6, form="maximum", alpha=0.1)
+ length_kimi.gate(boxed) + length_kimi(answers="wrong").gate(1 - boxed)
+ length_cosine(limit=9) + soft_overlong(limit=8, buffer=4) + repetition(ngram=1)
+ language_consistency(script="latin", part="all") + keyword(words=["a", "="], whole_words=False) + 0.1 * mean_log_prob
'''
"""


@pytest.mark.usefixtures("no_curves")
def test_a_run_scores_with_every_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reward is a part in the metrics within its bounds, and no rollout fails."""
    monkeypatch.chdir(tmp_path)
    save_tiny(tmp_path / "model", context=160)
    (tmp_path / "shaped.toml").write_text(RECIPE)

    assert main(["train", "shaped.toml", "--quiet"]) == 0

    steps = [
        json.loads(line)
        for line in (tmp_path / "runs" / "shaped" / "metrics.jsonl").read_text().splitlines()
    ]
    bounds = {
        "format_tags": (0, 1),
        "boxed": (0, 1),
        "length_l1": (-0.01, 0),
        "length_l1.2": (0, 1),
        "length_kimi": (-0.5, 0.5),
        "length_kimi.2": (-0.5, 0),
        "length_cosine": (0, 1),
        "soft_overlong": (-1, 0),
        "repetition": (-1, 0),
        "language_consistency": (0, 1),
        "keyword": (0, 1),
        "mean_log_prob": (-10, -0.01),  # a random model is never certain
    }
    assert [step["step"] for step in steps] == [0, 1, 2]
    for step in steps[1:]:
        parts = {name: step.get(f"reward.part.{name}.mean") for name in bounds}
        outside = {
            n: v for n, v in parts.items() if v is None or not bounds[n][0] <= v <= bounds[n][1]
        }
        assert not outside, outside
        assert step["failed"] == 0
