"""VinePPO in a run: the values of beginnings are means over answers of the model itself, whose
expectations are sums over all answers by plain forward passes in float64.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quintain.cli import main
from quintain.learning import Learner
from quintain.models import load_model

from ....core.models.tiny import with_exact_norms
from ....small_run import make_small_run, small_recipe

ENVIRONMENT = """
from quintain import Environment, Task, reward

@reward(range=(0, 1))
def residue(rollout):
    (row,) = rollout.transcripts[""].sequences()
    return sum(i * (k + 1) for k, i in enumerate(i for i, m in zip(row.ids, row.mask) if m)) % 11 / 10

class Babble(Environment):
    reward = residue
    def tasks(self, split):
        return [Task(prompt=f"say {n}", answer=str(n)) for n in range(40)]
"""
ROLLOUTS = 64
TEMPERATURE = 0.6


def earned(reply: Sequence[int]) -> float:
    return sum(token * (k + 1) for k, token in enumerate(reply)) % 11 / 10


def moments(module: Any, prompt: tuple[int, ...], begun: tuple[int, ...]) -> tuple[float, float]:
    """Mean and variance of the reward of an answer of at most two tokens that begins so."""

    def chances(ids: Sequence[Sequence[int]]) -> Any:
        with torch.no_grad():
            logits = module(input_ids=torch.tensor(ids)).logits[:, -1] / TEMPERATURE
        return logits.softmax(-1).numpy()

    vocab = 260
    if begun:
        found = [(p, earned((*begun, b))) for b, p in enumerate(chances([(*prompt, *begun)])[0])]
    else:
        first = chances([prompt])[0]
        second = chances([(*prompt, a) for a in range(vocab)])
        found = [
            (first[a] * second[a, b], earned((a, b)))
            for a in range(vocab)
            for b in range(vocab)
            if a != STOP
        ]
        found.append((first[STOP], earned((STOP,))))
    mean = sum(p * r for p, r in found)
    return float(mean), float(sum(p * (r - mean) ** 2 for p, r in found))


STOP = 258


@pytest.mark.more
@pytest.mark.usefixtures("no_curves")
def test_values_are_means_over_the_policys_own_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two tokens, cut after the first: the advantage of the second is the reward less the value of
    the first, and both add up to the reward less the value of the prompt.
    """
    monkeypatch.chdir(tmp_path)
    table = "[learner]\nlr = 1e-4"
    recipe = small_recipe('use = "babble.py:Babble"', algorithm="vineppo", tables=table)
    make_small_run(tmp_path, recipe)
    (tmp_path / "babble.py").write_text(ENVIRONMENT)
    module = with_exact_norms(
        copy.deepcopy(load_model("model", device="cpu", dtype="float64").module)
    )
    seen: list[tuple[Any, Any]] = []
    step = Learner.step

    def noted(self: Learner, batch: Any, *, advantages: Any) -> Any:
        seen.append((batch.step.batch, advantages.values.tolist()))
        return step(self, batch, advantages=advantages)

    monkeypatch.setattr(Learner, "step", noted)
    changes = (
        f"sampling.temperature={TEMPERATURE}",
        "sampling.max_tokens=2",
        "batch.prompts=4",
        "batch.group_size=3",
        f"algorithm.args.advantage={{ size = 1, rollouts = {ROLLOUTS} }}",
    )
    words = [word for change in changes for word in ("--set", change)]
    assert main(["train", "recipe.toml", "--quiet", *words]) == 0

    ((made, values),) = seen
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}
    at = 0
    for sample in made.samples:
        (row,) = sample.sequences
        first = row.mask.index(True)
        prompt, reply = tuple(row.ids[:first]), tuple(row.ids[first:])
        assert sample.outcome == pytest.approx(earned(reply))
        own = values[at : at + len(reply)]
        at += len(reply)
        found[prompt, ()] = sample.outcome - sum(own)
        if len(reply) > 1:
            found[prompt, reply[:1]] = sample.outcome - own[1]
    scores = []
    for (prompt, begun), value in found.items():
        mean, variance = moments(module, prompt, begun)
        scores.append((value - mean) / math.sqrt(variance / ROLLOUTS))
    assert len(scores) >= 10
    assert made.temperature == TEMPERATURE
    # a sum of squares of about as many independent normal numbers; 1 in 10,000 is above
    assert np.square(scores).sum() < len(scores) + 3.72 * math.sqrt(2 * len(scores)) + 10
    assert np.abs(np.sum(scores)) < 4 * math.sqrt(len(scores))
