"""The learner: what a run trains the policy with.

`quintain.learning.learner.Learner` implements `PolicyLearner` with torch in one process. Nothing
here needs torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

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

    A run builds it as ``kind(module, algorithm, **settings)``. The settings are the keys of the
    recipe's ``[learner]`` but ``use`` and ``args``, under these names: ``lr``, ``warmup_steps``,
    ``weight_decay``, ``betas``, ``max_grad_norm``, ``precision``, ``float32_head``,
    ``activation_checkpointing`` (the recipe's ``checkpoint_activations``) and, where the recipe has
    them, ``token_budget`` and ``schedules`` (by key, ``{"lr": {"ramp": (1, 0, 100)}}``).

    A kind that names a parameter ``max_sample_mismatch`` gets the run's limit in nats, too, or
    ``None`` for no check; ``**settings`` does not name it. Its `step` then compares mu with prox
    before the first update, raises `quintain.learning.SamplerMismatch` above the limit, and returns
    the metric ``mismatch.sample``. Without the metric the run compares the engine with itself. A
    kind that names ``exact_sampler``, too, is told whether engine and learner compute in float32, so
    that single tokens have to agree.

    A kind that names a parameter ``cluster`` gets the `ProcessCluster` of the recipe's ``[cluster]``, or
    ``None``, to start its processes there; other kinds are refused beside such a table.

    Attributes:
        module: what is trained, a model of transformers, with adapters of peft or without; a
            checkpoint reads its parameters and writes it by ``save_pretrained``.
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
        """Return all that a bitwise resume needs: plain data and tensors.

        A checkpoint knows three keys. ``module`` has the weights of `module`; without *weights* the
        key is left out, since the model folder has them. ``optimizer`` and ``reference`` are large:
        a checkpoint reads every other key back before it is complete.
        """

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned. Without ``module`` the weights are restored already.

        Raises:
            KeyError, RuntimeError, ValueError: the state does not fit the model.
        """

    def close(self) -> None:
        """End the processes that the learner has started, if it has. The run calls it at its end."""


AnyLearner = PolicyLearner[Any, Any, Any]


@runtime_checkable
class PartSaver(Protocol):
    """A learner that writes the large files of a checkpoint itself, while the run goes on. A run
    does not ask it for `state_dict`.

    Attributes:
        saves_parts: whether it does so; else its checkpoints are those of any learner.
        digests: SHA-256 in hexadecimal digits of files of the last complete save, by their path in
            its folder. Files without one are read again.
    """

    saves_parts: bool
    digests: Mapping[str, str]

    def part_bytes(self) -> int:
        """Return about how many bytes it writes, beside the weights."""

    def begin_save(self, folder: Path) -> dict[str, Any]:
        """Begin to write into *folder*: the weights in Hugging Face format as ``model``, the rest as
        `PARTS`. A learner that makes no folder ``model`` leaves the weights to the caller.

        Return what else a resume needs: plain data and small tensors. The files have the state of
        this call, also if the run trains on before `end_save` says that all is written.
        """

    def end_save(self, *, wait: bool) -> Literal["writing", "complete", "lost"]:
        """Return what became of the files. ``complete``: they are on the disk. ``lost``: they are
        not, and the learner has warned of the reason.

        Raises:
            OSError: they could not be written.
        """

    def load_parts(self, folder: Path, state: Mapping[str, Any]) -> None:
        """Restore what `begin_save` wrote and returned; the weights are restored already.

        Raises:
            KeyError, RuntimeError, ValueError: they do not fit the model.
        """


PARTS = "parts"
"""The folder of a checkpoint that a `PartSaver` fills."""


@dataclass(frozen=True, kw_only=True)
class BytesPerParameter:
    """Memory of a learner on its device, by part; *gradients*, *moments* and those in *host* memory
    for each parameter that trains. A learner with *weights* of 2 bytes gets a module in bfloat16.
    *own* are weights that processes of the learner hold beside those of the module. *processes* of
    it share the device; each has the activations of a micro-batch. *base* are the bytes of a weight
    under adapters, if not *weights*, which it takes while the model is loaded. *module* says where
    the run has the weights of the module: beside a GPU they may be on the host, or nowhere.
    """

    weights: int = 4
    gradients: float = 4
    moments: float = 8
    own: float = 0
    host: float = 0
    processes: int = 1
    base: float | None = None
    module: Literal["device", "host", "nowhere"] = "device"


class LearnerKind(ABC):
    """The settings of a learner that are its own, the ``args`` of ``[learner]``. An instance makes
    the learner.

    Register the subclass as the learner. A run makes it as ``Subclass(**args)`` and then calls it
    with what every learner gets.
    """

    @abstractmethod
    def __call__(self, module: Any, algorithm: Algorithm | None, **settings: Any) -> AnyLearner:
        """Make the learner; *settings* are those that `PolicyLearner` lists."""

    def module_device(self, device: str) -> str:
        """Return where a run has the module, if its recipe says *device*: there by default. A learner
        whose processes have devices of their own may say ``cpu``, or ``meta`` for no weights at
        all.
        """
        return device

    @property
    def rounds_base(self) -> bool:
        """Whether adapters train on a base of other numbers than the model's: see `round_base`."""
        return False

    def round_base(self, module: Any) -> Any:
        """Return *module*, which has the adapters of a run, with the base that they trained on. Code
        that loads the run calls this before it merges the adapters.
        """
        return module

    def bytes_per_parameter(self, *, adapters: bool) -> BytesPerParameter:
        """Return what the learner takes; *adapters* alone train, or all weights."""
        return BytesPerParameter()

    def update_bytes(self, module: Any, *, precision: str) -> int | None:
        """Return what an update takes in each process beside that and beside activations, whatever
        its tokens; ``None`` is what the default learner takes. *module* needs no weights.
        """
        return None
