"""``quintain-story``: books to tasks of the environment ``story``."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import click

from quintain.errors import QuintainError, UsageError
from quintain.training import for_terminal, printable, run_stoppable

from .annotate import Extractive, Modelled
from .books import Book
from .build import asked, build_books, read_split


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def root() -> None:
    """Turn books into tasks of the environment story: plan the next chapter.

    \b
    quintain-story chapters alice.txt             what the splitter finds
    quintain-story build alice.txt --out stories  summaries, characters, synopses
    quintain eval story --data stories --controls
    quintain train story.toml                     with args = { data = "stories" }
    """


@root.command()
@click.argument("books", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), default=Path("stories"), show_default=True, help="Folder.")
@click.option("--url", default="", help="OpenAI-compatible server that writes the annotations, such as a local vLLM.")
@click.option("--model", default="", help="Its name of the model (default: the only one that it serves).")
@click.option("--api-key", default="", metavar="VARIABLE", help="Name of the environment variable with the key.")
@click.option("--whole-book", is_flag=True, help="Add a summary of the whole book, which tells the end.")
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def build(
    books: Sequence[Path],
    out: Path,
    url: str,
    model: str,
    api_key: str,
    whole_book: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Split BOOKS (plain text, Markdown, EPUB) into chapters and write about each.

    For every chapter: a summary, a synopsis, the story so far and sheets of the main characters. What is written about
    a chapter depends on it and on earlier chapters alone.

    Without --url sentences of the book itself are chosen, which needs no model and no network. With it a model writes;
    its answers are kept in OUT/cache, so that the same command continues after an interruption and asks nothing twice.

    \b
    quintain-story build alice.txt moby.epub --out stories
    quintain-story build alice.txt --url http://127.0.0.1:8000/v1 --out stories
    """
    if (model or api_key) and not url:
        raise UsageError("--model and --api-key belong to a server; give its --url, too")
    made, requests = run_stoppable(_built(books, out, url, model, api_key, whole_book, quiet))
    if as_json:
        rows = [_row(book, out) for book in made]
        click.echo(json.dumps({"out": str(out), "requests": requests, "books": rows}, indent=2))
        return
    for book in made:
        words = sum(len(c.text.split()) for c in book.chapters)
        click.echo(printable(f"{book.title}: {len(book.chapters)} chapters ({book.kind}), {words:,} words"))
    click.echo(f"written to {out}; next: quintain eval story --data {out} --controls")


async def _built(
    books: Sequence[Path], out: Path, url: str, model: str, api_key: str, whole_book: bool, quiet: bool
) -> tuple[list[Book], int]:
    async with AsyncExitStack() as stack:
        annotator: Extractive | Modelled = Extractive()
        if url:
            from quintain_openai import OpenAIEngine

            engine = OpenAIEngine(base_url=url, model=model, api_key=api_key)
            annotator = Modelled(await stack.enter_async_context(engine), out / "cache")
        screen = stack.enter_context(for_terminal(quiet=quiet))

        def started(name: str, chapters: int) -> None:
            screen.phase(name, chapters)
            screen.note(f"{name}: {chapters} chapters")

        made = await build_books(books, annotator, out, whole_book=whole_book, started=started, done=screen.advance)
        return made, asked(annotator)


def _row(book: Book, out: Path) -> dict[str, Any]:
    return {
        "id": book.id,
        "title": book.title,
        "file": str(out / f"{book.id}.book.json"),
        "headings": book.kind,
        "annotator": book.annotator,
        "chapters": [{"index": c.index, "title": c.title, "words": len(c.text.split())} for c in book.chapters],
    }


@root.command()
@click.argument("book", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def chapters(book: Path, as_json: bool) -> None:
    """Show the chapters that are found in BOOK, and write nothing."""
    text, split = read_split(book)
    if as_json:
        found = [{"index": c.index, "title": c.title, "words": c.words} for c in split.chapters]
        click.echo(json.dumps({"title": text.title, "headings": split.kind, "chapters": found}, indent=2))
        return
    click.echo(printable(f"{text.title}: {len(split.chapters)} chapters by {split.kind}"))
    for chapter in split.chapters:
        click.echo(printable(f"{chapter.index:4}  {chapter.words:7,} words  {chapter.title}"))


def main() -> None:
    """Run the command; an error is one line, or one JSON object with ``--json``, and the exit status is 2 or 1."""
    as_json = "--json" in sys.argv[1:]
    try:
        root.main(prog_name="quintain-story", standalone_mode=False)
    except click.ClickException as e:
        if not as_json:
            e.show()
        _fail(e.format_message(), e.exit_code, as_json, shown=not as_json)
    except QuintainError as e:
        _fail(str(e), 2 if isinstance(e, UsageError) else 1, as_json)
    except (KeyboardInterrupt, click.Abort):
        _fail("interrupted; what a model answered is kept, run the same command to continue", 130, as_json)


def _fail(message: str, status: int, as_json: bool, *, shown: bool = False) -> None:
    if as_json:
        click.echo(json.dumps({"error": {"message": message}}))
    elif not shown:
        click.echo(f"error: {printable(message)}", err=True)
    sys.exit(status)
