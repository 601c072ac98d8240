"""Which of two policies plans the better chapters: plans, chapters written by them, and a judge of
pairs.

The question of Gurung and Lapata 2025 (arXiv:2503.22828), who asked people: a model writes a
chapter by each of two plans, and the chapters are compared.
"""

from __future__ import annotations

import asyncio
import re
import tomllib
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from itertools import islice
from statistics import fmean
from typing import Any

from quintain import Engine, InfrastructureError, LimitReached, Message, Sampling, TokenEngine
from quintain.errors import UnknownNameError, UsageError
from quintain.rollouts import Conversation, stops
from quintain.store import find_run, model_named
from quintain.types import derived_seed
from quintain_judge import Comparison, JudgeService, ReplyPair, compare

from .environment import Story
from .extract import names
from .tasks import StoryTask, plan_of, writing_prompt

CRITERIA = (
    "Its events follow from the story so far and move the plot on.",
    "Its characters act and speak as the people they are in the story.",
    "It has ideas of its own that fit the story.",
    "Conflicts and characters develop in it.",
    "Its language is clear and varied, and repeats nothing.",
)
"""What a judge model compares chapters by."""
PLAN_ITSELF = "@plan"
"""The writer that takes the plan as the chapter."""
PLAN = Sampling(temperature=0.7, max_tokens=600)
CHAPTER = Sampling(temperature=0.7, max_tokens=1500)
SLOTS = 16
"""Chapters that a local model writes at once."""


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A plan and the chapter that was written by it."""

    plan: str
    chapter: str


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Chapters of two policies on the same tasks, and what a judge says of them.

    Attributes:
        tasks: in order.
        drafts: of each task, by the model and by the one it is compared with; ``None`` where one of
            the two failed.
        comparison: of the tasks with drafts, in order.
        failures: why a task has no verdict, by the id of the task.
    """

    tasks: tuple[StoryTask, ...]
    drafts: tuple[tuple[Draft, Draft] | None, ...]
    comparison: Comparison
    failures: dict[str, str]

    @property
    def words(self) -> tuple[float, float]:
        """Mean words of the chapters of both."""
        written = [pair for pair in self.drafts if pair is not None]
        lengths = ([len(pair[side].chapter.split()) for pair in written] for side in (0, 1))
        one, other = (fmean(words) if words else 0.0 for words in lengths)
        return one, other

    def report(self) -> dict[str, Any]:
        """Return the numbers, as plain data."""
        return {
            "tasks": len(self.tasks),
            **self.comparison.counts,
            "failed": len(self.failures),
            **self.comparison.measures,
            "words": list(self.words),
            "failures": self.failures,
        }

    def lines(self) -> list[str]:
        """Return the numbers, for a person."""
        count = self.comparison.counts
        shown = [
            f"{len(self.tasks)} chapters: {count['wins']} won, {count['ties']} tied, "
            f"{count['losses']} lost, {len(self.failures)} without a verdict; {self.words[0]:.0f} "
            f"and {self.words[1]:.0f} words on average"
        ]
        for name, m in self.comparison.measures.items():
            shown.append(
                f"  {name:30} {m['value']:6.1%}  [{m['low']:.1%}, {m['high']:.1%}]  "
                f"({m['rows']:.0f} pairs)"
            )
        return shown

    def rows(self) -> list[dict[str, Any]]:
        """Return plans, chapters and verdict of each task; a missing verdict is ``null`` and has
        its failure.
        """
        values = iter(self.comparison.values)
        rows = []
        for task, pair in zip(self.tasks, self.drafts, strict=True):
            drafts = {} if pair is None else {"model": asdict(pair[0]), "against": asdict(pair[1])}
            value = None if pair is None else next(values)
            failure = {"failure": self.failures[task.id]} if task.id in self.failures else {}
            origin = {"task": task.id, "book": task.book, "chapter": task.index}
            rows.append({**origin, **drafts, "value": value, **failure})
        return rows


class Author:
    """Writes texts: a model, a server, or a control of the environment.

    Args:
        name: a run, a checkpoint, a folder or a hub id; the URL of a server up to ``/v1``, with
            ``#MODEL`` where it has several; or ``@control``.
        folder: parent folder of the runs.
    """

    def __init__(self, name: str, environment: Story, folder: str = "runs") -> None:
        self.name, self._environment, self._folder = name, environment, folder
        self.control = name.removeprefix("@") if name.startswith("@") else ""
        if self.control and self.control not in environment.controls() and name != PLAN_ITSELF:
            hint = f"Story has: {', '.join(environment.controls())}"
            raise UnknownNameError.of("control", self.control, environment.controls(), hint)
        self.system = run_table(name, folder).get("system", environment.system)
        self._engine: Engine | None = None

    async def start(self, stack: AsyncExitStack) -> None:
        """Load the model, until *stack* is closed."""
        if self.control:
            return
        if self.name.startswith(("http://", "https://")):
            from quintain_engines.openai import OpenAIEngine

            url, _, model = self.name.partition("#")
            self._engine = await stack.enter_async_context(OpenAIEngine(base_url=url, model=model))
            return
        from quintain.engine import EmbeddedEngine
        from quintain.models import load_model

        loaded = load_model(model_named(self.name, self._folder)[0])
        engine = EmbeddedEngine.sharing(
            loaded.module, loaded.tokenizer, slots=SLOTS, reproducible=False
        )
        self._engine = await stack.enter_async_context(engine)

    async def write(self, task: StoryTask, messages: Sequence[Message], sampling: Sampling) -> str:
        """Return the reply to *messages*, without closed reasoning.

        Raises:
            LimitReached: the prompt leaves no room in the context of the model.
            InfrastructureError: the model failed.
        """
        engine = self._engine
        if engine is None:
            return str(getattr(self._environment, self.control)(task, messages))
        if not isinstance(engine, TokenEngine):
            text = (await engine.reply(messages, (), sampling)).text
        else:
            conversation = Conversation(engine.tokenizer)
            for message in messages:
                conversation.add(message)
            sampled = await engine.sample(
                conversation.prompt_ids(), stops(engine.tokenizer, sampling)
            )
            text = conversation.add_sampled(sampled)
        return re.sub(r"\A.*</think>", "", text, flags=re.DOTALL).strip()

    async def plan(self, task: StoryTask, sampling: Sampling) -> str:
        """Return a plan of the next chapter."""
        system = [Message("system", self.system)] if self.system else []
        reply = await self.write(task, [*system, Message("user", str(task.prompt))], sampling)
        return plan_of(reply, self._environment.plan_words)


async def quality(
    authors: tuple[Author, Author],
    writer: Author,
    judge: JudgeService,
    tasks: Sequence[StoryTask],
    *,
    criteria: Sequence[str] = (),
    plan: Sampling = PLAN,
    chapter: Sampling = CHAPTER,
    progress: Callable[[], object] = lambda: None,
) -> Quality:
    """Plan and write a chapter for each of *tasks* with both *authors*, and compare them in pairs.

    A task where a model or the judge fails has no verdict: it is counted, and never lost by either.

    Args:
        writer: writes the chapters of both, so that only the plans differ; `PLAN_ITSELF` takes
            plans as chapters.
        judge: started; any.
        criteria: what chapters are compared by; by default `criteria_of`.
        progress: called after each draft and after each comparison.
    """
    failures: dict[str, str] = {}

    async def draft(author: Author, task: StoryTask) -> Draft:
        # The seed is that of the task: equal plans become equal chapters, which tie.
        seed = derived_seed("story/quality", task.id)
        text = await author.plan(task, replace(plan, seed=seed))
        if writer.name == PLAN_ITSELF:
            return Draft(plan=text, chapter=text)
        written = await writer.write(task, writing_prompt(task, text), replace(chapter, seed=seed))
        return Draft(plan=text, chapter=written)

    async def drafted(task: StoryTask) -> tuple[Draft, Draft] | None:
        try:
            one, other = await asyncio.gather(*(draft(author, task) for author in authors))
        except (InfrastructureError, LimitReached) as e:
            failures[task.id] = str(e)
            return None
        finally:
            progress()
        return one, other

    drafts = await asyncio.gather(*map(drafted, tasks))
    written = [(task, pair) for task, pair in zip(tasks, drafts, strict=True) if pair is not None]
    pairs = [
        ReplyPair(
            prompt=task.planning().strip(),
            a=one.chapter,
            b=other.chapter,
            criteria=tuple(criteria) or criteria_of(task, judge),
        )
        for task, (one, other) in written
    ]
    comparison = await compare(judge, pairs, progress)
    failures.update({written[i][0].id: why for i, why in comparison.failures.items()})
    return Quality(
        tasks=tuple(tasks), drafts=tuple(drafts), comparison=comparison, failures=failures
    )


def criteria_of(task: StoryTask, judge: JudgeService) -> tuple[str, ...]:
    """Return what chapters of *task* are compared by: `CRITERIA`, or what rules can decide where
    rules judge.

    Rules count who or what the real chapter names (words with a digit in a generated story), and
    repetition. That tests the path and tells nonsense from a chapter; it is no measure of quality.
    """
    if not judge.offline:
        return CRITERIA
    known = dict.fromkeys([*re.findall(r"\w*\d\w*", task.chapter), *names(task.chapter)])
    return (*(f'Mentions "{name}".' for name in list(known)[:8]), "Repeats no sentence.")


def run_table(name: str, folder: str = "runs") -> dict[str, Any]:
    """Return the table of the environment `story` in the recipe of the run *name*; empty where that
    is no run, or has none.

    Raises:
        UsageError: the recipe is damaged.
    """
    try:
        path = find_run(name, folder) / "recipe.toml"
    except UnknownNameError:
        return {}
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get("environments", [])
        return next((dict(t) for t in tables if str(t["use"]).rpartition("/")[2] == "story"), {})
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        raise UsageError(f"the recipe {path} is damaged: {e}") from e


def tasks_of(environment: Story, split: str, count: int) -> list[StoryTask]:
    """Return the first *count* tasks of *split*.

    Raises:
        UsageError: there are none.
    """
    tasks = list(islice(environment.tasks(split), count))
    if not tasks:
        raise UsageError(f"story has no tasks in the split {split!r}; take another --split")
    return tasks
