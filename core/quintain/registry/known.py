"""Known plugins: which distribution brings a component that is not installed, for messages.

``known.json`` has the components of every plugin of Quintain's repository; `make registry` writes it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path


@functools.cache
def known_plugins() -> Mapping[tuple[str, str], str]:
    """Return the distribution to install, by kind and name of a component."""
    text = Path(__file__).with_name("known.json").read_text(encoding="utf-8")
    return {
        (kind, name): distribution
        for distribution, kinds in json.loads(text).items()
        for kind, names in kinds.items()
        for name in names
    }


def providers(kind: str) -> list[str]:
    """Return the distributions that bring a component of *kind*, in order."""
    return sorted({name for (provided, _), name in known_plugins().items() if provided == kind})
