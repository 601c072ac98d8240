"""Values by fresh continuations: an answer is cut into steps; a cut's value is the mean reward of
those from there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from quintain import (
    Algorithm,
    Engine,
    Replay,
    Rollout,
    Sampled,
    Sampling,
    Task,
    TokenEngine,
    Weights,
    advantage,
    need,
)
from quintain.errors import EnvironmentFault, UsageError
from quintain.learning import Sample, Step
from quintain.rollouts import cut_where_stopped
from quintain.types import derived_seed

WithMetrics = tuple[Tensor, dict[str, float]]


def fits(algorithm: Algorithm) -> None:
    """Refuse algorithms that continuations cannot be compared under.

    Raises:
        UsageError: a KL term or a length punishment in the reward, or a thinking budget.
    """
    if algorithm.alters_reward:
        raise UsageError(
            "advantage.vine compares what the environment gave continuations, and a KL term or a "
            "length punishment of "
            'the algorithm is not among that; set kl.where = "loss" and overlong = 0'
        )
    if algorithm.plan.thinking_budget is not None:
        raise UsageError(
            "advantage.vine cuts answers that the policy sampled in one piece, and a thinking "
            "budget inserts tokens "
            'into them; set plan.thinking_budget = "none"'
        )


@advantage(fits=fits)
async def vine(
    step: Step,
    *,
    rollouts: int = 9,
    by: Literal["tokens", "lines"] = "tokens",
    size: int = 100,
    engine: TokenEngine = need("policy"),
    replay: Replay = need(),
) -> WithMetrics:
    """V(next) - V(this) for all tokens of a step of the answer, V the mean reward of fresh
    continuations from where the step begins; R - V(this) for the last step (VinePPO; Kazemnejad et
    al. 2024, 2410.01679).

    The sum over an answer's steps is R - V(prompt), and the estimate is unbiased: V(this) has seen
    nothing of the step, V(next) is an independent estimate of what it led to. R and V are outcome
    and shaping together. Samples of a group share the values of what they have in common, the
    prompt at least.

    A continuation that fails through our fault counts for nothing; a cut none of whose
    continuations could be scored is left out, so that two steps become one, and where that is the
    prompt the answer does not train (advantage 0).

    Single-turn answers alone: a later turn depends on what the environment answered in between,
    which is not in the answer.

    Args:
        rollouts: continuations per cut (the paper's 9; nano-aha-moment takes 3).
        by: ``tokens`` cuts after every *size* tokens (as nano-aha-moment), ``lines`` after every
            token that ends a line (the paper cuts at lines or sentences).
        size: tokens of a step.

    Raises:
        UsageError: a setting is out of range, or an answer of several turns.
    """
    if rollouts < 1 or size < 1 or by not in ("tokens", "lines"):
        raise UsageError(
            f"advantage.vine: rollouts {rollouts}, by {by!r}, size {size}; expected numbers from 1"
        )
    answers = [CutSample.of(sample) for sample in step.batch.samples]
    cuts = [answer.cuts(engine, by, size) for answer in answers]
    prefixes: dict[tuple[int, ...], tuple[int, int]] = {}
    for i, (answer, places) in enumerate(zip(answers, cuts, strict=True)):
        for cut in places:
            prefixes.setdefault(answer.start + answer.tokens[:cut], (i, cut))
    values, counts = await _values(prefixes, answers, rollouts, engine, replay)
    out: list[float] = []
    for answer, places in zip(answers, cuts, strict=True):
        out.extend(
            answer.advantages({cut: values[answer.start + answer.tokens[:cut]] for cut in places})
        )
    steps = sum(map(len, cuts)) / max(1, sum(bool(places) for places in cuts))
    return torch.tensor(out, dtype=torch.float64), {"vine.steps": steps, **counts}


@dataclass(frozen=True, kw_only=True)
class CutSample:
    """A sample as it is cut: *tokens*, its trained tokens, after *start*; *total* is its reward."""

    start: tuple[int, ...]
    tokens: tuple[int, ...]
    total: float

    @classmethod
    def of(cls, sample: Sample) -> CutSample:
        """Return the answer of *sample*.

        Raises:
            UsageError: it has several turns, or holds tokens that were not sampled.
        """
        why = "advantage.vine cuts single answers, and this rollout"
        if len(sample.turns) > 1 or len(sample.sequences) > 1:
            raise UsageError(
                f"{why} has several turns; take another algorithm, or environments of a single turn"
            )
        (sequence,) = sample.sequences
        first = sequence.mask.index(True) if any(sequence.mask) else len(sequence.mask)
        if not all(sequence.mask[first:]):
            raise UsageError(
                f"{why} holds tokens inside its answer that it did not sample (a tool, a thinking "
                f"budget)"
            )
        return cls(
            start=tuple(sequence.ids[:first]),
            tokens=tuple(sequence.ids[first:]),
            total=sample.total,
        )

    def cuts(self, engine: TokenEngine, by: str, size: int) -> list[int]:
        """Return the number of tokens before each step, from 0."""
        if by == "tokens":
            return list(range(0, len(self.tokens), size))
        ends = [
            i + 1 for i, token in enumerate(self.tokens) if "\n" in engine.tokenizer.decode([token])
        ]
        return [0, *(end for end in ends if end < len(self.tokens))] if self.tokens else []

    def advantages(self, values: Mapping[int, float | None]) -> list[float]:
        """Return one advantage per token, from the values of the cuts that have one."""
        scored = [(cut, value) for cut, value in values.items() if value is not None]
        if not scored or scored[0][0] > 0:
            return [0.0] * len(self.tokens)
        out: list[float] = []
        for (cut, value), (end, reached) in pairwise([*scored, (len(self.tokens), self.total)]):
            out.extend([reached - value] * (end - cut))
        return out


async def _values(
    prefixes: Mapping[tuple[int, ...], tuple[int, int]],
    answers: Sequence[CutSample],
    rollouts: int,
    engine: TokenEngine,
    replay: Replay,
) -> tuple[dict[tuple[int, ...], float | None], dict[str, float]]:
    """Return the value of each beginning, ``None`` where no continuation could be scored, and what
    it took.

    Args:
        prefixes: by its tokens, prompt included: a sample that begins so, and how much of its
            answer that is.
    """
    plays = [
        (i, Continued(engine, answers[i].start, answers[i].tokens[:cut], number=k))
        for i, cut in prefixes.values()
        for k in range(rollouts)
    ]
    played = await replay(plays)
    values: dict[tuple[int, ...], float | None] = {}
    failed = 0
    for n, prefix in enumerate(prefixes):
        scores = [_worth(r) for r in played[n * rollouts : (n + 1) * rollouts] if r.valid]
        failed += rollouts - len(scores)
        values[prefix] = math.fsum(scores) / len(scores) if scores else None
    counts = {
        "continuations": len(plays),
        "failed": failed,
        "tokens": sum(e.sampled for _, e in plays),
    }
    return values, {f"vine.{name}": float(count) for name, count in counts.items()}


def _worth(rollout: Rollout[Any, Any]) -> float:
    """Return the total of the policy's own player, as `Sample.total` does."""
    return sum(rollout.scores_of(""))


class Continued(TokenEngine):
    """Begins its first turn with given tokens and lets the policy continue; later turns are the
    policy's own.

    Args:
        policy: continues the answer.
        start: the prompt that the first turn must have.
        tokens: what it begins with.
        number: of the continuation, so that each draws its own tokens.
    """

    name = "continued"

    def __init__(
        self, policy: TokenEngine, start: tuple[int, ...], tokens: tuple[int, ...], *, number: int
    ) -> None:
        self.tokenizer = policy.tokenizer
        self.context = policy.context
        self.version = policy.version
        self.start, self.tokens, self.sampled = start, tokens, 0
        self._policy, self._number = policy, number
        self._given, self._begun = 0, False

    def for_task(self, task: Task) -> Engine:
        """Return this engine, from the start: an episode that failed is played again."""
        self._given, self._begun = 0, False
        return self

    def for_player(self, name: str) -> Engine:
        """Return this engine for the policy's own player; other players are the policy's, as the
        first time.
        """
        return self if not name else self._policy.for_player(name)

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        seed = derived_seed(sampling.seed, "vine", len(self.tokens), self._number)
        if self._begun:
            return await self._policy.sample(ids, sampling.replace(seed=seed))
        if tuple(ids) != self.start + self.tokens[: self._given]:
            raise EnvironmentFault(
                "played again, the episode began with another prompt; its seed must decide all of "
                "it"
            )
        rest = self._kept(self.tokens[self._given :], sampling.max_tokens)
        self._given += len(rest.ids)
        if sampling.max_tokens is not None and len(rest.ids) >= sampling.max_tokens:
            # the turn is asked for in pieces (a thinking budget that did not come about)
            return rest
        self._begun = True
        left = None if sampling.max_tokens is None else sampling.max_tokens - len(rest.ids)
        new = await self._policy.sample(
            [*ids, *rest.ids], sampling.replace(seed=seed, max_tokens=left)
        )
        new = cut_where_stopped(self.tokenizer, rest, new, sampling.stop)
        self.sampled = len(new.ids)
        return Sampled(
            ids=(*rest.ids, *new.ids),
            logps=(*rest.logps, *new.logps),
            versions=(*rest.versions, *new.versions),
            finish=new.finish,
            stop=new.stop,
        )

    def _kept(self, ids: Sequence[int], count: int | None) -> Sampled:
        """Return the first *count* of *ids*; what their log-probs were does not matter, for replays
        do not train.
        """
        ids = tuple(ids[:count])
        return Sampled(
            ids=ids, logps=(0.0,) * len(ids), versions=(self.version,) * len(ids), finish="length"
        )

    async def score(
        self, ids: Sequence[int], start: int, temperature: float = 1.0
    ) -> Sequence[float]:
        return await self._policy.score(ids, start, temperature)

    async def update(self, weights: Weights) -> int:
        raise UsageError("a continuation has no weights of its own")
