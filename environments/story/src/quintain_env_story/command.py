"""``quintain-story``: books to tasks of the environment ``story``."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quintain.cli import folder_option, json_option
from quintain.console import for_terminal, printable
from quintain.errors import InfrastructureError, QuintainError, UsageError
from quintain.process import run_stoppable
from quintain.store import write_atomically

from .annotate import Extractive, Modelled
from .books import Book
from .build import asked, build_books, read_split
from .environment import Story

if TYPE_CHECKING:
    from .quality import Quality


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def root() -> None:
    """Turn books into tasks of the environment story: plan the next chapter.

    \b
    quintain-story chapters alice.txt             what the splitter finds
    quintain-story build alice.txt --out stories  summaries, characters, synopses
    quintain eval story --data stories --controls
    quintain train story.toml                     with args = { data = "stories" }
    quintain-story quality story-1 --against base-model --judge http://127.0.0.1:8000/v1
    """


@root.command()
@click.argument("books", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("stories"),
    show_default=True,
    help="Folder.",
)
@click.option(
    "--url",
    default="",
    help="OpenAI-compatible server that writes the annotations, such as a local vLLM.",
)
@click.option(
    "--model", default="", help="Its name of the model (default: the only one that it serves)."
)
@click.option(
    "--api-key",
    default="",
    metavar="VARIABLE",
    help="Name of the environment variable with the key.",
)
@click.option(
    "--whole-book", is_flag=True, help="Add a summary of the whole book, which tells the end."
)
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
@json_option
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

    For every chapter: a summary, a synopsis, the story so far and sheets of the main characters.
    What is written about a chapter depends on it and on earlier chapters alone.

    Without --url sentences of the book itself are chosen, which needs no model and no network. With
    it a model writes; its answers are kept in OUT/cache, so that the same command continues after
    an interruption and asks nothing twice.

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
        click.echo(
            printable(f"{book.title}: {len(book.chapters)} chapters ({book.kind}), {words:,} words")
        )
    click.echo(f"written to {out}; next: quintain eval story --data {out} --controls")


async def _built(
    books: Sequence[Path],
    out: Path,
    url: str,
    model: str,
    api_key: str,
    whole_book: bool,
    quiet: bool,
) -> tuple[list[Book], int]:
    async with AsyncExitStack() as stack:
        annotator: Extractive | Modelled = Extractive()
        if url:
            from quintain_engines.openai import OpenAIEngine

            engine = OpenAIEngine(base_url=url, model=model, api_key=api_key)
            annotator = Modelled(await stack.enter_async_context(engine), out / "cache")
        screen = stack.enter_context(for_terminal(quiet=quiet))

        def started(name: str, chapters: int) -> None:
            screen.phase(name, chapters)
            screen.note(f"{name}: {chapters} chapters")

        made = await build_books(
            books, annotator, out, whole_book=whole_book, started=started, done=screen.advance
        )
        return made, asked(annotator)


def _row(book: Book, out: Path) -> dict[str, Any]:
    return {
        "id": book.id,
        "title": book.title,
        "file": str(out / f"{book.id}.book.json"),
        "headings": book.kind,
        "annotator": book.annotator,
        "chapters": [
            {"index": c.index, "title": c.title, "words": len(c.text.split())}
            for c in book.chapters
        ],
    }


@root.command()
@click.argument("book", type=click.Path(path_type=Path))
@json_option
def chapters(book: Path, as_json: bool) -> None:
    """Show the chapters that are found in BOOK, and write nothing."""
    text, split = read_split(book)
    if as_json:
        rows = [{"index": c.index, "title": c.title, "words": c.words} for c in split.chapters]
        click.echo(
            json.dumps({"title": text.title, "headings": split.kind, "chapters": rows}, indent=2)
        )
        return
    click.echo(printable(f"{text.title}: {len(split.chapters)} chapters by {split.kind}"))
    for chapter in split.chapters:
        click.echo(printable(f"{chapter.index:4}  {chapter.words:7,} words  {chapter.title}"))


@root.command()
@click.argument("model")
@click.option(
    "--against", required=True, metavar="MODEL", help="The policy that MODEL is compared with."
)
@click.option(
    "--writer",
    default="",
    metavar="MODEL",
    help="Writes the chapters of both (default: see above).",
)
@click.option(
    "--judge",
    "url",
    default="",
    metavar="URL",
    help="The judge's server, up to /v1 (default: rules).",
)
@click.option("--judge-model", default="", metavar="NAME", help="As that server calls it.")
@click.option(
    "--judge-recipe",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The judge of [services.judge] in FILE.",
)
@click.option(
    "--criterion",
    "criteria",
    multiple=True,
    metavar="TEXT",
    help="What to compare by; may be repeated.",
)
@click.option(
    "--data",
    default="",
    help="Folder of `build` (default: that of the run MODEL, else generated stories).",
)
@click.option("--split", default="test", show_default=True)
@click.option("--tasks", default=20, show_default=True, type=click.IntRange(1), help="Chapters.")
@click.option(
    "--temperature",
    default=0.7,
    show_default=True,
    type=click.FloatRange(0),
    help="Of plans and chapters.",
)
@click.option(
    "--chapter-tokens",
    default=1500,
    show_default=True,
    type=click.IntRange(1),
    help="Longest chapter.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write plans and chapters as JSON lines.",
)
@folder_option
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
@json_option
def quality(
    model: str,
    against: str,
    writer: str,
    url: str,
    judge_model: str,
    judge_recipe: Path | None,
    criteria: Sequence[str],
    data: str,
    split: str,
    tasks: int,
    temperature: float,
    chapter_tokens: int,
    out: Path | None,
    folder: str,
    quiet: bool,
    as_json: bool,
) -> None:
    """Compare chapters that are written by the plans of MODEL and of another policy, in pairs.

    A policy is a run, a checkpoint, a folder or a hub id, the URL of a server (URL#NAME where it
    has several models), or a control such as @oracle or @filler. One writer writes the chapters of
    both, so that only the plans differ: by default the first of --against and MODEL that is no
    control, else @plan, which takes the plans as chapters.

    Each pair is judged in both orders; where the order decides it is a tie. A pair without a
    verdict is counted and left out. Without --judge rules compare names and repetition, which needs
    no network and measures no style.

    \b
    quintain-story quality @oracle --against @filler
    quintain-story quality story-1 --against runs/story-1/checkpoints/step-000020 --judge http://127.0.0.1:8000/v1
    """
    from quintain_judge import judge_named

    from .quality import CHAPTER, PLAN, PLAN_ITSELF, Author, quality, run_table, tasks_of

    table = run_table(model, folder) or run_table(against, folder)
    environment = Story(**{**table.get("args", {}), **({"data": data} if data else {})})
    models = [name for name in (against, model) if not name.startswith("@")]
    names = (model, against, writer or next(iter(models), PLAN_ITSELF))
    authors = {name: Author(name, environment, folder) for name in dict.fromkeys(names)}
    judge = judge_named(url, judge_model, judge_recipe)
    chapters = tasks_of(environment, split, tasks)

    async def compared() -> Quality:
        async with AsyncExitStack() as stack:
            for author in authors.values():
                await author.start(stack)
            await stack.enter_async_context(judge)
            screen = stack.enter_context(for_terminal(quiet=quiet or as_json))
            screen.phase("writing and judging", 2 * len(chapters))
            return await quality(
                (authors[model], authors[against]),
                authors[names[2]],
                judge,
                chapters,
                criteria=criteria,
                plan=replace(PLAN, temperature=temperature),
                chapter=replace(CHAPTER, temperature=temperature, max_tokens=chapter_tokens),
                progress=screen.advance,
            )

    done = run_stoppable(compared())
    judged_by = ", ".join(backend.name for backend in judge.backends) or "rules"
    if out is not None:
        rows = [json.dumps(row, ensure_ascii=False) for row in done.rows()]
        write_atomically(out, ("\n".join(rows) + "\n").encode("utf-8", "replace"))
    if as_json:
        named = {"model": model, "against": against, "writer": names[2], "judge": judged_by}
        click.echo(json.dumps({**named, **done.report()}, indent=2))
    else:
        click.echo(
            printable(f"{model} against {against}; chapters by {names[2]}, judged by {judged_by}")
        )
        for line in done.lines():
            click.echo(line)
    if done.failures and not done.comparison.measures:
        first = next(iter(done.failures.values()))
        raise InfrastructureError(f"no pair has a verdict; the first failure: {first}")


def main() -> None:
    """Run the command; an error is one line, or one JSON object with ``--json``, and the exit
    status is 2 or 1.
    """
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
        _fail(
            "interrupted; what a model or a judge answered is kept, run the same command to "
            "continue",
            130,
            as_json,
        )


def _fail(message: str, status: int, as_json: bool, *, shown: bool = False) -> None:
    if as_json:
        click.echo(json.dumps({"error": {"message": message}}))
    elif not shown:
        click.echo(f"error: {printable(message)}", err=True)
    sys.exit(status)
