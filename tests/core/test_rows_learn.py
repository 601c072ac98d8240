"""Every row of the table teaches a tiny model, in a second or two."""

from __future__ import annotations

import pytest

from quintain.learning import PRESETS

from .learns import rises


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", [name for name in PRESETS if name != "sft"])
def test_success_rises(name: str, seed: int) -> None:
    """By a tenth at least, with the row's own defaults."""
    before, after = rises(name, seed)
    assert after >= before + 0.1, (before, after)
