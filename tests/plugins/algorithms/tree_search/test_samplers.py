"""Trees, beams and MCTS against second implementations, on a policy that can be enumerated."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from quintain import Sampling, TokenEngine
from quintain.errors import UsageError
from quintain_algorithms.tree_search import BeamEngine, MCTSEngine, Partial, StepRule, TreeEngine

from .toy import LINES, SAMPLING, ByTable, drawn, letters, policy, prompt, worth_of


class Beam(ByTable, BeamEngine):
    """A beam over the toy."""


class MCTS(ByTable, MCTSEngine):
    """A search over the toy."""


def over_toy(kind: Any, *settings: Any, by: Any = "lines", inner: TokenEngine | None = None) -> Any:
    """An engine of *kind* over the toy's policy."""
    engine = kind.__new__(kind)
    engine._configure(*settings)
    engine.open_policy(inner or policy(), StepRule(by=by))
    return engine


def leaves(engine: TreeEngine, count: int, sampling: Sampling = SAMPLING) -> list[Partial]:
    async def all_leaves() -> list[Partial]:
        seeds = [sampling.replace(seed=11 + k) for k in range(count)]
        return await asyncio.gather(*(engine.search(prompt(), s) for s in seeds))

    return asyncio.run(all_leaves())


# ------------------------------------------------------------------------------------------- trees
def test_leaves_of_a_tree_share_their_steps() -> None:
    """Each step is what the policy draws after the steps before it, once for all leaves below."""
    engine = over_toy(TreeEngine, 2, 3)
    found = leaves(engine, 8)

    expected = []
    for leaf in range(8):
        path = (leaf // 4, leaf // 2 % 2, leaf % 2)
        partial = Partial()
        for end in (1, 2, 3):
            partial = drawn(partial, "tree", *path[:end], whole=end == 3)
        expected.append(partial)
    assert found == expected
    assert len({letters(p)[0] for p in found[:4]}) == len({letters(p)[0] for p in found[4:]}) == 1
    # two tokens a line; the last steps have the stop token as well
    assert engine.sampled_tokens == 2 * 2 + 4 * 2 + 8 * 3


def test_more_samples_begin_a_further_tree_and_later_ones_a_new_one() -> None:
    engine = over_toy(TreeEngine, 2, 2)
    first = leaves(engine, 8)
    assert engine.sampled_tokens == 2 * (2 * 2 + 4 * 5)
    assert engine._trees == {}
    assert leaves(engine, 4) == first[:4]


@pytest.mark.parametrize("begun", [1, 2, 3])
def test_a_tree_waits_for_its_leaves_until_the_weights_change(begun: int) -> None:
    """Where fewer episodes run at once than a group has, its first answers may be complete before
    the others begin; they are of one tree.
    """
    whole = leaves(over_toy(TreeEngine, 2, 2), 4)
    engine = over_toy(TreeEngine, 2, 2)
    assert leaves(engine, begun) == whole[:begun]
    assert leaves(engine, 4 - begun) == whole[begun:]
    leaves(engine, begun)
    asyncio.run(engine.update(SimpleNamespace(version=1)))
    assert [leaf.ids for leaf in leaves(engine, 4)] == [leaf.ids for leaf in whole]


def test_an_answer_that_ends_early_is_every_leaf_below_it() -> None:
    engine = over_toy(TreeEngine, 2, 5)
    found = leaves(engine, 32)
    assert len(set(found)) <= 2**4
    assert all(found[i] == found[i + 1] for i in range(0, 32, 2))
    assert {p.finish for p in found} == {"stop"}


def test_an_episode_that_is_cancelled_leaves_the_tree_to_the_others() -> None:
    engine = over_toy(TreeEngine, 2, 2)

    async def one_cancelled() -> list[Partial]:
        tasks = [
            asyncio.create_task(engine.search(prompt(), SAMPLING.replace(seed=11 + k)))
            for k in range(4)
        ]
        await asyncio.sleep(0)
        tasks[0].cancel()
        return await asyncio.gather(*tasks[1:])

    assert asyncio.run(one_cancelled()) == leaves(over_toy(TreeEngine, 2, 2), 4)[1:]
    assert engine._trees == {}


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6, 7])
def test_steps_stay_within_the_maximum_of_tokens(limit: int) -> None:
    (found,) = leaves(over_toy(TreeEngine, 2, 4), 1, SAMPLING.replace(max_tokens=limit))
    assert len(found.ids) == limit
    assert found.finish == ("stop" if limit == 7 else "length")


def test_a_stop_string_across_two_steps_ends_the_answer() -> None:
    (whole,) = leaves(over_toy(TreeEngine, 2, 3), 1)
    stop = f"\n{letters(whole)[1]}"
    (found,) = leaves(over_toy(TreeEngine, 2, 3), 1, SAMPLING.replace(stop=(stop,)))
    assert found.ids == whole.ids[:3]
    assert found.stop == stop
    assert found.finish == "stop"


# ------------------------------------------------------------------------------------------- beams
@pytest.mark.parametrize(("width", "branches"), [(1, 3), (2, 2), (3, 4), (4, 1)])
def test_a_beam_is_what_a_plain_loop_finds(width: int, branches: int) -> None:
    kept = [Partial()]
    drawn_tokens = 0
    for number in range(LINES + 1):
        candidates = [p for p in kept if p.finish]
        for place, beginning in enumerate(kept):
            for copy in range(
                0 if beginning.finish else (branches if number else width * branches)
            ):
                new = drawn(beginning, "beam", number, place, copy)
                drawn_tokens += len(new.ids) - len(beginning.ids)
                if all(new.ids != other.ids for other in candidates):
                    candidates.append(new)
        # stable: the first of equal values comes first
        kept = sorted(candidates, key=worth_of, reverse=True)[:width]

    engine = over_toy(Beam, width, branches)
    assert asyncio.run(engine.search(prompt(), SAMPLING)) == kept[0]
    assert engine.sampled_tokens == drawn_tokens


def test_a_wide_beam_finds_the_best_answer_of_all() -> None:
    found = asyncio.run(over_toy(Beam, 27, 27).search(prompt(), SAMPLING))
    assert letters(found) == "ccc"


def test_whole_answers_as_steps_are_best_of_n() -> None:
    found = asyncio.run(over_toy(Beam, 1, 8, by="answer").search(prompt(), SAMPLING))
    answers = [drawn(Partial(), "beam", 0, 0, copy, whole=True) for copy in range(8)]
    assert found == max(answers, key=worth_of)


def test_without_a_value_model_the_mean_log_prob_decides() -> None:
    found = asyncio.run(over_toy(BeamEngine, 1, 8, by="answer").search(prompt(), SAMPLING))
    answers = [drawn(Partial(), "beam", 0, 0, copy, whole=True) for copy in range(8)]
    assert found == max(answers, key=lambda p: math.fsum(p.logps) / len(p.logps))


# -------------------------------------------------------------------------------------------- MCTS
def plain_mcts(simulations: int, branches: int, exploration: float) -> tuple[Partial, Counter[str]]:
    """PUCT over dictionaries by the letters of an answer; how often each was passed."""
    partials: dict[str, Partial] = {"": Partial()}
    children: dict[str, list[str]] = {}
    prior: dict[str, float] = {}
    visits, total = Counter({"": 1}), Counter[str]()

    def key(partial: Partial) -> str:
        return letters(partial) + "." * bool(partial.finish)

    def chosen(parent: str) -> str:
        def score(name: str) -> float:
            mean = total[name] / visits[name] if visits[name] else worth_of(partials[name])
            return mean + exploration * prior[name] * math.sqrt(visits[parent]) / (1 + visits[name])

        return max(children[parent], key=score)

    for simulation in range(simulations):
        path = [""]
        while path[-1] in children:
            path.append(chosen(path[-1]))
        at = partials[path[-1]]
        if at.finish is None and visits[path[-1]]:
            found = [drawn(at, "mcts", simulation, copy) for copy in range(branches)]
            names = [key(p) for p in found]
            partials |= dict(zip(names, found, strict=True))
            children[path[-1]] = list(dict.fromkeys(names))
            prior |= {name: names.count(name) / branches for name in names}
            path.append(chosen(path[-1]))
        for name in path:
            visits[name] += 1
            total[name] += worth_of(partials[path[-1]])
    complete = [name for name, p in partials.items() if p.finish]
    if complete:
        return partials[max(complete, key=lambda name: worth_of(partials[name]))], visits
    last = ""
    while last in children:
        last = max(children[last], key=lambda name: visits[name])
    return drawn(partials[last], "mcts", "rest", whole=True), visits


@pytest.mark.parametrize("exploration", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("simulations", [1, 2, 9, 60])
def test_a_search_is_what_a_plain_one_finds(simulations: int, exploration: float) -> None:
    expected, _ = plain_mcts(simulations, 3, exploration)
    engine = over_toy(MCTS, simulations, 3, exploration)
    assert asyncio.run(engine.search(prompt(), SAMPLING)) == expected


def test_a_long_search_finds_the_best_answer_although_values_mislead() -> None:
    """The values of beginnings prefer a and b; whole answers of c are best."""
    found = asyncio.run(over_toy(MCTS, 400, 8, 2.0).search(prompt(), SAMPLING))
    assert letters(found) == "ccc"


# ---------------------------------------------------------------------------------------- settings
@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (TreeEngine, (1, 2), "tree: branches 1"),
        (TreeEngine, (2, 0), "depth 0"),
        (BeamEngine, (0, 1), "beam: width 0"),
        (MCTSEngine, (0, 1, 1.0), "mcts: simulations 0"),
        (MCTSEngine, (1, 1, -1.0), "exploration -1.0"),
    ],
)
def test_settings_out_of_range_are_refused(kind: Any, settings: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        over_toy(kind, *settings)


@pytest.mark.parametrize("bad", [{"by": "words"}, {"size": 0}])
def test_steps_out_of_range_are_refused(bad: Any) -> None:
    with pytest.raises(UsageError, match="steps: by"):
        StepRule(**bad)
