"""What works in an environment's class, though seldom as meant."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quintain import Environment
from quintain.tracebacks import defined_at


def oddities(component: type[Environment[Any, Any]]) -> Iterator[str]:
    """Yield what works in a class, though seldom as meant: settings that are none, and rewards that
    are right at half.
    """
    try:
        lines, start = inspect.getsourcelines(component)
    except (OSError, TypeError):  # made at run time, or its file changed
        lines, start = [], 0
    file = Path(inspect.getsourcefile(component) or "").name
    annotated = {name for c in component.__mro__ for name in inspect.get_annotations(c)}
    for name, value in vars(component).items():
        constant = isinstance(value, (str, bool, int, float, list, tuple, dict))
        if (
            constant
            and name not in annotated
            and not name.startswith("_")
            and not hasattr(Environment, name)
        ):
            line_numbers = (
                n for n, line in enumerate(lines, start) if re.match(rf"\s*{name}\s*=", line)
            )
            where = f"{file}, line {next(line_numbers, start)}"
            yield (
                f"{component.__name__}.{name} ({where}) has no annotation, so no recipe and no "
                f"--arg can set it; write `{name}: {type(value).__name__} = {value!r:.40}`, or "
                "ClassVar for a constant"
            )
    given: Any = getattr(component, "reward", None)
    if (limits := getattr(given, "range", None)) and limits[1] > 1:
        yield (
            f"reward {given.name!r} ({defined_at(given.function)}) has the range {limits}, but an "
            f"outcome of at least 1 counts as right; divide it by {limits[1]:g}, and write "
            "range=(0, 1)"
        )
