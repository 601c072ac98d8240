"""Algorithms as plain data, and what sets two of them apart. Needs no torch.

A setting has its name in the recipe, under ``[algorithm.args]``: ``objective``, ``objective.high``,
``kl``, ``plan.resample``.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from quintain import KL, Algorithm, Piece
from quintain.interfaces import Kind

KINDS = get_args(Kind)
"""Kinds of pieces, in the order of `Algorithm`'s fields."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One setting in which two algorithms differ.

    Attributes:
        setting: its name in the recipe, under ``[algorithm.args]``.
        left, right: the values; a whole piece as ``{"use": name, **arguments}``, ``None`` for no
            piece.
    """

    setting: str
    left: Any
    right: Any


def settings(algorithm: Algorithm) -> dict[str, Any]:
    """Return all settings of *algorithm*, as arguments of `Algorithm.replace`:
    ``other.replace(**settings(algorithm))`` is equivalent to *algorithm*.
    """
    return {
        f.name: _plain(getattr(algorithm, f.name))
        for f in dataclasses.fields(algorithm)
        if f.name not in _ABOUT
    }


def differences(left: Algorithm, right: Algorithm) -> tuple[Difference, ...]:
    """Return the settings in which two algorithms differ, in the order of `Algorithm`'s fields.

    A piece with a different function is one difference, with all its arguments; a piece with
    different arguments is one difference per argument. A setting without effect is no difference:
    `ratio_to` of an objective without a ratio, the estimator of an inactive KL term.
    """
    changes: list[Difference] = []
    mine, theirs = settings(left), settings(right)
    for name in mine:
        a, b = mine[name], theirs[name]
        if a == b or (name == "ratio_to" and not (left.has_ratio and right.has_ratio)):
            continue
        if name == "kl":
            a, b = (
                value if algorithm.kl.active else None
                for algorithm, value in ((left, a), (right, b))
            )
            changes += [Difference(setting="kl", left=a, right=b)] if a != b else []
        elif name == "plan" or (name in KINDS and a and b and a["use"] == b["use"]):
            keys = [key for key in {**a, **b} if a.get(key) != b.get(key)]
            changes += [
                Difference(setting=f"{name}.{key}", left=a.get(key), right=b.get(key))
                for key in keys
            ]
        else:
            changes.append(Difference(setting=name, left=a, right=b))
    return tuple(changes)


def piece_words(piece: Piece | Mapping[str, Any], *, only: Mapping[str, Any] | None = None) -> str:
    """Return a piece: its name and arguments, without unset ones and the tolerance, a guard against
    rounding.

    Args:
        only: the arguments to include; ``None`` includes all.
    """
    plain = _plain(piece) if isinstance(piece, Piece) else dict(piece)
    name, _ = plain.pop("use"), plain.pop("tolerance", None)
    arguments = [
        f"{k} {shown(v)}" for k, v in plain.items() if v is not None and (only is None or k in only)
    ]
    return f"`{name}` ({', '.join(arguments)})" if arguments else f"`{name}`"


def kl_words(kl: KL | Mapping[str, Any] | None) -> str:
    """Return the KL term: estimator, place and coefficient."""
    if isinstance(kl, Mapping):
        kl = KL(**kl)
    if kl is None or not kl.active:
        return "no KL"
    factor = " with the score-function factor" if kl.score_factor else ""
    return f"KL {kl.estimator} in the {kl.where}, {kl.coefficient:g}{factor}"


def shown(value: Any) -> str:
    """Return a value in the notation of a recipe; ``unset`` for ``None``."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {shown(v)}" for key, v in value.items())
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(shown, value))}]"
    return str(value)


_ABOUT = ("name", "summary", "source", "published")


def _plain(value: Any) -> Any:
    if isinstance(value, Piece):
        # `parameters` excludes services, which are among the arguments of an algorithm once they
        # are bound.
        arguments = {name: value.argument(name) for name in value.parameters}
        return {
            "use": value.name,
            **{k: v for k, v in arguments.items() if v is not inspect.Parameter.empty},
        }
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return dict(value) if isinstance(value, Mapping) else value
