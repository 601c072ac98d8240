"""The algorithms of core, those of `quintain_algorithms.algorithms`, and `sft`: for tests that hold
for all. Others, such as those with a critic or trees, have tests of their own.
"""

from __future__ import annotations

import pytest

from quintain.interfaces.algorithm import Algorithm
from quintain.registry.discovery import discover
from quintain.registry.lookup import Registry

INSTALLED: dict[str, Algorithm] = {
    component.name: Registry([component]).resolve(component)
    for component in discover()
    if component.kind == "algorithm"
    and (
        component.module in ("quintain.learning.algorithms", "quintain_algorithms.algorithms")
        or component.name == "sft"
    )
}
needs_algorithms = pytest.mark.skipif(
    "gspo" not in INSTALLED, reason="quintain-algorithms is not installed"
)
