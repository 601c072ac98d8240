"""The environment `notes`: facts come over more turns than the context holds, questions at the end."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from string import ascii_uppercase
from typing import Literal

from quintain import (
    Agent,
    Engine,
    Environment,
    Limits,
    Message,
    Reply,
    Rollout,
    Sampling,
    Task,
    ToolSpec,
    control,
    need,
    reward,
)
from quintain.errors import ToolError, UsageError

from .compaction import compact_tool, head_of
from .splits import problems
from .tools import call

RULES = "Note capitals."
NOTES = "Notes?"
"""What asks for notes."""
FULL, END = "full: compact first", "no more pages"
"""What the tool `read` says where it shows no page."""
FACT = re.compile(r"([A-Ia-i])\d")
QUESTION = re.compile(r"\A([A-I])\?\Z")


@dataclass(frozen=True, kw_only=True)
class Diary(Task):
    """The *pages* of some days, each with a code and a rumour, and the days whose codes are *asked*
    for; `answer` has the codes of all days.
    """

    pages: tuple[str, ...]
    asked: tuple[str, ...]

    def fact(self, day: str) -> str:
        """Return the code of *day* as pages, notes and answers have it."""
        return f"{day}{self.answer[ascii_uppercase.index(day)]}"


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What was *answered*, in order; *notes* are those that the policy went on from, in order."""

    answered: tuple[str, ...]
    notes: tuple[str, ...]


@reward(range=(0, 1))
def all_answered(rollout: Rollout[Diary, Answers]) -> float:
    """Return 1 where every answer is right, else 0."""
    return float(_right(rollout) == len(rollout.task.asked))


@reward(range=(0, 1))
def share_answered(rollout: Rollout[Diary, Answers]) -> float:
    """Return the share of the questions whose answer is right."""
    return _right(rollout) / len(rollout.task.asked)


def _right(rollout: Rollout[Diary, Answers]) -> int:
    task, answered = rollout.task, rollout.result.answered
    return sum(a.strip() == task.fact(day) for a, day in zip(answered, task.asked, strict=True))


class Notes(Environment[Diary, Answers]):
    """Read a diary that is longer than the context, and answer questions about its codes.

    Each day has a letter and is a turn of its own, ``c4,C7``: a code (capital) and a rumour (small)
    in any order. The context holds the pages of `window` days. The answer to ``C?`` is ``C7`` and
    nothing else.

    Attributes:
        mode: what happens where the next page does not fit. ``"compact"``: the policy writes notes
            and goes on from them (`Agent.compact`), so that their tokens train. ``"tool"``: it
            does so when it likes, by a tool; another tool shows the pages. ``"summariser"``: the
            engine of the slot `summariser` writes them. ``"truncate"``: the oldest page goes.
        days: numbers of days that a diary may have, 2 to 9.
        window: pages that the context holds.
        questions: days that are asked for, all different.
        room: characters that notes have room for; what is longer is cut.
        slips: share of the pages of which the demonstrations note what comes first, code or rumour;
            of the others they note the code.
        size: tasks in ``dev`` and in ``test``; ``train`` is endless.
        seed: of the diaries drawn. Which split a diary belongs to does not depend on it.
    """

    reward = all_answered
    shaping = 0.5 * share_answered
    limits = Limits(turns=50)

    mode: Literal["compact", "tool", "summariser", "truncate"] = "compact"
    days: tuple[int, ...] = (6,)
    window: int = 2
    questions: int = 2
    room: int = 14
    slips: float = 0.7
    size: int = 200
    seed: int = 0
    summariser: Engine = need()

    def __post_init__(self) -> None:
        if not self.days or not 1 <= self.window < min(self.days) or max(self.days) > 9:
            raise UsageError(
                f"notes: days {self.days}, window {self.window}; expected 2 to 9 days, and a window "
                "of fewer"
            )
        if not 1 <= self.questions <= min(self.days) or min(self.room, self.size) < 1:
            raise UsageError(
                f"notes: questions {self.questions}, room {self.room}, size {self.size}; "
                "expected 1 or more, and no more questions than days"
            )
        if not 0 <= self.slips <= 1:
            raise UsageError(f"notes: slips {self.slips}; expected a share, 0 to 1")

    def tasks(self, split: str) -> Iterable[Diary]:
        for codes, pages, asked in problems(
            self._draw, split=split, size=self.size, seed=self.seed
        ):
            yield Diary(prompt=RULES, answer=codes, level=len(pages), pages=pages, asked=asked)

    def _draw(self, rng: Random) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        days = rng.choice(self.days)
        codes = "".join(str(rng.randrange(10)) for _ in range(days))
        pages = []
        for day, code in zip(ascii_uppercase, codes, strict=False):
            facts = [f"{day}{code}", f"{day.lower()}{rng.randrange(10)}"]
            rng.shuffle(facts)
            pages.append(",".join(facts))
        return codes, tuple(pages), tuple(rng.sample(ascii_uppercase[:days], self.questions))

    async def rollout(self, task: Diary, agent: Agent) -> Answers:
        notes: list[str] = []
        agent.user(task.prompt)
        if self.mode == "tool":
            await self._read_by_tools(task, agent, notes)
        else:
            await self._read(task, agent, notes)
        answered = []
        for day in task.asked:
            agent.user(f"{day}?")
            answered.append((await agent.turn()).reply)
        return Answers(answered=tuple(answered), notes=tuple(notes))

    async def _read(self, task: Diary, agent: Agent, notes: list[str]) -> None:
        """Show the pages one by one, and make room where there is none."""
        for day, page in enumerate(task.pages):
            if self.mode == "truncate" and day >= self.window:
                head = head_of(agent.messages)
                agent.rewrite([*head, *agent.messages[len(head) + 2 :]])
            elif self.mode != "truncate" and day and day % self.window == 0:
                notes.append(await self._noted_by(agent, len(notes)))
            agent.user(page)
            await agent.turn()

    async def _noted_by(self, agent: Agent, number: int) -> str:
        """Let the policy or the summariser write notes from which *agent* goes on; return them."""
        head, asked = head_of(agent.messages), Message("user", NOTES)
        if self.mode == "compact":
            turn = await agent.compact(NOTES, max_tokens=self.room + 1)  # and what ends it
            if len(turn.reply) <= self.room:
                return turn.reply
        else:
            summariser = agent.player(f"summariser-{number}", self.summariser)
            summariser.user([*agent.messages, asked])
            turn = await summariser.turn(max_tokens=self.room + 1)
        notes = turn.reply[: self.room]
        agent.rewrite([*head, asked, Message("assistant", notes)])
        return notes

    async def _read_by_tools(self, task: Diary, agent: Agent, notes: list[str]) -> None:
        """Let the policy read and compact by tools until it calls none."""
        pages, shown = list(task.pages), 0
        go_on = compact_tool(agent)

        def read() -> str:
            """Read the next page."""
            nonlocal shown
            if not pages:
                return END
            if shown == self.window:
                return FULL
            shown += 1
            return pages.pop(0)

        def compact(summary: str) -> str:
            """Forget the pages so far; only this short summary stays."""
            nonlocal shown
            if len(summary) > self.room:
                raise ToolError(f"a summary has at most {self.room} characters")
            shown = 0
            notes.append(summary)
            return go_on(summary)

        await agent.run(read, compact)

    @control()
    def demonstrator(self, task: Diary, messages: Sequence[Message]) -> str | Reply:
        """Write notes of each day; as often as `slips` says, of what its page has first."""
        return _played(messages, lambda day, facts: self._noted(task, day, facts))

    def _noted(self, task: Diary, day: str, facts: Sequence[str]) -> str:
        slips = Random(f"{task.id}/{day}").random() < self.slips
        return facts[0] if slips else _code(facts)

    @control(scores="max")
    def oracle(self, task: Diary, messages: Sequence[Message]) -> str:
        """Answer from the diary itself."""
        question = QUESTION.match(messages[-1].content)
        return task.fact(question[1]) if question else "ok"

    @control(scores="max")
    def note_taker(self, task: Diary, messages: Sequence[Message]) -> str | Reply:
        """Note all codes, and answer from what the context holds."""
        return _played(messages, lambda day, facts: _code(facts))

    @control()
    def last_pages(self, task: Diary, messages: Sequence[Message]) -> str | Reply:
        """Note the codes of the pages alone, not those of the notes before."""
        noting = messages[-1].content in (NOTES, FULL)
        seen = [m for m in messages if m.role != "assistant"] if noting else messages
        return _played(seen, lambda day, facts: _code(facts))

    @control()
    def everything(self, task: Diary, messages: Sequence[Message]) -> str | Reply:
        """Note codes and rumours, for which there is no room in the end."""
        return _played(messages, lambda day, facts: ",".join(facts))

    @control()
    def rumours(self, task: Diary, messages: Sequence[Message]) -> str | Reply:
        """Note the rumours, which nobody asks for."""
        return _played(messages, lambda day, facts: max(facts))

    @control()
    def no_notes(self, task: Diary, messages: Sequence[Message]) -> str | Reply:
        """Note nothing."""
        return _played(messages, lambda day, facts: "")

    @control(scores="min")
    def nop(self, task: Diary, messages: Sequence[Message]) -> str:
        """Reply with nothing."""
        return ""

    @control(scores="min")
    def every_code(self, task: Diary, messages: Sequence[Message]) -> str:
        """Give all codes of the diary in one answer."""
        days = ascii_uppercase[: len(task.pages)]
        return ",".join(map(task.fact, days))


class Summariser(Engine):
    """Writes perfect notes by a script, for `notes` with ``mode = "summariser"``."""

    name = "summariser"

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling
    ) -> Reply:
        written = _played(messages, lambda day, facts: _code(facts))
        return written if isinstance(written, Reply) else Reply(text=written)


def _played(messages: Sequence[Message], note: Callable[[str, Sequence[str]], str]) -> str | Reply:
    """Return a reply that follows from *messages* alone.

    Args:
        note: what notes have of a day, of its facts in the order in which they came.
    """
    facts: dict[str, list[str]] = {}  # by day, each once
    for message in messages:
        summaries = (str(c.arguments.get("summary", "")) for c in message.calls)
        for fact in FACT.finditer(" ".join([message.content, *summaries])):
            of_day = facts.setdefault(fact[1].upper(), [])
            if fact[0] not in of_day:
                of_day.append(fact[0])
    last, text = messages[-1], messages[-1].content
    if text in (NOTES, FULL):
        notes = ",".join(filter(None, (note(day, facts[day]) for day in sorted(facts))))
        return notes if text == NOTES else Reply(calls=(call("compact", summary=notes),))
    if text == RULES or (last.role == "tool" and text != END):
        return Reply(calls=(call("read"),))
    question = QUESTION.match(text)
    return _code(facts.get(question[1], [text])) if question else "ok"


def _code(facts: Sequence[str]) -> str:
    """Return the code among the *facts* of a day, else the rumour."""
    return min(facts)
