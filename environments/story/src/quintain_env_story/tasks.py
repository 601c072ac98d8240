"""Tasks: the condensed story before a chapter, that chapter, and the prompts of planner and scorer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from quintain import Message, Task

PLAN = "Plan the next chapter."
WRITE = "Write the next chapter by this plan."

_UNFINISHED = re.compile(r"\A\s*<think>(?!.*</think>)", re.DOTALL)
_MARK = re.compile(r"^[#*\s]*(?:detailed plan|plan|in summary)\s*:?[#*\s]*$|^\s*in summary\s*[:,]", re.I | re.M)


FILLER = (
    "It was an ordinary day and nothing that anybody would remember took place, although several people had hoped "
    "for something else, and the weather, about which much was said, did what weather does at this time of year. "
).split()


@dataclass(frozen=True, kw_only=True)
class StoryTask(Task):
    """Plan a chapter that the policy has not seen; its answer is an honest plan, where there is one.

    Attributes:
        chapter: the text that came next, as much as is scored.
        synopsis: what the prompt tells of it.
        wrong: a plan for another chapter.
        book, index: where it stands; chapters count from 1.
    """

    chapter: str
    synopsis: str
    wrong: str
    book: str = ""
    index: int = 0

    @property
    def filler(self) -> str:
        """As many words as the answer has, about nothing."""
        return " ".join(FILLER[i % len(FILLER)] for i in range(len(str(self.answer).split())))

    @property
    def empty_plans(self) -> tuple[str, ...]:
        """Plans without a thought about the next chapter: for another chapter, the synopsis once more, filler."""
        return (self.wrong, self.synopsis, self.filler)

    def planning(self) -> str:
        """The prompt without its last line."""
        return str(self.prompt).removesuffix(PLAN)


@dataclass(frozen=True, kw_only=True)
class StoryResult:
    """The plan that the scorer sees: what the reply says after its reasoning, cut to the environment's length."""

    plan: str


def story_prompt(sections: Mapping[str, str]) -> str:
    """The prompt for a plan: each section that is not empty under its heading, then the instruction."""
    parts = [f"# {heading}\n{text.strip()}" for heading, text in sections.items() if text.strip()]
    return "\n\n".join([*parts, PLAN])


def writing_prompt(task: StoryTask, plan: str) -> tuple[Message, ...]:
    """The prompt that the scorer sees. With an empty plan it is the baseline's: both have the same lines otherwise."""
    return (Message("user", f"{task.planning()}{WRITE}\n\n# Plan\n{plan}"),)


def plan_of(reply: str, words: int) -> str:
    """The plan in a *reply* (without closed reasoning): what follows its last line "Plan" or "In summary", else all.

    A reply that never ends its reasoning has no plan. At most *words* words count, so that no plan is a chapter.
    """
    if _UNFINISHED.match(reply):
        return ""
    marks = list(_MARK.finditer(reply))
    text = reply[marks[-1].end() :] if marks else reply
    pieces = re.findall(r"\S+\s*", text)
    return "".join(pieces[:words]).strip()
