"""An environment as GEPA's adapter: candidates are texts that the policy reads, scores are rewards."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from quintain import Engine, Environment, InfrastructureError, Message, Sampling, Task, TokenEngine
from quintain.errors import UsageError
from quintain.evaluation import Evaluation, evaluate, tasks_of
from quintain.rollouts import Conversation, sample_turn, stops
from quintain.store import write_atomically
from quintain.types import messages_of

SYSTEM = "system"
"""The component of a candidate that is the system message; others are arguments of the environment."""
SHOWN = 1200
"""Characters of a prompt and of a reply that the reflecting model reads."""

Candidate = Mapping[str, str]
"""Texts by component: `SYSTEM`, or the name of an argument."""
Await = Callable[[Coroutine[Any, Any, Any]], Any]
TRAIN, HELD_OUT = "train", "dev"
"""Splits: of the tasks that reflections read, and of those that decide which candidate is the best."""


class TaskPosition(NamedTuple):
    """A task as GEPA knows it. The task itself may depend on the texts of a candidate."""

    split: str
    number: int


class EnvironmentAdapter:
    """Plays tasks of *environment* with a candidate's texts, as `gepa.core.adapter` demands
    (Agrawal et al. 2025, arXiv 2507.19457).

    A rollout that failed through no doing of the policy has no score. GEPA needs a number for each
    task of a batch, and gets the mean of the others, which changes no mean. `PairedImprovement`
    leaves such a task out of a comparison, and no reflection reads it.

    Args:
        first: the texts that the search begins with.
        counts: the most tasks that are drawn, for `TRAIN` and for `HELD_OUT`.
        settings: further arguments of `quintain.evaluation.evaluate`.
        wait: runs a coroutine in the event loop of the engine, and returns its result. GEPA calls
            the adapter from another thread.
        memory: file of the first evaluation. GEPA asks for it again when it resumes a search, and
            then gets what the file has.
        with_arguments: makes the environment with other texts of its arguments. A candidate plays
            the tasks of its own environment, since `tasks` may write an argument into prompts.

    Attributes:
        tasks: those of *environment*, by split.
        failures: why rollouts have no score, and how many.
        propose_new_texts: none, so that GEPA writes its own prompt for the reflecting model.

    Raises:
        NoTasksError: a split has no tasks.
        UsageError: the system message is optimised, and a task brings its own.
    """

    propose_new_texts = None

    def __init__(
        self,
        environment: Environment[Any, Any],
        engine: Engine,
        *,
        first: Candidate,
        counts: Mapping[str, int],
        settings: Mapping[str, Any],
        wait: Await,
        memory: Path,
        with_arguments: Callable[[Mapping[str, str]], Environment[Any, Any]] | None = None,
    ) -> None:
        self._environment, self._engine, self.first = environment, engine, dict(first)
        self._with_arguments = with_arguments
        self._settings, self._wait, self._memory = settings, wait, memory
        self._counts, self._evaluations = dict(counts), 0
        self.failures: Counter[str] = Counter()
        self.tasks = {split: self._drawn(environment, split) for split in self._counts}

    def positions(self, split: str) -> list[TaskPosition]:
        """Return the tasks of *split* as GEPA gets them."""
        return [TaskPosition(split, n) for n in range(len(self.tasks[split]))]

    def evaluate(
        self, batch: list[TaskPosition], candidate: Candidate, capture_traces: bool = False
    ) -> Any:
        """Return GEPA's `EvaluationBatch` of one rollout for each task of *batch*.

        Raises:
            InfrastructureError: no rollout has a score.
            NoTasksError, UsageError: the environment has other tasks with the texts of *candidate*.
        """
        from gepa.core.adapter import EvaluationBatch

        if any(not text.strip() and text != self.first[name] for name, text in candidate.items()):
            # An empty proposal: a message would be that of the environment.
            empty = [{"score": None, "feedback": "the proposal is empty"} for _ in batch]
            return EvaluationBatch(
                outputs=empty, scores=[0.0] * len(batch), trajectories=empty, num_metric_calls=0
            )
        self._evaluations += 1
        records = self._records(batch, candidate, first=self._evaluations == 1)
        scores = [r["score"] for r in records if r["score"] is not None]
        if not scores:
            reason = next(iter(self.failures), "")
            raise InfrastructureError(
                f"all {len(records)} rollouts failed, so that a candidate has no score: {reason}"
            )
        mean = fmean(scores)
        return EvaluationBatch(
            outputs=records,
            scores=[mean if r["score"] is None else r["score"] for r in records],
            trajectories=records if capture_traces else None,
        )

    def _records(
        self, batch: list[TaskPosition], candidate: Candidate, *, first: bool
    ) -> list[dict[str, Any]]:
        """Return the records of one rollout for each task of *batch*."""
        if first and self._memory.is_file():
            remembered: list[dict[str, Any]] = json.loads(self._memory.read_text("utf-8"))
            return remembered
        arguments = dict(candidate)
        settings = dict(self._settings)
        if SYSTEM in arguments:
            settings["system"] = arguments.pop(SYSTEM)
        environment, tasks = self._environment, self.tasks
        if arguments:
            assert self._with_arguments is not None, "an argument is optimised"
            environment = self._with_arguments(arguments)
            tasks = {
                split: self._drawn(environment, split)
                for split in dict.fromkeys(place.split for place in batch)
            }
            for split, own in tasks.items():
                check_same(self.tasks[split], own, split, arguments)
        asked = [tasks[place.split][place.number] for place in batch]
        played: Evaluation = self._wait(
            evaluate(environment, self._engine, tasks=asked, **settings)
        )
        self.failures.update(played.reasons)
        records = [record_of(rollout) for rollout in played.rollouts]
        if first and any(r["score"] is not None for r in records):
            write_atomically(self._memory, json.dumps(records).encode())
        return records

    def _drawn(self, environment: Environment[Any, Any], split: str) -> list[Task]:
        """Return the tasks of *split* that a search uses."""
        name = self._settings.get("name", "")
        tasks = tasks_of(environment, split, self._counts[split], name=name)
        if SYSTEM in self.first:
            check_tasks(tasks)
        return tasks

    def make_reflective_dataset(
        self, candidate: Candidate, eval_batch: Any, components_to_update: list[str]
    ) -> dict[str, list[dict[str, str]]]:
        """Return what the reflecting model reads of each rollout that has a score."""
        records = [r for r in eval_batch.trajectories or () if r["score"] is not None]
        examples = [
            {"Inputs": r["prompt"], "Generated Outputs": r["reply"], "Feedback": r["feedback"]}
            for r in records
        ]
        return dict.fromkeys(components_to_update, examples)


class PairedImprovement:
    """Accepts a candidate whose sum of rewards on a minibatch is greater than its parent's, over
    the tasks on which both have a score.
    """

    def should_accept(self, proposal: Any, state: Any) -> bool:
        """Return whether *proposal* is better than its parent."""
        before, after = (
            [r["score"] for r in e.outputs] for e in (proposal.eval_before, proposal.eval_after)
        )
        pairs = [
            (a, b) for a, b in zip(before, after, strict=True) if a is not None and b is not None
        ]
        return bool(sum(b for _, b in pairs) > sum(a for a, _ in pairs))


def record_of(rollout: Any) -> dict[str, Any]:
    """Return what GEPA keeps of a rollout, as plain data; ``score`` is ``None`` if it failed
    through no doing of the policy.
    """
    prompt = "\n".join(m.content for m in messages_of(rollout.task.prompt))
    turns = [turn.text for turn in rollout.turns if not turn.player]
    return {
        "task": rollout.task.id,
        "prompt": _short(prompt),
        "reply": _short("\n".join(turns)) or "(nothing)",
        "score": rollout.total if rollout.valid else None,
        "feedback": feedback(rollout),
    }


def feedback(rollout: Any) -> str:
    """Return score, reasons, parts, termination and expected answer of a rollout in words."""
    lines = []
    if rollout.valid:
        lines.append(f"Score {rollout.total:.4g}.")
    if rollout.outcome is not None:
        if rollout.outcome.reason:
            lines.append(rollout.outcome.reason)
        if len(rollout.outcome.parts) > 1:
            parts = (f"{name} {value:.4g}" for name, value in rollout.outcome.parts.items())
            lines.append(f"Parts: {', '.join(parts)}.")
    ended = rollout.termination
    if ended.kind.value != "finished":
        lines.append(f"The episode ended with {ended.kind.value}: {ended.reason}.")
    answer = getattr(rollout.task, "answer", None)
    if answer is not None:
        text = answer if isinstance(answer, str) else json.dumps(answer, default=str)
        lines.append(f"Expected: {_short(text)}")
    return "\n".join(lines)


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[: SHOWN // 2]} ... {text[-SHOWN // 2 :]}"


def check_tasks(tasks: Sequence[Task]) -> None:
    """Refuse *tasks* whose system message a candidate would not replace.

    Raises:
        UsageError: a task brings a system message of its own, which stays.
    """
    for task in tasks:
        if any(m.role == "system" for m in messages_of(task.prompt)):
            raise UsageError(
                f"task {task.id!r} brings a system message of its own, which stays: there is "
                "nothing to optimise. Give the message to the class of the environment (`system = "
                "...`) instead"
            )


def check_same(first: Sequence[Task], own: Sequence[Task], split: str, texts: Candidate) -> None:
    """Refuse tasks that differ in more than their prompts, whose rewards say nothing of the texts.

    Ids are not compared: by default an id is a hash of the prompt, too.

    Args:
        first: the tasks of *split* with the texts that the search began with.
        own: those with the arguments *texts*.

    Raises:
        UsageError: there are more or fewer tasks, or a task has another answer.
    """
    if len(first) != len(own):
        found = f"{len(own)} tasks of {split!r} in place of {len(first)}"
    else:
        pairs = enumerate(zip(first, own, strict=True))
        differing = (i for i, (before, now) in pairs if before.answer != now.answer)
        if (index := next(differing, None)) is None:
            return
        before, now = first[index].answer, own[index].answer
        found = f"the answer {now!r:.60} in place of {before!r:.60} to task {index} of {split!r}"
    shown = ", ".join(f"{name} = {text!r:.200}" for name, text in texts.items())
    raise UsageError(
        f"other texts make other tasks, so that their rewards cannot be compared: there is {found} "
        f"with {shown}. Select with --text an argument that changes what the policy reads alone"
    )


async def written(engine: Engine, prompt: str, sampling: Sampling) -> str:
    """Return what *engine* answers to *prompt*, without its reasoning.

    Raises:
        LimitReached: the prompt is longer than the context of the engine.
        InfrastructureError: the engine failed.
    """
    message = Message("user", prompt)
    if not isinstance(engine, TokenEngine):
        return (await engine.reply([message], (), sampling)).text
    conversation = Conversation(engine.tokenizer)
    conversation.add(message)
    sampled = await sample_turn(
        engine, conversation.prompt_ids(), stops(engine.tokenizer, sampling)
    )
    text = conversation.add_sampled(sampled)
    return engine.tokenizer.parse(text, (), finish=sampled.finish).reply
