"""The comparison itself: what is found, and that nothing is found where all is right."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain import Reply, Sampling
from quintain.interfaces import LITERAL
from quintain.types import TrainingSequence
from quintain_conformance import SampledTurn, TruthEngine, compared
from quintain_conformance.tokenizer import MergingTokenizer
from quintain_conformance.truth import truth_logp

TOKENIZER = MergingTokenizer()


def log_of(prompts: Sequence[Sequence[int]], *, temperature: float = 1.0) -> list[SampledTurn]:
    async def run() -> list[SampledTurn]:
        truth = TruthEngine(
            lambda messages, again: f"reply {again}", updates=dict.fromkeys(range(1, 9), 2)
        )
        for ids in prompts:
            await truth.sample(ids, Sampling(temperature=temperature))
        return truth.log

    return asyncio.run(run())


def exact(log: Sequence[SampledTurn]) -> list[TrainingSequence]:
    """One sequence for each turn, as it was sampled."""
    return [
        TrainingSequence(
            ids=(*t.context, *t.ids),
            mask=(*(False,) * len(t.context), *(True,) * len(t.ids)),
            logps=(*(0.0,) * len(t.context), *t.logps),
            versions=(*(-1,) * len(t.context), *t.versions),
        )
        for t in log
    ]


@given(st.lists(st.lists(st.integers(0, 255), min_size=1, max_size=5), min_size=1, max_size=4))
def test_what_was_sampled_is_what_was_sampled(prompts: list[list[int]]) -> None:
    """Also where one prompt was continued several times."""
    log = log_of(prompts)
    assert compared(log, exact(log)) == []


@given(st.integers(0, 30), st.sampled_from(["ids", "mask", "logps", "versions"]))
def test_one_wrong_value_of_one_token_is_found(place: int, column: str) -> None:
    log = log_of([[1, 2, 3], [4]])
    sequences = exact(log)
    sequence = sequences[0]
    at = len(log[0].context) + place % len(log[0].ids)
    values = list(getattr(sequence, column))
    wrong = {
        "ids": values[at] + 1,
        "mask": not values[at],
        "logps": values[at] - 1e-4,
        "versions": values[at] + 5,
    }
    values[at] = wrong[column]
    sequences[0] = replace(sequence, **{column: tuple(values)})
    assert column in {d.column for d in compared(log, sequences)}


def test_what_nobody_read_may_train_or_not_and_never_twice() -> None:
    log = log_of([[1], [2]])
    whole = exact(log)
    assert compared(log, whole[:1], unread={1}) == []
    assert compared(log, whole, unread={1}) == []
    assert {d.column for d in compared(log, whole[:1])} == {"ids"}
    assert {d.column for d in compared(log, [*whole, whole[1]], unread={1})} == {"mask"}


def test_columns_that_a_layer_does_not_keep_are_not_compared() -> None:
    log = log_of([[1]])
    bare = [replace(s, logps=(), versions=()) for s in exact(log)]
    assert {d.column for d in compared(log, bare)} == {"logps", "versions"}
    assert compared(log, bare, columns=["ids", "mask"]) == []


@given(
    st.lists(st.integers(0, 290), max_size=8),
    st.integers(0, 290),
    st.floats(0.1, 2),
    st.integers(0, 9),
)
def test_a_log_prob_depends_on_everything(
    context: list[int], token: int, temperature: float, version: int
) -> None:
    (one,) = truth_logp(context, [token], temperature, [version])
    assert -8 <= one < 0
    others = [
        truth_logp([*context, 1], [token], temperature, [version]),
        truth_logp(context, [token + 1], temperature, [version]),
        truth_logp(context, [token], temperature + 0.1, [version]),
        truth_logp(context, [token], temperature, [version + 1]),
    ]
    assert all(abs(one - other) > 1e-6 for (other,) in others)


@given(st.text(max_size=40), st.integers(0, 99))
def test_what_the_policy_writes_decodes_to_its_text(text: str, seed: int) -> None:
    text = text.encode("utf-8", "replace").decode().replace(LITERAL, "")
    assert TOKENIZER.decode(TOKENIZER.written(text, Random(seed))) == text
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@given(st.text(alphabet="<|im_starend>hi é", max_size=30))
def test_spans_cover_the_text(text: str) -> None:
    ids, spans = TOKENIZER.encode_with_offsets(text)
    assert "".join(sorted({c for a, b in spans for c in text[a:b]})) == "".join(sorted(set(text)))
    assert len(ids) == len(spans)


def test_a_policy_does_not_write_as_the_tokenizer_encodes() -> None:
    """Else a layer that encodes replies again would be right."""
    text = "the answer and the part " * 4
    written = TOKENIZER.written(text, Random(0))
    assert written != TOKENIZER.encode(text)
    assert max(written) > 255


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_the_log_has_what_the_client_is_to_read(finish: str) -> None:
    async def run() -> SampledTurn:
        truth = TruthEngine(Reply(text=" hello ", finish=finish))  # type: ignore[arg-type]
        await truth.sample([1], Sampling())
        return truth.log[0]

    turn = asyncio.run(run())
    assert (turn.received.text, turn.received.stop) == ("hello", finish)
    assert (turn.ids[-1] == TOKENIZER.stop_ids[0]) is (finish == "stop")
