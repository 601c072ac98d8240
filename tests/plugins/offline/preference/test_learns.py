"""Each row of the plugin teaches a tiny model within seconds."""

from __future__ import annotations

import asyncio
from itertools import islice
from random import Random
from string import ascii_lowercase

import pytest

from quintain import Message, Sampling
from quintain.engine.embedded import EmbeddedEngine
from quintain.evaluation.evaluation import evaluate
from quintain.learning import Batch, Learner, Sample
from quintain.models.load import load_model
from quintain_offline.preference import SFT

from ....core.learning import batches
from ....core.learning.learns import SEEDS, Babble, rises, tiny_folder

pytestmark = pytest.mark.usefixtures("no_curves")


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["rft", "dpo", "dpo_norm", "simpo", "kto"])
def test_success_rises(name: str, seed: int) -> None:
    before, after = rises(name, seed)
    assert after - before >= 0.1, (before, after)


@pytest.mark.parametrize("seed", SEEDS)
def test_success_rises_on_a_teachers_samples(seed: int) -> None:
    """`sft` follows what it is given, whoever said it: here a teacher that says three letters and
    stops.
    """
    loaded = load_model(str(tiny_folder()))
    environment, tokenizer = Babble(), loaded.tokenizer
    engine = EmbeddedEngine.sharing(loaded.module, tokenizer)
    learner = Learner(loaded.module, SFT, lr=3e-3)
    draw = Random(seed)
    before = success(environment, engine, seed)
    for step in range(12):
        samples = []
        for group, task in enumerate(islice(environment.tasks("train"), 8 * step, 8 * step + 8)):
            prompt = tokenizer.encode(tokenizer.render([Message("user", task.prompt)]))
            said = (
                *tokenizer.encode("".join(draw.choices(ascii_lowercase, k=3))),
                tokenizer.stop_ids[0],
            )
            samples.append(
                Sample(sequences=(batches.sequence(prompt, said),), outcome=1.0, group=group)
            )
        learner.step(Batch(samples=tuple(samples), max_tokens=4))
    asyncio.run(engine.update(learner.weights()))
    assert success(environment, engine, seed) >= before + 0.1


def success(environment: Babble, engine: EmbeddedEngine, seed: int) -> float:
    """Of 100 held-out tasks, sampled at temperature 1."""
    sampling = Sampling(temperature=1.0, max_tokens=16)
    found = asyncio.run(
        evaluate(environment, engine, split="test", tasks=100, sampling=sampling, seed=seed)
    )
    assert found.accuracy is not None
    return found.accuracy.value
