"""Pieces: the named functions that make up an algorithm.

Importing this module needs no torch; the pieces themselves are torch functions and live in
`quintain.learning` or in a plugin. A recipe finds a piece by its name if an installed algorithm
imports its module; any other is named ``module:attribute``.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args, overload

from ..errors import BindingError, PluginError, UnknownNameError, UsageError, did_you_mean
from .service import Need

Kind = Literal[
    "advantage", "objective", "correction", "aggregation", "group_filter", "optimizer_step"
]
Level = Literal["token", "sequence", "group"]
KINDS: tuple[Kind, ...] = get_args(Kind)
POLICIES = frozenset({"ratio", "ref", "top"})
"""What a piece may read that needs more than one policy."""
STATISTICS = frozenset({"entropy", "square", "mean_logp"})
"""Statistics of one forward pass that a piece may read besides log-probs."""


Fits = Callable[[Any], "str | None"]
"""Checks a piece against the other settings of its algorithm, the argument. Raises a `UsageError`
if the combination is invalid; returns a remark on one that runs but is easily misread, else
``None``.
"""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A named function of one kind, with its configured arguments. Calling the piece calls the
    function.

    Attributes:
        function: its keyword-only parameters are its configuration; those that default to `need()`
            are services, and ``state`` marks a stateful piece: it takes the state of the last step
            (``None`` at first) and returns ``(value, state)``.
        level: the unit of an objective's terms or a correction's weights: a token, a sequence or a
            group.
        reads: statistics beyond log-probs that the piece needs (``entropy``, ``square``,
            ``mean_logp``), ``ratio`` if an objective uses an importance ratio, ``ref`` if it uses
            the reference policy, ``top`` if it compares the most likely tokens of two policies
            (their number is its argument ``top``).
        idle: an objective's terms and their gradients are exactly 0 if the advantage is (a group's
            if those of all its samples are), so that such samples need no pass.
        masks: a correction's weights are 0 or 1: it excludes and reweights nothing, so it is valid
            with a ratio to mu.
        clips: an objective's arguments that bound how far its ratio may move from 1; ``None`` as
            their value bounds nothing.
        imitates: an advantage takes samples as examples, whoever sampled them, so that the loss is
            a likelihood.
        check: takes all arguments by name and raises a `UsageError` if they exclude each other.
        fits: checks the piece against the other settings of its algorithm.

    Raises:
        UsageError: *reads* has an unknown name.
    """

    kind: Kind
    name: str
    function: Callable[..., Any]
    args: Mapping[str, Any] = field(default_factory=dict)
    level: Level = "token"
    reads: frozenset[str] = frozenset()
    idle: bool = False
    masks: bool = False
    clips: tuple[str, ...] = ()
    imitates: bool = False
    check: Callable[..., None] | None = None
    fits: Fits | None = None

    def __post_init__(self) -> None:
        readable = POLICIES | STATISTICS
        for name in self.reads - readable:
            raise UsageError(
                f"{self!r} reads {name!r}{did_you_mean(name, readable)}; there are "
                f"{sorted(readable)}"
            )

    def __call__(self, *inputs: Any, **args: Any) -> Any:
        return self.function(*inputs, **{**self.args, **args})

    def __repr__(self) -> str:
        listed = ", ".join(f"{key}={value!r}" for key, value in self.args.items())
        return f"{self.kind}.{self.name}({listed})"

    def configure(self, **args: Any) -> Piece:
        """Return the same piece with *args* configured.

        Raises:
            BindingError: an argument that the function does not take.
            UsageError: arguments that exclude each other.
        """
        defaults = self.parameters
        for key in args:
            if key not in defaults:
                raise BindingError(
                    f"{self.kind}.{self.name} takes no argument "
                    f"{key!r}{did_you_mean(key, defaults)}"
                )
        if self.check is not None:
            self.check(**{**defaults, **self.args, **args})
        return dataclasses.replace(self, args={**self.args, **args})

    def with_services(self, services: Mapping[str, Any]) -> Piece:
        """Return the same piece with the *services*, by slot, that it needs.

        Raises:
            BindingError: a slot is empty.
        """
        needs = self.needs
        for parameter, slot in needs.items():
            if slot not in services:
                raise BindingError(
                    f"{self.kind}.{self.name} needs a service {slot!r} for its {parameter!r}"
                )
        args = {parameter: services[slot] for parameter, slot in needs.items()}
        return dataclasses.replace(self, args={**self.args, **args}) if args else self

    def argument(self, name: str) -> Any:
        """Return the configured value of the argument *name*, or its default."""
        return self.args[name] if name in self.args else self.parameters[name]

    @functools.cached_property
    def _keywords(self) -> dict[str, inspect.Parameter]:
        parameters = inspect.signature(self.function).parameters.values()
        return {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}

    @property
    def parameters(self) -> dict[str, Any]:
        """Name to default of every configurable argument."""
        return {
            k: p.default
            for k, p in self._keywords.items()
            if k != "state" and not isinstance(p.default, Need)
        }

    @property
    def needs(self) -> dict[str, str]:
        """Parameter to slot of every service that the piece needs."""
        return {
            k: p.default.slot or k for k, p in self._keywords.items() if isinstance(p.default, Need)
        }

    @property
    def origin(self) -> str:
        """``module:attribute`` of the function."""
        return f"{self.function.__module__}:{self.function.__qualname__}"

    @property
    def stateful(self) -> bool:
        return "state" in self._keywords

    @property
    def asynchronous(self) -> bool:
        return inspect.iscoroutinefunction(self.function)


_PIECES: dict[tuple[Kind, str], tuple[Piece, ...]] = {}
"""By kind and name; several if unrelated modules chose the same name."""


def imported(kind: Kind, name: str) -> Piece:
    """Return the piece called *name* of an imported module: core's own, and those of loaded
    algorithms.

    Raises:
        UnknownNameError: no imported piece has the name; the nearest name is shown.
        PluginError: several modules chose the name.
    """
    matches = _PIECES.get((kind, name.removeprefix(f"{kind}.")), ())
    if not matches:
        raise UnknownNameError.of(
            kind, name, pieces(kind), "`quintain info ALGORITHM` shows the pieces of one"
        )
    if len(matches) > 1:
        owners = sorted(piece.origin for piece in matches)
        raise PluginError(
            f"{kind} {name!r} is claimed by {' and by '.join(owners)}; say which: "
            f"{' or '.join(owners)}"
        )
    return matches[0]


def pieces(kind: Kind) -> tuple[str, ...]:
    """Return the names of the imported pieces of *kind*, sorted."""
    return tuple(sorted(name for registered, name in _PIECES if registered == kind))


def every_piece() -> tuple[Piece, ...]:
    """Return all imported pieces, by kind and then in the order of their definition."""
    return tuple(
        p
        for kind in KINDS
        for (registered, _), ps in _PIECES.items()
        if registered == kind
        for p in ps
    )


class Decorator(Protocol):
    """Turns a function into a `Piece` and registers it: ``@objective``, or ``@objective(name="...",
    ...)``.

    Options are attributes of `Piece`: every kind takes ``name`` (the function's by default),
    ``check`` and ``fits``; an unknown option raises a `UsageError`.
    """

    @overload
    def __call__(self, function: Callable[..., Any], /) -> Piece: ...
    @overload
    def __call__(self, **options: Any) -> Callable[[Callable[..., Any]], Piece]: ...


def _decorator(
    kind: Kind, doc: str, adapt: Callable[..., Any] | None = None, **defaults: Any
) -> Decorator:
    """Return the decorator of *kind* with the further options *defaults*; *adapt* wraps the
    decorated function.
    """
    options = {"name", "check", "fits", *defaults}

    def decorate(function: Callable[..., Any] | None = None, /, **chosen: Any) -> Any:
        for option in chosen:
            if option not in options:
                raise UsageError(
                    f"@{kind} takes no option {option!r}{did_you_mean(option, options)}"
                )
        if function is None:
            return functools.partial(decorate, **chosen)
        values = {"name": function.__name__.strip("_"), **defaults, **chosen}
        values["reads"] = frozenset(values.get("reads", ()))
        piece = Piece(kind=kind, function=adapt(function) if adapt else function, **values)
        object.__setattr__(piece, "__doc__", function.__doc__)
        others = _PIECES.get((kind, piece.name), ())  # a redefined function replaces its piece
        _PIECES[kind, piece.name] = (
            *(other for other in others if other.origin != piece.origin),
            piece,
        )
        return piece

    decorate.__doc__ = doc
    return decorate


def _over_groups(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the advantage that calls *function* with the rewards of each group of a step
    (`quintain.learning.pieces.advantages.Step`).
    """

    @functools.wraps(function)
    def over_groups(step: Any, **args: Any) -> Any:
        return step.over(step.groups, functools.partial(function, **args), function.__name__)

    return over_groups


advantage = _decorator(
    "advantage",
    """``f(step: Step, ...)`` returns one value per sample (a sequence of floats) or per token (a tensor [N]).

    May return ``(values, {"name": number, ...})`` to report metrics, which get the prefix ``advantage.`` unless they
    have a dot; a stateful one returns ``((values, metrics), state)`` then. Tensors [N, ...] among them are columns for
    the objective, see `LossInputs.statistics`. Options: ``reads``, ``imitates``.
    """,
    reads=(),
    imitates=False,
)
per_group = _decorator(
    "advantage",
    "An advantage of one group: ``f(rewards, ...)`` returns a number per reward.",
    adapt=_over_groups,
)
objective = _decorator(
    "objective",
    """``f(t: LossInputs, ...)`` returns the loss of every term, to be minimised: [N] tokens, [S] sequences or [G]
    groups, by ``level``.

    It does not reduce them: the aggregation gives the weights. May return ``(terms, {"clip.low": bool [N], ...})`` to
    report metrics; a name without a dot gets the prefix ``objective.``.
    Options: ``level``, ``reads``, ``idle``, ``clips``.
    """,
    level="token",
    reads=("ratio",),
    idle=False,
    clips=(),
)
correction = _decorator(
    "correction",
    """``f(t: LossInputs, ...)`` returns a weight [N] (token) or [S] (sequence) that corrects for sampling from mu,
    without gradient. Options: ``level``, ``reads``, ``masks``.
    """,
    level="token",
    reads=(),
    masks=False,
)
aggregation = _decorator(
    "aggregation",
    """``f(batch: Batch, ...)`` returns, per sample, the weight of one token. A term's weight is that of its tokens.""",
)
group_filter = _decorator(
    "group_filter",
    """``f(stats: GroupStats, ...)`` returns the reason for rejecting a group; ``""`` accepts it.""",
)
optimizer_step = _decorator(
    "optimizer_step",
    """``f(step: OptimizerStep, ...)`` updates the parameters once, in place of the optimizer. It returns metrics:
    ``loss``, ``grad_norm`` (before clipping) and any others.
    """,
)
