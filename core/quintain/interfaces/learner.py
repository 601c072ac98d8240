"""The learner: what a run trains the policy with.

`quintain.learning.learner.Learner` implements `PolicyLearner` with torch in one process. Nothing
here needs torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ..types.rollout import Group
from .algorithm import Algorithm
from .engine import Weights


class TrainingBatch(Protocol):
    """What a run asks of a learner's batch: how many of its tokens train."""

    @property
    def tokens(self) -> int:
        """Return the number of tokens that train."""


BatchT = TypeVar("BatchT", bound=TrainingBatch)
PreparedT = TypeVar("PreparedT")
AdvantagesT = TypeVar("AdvantagesT")


class PolicyLearner(Protocol[BatchT, PreparedT, AdvantagesT]):
    """What a run needs of a learner. A step is `batch`, `prepare`, `compute_advantages`, `step`;
    then the engine takes the `weights`.

    A run passes the batch, the prepared batch and the advantages on without looking inside: their
    types are the learner's own.

    A run builds it as ``kind(module, algorithm, **settings)`` with the settings of the recipe's
    ``[learner]``.

    Attributes:
        module: what is trained; a checkpoint reads its configuration and its parameters.
        algorithm: its pieces have their services once `serve` was called.
        version: of the weights; each `step` publishes one more.
    """

    module: Any
    algorithm: Algorithm | None
    version: int

    def serve(self, services: Mapping[str, Any]) -> None:
        """Give the algorithm's pieces the services that they need, by slot.

        Raises:
            BindingError: a slot is empty.
        """

    def batch(
        self, groups: Sequence[Group[Any, Any]], *, temperature: float, max_tokens: int | None
    ) -> BatchT:
        """Return the samples of *groups*: one per valid rollout and player. Its ``tokens`` counts
        those that train.

        *temperature* is that of sampling, hence of the policy; *max_tokens* the configured maximum
        per turn.
        """

    def prepare(self, batch: BatchT) -> PreparedT:
        """Compute log-probs under the frozen policies and rewards, for `compute_advantages` and
        `step`.

        Raises:
            UsageError: the batch holds no token that trains.
        """

    async def compute_advantages(self, prepared: PreparedT) -> AdvantagesT:
        """Return the advantages of a prepared batch, for `step`; awaits a piece that samples or
        asks a service.
        """

    def step(self, prepared: PreparedT, *, advantages: AdvantagesT) -> dict[str, float]:
        """Update the parameters over all epochs and minibatches; the weights have a new version.
        Return the metrics.

        Raises:
            RunError: the gradient is not finite.
        """

    def weights(self) -> Weights:
        """Return the weights of now, for `TokenEngine.update`."""

    def state_dict(self, *, weights: bool = True) -> dict[str, Any]:
        """Everything that a bitwise resume needs; without *weights* the module's are left out."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""


AnyLearner = PolicyLearner[Any, Any, Any]


@dataclass(frozen=True, kw_only=True)
class BytesPerParameter:
    """Memory of a learner on its device, by part; *gradients* and *moments* for each parameter that
    trains. A learner with *weights* of 2 bytes gets a module in bfloat16.
    """

    weights: int = 4
    gradients: int = 4
    moments: int = 8


class LearnerKind(ABC):
    """What makes a learner that has settings of its own, the ``args`` of ``[learner]``. Register the
    class in place of the learner's; its constructor takes the settings.
    """

    @abstractmethod
    def __call__(self, module: Any, algorithm: Algorithm | None, **settings: Any) -> AnyLearner:
        """Make the learner; *settings* are the keys of ``[learner]``."""

    def bytes_per_parameter(self, *, adapters: bool) -> BytesPerParameter:
        """Return what the learner takes; *adapters* alone train, or all weights."""
        return BytesPerParameter()
