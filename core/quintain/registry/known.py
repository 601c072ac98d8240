"""Known plugins: which distribution brings a component that is not installed, for messages.

``known.json`` has the components of every plugin of Quintain's repository; `make registry` writes it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path


def known_plugins() -> Mapping[tuple[str, str], str]:
    """Return the distribution that brings a component, by kind and name."""
    return {key: text.partition("[")[0] for key, text in _requirements().items()}


def install_line(kind: str, name: str) -> str:
    """Return the command that installs a known component, with the extra that it needs."""
    requirement = _requirements()[kind, name]
    return f"pip install '{requirement}'" if "[" in requirement else f"pip install {requirement}"


@functools.cache
def _requirements() -> Mapping[tuple[str, str], str]:
    """Return ``distribution`` or ``distribution[extra]`` by kind and name of a component."""
    text = Path(__file__).with_name("known.json").read_text(encoding="utf-8")
    return {
        (kind, name): requirement
        for requirement, kinds in json.loads(text).items()
        for kind, names in kinds.items()
        for name in names
    }


def providers(kind: str) -> list[str]:
    """Return the distributions that bring a component of *kind*, in order."""
    return sorted({name for (provided, _), name in known_plugins().items() if provided == kind})
