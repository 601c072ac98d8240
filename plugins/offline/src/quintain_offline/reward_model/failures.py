"""What an error inside a scorer means for a rollout."""

from __future__ import annotations

import math

from quintain import InfrastructureError, PolicyFault
from quintain.errors import EpisodeError, Interrupted, RewardFault, UsageError


def failure_of(error: Exception, scorer_name: str) -> EpisodeError:
    """Return the failure that *error* of the scorer *scorer_name* is.

    Raises:
        UsageError, Interrupted: *error* is one, which ends the run.
    """
    if isinstance(error, (UsageError, Interrupted)):
        raise error
    if isinstance(error, (RewardFault, InfrastructureError, PolicyFault)):
        return error
    fault = RewardFault(f"{scorer_name} failed: {type(error).__name__}: {error}")
    fault.__cause__ = error
    return fault


def checked(value: float, scorer_name: str) -> float:
    """Return *value*, if it is finite.

    Raises:
        RewardFault: it is not; such a score is a failure and never clipped.
    """
    if not math.isfinite(value):
        raise RewardFault(
            f"{scorer_name} scored {value}; expected a finite number. Compute in float32, or lower "
            f"the learning rate"
        )
    return value
