"""The learner: what a run trains the policy with, and the batch of samples that it learns from.

`quintain.learning.learner.Learner` implements `PolicyLearner` with torch in one process. Nothing here needs torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

from ..errors import UsageError
from ..types.transcript import TrainingSequence
from .algorithm import Row
from .engine import Weights


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One rollout of one seat: its branches count once in baselines and denominators.

    Attributes:
        sequences: its branches; each sampled token is masked in exactly one of them.
        verdict: reward without shaping.
        shaping: what training adds.
        group: samples with the same number are compared with one another.
        environment: where the task came from.
        truncated: a limit cut the rollout short.
        turns: trained tokens of each turn, in order; empty where that is not known.
        turn_scores: what single turns were given, verdict and shaping together; part of the total. Turns past its end
            got nothing.
    """

    sequences: tuple[TrainingSequence, ...]
    verdict: float
    shaping: float = 0.0
    group: int
    environment: str = ""
    truncated: bool = False
    turns: tuple[int, ...] = ()
    turn_scores: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.turns and sum(self.turns) != self.tokens:
            raise UsageError(
                f"sample of group {self.group}: its turns hold {sum(self.turns)} trained tokens, its sequences "
                f"{self.tokens}"
            )
        if len(self.turn_scores) > max(1, len(self.turns)):
            raise UsageError(
                f"sample of group {self.group}: {len(self.turn_scores)} turn scores for {len(self.turns)} turns"
            )
        if not math.isfinite(self.total):
            raise UsageError(f"sample of group {self.group}: reward {self.verdict} + {self.shaping} is not finite")
        for at, sequence in enumerate(self.sequences):
            lengths = {len(sequence.ids), len(sequence.mask), len(sequence.logps), len(sequence.versions)}
            if len(lengths) != 1:
                raise UsageError(
                    f"sample of group {self.group}, sequence {at}: ids, mask, logps, versions differ in length"
                )
            if sequence.mask and sequence.mask[0]:
                raise UsageError(
                    f"sample of group {self.group}, sequence {at}: the first token has no context to train in"
                )

    @property
    def total(self) -> float:
        """Verdict plus shaping."""
        return self.verdict + self.shaping

    @cached_property
    def tokens(self) -> int:
        """Tokens that train."""
        return sum(sum(sequence.mask) for sequence in self.sequences)

    @property
    def longest_turn(self) -> int:
        """Trained tokens of the longest turn; all where turns are not known."""
        return max(self.turns, default=self.tokens)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The samples of one step, taken up together.

    Attributes:
        samples: valid ones only; failed members left before.
        temperature: of sampling, hence of the policy that is trained.
        max_tokens: configured maximum of new tokens per sample, the constant of ``constant`` aggregation.
    """

    samples: tuple[Sample, ...]
    temperature: float = 1.0
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise UsageError(f"cannot train at temperature {self.temperature}: a greedy policy has no gradient")

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Indices of the members of each group, in order of first appearance."""
        found: dict[int, list[int]] = {}
        for i, sample in enumerate(self.samples):
            found.setdefault(sample.group, []).append(i)
        return tuple(tuple(members) for members in found.values())

    @cached_property
    def tokens(self) -> int:
        """Tokens that train."""
        return sum(sample.tokens for sample in self.samples)

    def only(self, indices: Sequence[int]) -> Batch:
        """The batch of some samples."""
        return replace(self, samples=tuple(self.samples[i] for i in indices))

    def minibatches(self, count: int, order: Sequence[int] | None = None) -> list[list[int]]:
        """Indices of samples in *count* parts of whole groups (fewer parts where there are fewer groups).

        Args:
            order: of the groups; as they came where ``None``.
        """
        places = list(order) if order is not None else list(range(len(self.groups)))
        count = max(1, min(count, len(places)))
        cuts = [round(len(places) * k / count) for k in range(count + 1)]
        parts = (places[a:b] for a, b in pairwise(cuts))
        return [[i for g in part for i in self.groups[g]] for part in parts]


def overlong(length: int, longest: int | None, share: float) -> float:
    """Soft overlong punishment of *length* tokens (DAPO, 2503.14476, equation 13): 0 up to (1 - share) L tokens, then
    linearly down to -1 at L = *longest* and beyond.

    Raises:
        UsageError: no maximum is configured.
    """
    if not share:
        return 0.0
    if not longest:
        raise UsageError("overlong punishment is a share of the maximum of new tokens: set sampling.max_tokens")
    buffer = share * longest
    return -min(1.0, max(0.0, (length - (longest - buffer)) / buffer))


class PolicyLearner(Protocol):
    """What a run needs of a learner: one step is `prepare`, `compute_advantages`, `step`, then `weights` to the engine.

    A run builds it as ``kind(module, row, **settings)`` with the settings of the recipe's ``[learner]``.

    Attributes:
        module: what is trained; a checkpoint reads its configuration and its parameters.
        row: the algorithm, with services once `serve` was called.
        version: of the weights; each `step` publishes one more.
    """

    module: Any
    row: Row | None
    version: int

    def serve(self, services: Mapping[str, Any]) -> None:
        """Give the algorithm's pieces the services that they need, by slot.

        Raises:
            BindingError: a slot is empty.
        """
        ...

    def prepare(self, batch: Batch) -> Any:
        """Compute what the algorithm needs before its first update: log-probs under the frozen policies, rewards.

        Returns:
            what `compute_advantages` and `step` take; only this learner reads it.

        Raises:
            UsageError: the batch holds no token that trains.
        """
        ...

    async def compute_advantages(self, prepared: Any) -> Any:
        """The advantages of a prepared batch, for `step`; awaits a piece that samples or asks a service."""
        ...

    def step(self, prepared: Any, *, advantages: Any) -> dict[str, float]:
        """Update the parameters: all epochs and minibatches of the algorithm. The weights then have a new version.

        Returns:
            metrics, see ``docs/health.md``.

        Raises:
            RunError: the gradient is not finite.
        """
        ...

    def weights(self) -> Weights:
        """The weights of now, for `TokenEngine.update`."""
        ...

    def state_dict(self, *, weights: bool = True) -> dict[str, Any]:
        """Everything that a bitwise resume needs; without *weights* the module's are left out."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        ...
