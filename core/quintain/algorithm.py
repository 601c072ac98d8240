"""Algorithms as rows of a table: named pieces, a KL term, and the settings a method depends on.

Importing this module needs no torch; the pieces themselves are torch functions and live in `quintain.learning` or in a
plugin::

    @objective
    def cispo(t: Terms, *, cap: float = 5.0) -> Tensor:
        return -t.ratio().clamp(max=cap).detach() * t.advantage * t.logp

    CISPO = GRPO.but(name="cispo", objective=cispo, aggregation="token")
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, overload

from .errors import BindingError, PluginError, UnknownNameError, UsageError, did_you_mean
from .service import Need

Kind = Literal["advantage", "objective", "correction", "aggregation", "admission", "update"]
Level = Literal["token", "sequence", "group"]
Anchor = Literal["mu", "prox"]
KINDS: tuple[Kind, ...] = ("advantage", "objective", "correction", "aggregation", "admission", "update")
POLICIES = frozenset({"ratio", "ref", "top"})
"""What a piece may read that is no statistic of a single forward pass."""
STATISTICS = frozenset({"entropy", "square", "mean_logp"})
"""Statistics of one forward pass that a piece may read besides log-probs."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A named function of one kind, with the arguments it is configured with. Calling it runs it.

    Attributes:
        kind: which choice of a method it makes.
        name: as recipes write it; ``kind.name`` is its entry point.
        function: what runs. Its keyword-only parameters are its configuration; those that default to `need()` are
            services, and ``state`` marks a stateful piece: it takes the state of the last step (``None`` at first) and
            returns ``(value, state)``.
        args: configured arguments.
        level: what one term of an objective reads, or what a correction weighs: a token, a sequence or a group.
        reads: statistics beyond log-probs that the piece needs (``entropy``, ``square``, ``mean_logp``), ``ratio``
            where an objective uses an importance ratio, ``ref`` where it uses the reference policy, ``top`` where it
            compares the most likely tokens of two policies (their number is its argument ``top``).
        idle: an objective's terms and their gradients are exactly 0 where the advantage is (a group's where those of
            all its members are), so that such samples need no pass.
        masks: a correction's weights are 0 or 1: it leaves out and repairs nothing, so it goes with a ratio to mu.
        check: takes all arguments by name and raises a `UsageError` where they do not fit together.
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

    def __call__(self, *inputs: Any, **args: Any) -> Any:
        return self.function(*inputs, **{**self.args, **args})

    def __repr__(self) -> str:
        listed = ", ".join(f"{key}={value!r}" for key, value in self.args.items())
        return f"{self.kind}.{self.name}({listed})"

    def using(self, **args: Any) -> Piece:
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

    def served(self, services: Mapping[str, Any]) -> Piece:
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
    def stateful(self) -> bool:
        return "state" in self._keywords

    @property
    def asynchronous(self) -> bool:
        return inspect.iscoroutinefunction(self.function)


_PIECES: dict[tuple[Kind, str], tuple[Piece, ...]] = {}
"""By kind and name; several where modules that know nothing of one another chose the same name."""


def register(piece: Piece) -> Piece:
    """Add *piece* to those of its kind. A function that is defined again takes its own place."""
    key = (piece.kind, piece.name)
    _PIECES[key] = (*(held for held in _PIECES.get(key, ()) if _origin(held) != _origin(piece)), piece)
    return piece


def _origin(piece: Piece) -> str:
    return f"{piece.function.__module__}:{piece.function.__qualname__}"


def find(kind: Kind, name: str) -> Piece:
    """The piece called *name*: one that is imported, else the entry point ``kind.name``, imported now.

    Args:
        name: ``cispo``; ``distribution/cispo`` or ``distribution/objective.cispo`` where two installed ones share a
            name; ``module:attribute`` or ``path/to/file.py:attribute`` for code of your own.

    Raises:
        UnknownNameError: there is none; the nearest name is shown.
        PluginError: it cannot be imported, is no piece of this kind, or the name is claimed twice.
    """
    from .plugins.registry import current

    bare = name.removeprefix(f"{kind}.")
    held = () if "/" in name or ":" in name else _PIECES.get((kind, bare), ())
    if not held:
        return _installed(kind, name)
    installed = current().matching(f"{kind}.{bare}", "algorithm")
    owners = {_origin(piece): _origin(piece) for piece in held} | {c.target: c.id for c in installed}
    if len(owners) > 1:
        raise PluginError(
            f"{kind} {bare!r} is claimed by {' and by '.join(sorted(owners.values()))}; say which: "
            "distribution/name, or module:attribute"
        )
    return held[0]


def _installed(kind: Kind, name: str) -> Piece:
    from .plugins.registry import current

    registry = current()
    owner, slash, bare = name.rpartition("/")
    title = name if ":" in name else f"{owner}{slash}{kind}.{bare.removeprefix(f'{kind}.')}"
    if ":" not in name and not registry.matching(title, "algorithm"):
        declared = [c for c in registry.components("algorithm") if c.name.startswith(f"{kind}.")]
        known = {*pieces(kind), *((c.id if slash else c.name.removeprefix(f"{kind}.")) for c in declared)}
        raise UnknownNameError.of(kind, name, known, hint="`quintain list algorithms --all` shows the installed ones")
    component = registry.find("algorithm", title)
    piece = registry.resolve(component)
    if not isinstance(piece, Piece) or piece.kind != kind:
        found = f"a piece of the kind {piece.kind}" if isinstance(piece, Piece) else f"a {type(piece).__name__}"
        raise PluginError(f"{component} is {found}; expected a function decorated with @{kind}")
    return piece


def pieces(kind: Kind) -> tuple[str, ...]:
    """Names registered so far for *kind*, sorted."""
    return tuple(sorted(name for held, name in _PIECES if held == kind))


def _decorator(
    kind: Kind,
    function: Callable[..., Any] | None,
    name: str,
    level: Level,
    reads: Sequence[str],
    idle: bool = False,
    masks: bool = False,
    check: Callable[..., None] | None = None,
) -> Any:
    def wrap(function: Callable[..., Any]) -> Piece:
        title = name or function.__name__.strip("_")
        for read in reads:
            if read not in POLICIES | STATISTICS:
                known = POLICIES | STATISTICS
                raise PluginError(
                    f"{kind} {title!r} reads {read!r}{did_you_mean(read, known)}; there are {sorted(known)}"
                )
        piece = Piece(
            kind=kind,
            name=title,
            function=function,
            level=level,
            reads=frozenset(reads),
            idle=idle,
            masks=masks,
            check=check,
        )
        object.__setattr__(piece, "__doc__", function.__doc__)
        return register(piece)

    return wrap if function is None else wrap(function)


Wrap = Callable[[Callable[..., Any]], Piece]


@overload
def advantage(function: Callable[..., Any], /) -> Piece: ...
@overload
def advantage(*, name: str = ..., reads: Sequence[str] = ...) -> Wrap: ...
def advantage(function: Callable[..., Any] | None = None, /, *, name: str = "", reads: Sequence[str] = ()) -> Any:
    """``f(step: Step, ...)`` to one value per sample (a sequence of floats) or per token (a tensor [N]). Sees all
    groups. May return ``(values, {"name": number, ...})`` for metrics, which go under ``advantage.`` unless they
    have a dot of their own; where it keeps state, that pair comes first of ``(values, state)``.
    """
    return _decorator("advantage", function, name, "sequence", reads)


@overload
def per_group(function: Callable[..., Any], /) -> Piece: ...
@overload
def per_group(*, name: str = ...) -> Wrap: ...
def per_group(function: Callable[..., Any] | None = None, /, *, name: str = "") -> Any:
    """Sugar for an advantage: ``f(rewards: Sequence[float], ...)`` of one group to as many values."""

    def wrap(function: Callable[..., Any]) -> Piece:
        @functools.wraps(function)
        def over_groups(step: Any, **args: Any) -> list[float]:
            values = [0.0] * len(step.rewards)
            for members in step.groups:
                found = function([step.rewards[i] for i in members], **args)
                for i, value in zip(members, found, strict=True):
                    values[i] = float(value)
            return values

        return advantage(over_groups) if not name else advantage(name=name)(over_groups)

    return wrap if function is None else wrap(function)


@overload
def objective(function: Callable[..., Any], /) -> Piece: ...
@overload
def objective(
    *,
    name: str = ...,
    level: Level = ...,
    reads: Sequence[str] = ...,
    idle: bool = ...,
    check: Callable[..., None] | None = ...,
) -> Wrap: ...
def objective(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str = "",
    level: Level = "token",
    reads: Sequence[str] = ("ratio",),
    idle: bool = False,
    check: Callable[..., None] | None = None,
) -> Any:
    """``f(t: Terms, ...)`` to the loss of every term, to be minimised: [N] tokens, [S] sequences or [G] groups, as
    *level* says.

    Never reduced: weights come from the aggregation. *idle* promises terms and gradients of exactly 0 where the
        advantage is 0. May return ``(terms, {"clip_low": bool [N], ...})`` for metrics, which go
        under ``objective.`` (the clip shares ``clip_low`` and ``clip_high`` under ``clip.``). *check* takes all
        arguments by name and refuses, when the recipe is read, those that do not fit together.
    """
    return _decorator("objective", function, name, level, reads, idle, check=check)


@overload
def correction(function: Callable[..., Any], /) -> Piece: ...
@overload
def correction(*, name: str = ..., level: Level = ..., reads: Sequence[str] = ..., masks: bool = ...) -> Wrap: ...
def correction(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str = "",
    level: Level = "token",
    reads: Sequence[str] = (),
    masks: bool = False,
) -> Any:
    """``f(t: Terms, ...)`` to a weight [N] (token) or [S] (sequence) that repairs sampling from mu; 0 masks. No
    gradient flows. *masks* promises weights of 0 or 1.
    """
    return _decorator("correction", function, name, level, reads, masks=masks)


@overload
def aggregation(function: Callable[..., Any], /) -> Piece: ...
@overload
def aggregation(*, name: str = ...) -> Wrap: ...
def aggregation(function: Callable[..., Any] | None = None, /, *, name: str = "") -> Any:
    """``f(batch: Batch, ...)`` to the weight of one token of each sample. A term weighs what its tokens weigh
    together.
    """
    return _decorator("aggregation", function, name, "sequence", ())


@overload
def admission(function: Callable[..., Any], /) -> Piece: ...
@overload
def admission(*, name: str = ...) -> Wrap: ...
def admission(function: Callable[..., Any] | None = None, /, *, name: str = "") -> Any:
    """``f(candidate: Candidate, ...)`` to the reason why a whole group is refused, ``""`` where it is admitted."""
    return _decorator("admission", function, name, "group", ())


@overload
def update(function: Callable[..., Any], /) -> Piece: ...
@overload
def update(*, name: str = ...) -> Wrap: ...
def update(function: Callable[..., Any] | None = None, /, *, name: str = "") -> Any:
    """``f(problem: Problem, ...)`` that changes the parameters once, in the place of the optimizer, and returns
    metrics: ``loss`` and ``grad_norm`` (before any clip), and what else it has to say.
    """
    return _decorator("update", function, name, "token", ())


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A complete group as admission sees it: valid members only.

    Attributes:
        verdicts: reward without shaping, per valid member.
        totals: verdict plus shaping, per valid member.
        requested: members asked for, failed ones included.
    """

    verdicts: tuple[float, ...]
    totals: tuple[float, ...]
    requested: int


@dataclass(frozen=True, kw_only=True, slots=True)
class KL:
    """Penalty for leaving ref, in nats per token, with d = log theta - log ref (Schulman's estimators).

    k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d. On-policy, as a loss: k1 has no gradient in expectation (refused), k2
    has the gradient of KL(theta || ref) at each prefix, k3 that of the forward KL(ref || theta) there (warned about).
    With ``score_factor`` the term is multiplied by exp(log theta - stopgrad log theta), so that its gradient is that of
    its own expectation: of KL(theta || ref) at each prefix for k1 and k3, of E[d^2] / 2 for k2. In the reward the sum
    over a sample's tokens is subtracted before baselines; with k1 that is the KL of whole sequences, exactly; with k3
    the forward KL at each prefix is missing from its gradient, with k2 that of KL(theta || ref) from the one of E[d^2]
    / 2.

    Attributes:
        where: ``none``, ``reward`` or ``loss``.
        estimator: ``k1``, ``k2`` or ``k3``.
        coefficient: 0 switches it off; no reference model is kept then.
        score_factor: only in the loss.
    """

    where: Literal["none", "reward", "loss"] = "none"
    estimator: Literal["k1", "k2", "k3"] = "k1"
    coefficient: float = 0.0
    score_factor: bool = False

    def __post_init__(self) -> None:
        if self.where not in ("none", "reward", "loss") or self.estimator not in ("k1", "k2", "k3"):
            raise UsageError(
                f"kl is {self.estimator!r} in {self.where!r}; expected k1, k2 or k3 in none, reward or loss"
            )
        if not 0 <= self.coefficient < float("inf"):
            raise UsageError(f"kl.coefficient is {self.coefficient}; expected a finite number that is not negative")
        if self.where == "reward" and self.score_factor:
            raise UsageError(
                "kl.score_factor is for the loss: in the reward the KL is a number without a gradient; leave it out "
                "or set where = 'loss'"
            )
        if self.active and self.where == "loss" and self.estimator == "k1" and not self.score_factor:
            raise UsageError(
                "k1 in the loss has zero gradient in expectation; use k2 in the loss, k1 in the reward, "
                "or score_factor = true"
            )

    @property
    def active(self) -> bool:
        return self.where != "none" and self.coefficient > 0


@dataclass(frozen=True, kw_only=True)
class Interrupt:
    """Forced interruption: a turn that still thinks after a number of tokens hears *text* and goes on from there.

    The number is drawn per turn between *low* and *high* (ScaleRL, 2510.13786, interrupts at 10,000 to 12,000); equal
    bounds are a thinking budget (Qwen3, 2505.09388, section 4.3). The inserted tokens are context: they never train.

    Attributes:
        low, high: new tokens of the turn before it is interrupted, both included.
        text: what is put into the policy's mouth.
        until: a turn that has said this is left alone; empty interrupts every turn of that length.
    """

    low: int
    high: int
    text: str = "\n\nOkay, time is up. Let me stop thinking and give the answer now.\n</think>\n\n"
    until: str = "</think>"

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high:
            raise UsageError(f"interrupt: low {self.low}, high {self.high}; expected 1 <= low <= high")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which tasks are tried and how a batch is filled: what a method needs besides its pieces.

    Attributes:
        refill: what follows a refused group. ``none``: the batch is smaller (filtering). ``rounds``: missing groups are
            tried together once all have ended, accepted ones are kept (dynamic sampling; DAPO, 2503.14476). ``active``:
            another task starts as soon as a group is refused (active sampling; Olmo 3, 2512.13961). Both give the same
            batch: the first admitted groups in the order of tasks, never of finishing.
        attempts: groups tried per step at most, in batches; then the step learns from what there is.
        order: ``shuffled``, ``level`` (easy to hard, by `Task.level`, once over the run; a smaller split again and
            again), or ``failures`` (in proportion to 1 - success rate so far; Kimi k1.5, 2501.12599, section 2.3.4).
        retire: a task whose success rate over the run reached this is not drawn again (no-positive-resampling; ScaleRL,
            2510.13786, with 0.9). Once all did, they come back and their rates are counted anew; the run says so.
        probe: samples per task of the starting policy, before the first step; 0 skips it. Tasks whose success rate is
            outside *keep* are left out (difficulty filter by best-of-n), and so is what was not probed: beyond as many
            tasks as the run will try, 4,096 at most.
        keep: lowest and highest success rate in *probe* samples that stays, both included.
        lag: published versions that the sampler is behind (a synchronous run's model of asynchrony).
        interrupt: forced interruption, or ``None``.
    """

    refill: Literal["none", "rounds", "active"] = "none"
    attempts: int = 10
    order: Literal["shuffled", "level", "failures"] = "shuffled"
    retire: float | None = None
    probe: int = 0
    keep: tuple[float, float] = (0.0, 1.0)
    lag: int = 0
    interrupt: Interrupt | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "keep", tuple(self.keep))
        if isinstance(self.interrupt, Mapping):
            object.__setattr__(self, "interrupt", _made(Interrupt, None, self.interrupt, "plan.interrupt"))
        for name, allowed in (("refill", ("none", "rounds", "active")), ("order", ("shuffled", "level", "failures"))):
            if getattr(self, name) not in allowed:
                raise UsageError(f"plan.{name} is {getattr(self, name)!r}; expected {', '.join(allowed)}")
        for name, least in (("attempts", 1), ("probe", 0), ("lag", 0)):
            if type(getattr(self, name)) is not int or getattr(self, name) < least:
                raise UsageError(f"plan.{name} is {getattr(self, name)!r}; expected a whole number from {least}")
        if self.retire is not None and not 0 < self.retire <= 1:
            raise UsageError(f"plan.retire is {self.retire!r}; expected a success rate above 0, at most 1")
        if len(self.keep) != 2 or not 0 <= self.keep[0] <= self.keep[1] <= 1:
            raise UsageError(f"plan.keep is {self.keep!r}; expected two success rates, the lower first")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One method: its pieces, a KL term and the settings they depend on. `but` makes variants.

    Attributes:
        name: as users type it.
        summary: one line for lists.
        source: paper and equation.
        advantage, objective, correction, aggregation, admission: the pieces.
        update: what changes the parameters; ``None`` is the learner's optimizer.
        anchor: the policy below the ratio theta / anchor: ``prox`` (the learner when the batch was taken up) or ``mu``
            (the sampler).
        kl: penalty for leaving ref.
        epochs: passes over a batch.
        minibatches: optimizer steps per pass, each on whole groups.
        mask_truncated: samples that hit a limit count in baselines, then leave: neither terms nor denominators see
            them (overlong filtering; DAPO, 2503.14476, section 3.4).
        overlong: soft overlong punishment over this last share of the configured maximum length: the total falls
            linearly from 0 where the share begins to -1 at the maximum (DAPO, 2503.14476, equation 13, with 4,096 of
            20,480); the verdict does not, so admission sees none of it. Of several turns the longest counts. 0: off.
        reset_optimizer: forget moments before every batch (mirror descent; Kimi k1.5, 2501.12599, section 2.3.2).
        float32_head: the last layer's logits are float32 also where the rest is not.
        prune: sampler and scorer alike see tokens of at least this share of the likeliest one's probability, and the
            sampled one (dynamic vocabulary pruning, 2512.23087); 0 sees all.
        plan: which tasks are tried and how a batch is filled.
        services: component by slot of what the pieces need, where the recipe does not say.
        published: how the paper sampled, for instance ``{"group": 8, "temperature": 1.0}``: shown by `quintain info`,
            read by nothing. What a run does stands in its recipe.
    """

    name: str
    summary: str
    source: str
    advantage: Piece
    objective: Piece
    correction: Piece
    aggregation: Piece
    admission: Piece
    anchor: Anchor = "prox"
    kl: KL = KL()
    update: Piece | None = None
    epochs: int = 1
    minibatches: int = 1
    mask_truncated: bool = False
    overlong: float = 0.0
    reset_optimizer: bool = False
    float32_head: bool = False
    prune: float = 0.0
    plan: Plan = Plan()
    services: Mapping[str, str] = field(default_factory=dict)
    published: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for kind in KINDS:
            piece = getattr(self, kind)
            if kind == "update" and piece is None:
                continue
            if not isinstance(piece, Piece) or piece.kind != kind:
                raise UsageError(
                    f"algorithm {self.name!r}: {kind} is {piece!r}; expected a function decorated with @{kind}"
                )
            if piece.stateful and kind != "advantage":
                raise UsageError(f"algorithm {self.name!r}: {piece!r} keeps state; in this version only advantages may")
            if piece.asynchronous and kind != "advantage":
                raise UsageError(f"algorithm {self.name!r}: {piece!r} is a coroutine; only advantages are awaited")
            if "top" in piece.reads and kind != "objective":
                raise UsageError(f"algorithm {self.name!r}: {piece!r} reads 'top', which only objectives see")
        for key, kind_of in (("kl", KL), ("plan", Plan)):
            if not isinstance(getattr(self, key), kind_of):
                found = getattr(self, key)
                raise UsageError(f"algorithm {self.name!r}: {key} is {found!r}; expected a {kind_of.__name__}")
        for key in ("epochs", "minibatches"):
            if type(getattr(self, key)) is not int or getattr(self, key) < 1:
                raise UsageError(
                    f"algorithm {self.name!r}: {key} is {getattr(self, key)!r}; expected a whole number of at least 1"
                )
        if not 0 <= self.overlong < 1:
            raise UsageError(
                f"algorithm {self.name!r}: overlong is {self.overlong}; expected a share of the maximum length, from 0 "
                "to below 1"
            )
        if not 0 <= self.prune < 1:
            raise UsageError(
                f"algorithm {self.name!r}: prune is {self.prune}; expected a share of the likeliest token's "
                "probability, from 0 to below 1"
            )
        if self.anchor not in ("mu", "prox"):
            raise UsageError(f"algorithm {self.name!r}: anchor is {self.anchor!r}; expected mu or prox")
        self._refuse_bad_pairs()

    def _refuse_bad_pairs(self) -> None:
        corrected = self.correction.name != "none"
        if corrected and not self.correction.masks and self.anchor == "mu" and "ratio" in self.objective.reads:
            raise UsageError(
                f"algorithm {self.name!r}: a ratio to mu already holds the mismatch prox / mu that {self.correction!r} "
                "repairs; set anchor = 'prox' or correction = 'none'"
            )
        if "top" in self.objective.reads and self.anchor == "mu":
            raise UsageError(
                f"algorithm {self.name!r}: {self.objective!r} compares theta with prox's likeliest tokens, since "
                "samplers report the sampled token alone; set anchor = 'prox'"
            )
        if self.update is not None and self.updates > 1 and "ratio" not in self.objective.reads:
            raise UsageError(
                f"algorithm {self.name!r}: {self.update!r} searches along a surrogate, and {self.objective!r} is none "
                "away from prox; take an objective with a ratio"
            )
        fits = {"token": ("token", "sequence"), "sequence": ("sequence",), "group": ()}
        if corrected and self.correction.level not in fits[self.objective.level]:
            raise UsageError(
                f"algorithm {self.name!r}: {self.correction!r} weighs {self.correction.level}s but {self.objective!r} "
                f"has one term per {self.objective.level}; a correction fits terms of its own size or smaller"
            )

    def notes(self) -> tuple[str, ...]:
        """What a careful reader should know about this combination; shown once at the start of a run."""
        notes = []
        if self.kl.active and self.kl.where == "loss" and self.kl.estimator == "k3" and not self.kl.score_factor:
            notes.append("k3 in the loss follows the gradient of the forward KL(ref || theta), not of KL(theta || ref)")
        if self.epochs * self.minibatches > 1 and "ratio" not in self.objective.reads:
            notes.append(
                f"{self.objective!r} has no ratio, so all but the first of several updates per batch are off-policy"
            )
        return tuple(notes)

    @property
    def updates(self) -> int:
        """Optimizer steps per batch."""
        return self.epochs * self.minibatches

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """Those that the row has."""
        return tuple(piece for kind in KINDS if (piece := getattr(self, kind)) is not None)

    @property
    def reads(self) -> frozenset[str]:
        """Statistics that some piece asks for."""
        return frozenset().union(*(piece.reads for piece in self.pieces)) - POLICIES

    @property
    def uses_reference(self) -> bool:
        """Whether log-probs under ref are wanted."""
        return self.kl.active or any("ref" in piece.reads for piece in self.pieces)

    @property
    def slots(self) -> frozenset[str]:
        """Service slots that the pieces need."""
        return frozenset(slot for piece in self.pieces for slot in piece.needs.values())

    def served(self, services: Mapping[str, Any]) -> Row:
        """The row with the services that its pieces need.

        Raises:
            BindingError: a slot is empty.
        """
        held = {piece.kind: piece.served(services) for piece in self.pieces}
        return dataclasses.replace(self, **held)  # type: ignore[arg-type]

    def but(self, **changes: Any) -> Row:
        """A variant. A piece is given as itself, by name, or as ``{"use": name, **args}`` (without ``use``: arguments
        of the present one).

        Raises:
            UsageError: an unknown setting, piece or argument, or a pair that does not combine.
        """
        known = {f.name for f in dataclasses.fields(self)} - {"published"}
        for key in changes:
            if key not in known:
                raise UsageError(f"an algorithm has no setting {key!r}{did_you_mean(key, known)}")
        resolved = {key: self._resolve(key, value) for key, value in changes.items()}
        if changes.get("name", self.name) != self.name:  # another method: no paper is behind it until it names one
            resolved = {"published": {}, "source": "", "summary": f"{self.name}, changed"} | resolved
        return dataclasses.replace(self, **resolved)

    def _resolve(self, key: str, value: Any) -> Any:
        if key in ("kl", "plan") and isinstance(value, Mapping):
            return _made(type(getattr(self, key)), getattr(self, key), value, key)
        kind = next((k for k in KINDS if k == key), None)
        if kind is None or isinstance(value, Piece) or value is None:
            return value
        if isinstance(value, str):
            return find(kind, value)
        args = dict(value)
        base = find(kind, args.pop("use")) if "use" in args else getattr(self, kind)
        if base is None:
            raise UsageError(f"algorithm {self.name!r} has no {kind} to configure; name one with `use`")
        return base.using(**args)


def _made(kind: type[Any], base: Any, changes: Mapping[str, Any], where: str) -> Any:
    """A dataclass of settings, from *base* or its defaults, with *changes*."""
    known = {f.name for f in dataclasses.fields(kind)}
    for key in changes:
        if key not in known:
            raise UsageError(f"{where} has no setting {key!r}{did_you_mean(key, known)}")
    inner = changes.get("interrupt")
    if isinstance(inner, Mapping) and getattr(base, "interrupt", None) is not None:
        changes = {**changes, "interrupt": _made(Interrupt, base.interrupt, inner, f"{where}.interrupt")}
    try:
        return dataclasses.replace(base, **changes) if base is not None else kind(**changes)
    except TypeError as e:
        raise UsageError(f"{where}: {e}") from e
