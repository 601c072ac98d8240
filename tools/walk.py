"""Follow a setting of a recipe through one step of training: the places where it is used.

A place is a maximal run of consecutive uses in one file, as the value moves: a use is the first
execution of a line of the package that has one of the NAMES as a variable, attribute, argument or
keyword. A place climbs if its folder lies in a higher layer than that of the place before
(`tools/layout.py` has the layers). The walk ends where the first loss is computed.

    python tools/walk.py                       group_size, until it is the length of a group
    python tools/walk.py NAME ...              other names
"""

from __future__ import annotations

import ast
import os
import sys
import tempfile
from functools import cache
from inspect import CO_OPTIMIZED
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "core" / "quintain"
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

RECIPE = """
run.steps = 1
model.name = "model"
environments = [{ use = "arithmetic" }]
sampling.max_tokens = 8
batch = { prompts = 2, group_size = 3 }
evaluation = { every = 0, test = { tasks = 0 } }
"""


class Walk:
    """The lines that used one of *names*, in the order of their first execution."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names
        self.uses: dict[tuple[str, int], None] = {}
        self.ended = False

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        """Trace the functions of the package that name the setting (`sys.settrace`)."""
        file = frame.f_code.co_filename
        declares = not frame.f_code.co_flags & CO_OPTIMIZED  # a class or module, as it is imported
        if self.ended or declares or not file.startswith(f"{PACKAGE}{os.sep}"):
            return None
        place = Path(file).relative_to(PACKAGE).as_posix()
        if place == "learning/loss.py" and frame.f_code.co_name == "__call__":
            self.ended = True
        lines = _lines_with(file, self.names)

        def at_line(frame: FrameType, event: str, _: Any) -> Any:
            if event == "line" and frame.f_lineno in lines and not self.ended:
                self.uses.setdefault((place, frame.f_lineno))
            return at_line

        return at_line if lines else None

    def places(self) -> list[tuple[str, list[int]]]:
        """Return the file of each place with its lines."""
        found: list[tuple[str, list[int]]] = []
        for file, line in self.uses:
            if not found or found[-1][0] != file:
                found.append((file, []))
            found[-1][1].append(line)
        return found


@cache
def _lines_with(file: str, names: frozenset[str]) -> frozenset[int]:
    """Return the lines of *file* inside functions that have one of *names*."""
    fields = {ast.Name: "id", ast.Attribute: "attr", ast.arg: "arg", ast.keyword: "arg"}
    return frozenset(
        # an attribute on a line of its own is where it ends
        node.end_lineno
        for node in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8")))
        if type(node) in fields and getattr(node, fields[type(node)]) in names
    )


def followed(names: frozenset[str]) -> Walk:
    """Train a tiny model for a step, and return where *names* were used."""
    from tests.core.models.tiny import save_tiny

    from quintain.cli import main

    walk = Walk(names)
    with tempfile.TemporaryDirectory() as folder:
        before = Path.cwd()
        os.chdir(folder)
        try:
            save_tiny(Path("model"), context=160)
            Path("recipe.toml").write_text(RECIPE, encoding="utf-8")
            sys.settrace(walk.trace)
            main(["train", "recipe.toml", "--quiet"])
        finally:
            sys.settrace(None)
            os.chdir(before)
    return walk


def climbs(places: list[tuple[str, list[int]]]) -> int:
    """Return how many places lie in a higher layer than the one before."""
    from layout import RANK

    ranks = [RANK[file.partition("/")[0].removesuffix(".py")] for file, _ in places]
    return sum(after > before for before, after in pairwise(ranks))


def main(names: list[str]) -> None:
    """Print the places of *names*, their number and the climbs."""
    places = followed(frozenset(names or ["group_size"])).places()
    for file, lines in places:
        print(f"{file}:{','.join(map(str, lines))}")
    print(f"{len(places)} places, {climbs(places)} in a higher layer than the one before")


if __name__ == "__main__":
    main(sys.argv[1:])
