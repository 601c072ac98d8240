"""Reward expressions: the text means what the same algebra in Python means, and nothing else is
accepted.
"""

from __future__ import annotations

import inspect
import sys
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintain.errors import RecipeError, UnknownNameError, UsageError
from quintain.interfaces.reward import Reward, constant, reward
from quintain.recipe.rewards import parse_reward
from quintain.types.rollout import Rollout


@reward
def brevity(rollout: Rollout[Any, Any]) -> float:
    return 1.0


@reward
def kind(rollout: Rollout[Any, Any], *, rubric: str, weights: tuple[float, ...] = ()) -> float:
    return 0.5


@reward
def near(
    rollout: Rollout[Any, Any],
    *,
    tolerance: float = 0.1,
    by: str | None = None,
    strict: bool = False,
) -> float:
    return 0.25


REWARDS: dict[str, Any] = {
    "brevity": brevity,
    "kind": kind,
    "near": near,
    "dist/kind": kind,
    "function": len,
}


def resolve(name: str) -> Any:
    if name not in REWARDS:
        raise UnknownNameError.of("reward", name, REWARDS)
    return REWARDS[name]


def parse(text: str) -> Reward:
    return parse_reward(text, resolve)


numbers = st.one_of(
    st.integers(-1000, 1000),
    st.floats(-1e6, 1e6, allow_subnormal=False).map(lambda x: round(x, 6)),
    st.just(0.1),
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
Pair = tuple[str, Any]


def literal(value: Any) -> str:
    return repr(value)


leaves: st.SearchStrategy[Pair] = st.one_of(
    st.just(("brevity", brevity)),
    texts.map(lambda t: (f"kind(rubric={literal(t)})", kind(rubric=t))),
    texts.map(lambda t: (f'use("dist/kind")(rubric={literal(t)})', kind(rubric=t))),
    st.tuples(st.floats(0, 9), st.booleans(), st.none() | texts).map(
        lambda v: (
            f"near(tolerance={v[0]!r}, strict={v[1]!r}, by={literal(v[2])})",
            near(tolerance=v[0], strict=v[1], by=v[2]),
        )
    ),
)


def branches(inner: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    two = st.tuples(inner, inner)
    scaled = st.tuples(numbers, inner)
    ramped = st.tuples(inner, st.integers(1, 99))
    bounds = st.tuples(inner, st.integers(-9, 0), st.integers(1, 9))
    return st.one_of(
        two.map(lambda p: (f"({p[0][0]} + {p[1][0]})", p[0][1] + p[1][1])),
        two.map(lambda p: (f"({p[0][0]} - {p[1][0]})", p[0][1] - p[1][1])),
        two.map(lambda p: (f"({p[0][0]}) * ({p[1][0]})", p[0][1] * p[1][1])),
        scaled.map(lambda p: (f"({p[0]!r} * ({p[1][0]}))", p[0] * p[1][1])),
        scaled.map(lambda p: (f"({p[1][0]} * {p[0]!r})", p[1][1] * p[0])),
        scaled.map(lambda p: (f"({p[0]!r} + {p[1][0]})", p[0] + p[1][1])),
        scaled.map(lambda p: (f"({p[0]!r} - ({p[1][0]}))", p[0] - p[1][1])),
        inner.map(lambda p: (f"(-({p[0]}))", -p[1])),
        bounds.map(lambda b: (f"({b[0][0]}).clip({b[1]}, high={b[2]})", b[0][1].clip(b[1], b[2]))),
        two.map(lambda p: (f"({p[0][0]}).gate({p[1][0]})", p[0][1].gate(p[1][1]))),
        two.map(lambda p: (f"({p[0][0]}).gate(by={p[1][0]}, at=0.5)", p[0][1].gate(p[1][1], 0.5))),
        ramped.map(lambda p: (f"({p[0][0]}).ramp(0, 1.5, {p[1]})", p[0][1].ramp(0, 1.5, p[1]))),
    )


@settings(deadline=None)
@given(st.recursive(leaves, branches, max_leaves=6))
def test_text_equals_the_same_algebra_in_python(pair: Pair) -> None:
    text, expected = pair
    assert parse(text) == expected


def test_the_examples_of_the_documentation() -> None:
    assert parse('0.1 * kind(rubric="polite") + near.clip(-1, 1)') == 0.1 * kind(
        rubric="polite"
    ) + near.clip(-1, 1)
    assert parse("brevity") == brevity
    assert parse("0") == constant(0)
    assert parse("2 * 3 - 1") == constant(5)
    assert parse("kind(rubric='a',\n  weights=[1, 2.0])") == kind(rubric="a", weights=(1.0, 2.0))


def test_precedence_and_grouping_are_those_of_python() -> None:
    assert parse("brevity + 2 * near * brevity") == brevity + 2 * near * brevity
    assert parse("(brevity + 2) * near") == (brevity + 2) * near
    assert parse("brevity - near - 1") == brevity - near - 1


@pytest.mark.parametrize(
    "text, column, words",
    [
        ("0.1 * knd(rubric='x')", 7, "did you mean 'kind'"),
        ("brevity + kind(rubic='x')", 11, "rubic"),
        ("brevity + kind", 11, "rubric"),
        ("kind(rubric=3)", 1, "rubric"),
        ("kind('x')", 6, "by keyword"),
        ("near(tolerance=brevity)", 16, "literal"),
        ("near(tolerance=1+1)", 16, "literal"),
        ("near(**{})", 8, "**"),
        ("brevity / 2", 11, "only + - *"),
        ("brevity ** 2", 12, "only + - *"),
        ("brevity.clip(0)", 1, "high is missing"),
        ("brevity.clip(0, 1, 2)", 20, "low, high"),
        ("brevity.clip(0, low=1)", 21, "each once"),
        ("brevity.clip(2, 1)", 1, "below"),
        ("brevity.clip(0, near)", 17, "expects a number"),
        ("brevity.gate(1)", 14, "a reward to be gated by"),
        ("brevity.ramp(0, 1, 1.5)", 20, "whole number"),
        ("brevity.ramp(0, 1, 0)", 1, "at least 1"),
        ("brevity.clp(0, 1)", 1, "did you mean 'clip'"),
        ("brevity.name", 1, "not called"),
        ("brevity.__class__()", 1, "has no"),
        ("(2).clip(0, 1)", 1, "belongs to a reward"),
        ("use('a', 'b')", 1, "one quoted name"),
        ("use(brevity)", 1, "one quoted name"),
        ("near(tolerance=1)(tolerance=2)", 1, "and once"),
        ("function", 1, "not a reward"),
        ("'brevity'", 1, "not a reward"),
        ("True * brevity", 1, "not a reward"),
        ("1e999 * brevity", 1, "too large"),
        ("1e308 * 10 + brevity", 1, "too large"),
        ("9" * 400, 1, "too large"),
        ("brevity if near else kind", 1, "no place"),
        ("brevity and near", 1, "no place"),
        ("[brevity]", 1, "no place"),
        ("lambda: 1", 1, "no place"),
        ("(x := brevity)", 2, "no place"),
        ("brevity +", 10, "cannot read"),
        ("é * brevity", 1, "unknown reward 'é'"),
        ("kind(rubric='é') * knd", 20, "knd"),
    ],
)
def test_errors_point_at_the_column(text: str, column: int, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_reward(text, resolve, where="environments.0.shaping")
    message = str(caught.value)
    assert words in message
    assert f"environments.0.shaping, column {column}:" in message
    pointer = message.splitlines()[-1]
    assert pointer == "  " + " " * (column - 1) + "^"


def test_unknown_names_keep_their_class() -> None:
    with pytest.raises(UnknownNameError, match="column 1"):
        parse("nothing")


@pytest.mark.parametrize(
    "text",
    ["", "  ", "a" * 5000, "(" * 500 + "brevity" + ")" * 500, "-" * 3000 + "brevity", "brevity\0"],
)
def test_absurd_texts_are_refused(text: str) -> None:
    with pytest.raises(RecipeError, match="reward"):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch {path}')",
        "(lambda: open('{path}', 'w'))()",
        "[open('{path}', 'w') for _ in (1,)]",
        "kind(rubric=open('{path}', 'w'))",
        'kind(rubric=f\'{{open("{path}", "w")}}\')',
        "brevity.function.__globals__",
    ],
)
def test_nothing_is_ever_evaluated(text: str, tmp_path: Any) -> None:
    path = tmp_path / "made"
    with pytest.raises(UsageError):
        parse(text.format(path=path))
    assert not path.exists()


@settings(deadline=None)
@given(st.text(max_size=60))
def test_any_text_parses_or_is_a_usage_error(text: str) -> None:
    _parses_or_usage_error(text)


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                *"()+-*.,=[]{}: '\"",
                "brevity",
                "kind",
                "rubric",
                "clip",
                "gate",
                "use",
                "1",
                "-1",
                "0.5",
            ]
        ),
        max_size=14,
    )
)
def test_any_tokens_parse_or_are_a_usage_error(tokens: list[str]) -> None:
    _parses_or_usage_error("".join(tokens))


SOUND = (
    "0.1 * kind(rubric='a') + near.clip(-1, 1)",
    "near.gate(brevity, at=0.5).ramp(0, 1.5, 9)",
    "-(near + 2) * 0.5",
)
INSERTED = (
    *"()[]{}+-*.,=:\"'~ 0é\n\\#@",
    *("lambda:", "not ", "brevity", "kind(", "f'", ".clip", "near.gate(", "1+", "{1:"),
)


def mutated(rng: Random) -> str:
    """A sound expression with one to three places where a piece is written up to 3,000 times."""
    text = rng.choice(SOUND)
    for _ in range(rng.randint(1, 3)):
        begin = rng.randrange(len(text) + 1)
        piece = rng.choice(INSERTED) * rng.choice([1, 2, 40, 90, 300, 1200, 3000])
        text = text[:begin] + piece + text[begin + rng.randint(0, 5) :]
    return text


def test_five_hundred_mutated_texts_parse_or_are_a_short_recipe_error() -> None:
    """Also where the caller's stack leaves little room, as that of a notebook or of a test does."""
    rng = Random(0)
    texts = [mutated(rng) for _ in range(500)]
    limit, depth = sys.getrecursionlimit(), len(inspect.stack(0))
    sys.setrecursionlimit(depth + 150)
    try:
        for text in texts:
            _parses_or_usage_error(text)
    finally:
        sys.setrecursionlimit(limit)


def test_the_error_in_a_long_text_shows_its_surroundings_alone() -> None:
    text = " + ".join(["brevity"] * 40) + " + kin(rubric='x')"

    with pytest.raises(UnknownNameError) as caught:
        parse(text)

    message, shown, pointer = str(caught.value).splitlines()
    assert f"column {text.index('kin') + 1}: unknown reward 'kin'" in message
    assert len(shown) <= 102
    assert shown[pointer.index("^") :][:3] == "kin"


def _parses_or_usage_error(text: str) -> None:
    try:
        found = parse(text)
    except UsageError:
        return
    assert isinstance(found, Reward)
