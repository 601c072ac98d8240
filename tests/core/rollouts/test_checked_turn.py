"""What an engine of anybody returns is checked before an episode records it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from quintain.errors import InfrastructureError
from quintain.rollouts import sample_turn
from quintain.types.sampling import Sampling
from quintain.types.transcript import Sampled

from .engines import Speaker


class Liar(Speaker):
    """Changes the fields of what it sampled."""

    def __init__(self, changes: dict[str, Any]) -> None:
        super().__init__(lambda prompt, sampling: "ab")
        self.changes = changes

    async def sample(self, ids: Any, sampling: Sampling) -> Sampled:
        return replace(await super().sample(ids, sampling), **self.changes)


def turn(**changes: Any) -> Sampled:
    return asyncio.run(sample_turn(Liar(changes), [1, 2], Sampling(max_tokens=5)))


@pytest.mark.parametrize(
    "changes",
    [
        {"ids": (97, 98, 10**6)},
        {"ids": (97, -1, 256)},
        {"ids": (97, True, 256)},
        {"ids": (97, "98", 256)},
        {"ids": (97, 98)},
        {"ids": (97,) * 6, "logps": (-1.0,) * 6, "versions": (0,) * 6},
        {"ids": (), "logps": (), "versions": ()},
        {"logps": (-1.0, -1.0)},
        {"logps": (-1.0, 3.0, -1.0)},
        {"logps": (-1.0, float("nan"), -1.0)},
        {"logps": (-1.0, float("-inf"), -1.0)},
        {"logps": (-1.0, "-1.0", -1.0)},
        {"versions": (0, 0)},
        {"versions": (0, 0, 7)},
        {"versions": (0, -5, 0)},
        {"stop": 97},
    ],
    ids=str,
)
def test_what_is_no_turn_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InfrastructureError, match="the engine speaker"):
        turn(**changes)


def test_a_log_prob_that_rounding_lifts_is_0() -> None:
    assert turn(logps=(1e-4, -1.0, 0)).logps == (0.0, -1.0, 0.0)
