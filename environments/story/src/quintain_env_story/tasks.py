"""Tasks: the condensed story before a chapter, that chapter, and the prompts of planner and
scorer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quintain import Message, Task

PLAN = "Plan the next chapter."
WRITE = "Write the next chapter by this plan."

_UNFINISHED = re.compile(r"\A\s*<think>(?!.*</think>)", re.DOTALL)
_MARK = re.compile(
    r"^[#*\s]*(?:detailed plan|plan|in summary)\s*:?[#*\s]*$|^\s*in summary\s*[:,]", re.I | re.M
)


FILLER = (
    "It was an ordinary day and nothing that anybody would remember took place, although several "
    "people had hoped for something else, and the weather, about which much was said, did what "
    "weather does at this time of year. "
).split()


PAGES = tuple(
    page.split()
    for page in (
        "I had not slept, and when the morning came I got up and stood for a long time at the "
        "window before I dressed. Nobody else was awake. I thought of what had been said to me "
        "the day before, and of what I ought to have answered, and it seemed to me that I had "
        "understood nothing at all. After a while there was a knock at the door. He came in "
        "without waiting, looked at me, and sat down. 'Well,' he said, 'have you made up your "
        "mind?' I told him that I had not. He laughed, though not unkindly, and said that there "
        "was still time. She was with him; she had been standing in the passage, and now she put "
        "her hand on my arm and asked me whether I was ill. I said no. We went down together and "
        "ate something, and they talked about people whom I did not know, while I looked at the "
        "fire and said a word now and then. Later we walked out along the road. The air was cold "
        "and the sky was grey, and we did not go far. I wanted to tell them everything, but I "
        "could not begin, and so we turned back and said very little until we had come to the "
        "house again. In the afternoon a letter was brought to me. I knew the hand at once. I "
        "read it twice, folded it, and put it away, and for the rest of that day I could think of "
        "nothing else. When they asked what was the matter I only shook my head. That evening he "
        "spoke to me once more, in a low voice, so that she should not hear. 'You must go,' he "
        "said, 'and you must go soon.' I answered that I was not afraid. But in truth I was "
        "afraid, and I lay awake again until it was nearly light, and listened to the wind, and "
        "asked myself how it would all end. ",
        "The old man put down his pipe and looked at the boy for some time without a word. 'Come "
        "here,' he said at last. The boy came nearer, slowly, with his cap in his hand. It was "
        "plain that he had been running, for his face was red and his shoes were covered with "
        "mud. 'Who sent you?' 'Nobody, sir,' said the boy. 'I came by myself.' There was a "
        "silence. The women by the fire had stopped their work, and one of them got up and shut "
        "the door. Outside it had begun to rain. 'You had better tell us,' she said, not "
        "unkindly, 'for we shall hear of it sooner or later.' Then the boy began to cry. He told "
        "them how it had all come about, how they had gone down to the water together, and what "
        "they had seen there, and how the other had run away and left him. It took a long time. "
        "When he had done, the old man shook his head and filled his pipe again. 'Well, well,' he "
        "said, 'it is a bad business, but it might have been worse.' They gave him something to "
        "eat, and a place to sleep in, and in the morning he was sent home with a letter to his "
        "mother. Nobody spoke of the matter again until the end of the week. Then two strangers "
        "came over the hill and asked the way to the house. They were well dressed and very "
        "polite, and they said that they had business with the master. He received them in the "
        "great room, with the windows open, and they talked together for more than an hour. What "
        "was said, the servants could not make out; but when the strangers had gone he called for "
        "his horse, and rode away in great haste, and did not come back that night. ",
    )
)
"""Pages that fit any novel: a scorer may like them for their manner, without a thought about what
happens next.
"""


@dataclass(frozen=True, kw_only=True)
class StoryTask(Task):
    """Plan a chapter that the policy has not seen; its answer is an honest plan, where there is
    one.

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
        return _words(FILLER, len(str(self.answer).split()))

    def empty_plans(self, words: int) -> tuple[str, ...]:
        """Return plans without a thought about the next chapter: for another chapter, the synopsis
        once more, filler, pages.

        Filler and pages have *words* words: any text may help a scorer a little, and a longer one
        more.
        """
        return (self.wrong, self.synopsis, *(_words(text, words) for text in (FILLER, *PAGES)))

    def planning(self) -> str:
        """Return the prompt without its last line."""
        return str(self.prompt).removesuffix(PLAN)


@dataclass(frozen=True, kw_only=True)
class StoryResult:
    """The plan that the scorer sees: what the reply says after its reasoning, cut to the
    environment's length.
    """

    plan: str


def _words(text: Sequence[str], count: int) -> str:
    """Return the first *count* words of *text*, which begins again where it ends."""
    return " ".join(text[i % len(text)] for i in range(count))


def story_prompt(sections: Mapping[str, str]) -> str:
    """Return the prompt for a plan: each section that is not empty under its heading, then the
    instruction.
    """
    parts = [f"# {heading}\n{text.strip()}" for heading, text in sections.items() if text.strip()]
    return "\n\n".join([*parts, PLAN])


def writing_prompt(task: StoryTask, plan: str) -> tuple[Message, ...]:
    """Return the prompt that the scorer sees. With an empty plan it is the baseline's: both have
    the same lines otherwise.
    """
    return (Message("user", f"{task.planning()}{WRITE}\n\n# Plan\n{plan}"),)


def plan_of(reply: str, words: int) -> str:
    """Return the plan in a *reply* (without closed reasoning): what follows its last line "Plan" or
    "In summary", else all.

    A reply that never ends its reasoning has no plan. At most *words* words count, so that no plan
    is a chapter.
    """
    if _UNFINISHED.match(reply):
        return ""
    marks = list(_MARK.finditer(reply))
    text = reply[marks[-1].end() :] if marks else reply
    pieces = re.findall(r"\S+\s*", text)
    return "".join(pieces[:words]).strip()
