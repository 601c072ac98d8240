"""Books to tasks: files of every kind, hostile ones bounded; nothing of a later chapter in an
earlier annotation; the model is asked once; the tasks and their splits.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from quintain import Score
from quintain.cli import main as quintain
from quintain.errors import InfrastructureError, UsageError
from quintain.interfaces.reward import RewardContext
from quintain.testing import rollout
from quintain_authoring.controls import check_controls
from quintain_engines.openai import OpenAIEngine
from quintain_env_story import Scorer, Story, StoryResult, StoryTask, vr_cli
from quintain_env_story import epub as epub_module
from quintain_env_story.annotate import Extractive, Modelled
from quintain_env_story.books import read_books
from quintain_env_story.build import build_book, build_books
from quintain_env_story.chapters import split_chapters
from quintain_env_story.command import main
from quintain_env_story.epub import read_book

from ...plugins.engines.openai.test_client import Server, said

CONTAINER = '<container><rootfiles><rootfile full-path="OEBPS/book.opf"/></rootfiles></container>'


def prose(seed: int, words: int = 300) -> str:
    """Sentences with names and words that no other seed has."""
    places = [f"mill{seed}", f"lake{seed}", f"road{seed}", f"barn{seed}", f"hill{seed}"]
    line = (
        "So Ada Moss and old Ben walked past the {0} to the {1} and told nobody of the {2} beside "
        "the river."
    )
    text = [line.format(*(places[(i + j) % 5] for j in range(3))) for i in range(words // 20)]
    return "\n\n".join(" ".join(text[i : i + 4]) for i in range(0, len(text), 4))


def book_text(chapters: int = 8, *, changed: int = 99) -> str:
    """A book; chapters from number *changed* on have another text."""
    bodies = [prose(n + (1000 if n >= changed else 0)) for n in range(1, chapters + 1)]
    return "\n\n".join(f"Chapter {n}\n\n{body}" for n, body in enumerate(bodies, 1))


def write_epub(
    path: Path, pages: dict[str, str], *, spine: list[str] | None = None, **extra: str
) -> Path:
    names = list(pages) if spine is None else spine
    items = "".join(f'<item id="i{n}" href="{name}"/>' for n, name in enumerate(names))
    refs = "".join(f'<itemref idref="i{n}"/>' for n in range(len(names)))
    package = (
        f"<package><metadata><dc:title>A &amp; B</dc:title></metadata><manifest>{items}</manifest>"
        f"<spine>{refs}</spine></package>"
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mimetype", "application/epub+zip")
        archive.writestr("META-INF/container.xml", CONTAINER)
        archive.writestr("OEBPS/book.opf", package)
        for name, page in pages.items():
            archive.writestr(f"OEBPS/{name}", page)
        for name, text in extra.items():
            archive.writestr(name.replace("__", "/").replace("_xml", ".xml"), text)
    return path


def page(title: str, body: str) -> str:
    paragraphs = "".join(f"<p>{p}</p>" for p in body.split("\n\n"))
    return (
        f"<html><head><title>no</title><style>p "
        f"{{}}</style></head><body><h2>{title}</h2>{paragraphs}"
        "<script>if (a < b) { no() }</script></body></html>"
    )


# ---------------------------------------------------------------- files
def test_an_epub_is_its_spine_in_order(tmp_path: Path) -> None:
    """Headings make chapters; scripts, styles and navigation are left out; entities are
    characters.
    """
    bodies = [prose(n) for n in range(3)]
    pages = {f"c{n}.xhtml": page(f"No {n} &amp; more", body) for n, body in enumerate(bodies)}
    pages["nav.xhtml"] = "<html><body><nav><ol><li>No 0</li></ol></nav></body></html>"
    path = write_epub(
        tmp_path / "b.epub", pages, spine=["nav.xhtml", "c2.xhtml", "c0.xhtml", "c1.xhtml"]
    )
    book = read_book(path)
    assert book.title == "A & B"
    split = split_chapters(book.text)
    assert [c.title for c in split.chapters] == ["No 2 & more", "No 0 & more", "No 1 & more"]
    assert [c.text for c in split.chapters] == [bodies[2], bodies[0], bodies[1]]
    assert "no()" not in book.text


@pytest.mark.parametrize(
    "data, text",
    [
        ("\ufeffna\u00efve".encode(), "\ufeffna\u00efve".removeprefix("\ufeff")),
        ("na\u00efve".encode("utf-16"), "na\u00efve"),
        ("na\u00efve \u201cyes\u201d".encode("cp1252"), "na\u00efve \u201cyes\u201d"),
    ],
)
def test_encodings(data: bytes, text: str, tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_bytes(data)
    assert read_book(path).text.removeprefix("\ufeff") == text


def test_files_that_are_no_books(tmp_path: Path) -> None:
    cases: dict[str, tuple[bytes, str]] = {
        "empty.txt": (b" \n", "has no text"),
        "binary.txt": (bytes(range(256)) * 40, "is no text"),
        "cut.epub": (b"PK\x03\x04 and no more", "cannot be read as an EPUB"),
    }
    for name, (data, message) in cases.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UsageError, match=message):
            read_book(tmp_path / name)
    with pytest.raises(UsageError, match="cannot read the book"):
        read_book(tmp_path / "none.txt")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("x", "y")
    with pytest.raises(UsageError, match="it is no EPUB, or damaged"):
        read_book(tmp_path / "other.zip")


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry and all entries together are bounded while they are read, whatever sizes the archive
    claims.
    """
    monkeypatch.setattr(epub_module, "MAX_BYTES", 100_000)
    one = write_epub(tmp_path / "one.epub", {"c.xhtml": "<p>" + "a" * 1_000_000 + "</p>"})
    many = write_epub(
        tmp_path / "many.epub", {f"c{n}.xhtml": "<p>" + "a" * 9000 + "</p>" for n in range(20)}
    )
    for path in (one, many):
        assert path.stat().st_size < 100_000
        with pytest.raises(UsageError, match=r"more than 100,000 bytes unpacked"):
            read_book(path)
    monkeypatch.setattr(epub_module, "MAX_ENTRIES", 10)
    with pytest.raises(UsageError, match="an EPUB may have 10"):
        read_book(many)


def test_entities_and_paths_do_nothing(tmp_path: Path) -> None:
    """A DTD is not expanded, a path upwards is a name that the archive does not have, deep tags do
    not recurse.
    """
    laughs = '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]>'
    deep = "<div>" * 20_000 + "deep" + "</div>" * 20_000
    pages = {"a.xhtml": f"{laughs}<p>&b; &c;</p>", "d.xhtml": deep, "ok.xhtml": "<p>read</p>"}
    spine = ["../../../../etc/passwd", "a.xhtml", "d.xhtml", "ok.xhtml"]
    text = read_book(write_epub(tmp_path / "b.epub", pages, spine=spine)).text
    assert text.split() == ["&b;", "&c;", "deep", "read"]


def test_a_protected_book_is_named(tmp_path: Path) -> None:
    listed = (
        "<encryption><EncryptedData><CipherReference "
        'URI="OEBPS/c.xhtml"/></EncryptedData></encryption>'
    )
    path = write_epub(
        tmp_path / "b.epub", {"c.xhtml": "<p>x</p>"}, **{"META-INF__encryption_xml": listed}
    )
    with pytest.raises(UsageError, match="give a book without DRM"):
        read_book(path)
    fonts = listed.replace("OEBPS/c.xhtml", "OEBPS/font.otf")
    path = write_epub(
        tmp_path / "f.epub", {"c.xhtml": "<p>x</p>"}, **{"META-INF__encryption_xml": fonts}
    )
    assert read_book(path).text == "x"


# ---------------------------------------------------------------- annotations
def built(folder: Path, text: str, annotator: Any = None, **options: Any) -> Any:
    (folder / "book.txt").write_text(text)
    (book,) = asyncio.run(
        build_books([folder / "book.txt"], annotator or Extractive(), folder / "stories", **options)
    )
    return book


def about(chapter: Any) -> Any:
    return chapter.model_dump()


def test_no_later_chapter_is_in_an_earlier_annotation(tmp_path: Path) -> None:
    """Other chapters from 5 on leave all that is written about 1 to 4 as it was; 5 to 8 change."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    first = built(tmp_path / "one", book_text())
    second = built(tmp_path / "two", book_text(changed=5))
    same = [about(a) == about(b) for a, b in zip(first.chapters, second.chapters, strict=True)]
    assert same == [True] * 4 + [False] * 4
    found = [tasks_of(tmp_path / name / "stories", synopsis=False) for name in ("one", "two")]
    prompts = [[t.prompt for split in tasks.values() for t in split] for tasks in found]
    assert prompts[0][:2] == prompts[1][:2]  # chapters 3 and 4
    assert prompts[0][2] == prompts[1][2]  # chapter 5 itself is not in its prompt
    assert prompts[0][3] != prompts[1][3]


def test_the_whole_book_is_given_only_on_request(tmp_path: Path) -> None:
    plain = built(tmp_path, book_text())
    assert plain.whole == ""
    folder = str(tmp_path / "stories")
    with pytest.raises(UsageError, match="build it with --whole-book"):
        list(Story(data=folder, whole_book=True).tasks("train"))
    whole = built(tmp_path, book_text(), whole_book=True)
    assert whole.whole == whole.chapters[-1].story_so_far
    assert "# Summary of the whole book" in str(
        next(iter(Story(data=folder, whole_book=True).tasks("train"))).prompt
    )
    assert "# Summary of the whole book" not in str(
        next(iter(Story(data=folder).tasks("train"))).prompt
    )


def echo(body: dict[str, Any]) -> tuple[int, Any]:
    """Answers with the first words of what it was given, so that leaks are seen."""
    instruction, material = (m["content"] for m in body["messages"])
    words = " ".join(material.split()[:30])
    return 200, said(f"<think>hm</think>Ada: {words}" if instruction.startswith("List") else words)


def build_with(server: Server, folder: Path, text: str) -> tuple[Any, int]:
    async def run() -> tuple[Any, int]:
        async with server.up() as url, OpenAIEngine(base_url=url, retries=0) as engine:
            annotator = Modelled(engine, folder / "stories" / "cache")
            (folder / "book.txt").write_text(text)
            (book,) = await build_books([folder / "book.txt"], annotator, folder / "stories")
            return book, annotator.asked

    return asyncio.run(run())


def test_a_model_sees_no_later_chapter_and_is_asked_once(tmp_path: Path) -> None:
    """Four requests per chapter; the words of a chapter are in no request before its own; then all
    is cached.
    """
    server = Server(echo)
    book, asked = build_with(server, tmp_path, book_text(5))
    assert asked == len(server.bodies) == 4 * 5
    asked_about = [" ".join(m["content"] for m in body["messages"]) for body in server.bodies]
    for number in range(1, 6):
        first = min(i for i, text in enumerate(asked_about) if f"mill{number} " in text)
        assert first >= 4 * (number - 1)
    assert book.chapters[0].characters.keys() == {"Ada"}
    assert "<think>" not in book.model_dump_json()
    again, asked = build_with(Server((500, "no")), tmp_path, book_text(5))
    assert asked == 0
    assert again == book
    _, asked = build_with(Server(echo), tmp_path, book_text(5, changed=5))
    assert asked == 4  # the last chapter alone


def test_an_interrupted_build_continues(tmp_path: Path) -> None:
    """A server that dies after seven answers costs the answers that are missing, not those that
    came.
    """
    dying = Server(*[echo] * 7, (400, "gone"))
    with pytest.raises(InfrastructureError, match="answered 400"):
        build_with(dying, tmp_path, book_text(5))
    assert not list((tmp_path / "stories").glob("*.book.json"))
    _, asked = build_with(Server(echo), tmp_path, book_text(5))
    assert asked == 4 * 5 - 7


def test_a_model_that_says_nothing_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="answered nothing to"):
        build_with(Server((200, said("<think>well</think>"))), tmp_path, book_text(3))
    assert not list((tmp_path / "stories").glob("*.book.json"))


# ---------------------------------------------------------------- tasks
def tasks_of(folder: Path, **fields: Any) -> dict[str, list[StoryTask]]:
    environment = Story(data=str(folder), **fields)
    return {split: list(environment.tasks(split)) for split in ("train", "dev", "test")}


def test_one_book_is_split_by_chapter(tmp_path: Path) -> None:
    """Later chapters test, so that no text of theirs is in a prompt that trains; the ends of the
    book are left out.
    """
    built(tmp_path, book_text(12))
    tasks = tasks_of(tmp_path / "stories")
    assert {s: [t.index for t in found] for s, found in tasks.items()} == {
        "train": [3, 4, 5, 6, 7],
        "dev": [8],
        "test": [9, 10],
    }
    task = tasks["test"][0]
    assert task.chapter.startswith("So Ada Moss")
    assert "mill8" in str(task.prompt)  # the last chapter is told in full
    assert "mill10" not in str(task.prompt)
    for sections in ("# Story so far", "# Characters", "# Last chapter", "# Next chapter"):
        assert sections in str(task.prompt)


def test_books_go_to_splits_as_a_whole(tmp_path: Path) -> None:
    for n in range(4):
        built(tmp_path, f"Title: Book {n}\n\n" + book_text(8).replace("mill", f"mill{n}x"))
    tasks = tasks_of(tmp_path / "stories")
    books = {split: {t.book for t in found} for split, found in tasks.items()}
    assert all(books.values())
    assert not any(a & b for a, b in itertools.combinations(books.values(), 2))
    by_chapter = tasks_of(tmp_path / "stories", split_by="chapter")
    assert all(len({t.book for t in found}) == 4 for found in by_chapter.values())


def test_long_chapters_are_scored_from_their_beginning(tmp_path: Path) -> None:
    built(tmp_path, book_text(8))
    task = tasks_of(tmp_path / "stories", chapter_words=50, plan_words=10)["train"][0]
    assert len(task.chapter.split()) == 50
    assert len(task.answer.split()) <= 10
    assert not any(tasks_of(tmp_path / "stories", words=(1, 100)).values())


def test_folders_without_books_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="quintain-story build BOOK --out FOLDER"):
        list(Story(data=str(tmp_path)).tasks("train"))
    (tmp_path / "x.book.json").write_text('{"format": 1}')
    with pytest.raises(UsageError, match="is no book of quintain-story"):
        list(Story(data=str(tmp_path)).tasks("train"))


@pytest.mark.slow
def test_controls_on_a_real_book(real_data: Path, tmp_path: Path) -> None:
    """Alice, extractive and by the n-gram model: summaries of the chapters beat every plan without
    a thought.
    """
    asyncio.run(build_books([real_data / "books" / "alice.txt"], Extractive(), tmp_path))
    (book,) = read_books(tmp_path)
    assert len(book.chapters) == 12
    for split in ("train", "dev", "test"):
        checks = asyncio.run(
            check_controls(Story(data=str(tmp_path)), split=split, services={"scorer": Scorer()})
        )
        assert not [c.wrong for c in checks if c.wrong]
        gains = {
            c.name: [r.outcome.parts["vr_cli.improvement"] for r in c.evaluation.rollouts]
            for c in checks
        }
        for honest, gold, *empty in zip(
            *(
                gains[n]
                for n in (
                    "oracle",
                    "gold",
                    "nop",
                    "wrong_chapter",
                    "copied_synopsis",
                    "filler",
                    "page",
                )
            ),
            strict=True,
        ):
            assert gold > honest > max(empty)


GENERIC = (
    "My heart was beating fast. I opened the gate and crossed the yard, and there he was, just as "
    "I had left him, with his hat on his knees. 'You have come back,' he said. 'I thought that you "
    "would.' I did not know how to reply. For some minutes we said nothing, and then I took a "
    "chair and told him a part of what had happened to me, though not the worst part. He heard me "
    "to the end. 'It is a strange story,' he said at last, 'and I hardly know whether I ought to "
    "believe you.' I was angry, and I rose and walked about the room; but what he said was only "
    "natural, and I soon sat down again. My aunt came in with a candle. She was an old woman, and "
    "very tired, and she had been crying. She looked from one of us to the other and begged us not "
    "to quarrel. I promised her that we would not. Then she went away, and we were left alone, and "
    "little by little it grew dark. I remember that a dog was barking somewhere, and that I wished "
    "with all my heart to be at home. 'What will you do now?' he asked me. I said that I should "
    "wait for a few days, and see, and that if nothing came of it I should go to the town and find "
    "out the truth for myself. He thought about this. 'Then I shall go with you,' he said, and he "
    "held out his hand, which I took. It was settled so, and I was glad of it, for I had been more "
    "afraid than I liked to own. We drank a glass together and parted. "
)


def test_a_page_that_fits_any_novel_earns_nothing(real_data: Path, tmp_path: Path) -> None:
    """Generic prose as long as a plan may be, which is not that of the control: it improves most
    chapters a little.
    """
    asyncio.run(build_books([real_data / "books" / "alice.txt"], Extractive(), tmp_path))
    environment = Story(data=str(tmp_path), words=(200, 50_000))
    tasks = [task for split in ("train", "dev", "test") for task in environment.tasks(split)]
    plan = " ".join((GENERIC.split() * 2)[:300])
    group = [rollout(task, plan, result=StoryResult(plan=plan)) for task in tasks]

    def earning(floor: str) -> list[str]:
        context = RewardContext(services={"scorer": Scorer()})
        scores = asyncio.run(vr_cli(floor=floor).score_all(group, context))
        return [
            r.task.id
            for r, score in zip(group, scores, strict=True)
            if isinstance(score, Score) and score.total
        ]

    assert len(earning("noise")) > len(tasks) / 2
    assert earning("controls") == []


# ---------------------------------------------------------------- the command
def command(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    code = "from quintain_env_story.command import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Build, list, JSON, help and errors: once in a process of its own, which spends half a second
    on imports.
    """

    def called(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["quintain-story", *words])
        try:
            main()
        except SystemExit as e:
            return int(e.code or 0), *capsys.readouterr()
        return 0, *capsys.readouterr()

    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text("Title: The Mill\n\n" + book_text(6))
    done = command("build", "book.txt", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["books"][0]["title"] == "The Mill"
    assert report["books"][0]["headings"] == "chapter"
    assert len(report["books"][0]["chapters"]) == 6
    assert (tmp_path / report["books"][0]["file"]).is_file()
    assert "book.txt: 6 chapters" in done.stderr
    status, out, _ = called("chapters", "book.txt")
    assert status == 0
    assert "The Mill: 6 chapters by chapter" in out
    status, out, _ = called("build", "--help")
    assert "quintain-story build alice.txt moby.epub --out stories" in out
    status, out, _ = called("build", "none.txt", "--json")
    assert status == 2
    assert "cannot read the book none.txt" in json.loads(out)["error"]["message"]
    status, _, err = called("build", "book.txt", "--model", "m")
    assert status == 2
    assert err.startswith("error: --model and --api-key belong to a server")
    (tmp_path / "short.txt").write_text("A tale.\n\nThe end.")
    status, _, err = called("chapters", "short.txt")
    assert status == 2
    assert "has no second chapter" in err


@pytest.mark.more
def test_the_page_shows_commands_that_work(
    real_data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The commands of docs/story.md on its book."""
    (tmp_path / "alice.txt").write_bytes((real_data / "books" / "alice.txt").read_bytes())
    done = command("build", "alice.txt", "--out", "stories", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "12 chapters (chapter), 26,368 words" in done.stdout
    monkeypatch.chdir(tmp_path)
    assert quintain("eval story --data stories --split train --controls --json".split()) == 0
    assert json.loads(capsys.readouterr().out)["ok"]


@pytest.mark.parametrize("failing", ["summary", "synopsis", "characters"])
def test_a_failure_of_the_model_reaches_the_caller_as_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """Though the annotations of a chapter are asked for at once."""

    async def fail(*asked: object) -> str:
        raise InfrastructureError(f"{failing} is down")

    annotator = Extractive()
    monkeypatch.setattr(annotator, failing, fail)
    (tmp_path / "book.txt").write_text(book_text(3))
    with pytest.raises(InfrastructureError, match=f"{failing} is down"):
        asyncio.run(build_book(tmp_path / "book.txt", annotator, tmp_path / "stories"))
