"""What a package with `quintain.lazy_names` says to type checkers."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from types import ModuleType


def lazily(package: ModuleType) -> set[str]:
    """The names that *package* imports for type checkers; each is the object that users get."""
    tree = ast.parse(Path(package.__file__ or "").read_text(encoding="utf-8"))
    block = next(n for n in tree.body if isinstance(n, ast.If))
    found = set()
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        home = importlib.import_module("." * node.level + (node.module or ""), package.__name__)
        for alias in node.names:
            assert alias.name in dir(package)
            assert getattr(package, alias.name) is getattr(home, alias.name)
            found.add(alias.name)
    return found
