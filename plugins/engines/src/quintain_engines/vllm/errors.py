"""What may fail besides an episode: the weight update, its check, and sleep."""

from __future__ import annotations

from quintain.errors import RunError, UsageError


class WeightSyncError(RunError):
    """A weight update failed half-way: the engine has neither the old nor the new weights."""


class UndeliveredError(WeightSyncError):
    """After a weight update, vLLM computes with something that is not of the learner's version.

    Attributes:
        part: name of the first such tensor, or the prefix cache.
    """

    def __init__(self, version: int, part: str) -> None:
        super().__init__(
            f"weights of version {version} did not arrive: vLLM computes with another {part} than "
            "the learner has. Start again, which transfers all weights; if it happens again, "
            "report the architecture and the version of vLLM: sampled tokens would not be the "
            "policy's"
        )
        self.part = part


class CanaryError(WeightSyncError):
    """After a weight update, the engine scores a fixed sequence otherwise than the learner.

    Attributes:
        difference: largest absolute difference of a log-prob, in nats.
        tolerance: the largest that is accepted.
        layer: name and class of the first layer that differs, empty where it cannot be told.
    """

    def __init__(self, difference: float, tolerance: float, version: int, layer: str) -> None:
        where = (
            f"the first layer that differs is {layer}" if layer else "no layer could be compared"
        )
        super().__init__(
            f"weights of version {version} did not arrive: engine and learner differ by "
            f"{difference:.3g} nats on the canary (tolerance {tolerance:g}); {where}. If the model "
            "is healthy and its precision low, raise engine.args.canary_tolerance; otherwise "
            "report this: sampled tokens would not be the policy's"
        )
        self.difference, self.tolerance, self.layer = difference, tolerance, layer


class SleepUnsupportedError(UsageError):
    """This platform or this server cannot free the engine's memory."""
