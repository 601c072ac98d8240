"""Plausible mistakes that formulas alone do not show: each test here was seen to fail with its
mistake put in.
"""

from __future__ import annotations

import pytest
import torch

from quintain.learning import ALGORITHMS, Learner
from quintain.types.sampling import Sampling

from ..engine.test_embedded_batching import Given, engine_of, plain_logps, run
from ..models.tiny import tiny_model
from . import batches
from .test_learner import EXACT, gradient


@pytest.mark.keeps("rloo")
@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo"])
def test_a_minibatch_has_its_own_denominators(name: str) -> None:
    """The last of two minibatches has the gradient that it has as a batch of its own."""
    batch = batches.batch(groups=4)
    last = batch.only(batch.minibatches(2, range(len(batch.groups)))[1])
    apart = gradient(last, ALGORITHMS[name])
    together = gradient(batch, ALGORITHMS[name].replace(minibatches=2))

    torch.testing.assert_close(together, apart, **EXACT)


def test_prox_of_a_later_minibatch_is_from_before_the_first() -> None:
    """The second minibatch is off-policy: its ratio is not 1."""
    learner = Learner(tiny_model(), ALGORITHMS["dr_grpo"].replace(minibatches=2), lr=3e-3)
    metrics = learner.step(batches.batch(groups=4))

    assert metrics["ratio.max"] != 1.0


def test_the_state_of_an_advantage_is_carried() -> None:
    """Two steps of a moving average weigh 1 - 0.9^2."""
    learner = Learner(tiny_model(), ALGORITHMS["grpo"].replace(advantage="ema"))
    for seed in range(2):
        learner.step(batches.batch(seed=seed))

    assert pytest.approx(learner.state_dict()["advantage"]["weight"]) == 0.19


def test_idle_rows_forget_old_weights() -> None:
    """What an idle algorithm of the cache held under old weights is not taken for the same prompt
    under new ones.
    """
    model = tiny_model()
    engine = engine_of(model, reproducible=False)
    ids, sampling = list(range(1, 40)), Sampling(seed=0, max_tokens=10)
    run(engine.sample(ids, sampling))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.3)
    run(engine.update(Given(version=1, named={})))
    out = run(engine.sample(ids, sampling))

    assert plain_logps(model, ids, out.ids, 1.0) == pytest.approx(list(out.logps), abs=1e-4)
