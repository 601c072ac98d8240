"""The id of a task is a hash of its content."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain import Message, Task


class Colour(StrEnum):
    RED = "red"


class Place(NamedTuple):
    x: int
    name: str


@dataclass(frozen=True)
class Part:
    """A record in a field of a task."""

    value: Any


@dataclass(frozen=True, kw_only=True)
class Made(Task):
    """A task with a field for anything."""

    extra: Any = None


def by_asdict(task: Task) -> str:
    """The id by the definition: the fields as `dataclasses.asdict` copies them, in JSON."""
    fields = dataclasses.asdict(task)
    del fields["id"]

    def plain(value: Any) -> Any:
        return value.hex() if isinstance(value, bytes) else sorted(value, key=json.dumps)

    text = json.dumps(fields, sort_keys=True, ensure_ascii=False, default=plain)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.just(Colour.RED)
    | st.builds(Place, st.integers(), st.text())
    | st.frozensets(st.integers() | st.text())
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text(), inner)
        | inner.map(Part)
    ),
    max_leaves=10,
)
messages = st.builds(Message, st.sampled_from(["system", "user"]), st.text(), name=st.text())


@given(prompt=st.text() | st.lists(messages), answer=values, extra=values)
def test_id_is_a_hash_of_the_fields(prompt: Any, answer: Any, extra: Any) -> None:
    """Records in lists, tuples, dictionaries and records enter by their fields."""
    task = Made(prompt=prompt, answer=answer, extra=extra)

    assert task.id == by_asdict(task)


def test_a_field_without_a_stable_form_is_refused() -> None:
    """The id would be another in every process."""
    for value in (object(), Part(object()), [Part(Part(len))], Part):
        with pytest.raises(TypeError, match="has no stable form"):
            Task(prompt="x", answer=value)
    assert Task(prompt="x", answer=object(), id="mine").id == "mine"
