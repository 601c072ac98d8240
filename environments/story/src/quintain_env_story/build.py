"""From a book to its annotated chapters: chapter by chapter, each from what stands before it and
itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from quintain.errors import UsageError
from quintain.store import write_atomically

from .annotate import Annotator, Modelled
from .books import Book, BookChapter, book_id
from .chapters import Chapter, Split, split_chapters
from .epub import BookText, read_book


def read_split(path: Path) -> tuple[BookText, Split]:
    """Return a book and its chapters.

    Raises:
        UsageError: the file is no book, or has fewer than two chapters.
    """
    book = read_book(path)
    split = split_chapters(book.text)
    if len(split.chapters) < 2:
        raise UsageError(
            f"{path} has no second chapter; mark chapters with headings such as `# Title` or "
            "`Chapter 1` between blank lines (`quintain-story chapters` shows what is found)"
        )
    return book, split


async def build_book(
    path: Path,
    annotator: Annotator,
    out: Path,
    *,
    whole_book: bool = False,
    done: Callable[[], object] = lambda: None,
) -> Book:
    """Add annotations to the book at *path* and write it to the folder *out*.

    What is written about a chapter depends on it and on earlier ones alone; only the summary of the
    whole book, where *whole_book* asks for it, sees all.

    Args:
        done: called after each chapter.

    Raises:
        UsageError: as `read_split`.
        InfrastructureError: the model of *annotator* failed; what it answered so far is in the
            cache.
    """
    book, split = await asyncio.to_thread(read_split, path)
    chapters: list[BookChapter] = []
    story, characters, text = "", dict[str, str](), ""
    for chapter in split.chapters:
        text = f"{text}\n\n{chapter.text}".strip()
        summary, synopsis, characters = await _about(annotator, chapter, characters, text)
        story = await annotator.story(story, summary)
        chapters.append(
            BookChapter(
                index=chapter.index,
                title=chapter.title,
                text=chapter.text,
                summary=summary,
                synopsis=synopsis,
                story_so_far=story,
                characters=characters,
            )
        )
        done()
    built = Book(
        id=book_id(book.title, text),
        title=book.title,
        source=path.name,
        kind=split.kind,
        annotator=annotator.name,
        chapters=tuple(chapters),
        whole=story if whole_book else "",
    )
    write_atomically(
        out / f"{built.id}.book.json", built.model_dump_json(indent=1).encode("utf-8", "replace")
    )
    return built


async def _about(
    annotator: Annotator, chapter: Chapter, characters: dict[str, str], text_so_far: str
) -> tuple[str, str, dict[str, str]]:
    """Return summary, synopsis and characters of *chapter*, asked for concurrently. *text_so_far*
    ends with the chapter.

    Raises:
        InfrastructureError: and others, the first that one of them raised.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = (
                group.create_task(annotator.summary(chapter)),
                group.create_task(annotator.synopsis(chapter)),
                group.create_task(annotator.characters(characters, text_so_far, chapter)),
            )
    except BaseExceptionGroup as failed:
        # callers handle the error itself, not a group of errors
        raise failed.exceptions[0] from failed
    return tasks[0].result(), tasks[1].result(), tasks[2].result()


async def build_books(
    paths: Sequence[Path],
    annotator: Annotator,
    out: Path,
    *,
    whole_book: bool = False,
    started: Callable[[str, int], object] = lambda name, chapters: None,
    done: Callable[[], object] = lambda: None,
) -> list[Book]:
    """Build one book after the other; *started* is told the name and the number of chapters of
    each.
    """
    books = []
    for path in paths:
        _, split = await asyncio.to_thread(read_split, path)
        started(path.name, len(split.chapters))
        books.append(await build_book(path, annotator, out, whole_book=whole_book, done=done))
    return books


def asked(annotator: Annotator) -> int:
    """Return the number of requests that *annotator* has sent to a model."""
    return annotator.asked if isinstance(annotator, Modelled) else 0
