"""Searches over a model, against plain forward passes in float64 and plain loops in NumPy: how often
what is drawn, log-probs of answers, beam scores, visits and values of MCTS.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from quintain import Sampling
from quintain_algorithms.tree_search import (
    BeamEngine,
    MCTSEngine,
    Partial,
    SearchEngine,
    StepRule,
    TreeEngine,
)

from ....core.engine.test_embedded_engine import engine_of, run
from ....core.models.tiny import tiny_model, with_exact_norms

Array = Any
Ids = tuple[int, ...]
PROMPT = (72, 105, 10)
TEMPERATURE = 0.7
LONGEST = 3
STOP = 258
SAMPLING = Sampling(temperature=TEMPERATURE, max_tokens=LONGEST, stop_ids=(STOP,))


@cache
def model() -> Any:
    return tiny_model("qwen3", seed=4, spread=0.35)


@cache
def wide() -> Any:
    """The same numbers in float64."""
    return with_exact_norms(copy.deepcopy(model()).double())


@cache
def table(begun: Ids) -> Array:
    """Log-probs [V] of the token after the prompt and *begun*."""
    with torch.no_grad():
        logits = wide()(input_ids=torch.tensor([[*PROMPT, *begun]])).logits[0, -1].numpy()
    logits = logits / TEMPERATURE
    return logits - logits.max() - math.log(np.exp(logits - logits.max()).sum())


def plain_logps(ids: Ids) -> list[float]:
    return [float(table(ids[:k])[token]) for k, token in enumerate(ids)]


def worth(ids: Ids) -> float:
    """What a beginning is worth without a value model."""
    return sum(plain_logps(ids)) / len(ids)


def ended(ids: Ids) -> bool:
    return len(ids) == LONGEST or ids[-1:] == (STOP,)


class Noted(SearchEngine):
    """Mixed into a search: notes down what is drawn after which beginning, by the path of the draw,
    and the nodes that are expanded.
    """

    def note(self) -> None:
        self.draws: dict[tuple[object, ...], tuple[Ids, Ids]] = {}
        self.expanded: list[Any] = []

    async def extended(
        self, prompt: Ids, partial: Partial, sampling: Sampling, *path: object
    ) -> Partial:
        found = await super().extended(prompt, partial, sampling, *path)
        self.draws[path] = (partial.ids, found.ids)
        return found

    async def completed(
        self, prompt: Ids, partial: Partial, sampling: Sampling, *path: object
    ) -> Partial:
        found = await super().completed(prompt, partial, sampling, *path)
        self.draws[path] = (partial.ids, found.ids)
        return found

    async def _expand(self, prompt: Ids, node: Any, *more: Any) -> None:
        await super()._expand(prompt, node, *more)  # type: ignore[misc]
        self.expanded.append(node)


class Tree(Noted, TreeEngine):
    """Noted trees."""


class Beam(Noted, BeamEngine):
    """Noted beams."""


class MCTS(Noted, MCTSEngine):
    """Noted searches."""


def searched(kind: Any, *settings: Any, seeds: Any = (0,)) -> tuple[Any, list[Partial]]:
    """One search for each of *seeds*, of an engine over the model whose steps are single tokens."""
    engine = kind.__new__(kind)
    engine._configure(*settings)
    engine.open_policy(engine_of(model(), slots=16), StepRule(by="tokens", size=1))
    engine.note()
    found = []

    async def all_of_them() -> None:
        for seed in seeds:
            answer = await engine.sample(PROMPT, SAMPLING.replace(seed=seed))
            found.append((answer, dict(engine.draws), list(engine.expanded)))
            engine.note()

    run(all_of_them())
    return engine, found


KINDS = {"tree": (Tree, 2, 2), "beam": (Beam, 2, 3), "mcts": (MCTS, 12, 3, 1.0)}


@pytest.mark.keeps("mcts")
@pytest.mark.parametrize("name", KINDS)
def test_log_probs_of_an_answer_are_those_of_the_policy_at_its_temperature(name: str) -> None:
    for answer, draws, _ in searched(*KINDS[name], seeds=range(6))[1]:
        assert list(answer.logps) == pytest.approx(plain_logps(answer.ids), abs=2e-5)
        assert ended(answer.ids)
        assert answer.finish == ("stop" if answer.ids[-1] == STOP else "length")
        assert answer.ids in {after for _, after in draws.values()}
        assert set(answer.versions) == {0}


@pytest.mark.more
@pytest.mark.parametrize("name", KINDS)
def test_steps_are_drawn_from_the_policy(name: str) -> None:
    """Each draw has a uniform place in its distribution after the beginning that it follows, and
    equal draws beside each other are as frequent as independent ones are.
    """
    places, equal, chances = [], [], []
    draw = np.random.default_rng(0)
    for _, draws, _ in searched(*KINDS[name], seeds=range(150))[1]:
        beside: dict[Ids, list[int]] = {}
        for before, after in draws.values():
            for k in range(len(before), len(after)):
                p = np.exp(table(after[:k]))
                token = after[k]
                places.append(p[:token].sum() + draw.random() * p[token])
            beside.setdefault(before, []).append(after[len(before)])
        for before, tokens in beside.items():
            if len(tokens) > 1:
                equal.append(float(tokens[0] == tokens[1]))
                chances.append(float((np.exp(table(before)) ** 2).sum()))
    counts, _ = np.histogram(places, bins=20, range=(0, 1))
    expected = len(places) / 20  # at least 15
    assert len(places) > 300
    # of 19 degrees of freedom, exceeded with probability 1e-4 by a sampler that is right
    assert ((counts - expected) ** 2 / expected).sum() < 50.8
    spread = math.sqrt(sum(c * (1 - c) for c in chances))
    assert abs(sum(equal) - sum(chances)) <= 4 * spread


@pytest.mark.keeps("2-3")
@pytest.mark.parametrize(("width", "branches"), [(1, 4), (2, 3), (4, 2)])
def test_beams_keep_the_best_by_mean_log_prob(width: int, branches: int) -> None:
    for answer, draws, _ in searched(Beam, width, branches, seeds=range(5))[1]:
        kept: list[Ids] = [()]
        used = 0
        for number in range(LONGEST):
            copies = branches if number else width * branches
            found = [ids for ids in kept if ids and ended(ids)]
            for place, before in enumerate(kept):
                for copy_number in range(0 if before and ended(before) else copies):
                    parent, after = draws["beam", number, place, copy_number]
                    assert parent == before
                    assert after[:-1] == before
                    found.append(after)
                    used += 1
            kept = sorted(dict.fromkeys(found), key=worth, reverse=True)[:width]
            if all(map(ended, kept)):
                break
        assert answer.ids == kept[0]
        assert used == len(draws)


def plain_puct(
    draws: dict[tuple[object, ...], tuple[Ids, Ids]], simulations: int, branches: int, c: float
) -> tuple[Ids, Counter[Ids], dict[Ids, float], dict[Ids, float]]:
    """PUCT (Silver et al. 2017, "Search" in Methods) over the draws of a search; the answer, or its
    beginning where none is complete, and visits, total values and priors of the nodes.
    """
    children: dict[Ids, list[Ids]] = {}
    prior: dict[Ids, float] = {}
    visits: Counter[Ids] = Counter({(): 1})
    total: dict[Ids, float] = {(): 0.0}
    for number in range(simulations):
        path: list[Ids] = [()]
        grown = False
        while True:
            here = path[-1]
            if here not in children:
                if grown or (here and ended(here)) or not visits[here]:
                    break
                after = [draws["mcts", number, k] for k in range(branches)]
                assert {before for before, _ in after} == {here}
                children[here] = list(dict.fromkeys(ids for _, ids in after))
                for child in children[here]:
                    prior[child] = sum(ids == child for _, ids in after) / branches
                grown = True
            scores = []
            for child in children[here]:
                n = visits[child]
                q = total[child] / n if n else worth(child)
                scores.append(q + c * prior[child] * math.sqrt(visits[here]) / (1 + n))
            path.append(children[here][int(np.argmax(scores))])
        for ids in path:
            visits[ids] += 1
            total[ids] = total.get(ids, 0.0) + worth(path[-1])
    complete = [ids for ids in prior if ended(ids)]
    if complete:
        return max(complete, key=worth), visits, total, prior
    here = ()
    while here in children:
        here = max(children[here], key=lambda ids: visits[ids])
    return here, visits, total, prior


@pytest.mark.keeps("30-3-1.0")
@pytest.mark.parametrize(
    ("simulations", "branches", "c"), [(2, 2, 1.0), (30, 3, 1.0), (40, 2, 0.0), (40, 4, 3.0)]
)
def test_visits_and_values_are_those_of_puct(simulations: int, branches: int, c: float) -> None:
    """Of all nodes of a search tree; the answer is the complete node of the largest value."""
    for answer, draws, expanded in searched(MCTS, simulations, branches, c, seeds=range(4))[1]:
        best, visits, total, prior = plain_puct(draws, simulations, branches, c)
        nodes = [expanded[0], *(child for node in expanded for child in node.children)]
        assert {node.partial.ids for node in nodes} == {(), *prior}
        for node in nodes:
            ids = node.partial.ids
            assert node.visits == visits[ids]
            assert node.total == pytest.approx(total.get(ids, 0.0), abs=1e-4)
            assert node.prior == prior.get(ids, 1.0)
            assert not ids or node.value == pytest.approx(worth(ids), abs=2e-5)
        assert visits[()] == simulations + 1
        assert answer.ids[: len(best)] == best
        assert ended(answer.ids)


def test_leaves_of_a_tree_are_the_draws_along_their_paths() -> None:
    """Each step is drawn once after the step before it, and the last one runs to the end."""
    engine = Tree.__new__(Tree)
    engine._configure(2, 2)
    engine.open_policy(engine_of(model(), slots=16), StepRule(by="tokens", size=1))
    engine.note()

    async def leaves() -> list[Any]:
        return [await engine.sample(PROMPT, SAMPLING.replace(seed=5)) for _ in range(4)]

    found = run(leaves())
    for number, leaf in enumerate(found):
        _, first = engine.draws["tree", number // 2]
        assert leaf.ids[:1] == first
        assert list(leaf.logps) == pytest.approx(plain_logps(leaf.ids), abs=2e-5)
        if not ended(first):
            before, whole = engine.draws["tree", number // 2, number % 2]
            assert before == first
            assert leaf.ids == whole
    assert len(engine.draws) <= 6
