"""Ranks that train a vision-language model make the update of one process, in float64."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from quintain import Message
from quintain.learning import Batch, Learner, Sample
from quintain.models import load_model
from quintain.registry import current
from quintain_learners.fsdp import FsdpLearner
from quintain_learners.fsdp.team import Team

from ...core.learning.batches import sequence
from . import tiny
from .test_models import question


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    team = Team(2, silence=300.0)
    yield team
    team.close()


def batch(tokenizer: Any) -> Batch:
    """A group with pictures and one without: one rank may get none."""
    talks = [
        [question(1), Message("assistant", "four"), question(2, "And here, where they are small?")],
        [Message("user", "Say something.")],
    ]
    samples = []
    for group, talk in enumerate(talks):
        prompt = tokenizer.encode(tokenizer.render(talk))
        for number, reply in enumerate(("five", "two of them")):
            row = sequence(prompt, tokenizer.encode(reply))
            samples.append(Sample(sequences=(row,), outcome=float(number), group=group))
    return Batch(samples=tuple(samples), max_tokens=16)


def gradients_of(learner: Learner) -> dict[str, Tensor]:
    """Return the gradients of the last update, as they were clipped."""
    names = [name for name, p in learner.module.named_parameters() if p.requires_grad]
    if not isinstance(learner, FsdpLearner):
        gradients = [p.grad for p in learner.parameters]
        assert all(gradient is not None for gradient in gradients)
    else:
        gradients = [torch.empty_like(p).detach().share_memory_() for p in learner.parameters]
        learner.team.call("gradients", gradients)
    return dict(zip(names, gradients, strict=True))  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["replicated", "sharded", "hybrid"])
@pytest.mark.parametrize("trains", ["full", "lora"])
@pytest.mark.parametrize("family", ["llava", "qwen3_vl"])
def test_two_ranks_make_the_update_of_one_process(
    family: str, trains: str, sharding: Any, team: Team, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))
    folder = tiny.save(tmp_path / "model", family)
    of_projector = "linear_2" if family == "llava" else "linear_fc2"
    targets = ["q_proj", "v_proj", of_projector]
    lora = {"r": 2, "target_modules": targets} if trains == "lora" else None
    algorithm = current().load("algorithm", "grpo")
    found: list[dict[str, Tensor]] = []
    weights: list[dict[str, Tensor]] = []
    for ranks in (1, 2):
        loaded = load_model(folder, dtype="float64", lora=lora)
        torch.manual_seed(1)
        for name, parameter in loaded.module.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(parameter, std=0.1)
        options: dict[str, Any] = {"lr": 1e-3, "token_budget": 60}
        if ranks == 2:
            learner: Learner = FsdpLearner(
                loaded.module, algorithm, ranks=2, sharding=sharding, team=team, **options
            )
        else:
            learner = Learner(loaded.module, algorithm, **options)
        rollouts = batch(loaded.tokenizer)
        learner.step(learner.prepare(rollouts))
        found.append(gradients_of(learner))
        learner.step(learner.prepare(rollouts))
        weights.append({n: p.detach().clone() for n, p in learner.module.named_parameters()})
    alone, together = found
    assert alone.keys() == together.keys()
    projector = [n for n in alone if "projector" in n or "visual" in n]
    assert max(float(alone[name].abs().max()) for name in projector) > 1e-6
    for name, gradient in alone.items():
        torch.testing.assert_close(together[name], gradient, rtol=0, atol=1e-11)
    for name, weight in weights[0].items():
        torch.testing.assert_close(weights[1][name], weight, rtol=0, atol=1e-8)
