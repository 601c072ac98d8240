"""Algorithms as rows of a table: named pieces, a KL term, and the settings a method depends on.

Importing this module needs no torch::

    @objective
    def cispo(t: Terms, *, cap: float = 5.0) -> Tensor:
        return -t.ratio().clamp(max=cap).detach() * t.advantage * t.logp

    CISPO = GRPO.but(name="cispo", objective=cispo, aggregation="token")
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..errors import UsageError, did_you_mean
from .pieces import KINDS, POLICIES, Piece, imported
from .sampling_plan import Plan, made

Anchor = Literal["mu", "prox"]
SCALED = ("group_norm", "process_norm")
"""Advantages that divide by the spread of their group."""


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
        if self.in_loss and self.estimator == "k1" and not self.score_factor:
            raise UsageError(
                "k1 in the loss has zero gradient in expectation; use k2 in the loss, k1 in the reward, "
                "or score_factor = true"
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
        float32_head: the learner's last layer computes its logits in float32 also where the rest does not (the sampler
            does so where its ``dtype`` is float32).
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
    plan: Plan = field(default_factory=Plan)
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
        for piece in self.pieces:
            if piece.fits is not None:
                piece.fits(self)

    def _refuse_bad_pairs(self) -> None:
        corrected = self.correction.name != "none"
        if corrected and not self.correction.masks and self.anchor == "mu" and "ratio" in self.objective.reads:
            raise UsageError(
                f"algorithm {self.name!r}: a ratio to mu already holds the mismatch prox / mu that {self.correction!r} "
                "repairs; set anchor = 'prox' or correction = 'none'"
            )
        if self.kl.in_reward and self.objective.level == "group":
            raise UsageError(
                f"algorithm {self.name!r}: with the KL in the reward {self.objective!r} would rank answers of equal "
                "reward by their KL; its own reference term holds the policy already: set kl.coefficient = 0"
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
        if self.kl.in_loss and self.kl.estimator == "k3" and not self.kl.score_factor:
            notes.append("k3 in the loss follows the gradient of the forward KL(ref || theta), not of KL(theta || ref)")
        if self.epochs * self.minibatches > 1 and "ratio" not in self.objective.reads:
            notes.append(
                f"{self.objective!r} has no ratio, so all but the first of several updates per batch are off-policy"
            )
        if self.kl.in_reward and self.advantage.name in SCALED and self.admission.name != "varied":
            notes.append(
                f"{self.advantage!r} divides by the spread of the group: where all answers earn the same, that of the "
                "KL penalty alone, so such groups train on it at full size; admit varied groups only"
            )
        to_mu = self.anchor == "mu" and "ratio" in self.objective.reads
        if self.plan.lag and self.correction.name == "none" and not to_mu:
            notes.append(
                f"the sampler is {self.plan.lag} versions behind and nothing knows it: take anchor = 'mu' with a "
                "ratio, or a correction such as 'tis'"
            )
        if self.advantage.name == "ones":
            notes.append(
                "every sample counts as an example: on the policy's own samples the expected update is 0; "
                "`rft` follows those that succeed, `quintain sft` learns from a teacher's"
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
    def alters_reward(self) -> bool:
        """Whether samples learn from another reward than the environment's: less a KL term, or punished for length."""
        return self.kl.in_reward or bool(self.overlong)

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
        """A variant. A piece is given as itself, by the name of one that is imported, or as ``{"use": name, **args}``
        (without ``use``: arguments of the present one).

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
            return made(type(getattr(self, key)), getattr(self, key), value, key)
        kind = next((k for k in KINDS if k == key), None)
        if kind is None or isinstance(value, Piece) or value is None:
            return value
        if isinstance(value, str):
            return imported(kind, value)
        args = dict(value)
        base = self._resolve(key, args.pop("use")) if "use" in args else getattr(self, kind)
        if base is None:
            raise UsageError(f"algorithm {self.name!r} has no {kind} to configure; name one with `use`")
        return base.using(**args)
