"""SQuAD: paragraphs as passages, and the questions that have an answer."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from quintain.errors import UsageError
from quintain_tools.search import Passage

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
        UsageError: the file cannot be read or has another form, or no question has an answer.
    """
    left_out = 0
    try:
        articles = json.loads(Path(file).read_text(encoding="utf-8"))["data"]
        titles = sorted(
            (a["title"] for a in articles), key=lambda t: hashlib.sha256(t.encode()).hexdigest()
        )
        part = max(1, len(titles) // PART)
        dev, test = set(titles[:part]), set(titles[part : 2 * part])
        passages: list[Passage] = []
        tasks: dict[str, list[SearchTask]] = {"train": [], "dev": [], "test": []}
        for article in articles:
            title = article["title"]
            split = "dev" if title in dev else "test" if title in test else "train"
            for paragraph in article["paragraphs"]:
                passage = Passage(
                    id=str(len(passages) + 1),
                    title=title.replace("_", " "),
                    text=paragraph["context"].strip(),
                )
                passages.append(passage)
                for row in paragraph["qas"]:
                    answers = tuple(dict.fromkeys(answer["text"] for answer in row["answers"]))
                    left_out += not answers
                    if answers:
                        tasks[split].append(_task(row["question"].strip(), answers, passage))
    except OSError as e:
        raise UsageError(
            f"search: cannot read {file}: {e.strerror}; docs/search-environment.md says where to "
            f"download SQuAD"
        ) from e
    except (ValueError, KeyError, TypeError) as e:
        raise UsageError(f"search: {file} is no JSON file of SQuAD: {type(e).__name__}: {e}") from e
    if not any(tasks.values()):
        raise UsageError(
            f"search: {file} has no question with an answer: {left_out} questions are left out for "
            f"want of one; "
            'expected "answers": [{"text": ...}] in each row of "qas"'
        )
    order = {
        s: sorted({t.id: t for t in some}.values(), key=lambda t: t.id) for s, some in tasks.items()
    }
    return Squad(tuple(passages), {s: tuple(some) for s, some in order.items()})


def _task(question: str, answers: tuple[str, ...], passage: Passage) -> SearchTask:
    hops = (Hop(question, passage.id),)
    return SearchTask(prompt=question, answer=answers[0], answers=answers, hops=hops, level=1)
