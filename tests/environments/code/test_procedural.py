"""Generated functions: text and value agree, hidden calls differ from visit to visit and tell each
mistake.
"""

from __future__ import annotations

from itertools import islice
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.errors import UsageError
from quintain.types.task import content_hash
from quintain_env_code.expressions import PRECEDENCE, append, compute, prepend_minus, render
from quintain_env_code.functions import KINDS, Call, Function, Specification
from quintain_env_code.procedural import CASES, CodeProcedural, GeneratedTask, calls_of

LEVELS = (1, 2, 3)


def drawn(count: int, seed: int = 0) -> list[GeneratedTask]:
    return list(islice(CodeProcedural(levels=LEVELS, seed=seed).tasks("train"), count))


def defined(text: str, name: str) -> Any:
    """The function that Python makes of *text*, which is the environment's own."""
    names: dict[str, Any] = {}
    exec(text, names)
    return names[name]


def outcome(function: Any, arguments: tuple[Any, ...]) -> Any:
    try:
        return repr(function(*arguments))  # tells 2 from 2.0
    except Exception as e:
        return type(e)


def passes(function: Any, calls: tuple[Call, ...]) -> bool:
    return all(outcome(function, call.arguments) == repr(call.expected) for call in calls)


def test_python_computes_what_the_specification_says() -> None:
    """The text of each function, right or with a slip, returns the value that is computed without
    it.
    """
    rng = Random(0)
    for task in drawn(300):
        s = task.specification
        for function in (s.function(), *s.slipped()):
            ours = defined(function.text(task.name, s.parameters), task.name)
            for _ in range(6):
                arguments = s.arguments(rng)
                assert outcome(function.value, arguments) == outcome(ours, arguments), (
                    task.prompt,
                    arguments,
                )


TREES = st.recursive(
    st.sampled_from(["x", "y"]) | st.integers(1, 4),
    lambda trees: st.tuples(
        st.sampled_from(["+", "-", "*", "//", "%", "max", "min"]), trees, trees
    ),
    max_leaves=6,
)


@given(TREES, st.integers(-9, 9), st.integers(-9, 9))
def test_brackets_are_written_where_python_needs_them(tree: Any, x: int, y: int) -> None:
    """An expression has the value of its tree, and no pair of brackets can go."""
    values = {"x": x, "y": y}
    try:
        expected = compute(tree, values)
    except ZeroDivisionError:
        return
    assert eval(render(tree), {**values, "max": max, "min": min}) == expected


@given(TREES, st.sampled_from([*PRECEDENCE][:5]), st.integers(1, 4))
def test_a_missing_pair_of_brackets_is_read_as_python_reads_it(
    tree: Any, operator: str, k: int
) -> None:
    """Appending and prepending without brackets give the trees of the texts."""
    assert f"{render(tree)} {operator} {k}" == render(append(tree, operator, k))
    assert f"{k} - {render(tree)}" == render(prepend_minus(k, tree))


@pytest.mark.more
def test_hidden_calls_tell_every_mistake() -> None:
    """A function with one slip, or of a neighbouring specification, passes at no visit, unless it
    is equivalent.
    """
    for task in drawn(40, seed=1):
        s, rng = task.specification, Random(1)
        tried = [s.arguments(rng) for _ in range(100)]
        right = s.function()
        assert passes(right.value, task.calls(0))
        for mistaken in (*s.slipped(), *s.neighbours()):
            differs = sum(outcome(mistaken.value, a) != outcome(right.value, a) for a in tried)
            if differs > 10:  # any pool has such arguments
                assert not passes(mistaken.value, task.calls(0)), (task.prompt, mistaken.lines)
                assert not passes(mistaken.value, task.calls(1)), (task.prompt, mistaken.lines)


def table(calls: tuple[Call, ...]) -> Function:
    """A function that knows these calls by heart, and answers the most frequent result
    otherwise.
    """
    known = {repr(call.arguments): call.expected for call in calls}
    results = [repr(call.expected) for call in calls]
    usual = next(
        call.expected for call in calls if repr(call.expected) == max(results, key=results.count)
    )
    return Function(lines=(), value=lambda *arguments: known.get(repr(arguments), usual))


@pytest.mark.more
def test_a_table_of_other_visits_passes_no_visit() -> None:
    """Neither visible examples nor all hidden calls of an earlier visit are a solution; nor is a
    constant.
    """
    for task in islice(CodeProcedural(examples=4).tasks("train"), 40):
        assert not passes(table(task.examples).value, task.calls(0))
        known = [call for visit in range(10) for call in task.calls(visit)]
        assert not passes(table((*task.examples, *known)).value, task.calls(10)), task.prompt
        for call in task.calls(0):
            assert not passes(lambda *_, value=call.expected: value, task.calls(0))


def test_calls_are_the_same_for_a_visit_and_new_at_the_next() -> None:
    """Samples of one group face the same calls; examples are never among them."""
    for task in islice(CodeProcedural(examples=3).tasks("dev"), 50):
        assert task.calls(3) == task.calls(3)
        assert task.calls(3) != task.calls(4)
        assert len(task.calls(3)) >= CASES
        assert not {repr(c.arguments) for c in task.examples} & {
            repr(c.arguments) for c in task.calls(3)
        }
        assert 3 == len(task.examples) == task.prompt.count(" == ")


@pytest.mark.more
def test_splits_are_disjoint_by_content() -> None:
    """For any seed, and whatever the function and its parameters are called."""

    def contents(split: str, seed: int) -> set[Specification]:
        tasks = [
            t.specification
            for t in islice(CodeProcedural(levels=LEVELS, seed=seed).tasks(split), 300)
        ]
        return {s.renamed(dict(zip(s.parameters, "xyzw", strict=False))) for s in tasks}

    assert not contents("train", 0) & contents("dev", 1)
    assert not contents("train", 1) & contents("test", 0)
    assert not contents("dev", 0) & contents("test", 1)


def test_tasks_are_reproducible_and_varied() -> None:
    """The same fields give the same tasks; dev and test have the size asked for, of all kinds and
    levels.
    """
    first, again = (list(CodeProcedural(size=120).tasks("dev")) for _ in range(2))
    assert first == again
    assert 120 == len(first) == len({task.id for task in first})
    assert set(KINDS) == {task.specification.kind for task in first}
    assert {2, 3} == {task.level for task in first}
    assert all(task.id == content_hash(task) for task in first)


@pytest.mark.keeps("numbers")
@pytest.mark.parametrize("kind", KINDS)
def test_a_small_domain_ends(kind: str) -> None:
    """A finite split of few distinct problems has them all, and no more."""
    few = list(CodeProcedural(kinds=(kind,), levels=(1,), size=60).tasks("dev"))
    assert len(few) < 60
    assert len(few) == len({task.id for task in few})


@pytest.mark.more
def test_demonstrations_make_the_share_of_slips() -> None:
    """With 0 all of them are right, with 1 none that could slip is."""

    def wrong(slips: float) -> float:
        family = CodeProcedural(slips=slips)
        pairs = zip(family.tasks("train"), family.demonstrations("train"), strict=False)
        return sum(t.reply() != d.reply for t, d in islice(pairs, 300)) / 300

    assert wrong(0) == 0
    possible = (
        sum(
            any(True for _ in t.specification.slipped())
            for t in islice(CodeProcedural().tasks("train"), 300)
        )
        / 300
    )
    assert wrong(1) == pytest.approx(possible)
    assert 0.4 * possible < wrong(0.5) < possible


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kinds": ("numbrs",)}, "unknown kind 'numbrs'; did you mean 'numbers'?"),
        ({"kinds": ()}, "expected kinds"),
        ({"levels": (0,)}, "levels 1 to 3"),
        ({"slips": 1.5}, "expected a share"),
        ({"size": 0}, "at least 1"),
    ],
)
def test_wrong_settings_are_refused(fields: dict[str, Any], message: str) -> None:
    """The error names the value and what is expected."""
    with pytest.raises(UsageError, match=message.replace("?", r"\?")):
        CodeProcedural(**fields)


def test_known_arguments_are_left_out() -> None:
    """Even where the domain is small."""
    task = next(t for t in drawn(50) if t.specification.kind == "loops")
    known = calls_of(task.specification, "a")
    assert not {repr(c.arguments) for c in known} & {
        repr(c.arguments) for c in calls_of(task.specification, "b", known)
    }
