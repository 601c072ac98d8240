"""Self-critique: the policy compares its own replies, and learns to compare on pairs whose better
one is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

from quintain import (
    Environment,
    Limits,
    Message,
    Rollout,
    Score,
    Task,
    control,
    group_reward,
    need,
    reward,
)
from quintain.evaluation import WrongAnswers
from quintain_judge import JudgeService, check, checkable, explained, pair_prompt

from .core_rubrics import CORE, PRESCRIPTIVE
from .notes import beginner, notes
from .rubric import weighted


@group_reward(range=(0, 1), proxy=True)
async def self_critique(
    group: Sequence[Rollout[Any, Any]],
    *,
    criteria: Sequence[str] = (*CORE, *PRESCRIPTIVE),
    judge: JudgeService = need(),
) -> list[Score]:
    """Return for each reply the share of the group's other replies that it is better than, by
    *criteria* and those of the task.

    The self-critique of Kimi K2 (2507.20534, section 3.2.2) with ``[services.judge] use =
    "judge-policy"``: the policy compares its own replies in pairs, while verifiable tasks of the
    same run (such as `critique`) keep its judgement right. Rules decide what they can of the
    criteria where no model judges.
    """
    task = group[0].task
    task_criteria = [c.text for c in getattr(task, "criteria", ()) if c.weight > 0]
    used = [c for c in (*task_criteria, *criteria) if checkable(c) or not judge.offline]
    return explained(
        judge, group, await judge.wins(task.prompt, [rollout.reply for rollout in group], used)
    )


@reward(range=(0, 1))
def same_choice(rollout: Rollout[Task, Any]) -> float:
    """Return 1 if the reply is the label of the better reply and nothing else, else 0."""
    return float(rollout.reply.strip() == rollout.task.answer)


class Critique(WrongAnswers, Environment[Task, None]):
    """Which of two notes meets its rubric better? Rules know it, so the reward is verifiable.

    The prompt is the one that a judge gets for a pair, so that a policy which judges itself
    (`judge-policy`) is trained on what it does as a judge.
    """

    reward = same_choice
    limits = Limits(turns=1, tokens=8)

    def tasks(self, split: str) -> Iterable[Task]:
        for source in notes(split):
            good, poor = str(source.answer), beginner(source, 1.0)
            values = [
                weighted(
                    source.criteria, [float(bool(check(c.text, text))) for c in source.criteria]
                )
                for text in (good, poor)
            ]
            if values[0] <= values[1]:
                continue
            first = Random(f"{source.id}/order").random() < 0.5
            pair = (good, poor) if first else (poor, good)
            texts = [c.text for c in source.criteria if c.weight > 0]
            messages = pair_prompt(source.prompt, *pair, texts).messages()
            yield Task(prompt=messages, answer="A" if first else "B")

    def stating(self, answer: str) -> str:
        return answer

    @control(scores="min")
    def explains(self, task: Task, messages: Sequence[Message]) -> str:
        """Reply with the right label inside a sentence."""
        return f"The better reply is {task.answer}, because I am sure."
