"""Pieces by name: those that are imported, those of every installed algorithm, and those in files of one's own."""

from __future__ import annotations

from dataclasses import replace

from ..errors import PluginError, UnknownNameError
from ..interfaces.pieces import Kind, Piece, every_piece, imported, pieces
from .discovery import Component
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
    if name.removeprefix(f"{kind}.") in pieces(kind):
        return imported(kind, name)
    failures = import_algorithms(current())
    try:
        return imported(kind, name)
    except UnknownNameError as e:
        raise UnknownNameError("\n".join((str(e), *map(str, failures)))) from None


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


def installed_pieces(registry: Registry) -> list[Component]:
    """The imported pieces that packages with installed algorithms define, named ``kind.name``."""
    owners = {c.module.partition(".")[0]: c for c in registry.components("algorithm")}
    return [
        replace(owners[package], name=f"{piece.kind}.{piece.name}", target=piece.origin)
        for piece in every_piece()
        if (package := piece.function.__module__.partition(".")[0]) in owners
    ]
