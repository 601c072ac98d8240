"""The search index and its MCP server."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import random
import re
import shlex
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client, StdioServerParameters

from quintain.errors import UsageError
from quintain_tools.search import Columns, SearchIndex, build_index, make_server, open_corpus
from quintain_tools.search.command import main

from ....docs.pages import ROOT, Page
from ....lanes import examples
from ..mcp.servers import ROWS, SEARCH_SERVER, served, write_rows

SEARCH_PAGE = Page(path=ROOT / "docs" / "search.md")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("indexes")


@pytest.fixture(scope="module")
def corpus(cache: Path) -> Path:
    return write_rows(cache / "corpus.jsonl")


@pytest.fixture(scope="module")
def index(corpus: Path, cache: Path) -> SearchIndex:
    return build_index(open_corpus(str(corpus)), cache)


def ids(index: SearchIndex, query: str, k: int = 5) -> list[str]:
    return [hit.passage.id for hit in index.search(query, k)]


# ---------------------------------------------------------------- the index


def test_search_ranks_and_open_returns_the_row(index: SearchIndex) -> None:
    """A search finds stems in title and text; a passage comes back as the row was."""
    assert ids(index, "The discovering of Radium?") == ["curie"]
    assert ids(index, "ROME") == ["rome"]
    assert [] == ids(index, "zebra") == ids(index, "") == ids(index, "?!")
    curie = index.open("curie")
    assert curie is not None
    assert ROWS[0] == {"id": curie.id, "title": curie.title, "text": curie.text}
    assert index.open("nobody") is None


def test_a_query_of_stop_words_is_taken_with_them(index: SearchIndex) -> None:
    """`The Who` is a band."""
    assert ids(index, "the who")[0] == "who"


def test_query_syntax_means_nothing(index: SearchIndex) -> None:
    """Words are words, whatever stands around them: no query is a syntax error."""
    for query in (
        'text:radium AND -"',
        "radium)",
        "+radium^",
        "[radium TO",
        "radium\0",
        "radium " * 10_000,
    ):
        assert ids(index, query) == ["curie"], query


@given(st.text())
@examples(100)
def test_any_text_is_a_query(index: SearchIndex, text: str) -> None:
    """No text makes a search fail, and none finds more than it asked for."""
    assert len(index.search(text, 2)) <= 2


def test_scores_are_bm25s(tmp_path: Path) -> None:
    """Scores equal the formula of BM25 with k1 = 1.2 and b = 0.75 on passages short enough for
    exact lengths.
    """
    draw = random.Random(0)
    words = [f"w{i}" for i in range(12)]
    texts = [draw.choices(words, k=draw.randint(1, 20)) for _ in range(60)]
    rows = [{"text": " ".join(text)} for text in texts]
    index = build_index(open_corpus(str(write_rows(tmp_path / "c.jsonl", rows))), tmp_path)
    mean = sum(map(len, texts)) / len(texts)
    query = ["w1", "w5", "w7"]

    def score(text: list[str]) -> float:
        total = 0.0
        for word in query:
            n = sum(word in other for other in texts)
            frequency = text.count(word)
            idf = math.log(1 + (len(texts) - n + 0.5) / (n + 0.5))
            total += idf * frequency * 2.2 / (frequency + 1.2 * (0.25 + 0.75 * len(text) / mean))
        return total

    expected = sorted((score(text) for text in texts), reverse=True)[:10]
    assert expected == pytest.approx(
        [hit.score for hit in index.search(" ".join(query), 10)], rel=1e-5
    )


@pytest.mark.more
def test_recall_on_squad(real_data: Path, tmp_path: Path) -> None:
    """Recall at 5 of the paragraph with the answer is at least that of a plain BM25 written
    here.
    """
    data = json.loads((real_data / "squad" / "dev-v2.0.json").read_text())["data"]
    paragraphs = [paragraph for article in data for paragraph in article["paragraphs"]]
    rows = [{"text": paragraph["context"]} for paragraph in paragraphs]
    index = build_index(open_corpus(str(write_rows(tmp_path / "squad.jsonl", rows))), tmp_path)
    asked = [
        (q["question"], i)
        for i, p in enumerate(paragraphs)
        for q in p["qas"]
        if not q["is_impossible"]
    ]
    sample = random.Random(0).sample(asked, 400)
    plain = PlainBM25([row["text"] for row in rows])

    found = sum(str(i + 1) in ids(index, question) for question, i in sample) / len(sample)
    expected = sum(i in plain.top(question, 5) for question, i in sample) / len(sample)

    assert expected > 0.8
    assert found >= expected


class PlainBM25:
    """BM25 over lower-case words, without stems, stop words or any library."""

    def __init__(self, texts: list[str]) -> None:
        counts = [Counter(re.findall(r"\w+", text.lower())) for text in texts]
        lengths = [c.total() for c in counts]
        mean = sum(lengths) / len(lengths)
        frequency = Counter(word for c in counts for word in c)
        self.weights: dict[str, dict[int, float]] = defaultdict(dict)
        for i, c in enumerate(counts):
            for word, tf in c.items():
                idf = math.log(1 + (len(texts) - frequency[word] + 0.5) / (frequency[word] + 0.5))
                self.weights[word][i] = (
                    idf * tf * 2.2 / (tf + 1.2 * (0.25 + 0.75 * lengths[i] / mean))
                )

    def top(self, query: str, k: int) -> list[int]:
        total: Counter[int] = Counter()
        for word in set(re.findall(r"\w+", query.lower())):
            for i, weight in self.weights.get(word, {}).items():
                total[i] += weight  # type: ignore[assignment]
        return [i for i, _ in total.most_common(k)]


# ---------------------------------------------------------------- the corpus and its cache


def test_the_index_is_built_once_for_a_content(tmp_path: Path) -> None:
    """Equal content takes the cached index, changed content another; what a killed build left is no
    obstacle.
    """
    file, said = write_rows(tmp_path / "c.jsonl"), []
    first = build_index(open_corpus(str(file)), tmp_path / "cache", said.append)
    assert said == ["indexed all 3 passages"]
    again = build_index(
        open_corpus(str(write_rows(tmp_path / "copy.jsonl"))), tmp_path / "cache", said.append
    )
    assert first.folder == again.folder
    assert len(said) == 1

    left = tmp_path / "cache" / f"{first.folder.name}.building"
    first.folder.rename(left)
    (left / "quintain.json").unlink()
    rebuilt = build_index(open_corpus(str(file)), tmp_path / "cache", said.append)
    assert rebuilt.passages == 3
    assert len(said) == 2
    assert not left.exists()

    write_rows(file, ROWS[:2])
    assert build_index(open_corpus(str(file)), tmp_path / "cache").passages == 2


def test_a_folder_of_text_is_cut_at_empty_lines(tmp_path: Path) -> None:
    """Passages have at most 200 words, whole paragraphs where possible; every word is in one of
    them.
    """
    folder = tmp_path / "notes"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a.txt").write_text("one two\nthree\n\n" + "long " * 450 + "\n\nfour")
    (folder / "b.md").write_text("# Radium\n\n\n\nIt glows.\n")
    (folder / ".hidden.txt").write_text("secret")

    passages = {p.id: p for p in open_corpus(str(folder)).passages()}

    assert ["b.md#1", *(f"deep/a.txt#{i}" for i in range(1, 5))] == list(passages)
    assert passages["b.md#1"].title == "b"
    assert passages["b.md#1"].text == "# Radium\n\nIt glows."
    words = [len(p.text.split()) for p in passages.values()]
    assert words == [4, 3, 200, 200, 51]


def test_columns_gzip_and_data_sets(tmp_path: Path) -> None:
    """Columns can be named; gzip and a saved data set read alike; ids default to the line or the
    row.
    """
    rows = [{"key": 7, "wiki": "Radium glows."}, {"key": "b", "wiki": "Rome\ud800."}]
    with gzip.open(tmp_path / "c.jsonl.gz", "wt") as file:
        file.write("\n".join(map(json.dumps, rows)))
    named = open_corpus(str(tmp_path / "c.jsonl.gz"), Columns(id="key", text="wiki"))
    assert [(p.id, p.text) for p in named.passages()] == [("7", "Radium glows."), ("b", "Rome?.")]

    datasets = pytest.importorskip("datasets", reason="the library `datasets` is not installed")
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    saved = open_corpus(str(tmp_path / "saved"))
    assert [row["id"] for row in ROWS] == [p.id for p in saved.passages()]
    assert build_index(saved, tmp_path / "cache").passages == 3


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", "no passages"),
        ("{\n", r":1: not JSON"),
        ('{"text": "a"}\n[1]\n', ":2: a list; expected an object"),
        ('{"words": "a"}', "no column .*text or contents.* but words; name it with --text-column"),
        ('{"text": ["a"]}', "'text' is list; expected a string"),
        (
            '{"id": "x", "text": "a"}\n{"id": "x", "text": "b"}',
            "jsonl:2: the id 'x' is that of .*jsonl:1, too.*--id-column",
        ),
        ("[" * 100_000, ":1: not JSON"),
    ],
)
def test_unusable_lines_are_one_line_errors(tmp_path: Path, text: str, expected: str) -> None:
    """The message names the line and the fix, and nothing is left in the cache as an index."""
    (tmp_path / "c.jsonl").write_text(text)

    with pytest.raises(UsageError, match=expected) as caught:
        build_index(open_corpus(str(tmp_path / "c.jsonl")), tmp_path / "cache")

    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "cache").glob("*/quintain.json"))


# ---------------------------------------------------------------- the command


def test_the_command_searches(corpus: Path, cache: Path) -> None:
    """`--query` prints hits as text or JSON; `--help` shows commands to copy."""
    shown = CliRunner().invoke(main, [str(corpus), "--cache", str(cache), "--query", "radium"])
    assert shown.exit_code == 0, shown.output
    assert "[curie] Marie Curie" in shown.stdout, shown.output
    found = CliRunner().invoke(
        main, [str(corpus), "--cache", str(cache), "--query", "radium", "--json"]
    )
    assert json.loads(found.stdout)["hits"][0]["id"] == "curie"
    assert "--query" in CliRunner().invoke(main, ["--help"]).output


@pytest.mark.parametrize(
    "words, expected",
    [
        (["nowhere/such/corpus.jsonl"], "there is no file or folder"),
        (["{corpus}", "--http", "elsewhere"], "expected PORT or HOST:PORT"),
        (["{corpus}", "--http", "99999999"], "expected PORT or HOST:PORT"),
        (
            ["{corpus}", "--text-column", "body"],
            "no column 'body' for the text, but id, title, text",
        ),
    ],
)
def test_errors_name_the_fix(corpus: Path, cache: Path, words: list[str], expected: str) -> None:
    """Status 2 and the fault on stderr."""
    done = CliRunner().invoke(
        main, [word.format(corpus=corpus) for word in words] + ["--cache", str(cache)]
    )

    assert done.exit_code == 2
    assert done.stdout == ""
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


# ---------------------------------------------------------------- the MCP server


async def exercise(client: Client) -> None:
    """What any client sees, whatever the transport."""
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert {"search", "open"} == set(tools)
    assert {"query", "k"} == set(tools["search"].input_schema["properties"])
    assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools.values())

    assert await called(client, "search", query="who discovered radium", k=1) == (
        False,
        "[curie] Marie Curie\nShe discovered radium and polonium in Paris.",
    )
    failed, text = await called(client, "search", query="capital of Italy")
    assert not failed
    assert "[rome] Rome\nRome is the capital" in text
    assert text.endswith("... (4,629 characters in all)"), text[-80:]
    failed, text = await called(client, "open", id="rome")
    assert not failed
    assert len(text.partition("\n")[2]) == 4_629
    failed, text = await called(client, "open", id="nobody")
    assert failed
    assert text.endswith('no passage has the id "nobody"; `search` shows ids in brackets')
    for arguments in (
        {"query": " "},
        {"query": "radium", "k": 0},
        {"query": "radium", "k": 21},
        {"k": 2},
    ):
        assert (await called(client, "search", **arguments))[0], arguments
    assert await called(client, "search", query="zebra") == (
        False,
        "no passage has these words; try others",
    )


async def called(client: Client, tool: str, **arguments: Any) -> tuple[bool, str]:
    result = await client.call_tool(tool, arguments)
    (content,) = result.content
    assert content.type == "text"
    return bool(result.is_error), content.text


def test_tools_in_process(index: SearchIndex) -> None:
    """The tools, their schemas and their errors."""

    async def run() -> None:
        async with Client(make_server(index)) as client:
            await exercise(client)

    asyncio.run(run())


def test_tools_over_stdio(corpus: Path, cache: Path, index: SearchIndex) -> None:
    """The same through a process and its pipes."""
    server = StdioServerParameters(
        command=SEARCH_SERVER[0], args=[*SEARCH_SERVER[1:], str(corpus), "--cache", str(cache)]
    )

    async def run() -> None:
        async with Client(server) as client:
            await exercise(client)

    asyncio.run(run())


@pytest.mark.more
def test_tools_over_http(corpus: Path, cache: Path, index: SearchIndex) -> None:
    """The same over streamable HTTP, and for several clients at once."""

    async def run(url: str) -> None:
        async with Client(url) as client, Client(url) as other:
            await exercise(client)
            calls = (called(c, "search", query="radium", k=1) for c in (client, other) * 10)
            assert len(set(await asyncio.gather(*calls))) == 1

    with served(corpus, cache) as url:
        asyncio.run(run(url))


def test_the_page_shows_commands_that_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command of docs/search.md finds something; those that serve get a query, so that they
    end.
    """
    commands = [
        c for block in SEARCH_PAGE.blocks if block.language == "bash" for c in block.commands
    ]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))
    write_rows(tmp_path / "corpus.jsonl")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("Radium glows.")

    for command in commands:
        program, *words = shlex.split(command)
        assert program == "quintain-search-server"
        # another program may have the port
        words = [word if word != "8765" else "0" for word in words]
        done = CliRunner().invoke(
            main, words if "--query" in words else [*words, "--query", "radium"]
        )
        assert done.exit_code == 0, f"{command}\n{done.output}"
        assert "adium" in done.stdout, f"{command}\n{done.output}"
    assert len(commands) >= 5
