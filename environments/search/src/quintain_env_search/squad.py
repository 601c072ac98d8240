"""SQuAD: paragraphs as passages, and the questions that have an answer."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from quintain.errors import UsageError
from quintain_mcp import Passage

from .tasks import Hop, SearchTask

PART = 5
"""One article in this many belongs to ``dev``, one to ``test``, the others to ``train``."""


@dataclass(frozen=True)
class Squad:
    """The passages of a file, and its questions by split. No article is in two splits."""

    passages: tuple[Passage, ...]
    tasks: dict[str, tuple[SearchTask, ...]]


@lru_cache(maxsize=2)
def read_squad(file: str) -> Squad:
    """Read a JSON file of SQuAD 1.1 or 2.0 (arXiv:1606.05250, 1806.03822).

    Questions without an answer are left out. Passages have the number of their paragraph as id.

    Raises:
        UsageError: the file cannot be read or has another form.
    """
    try:
        articles = json.loads(Path(file).read_text(encoding="utf-8"))["data"]
        titles = sorted((a["title"] for a in articles), key=lambda t: hashlib.sha256(t.encode()).hexdigest())
        part = max(1, len(titles) // PART)
        dev, test = set(titles[:part]), set(titles[part : 2 * part])
        passages: list[Passage] = []
        tasks: dict[str, list[SearchTask]] = {"train": [], "dev": [], "test": []}
        for article in articles:
            title = article["title"]
            split = "dev" if title in dev else "test" if title in test else "train"
            for paragraph in article["paragraphs"]:
                passage = Passage(
                    id=str(len(passages) + 1), title=title.replace("_", " "), text=paragraph["context"].strip()
                )
                passages.append(passage)
                for row in paragraph["qas"]:
                    answers = tuple(dict.fromkeys(answer["text"] for answer in row["answers"]))
                    if answers:
                        tasks[split].append(_task(row["question"].strip(), answers, passage))
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise UsageError(f"search: {file} is no JSON file of SQuAD: {type(e).__name__}: {e}") from e
    order = {s: sorted({t.id: t for t in some}.values(), key=lambda t: t.id) for s, some in tasks.items()}
    return Squad(tuple(passages), {s: tuple(some) for s, some in order.items()})


def _task(question: str, answers: tuple[str, ...], passage: Passage) -> SearchTask:
    hops = (Hop(question, passage.id),)
    return SearchTask(prompt=question, answer=answers[0], answers=answers, hops=hops, level=1)
