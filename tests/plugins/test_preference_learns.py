"""Each row of the plugin teaches a tiny model within seconds."""

from __future__ import annotations

import pytest

from ..core.learns import rises


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["rft", "dpo", "dpo_norm", "simpo"])
def test_success_rises(name: str, seed: int) -> None:
    before, after = rises(name, seed)
    assert after - before >= 0.1, (before, after)
