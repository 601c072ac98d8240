"""Pieces: the named functions that an algorithm is made of, and those that are imported by name.

Importing this module needs no torch; the pieces themselves are torch functions and live in `quintain.learning` or in a
plugin.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, overload

from ..errors import BindingError, PluginError, UnknownNameError, UsageError, did_you_mean
from .service import Need

Kind = Literal["advantage", "objective", "correction", "aggregation", "group_filter", "optimizer_step"]
Level = Literal["token", "sequence", "group"]
KINDS: tuple[Kind, ...] = ("advantage", "objective", "correction", "aggregation", "group_filter", "optimizer_step")
POLICIES = frozenset({"ratio", "ref", "top"})
"""What a piece may read that is no statistic of a single forward pass."""
STATISTICS = frozenset({"entropy", "square", "mean_logp"})
"""Statistics of one forward pass that a piece may read besides log-probs."""


class Fits(Protocol):
    """Whether a piece goes with the other choices of an algorithm that has it."""

    def __call__(self, algorithm: Any, /) -> str | None:
        """A remark on a combination that runs and is easily misread, else ``None``.

        Raises:
            UsageError: the combination makes no sense.
        """


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A named function of one kind, with the arguments it is configured with. Calling it runs it.

    Attributes:
        kind: which choice of an algorithm it makes.
        name: as recipes write it.
        function: what runs. Its keyword-only parameters are its configuration; those that default to `need()` are
            services, and ``state`` marks a stateful piece: it takes the state of the last step (``None`` at first) and
            returns ``(value, state)``.
        args: configured arguments.
        level: what one term of an objective reads, or what a correction weighs: a token, a sequence or a group.
        reads: statistics beyond log-probs that the piece needs (``entropy``, ``square``, ``mean_logp``), ``ratio``
            where an objective uses an importance ratio, ``ref`` where it uses the reference policy, ``top`` where it
            compares the most likely tokens of two policies (their number is its argument ``top``).
        idle: an objective's terms and their gradients are exactly 0 where the advantage is (a group's where those of
            all its samples are), so that such samples need no pass.
        masks: a correction's weights are 0 or 1: it leaves out and repairs nothing, so it goes with a ratio to mu.
        check: takes all arguments by name and raises a `UsageError` where they do not fit together.
        fits: whether the piece goes with the other choices of an algorithm.

    Raises:
        UsageError: it reads something that nobody has.
    """

    kind: Kind
    name: str
    function: Callable[..., Any]
    args: Mapping[str, Any] = field(default_factory=dict)
    level: Level = "token"
    reads: frozenset[str] = frozenset()
    idle: bool = False
    masks: bool = False
    check: Callable[..., None] | None = None
    fits: Fits | None = None

    def __post_init__(self) -> None:
        for read in self.reads:
            if read not in POLICIES | STATISTICS:
                known = POLICIES | STATISTICS
                raise UsageError(f"{self!r} reads {read!r}{did_you_mean(read, known)}; there are {sorted(known)}")

    def __call__(self, *inputs: Any, **args: Any) -> Any:
        return self.function(*inputs, **{**self.args, **args})

    def __repr__(self) -> str:
        listed = ", ".join(f"{key}={value!r}" for key, value in self.args.items())
        return f"{self.kind}.{self.name}({listed})"

    def configure(self, **args: Any) -> Piece:
        """The same piece with *args* configured.

        Raises:
            BindingError: an argument that the function does not take.
            UsageError: arguments that do not fit together.
        """
        known = self.parameters
        for key in args:
            if key not in known:
                raise BindingError(f"{self.kind}.{self.name} takes no argument {key!r}{did_you_mean(key, known)}")
        if self.check is not None:
            self.check(**{**known, **self.args, **args})
        return dataclasses.replace(self, args={**self.args, **args})

    def with_services(self, services: Mapping[str, Any]) -> Piece:
        """The same piece with the services that it needs, by slot.

        Raises:
            BindingError: a slot is empty.
        """
        needs = self.needs
        for parameter, slot in needs.items():
            if slot not in services:
                raise BindingError(f"{self.kind}.{self.name} needs a service {slot!r} for its {parameter!r}")
        held = {parameter: services[slot] for parameter, slot in needs.items()}
        return dataclasses.replace(self, args={**self.args, **held}) if held else self

    def argument(self, name: str) -> Any:
        """What *name* is configured as, or its default."""
        return self.args[name] if name in self.args else self.parameters[name]

    @functools.cached_property
    def _keywords(self) -> dict[str, inspect.Parameter]:
        parameters = inspect.signature(self.function).parameters.values()
        return {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}

    @property
    def parameters(self) -> dict[str, Any]:
        """Name to default of everything that can be configured."""
        return {k: p.default for k, p in self._keywords.items() if k != "state" and not isinstance(p.default, Need)}

    @property
    def needs(self) -> dict[str, str]:
        """Parameter to slot of every service the piece asks for."""
        return {k: p.default.slot or k for k, p in self._keywords.items() if isinstance(p.default, Need)}

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
"""By kind and name; several where modules that know nothing of one another chose the same name."""


def imported(kind: Kind, name: str) -> Piece:
    """The piece called *name* among those whose modules are imported: core's own, and those of loaded algorithms.

    Raises:
        UnknownNameError: there is none; the nearest name is shown.
        PluginError: several modules chose the name.
    """
    found = _PIECES.get((kind, name.removeprefix(f"{kind}.")), ())
    if not found:
        raise UnknownNameError.of(kind, name, pieces(kind), "`quintain info ALGORITHM` shows the pieces of one")
    if len(found) > 1:
        owners = sorted(piece.origin for piece in found)
        raise PluginError(f"{kind} {name!r} is claimed by {' and by '.join(owners)}; say which: {' or '.join(owners)}")
    return found[0]


def pieces(kind: Kind) -> tuple[str, ...]:
    """Names registered so far for *kind*, sorted."""
    return tuple(sorted(name for held, name in _PIECES if held == kind))


def every_piece() -> tuple[Piece, ...]:
    """All that are imported, by kind and then in the order of their definition."""
    return tuple(piece for kind in KINDS for (held, _), found in _PIECES.items() if held == kind for piece in found)


class Decorator(Protocol):
    """Turns a function into a `Piece` and registers it: ``@objective``, or ``@objective(name="...", ...)``.

    Options are attributes of `Piece`: every kind takes ``name`` (the function's by default), ``check`` and ``fits``.
    """

    @overload
    def __call__(self, function: Callable[..., Any], /) -> Piece: ...
    @overload
    def __call__(
        self,
        *,
        name: str = ...,
        level: Level = ...,
        reads: Collection[str] = ...,
        idle: bool = ...,
        masks: bool = ...,
        check: Callable[..., None] | None = ...,
        fits: Fits | None = ...,
    ) -> Callable[[Callable[..., Any]], Piece]: ...


def _decorator(kind: Kind, doc: str, adapt: Callable[..., Any] | None = None, **defaults: Any) -> Decorator:
    """The decorator of *kind*, which takes the options *defaults* besides those of every kind.

    Args:
        adapt: makes of the decorated function one of the form that the kind has.
    """
    options = {"name", "check", "fits", *defaults}

    def decorate(function: Callable[..., Any] | None = None, /, **given: Any) -> Any:
        for option in given:
            if option not in options:
                raise UsageError(f"@{kind} takes no option {option!r}{did_you_mean(option, options)}")
        if function is None:
            return functools.partial(decorate, **given)
        values = {"name": function.__name__.strip("_"), **defaults, **given}
        values["reads"] = frozenset(values.get("reads", ()))
        piece = Piece(kind=kind, function=adapt(function) if adapt else function, **values)
        object.__setattr__(piece, "__doc__", function.__doc__)
        others = _PIECES.get((kind, piece.name), ())  # a function that is defined again takes its own place
        _PIECES[kind, piece.name] = (*(other for other in others if other.origin != piece.origin), piece)
        return piece

    decorate.__doc__ = doc
    return decorate


def _over_groups(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def over_groups(step: Any, **args: Any) -> list[float]:
        values = [0.0] * len(step.rewards)
        for indices in step.groups:
            of_group = function([step.rewards[i] for i in indices], **args)
            for i, value in zip(indices, of_group, strict=True):
                values[i] = float(value)
        return values

    return over_groups


advantage = _decorator(
    "advantage",
    """``f(step: Step, ...)`` of all groups to one value per sample (a sequence of floats) or per token (a tensor [N]).

    May return ``(values, {"name": number, ...})`` for metrics, which go under ``advantage.`` unless they have a dot of
    their own; where it keeps state, that pair comes first of ``(values, state)``. Option: ``reads``.
    """,
    reads=(),
)
per_group = _decorator(
    "advantage",
    """An advantage in short: ``f(rewards: Sequence[float], ...)`` of one group to as many values.""",
    adapt=_over_groups,
)
objective = _decorator(
    "objective",
    """``f(t: LossInputs, ...)`` to the loss of every term, to be minimised: [N] tokens, [S] sequences or [G] groups, as
    ``level`` says.

    Never reduced: weights come from the aggregation. May return ``(terms, {"clip_low": bool [N], ...})`` for metrics,
    which go under ``objective.`` (the clip shares ``clip_low`` and ``clip_high`` under ``clip.``). Options: ``level``,
    ``reads``, ``idle``.
    """,
    level="token",
    reads=("ratio",),
    idle=False,
)
correction = _decorator(
    "correction",
    """``f(t: LossInputs, ...)`` to a weight [N] (token) or [S] (sequence) that repairs sampling from mu. No gradient
    flows. Options: ``level``, ``reads``, ``masks``.
    """,
    level="token",
    reads=(),
    masks=False,
)
aggregation = _decorator(
    "aggregation",
    """``f(batch: Batch, ...)`` to the weight of one token of each sample. A term weighs as much as its tokens do.""",
)
group_filter = _decorator(
    "group_filter",
    """``f(stats: GroupStats, ...)`` to the reason why a whole group is rejected; ``""`` accepts it.""",
)
optimizer_step = _decorator(
    "optimizer_step",
    """``f(step: OptimizerStep, ...)`` that changes the parameters once, in place of the optimizer. It returns metrics:
    ``loss`` and ``grad_norm`` (before any clip), and what else it has to say.
    """,
)
