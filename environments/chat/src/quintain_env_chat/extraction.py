"""Structured extraction: a sentence, and the keys to write as a JSON object."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from random import Random
from typing import Any

from quintain import Demonstration, Environment, Message, Rollout, Score, Task, control, reward
from quintain.errors import UsageError
from quintain.evaluation import WrongAnswers

from .records import ASIDES, KINDS, REQUESTS, RecordKind, listed, value_of


def read_object(text: str) -> dict[str, Any] | None:
    """Return the JSON object that *text* is, blank space around it aside; ``None`` if it is anything
    else, also where a key stands twice.
    """
    try:
        value = json.loads(text, object_pairs_hook=_without_doubles, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key stands twice")
    return dict(pairs)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def same_value(a: Any, b: Any) -> bool:
    """Return whether two JSON values are equal; ``true`` is no number, and 12 equals 12.0."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same_value, a, b))
    return (type(a) is type(b) and bool(a == b)) or _both_numbers(a, b)


def _both_numbers(a: Any, b: Any) -> bool:
    return isinstance(a, (int, float)) and isinstance(b, (int, float)) and a == b


@reward(range=(0, 1))
def right_object(rollout: Rollout[Task, Any]) -> Score:
    """Return 1 where the reply is the right JSON object and nothing else, in any order of keys, else
    0.
    """
    expected = json.loads(str(rollout.task.answer))
    found = read_object(rollout.reply)
    if found is None:
        return Score(value=0.0, reason="the reply is not a JSON object alone")
    for key, value in expected.items():
        if key not in found:
            return Score(value=0.0, reason=f"{key!r} is missing")
        if not same_value(found[key], value):
            return Score(value=0.0, reason=f"{key!r} is {str(found[key])[:40]!r}, not {value!r}")
    if others := [key for key in found if key not in expected]:
        return Score(value=0.0, reason=f"{others[0][:40]!r} was not asked for")
    return Score(value=1.0)


@reward(range=(0, 1))
def right_fields(rollout: Rollout[Task, Any]) -> float:
    """Return the share of the keys, of the task and of the reply, whose values are right; 0 where the
    reply is not a JSON object alone.
    """
    expected = json.loads(str(rollout.task.answer))
    found = read_object(rollout.reply)
    if found is None:
        return 0.0
    right = sum(key in found and same_value(found[key], expected[key]) for key in expected)
    return right / len(expected.keys() | found.keys())


class RecordExtraction(WrongAnswers, Environment[Task, None]):
    """Sentences of many forms to JSON: text, numbers, dates, times and lists, generated offline.

    The exact object is right, in any order of keys. Whatever else was written counts as wrong. No
    name and no sentence of ``dev`` or ``test`` is in ``train``, nor in the other.

    Attributes:
        keys: numbers of keys of the records, of 3 to 6; each task draws a kind of record among them.
        lists: whether records have lists; they are the hardest values of a small model.
        shown: worked examples, at most 4, that stand as turns before the task: records of the same
            kind, with other sentences and names, of ``train`` in all splits. Without one a small
            model often writes another form.
        other_names: whether people, cities and products of ``dev`` and ``test`` have names of lists
            that no split has otherwise. Those of ``test`` are few: its accuracy hangs on three cities
            and two products.
        asides: share of the tasks with a sentence before or after that says nothing of the record.
        size: tasks in ``dev`` and in ``test``; ``train`` is endless.
        seed: of the tasks drawn.
    """

    reward = right_object
    shaping = right_fields

    keys: tuple[int, ...] = (3, 4, 5, 6)
    lists: bool = True
    shown: int = 1
    other_names: bool = False
    asides: float = 0.5
    size: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        if not self._kinds() or set(self.keys) - {3, 4, 5, 6}:
            raise UsageError(f"extraction: keys is {self.keys!r}; expected some of 3, 4, 5 and 6")
        if not 0 <= self.shown <= 4:
            raise UsageError(f"extraction: shown is {self.shown}; expected 0 to 4")
        if not 0 <= self.asides <= 1:
            raise UsageError(f"extraction: asides is {self.asides}; expected a share, 0 to 1")
        if self.size < 1:
            raise UsageError(f"extraction: size is {self.size}; expected at least 1")

    def tasks(self, split: str) -> Iterable[Task]:
        drawn = self._drawn(split)
        return drawn if split == "train" else islice(drawn, self.size)

    def demonstrations(self, split: str) -> Iterable[Demonstration]:
        for task in self.tasks(split):
            yield Demonstration(prompt=task.prompt, reply=str(task.answer))

    def stating(self, answer: str) -> str:
        return answer

    @control(scores="min")
    def chatty(self, task: Task, messages: Sequence[Message]) -> str:
        """Reply with the right object after a sentence."""
        return f"Here is the JSON: {task.answer}"

    @control(scores="min")
    def texts(self, task: Task, messages: Sequence[Message]) -> str:
        """Reply with every value as a text, numbers and lists too."""
        record = json.loads(str(task.answer))
        return json.dumps({key: str(value) for key, value in record.items()})

    def _kinds(self) -> list[RecordKind]:
        kinds = [kind for kind in KINDS if len(kind.fields) in self.keys]
        return [kind for kind in kinds if self.lists or not kind.has_list]

    def _drawn(self, split: str) -> Iterator[Task]:
        rng = Random(f"{self.seed}/{split}/extraction")
        kinds, seen = self._kinds(), set()
        while True:
            kind = rng.choice(kinds)
            sentence = rng.choice(kind.sentences(split))
            request = rng.choice(REQUESTS).format(keys=listed(list(kind.fields)))
            names = "other" if self.other_names and split != "train" else split
            told, record = self._record(kind, sentence, split, rng, names=names)
            text = f"{told}\n{request}"
            others = [other for other in kind.train if other != sentence]
            turns: list[Message] = []
            for other in rng.sample(others, self.shown):
                shown_text, shown_record = self._record(kind, other, "train", rng, names="train")
                turns.append(Message("user", f"{shown_text}\n{request}"))
                turns.append(Message("assistant", shown_record))
            if text not in seen:
                seen.add(text)
                yield Task(
                    prompt=[*turns, Message("user", text)] if turns else text,
                    answer=record,
                    level=len(kind.fields),
                )

    def _record(
        self, kind: RecordKind, sentence: str, split: str, rng: Random, *, names: str
    ) -> tuple[str, str]:
        """Draw a record of *kind* with the words of *names*, beside a sentence of *split*: the text
        that tells it, and the object in JSON.
        """
        drawn = {key: value_of(what, names, rng) for key, what in kind.fields.items()}
        words = {key: words for key, (_, words) in drawn.items()}
        told = sentence.format(**words)
        text = told[0].upper() + told[1:]
        if rng.random() < self.asides:
            aside = rng.choice(ASIDES[split]).format(
                person=value_of("person", split, rng)[1],
                city=value_of("city", split, rng)[1],
                number=value_of("number 3 60", split, rng)[1],
            )
            text = f"{aside} {text}" if rng.random() < 0.5 else f"{text} {aside}"
        return text, json.dumps({key: value for key, (value, _) in drawn.items()})
