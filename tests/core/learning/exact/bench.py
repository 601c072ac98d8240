"""The package's side of the enumeration: a softmax table instead of a model, the pieces and the
head as they are.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quintain import Rollout, Score, Task
from quintain.interfaces.algorithm import Algorithm, overlong
from quintain.interfaces.engine import Engine
from quintain.learning import Batch, LossInputs, Sample
from quintain.learning.loss import weighted_loss
from quintain.learning.pieces.advantages import Step
from quintain.learning.pieces.objectives import kl_estimate
from quintain.models.head import Statistics, statistics
from quintain.testing import rollout
from quintain_authoring.scripted import ScriptedEngine

from .. import batches
from .methods import BASELINE, STATES
from .policies import Array, Path, Policies, Tree, log_softmax, multisets

Logits = dict[str, Array]


def tables(tree: Tree, tasks: int, *, apart: float, seed: int = 1, width: float = 1.0) -> Logits:
    """Logits of the four policies, [places, vocabulary]; theta, mu and ref are *apart* from
    prox.
    """
    size = (tasks * len(tree.contexts), tree.vocab)
    draws = np.random.default_rng(seed)
    prox = width * draws.normal(size=size)
    noise = {name: draws.normal(size=size) for name in ("theta", "mu", "ref")}
    return {"prox": prox} | {name: prox + apart * x for name, x in noise.items()}


def pruned(logits: Array, share: float) -> Array:
    """What a sampler with this pruning draws from."""
    prob = np.exp(log_softmax(logits))
    return np.where(prob >= share * prob.max(-1, keepdims=True), logits, -np.inf)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Groups of *sizes*, one per task, drawn under mu.

    Attributes:
        rewards: of each reply to each task, where not made up.
        plain: samples of one turn without turn scores.
    """

    tree: Tree
    sizes: tuple[int, ...]
    logits: Logits
    rewards: Sequence[Sequence[float]] = ()
    plain: bool = False
    prune: float = 0.0

    @cached_property
    def policies(self) -> Policies:
        return Policies.of(**(self.logits | {"mu": pruned(self.logits["mu"], self.prune)}))

    @cached_property
    def paths(self) -> list[list[Path]]:
        """By task and reply."""
        return [
            [self._path(task, i) for i in range(len(self.tree.replies))]
            for task in range(len(self.sizes))
        ]

    def _path(self, task: int, i: int) -> Path:
        reply = self.tree.replies[i]
        draw = np.random.default_rng((task, i, 5))
        reward = (
            self.rewards[task][i]
            if self.rewards
            else float(draw.choice([0.0, 0.1, 0.9, 1.0])) * (1 + 4 * task)
        )
        base = Path(
            at=self.tree.path(reply, task),
            ids=reply,
            outcome=reward,
            group=task,
            environment="ab"[task],
        )
        if self.plain:
            return base
        several = len(reply) > 1 and i % 2 == 0
        turns = (1, len(reply) - 1) if several else ()
        scores = tuple(draw.choice([0.0, 0.3, 0.6], size=len(turns) or 1).tolist()) if i % 3 else ()
        return Path(
            at=base.at,
            ids=reply,
            outcome=reward + sum(scores),
            shaping=0.05 * i,
            group=task,
            environment=base.environment,
            truncated=reply[-1] != self.tree.vocab - 1,
            turns=turns,
            scores=scores,
        )

    @cached_property
    def samples(self) -> dict[Path, Sample]:
        return {path: sample_of(path, self.policies.mu) for paths in self.paths for path in paths}

    def probabilities(self, task: int) -> list[float]:
        """Of each reply under mu."""
        mu = self.policies.mu
        return [float(np.exp(mu[list(path.at), list(path.ids)].sum())) for path in self.paths[task]]

    def batches(self) -> Iterator[tuple[list[Path], float]]:
        """All batches with their probabilities under mu."""
        drawn = [
            [
                (group, weight)
                for group, weight in multisets(self.probabilities(task), size)
                if weight
            ]
            for task, size in enumerate(self.sizes)
        ]
        for groups in product(*drawn):
            paths = [self.paths[task][i] for task, (group, _) in enumerate(groups) for i in group]
            yield paths, float(np.prod([weight for _, weight in groups]))


def sample_of(path: Path, mu: Array, prompt: Sequence[int] = (0,)) -> Sample:
    logps = [float(mu[at, token]) for at, token in zip(path.at, path.ids, strict=True)]
    return Sample(
        sequences=(batches.sequence(prompt, path.ids, logps=logps),),
        outcome=path.outcome,
        shaping=path.shaping,
        group=path.group,
        environment=path.environment,
        truncated=path.truncated,
        turns=path.turns,
        turn_scores=path.scores,
    )


class Metrics:
    """Shares of what objectives and corrections tell, over all batches."""

    def __init__(self) -> None:
        self.shares: dict[str, list[float]] = {}

    def add(self, name: str, value: Tensor) -> None:
        self.shares.setdefault(name, []).append(float(value.double().mean()))

    def mean(self) -> dict[str, float]:
        return {name: float(np.mean(values)) for name, values in self.shares.items()}


class Package:
    """Loss of a batch through advantage, aggregation, head, objective, correction and the weighted
    sum.
    """

    def __init__(self, algorithm: Algorithm, bench: Bench) -> None:
        self.algorithm = algorithm.with_services(
            {"policy": ScriptedEngine(), "replay": _greedy_earns}
        )
        self.bench = bench
        self.logits = {name: torch.tensor(table) for name, table in bench.logits.items()}
        self.logits["theta"].requires_grad_()
        self.metrics = Metrics()

    def _statistics(
        self, policy: str, positions: Tensor, ids: Tensor, **options: object
    ) -> Statistics:
        """The head over an identity matrix: hidden states are logits."""
        hidden = self.logits[policy][positions]
        eye = torch.eye(hidden.shape[1], dtype=torch.float64)
        return statistics(hidden, eye, ids, prune=self.algorithm.prune, **options)  # type: ignore[arg-type]

    def loss(self, paths: Sequence[Path]) -> Tensor:
        algorithm = self.algorithm
        batch = Batch(
            samples=tuple(self.bench.samples[p] for p in paths), max_tokens=self.bench.tree.longest
        )
        places = torch.tensor([at for path in paths for at in path.at])
        ids = torch.tensor([token for path in paths for token in path.ids])
        owner = torch.arange(len(paths)).repeat_interleave(
            torch.tensor([len(path) for path in paths])
        )
        top = int(algorithm.objective.argument("top")) if "top" in algorithm.objective.reads else 0
        prox = self._statistics("prox", places, ids, top=top)
        theta = self._statistics("theta", places, ids, safe=prox.safe, asked_NK=prox.top_ids)
        ref = self._statistics("ref", places, ids, safe=prox.safe).logp
        totals = [
            s.total + overlong(s.longest_turn, batch.max_tokens, algorithm.overlong)
            for s in batch.samples
        ]
        rewards = torch.tensor(totals, dtype=torch.float64)
        penalty = None
        if algorithm.kl.active and algorithm.kl.where == "reward":
            penalty = algorithm.kl.coefficient * kl_estimate(
                prox.logp - ref, algorithm.kl.estimator
            )
            rewards = rewards - torch.zeros_like(rewards).index_add(0, owner, penalty)
        step = Step(
            batch=batch,
            rewards=tuple(rewards.tolist()),
            penalty=penalty,
            statistics={"prox_logp": prox.logp, "square": prox.square},
        )
        piece = algorithm.advantage
        found = piece(step, state=STATES.get(piece.name))[0] if piece.stateful else piece(step)
        if inspect.isawaitable(found):
            found = asyncio.run(_awaited(found))
        advantage = (
            found if isinstance(found, Tensor) else torch.tensor(found, dtype=torch.float64)[owner]
        )
        part = [
            i for i, path in enumerate(paths) if not (algorithm.mask_truncated and path.truncated)
        ]
        weights = torch.zeros(len(paths), dtype=torch.float64)
        if part:
            weights[part] = torch.tensor(
                algorithm.aggregation(batch.only(part)), dtype=torch.float64
            )
        mu = [
            logp
            for s in batch.samples
            for seq in s.sequences
            for logp, on in zip(seq.logps, seq.mask, strict=True)
            if on
        ]
        terms = LossInputs(
            logp=theta.logp,
            mu_logp=torch.tensor(mu, dtype=torch.float64),
            prox_logp=prox.logp,
            ref_logp=ref,
            advantage=advantage,
            entropy=theta.entropy.detach(),
            sample=owner,
            group=torch.tensor([path.group for path in paths]),
            ratio_to=algorithm.ratio_to,
            statistics=_top(theta, prox, ids) if top else {},
        )
        out = weighted_loss(algorithm, terms, weights[owner])
        for name, value in out.diagnostics.items():
            self.metrics.add(name, value)
        self.metrics.add("zero", out.correction == 0)
        return out.loss

    def gradient(self, loss: Tensor) -> Array:
        """By the logits of theta."""
        return np.asarray(torch.autograd.grad(loss, self.logits["theta"])[0])

    def expected(self) -> Array:
        """The gradient of the loss, averaged over all batches."""
        total = torch.zeros((), dtype=torch.float64)
        for paths, weight in self.bench.batches():
            total = total + weight * self.loss(paths)
        return self.gradient(total)


async def _greedy_earns(wanted: Sequence[tuple[int, Engine]]) -> list[Rollout[Any, Any]]:
    """Every task's greedy answer earns the same."""
    played = rollout(Task(prompt="?"), "greedy")
    return [replace(played, outcome=Score(value=BASELINE))] * len(wanted)


async def _awaited(found: Awaitable[Any]) -> Any:
    return await found


def _top(theta: Statistics, prox: Statistics, ids: Tensor) -> dict[str, Tensor]:
    assert theta.asked_logp is not None
    assert prox.top_logp is not None
    assert prox.top_ids is not None
    has = (prox.top_ids == ids[:, None]).any(1)
    return {"top_logp": theta.asked_logp, "prox_top_logp": prox.top_logp, "prox_top_has": has}
