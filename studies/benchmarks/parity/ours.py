"""Our side: loss, gradient and advantages of a case, through the learner."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from quintain.interfaces.algorithm import Algorithm
from quintain.interfaces.pieces import Piece
from quintain.learning import Batch, Learner, Sample
from quintain.learning.optimizer_step import OptimizerStep
from quintain.registry.binding import bind
from quintain.registry.lookup import current
from quintain.types.transcript import TrainingSequence

from .cases import LONGEST, TEMPERATURE, Case, Reply, pairs, replies
from .exact import exact

State = Mapping[str, Tensor]
OPTIONS: dict[str, Any] = {"lr": 0.0, "max_grad_norm": 0.0, "token_budget": 48}
"""No step, no clipping of the gradient, several micro-batches."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What one side computed.

    Attributes:
        loss: at theta.
        gradient: by parameter.
        advantages: per reply; empty where the algorithm has none.
        metrics: our metrics of the step.
    """

    loss: float
    gradient: Mapping[str, Tensor]
    advantages: Sequence[float] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)


class Jump:
    """An update that takes the gradient and then, the first time, moves the weights to *target*:
    the second epoch of a batch is off-policy by a known amount.
    """

    def __init__(self, target: State) -> None:
        self.target = target
        self.losses: list[float] = []

    def __call__(self, step: OptimizerStep) -> dict[str, float]:
        loss = step.backward()
        if not self.losses:
            with torch.no_grad():
                for name, parameter in step.module.named_parameters():
                    parameter.copy_(self.target[name])
        self.losses.append(loss)
        return {"loss": loss, "grad_norm": 0.0}


def model(folder: Path, state: State, dtype: torch.dtype) -> Any:
    """Return the model of *folder* with other weights."""
    loaded = Qwen3ForCausalLM.from_pretrained(folder, dtype=dtype)
    loaded.load_state_dict(dict(state))
    return exact(loaded) if dtype == torch.float64 else loaded


def algorithm_of(case: Case) -> Algorithm:
    """Return the algorithm, with every value that the case sets."""
    algorithm: Algorithm = bind(current().load("algorithm", case.algorithm), case.changes)
    return algorithm


def sequence(reply: Reply, logps: Sequence[float] = ()) -> TrainingSequence:
    """One training sequence for the learner; *logps* are the sampler's, one for each of the reply's
    tokens.
    """
    before = len(reply.prompt)
    sampler_logps = logps or [0.0] * len(reply.ids)
    return TrainingSequence(
        ids=reply.prompt + reply.ids,
        mask=(False,) * before + reply.trained,
        logps=(0.0,) * before
        + tuple(x if t else 0.0 for x, t in zip(sampler_logps, reply.trained, strict=True)),
        versions=(-1,) * before + tuple(0 if t else -1 for t in reply.trained),
    )


def sampler_logps(folder: Path, state: State) -> dict[bool, list[list[float]]]:
    """Log-probs of each reply's tokens under the sampler, float64; 0 at observations. With and
    without them.
    """
    learner = Learner(model(folder, state, torch.float64), **OPTIONS)
    logps = {}
    for observations in (False, True):
        sampled = replies(observations=observations)
        values = iter(learner.logprobs(grouped(sampled)).tolist())
        logps[observations] = [
            [next(values) if t else 0.0 for t in reply.trained] for reply in sampled
        ]
    return logps


def grouped(
    sampled: Sequence[Reply],
    logps: Sequence[Sequence[float]] = (),
    temperature: float = TEMPERATURE,
) -> Batch:
    """Return the batch of a step."""
    rows = [
        sequence(reply, reply_logps)
        for reply, reply_logps in zip(sampled, logps or [()] * len(sampled), strict=True)
    ]
    samples = tuple(
        Sample(sequences=(row,), outcome=reply.reward, group=reply.group, truncated=reply.truncated)
        for reply, row in zip(sampled, rows, strict=True)
    )
    return Batch(samples=samples, temperature=temperature, max_tokens=LONGEST)


def batch_of(case: Case, logps: Mapping[bool, list[list[float]]]) -> Batch:
    """Return what the case's algorithm learns from."""
    if case.trainer in ("dpo", "cpo"):
        rows = [
            (reply, float(reply is pair[0]), k) for k, pair in enumerate(pairs()) for reply in pair
        ]
        samples = (
            Sample(sequences=(sequence(reply),), outcome=outcome, group=k)
            for reply, outcome, k in rows
        )
        return Batch(samples=tuple(samples), max_tokens=LONGEST)
    return grouped(
        replies(observations=case.observations), logps[case.observations], case.temperature
    )


def compute(
    case: Case,
    folder: Path,
    states: Mapping[str, State],
    logps: Mapping[bool, list[list[float]]],
    dtype: torch.dtype,
) -> Found:
    """Our side of a case.

    Args:
        states: weights of ``theta``, ``prox`` and ``ref``.
        logps: from `sampler_logps`.
    """
    module = model(folder, states["prox"], dtype)
    if case.supervised:
        learner = Learner(module, **OPTIONS)
        rows = [sequence(reply) for reply in replies(observations=case.observations)]
        step_metrics = learner.supervised_step(rows)
        return Found(loss=step_metrics["loss"], gradient=_gradient(module), metrics=step_metrics)
    algorithm, jump = algorithm_of(case), Jump(states["theta"])
    if case.moved:
        algorithm = algorithm.replace(
            epochs=2, optimizer_step=Piece(kind="optimizer_step", name="jump", function=jump)
        )
    reference = model(folder, states["ref"], dtype) if algorithm.uses_reference else None
    learner = Learner(module, algorithm, reference=reference, **OPTIONS)
    prepared = learner.prepare(batch_of(case, logps))
    advantages = asyncio.run(learner.compute_advantages(prepared))
    step_metrics = learner.step(prepared, advantages=advantages)
    return Found(
        loss=jump.losses[-1] if case.moved else step_metrics["loss"],
        gradient=_gradient(module),
        advantages=[float(x) for x in advantages.values],
        metrics=step_metrics,
    )


def _gradient(module: Any) -> dict[str, Tensor]:
    return {name: p.grad.detach().double() for name, p in module.named_parameters()}
