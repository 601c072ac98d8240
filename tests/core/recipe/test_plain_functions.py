"""What a plain function gets: the names of ours, of verl and of TRL, and what a turn is in each."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import pytest

from quintain import Message, Rollout, Task, Turn
from quintain.errors import RewardFault
from quintain.recipe.plain_functions import of_function
from quintain.testing import rollout

THOUGHT = "<think>two and three</think>\n5"
OPENED = "two and three</think>\n5"
CALLED = 'I add. <tool_call>{"name": "add", "arguments": {}}</tool_call>'
CHAT = [{"role": "user", "content": "2+3?"}]
TALK = [Message("system", "Be brief."), Message("user", "2+3?")]


@dataclass(frozen=True, kw_only=True)
class Row(Task):
    columns: dict[str, Any] = field(default_factory=dict)


def row(prompt: Any = "2+3?", answer: Any = "5", **columns: Any) -> Row:
    return Row(
        prompt=prompt, answer=answer, columns={"prompt": prompt, "answer": answer, **columns}
    )


PLAIN = row()
TALKED = Row(prompt="2+3?", answer="5", columns={"prompt": CHAT, "answer": "5"})
WITH_SYSTEM = Row(prompt=TALK, columns={"prompt": "2+3?", "system": "Be brief."})
EARLIER = row(earlier=CHAT)
ANOTHER_NAME = Row(prompt="2+3?", columns={"messages": CHAT})
VERL = Row(
    prompt="2+3?",
    columns={
        "prompt": CHAT,
        "data_source": "sums",
        "reward_model": {"style": "rule", "ground_truth": "5"},
        "extra_info": {"index": 7},
    },
)


def seen_by(of: Any, task: Task, *texts: str) -> Any:
    """Return what the function *of* keeps of its arguments."""
    kept: list[Any] = []
    of_function(of(kept)).score(rollout(task, *texts))
    return kept[0]


def completions_of(kept: list[Any]) -> Any:
    def score(completions: list[Any], **others: Any) -> list[float]:
        kept.append(completions)
        return [0.0]

    return score


def prompts_of(kept: list[Any]) -> Any:
    def score(prompts: list[Any], completions: list[Any]) -> list[float]:
        kept.append(prompts)
        return [0.0]

    return score


def solution_of(kept: list[Any]) -> Any:
    def score(
        data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None
    ) -> float:
        kept.append(solution_str)
        return 0.0

    return score


def completion_of(kept: list[Any]) -> Any:
    def score(completion: str) -> float:
        kept.append(completion)
        return 0.0

    return score


def said(text: str) -> list[list[dict[str, str]]]:
    return [[{"role": "assistant", "content": text}]]


SEEN = {
    "TRL: the thought": (completions_of, PLAIN, [THOUGHT], [THOUGHT]),
    "TRL: a thought that the template opened": (completions_of, PLAIN, [OPENED], [OPENED]),
    "TRL: a call": (completions_of, PLAIN, [CALLED], [CALLED]),
    "TRL: white space": (completions_of, PLAIN, [" 5\n"], [" 5\n"]),
    "TRL: a thought without an end": (completions_of, PLAIN, ["<think>5"], ["<think>5"]),
    "TRL: nothing": (completions_of, PLAIN, [""], [""]),
    "TRL: no turn": (completions_of, PLAIN, [], [""]),
    "TRL: the last of two turns": (completions_of, PLAIN, ["a", THOUGHT], [THOUGHT]),
    "TRL: a conversation": (completions_of, TALKED, [THOUGHT], said(THOUGHT)),
    "TRL: a conversation with a call": (completions_of, TALKED, [CALLED], said(CALLED)),
    "TRL: a conversation without a turn": (completions_of, TALKED, [], said("")),
    "TRL: a text with a system message": (completions_of, WITH_SYSTEM, ["5"], ["5"]),
    "TRL: a text with another conversation": (completions_of, EARLIER, ["5"], ["5"]),
    "TRL: a conversation by another name": (completions_of, ANOTHER_NAME, ["5"], said("5")),
    "TRL: verl's rows": (completions_of, VERL, [THOUGHT], said(THOUGHT)),
    "TRL: the prompt": (prompts_of, PLAIN, ["5"], ["2+3?"]),
    "TRL: the prompt of a conversation": (prompts_of, TALKED, ["5"], [CHAT]),
    "TRL: the prompt beside a system message": (prompts_of, WITH_SYSTEM, ["5"], ["2+3?"]),
    "verl: the thought": (solution_of, PLAIN, [THOUGHT], THOUGHT),
    "verl: a thought that the template opened": (solution_of, PLAIN, [OPENED], OPENED),
    "verl: a conversation": (solution_of, TALKED, [THOUGHT], THOUGHT),
    "verl: verl's rows": (solution_of, VERL, [THOUGHT], THOUGHT),
    "verl: the last of two turns": (solution_of, PLAIN, ["a", THOUGHT], THOUGHT),
    "verl: no turn": (solution_of, PLAIN, [], ""),
    "ours: without the thought": (completion_of, PLAIN, [THOUGHT], "5"),
    "ours: without one that the template opened": (completion_of, PLAIN, [OPENED], "5"),
    "ours: without the call": (completion_of, PLAIN, [CALLED], "I add."),
    "ours: of a conversation": (completion_of, TALKED, [THOUGHT], "5"),
}


@pytest.mark.parametrize("of, task, texts, seen", SEEN.values(), ids=SEEN)
def test_what_a_function_sees_of_the_policy(
    of: Any, task: Task, texts: list[str], seen: Any
) -> None:
    assert seen_by(of, task, *texts) == seen


def named(name: str, *, trl: bool) -> Any:
    """Return a function of TRL or verl that keeps its parameter *name*."""

    def of(kept: list[Any]) -> Any:
        first = "completions" if trl else "solution_str"
        made: dict[str, Any] = {"kept": kept}
        returned = "[0.0]" if trl else "0.0"
        exec(f"def score({first}, {name}):\n    kept.append({name})\n    return {returned}", made)
        return made["score"]

    return of


COLUMNS = {
    "TRL: a number stays one": ("answer", True, row(answer=5), [5]),
    "TRL: a list": ("answer", True, row(answer=["5", "five"]), [["5", "five"]]),
    "TRL: a column": ("points", True, row(points=2), [2]),
    "TRL: a null": ("points", True, row(points=None), [None]),
    "verl: the answer": ("ground_truth", False, PLAIN, "5"),
    "verl: that of reward_model": ("ground_truth", False, VERL, "5"),
    "verl: the source of the row": ("data_source", False, VERL, "sums"),
    "verl: the extra information of the row": ("extra_info", False, VERL, {"index": 7}),
    "verl: the columns": ("extra_info", False, Row(prompt="q", columns={"a": 1}), {"a": 1}),
}


@pytest.mark.parametrize("name, trl, task, seen", COLUMNS.values(), ids=COLUMNS)
def test_what_a_function_sees_of_the_row(name: str, trl: bool, task: Task, seen: Any) -> None:
    assert seen_by(named(name, trl=trl), task, "5") == seen


def think_format(completions: list[str], **others: Any) -> list[float]:
    return [float(bool(re.match("<think>.*?</think>", c, re.DOTALL))) for c in completions]


def soft_format(completions: list[Any], **others: Any) -> list[float]:
    texts = [completion[0]["content"] for completion in completions]
    return [float("</think>" in text) for text in texts]


def verl_format(solution_str: str, ground_truth: str) -> dict[str, Any]:
    thought, closed, rest = solution_str.partition("</think>")
    return {"score": float(bool(closed) and rest.strip() == ground_truth), "length": len(thought)}


async def later(completions: list[str], answer: list[str], **others: Any) -> list[float]:
    return [float(c.endswith(a)) for c, a in zip(completions, answer, strict=True)]


SCORED = {
    "a format that is kept": (think_format, PLAIN, THOUGHT, 1.0),
    "a format that is not kept": (think_format, PLAIN, "5", 0.0),
    "a format that is not closed": (think_format, PLAIN, "<think>5", 0.0),
    "a format of a conversation": (soft_format, TALKED, THOUGHT, 1.0),
    "a format of a conversation, opened before": (soft_format, TALKED, OPENED, 1.0),
    "a format of a conversation, not kept": (soft_format, TALKED, "5", 0.0),
    "verl, right": (verl_format, PLAIN, THOUGHT, 1.0),
    "verl, wrong": (verl_format, PLAIN, "<think>5</think>6", 0.0),
    "verl, without a thought": (verl_format, PLAIN, "5", 0.0),
    "a coroutine": (later, PLAIN, THOUGHT, 1.0),
}


@pytest.mark.parametrize("function, task, text, score", SCORED.values(), ids=SCORED)
def test_score_of_a_format(function: Any, task: Task, text: str, score: float) -> None:
    assert of_function(function).score(rollout(task, text)).value == score


@pytest.mark.parametrize("name", ["completion_ids", "trainer_state", "log_metric", "pixels"])
def test_what_no_row_has_is_named(name: str) -> None:
    with pytest.raises(RewardFault, match=f"no task has '{name}'"):
        seen_by(named(name, trl=True), PLAIN, "5")


def test_a_partner_is_not_the_policy() -> None:
    partner = Turn(text="6", reply="6", player="partner")
    played: Rollout[Any, Any] = rollout(PLAIN, THOUGHT)
    kept: list[Any] = []
    of_function(completions_of(kept)).score(played.replace(turns=(*played.turns, partner)))
    assert kept == [[THOUGHT]]
