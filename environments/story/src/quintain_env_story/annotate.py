"""Annotations of chapters: by a language model behind an OpenAI-compatible URL, or extractive
without one.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from quintain import Message, Sampling
from quintain.errors import InfrastructureError
from quintain.store import write_atomically
from quintain_engines.openai import OpenAIEngine

from .chapters import Chapter
from .extract import cut, sheets, summary

SUMMARY_WORDS = 120
STORY_WORDS = 400
SYNOPSIS_WORDS = 40
SHEET_WORDS = 60
PEOPLE = 3
READ_WORDS = 6000
"""Words of a chapter that a model is given."""

_THOUGHT = re.compile(r"\A.*?</think>", re.DOTALL)


class Annotator(ABC):
    """Writes about one chapter at a time; every method sees no more than its arguments."""

    name: str

    @abstractmethod
    async def summary(self, chapter: Chapter) -> str:
        """Return what happens in *chapter*."""

    @abstractmethod
    async def synopsis(self, chapter: Chapter) -> str:
        """Write one or two sentences on *chapter*, as a back cover has them."""

    @abstractmethod
    async def story(self, before: str, summary: str) -> str:
        """Return the story up to here, from the story *before* and the *summary* of the newest
        chapter.
        """

    @abstractmethod
    async def characters(
        self, before: Mapping[str, str], text: str, chapter: Chapter
    ) -> dict[str, str]:
        """Return a sheet for each main character, from the sheets *before*, the *text* so far and
        its newest *chapter*.
        """


class Extractive(Annotator):
    """Sentences of the book itself, chosen by word frequency: nothing to install, the same on every
    machine.
    """

    name = "extractive"

    async def summary(self, chapter: Chapter) -> str:
        return summary(chapter.text, SUMMARY_WORDS)

    async def synopsis(self, chapter: Chapter) -> str:
        return summary(chapter.text, SYNOPSIS_WORDS)

    async def story(self, before: str, summary_: str) -> str:
        text = f"{before}\n\n{summary_}".strip()
        return text if len(text.split()) <= STORY_WORDS else summary(text, STORY_WORDS)

    async def characters(
        self, before: Mapping[str, str], text: str, chapter: Chapter
    ) -> dict[str, str]:
        return sheets(text, people=PEOPLE, words=SHEET_WORDS)


class Modelled(Annotator):
    """A language model; each answer is in the folder *cache* under a hash of all that was asked."""

    def __init__(self, engine: OpenAIEngine, cache: Path) -> None:
        self._engine, self._cache = engine, cache
        self.name = engine.name
        self.asked = 0

    async def summary(self, chapter: Chapter) -> str:
        return await self._ask(
            f"Summarise this chapter in at most {SUMMARY_WORDS} words. Tell what happens, in "
            f"order, with names.",
            SUMMARY_WORDS,
            f"Chapter: {chapter.title}\n\n{cut(chapter.text, READ_WORDS)}",
        )

    async def synopsis(self, chapter: Chapter) -> str:
        return await self._ask(
            f"Say in at most {SYNOPSIS_WORDS} words what this chapter is about, as a back cover "
            "does: the situation, not how it ends.",
            SYNOPSIS_WORDS,
            f"Chapter: {chapter.title}\n\n{cut(chapter.text, READ_WORDS)}",
        )

    async def story(self, before: str, summary: str) -> str:
        return await self._ask(
            f"Bring the story so far up to date, in at most {STORY_WORDS} words: keep what later "
            f"chapters may need.",
            STORY_WORDS,
            f"Story so far:\n{before or '(nothing yet)'}\n\nNewest chapter:\n{summary}",
        )

    async def characters(
        self, before: Mapping[str, str], text: str, chapter: Chapter
    ) -> dict[str, str]:
        known = "\n".join(f"{name}: {sheet}" for name, sheet in before.items()) or "(nobody yet)"
        answer = await self._ask(
            f"List the {PEOPLE} main characters up to here, one per line as `Name: who they are, "
            f"what they want, what they know`, at most {SHEET_WORDS} words each. Bring the known "
            "ones up to date.",
            PEOPLE * SHEET_WORDS,
            f"Known:\n{known}\n\nNewest chapter:\n{cut(chapter.text, READ_WORDS)}",
        )
        lines = [
            re.match(r"[-*\d.\s]*\**([^:*]{1,60})\**\s*:\**\s*(\S.*)", line)
            for line in answer.splitlines()
        ]
        by_name = {line[1].strip(): cut(line[2].strip(), 2 * SHEET_WORDS) for line in lines if line}
        return dict(list(by_name.items())[:PEOPLE]) or dict(before)

    async def _ask(self, instruction: str, words: int, material: str) -> str:
        """Return the answer of the model, from the cache where it was asked before.

        Raises:
            InfrastructureError: the server failed, or the model said nothing twice.
        """
        request_text = json.dumps([self._engine.model, instruction, material], ensure_ascii=False)
        digest = hashlib.sha256(request_text.encode("utf-8", "surrogatepass")).hexdigest()
        file = self._cache / f"{digest[:32]}.json"
        if file.is_file():
            return str(json.loads(file.read_text(encoding="utf-8"))["answer"])
        messages = [Message("system", instruction), Message("user", material)]
        for seed in (0, 1):
            sampling = Sampling(temperature=0.0, max_tokens=16 * words, seed=seed)
            answer = _THOUGHT.sub(
                "", (await self._engine.reply(messages, (), sampling)).text
            ).strip()
            self.asked += 1
            if answer:
                answer = cut(answer, 2 * words)
                write_atomically(file, json.dumps({"answer": answer}, ensure_ascii=False).encode())
                return answer
        raise InfrastructureError(
            f"{self.name} answered nothing to {instruction[:40]!r}; run the command again to go on "
            "from here, or name another --model"
        )
