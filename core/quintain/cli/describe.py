"""Algorithms as plain data and in words, and what sets two of them apart. Needs no torch.

A setting is named as a recipe writes it under ``[algorithm.args]``: ``objective``, ``objective.high``, ``kl``,
``plan.resample``.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..interfaces.algorithm import KL, Algorithm
from ..interfaces.pieces import KINDS, Piece

Words = Callable[[Any], str]

PHRASES: dict[str, Words] = {
    "ratio_to": lambda policy: f"ratio to {policy}",
    "epochs": lambda n: counted(n, "epoch"),
    "minibatches": lambda n: counted(n, "minibatch"),
    "mask_truncated": lambda on: "truncated samples left out" if on else "truncated samples trained",
    "overlong": lambda share: (
        f"overlong answers punished over the last {100 * share:g} %" if share else "length not punished"
    ),
    "reset_optimizer": lambda on: "optimizer reset before every batch" if on else "optimizer kept",
    "float32_head": lambda on: "float32 head" if on else "head as precise as the rest",
    "prune": lambda share: f"vocabulary pruned at {share:.3g} of the likeliest" if share else "whole vocabulary",
    "services": lambda held: "; ".join(f"service {slot} is {use}" for slot, use in held.items()) or "no service",
    "plan.resample": lambda way: {"none": "no resampling", "dynamic": "dynamic sampling", "active": "active sampling"}[
        way
    ],
    "plan.attempts": lambda n: f"at most {counted(n, 'batch')} tried per step",
    "plan.order": lambda way: {
        "shuffled": "tasks shuffled",
        "easy_to_hard": "tasks from easy to hard",
        "hard_first": "tasks drawn by failure rate",
    }[way],
    "plan.drop_solved": lambda rate: "no task dropped" if rate is None else f"tasks dropped at success rate {rate:g}",
    "plan.difficulty_samples": lambda n: (
        f"difficulty filter from {counted(n, 'sample')} per task" if n else "no difficulty filter"
    ),
    "plan.difficulty_range": lambda rates: f"success rates {rates[0]:g} to {rates[1]:g} kept",
    "plan.staleness": lambda n: f"sampler {counted(n, 'version')} behind" if n else "sampler up to date",
    "plan.thinking_budget": lambda at: (
        f"thinking budget of {at['min_tokens']:,} to {at['max_tokens']:,} tokens" if at else "no thinking budget"
    ),
}
"""What a value of a setting means; pieces and the KL term have functions of their own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One setting in which two algorithms differ.

    Attributes:
        setting: as a recipe writes it under ``[algorithm.args]``.
        left, right: the values; a whole piece as ``{"use": name, **arguments}``, ``None`` where an algorithm has none.
    """

    setting: str
    left: Any
    right: Any

    @property
    def words(self) -> str:
        """What the left algorithm does in place of what the right one does."""
        kind = self.setting.partition(".")[0]
        right = phrase(self.setting, self.right)
        if kind in KINDS:  # what it is stands there once
            right = right.removeprefix(f"{self.setting.replace('.', ' ')} ")
        return f"{phrase(self.setting, self.left)} instead of {right}"


def settings(algorithm: Algorithm) -> dict[str, Any]:
    """Everything that *algorithm* sets, in the form that `Algorithm.replace` takes:
    ``other.replace(**settings(algorithm))`` does what *algorithm* does.
    """
    return {f.name: _plain(getattr(algorithm, f.name)) for f in dataclasses.fields(algorithm) if f.name not in _ABOUT}


def differences(left: Algorithm, right: Algorithm) -> tuple[Difference, ...]:
    """The settings in which two algorithms differ, in the order of `Algorithm`'s fields.

    A piece that is another function is one difference, with all its arguments; one that is only configured otherwise is
    a difference per argument. What does nothing is no difference: the ratio_to of an objective without a ratio, the
    estimator of a KL term that is off.
    """
    changes: list[Difference] = []
    mine, theirs = settings(left), settings(right)
    for name in mine:
        a, b = mine[name], theirs[name]
        if a == b or (name == "ratio_to" and not (left.has_ratio and right.has_ratio)):
            continue
        if name == "kl":
            a, b = (value if algorithm.kl.active else None for algorithm, value in ((left, a), (right, b)))
            changes += [Difference(setting="kl", left=a, right=b)] if a != b else []
        elif name == "plan" or (name in KINDS and a and b and a["use"] == b["use"]):
            keys = [key for key in {**a, **b} if a.get(key) != b.get(key)]
            changes += [Difference(setting=f"{name}.{key}", left=a.get(key), right=b.get(key)) for key in keys]
        else:
            changes.append(Difference(setting=name, left=a, right=b))
    return tuple(changes)


def phrase(setting: str, value: Any) -> str:
    """What *value* of *setting* means, in a few words."""
    kind, _, argument = setting.partition(".")
    if setting in PHRASES:
        return PHRASES[setting](value)
    if setting == "kl":
        return kl_words(value)
    if kind in KINDS and argument:
        return f"{kind} {argument} {shown(value)}"
    if kind in KINDS:
        return f"{kind} {piece_words(value)}" if value else f"no {kind} piece"
    raise KeyError(setting)


def piece_words(piece: Piece | Mapping[str, Any], *, only: Mapping[str, Any] | None = None) -> str:
    """A piece by name, with its arguments but those that are unset and the tolerance, a guard against rounding.

    Args:
        only: arguments to tell; all where ``None``.
    """
    plain = _plain(piece) if isinstance(piece, Piece) else dict(piece)
    name, _ = plain.pop("use"), plain.pop("tolerance", None)
    arguments = (f"{k} {shown(v)}" for k, v in plain.items() if v is not None and (only is None or k in only))
    listed = ", ".join(arguments)
    return f"`{name}` ({listed})" if listed else f"`{name}`"


def kl_words(kl: KL | Mapping[str, Any] | None) -> str:
    """The KL term: estimator, place and coefficient."""
    if isinstance(kl, Mapping):
        kl = KL(**kl)
    if kl is None or not kl.active:
        return "no KL"
    factor = " with the score-function factor" if kl.score_factor else ""
    return f"KL {kl.estimator} in the {kl.where}, {kl.coefficient:g}{factor}"


def shown(value: Any) -> str:
    """A value as a recipe might write it; ``unset`` where there is none."""
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


def counted(n: int, noun: str) -> str:
    """*n* of them."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}{'es' if noun.endswith('batch') else 's'}"


_ABOUT = ("name", "summary", "source", "published")


def _plain(value: Any) -> Any:
    if isinstance(value, Piece):
        # `parameters` leaves services out, which an algorithm that is served holds among its arguments.
        arguments = {name: value.argument(name) for name in value.parameters}
        return {"use": value.name, **{k: v for k, v in arguments.items() if v is not inspect.Parameter.empty}}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return dict(value) if isinstance(value, Mapping) else value
