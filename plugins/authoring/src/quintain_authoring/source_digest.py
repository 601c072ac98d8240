"""A hash of the code that plays and scores the tasks of an environment."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quintain import Environment, Reward

NOT_THEIRS = sys.stdlib_module_names | {"quintain"}


def source_digest(environment: type[Environment[Any, Any]]) -> str:
    """Return a hash of the Python files of the packages that *environment*, its bases and its
    rewards are in; of one that is in no package, of its file alone. Quintain's own package and
    what these packages import are left out.
    """
    makers: list[Any] = [*environment.__mro__, *_functions(environment.reward)]
    modules = {maker.__module__: maker.__module__.partition(".")[0] for maker in makers}
    found: dict[Path, str] = {}
    for module, package in modules.items():
        if package in NOT_THEIRS:
            continue
        # A package without __init__.py has no file of its own.
        file = Path(sys.modules[package].__file__ or sys.modules[module].__file__ or "")
        files = file.parent.rglob("*.py") if file.name == "__init__.py" else [file]
        found |= {place: f"{package}/{place.relative_to(file.parent)}" for place in files}
    total = hashlib.sha256()
    for place, name in sorted(found.items(), key=lambda item: item[1]):
        total.update(f"{name}\0{hashlib.sha256(place.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def _functions(reward: Reward) -> Iterator[Any]:
    """Yield the functions, or the classes, of a reward and of what it combines."""
    yield getattr(reward, "function", type(reward))
    for part in reward.parts:
        yield from _functions(part)
