"""Pieces by name: those that are imported, those of every installed algorithm, and those in files of one's own."""

from __future__ import annotations

from ..errors import PluginError, UnknownNameError
from ..interfaces.pieces import Kind, Piece, imported, pieces
from .discovery import PLUGINS
from .lookup import Registry, current


def find(kind: Kind, name: str) -> Piece:
    """The piece called *name*.

    A name that no imported module gave to a piece is looked for once more after importing every installed algorithm: so
    a recipe may take the pieces of one algorithm for another.

    Args:
        name: ``ppo_clip``; ``module:attribute`` or ``path/to/file.py:attribute`` for a piece that no algorithm brings,
            or where two modules chose the same name.

    Raises:
        UnknownNameError: there is none; the nearest name is shown.
        PluginError: it cannot be imported, is no piece of this kind, or several modules chose the name.
    """
    if ":" in name:
        piece = current().load("algorithm", name)
        if not isinstance(piece, Piece) or piece.kind != kind:
            what = f"a piece of the kind {piece.kind}" if isinstance(piece, Piece) else f"a {type(piece).__name__}"
            raise PluginError(f"algorithm {name!r} is {what}; expected a function decorated with @{kind}")
        return piece
    if name.removeprefix(f"{kind}.") not in pieces(kind):
        failures = import_algorithms(current())
        if name.removeprefix(f"{kind}.") not in pieces(kind):
            missing = {p for (k, _), p in PLUGINS.items() if k == "algorithm"}
            missing -= {c.distribution for c in current().components("algorithm")}
            more = [f"more come with: pip install {' '.join(sorted(missing))}"] if missing else []
            hint = "`quintain info ALGORITHM` shows its pieces"
            raise UnknownNameError.of(kind, name, pieces(kind), "\n".join((hint, *more, *map(str, failures))))
    return imported(kind, name)


def import_algorithms(registry: Registry) -> list[PluginError]:
    """Import every installed algorithm, and with it the pieces it is made of; return the first failure of each
    distribution that has some.
    """
    failures: dict[str, PluginError] = {}
    for component in registry.components("algorithm"):
        try:
            registry.resolve(component)
        except PluginError as e:
            failures.setdefault(component.distribution, e)
    return list(failures.values())
