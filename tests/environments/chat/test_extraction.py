"""The environment extraction: what counts as right, and what the splits share."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.errors import UsageError
from quintain.types import messages_of
from quintain_authoring import EnvironmentSuite, run_episode
from quintain_env_chat import RecordExtraction
from quintain_env_chat.extraction import read_object
from quintain_env_chat.records import ASIDES, KINDS, OTHER_WORDS, SHARED, SPLITS, WORDS, words_of

from ...lanes import examples

TASK = next(
    task
    for task in RecordExtraction(keys=(4,), asides=0.0).tasks("dev")
    if '"ingredients"' not in task.answer
)
PERSON = '{"name": "Ada", "age": 30, "city": "Oslo"}'


class TestExtraction(EnvironmentSuite):
    environment = RecordExtraction
    episodes = 4


def graded(reply: str, record: str = PERSON) -> tuple[float, float]:
    """Outcome and shaping of *reply* where *record* is right."""
    task = TASK.__class__(prompt="?", answer=record)
    played = run_episode(RecordExtraction(), task, reply)
    return played.outcome.total, played.shaping.total if played.shaping else 0.0


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (PERSON, 1.0),
        ('{"city":"Oslo","name":"Ada","age":30}', 1.0),
        ('\n{"name": "Ada", "age": 30.0, "city": "Oslo"}\n', 1.0),
        ('{\n  "name": "\\u0041da",\n  "age": 3e1,\n  "city": "Oslo"\n}', 1.0),
        ('{"name": "Ada", "age": "30", "city": "Oslo"}', 0.0),
        ('{"name": "ada", "age": 30, "city": "Oslo"}', 0.0),
        ('{"name": "Ada", "age": true, "city": "Oslo"}', 0.0),
        ('{"name": "Ada", "age": 30}', 0.0),
        ('{"name": "Ada", "age": 30, "city": "Oslo", "job": "nurse"}', 0.0),
        ('{"name": "Ada", "age": 30, "city": "Oslo", "city": "Oslo"}', 0.0),
        ('{"name": "Bo", "name": "Ada", "age": 30, "city": "Oslo"}', 0.0),
        (f"Here it is: {PERSON}", 0.0),
        (f"{PERSON} I hope this helps.", 0.0),
        (f"{PERSON}{PERSON}", 0.0),
        (f"```json\n{PERSON}\n```", 0.0),
        (f"[{PERSON}]", 0.0),
        ("{'name': 'Ada', 'age': 30, 'city': 'Oslo'}", 0.0),
        ('{"name": "Ada", "age": NaN, "city": "Oslo"}', 0.0),
        ('{"name": "Ada", "age": 30, "city": "Oslo",}', 0.0),
        ("30", 0.0),
        ("", 0.0),
        ("[" * 100_000, 0.0),
    ],
)
def test_only_the_exact_object_alone_is_right(reply: str, expected: float) -> None:
    assert graded(reply)[0] == expected


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (PERSON, 1.0),
        ('{"name": "Ada", "age": 31, "city": "Oslo"}', 2 / 3),
        ('{"name": "Ada"}', 1 / 3),
        ('{"name": "Ada", "age": 30, "city": "Oslo", "job": "nurse"}', 3 / 4),
        ('{"job": "nurse"}', 0.0),
        (f"Sure: {PERSON}", 0.0),
    ],
)
def test_shaping_is_the_share_of_the_keys_of_both_that_are_right(
    reply: str, expected: float
) -> None:
    assert graded(reply)[1] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ('{"foods": ["rice", "beans"]}', 1.0),
        ('{"foods": ["beans", "rice"]}', 0.0),
        ('{"foods": ["rice"]}', 0.0),
        ('{"foods": "rice and beans"}', 0.0),
        ('{"foods": [["rice"], "beans"]}', 0.0),
    ],
)
def test_lists_are_compared_in_order(reply: str, expected: float) -> None:
    assert graded(reply, '{"foods": ["rice", "beans"]}')[0] == expected


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@examples(100)
@given(st.dictionaries(st.text(), JSON))
def test_what_json_writes_is_read_back(record: dict[str, object]) -> None:
    assert read_object(json.dumps(record)) == json.loads(json.dumps(record))


@examples(100)
@given(st.text())
def test_any_text_is_an_object_or_none(text: str) -> None:
    assert read_object(text) is None or text.strip().startswith("{")


def words_in(split: str) -> set[str]:
    return {word for name in WORDS if name not in SHARED for word in words_of(name, split)}


@pytest.mark.parametrize(("one", "other"), [("train", "dev"), ("train", "test"), ("dev", "test")])
def test_splits_share_no_name_and_no_sentence(one: str, other: str) -> None:
    def sentences(split: str) -> set[str]:
        return {s for kind in KINDS for s in kind.sentences(split)} | set(ASIDES[split])

    for name in set(WORDS) - SHARED:
        assert not set(words_of(name, one)) & set(words_of(name, other))
    assert not sentences(one) & sentences(other)


@pytest.mark.parametrize("split", SPLITS)
def test_every_value_stands_in_the_text_and_is_asked_for(split: str) -> None:
    for task in islice(RecordExtraction().tasks(split), 200):
        record = json.loads(task.answer)
        asked = messages_of(task.prompt)[-1].content
        for key, value in record.items():
            assert key in asked.splitlines()[-1]
            for part in value if isinstance(value, list) else [value]:
                words = f"{part:.2f}" if isinstance(part, float) else str(part)
                assert words in asked


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: next(iter(kind.fields)))
def test_every_sentence_has_every_key(kind: object) -> None:
    for split in SPLITS:
        for sentence in kind.sentences(split):  # type: ignore[attr-defined]
            assert all(f"{{{key}}}" in sentence for key in kind.fields)  # type: ignore[attr-defined]


@pytest.mark.parametrize("keys", [(3,), (4, 5), (6,)])
def test_keys_choose_the_kinds(keys: tuple[int, ...]) -> None:
    tasks = islice(RecordExtraction(keys=keys).tasks("train"), 50)

    assert {len(json.loads(task.answer)) for task in tasks} == set(keys)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("shown", [0, 1, 4])
def test_worked_examples_are_other_records_of_the_same_kind(split: str, shown: int) -> None:
    for task in islice(RecordExtraction(shown=shown, asides=0.0).tasks(split), 50):
        *turns, asked = [message.content for message in messages_of(task.prompt)]

        assert len(turns) == 2 * shown
        for text, reply in zip(turns[::2], turns[1::2], strict=True):
            assert json.loads(reply).keys() == json.loads(task.answer).keys()
            assert text != asked


@pytest.mark.parametrize("split", ["dev", "test"])
def test_other_names_are_in_no_split(split: str) -> None:
    others = {name: set(words_of(name, "other")) for name in OTHER_WORDS}
    for name, words in others.items():
        assert not words & set(WORDS[name])

    for task in RecordExtraction(keys=(3,), lists=False, other_names=True).tasks(split):
        record = json.loads(task.answer)
        named = record.get("name", record.get("guest", "")).split()
        assert set(named[:1]) <= others["first"]
        assert set(named[1:]) <= others["last"]
        assert record.get("city", "Turin") in others["city"]
        assert record.get("product", "kite") in others["product"]


def test_training_keeps_its_names() -> None:
    assert prompts(RecordExtraction(other_names=True).tasks("train"), 30) == prompts(
        RecordExtraction().tasks("train"), 30
    )


def prompts(tasks: Iterable[object], count: int) -> list[object]:
    return [task.prompt for task in islice(tasks, count)]  # type: ignore[attr-defined]


def test_a_seed_decides_the_tasks() -> None:
    first = prompts(RecordExtraction().tasks("train"), 30)

    assert prompts(RecordExtraction().tasks("train"), 30) == first
    assert prompts(RecordExtraction(seed=1).tasks("train"), 30) != first


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"keys": ()}, "keys"),
        ({"keys": (2,)}, "keys"),
        ({"keys": (3, 9)}, "keys"),
        ({"shown": 5}, "shown"),
        ({"asides": 1.5}, "asides"),
        ({"size": 0}, "size"),
    ],
)
def test_a_setting_out_of_range_is_named(settings: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError, match=f"extraction: {named} is"):
        RecordExtraction(**settings)  # type: ignore[arg-type]
