"""Finds pieces by name: imported ones, those of installed algorithms, and those in local files."""

from __future__ import annotations

from ..errors import PluginError, UnknownNameError
from ..interfaces.pieces import Kind, Piece, imported, pieces
from .known import providers
from .lookup import Registry, current


def find(kind: Kind, name: str) -> Piece:
    """Return the piece called *name*.

    If no imported piece has the name, every installed algorithm is imported, so that a recipe can
    use a piece of one algorithm in another.

    Args:
        name: ``ppo_clip``; ``module:attribute`` or ``path/to/file.py:attribute`` for a piece
            outside the installed algorithms, or if two modules chose the same name.

    Raises:
        UnknownNameError: no piece has the name; the nearest name is shown.
        PluginError: it cannot be imported, is no piece of this kind, or several modules chose the
            name.
    """
    if ":" in name:
        piece = current().load("algorithm", name)
        if not isinstance(piece, Piece) or piece.kind != kind:
            found = (
                f"a piece of the kind {piece.kind}"
                if isinstance(piece, Piece)
                else f"a {type(piece).__name__}"
            )
            raise PluginError(
                f"algorithm {name!r} is {found}; expected a function decorated with @{kind}"
            )
        return piece
    if name.removeprefix(f"{kind}.") not in pieces(kind):
        failures = import_algorithms(current())
        if name.removeprefix(f"{kind}.") not in pieces(kind):
            installed = {c.distribution for c in current().components("algorithm")}
            missing = [name for name in providers("algorithm") if name not in installed]
            install = [f"more come with: pip install {' '.join(missing)}"] if missing else []
            hint = "`quintain info ALGORITHM` shows its pieces"
            raise UnknownNameError.of(
                kind, name, pieces(kind), "\n".join((hint, *install, *map(str, failures)))
            )
    return imported(kind, name)


def import_algorithms(registry: Registry) -> list[PluginError]:
    """Import every installed algorithm and so its pieces; return the first failure of each
    distribution.
    """
    failures: dict[str, PluginError] = {}
    for component in registry.components("algorithm"):
        try:
            registry.resolve(component)
        except PluginError as e:
            failures.setdefault(component.distribution, e)
    return list(failures.values())
