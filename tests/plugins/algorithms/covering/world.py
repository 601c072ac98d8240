"""The two sides of a combination: an algorithm of the package with a table for a model, and its
`reference`.

The model is a causal language model whose next token depends on the last one alone: an embedding of
logits and an identity for its output layer. Every trained token of a batch follows another token,
so that each has logits of its own, but first tokens of a group, which share those of the prompt.
"""

from __future__ import annotations

import asyncio
import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from quintain import KL, Algorithm, Rollout, Score, Task
from quintain.interfaces.algorithm import GroupStats
from quintain.learning import ALGORITHMS, Batch, Learner, Sample, TrainingSequence
from quintain.registry.pieces import find
from quintain.testing import rollout
from quintain_algorithms.classic import Critic
from quintain_authoring.scripted import ScriptedEngine

from . import reference as ref
from .pairs import Row
from .reference import Answer, Array, Method, Penalty, Trainer, Update

VOCAB = 128
TEMPERATURE = 0.8
LONGEST = 4
STEP_SIZE, EPSILON = 0.2, 1e-3
"""Of AdamW. The epsilon is large so that rounding errors of gradients that are 0 stay rounding
errors of the table.
"""

ADVANTAGES: dict[str, tuple[Any, dict[str, Any]]] = {
    "raw": (ref.raw, {}),
    "batch_mean": (ref.batch_mean, {}),
    "ema": (ref.ema, {}),
    "group_mean": (ref.group_mean, {}),
    "group_norm": (ref.group_norm, {}),
    "leave_one_out": (ref.leave_one_out, {}),
    "greedy": (ref.greedy, {}),
    "maxrl": (ref.maxrl, {}),
    "batch_norm": (ref.batch_norm, {}),
    "reinforce_pp": (ref.reinforce_pp, {}),
    "reinforce_pp_baseline": (ref.reinforce_pp_baseline, {}),
    "process_norm": (ref.process_norm, {}),
    "turn_level": (ref.turn_level, {"gamma": 0.8}),
    "optimal_token": (ref.optimal_token, {}),
    "length_reward": (ref.length_reward, {"weight": 0.8, "start": 1}),
    "gae": (ref.gae, {"gamma": 0.95, "lam": 0.9, "whiten": True}),
    "vine": (ref.vine, {"rollouts": 3, "size": 2}),
    "ones": (ref.ones, {}),
    "winners": (ref.winners, {}),
    "desirable": (ref.desirable, {}),
}
OPTIONS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "batch_mean": (ref.batch_mean_of_environments, "batch_mean", {"over": "environment"}),
    "batch_norm": (ref.batch_norm_of_environments, "batch_norm", {"over": "environment"}),
    "reinforce_pp": (ref.reinforce_pp_of_environments, "reinforce_pp", {"over": "environment"}),
    "reinforce_pp_baseline": (
        ref.reinforce_pp_baseline_of_environments,
        "reinforce_pp_baseline",
        {"over": "environment"},
    ),
    "maxrl": (ref.over_success, "maxrl", {"form": "success"}),
    "gae": (ref.gae_signed, "gae", {"gamma": 0.95, "lam": 0.9, "clamp": False}),
}
"""Advantages with other arguments."""
OBJECTIVES: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "policy_gradient": (ref.policy_gradient, "policy_gradient", {}),
    "importance": (ref.importance, "importance", {}),
    "ppo_clip": (ref.ppo_clip, "ppo_clip", {"low": 0.1, "high": 0.15}),
    "ppo_dual": (ref.ppo_dual, "ppo_clip", {"dual": 1.3}),
    "sequence_clip": (ref.sequence_clip, "sequence_clip", {"low": 0.2, "high": 0.3}),
    "gspo": (ref.gspo, "gspo", {"low": 0.05, "high": 0.08}),
    "gspo_token": (ref.gspo_token, "gspo_token", {"low": 0.05, "high": 0.08}),
    "cispo": (ref.cispo, "cispo", {"cap": 1.2}),
    "dppo_tv": (ref.dppo_tv, "dppo_tv", {"delta": 0.05, "cap": 1.5}),
    "dppo_kl": (ref.dppo_kl, "dppo_kl", {"delta": 0.01}),
    "dppo_top": (ref.dppo_top, "dppo_top", {"delta": 0.04, "top": 3}),
    "mirror_descent": (ref.mirror_descent, "mirror_descent", {"tau": 0.5}),
    "dpo": (ref.dpo, "dpo", {"beta": 0.5}),
    "dpo_extremes": (ref.dpo_extremes, "dpo", {"beta": 0.5, "pairs": "best_worst"}),
    "dpo_norm": (ref.dpo_norm, "dpo_norm", {"beta": 2.0}),
    "simpo": (ref.simpo, "simpo", {"beta": 2.0, "gamma": 0.3}),
    "kto": (ref.kto, "kto", {"beta": 0.7, "desired": 1.3, "undesired": 0.8}),
}
CORRECTIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    "none": (ref.none, {}),
    "tis": (ref.tis, {"cap": 1.2}),
    "tis_sequence": (ref.tis_sequence, {"cap": 1.1}),
    "icepop": (ref.icepop, {"low": 0.8, "high": 1.3}),
    "mis": (ref.mis, {"low": 0.5, "high": 1.4}),
    "sequence_mask": (ref.sequence_mask, {"limit": 0.05}),
    "trm": (ref.trm, {"delta": 0.15}),
}
AGGREGATIONS = {
    "token": ref.token,
    "sequence": ref.sequence,
    "constant": ref.constant,
    "prompt": ref.prompt,
    "winners": ref.over_winners,
}
PENALTIES = {
    "none": None,
    **{f"reward-{k}": Penalty(where="reward", estimate=k) for k in ("k1", "k2", "k3")},
    **{f"loss-{k}": Penalty(where="loss", estimate=k) for k in ("k1", "k2", "k3")},
    "reward-k1-score": Penalty(where="reward", estimate="k1", score=True),
    **{
        f"loss-{k}-score": Penalty(where="loss", estimate=k, score=True) for k in ("k1", "k2", "k3")
    },
}
FILTERS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "minimum-1": (ref.at_least(1), "minimum", {"samples": 1}),
    "minimum-2": (ref.at_least(2), "minimum", {}),
    "varied": (ref.varied, "varied", {}),
    "varied-total": (ref.varied_total, "varied", {"total": True}),
}
UPDATES = {"2x1": (2, 1), "1x2": (1, 2), "2x2": (2, 2), "1x1": (1, 1)}

PREFERENCES = {
    "advantage": ["ones", "winners", "desirable"],
    "objective": ["dpo", "dpo_extremes", "dpo_norm", "simpo", "kto"],
    "aggregation": ["winners"],
}
"""Pieces of `quintain-offline`."""
FACTORS = {
    "advantage": [name for name in ADVANTAGES if name not in PREFERENCES["advantage"]],
    "objective": [name for name in OBJECTIVES if name not in PREFERENCES["objective"]],
    "kl": list(PENALTIES),
    "correction": list(CORRECTIONS),
    "aggregation": [name for name in AGGREGATIONS if name not in PREFERENCES["aggregation"]],
    "group_filter": list(FILTERS),
    "updates": list(UPDATES),
    "optimizer_step": ["adamw", "natural"],
    "ratio_to": ["prox", "mu"],
    "mask_truncated": ["no", "yes"],
    "overlong": ["0", "0.5"],
    "prune": ["0", "0.02"],
    "reset_optimizer": ["no", "yes"],
    "skip_idle": ["yes", "no"],
    "micro_batches": ["one", "many"],
    "history": ["turns", "tree", "overlapping"],
}

ALL_FACTORS = {name: [*values, *PREFERENCES.get(name, [])] for name, values in FACTORS.items()}

OF_GROUPS = tuple(PREFERENCES["objective"])
LABELS = tuple(PREFERENCES["advantage"])
WITHOUT_RATIO = ("policy_gradient", *OF_GROUPS)
WHOLE_SAMPLES = ("sequence_clip", "gspo", "mirror_descent")
SUMS = ("sequence_clip", "mirror_descent")


def without_gradient(kl: str) -> bool:
    """The expected gradient of k1 is 0, and a number in the reward has none to be multiplied."""
    return kl in ("loss-k1", "reward-k1-score")


def ratio_twice(objective: str, correction: str, ratio_to: str) -> bool:
    """A ratio to mu holds the mismatch that a weight would repair; masks hold nothing."""
    weighs = correction in ("tis", "tis_sequence", "icepop", "mis")
    return ratio_to == "mu" and weighs and objective not in WITHOUT_RATIO


def weight_inside_a_term(objective: str, correction: str) -> bool:
    """A weight of tokens, and one term for all tokens of a sample; or any, and one for a group."""
    return (objective in WHOLE_SAMPLES and correction in ("tis", "icepop")) or (
        objective in OF_GROUPS and correction != "none"
    )


def ranked_by_kl(objective: str, kl: str) -> bool:
    return objective in OF_GROUPS and kl.startswith("reward")


def label_without_reward(advantage: str, kl: str) -> bool:
    return advantage in LABELS and kl.startswith("reward")


def label_without_punishment(advantage: str, overlong: str) -> bool:
    return advantage in LABELS and overlong != "0"


def sum_weighed_by_length(objective: str, aggregation: str) -> bool:
    return objective in SUMS and aggregation != "sequence"


def likeliest_of_mu(objective: str, ratio_to: str) -> bool:
    return objective == "dppo_top" and ratio_to == "mu"


def negative_rewards(advantage: str, kl: str) -> bool:
    return advantage in ("maxrl", "vine") and kl.startswith("reward")


def punished_rewards(advantage: str, overlong: str) -> bool:
    return advantage in ("maxrl", "vine") and overlong != "0"


def several_natural_steps(optimizer_step: str, updates: str) -> bool:
    return optimizer_step == "natural" and updates != "1x1"


def pruned_fisher(optimizer_step: str, prune: str) -> bool:
    return optimizer_step == "natural" and prune != "0"


RULES = (
    without_gradient, ratio_twice, weight_inside_a_term, sum_weighed_by_length, likeliest_of_mu,
    negative_rewards,
    punished_rewards, several_natural_steps, pruned_fisher, ranked_by_kl, label_without_reward,
    label_without_punishment,
)  # fmt: skip
"""What cannot be combined; each is a `UsageError` before training."""


def order_unknown(history: str, advantage: str) -> bool:
    """Credit by what comes after a token, where the turns of a sample overlap in time. Samples have
    scores of turns here; `reinforce_pp` and `process_norm` do not ask without any.
    """
    by_order = ("reinforce_pp", "process_norm", "turn_level", "optimal_token", "gae")
    return history == "overlapping" and advantage in by_order


def several_answers(history: str, advantage: str) -> bool:
    return history != "turns" and advantage == "vine"


HISTORIES = (order_unknown, several_answers)
"""What an algorithm cannot make of a batch; each is a `UsageError` at the batch."""


def algorithm_of(row: Row) -> Algorithm:
    """The package's side.

    Raises:
        UsageError: the combination is refused.
    """
    penalty = PENALTIES[row["kl"]]
    _, objective, objective_args = OBJECTIVES[row["objective"]]
    _, group_filter, filter_args = FILTERS[row["group_filter"]]
    epochs, minibatches = UPDATES[row["updates"]]
    return ALGORITHMS["rloo"].replace(
        name="combined",
        advantage=find("advantage", row["advantage"]).configure(**ADVANTAGES[row["advantage"]][1]),
        objective=find("objective", objective).configure(**objective_args),
        correction=find("correction", row["correction"]).configure(
            **CORRECTIONS[row["correction"]][1]
        ),
        aggregation=find("aggregation", row["aggregation"]),
        group_filter=find("group_filter", group_filter).configure(**filter_args),
        kl=KL()
        if penalty is None
        else KL(
            where=cast(Any, penalty.where),
            estimator=cast(Any, penalty.estimate),
            coefficient=penalty.coefficient,
            score_factor=penalty.score,
        ),
        optimizer_step=find("optimizer_step", "natural")
        if row["optimizer_step"] == "natural"
        else None,
        epochs=epochs,
        minibatches=minibatches,
        ratio_to=row["ratio_to"],
        mask_truncated=row["mask_truncated"] == "yes",
        overlong=float(row["overlong"]),
        prune=float(row["prune"]),
        reset_optimizer=row["reset_optimizer"] == "yes",
    )


def method_of(row: Row) -> Method:
    """The reference's side."""
    epochs, minibatches = UPDATES[row["updates"]]
    return Method(
        advantage=ADVANTAGES[row["advantage"]][0],
        objective=OBJECTIVES[row["objective"]][0],
        correction=CORRECTIONS[row["correction"]][0],
        aggregation=AGGREGATIONS[row["aggregation"]],
        group_filter=FILTERS[row["group_filter"]][0],
        kl=PENALTIES[row["kl"]],
        epochs=epochs,
        minibatches=minibatches,
        ratio_to=row["ratio_to"],
        mask_truncated=row["mask_truncated"] == "yes",
        overlong=float(row["overlong"]),
        prune=float(row["prune"]),
        reset_optimizer=row["reset_optimizer"] == "yes",
        skip_idle=row["skip_idle"] == "yes",
        natural=row["optimizer_step"] == "natural",
    )


# ---------------------------------------------------------------- batches


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A batch for both sides."""

    answers: tuple[Answer, ...]
    samples: tuple[Sample, ...]


@dataclass(frozen=True, kw_only=True)
class World:
    """Tables of theta (hence prox) and ref, and two batches that other tables sampled."""

    theta: Array
    ref: Array
    batches: tuple[Drawn, Drawn]


BRANCHES = 6
"""Of a sample whose history is a tree, at most."""
SIZES = (4, 3, 2, 1, 2)
"""Of the groups: two undecided ones, one solved whose shaping differs, a single sample, one without
any difference.
"""


@cache
def world(history: str, seed: int = 0) -> World:
    """Two batches.

    Args:
        history: ``answers``: single turns. ``turns``: several, with observations between them, and
            a history that is rewritten once. ``tree``: up to `BRANCHES` branches that begin in the
            middle of others, at their ends or anew. ``overlapping``: the same, with turns that do
            not lie in the order of time.
    """
    draws = np.random.default_rng(
        (seed, ("turns", "answers", "tree", "overlapping").index(history))
    )
    chosen: list[tuple[int, int]] = []
    shapes = [_shapes(draws, history, chosen) for _ in range(2)]
    prox = draws.normal(size=(VOCAB, VOCAB))
    for row, token in chosen:  # sampled tokens are likely ones, from 5 to 90 per cent
        prox[row, token] += draws.uniform(2, 6.5)
    theirs = {name: prox + 0.35 * draws.normal(size=prox.shape) for name in ("mu", "ref")}
    mu = ref.log_softmax(theirs["mu"] / TEMPERATURE)
    batches = tuple(
        Drawn(
            answers=tuple(_answer(s, mu) for s in drawn),
            samples=tuple(_sample(s, mu) for s in drawn),
        )
        for drawn in shapes
    )
    return World(theta=prox, ref=theirs["ref"], batches=cast(Any, batches))


def world_of(row: Row, seed: int) -> World:
    """The batches of *row*. VinePPO cuts single answers, and refuses trees."""
    answers = row["advantage"] == "vine" and row["history"] == "turns"
    return world("answers" if answers else row["history"], seed)


Columns = tuple[tuple[int, ...], tuple[bool, ...]]
"""Ids and mask of a branch."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A sample before it has log-probs: *branches* of ids and mask."""

    branches: tuple[Columns, ...]
    turns: tuple[int, ...]
    scores: tuple[float, ...]
    group: int
    outcome: float
    shaping: float
    truncated: bool
    overlapping: bool


def _begun(draws: Any, turn: int, branches: Sequence[Columns], ids: Iterator[int]) -> Columns:
    """What *turn* of a tree follows: the beginning of a branch up to any of its tokens or all of
    it, with an observation; or a new history. Nothing of it trains again.
    """
    if turn % 3 == 2:
        return (next(ids),), (False,)
    parent, _ = branches[int(draws.integers(len(branches)))]
    kept = len(parent) if turn % 3 == 1 else int(draws.integers(1, len(parent)))
    return (*parent[:kept], next(ids)), (False,) * (kept + 1)


def _shapes(draws: Any, history: str, chosen: list[tuple[int, int]]) -> list[Shape]:
    ids = iter(draws.permutation(VOCAB).tolist())
    tree = history in ("tree", "overlapping")
    out = []
    for group, size in enumerate(SIZES):
        prompt = (next(ids), next(ids))
        for k in range(size):
            if tree:
                lengths = draws.integers(1, 3, size=(2 * k + group) % BRANCHES + 1).tolist()
            elif history == "turns":
                lengths = draws.integers(1, LONGEST + 1, size=k % 3 + 1).tolist()
            else:
                lengths = [int(draws.integers(1, LONGEST + 1))]
            branches: list[Columns] = []
            ids_so_far, mask = list(prompt), [False, False]
            for turn, length in enumerate(lengths):
                if tree and turn:
                    branches.append((tuple(ids_so_far), tuple(mask)))
                    ids_so_far, mask = map(list, _begun(draws, turn, branches, ids))
                elif turn == 1:  # an observation in the same sequence
                    ids_so_far, mask = [*ids_so_far, next(ids)], [*mask, False]
                elif turn == 2:  # the history was rewritten: a branch
                    branches.append((tuple(ids_so_far), tuple(mask)))
                    ids_so_far, mask = [next(ids)], [False]
                for _ in range(length):
                    token = next(ids)
                    chosen.append((ids_so_far[-1], token))
                    ids_so_far, mask = [*ids_so_far, token], [*mask, True]
            branches.append((tuple(ids_so_far), tuple(mask)))
            decided = group in (2, 4)
            scores = (
                ()
                if history == "answers" or k == 1 or decided
                else tuple(draws.choice([0.0, 0.1, 0.2], size=len(lengths)))
            )
            out.append(
                Shape(
                    branches=tuple(branches),
                    turns=tuple(lengths),
                    scores=tuple(map(float, scores)),
                    group=group,
                    outcome=1.0 if decided else float((k + group) % 2) + float(sum(scores)),
                    shaping=0.15 * k if group in (0, 2) else 0.0,
                    truncated=(k + group) % 4 == 3,
                    overlapping=history == "overlapping" and len(lengths) > 2,
                )
            )
    return out


def _answer(shape: Shape, mu: Array) -> Answer:
    places = [
        (ids[t - 1], ids[t]) for ids, mask in shape.branches for t in range(len(ids)) if mask[t]
    ]
    first = shape.branches[0][1].index(True)
    return Answer(
        group=shape.group,
        environment="ab"[shape.group % 2],
        prompt=shape.branches[0][0][:first],
        rows=tuple(row for row, _ in places),
        ids=tuple(token for _, token in places),
        mu=tuple(float(mu[place]) for place in places),
        outcome=shape.outcome,
        shaping=shape.shaping,
        truncated=shape.truncated,
        turns=shape.turns,
        scores=shape.scores,
    )


def _sample(shape: Shape, mu: Array) -> Sample:
    return Sample(
        sequences=tuple(
            TrainingSequence(
                ids=ids,
                mask=mask,
                logps=tuple(
                    float(mu[ids[t - 1], ids[t]]) if mask[t] else 0.0 for t in range(len(ids))
                ),
                versions=tuple(0 if on else -1 for on in mask),
            )
            for ids, mask in shape.branches
        ),
        outcome=shape.outcome,
        shaping=shape.shaping,
        group=shape.group,
        environment="ab"[shape.group % 2],
        truncated=shape.truncated,
        turns=shape.turns,
        turn_scores=shape.scores,
        overlapping=shape.overlapping,
    )


# ---------------------------------------------------------------- the package's side


class Bigram(nn.Module):
    """A causal language model whose logits are the row of a table that the last token chooses."""

    def __init__(self, table: Array) -> None:
        super().__init__()
        self.config = PretrainedConfig(attn_implementation="eager")
        self.rows = nn.Embedding.from_pretrained(torch.tensor(table), freeze=False)
        self.head = nn.Linear(VOCAB, VOCAB, bias=False, dtype=torch.float64)
        self.head.weight = nn.Parameter(torch.eye(VOCAB, dtype=torch.float64), requires_grad=False)

    def get_input_embeddings(self) -> nn.Module:
        return self.rows

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def base_model(self, input_ids: Tensor, **_: Any) -> Any:
        return SimpleNamespace(last_hidden_state=self.rows(input_ids))

    def forward(self, input_ids: Tensor, use_cache: bool = False) -> Any:
        return SimpleNamespace(logits=self.head(self.rows(input_ids)))


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a combination did with both batches: its gradients, the metrics of each batch, the table
    at the end.
    """

    gradients: list[Array]
    metrics: list[dict[str, float]]
    table: Array


def trained_here(
    row: Row, algorithm: Algorithm, seed: int = 0
) -> tuple[Trained, list[Array | None]]:
    """By the package; and the values of the critic before each batch."""
    held = world_of(row, seed)
    learner = Learner(
        Bigram(held.theta),
        algorithm,
        reference=Bigram(held.ref),
        lr=STEP_SIZE,
        epsilon=EPSILON,
        max_grad_norm=0.0,
        token_budget=10**6 if row["micro_batches"] == "one" else 5,
        skip_idle=row["skip_idle"] == "yes",
    )
    replay, critic = Replayed(), _critic(learner, seed) if "critic" in algorithm.slots else None
    services = {"policy": ScriptedEngine(), "replay": replay, "critic": critic}
    learner.serve({slot: services[slot] for slot in algorithm.slots})
    gradients: list[Array] = []

    def note(*_: Any) -> None:
        gradients.append(cast(Tensor, learner.module.rows.weight.grad).numpy().copy())  # type: ignore[union-attr]

    learner._optimizer.register_step_pre_hook(note)
    metrics: list[dict[str, float]] = []
    values: list[Array | None] = []
    for drawn in held.batches:
        batch = Batch(samples=drawn.samples, max_tokens=LONGEST, temperature=TEMPERATURE)
        batch = batch.only(
            [i for group in batch.groups if not _rejection(algorithm, batch, group) for i in group]
        )
        values.append(None if critic is None else critic.values(batch).numpy())
        replay.batch = batch
        prepared = learner.prepare(batch)
        metrics.append(
            learner.step(prepared, advantages=asyncio.run(learner.compute_advantages(prepared)))
        )
    table = learner.module.rows.weight.detach().numpy().copy()  # type: ignore[union-attr, operator]
    return Trained(gradients=gradients, metrics=metrics, table=table), values


def _critic(learner: Learner, seed: int) -> Critic:
    """A critic that already values places."""
    critic = Critic(learner=learner, epochs=1, lr=0.05)
    nn.init.normal_(critic._head.weight, std=0.05, generator=torch.Generator().manual_seed(seed))
    return critic


def _rejection(algorithm: Algorithm, batch: Batch, group: Sequence[int]) -> str:
    samples = [batch.samples[i] for i in group]
    stats = GroupStats(
        outcomes=tuple(s.outcome for s in samples),
        totals=tuple(
            s.total + ref.overlong(s.longest_turn, LONGEST, algorithm.overlong) for s in samples
        ),
        requested=len(group),
    )
    return str(algorithm.group_filter(stats))


class Replayed:
    """The service ``replay``: continuations earn what `reference.continuation` says, greedy answers
    what is noted for their group of *batch*.
    """

    batch: Batch

    async def __call__(self, wanted: Sequence[tuple[int, Any]]) -> list[Rollout[Any, Any]]:
        played = rollout(Task(prompt="?"), "?")
        return [
            replace(played, outcome=Score(value=self._earned(i, engine))) for i, engine in wanted
        ]

    def _earned(self, i: int, engine: Any) -> float:
        if hasattr(engine, "tokens"):
            return ref.continuation(engine.start + engine.tokens, engine._number)
        return ref.GREEDY[self.batch.samples[i].group]


def trained_there(
    row: Row, method: Method, values: Sequence[Array | None], seed: int = 0
) -> tuple[list[list[Update]], Array]:
    """By the reference: the updates of each batch, and the table at the end."""
    held = world_of(row, seed)
    trainer = Trainer(
        method=method,
        table=copy.copy(held.theta),
        ref=held.ref,
        temperature=TEMPERATURE,
        longest=LONGEST,
        step_size=STEP_SIZE,
        epsilon=EPSILON,
    )
    updates = [
        trainer.step(trainer.accepted(drawn.answers), given)
        for drawn, given in zip(held.batches, values, strict=True)
    ]
    return updates, trainer.table


def compare(
    row: Row, algorithm: Algorithm, seed: int = 0, method: Method | None = None
) -> list[dict[str, float]]:
    """Losses, gradients and the table after two batches, of *algorithm* and of the reference;
    returns the metrics.

    Raises:
        AssertionError: they differ.
    """
    here, values = trained_here(row, algorithm, seed)
    there, table = trained_there(row, method or method_of(row), values, seed)
    if row["optimizer_step"] == "adamw":
        for number, (mine, formula) in enumerate(
            zip(here.gradients, [u for us in there for u in us], strict=True)
        ):
            np.testing.assert_allclose(
                mine,
                formula.gradient,
                rtol=1e-9,
                atol=1e-11,
                err_msg=f"gradient of update {number}",
            )
    for metrics, updates in zip(here.metrics, there, strict=True):
        assert metrics["updates"] == len(updates)
        if updates:
            norm = max(float(np.linalg.norm(u.gradient)) for u in updates)
            assert math.isclose(
                metrics["loss"], np.mean([u.loss for u in updates]), rel_tol=1e-9, abs_tol=1e-11
            )
            assert math.isclose(metrics["grad_norm"], norm, rel_tol=1e-9, abs_tol=1e-11)
    np.testing.assert_allclose(here.table, table, rtol=0, atol=1e-8)
    return here.metrics
