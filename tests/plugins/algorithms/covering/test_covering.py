"""Every pair of pieces and settings through the real path, against the formulas: `reference`, in
NumPy alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from quintain.errors import UsageError
from quintain.interfaces.algorithm import Algorithm
from quintain.interfaces.pieces import every_piece
from quintain.registry.discovery import discover
from quintain.registry.lookup import Registry

from ....lanes import mostly_slow
from .pairs import Factors, Row, completed, covering, every_pair, forbidden, pairs_of, reads
from .world import (
    ALL_FACTORS,
    FACTORS,
    HISTORIES,
    OPTIONS,
    PREFERENCES,
    RULES,
    algorithm_of,
    compare,
    method_of,
    trained_here,
    world,
)


def with_several_updates(factors: Factors) -> Factors:
    updates = [x for x in factors["updates"] if x != "1x1"]
    return {**factors, "updates": updates, "optimizer_step": ["adamw"]}


SEVERAL_UPDATES, ALL_SEVERAL_UPDATES = map(with_several_updates, (FACTORS, ALL_FACTORS))
ALL_RULES = (*RULES, *HISTORIES)
OFF_POLICY, _ = covering(SEVERAL_UPDATES, ALL_RULES)
"""Theta moves away from prox in all of these."""
REST, NEVER = covering(FACTORS, ALL_RULES, before=OFF_POLICY)
ROWS = [*OFF_POLICY, *REST]
PREFERENCE_OFF_POLICY, _ = covering(ALL_SEVERAL_UPDATES, ALL_RULES, before=ROWS)
PREFERENCE_REST, ALL_NEVER = covering(
    ALL_FACTORS, ALL_RULES, before=[*ROWS, *PREFERENCE_OFF_POLICY]
)
PREFERENCE_ROWS = [*PREFERENCE_OFF_POLICY, *PREFERENCE_REST]
"""What the pieces of `quintain-offline` add."""


def name_of(row: Row) -> str:
    return "-".join(row.values())


def rows_of_every_value() -> list[Row]:
    """The rows of `make test`: each has a value of some factor that none before it has."""
    seen: set[tuple[str, str]] = set()
    rows = []
    for row in ROWS:
        if not set(row.items()) <= seen:
            rows.append(row)
            seen.update(row.items())
    return rows


FAST = rows_of_every_value()


@pytest.mark.parametrize(
    "row", mostly_slow(ROWS, [name_of(row) for row in FAST], name=name_of), ids=name_of
)
def test_combination(row: Row) -> None:
    compare(row, algorithm_of(row))


@pytest.mark.slow
@pytest.mark.parametrize("row", PREFERENCE_ROWS, ids=name_of)
def test_combination_with_a_preference(row: Row) -> None:
    compare(row, algorithm_of(row))


@pytest.mark.more
@pytest.mark.parametrize(
    ("factor", "value"),
    [(factor, value) for factor, values in PREFERENCES.items() for value in values],
)
def test_the_last_combination_with_each_preference(factor: str, value: str) -> None:
    row = [row for row in PREFERENCE_OFF_POLICY if row[factor] == value][-1]
    compare(row, algorithm_of(row))


def test_every_value_occurs_in_make_test() -> None:
    """Each that is in any row: a rule forbids two estimators of the KL always."""
    every = {item for row in ROWS for item in row.items()}
    assert {item for row in FAST for item in row.items()} == every
    assert len(FAST) < len(ROWS) / 3


def test_every_allowed_pair_occurs() -> None:
    """Each pair of values is in a row, and where it needs no single update, also in a row with
    several updates; the others are those that a rule forbids.
    """
    assert {pair for row in ROWS for pair in pairs_of(row)} == set(every_pair(FACTORS)) - NEVER
    several = set(every_pair(SEVERAL_UPDATES)) - NEVER
    assert several - {pair for row in OFF_POLICY for pair in pairs_of(row)} == set()
    assert all(forbidden(dict(pair), ALL_RULES) for pair in NEVER)
    assert not any(forbidden(row, ALL_RULES) for row in ROWS)
    assert 150 < len(ROWS) < 300


def test_every_allowed_pair_with_a_preference_occurs() -> None:
    """As above, with the slow rows."""
    rows, off_policy = [*ROWS, *PREFERENCE_ROWS], [*OFF_POLICY, *PREFERENCE_OFF_POLICY]
    assert {pair for row in rows for pair in pairs_of(row)} == set(
        every_pair(ALL_FACTORS)
    ) - ALL_NEVER
    several = set(every_pair(ALL_SEVERAL_UPDATES)) - ALL_NEVER
    assert several - {pair for row in off_policy for pair in pairs_of(row)} == set()
    assert all(forbidden(dict(pair), ALL_RULES) for pair in ALL_NEVER)
    assert not any(forbidden(row, ALL_RULES) for row in rows)


def test_every_piece_has_a_place() -> None:
    """A new piece of core, `quintain-algorithms` or `quintain_offline.preference` needs a formula in
    `reference`. Those of trees read the trees of rollouts, and have tests of their own.
    """
    packages = ("quintain.learning.", "quintain_algorithms.", "quintain_offline.preference.")
    every = {
        (piece.kind, piece.name)
        for piece in every_piece()
        if piece.origin.startswith(packages)
        and not piece.origin.startswith("quintain_algorithms.tree_search.")
    }
    rows = [*ROWS, *PREFERENCE_ROWS]
    assert every == {(piece.kind, piece.name) for row in rows for piece in algorithm_of(row).pieces}


def refused() -> Iterator[tuple[str, Row]]:
    """For each rule, every assignment of what it reads that it forbids, with the rest so that no
    other rule does.
    """
    for rule in RULES:
        others = [other for other in RULES if other is not rule]
        for values in product(*(ALL_FACTORS[name] for name in reads(rule))):
            if rule(*values):
                row = completed(
                    dict(zip(reads(rule), values, strict=True)), ALL_FACTORS, others, set(), 0
                )
                if row is not None:
                    yield rule.__name__, row


def test_forbidden_combinations_are_refused_before_training() -> None:
    """With a reason that names what to change."""
    rows = list(refused())
    assert {name for name, _ in rows} == {rule.__name__ for rule in RULES}
    for name, row in rows:
        with pytest.raises(UsageError, match="set |take |use |fits |weighs") as failure:
            algorithm_of(row)
        assert len(str(failure.value)) > 60, name


def test_histories_are_refused_with_the_way_out() -> None:
    """Only what the rules forbid: the rows hold every other pair."""
    refusals = [
        (rule, history, advantage)
        for rule in HISTORIES
        for history, advantage in product(FACTORS["history"], FACTORS["advantage"])
        if rule(history, advantage)
    ]
    assert {rule for rule, *_ in refusals} == set(HISTORIES)
    for _, history, advantage in refusals:
        row = completed({"history": history, "advantage": advantage}, FACTORS, RULES, set(), 0)
        assert row is not None
        with pytest.raises(UsageError, match="take an(other)? a"):
            trained_here(row, algorithm_of(row))


PUBLISHED: dict[str, Algorithm] = {
    component.name: Registry([component]).resolve(component)
    for component in discover()
    if component.kind == "algorithm"
    and component.distribution in ("quintain", "quintain-algorithms", "quintain-algorithms")
}
ORDERED = {"gae", "optimal_token", "process_norm", "reinforce_pp", "turn_level"}


@pytest.mark.more
@pytest.mark.parametrize("history", ["tree", "overlapping"])
@pytest.mark.parametrize(
    "name",
    mostly_slow(PUBLISHED, ["grpo", "gspo", "reinforce_pp", "vineppo", "trpo"]),
)
def test_published_algorithms_over_trees(name: str, history: str) -> None:
    """They refuse, or their update does not depend on which branches share a micro-batch."""
    advantage = PUBLISHED[name].advantage.name
    row = {"advantage": advantage, "history": history, "skip_idle": "yes"}
    if advantage == "vine" or (history == "overlapping" and advantage in ORDERED):
        with pytest.raises(UsageError, match="take an(other)? a"):
            trained_here({**row, "micro_batches": "one"}, PUBLISHED[name])
        return

    (one, _), (many, _) = (
        trained_here({**row, "micro_batches": count}, PUBLISHED[name]) for count in ("one", "many")
    )

    assert np.abs(one.table - world(history).theta).max() > 1e-3
    np.testing.assert_allclose(many.gradients, one.gradients, rtol=0, atol=1e-12)
    np.testing.assert_allclose(many.table, one.table, rtol=0, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_other_combinations_on_other_batches(seed: int) -> None:
    """Random rows: combinations of more than two."""
    draws = random.Random(seed)
    for _ in range(100):
        start: Row = {}
        for name in draws.sample(list(ALL_FACTORS), len(ALL_FACTORS)):
            allowed = [
                value
                for value in ALL_FACTORS[name]
                if completed({**start, name: value}, ALL_FACTORS, ALL_RULES, set(), 0)
            ]
            start = {**start, name: draws.choice(allowed)}
        try:
            compare(start, algorithm_of(start), seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {start}") from error


@pytest.mark.more
@pytest.mark.parametrize("name", OPTIONS)
def test_other_arguments_of_advantages(name: str) -> None:
    formula, piece, args = OPTIONS[name]
    kl = "none" if name == "maxrl" else "reward-k1"
    row = completed(
        {"advantage": name, "kl": kl, "objective": "ppo_clip"}, FACTORS, RULES, set(), 1
    )
    assert row is not None
    algorithm = algorithm_of(row).replace(advantage={"use": piece, **args})
    compare(row, algorithm, method=replace(method_of(row), advantage=formula))


MET = {
    "ppo_clip": {"clip.low", "clip.high"},
    "ppo_dual": {"objective.clip_dual"},
    "sequence_clip": {"clip.low", "clip.high"},
    "gspo": {"clip.low", "clip.high"},
    "gspo_token": {"clip.low", "clip.high"},
    "cispo": {"clip.high"},
    "dppo_tv": {"clip.low", "clip.high"},
    "dppo_kl": {"clip.low", "clip.high"},
    "dppo_top": {"clip.low", "clip.high"},
    **{name: {"masked.tokens"} for name in ("icepop", "mis", "sequence_mask", "trm")},
}
"""What each bound does to some tokens and not to others."""


@pytest.mark.more
@pytest.mark.parametrize("piece", MET)
def test_bounds_are_met(piece: str) -> None:
    """By some tokens, so that the rows say something of them."""
    missing = set(MET[piece])
    for row in (row for row in OFF_POLICY if piece in (row["objective"], row["correction"])):
        for metrics in compare(row, algorithm_of(row)):
            missing = {name for name in missing if not 0.02 < metrics[name] < 0.98}
        if not missing:
            return
    raise AssertionError(f"{missing} of {piece} never happened")
