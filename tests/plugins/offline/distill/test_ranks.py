"""The distributions of a teacher reach the ranks of `fsdp`."""

from __future__ import annotations

import copy

import pytest
import torch

from quintain.learning import Learner
from quintain_learners.fsdp import FsdpLearner
from quintain_offline.distill import GKD

from ...learners.fsdp.test_exact import batch, model
from .tables import PlainTeacher, step


@pytest.mark.parametrize("top", [0, pytest.param(3, marks=pytest.mark.slow)])
def test_two_ranks_make_the_update_of_one_process(top: int) -> None:
    algorithm = GKD.replace(advantage={"top": top})
    settings = {"layout": "bucketed", "token_budget": 25, "lr": 1e-3}
    teacher = PlainTeacher(copy.deepcopy(model("full")))
    with torch.no_grad():
        for parameter in teacher.module.parameters():
            parameter.mul_(1.2)
    one = Learner(copy.deepcopy(model("full")), algorithm, **settings)
    many = FsdpLearner(copy.deepcopy(model("full")), algorithm, ranks=2, **settings)
    try:
        for learner in (one, many):
            learner.serve({"teacher": teacher})
            assert step(learner, batch())["objective.divergence"] > 1e-3
        for expected, actual in zip(one.module.parameters(), many.module.parameters(), strict=True):
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)
    finally:
        many.close()
