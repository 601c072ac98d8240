"""The installed algorithms of core and of `quintain-algorithms`, and `sft`: for tests that hold for
all.
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
    and (component.distribution in ("quintain", "quintain-algorithms") or component.name == "sft")
}
needs_algorithms = pytest.mark.skipif(
    "gspo" not in INSTALLED, reason="quintain-algorithms is not installed"
)
