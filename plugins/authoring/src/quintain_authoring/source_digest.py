"""A hash of the code that plays and scores the tasks of an environment."""

from __future__ import annotations

import hashlib
import inspect
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
    found: dict[Path, str] = {}
    for maker in makers:
        package, *inner = maker.__module__.split(".")
        if package in NOT_THEIRS:
            continue
        file = Path(inspect.getfile(maker))
        above = len(inner) - (file.name != "__init__.py")
        root = file.parents[max(above, 0)]
        files = [file] if above < 0 else root.rglob("*.py")
        found |= {place: f"{package}/{place.relative_to(root)}" for place in files}
    total = hashlib.sha256()
    for place, name in sorted(found.items(), key=lambda item: item[1]):
        total.update(f"{name}\0{hashlib.sha256(place.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def _functions(reward: Reward) -> Iterator[Any]:
    """Yield the functions, or the classes, of a reward and of what it combines."""
    yield getattr(reward, "function", type(reward))
    for part in reward.parts:
        yield from _functions(part)
