"""Rewards of answers that were searched for.

The answer is read from the last reply of the policy alone, which has no token of a tool; passages
count as evidence only where a tool returned them in the same episode.
"""

from __future__ import annotations

from quintain import Rollout, Score, reward

from .answers import CitedAnswer, contains, exact, f1, read_answer
from .tasks import SearchResult, SearchTask

Found = Rollout[SearchTask, SearchResult]


def answer_of(rollout: Found) -> CitedAnswer | None:
    """Return the answer of the last turn; None where it called a tool, or has not exactly one
    answer.

    Raises:
        TypeError: the episode is not one of a search environment.
    """
    if not isinstance(rollout.result, SearchResult):
        raise TypeError(
            "the rewards of search need an environment that searches; same_answer compares any "
            "reply"
        )
    return read_answer(rollout.reply) if rollout.result.final else None


@reward(range=(0, 1))
def exact_match(rollout: Found) -> Score:
    """Return 1 where the answer is one of the task's, normalized as SQuAD does it, else 0."""
    answer = answer_of(rollout)
    if answer is None:
        return Score(value=0.0, reason="expected one <answer>...</answer> in the last reply")
    right = any(exact(answer.text, gold) for gold in rollout.task.answers)
    return Score(
        value=float(right),
        reason="" if right else f"{answer.text[:40]!r} is not {rollout.task.answer!r}",
    )


@reward(range=(0, 1))
def answer_f1(rollout: Found) -> float:
    """Return the best F1 of the words of the answer with one of the task's (Rajpurkar et al. 2016,
    arXiv:1606.05250); 0 without an answer.
    """
    answer = answer_of(rollout)
    return (
        max((f1(answer.text, gold) for gold in rollout.task.answers), default=0.0)
        if answer
        else 0.0
    )


@reward(range=(0, 1))
def citation(rollout: Found) -> Score:
    """Return 1 where the answer cites passages, and each of them was returned in this episode and
    contains the answer, else 0.
    """
    answer = answer_of(rollout)
    if answer is None or not answer.citations:
        return Score(value=0.0, reason="no answer with a citation")
    for id_ in answer.citations:
        passage = rollout.result.passage(id_)
        if passage is None:
            return Score(value=0.0, reason=f"no tool returned [{id_[:40]}]")
        if not contains(passage, answer.text):
            return Score(value=0.0, reason=f"[{id_[:40]}] does not contain {answer.text[:40]!r}")
    return Score(value=1.0)


@reward(range=(0, 1))
def answer_format(rollout: Found) -> float:
    """Return 1 where the last reply is an answer with citations and nothing else, and no call was
    unreadable or refused, else 0.
    """
    answer = answer_of(rollout)
    refused = any(call.error for turn in rollout.turns for call in turn.calls)
    return float(answer is not None and answer.plain and bool(answer.citations) and not refused)


@reward
def tool_calls(rollout: Found, *, free: int = 0) -> float:
    """Return the number of tool calls beyond *free* ones; give it a negative weight."""
    return float(max(0, rollout.result.calls - free))
