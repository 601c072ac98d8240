"""The exercises of the general starter: answers checked by other means than those that made
them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from quintain_starter.exercises import VOWELS, Exercise, worded
from quintain_starter.skills import SKILLS, exercise


def numbers_in(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", text)]


def counted(whole: Any, part: str | None) -> int:
    if part is None or part == "":
        return sum(1 for _ in whole)
    return len(whole.split(part)) - 1


def changed(question: str, text: str, letter: str, other: str) -> str:
    """What the first words of *question* ask for."""
    rules: list[tuple[str, Callable[[str], str]]] = [
        (r"capital|upper", lambda c: chr(ord(c) - 32)),
        (r"^Replace", lambda c: other if c == letter else c),
        (r"vowels", lambda c: re.sub(f"[{VOWELS}]", "", c)),
        (r"twice", lambda c: c + c),
        (r"(every|each|the letter) .\b", lambda c: "" if c == letter else c),
    ]
    for pattern, change in rules:
        if re.search(pattern, question):
            return "".join(map(change, text)) or "nothing"
    if "first letter" in question:
        return text.removeprefix(text[0])
    return text.removesuffix(text[-1]) if "last letter" in question else f"{text}{other}"


def filtered(numbers: list[int], rule: str, limit: int) -> list[int]:
    kept: list[int] = []
    for n in numbers:
        if {
            "even": str(n)[-1] in "02468",
            "odd": str(n)[-1] in "13579",
            "more": limit < n,
            "less": n < limit,
            "once": n not in kept,
        }[rule]:
            kept.append(n)
    return kept


def decided(kind: int, one: Any, other: Any) -> bool:
    if kind == 1:
        return bool((int(str(one)[-1]) in (0, 2, 4, 6, 8)) is other)
    return bool(
        {0: lambda: other.count(one) > 0, 2: lambda: one.find(other) >= 0, 3: lambda: one == other}[
            kind
        ]()
    )


def in_order(answer: str, items: list[Any], down: bool) -> bool:
    """The same items, each no smaller than the one before (no greater, with *down*)."""
    kind = int if isinstance(items[0], int) else str
    joined = (
        "".join(map(str, items)) if kind is str and all(len(str(i)) == 1 for i in items) else ""
    )
    found = list(answer) if joined else [kind(x) for x in re.findall(r"\w+", answer)]
    pairs = pairwise(reversed(found) if down else found)
    return Counter(found) == Counter(items) and all(a <= b for a, b in pairs)


def right(made: Exercise) -> bool:
    """Whether the answer follows from the facts, worked out another way."""
    answer, facts, asked = made.answer, made.facts, made.question
    match made.skill:
        case "copying":
            return answer == " ".join(facts[0] for _ in range(facts[1])) and facts[0] in asked
        case "reversing_letters":
            return all(answer[-1 - i] == c for i, c in enumerate(facts[0])) and len(answer) == len(
                facts[0]
            )
        case "reversing_lists":
            return answer.split(facts[1]) == list(reversed(facts[0]))
        case "spelling":
            apart, whole = sorted((answer, facts[0]), key=len, reverse=True)
            return apart[1::2] == facts[1] * (len(whole) - 1) and apart[::2] == whole
        case "counting":
            return int(answer) == counted(*facts)
        case "picking":
            return answer == facts[0][facts[1]]
        case "sorting":
            return in_order(answer, *facts)
        case "comparing" if answer in ("yes", "no"):
            low, high = numbers_in(asked)
            return (answer == "yes") == (high - low > 0 if facts[1] else low - high > 0)
        case "comparing":
            return all((n >= int(answer)) if facts[1] else (n <= int(answer)) for n in facts[0])
        case "adding" | "telling":
            return int(answer) - facts[1] == facts[0]
        case "multiplying":
            a, b = numbers_in(asked)
            return (
                int(answer) * b == a if re.search("/|ivide", asked) else sum([a] * b) == int(answer)
            )
        case "chaining":
            return int(answer.split()[-1]) == eval(facts[0])
        case "continuing" if answer.isalpha():
            return ord(answer) - ord(facts[0]) == facts[1]
        case "continuing" if " " in answer:
            ends = numbers_in(asked)
            return numbers_in(answer) == list(
                range(ends[0], ends[1] + 1)
                if ends[0] < ends[1]
                else range(ends[0], ends[1] - 1, -1)
            )
        case "continuing":
            *_, before, last = numbers_in(asked)
            return int(answer) - last == last - before
        case "changing_letters":
            return answer == changed(asked, *facts)
        case "filtering":
            return numbers_in(answer) == filtered(*facts)
        case "deciding":
            return (answer == "yes") == decided(*facts)
        case "looking_up":
            rows, who, what = facts
            return answer == str(rows[who][what]) and answer in asked
        case "writing_json":
            return bool(json.loads(answer) == facts[0])
        case "reading":
            (key,) = {*re.findall(r"\w+", facts[1])} & {item for fact in facts[0] for item in fact}
            (sentence,) = (
                told
                for told in re.split(r"[.?\n]", asked.replace(facts[1], ""))
                if key in told.split()
            )
            return answer in sentence.split() and answer != key
        case "following":
            return bool(re.findall(r"to (\w+)\.", asked)[-1:] in ([answer], []))
        case "choosing":
            return f"{answer}) {facts[1]}" in asked
        case "calling":
            return called_rightly(made)
    raise AssertionError(f"no check of {made.skill}")


def called_rightly(made: Exercise) -> bool:
    """The tool is offered, its arguments stand in the question, and the reply after a result is the
    result.
    """
    name, arguments, result = made.facts
    call = made.call or made.before[0].calls[0]
    (tool,) = (t for t in made.tools if t.name == name)
    complete = (
        set(tool.parameters["required"]) == set(call.arguments) and call.arguments == arguments
    )
    told = made.call is not None or made.answer == str(result) == made.before[1].content
    return complete and told and all(str(value) in made.question for value in arguments.values())


@pytest.mark.parametrize("skill", list(SKILLS), ids=lambda skill: skill.__name__)
def test_answers_are_right(skill: Callable[[Random, float], Exercise]) -> None:
    for number in range(200):
        made = skill(Random(f"{skill.__name__} {number}"), number / 199)
        assert right(made), made
        assert made.question, made.question
        assert not re.search(r"[][{}|]|  ", re.sub(r"\{.*\}| \| ", "", made.question)), (
            made.question
        )


def test_a_wrong_answer_is_noticed() -> None:
    """The checks above can fail."""
    for skill in SKILLS:
        made = [skill(Random(n), 0.5) for n in range(40)]
        swapped = [
            Exercise(**{**vars(a), "answer": b.answer})
            for a in made
            for b in made
            if a.answer != b.answer
        ]
        assert any(not noticed(wrong) for wrong in swapped), skill.__name__


def noticed(made: Exercise) -> bool:
    try:
        return right(made)
    except (ValueError, IndexError):
        return False


def test_the_mixture_is_a_function_of_the_generator() -> None:
    """And wordings, skills and forms of the answer are all used."""
    drawn = [exercise(Random(n)) for n in range(1500)]
    assert drawn == [exercise(Random(n)) for n in range(1500)]
    assert {made.skill for made in drawn} == {skill.__name__ for skill in SKILLS}
    for form in ("#### ", "<answer>", "\\boxed{", "Answer: ", "The answer is "):
        assert sum(made.answer.startswith(form) for made in drawn) > 5, form
    assert len({made.question for made in drawn}) > 1450


def test_difficulty_lengthens() -> None:
    easy, hard = (
        [len(exercise(Random(n), level).question) for n in range(600)] for level in (0.0, 1.0)
    )
    assert sum(easy) * 1.08 < sum(hard)


def test_wordings_nest() -> None:
    assert {worded(Random(n), "[a|b[c|d]] {x}", x=1) for n in range(60)} == {"a 1", "bc 1", "bd 1"}
