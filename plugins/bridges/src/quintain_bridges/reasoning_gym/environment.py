"""The environment `reasoning_gym`: one reply to each row of its data sets."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from quintain import (
    Demonstration,
    Environment,
    Message,
    Rollout,
    Score,
    Task,
    control,
    need,
    reward,
)
from quintain.errors import PolicyTimeout, RewardFault, UsageError
from quintain_scale.workers import WorkerPool

from .rows import entry_of, stored_rows
from .scoring import scored, stored_answer
from .verdicts import sound

_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
ALL, SOUND = "all", "sound"


@dataclass(frozen=True, kw_only=True)
class Puzzle(Task):
    """A row of a data set.

    Attributes:
        data_set: its name in reasoning-gym.
        config: settings of the data set, a JSON object.
        row: the row itself, which the scorer gets, as a Python literal.
    """

    data_set: str
    config: str = "{}"
    row: str


@reward(range=(0, 1))
async def their_score(
    rollout: Rollout[Puzzle, Any],
    *,
    partial: bool = True,
    seconds: float = 10.0,
    workers: WorkerPool = need(),
) -> Score:
    """What the scorer of the data set gives to the reply: the text of its last ``<answer>`` tag,
    else all of it.

    Args:
        partial: pay what is between 0 and 1, too. Off, all but a full score is 0.
        seconds: limit of a call, whose end scores as a fault of the policy.

    Raises:
        PolicyTimeout: the scorer takes longer.
        RewardFault: the scorer fails on the stored answer of the row, too.
        InfrastructureError: the worker died.
    """
    task = rollout.task
    given = _TAG.findall(rollout.reply)
    answer = (given[-1] if given else rollout.reply).strip()
    try:
        value, reason = await workers.call(
            scored, task.data_set, task.config, task.row, answer, timeout=seconds
        )
    except TimeoutError:
        raise PolicyTimeout(f"{task.data_set}: the scorer took more than {seconds:g} s") from None
    if value is None:
        raise RewardFault(f"{task.data_set}: the scorer failed: {reason}")
    value = min(max(value, 0.0), 1.0)
    return Score(value=value if partial or value == 1 else 0.0, reason=reason)


class ReasoningGym(Environment[Puzzle, None]):
    """One reply to each row of data sets of reasoning-gym, scored by their own scorers.

    Attributes:
        data_sets: names; ``sound`` stands for all whose audit shows no fault, ``all`` for all.
        weights: of data sets, 1 by default: how many times `size` rows are drawn.
        config: settings of data sets, by name, such as ``{chain_sum = {max_terms = 3}}``.
        size: rows of each data set, of which a tenth are dev and a tenth test.
        seed: of the rows.
        suffix: text after each question.
    """

    reward = their_score

    data_sets: str | tuple[str, ...] = "chain_sum"
    weights: Mapping[str, float] = field(default_factory=dict)
    config: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    size: int = 500
    seed: int = 0
    suffix: str = "Reply with the answer alone, or put it within <answer></answer>."

    def __post_init__(self) -> None:
        if self.size < 10:
            raise UsageError(f"reasoning_gym: size is {self.size}; expected at least 10")
        names = self.names()
        for setting, given in (("weights", self.weights), ("config", self.config)):
            if others := sorted(set(given) - set(names)):
                raise UsageError(
                    f"reasoning_gym: {setting} names {', '.join(others)}; data_sets does not"
                )
        if not names or any(weight <= 0 for weight in self.weights.values()):
            raise UsageError("reasoning_gym: expected data sets, with weights above 0")

    def names(self) -> tuple[str, ...]:
        """Return the names of the data sets."""
        if self.data_sets == ALL:
            return available()
        if self.data_sets == SOUND:
            return tuple(filter(sound, available()))
        return (self.data_sets,) if isinstance(self.data_sets, str) else self.data_sets

    def tasks(self, split: str) -> Iterable[Puzzle]:
        for name in self.names():
            config = json.dumps(dict(self.config.get(name, {})), sort_keys=True)
            size = max(10, round(self.size * self.weights.get(name, 1)))
            yield from _puzzles(name, config, size, self.seed, self.suffix).get(split, ())

    def demonstrations(self, split: str) -> Iterable[Demonstration]:
        for task in self.tasks(split):
            if task.answer is not None:
                yield Demonstration(prompt=task.prompt, reply=task.answer)

    @control(scores="max")
    def oracle(self, task: Puzzle, messages: Sequence[Message]) -> str:
        """Reply with the stored answer."""
        if task.answer is None:
            raise UsageError(f"{task.data_set} stores no answers, so no reply is known to be right")
        return str(task.answer)

    @control(scores="min")
    def echo(self, task: Puzzle, messages: Sequence[Message]) -> str:
        """Reply with the question."""
        return messages[-1].content

    @control(scores="min")
    def prose(self, task: Puzzle, messages: Sequence[Message]) -> str:
        """Reply with a sentence that answers nothing."""
        return "I do not know."


def available() -> tuple[str, ...]:
    """Return the names of all data sets of the installed reasoning-gym; mixtures are left out.

    Raises:
        UsageError: it is not installed.
    """
    try:
        from reasoning_gym.factory import DATASETS
    except ImportError as e:
        raise UsageError(
            f"reasoning_gym: {e}: pip install 'quintain-bridges[reasoning-gym]'"
        ) from e
    return tuple(sorted(set(DATASETS) - {"composite"}))


@cache
def _puzzles(
    name: str, config: str, size: int, seed: int, suffix: str
) -> Mapping[str, Sequence[Puzzle]]:
    """Return the tasks of a data set by split, which a hash of the question decides. Questions that
    occur twice are left out.
    """
    splits: dict[str, dict[str, Puzzle]] = {"train": {}, "dev": {}, "test": {}}
    for row in stored_rows(name, config, size, seed):
        entry = entry_of(row)
        question = str(entry["question"])
        digest = hashlib.sha256(question.encode("utf-8", "surrogatepass")).digest()
        split = {0: "dev", 1: "test"}.get(int.from_bytes(digest[:8], "big") % 10, "train")
        splits[split].setdefault(
            question,
            Puzzle(
                prompt=f"{question}\n\n{suffix}" if suffix else question,
                answer=stored_answer(entry),
                data_set=name,
                config=config,
                row=row,
            ),
        )
    return {split: tuple(tasks.values()) for split, tasks in splits.items()}
