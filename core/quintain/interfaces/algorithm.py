"""Algorithms: named pieces, a KL term, and the settings an algorithm depends on.

Importing this module needs no torch::

    @objective
    def cispo(t: LossInputs, *, cap: float = 5.0) -> Tensor:
        return -t.ratio().clamp(max=cap).detach() * t.advantage * t.logp

    CISPO = GRPO.replace(name="cispo", objective=cispo, aggregation="token")
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..errors import BindingError, UsageError
from ..types.sampling import ThinkingBudget
from .pieces import KINDS, POLICIES, Kind, Piece, imported
from .sampling_plan import SamplingPlan, known_settings

RatioTo = Literal["mu", "prox"]


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupStats:
    """The valid samples of a complete group, for the group filter.

    Attributes:
        outcomes: reward without shaping, per valid sample.
        totals: outcome plus shaping plus the overlong punishment, per valid sample; a KL term in
            the reward is not known yet.
        requested: samples requested, failed ones included.
    """

    outcomes: tuple[float, ...]
    totals: tuple[float, ...]
    requested: int


@dataclass(frozen=True, kw_only=True, slots=True)
class KL:
    """Penalty for leaving ref, in nats per token, with d = log theta - log ref (Schulman's
    estimators).

    k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d. On-policy, as a loss: k1 has no gradient in
    expectation (refused), k2 has the gradient of KL(theta || ref) at each prefix, k3 that of the
    forward KL(ref || theta) there (warned about). With ``score_factor`` the term is multiplied by
    exp(log theta - stopgrad log theta), so that its gradient is that of its own expectation: of
    KL(theta || ref) at each prefix for k1 and k3, of E[d^2] / 2 for k2. In the reward the sum over
    a sample's tokens is subtracted before baselines; with k1 this is exactly the KL of whole
    sequences; with k3 the forward KL at each prefix is missing from its gradient, with k2 that of
    KL(theta || ref).

    Attributes:
        where: ``none``, ``reward`` or ``loss``.
        estimator: ``k1``, ``k2`` or ``k3``.
        coefficient: 0 switches the term off; no reference model is loaded then.
        score_factor: only in the loss.
    """

    where: Literal["none", "reward", "loss"] = "none"
    estimator: Literal["k1", "k2", "k3"] = "k1"
    coefficient: float = 0.0
    score_factor: bool = False

    def __post_init__(self) -> None:
        if self.where not in ("none", "reward", "loss") or self.estimator not in ("k1", "k2", "k3"):
            raise UsageError(
                f"kl is {self.estimator!r} in {self.where!r}; expected k1, k2 or k3 in none, "
                f"reward or loss"
            )
        if not 0 <= self.coefficient < float("inf"):
            raise UsageError(
                f"kl.coefficient is {self.coefficient}; expected a finite number that is not "
                f"negative"
            )
        if self.where == "reward" and self.score_factor:
            raise UsageError(
                "kl.score_factor is for the loss: in the reward the KL is a number without a "
                "gradient; leave it out or set where = 'loss'"
            )
        if self.in_loss and self.estimator == "k1" and not self.score_factor:
            raise UsageError(
                "k1 in the loss has zero gradient in expectation; use k2 in the loss, k1 in the "
                "reward, or score_factor = true"
            )

    @property
    def active(self) -> bool:
        return self.where != "none" and self.coefficient > 0

    @property
    def in_reward(self) -> bool:
        return self.active and self.where == "reward"

    @property
    def in_loss(self) -> bool:
        return self.active and self.where == "loss"


TABLES: dict[str, type[Any]] = {"kl": KL, "plan": SamplingPlan, "thinking_budget": ThinkingBudget}
"""Settings that are tables of settings."""
Find = Callable[[Kind, str], Piece]
Check = Callable[[Any, Mapping[str, Any], str], Mapping[str, Any]]
"""Checks the plain values of one table of settings and returns them. Takes the settings to change
(an algorithm, a table of `TABLES` or its class, a piece), the values, and the table's key (``""``,
``plan``, ``objective.ppo_clip``).
"""


def overlong(length: int, longest: int | None, share: float) -> float:
    """Return the soft overlong punishment of *length* tokens (DAPO, 2503.14476, equation 13): 0 up
    to (1 - share) L tokens, then linearly down to -1 at L = *longest* and beyond.

    Raises:
        UsageError: no maximum is configured.
    """
    if not share:
        return 0.0
    if not longest:
        raise UsageError(
            "overlong punishment is a share of the maximum of new tokens: set sampling.max_tokens"
        )
    buffer = share * longest
    return -min(1.0, max(0.0, (length - (longest - buffer)) / buffer))


def _changed_fields(
    settings: Any, changes: Mapping[str, Any], where: str, check: Check
) -> dict[str, Any]:
    """Return the new values of the fields of *settings* that *changes* sets; a nested table changes
    the present one.
    """
    tables = {
        key: value for key, value in changes.items() if key in TABLES and isinstance(value, Mapping)
    }
    fields = dict(
        check(settings, {key: value for key, value in changes.items() if key not in tables}, where)
    )
    for key, value in tables.items():
        place = f"{where}.{key}" if where else key
        present = getattr(settings, key, None)
        inner = _changed_fields(present or TABLES[key], value, place, check)
        try:
            fields[key] = dataclasses.replace(present, **inner) if present else TABLES[key](**inner)
        except TypeError as e:
            raise UsageError(f"{place}: {e}") from e
    return fields


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """One algorithm: its pieces, a KL term and their settings. `replace` makes variants.

    Attributes:
        source: paper and equation.
        advantage, objective, correction, aggregation, group_filter: the pieces.
        optimizer_step: replaces the learner's optimizer; ``None`` keeps it.
        ratio_to: the denominator of the importance ratio: ``prox`` (the learner's policy at the
            start of the update) or ``mu`` (the sampler's). Under a schedule with staleness a run
            takes ``mu`` where the recipe says nothing (`quintain.recipe.resolve`).
        kl: penalty for leaving ref.
        epochs: passes over a batch.
        minibatches: optimizer steps per pass, each on whole groups.
        mask_truncated: samples that reached a limit count in baselines but in neither the terms nor
            the denominators of the loss (overlong filtering; DAPO, 2503.14476, section 3.4).
        overlong: soft overlong punishment of the longest turn over this last share of the maximum
            length: the total falls linearly from 0 to -1 (DAPO, 2503.14476, equation 13, 4,096 of
            20,480), the outcome is unchanged. Where the turns of a sample are not known, all of its
            tokens are one turn.
        reset_optimizer: reset moments before every batch (mirror descent; Kimi k1.5, 2501.12599,
            section 2.3.2).
        float32_head: the learner computes logits in float32; the sampler does so if its ``dtype``
            is float32.
        prune: sampler and scorer exclude tokens below this share of the most likely token's
            probability, except the sampled one (dynamic vocabulary pruning, 2512.23087); 0 excludes
            none.
        plan: which tasks are sampled and how a batch is filled.
        services: default component by slot for the services that the pieces need.
        published: how the paper sampled, ``{"group": 8, "temperature": 1.0}``; only shown by
            `quintain info`.
    """

    name: str
    summary: str
    source: str
    advantage: Piece
    objective: Piece
    correction: Piece
    aggregation: Piece
    group_filter: Piece
    ratio_to: RatioTo = "prox"
    kl: KL = KL()
    optimizer_step: Piece | None = None
    epochs: int = 1
    minibatches: int = 1
    mask_truncated: bool = False
    overlong: float = 0.0
    reset_optimizer: bool = False
    float32_head: bool = False
    prune: float = 0.0
    plan: SamplingPlan = field(default_factory=SamplingPlan)
    services: Mapping[str, str] = field(default_factory=dict)
    published: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for kind in KINDS:
            piece = getattr(self, kind)
            if kind == "optimizer_step" and piece is None:
                continue
            if not isinstance(piece, Piece) or piece.kind != kind:
                raise self._rejection(
                    f"{kind} is {piece!r}; expected a function decorated with @{kind}"
                )
            if piece.stateful and kind != "advantage":
                raise self._rejection(f"{piece!r} keeps state; in this version only advantages may")
            if piece.asynchronous and kind != "advantage":
                raise self._rejection(f"{piece!r} is a coroutine; only advantages are awaited")
            if "top" in piece.reads and kind != "objective":
                raise self._rejection(f"{piece!r} reads 'top', which only objectives see")
        for key in ("kl", "plan"):
            if not isinstance(getattr(self, key), TABLES[key]):
                raise self._rejection(
                    f"{key} is {getattr(self, key)!r}; expected a {TABLES[key].__name__}"
                )
        for key in ("epochs", "minibatches"):
            if type(getattr(self, key)) is not int or getattr(self, key) < 1:
                raise self._rejection(
                    f"{key} is {getattr(self, key)!r}; expected a whole number of at least 1"
                )
        for key, accepted, expected in (
            ("overlong", 0 <= self.overlong < 1, "a share of the maximum length from 0 to below 1"),
            ("prune", 0 <= self.prune < 1, "a share of the top probability, from 0 to below 1"),
            ("ratio_to", self.ratio_to in ("mu", "prox"), "mu or prox"),
        ):
            if not accepted:
                raise self._rejection(f"{key} is {getattr(self, key)!r}; expected {expected}")
        if self.reweighted and self.ratio_to == "mu" and self.has_ratio:
            raise self._rejection(
                f"a ratio to mu already holds the mismatch prox / mu that {self.correction!r} "
                "repairs; set ratio_to = 'prox' or correction = 'none'"
            )
        smaller = {"token": ("token", "sequence"), "sequence": ("sequence",), "group": ()}[
            self.objective.level
        ]
        if self.corrected and self.correction.level not in smaller:
            raise self._rejection(
                f"{self.correction!r} weighs {self.correction.level}s but {self.objective!r} has "
                f"one term per {self.objective.level}; a correction fits terms of its own size or "
                "smaller"
            )
        if self.optimizer_step is not None and self.updates > 1 and not self.has_ratio:
            raise self._rejection(
                f"{self.optimizer_step!r} searches along a surrogate, and {self.objective!r} is "
                "none away from prox; take an objective with a ratio"
            )
        self._remarks()

    def _rejection(self, reason: str) -> UsageError:
        return UsageError(f"algorithm {self.name!r}: {reason}")

    def _remarks(self) -> list[str]:
        """Return the pieces' remarks on this combination; raises the `UsageError` of one that does
        not fit it.
        """
        return [
            remark
            for piece in self.pieces
            if piece.fits is not None and (remark := piece.fits(self))
        ]

    def notes(self) -> tuple[str, ...]:
        """Return remarks on a combination that runs but is easily misread; shown once at the start
        of a run.
        """
        notes = []
        if self.kl.in_loss and self.kl.estimator == "k3" and not self.kl.score_factor:
            notes.append(
                "k3 in the loss follows the gradient of the forward KL(ref || theta), not of "
                "KL(theta || ref)"
            )
        if self.updates > 1 and not self.has_ratio:
            notes.append(
                f"{self.objective!r} has no ratio, so all but the first of several updates per "
                f"batch are off-policy"
            )
        if self.plan.staleness and self.ignores_staleness:
            notes.append(
                f"the sampler is {self.plan.staleness} versions behind and nothing knows it: set "
                "ratio_to = 'mu', with an objective that has a ratio"
            )
        return (*notes, *self._remarks())

    @property
    def corrected(self) -> bool:
        """Whether a correction weights or masks samples."""
        return self.correction.name != "none"

    @property
    def reweighted(self) -> bool:
        """Whether a correction weights samples, so that the loss knows how far they are from the
        learner.
        """
        return self.corrected and not self.correction.masks

    @property
    def ignores_staleness(self) -> bool:
        """Whether the loss takes tokens of older weights for the learner's own.

        A ratio to mu or the weights of a correction know their age.
        """
        if self.has_ratio and self.ratio_to == "mu":
            return False
        return not (self.reweighted or self.takes_any_samples)

    @property
    def takes_any_samples(self) -> bool:
        """Whether its loss does not depend on who sampled: terms of groups, as in DPO, and examples
        to imitate.
        """
        return self.objective.level == "group" or (self.advantage.imitates and not self.has_ratio)

    @property
    def has_ratio(self) -> bool:
        """Whether the objective reads an importance ratio."""
        return "ratio" in self.objective.reads

    @property
    def updates(self) -> int:
        """Optimizer steps per batch."""
        return self.epochs * self.minibatches

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The pieces, in the order of `KINDS`."""
        return tuple(piece for kind in KINDS if (piece := getattr(self, kind)) is not None)

    @property
    def reads(self) -> frozenset[str]:
        """Statistics of the forward pass that some piece reads."""
        return frozenset().union(*(piece.reads for piece in self.pieces)) - POLICIES

    @property
    def uses_reference(self) -> bool:
        """Whether log-probs under ref are needed."""
        return self.kl.active or any("ref" in piece.reads for piece in self.pieces)

    @property
    def scores_prox(self) -> bool:
        """Whether log-probs under prox are needed of all tokens before the first update: a piece
        reads them, a KL penalty in the reward is computed from them, or ref is scored over the
        vocabulary that prox keeps.
        """
        return bool(
            self.advantage.reads - {"ref"}
            or "top" in self.objective.reads
            or (self.uses_reference and self.prune)
            or self.kl.in_reward
        )

    @property
    def alters_reward(self) -> bool:
        """Whether the training reward differs from the environment's by a KL term or a penalty for
        length.
        """
        return self.kl.in_reward or bool(self.overlong)

    @property
    def slots(self) -> frozenset[str]:
        """Service slots that the pieces need."""
        return frozenset(slot for piece in self.pieces for slot in piece.needs.values())

    def with_services(self, services: Mapping[str, Any]) -> Algorithm:
        """Return the algorithm with the *services*, by slot, that its pieces need.

        Raises:
            BindingError: a slot is empty.
        """
        pieces = {piece.kind: piece.with_services(services) for piece in self.pieces}
        return dataclasses.replace(self, **pieces)  # type: ignore[arg-type]

    def replace(self, **changes: Any) -> Algorithm:
        """Return a variant with *changes*: a piece is a `Piece`, the name of an imported one, or
        ``{"use": name, **args}`` (without ``use``: arguments for the present one); a table changes
        only the settings in it.

        Raises:
            UsageError: an unknown setting, piece or argument, or settings that exclude each other.
        """
        return self.configured(changes)

    def configured(
        self, changes: Mapping[str, Any], *, find: Find = imported, check: Check = known_settings
    ) -> Algorithm:
        """Return the variant with *changes*, as `replace`.

        Args:
            find: returns the piece of a kind and name.
            check: checks the plain values of one table before they are set.
        """
        fields: dict[str, Any] = {
            k: self._piece(k, changes[k], find, check) for k in KINDS if k in changes
        }
        settings = {key: value for key, value in changes.items() if key not in fields}
        fields |= _changed_fields(self, settings, "", check)
        # another algorithm: the paper of this one is not its source
        if fields.get("name", self.name) != self.name:
            fields = {"published": {}, "source": "", "summary": f"{self.name}, changed"} | fields
        changed = dataclasses.replace(self, **fields)
        kl = changes.get("kl")
        asked = kl.get("coefficient") if isinstance(kl, Mapping) else None
        if asked and changed.kl.where == "none":
            raise UsageError(
                f"kl.coefficient is {asked:g} but kl.where is 'none', so that it would do nothing; "
                f'write kl = {{ where = "loss", estimator = "k2", coefficient = {asked:g} }}'
            )
        return changed

    def _piece(self, kind: Kind, value: Any, find: Find, check: Check) -> Piece | None:
        if value is None or isinstance(value, Piece):
            return value
        args = dict(value) if isinstance(value, Mapping) else {"use": value}
        use = args.pop("use", getattr(self, kind))
        if use is None:
            raise self._rejection(f"it has no {kind} to configure; name one with `use`")
        if not isinstance(use, (str, Piece)):
            raise BindingError(
                f"algorithm {self.name!r}: {kind} is {value!r}; expected a name, or a table with "
                f'use = "name" and '
                "arguments"
            )
        piece = find(kind, use) if isinstance(use, str) else use
        return piece.configure(**check(piece, args, f"{kind}.{piece.name}")) if args else piece
