"""Settings of a learner that change over the steps of a run: factors, by the words of rewards.

A factor multiplies what the recipe sets, so that the setting keeps its key, its check and its place
on the command line::

    [learner.schedules]
    lr = { cosine = [1, 0.1, 200] }
    "kl.coefficient" = { ramp = [1, 0, 100] }
    "objective.high" = { ramp = [1.4, 1, 50] }

It depends on the number of steps alone, except for an ``adaptive`` one, whose value is part of a
checkpoint.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from ..errors import UsageError, did_you_mean
from .algorithm import Algorithm
from .pieces import Kind, Piece

OWNERS: tuple[Kind, ...] = ("objective", "correction", "optimizer_step")
"""Pieces whose numbers a factor multiplies: those of the update itself."""
SHAPES = frozenset({"ramp", "cosine", "adaptive"})
WORST = 0.2
"""Relative error of the divergence beyond which an adaptive factor changes no faster."""


@dataclasses.dataclass(frozen=True)
class Factor:
    """What multiplies a setting.

    Attributes:
        shape: ``ramp`` goes linearly and ``cosine`` along half a cosine from *first* to *second* in
            *steps* steps, and stays there. ``adaptive`` begins at 1 and follows a divergence of
            *first* nats a token over about *second* steps (Ziegler et al. 2019, 1909.08593, section
            2.2, by steps instead of samples).
    """

    shape: str
    first: float
    second: float
    steps: int = 1

    @classmethod
    def parse(cls, key: str, table: Mapping[str, Any]) -> Factor:
        """Return the factor that *table* describes, as ``{"ramp": (1, 0, 100)}``; *key* is its
        place in a recipe.

        Raises:
            UsageError: it has no known shape, or the wrong numbers.
        """
        if len(table) != 1 or (shape := next(iter(table))) not in SHAPES:
            shapes = (
                "{ ramp = [1, 0, 100] }, { cosine = [1, 0.1, 100] } or { adaptive = [0.1, 10] }"
            )
            raise UsageError(f"{key} is {dict(table)!r}; expected {shapes}")
        values = list(table[shape])
        numbers = all(isinstance(v, int | float) and math.isfinite(v) and v >= 0 for v in values)
        if shape == "adaptive":
            if len(values) == 2 and numbers and values[0] > 0 and values[1] >= 1:
                return cls(shape, values[0], values[1])
            expected = "a divergence in nats a token above 0, and at least one step: [0.1, 10]"
        else:
            if len(values) == 3 and numbers and values[2] == int(values[2]) >= 1:
                return cls(shape, values[0], values[1], int(values[2]))
            expected = "start, stop and a number of steps: [1, 0, 100]"
        raise UsageError(f"{key}.{shape} is {values!r}; expected {expected}")

    def at(self, step: int) -> float:
        """Return the factor of the step that follows *step* others."""
        share = min(step / self.steps, 1.0)
        if self.shape == "cosine":
            share = (1 - math.cos(math.pi * share)) / 2
        return self.first + (self.second - self.first) * share

    def course(self, value: float, unit: str) -> str:
        """Return what *value* is over the steps, which are called *unit*, in words."""
        last = self.steps
        steps = sorted({0, last // 4, last // 2, 3 * last // 4})
        told = [f"{value * self.at(step):.3g} in {unit} {step + 1}" for step in steps]
        return ", ".join([*told, f"{value * self.at(last):.3g} from {unit} {last + 1} on"])

    def followed(self, factor: float, divergence: float) -> float:
        """Return an adaptive *factor* after a step with *divergence*."""
        error = max(-WORST, min(WORST, divergence / self.first - 1))
        return factor * (1 + error / self.second)


class Factors:
    """The factors of a learner, and the state of those that adapt.

    Attributes:
        adapted: the present value of each adaptive factor.
    """

    def __init__(
        self, schedules: Mapping[str, Mapping[str, Any]], algorithm: Algorithm | None
    ) -> None:
        """Read *schedules*, by the key of the setting.

        Raises:
            UsageError: a key is no number that a factor can multiply here, or a piece refuses a
                value at the start or the end of a schedule.
        """
        self._factors = {
            key: Factor.parse(f"learner.schedules.{key}", table) for key, table in schedules.items()
        }
        for key, factor in self._factors.items():
            _check(key, factor, algorithm)
        adaptive = (key for key, factor in self._factors.items() if factor.shape == "adaptive")
        self.adapted: dict[str, float] = dict.fromkeys(adaptive, 1.0)
        if algorithm is not None:  # values that a piece refuses are refused now
            for step in {0, *(factor.steps for factor in self._factors.values())}:
                self.algorithm_at(algorithm, step)

    def __bool__(self) -> bool:
        return bool(self._factors)

    def of(self, key: str, step: int) -> float:
        """Return the factor of *key*: 1 for what has none."""
        if key in self.adapted:
            return self.adapted[key]
        factor = self._factors.get(key)
        return 1.0 if factor is None else factor.at(step)

    def algorithm_at(self, algorithm: Algorithm, step: int) -> Algorithm:
        """Return *algorithm* with the values of the step that follows *step* others."""
        changes: dict[str, Any] = {}
        arguments: dict[str, dict[str, float]] = {}
        for key in self._factors:
            owner, _, name = key.rpartition(".")
            if not owner:
                continue  # the learner's own
            value = _value(algorithm, key) * self.of(key, step)
            if owner == "kl":
                changes["kl"] = dataclasses.replace(algorithm.kl, coefficient=value)
            else:
                arguments.setdefault(owner, {})[name] = value
        for owner, values in arguments.items():  # together: arguments may exclude each other
            changes[owner] = getattr(algorithm, owner).configure(**values)
        return dataclasses.replace(algorithm, **changes) if changes else algorithm

    def described(self, algorithm: Algorithm, lr: float) -> list[str]:
        """Return what each setting is over the steps, a line each."""
        lines = []
        for key, factor in self._factors.items():
            value = lr if key == "lr" else _value(algorithm, key)
            if factor.shape == "adaptive":
                lines.append(
                    f"{key} begins at {value:g} and follows a divergence of {factor.first:g} nats a "
                    "token from ref"
                )
                continue
            lines.append(f"{key} is {factor.course(value, 'update')}")
        return lines

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Let adaptive factors follow the divergence from ref of a step."""
        divergence = metrics.get("kl.ref.k3")
        if divergence is not None:
            for key, factor in self.adapted.items():
                self.adapted[key] = self._factors[key].followed(factor, divergence)

    def resume(self, adapted: Mapping[str, float]) -> None:
        """Continue with what a checkpoint has of the factors that adapt here, too."""
        self.adapted |= {key: adapted[key] for key in self.adapted if key in adapted}

    def metrics(self, step: int) -> dict[str, float]:
        """Return the factors of a step, as ``schedule.lr``."""
        return {f"schedule.{key}": self.of(key, step) for key in self._factors}


def _value(algorithm: Algorithm, key: str) -> float:
    """Return the number of *algorithm* that a factor of *key* multiplies."""
    owner, _, name = key.rpartition(".")
    if owner == "kl":
        return algorithm.kl.coefficient
    number: float = getattr(algorithm, owner).argument(name)
    return number


def _check(key: str, factor: Factor, algorithm: Algorithm | None) -> None:
    """Raise the `UsageError` of a key that has no number to multiply."""
    owner, _, name = key.rpartition(".")
    if factor.shape == "adaptive" and key != "kl.coefficient":
        raise UsageError(
            f"learner.schedules.{key} is adaptive, which follows the divergence from ref; only "
            "kl.coefficient does"
        )
    if key == "lr":
        if algorithm is not None and algorithm.optimizer_step is not None:
            raise UsageError(
                f"learner.schedules.lr has no part in {algorithm.optimizer_step!r}, which replaces "
                "the optimizer"
            )
        return
    if algorithm is None:
        raise UsageError(f"learner.schedules.{key}: without an algorithm there is only lr")
    if key == "kl.coefficient":
        if not algorithm.kl.active:
            raise UsageError(
                f"learner.schedules.{key} multiplies 0: set algorithm.args.kl = {{ where = "
                '"loss", estimator = "k2", coefficient = 0.04 }'
            )
        return
    piece = getattr(algorithm, owner, None) if owner in OWNERS else None
    numbers = _numbers(piece)
    if name not in numbers:
        known = ["lr", "kl.coefficient"]
        known += [f"{kind}.{n}" for kind in OWNERS for n in _numbers(getattr(algorithm, kind))]
        raise UsageError(
            f"learner.schedules.{key} names no number of {algorithm.name!r}"
            f"{did_you_mean(key, known)}"
        )


def _numbers(piece: Piece | None) -> list[str]:
    """Return the arguments of *piece* that a factor can multiply."""
    if piece is None:
        return []
    values = {name: piece.argument(name) for name in piece.parameters}
    return [name for name, value in values.items() if type(value) is float]
