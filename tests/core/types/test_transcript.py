"""The token-exact record: branches, paths, what trains."""

from __future__ import annotations

import copy
import math
import pickle
import struct
import tracemalloc
from dataclasses import asdict, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.types.transcript import (
    Branch,
    Recorder,
    Sampled,
    TokenSource,
    TrainingSequence,
    Transcript,
)

S = TokenSource


def said(*ids: int, version: int = 0) -> Sampled:
    return Sampled(
        ids=ids, logps=tuple(-i / 10 for i in ids), versions=(version,) * len(ids), finish="stop"
    )


def test_golden_two_turns() -> None:
    r = Recorder()
    r.add([1, 2], [S.TEMPLATE, S.PROMPT])
    r.sampled(said(3, 4, version=7))
    r.add([5], [S.TOOL])
    r.sampled(said(6, version=8))
    r.add([9], [S.TEMPLATE])
    t = r.transcript(policy="p", tokenizer="c", temperature=0.7)
    assert t.policy == "p"
    assert t.tokenizer == "c"
    assert t.temperature == 0.7
    assert t.sampled == 3
    assert t.sequences() == [
        TrainingSequence(
            ids=(1, 2, 3, 4, 5, 6),
            mask=(False, False, True, True, False, True),
            logps=(0.0, 0.0, -0.3, -0.4, 0.0, -0.6),
            versions=(-1, -1, 7, 7, -1, 8),
        )
    ]


def test_golden_branch() -> None:
    """The template drops the thought 3 4 of the first turn: both turns keep the context they were
    sampled in.
    """
    r = Recorder()
    r.add([1], [S.PROMPT])
    r.sampled(said(3, 4, 5))
    r.branch([1, 5, 2], [S.PROMPT, S.COPY, S.PROMPT])
    r.sampled(said(6))
    t = r.transcript()
    assert [(b.parent, b.fork, b.ids) for b in t.branches] == [
        (-1, 0, (1, 3, 4, 5)),
        (0, 1, (5, 2, 6)),
    ]
    first, second = t.sequences()
    assert first.ids == (1, 3, 4, 5)
    assert first.mask == (False, True, True, True)
    assert second.ids == (1, 5, 2, 6)
    assert second.mask == (False, False, False, True)
    assert r.transcript().path(1).sources[1] == S.COPY


def test_a_sampled_prefix_that_a_branch_shares_trains_on_the_first_only() -> None:
    r = Recorder()
    r.add([1], [S.PROMPT])
    r.sampled(said(2, 3))
    r.branch([1, 2, 9], [S.PROMPT, S.COPY, S.PROMPT])
    r.sampled(said(4))
    first, second = r.transcript().sequences()
    assert first.mask == (False, True, True)
    assert second.ids == (1, 2, 9, 4)
    assert second.mask == (False, False, False, True)
    assert second.logps == (0, 0, 0, -0.4)
    assert second.versions == (-1, -1, -1, 0)


def test_experts_are_those_of_the_last_turn_of_a_branch() -> None:
    """A turn has those of the whole conversation; a branch has its own, not those of its parent."""
    r = Recorder()
    r.add([1], [S.PROMPT])
    r.sampled(replace(said(2, 3), experts=("01", "10")))
    r.add([4], [S.TOOL])
    r.sampled(replace(said(5), experts=("01", "10", "12", "20")))
    r.branch([1, 2, 9], [S.PROMPT, S.COPY, S.PROMPT])
    r.sampled(replace(said(4), experts=("01", "11", "21")))
    r.branch([1, 7], [S.PROMPT, S.PROMPT])
    r.sampled(said(8))
    transcript = r.transcript()
    found = [sequence.experts for sequence in transcript.sequences()]
    assert found == [("01", "10", "12", "20"), ("01", "11", "21"), ()]
    assert transcript.path(1).experts == ("01", "11", "21")
    assert pickle.loads(pickle.dumps(transcript)) == transcript


def test_nothing_sampled_nothing_to_train() -> None:
    r = Recorder()
    assert r.transcript().sequences() == []
    r.add([1, 2], [S.PROMPT, S.PROMPT])
    assert r.transcript().sequences() == []


def test_columns_must_agree() -> None:
    with pytest.raises(ValueError, match="length"):
        Branch(ids=(1,), sources=(1,), logps=(), versions=(0,))


def test_a_thousand_branches_are_no_recursion() -> None:
    r = Recorder()
    for i in range(1500):
        r.branch([*range(i % 3), i], [S.PROMPT] * (i % 3 + 1))
        r.sampled(said(1))
    assert len(r.transcript().sequences()) == 1500


IDS = st.lists(st.integers(0, 3), max_size=4)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), IDS),
        st.tuples(st.just("say"), IDS),
        st.tuples(st.just("branch"), IDS),
    ),
    max_size=8,
)


@given(STEPS)
def test_every_sampled_token_trains_once_in_its_context(steps: list[tuple[str, list[int]]]) -> None:
    """Against a plain model that keeps the whole context of each sampled token."""
    r, context, expected, version = Recorder(), [], [], 0
    for what, ids in steps:
        if what == "add":
            r.add(ids, [S.PROMPT] * len(ids))
            context = context + ids
        elif what == "branch":
            r.branch(ids, [S.COPY] * len(ids))
            context = list(ids)
        else:
            version += 1
            r.sampled(said(*ids, version=version))
            for i in ids:
                expected.append((tuple(context), i, version))
                context = [*context, i]
        assert list(r.ids) == context
    t = r.transcript()
    trained = [
        (row.ids[:j], row.ids[j], row.versions[j])
        for row in t.sequences()
        for j, m in enumerate(row.mask)
        if m
    ]
    assert sorted(trained) == sorted(expected)
    assert t.sampled == len(expected)
    for row in t.sequences():
        assert row.mask[-1], "cut after the last sampled token"
        assert all(x == 0 for x, m in zip(row.logps, row.mask, strict=True) if not m)
        assert len(row.ids) == len(row.mask) == len(row.logps) == len(row.versions)


@given(STEPS)
def test_the_recorder_continues_after_a_snapshot(steps: list[tuple[str, list[int]]]) -> None:
    def play(look: bool) -> Transcript:
        r = Recorder()
        for what, ids in steps:
            if look:
                r.transcript()
            if what == "say":
                r.sampled(said(*ids))
            else:
                getattr(r, what)(ids, [S.PROMPT] * len(ids))
        return r.transcript()

    assert play(look=True) == play(look=False)


INTEGERS = st.integers(-(2**63), 2**63 - 1)
NUMBERS = st.floats(allow_nan=False) | st.floats(width=32, allow_nan=False)


@given(st.lists(st.tuples(INTEGERS, st.sampled_from(list(S)), NUMBERS, INTEGERS), max_size=8))
def test_columns_come_back_as_they_were_given(rows: list[tuple[int, int, float, int]]) -> None:
    """A branch keeps its columns packed; what is read, compared, hashed, copied and pickled are the
    same tuples.
    """
    ids, sources, logps, versions = zip(*rows, strict=True) if rows else ((),) * 4
    branch = Branch(ids=list(ids), sources=sources, logps=logps, versions=versions)  # type: ignore[arg-type]
    assert ids == branch.ids
    assert sources == branch.sources
    assert logps == branch.logps
    assert versions == branch.versions
    assert [math.copysign(1, x) for x in logps] == [math.copysign(1, x) for x in branch.logps]
    same = Branch(
        ids=branch.ids, sources=branch.sources, logps=branch.logps, versions=branch.versions
    )
    assert branch == same
    assert hash(branch) == hash(same)
    assert repr(branch) == repr(same)
    assert branch == pickle.loads(pickle.dumps(branch)) == copy.deepcopy(branch) == replace(branch)
    assert {
        "parent": -1,
        "fork": 0,
        "ids": ids,
        "sources": sources,
        "logps": logps,
        "versions": versions,
        "experts": (),
    } == asdict(branch)
    assert not rows or branch != replace(
        branch, logps=tuple(x + 1 if abs(x) < 1e6 else 0.5 for x in logps)
    )


def test_not_a_number_stays_one() -> None:
    branch = Branch(ids=(1,), sources=(2,), logps=(float("nan"),), versions=(0,))
    assert math.isnan(branch.logps[0])


@pytest.mark.parametrize("ids", [(2**63,), (0.5,), ("a",), (None,)])
def test_what_is_no_token_is_refused(ids: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="ids must be numbers within struct's 'q'"):
        Branch(ids=ids, sources=(0,), logps=(0.0,), versions=(0,))


def test_a_rollout_of_a_thousand_tokens_is_small() -> None:
    """Four columns of 1,024 tokens, log-probs as an engine of float32 gives them, take at most 12
    kB in all.
    """
    random = Random(0)
    logps = struct.unpack("1024f", struct.pack("1024f", *(-random.random() for _ in range(1024))))
    ids = [random.randrange(150_000) for _ in range(1024)]
    tracemalloc.start()
    branches = [
        Branch(ids=ids, sources=(2,) * 1024, logps=logps, versions=(300,) * 1024) for _ in range(50)
    ]
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size / len(branches) <= 12_000
