"""Books in chapters with annotations, as ``quintain-story build`` writes and the environment reads
them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from quintain.errors import UsageError

from .extract import cut
from .tasks import StoryTask, story_prompt

FORMAT = 1
SPLITS = ("train", "dev", "test")
SHARES = (0.7, 0.85)
"""Where ``dev`` and ``test`` begin, as shares of the chapters of a book or of all books."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BookChapter(_Record):
    """A chapter and what was written about it.

    Attributes:
        summary, synopsis: of this chapter, long and short.
        story_so_far, characters: from this chapter and those before it.
    """

    index: int
    title: str
    text: str
    summary: str
    synopsis: str
    story_so_far: str
    characters: dict[str, str]


class Book(_Record):
    """A book.

    Attributes:
        id: of title and text, the name of its file.
        kind: of the headings, see `quintain_env_story.chapters`.
        annotator: ``extractive``, or the model.
        whole: a summary of all chapters, the last ones included; empty unless it was asked for.
    """

    format: int = FORMAT
    id: str
    title: str
    source: str
    kind: str
    annotator: str
    chapters: tuple[BookChapter, ...]
    whole: str = ""


def book_id(title: str, text: str) -> str:
    """Return a name for files: words of the title, and a hash of title and text."""
    words = re.sub(r"[^a-z0-9]+", "-", title.casefold()).strip("-")[:40]
    return f"{words or 'book'}-{hashlib.sha256(f'{title} {text}'.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def read_books(folder: Path) -> list[Book]:
    """Return the books in *folder*, by id.

    Raises:
        UsageError: there is none, or a file is no book.
    """
    files = sorted(folder.glob("*.book.json")) if folder.is_dir() else []
    if not files:
        raise UsageError(
            f"story: no books in {str(folder)!r}; write them with `quintain-story build BOOK --out "
            f"FOLDER`"
        )
    books = []
    for file in files:
        try:
            book = Book.model_validate_json(file.read_bytes())
        except ValidationError as e:
            first: Any = e.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise UsageError(
                f"{file} is no book of quintain-story: {where}: {first['msg']}; build it again"
            ) from e
        if book.format != FORMAT:
            raise UsageError(f"{file} has format {book.format}, not {FORMAT}; build it again")
        books.append(book)
    return books


@lru_cache(maxsize=8)
def _books(folder: str, stamps: tuple[tuple[str, int, int], ...]) -> tuple[Book, ...]:
    return tuple(read_books(Path(folder)))


def book_tasks(
    data: str,
    split: str,
    *,
    split_by: str,
    chapter_words: int,
    plan_words: int,
    first: int,
    last: int,
    words: tuple[int, int],
    synopsis: bool,
    whole_book: bool,
) -> Iterator[StoryTask]:
    """Yield the tasks of a split: chapters of the length asked for, without the first *first* and
    the last *last* of a book.

    Raises:
        UsageError: no books; a summary of the whole book is asked for and was not built.
    """
    folder = Path(data).expanduser()
    stats = [
        (f.name, f.stat().st_mtime_ns, f.stat().st_size) for f in sorted(folder.glob("*.book.json"))
    ]
    books = _books(str(folder), tuple(stats))
    whole_books = split_by == "book" or (split_by == "auto" and len(books) >= len(SPLITS))
    for place, book in enumerate(
        sorted(books, key=lambda b: hashlib.sha256(b.id.encode()).digest())
    ):
        if whole_book and not book.whole:
            raise UsageError(
                f"story: {book.title!r} has no summary of the whole book; build it with "
                f"--whole-book"
            )
        chapters = [
            i
            for i in range(max(1, first), len(book.chapters) - last)
            if words[0] <= len(book.chapters[i].text.split()) <= words[1]
        ]
        for rank, i in enumerate(chapters):
            position, count = (place, len(books)) if whole_books else (rank, len(chapters))
            if _split(position, count) == split:
                yield _task(book, i, chapter_words, plan_words, synopsis, whole_book)


def _split(position: int, count: int) -> str:
    """Return the split of the item *position* of *count*: the first ones train, so that no later
    chapter is in a prompt of theirs.
    """
    if count < len(SPLITS):
        return SPLITS[position]
    dev = min(int(SHARES[0] * count), count - 2)
    test = min(max(int(SHARES[1] * count), dev + 1), count - 1)
    return SPLITS[(position >= dev) + (position >= test)]


def _task(
    book: Book, i: int, chapter_words: int, plan_words: int, synopsis: bool, whole_book: bool
) -> StoryTask:
    """Return the task to plan the chapter at position *i*, from what stands before it and its
    synopsis.
    """
    chapter, before = book.chapters[i], book.chapters[:i]
    sections = {
        "Book": book.title,
        "Summary of the whole book": book.whole if whole_book else "",
        "Story so far": before[-1].story_so_far,
        "Characters": "\n".join(
            f"{name}: {sheet}" for name, sheet in before[-1].characters.items()
        ),
        "Last chapter": f"{before[-1].title}\n\n{before[-1].text}",
        "Next chapter": f"{chapter.title}\n\n{chapter.synopsis}" if synopsis else chapter.title,
    }
    return StoryTask(
        prompt=story_prompt(sections),
        answer=cut(chapter.summary, plan_words),
        chapter=cut(chapter.text, chapter_words).strip(),
        synopsis=chapter.synopsis if synopsis else chapter.title,
        wrong=cut(_elsewhere(book.chapters, i).summary, plan_words),
        book=book.id,
        index=chapter.index,
        level=float(chapter.index),
    )


def _elsewhere(chapters: Sequence[BookChapter], i: int) -> BookChapter:
    """Return the chapter that is farthest from the one at position *i*."""
    return max(chapters, key=lambda c: (abs(c.index - chapters[i].index), -c.index))
