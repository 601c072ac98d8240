"""The policy as its own teacher: with a hint in its prompt that it does not have when it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, Self

from quintain import Message, need
from quintain.errors import UsageError
from quintain.learning import SUCCESS, reaches
from quintain.models import LoadedModel
from quintain_rewards.likelihood import fixed_copy

from .models import ModelScorer
from .teacher import Teacher, TeacherRow, TeacherScore

Hint = Literal["answer", "solution", "feedback"]
TEXTS: dict[str, str] = {
    "answer": "The answer is {hint}.",
    "solution": "A correct solution of this task:\n{hint}",
    "feedback": "Feedback on an earlier attempt at this task:\n{hint}",
}
"""What is added to the last message of the prompt, by kind of hint."""


class SelfTeacher(Teacher):
    """Scores the samples of a batch under the policy with a hint at the end of its prompt.

    A sample without a hint, such as one of a group in which no other one succeeded, has no teacher:
    its tokens have an advantage of 0.

    Args:
        hint: ``answer`` is that of the task; ``solution`` the best other reply of the group that
            succeeded; ``feedback`` the reason that the reward gave for this sample's score.
        text: added to the last message of the prompt, with ``{hint}`` in it; by default that of
            `TEXTS`.
        weights: ``now`` are those of the policy before the update, ``start`` those that it had when
            this process started the run.
        temperature: divides the logits; ``None`` takes the policy's.
        token_budget: tokens of one forward pass.
    """

    def __init__(
        self,
        *,
        hint: Hint = "answer",
        text: str = "",
        weights: Literal["now", "start"] = "now",
        temperature: float | None = None,
        token_budget: int = 4096,
        policy: Any = need("policy"),
        learner: Any = need("learner"),
        replay: Any = need("replay"),
    ) -> None:
        super().__init__()
        if hint not in TEXTS:
            raise UsageError(f"self-teacher: hint is {hint!r}; expected {', '.join(TEXTS)}")
        self._text = text or TEXTS[hint]
        if "{hint}" not in self._text:
            raise UsageError("self-teacher: text has no {hint}; say where the hint goes")
        self._hint, self._weights, self._temperature = hint, weights, temperature
        self._token_budget = token_budget
        self._policy, self._learner, self._replay = policy, learner, replay
        self._scorer: ModelScorer | None = None

    async def __aenter__(self) -> Self:
        module = self._learner.module
        if self._weights == "start":
            module = fixed_copy(module, adapters=True)
        model = LoadedModel(
            module=module,
            tokenizer=self._policy.tokenizer,
            path="self-teacher",
            context=self._policy.context,
            fused=False,
        )
        self._scorer = ModelScorer(
            [model],
            self._policy.tokenizer,
            policy_size=module.get_output_embeddings().weight.shape[0],
            token_budget=self._token_budget,
        )
        return self

    async def score(
        self, rows: Sequence[TeacherRow], *, temperature: float = 1.0, top: int | None = None
    ) -> list[TeacherScore | None]:
        if self._weights == "now":
            self.forget()
        rollouts = self._replay.rollouts
        hints = [self._hint_for(rollouts, row.sample) for row in rows]
        told = [
            self._with_hint(row, rollouts[row.sample], hint)
            for row, hint in zip(rows, hints, strict=True)
            if hint
        ]
        scores = iter(await super().score(told, temperature=temperature, top=top))
        return [next(scores) if hint else None for hint in hints]

    async def compute(
        self, rows: Sequence[TeacherRow], temperature: float, top: int | None
    ) -> list[TeacherScore]:
        if self._scorer is None:
            raise UsageError("self-teacher is not started: use `async with`")
        chosen = self._temperature if self._temperature is not None else temperature
        return await self._scorer.score(rows, chosen, top)

    def _hint_for(self, rollouts: Sequence[Any], sample: int) -> str:
        """Return the hint for a sample; empty where there is none."""
        rollout = rollouts[sample]
        if self._hint == "answer":
            return "" if rollout.task.answer is None else str(rollout.task.answer)
        if self._hint == "feedback":
            return rollout.outcome.reason if rollout.outcome is not None else ""
        others = [  # an episode of several players is there once for each of them
            other
            for other in rollouts
            if other is not rollout and other.group == rollout.group and other.outcome is not None
        ]
        best = max(others, key=lambda other: other.outcome.total, default=None)
        return best.reply if best is not None and reaches(best.outcome.total, SUCCESS) else ""

    def _with_hint(self, row: TeacherRow, rollout: Any, hint: str) -> TeacherRow:
        """Return the row with the hint at the end of its prompt's last message.

        Raises:
            UsageError: the prompt is not that of the rollout's messages, so that there is no place
                for the hint.
        """
        tokenizer, first = self._policy.tokenizer, row.positions[0]
        prompt = row.ids[:first]
        messages: Sequence[Message] = rollout.messages
        replies = [i for i, message in enumerate(messages) if message.role == "assistant"]
        for end in (*replies, len(messages)):
            before = list(messages[:end])
            if not before or tuple(tokenizer.encode(tokenizer.render(before))) != prompt:
                continue
            content = f"{before[-1].content}\n\n{self._text.format(hint=hint)}"
            before[-1] = replace(before[-1], content=content)
            longer = tuple(tokenizer.encode(tokenizer.render(before)))
            moved = len(longer) - first
            return TeacherRow(
                longer + row.ids[first:],
                tuple(p + moved for p in row.positions),
                row.environment,
                row.sample,
            )
        raise UsageError(
            f"self-teacher: the prompt of a rollout of {rollout.environment!r} is not that of its "
            "messages (it offers tools, or its history was rewritten), so there is no place for "
            "the hint; use it where an episode begins with plain messages"
        )
