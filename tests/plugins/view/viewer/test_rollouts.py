"""`quintain rollouts`: filters, the terminal, JSON, and the HTML page, which shows hostile text as
text.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
from base64 import b64decode
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from rich.console import Console

from quintain import Message, Score, Task
from quintain.cli import main
from quintain.store import RunFolder
from quintain.types.rollout import Group, Turn
from quintain.types.transcript import Branch, TokenSource, Transcript
from quintain_view.viewer.command import newest, spread
from quintain_view.viewer.page import instructive, json_in_html
from quintain_view.viewer.pictures import seen, shared
from quintain_view.viewer.stored import SOURCES, rewrites_of, token_rows
from quintain_view.viewer.terminal import show

from ....pictures import png
from .rollout_run import HOSTILE, make_run, rollout


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps of two groups of four rollouts; in each group two are right."""
    path = tmp_path_factory.mktemp("viewer") / "runs"
    make_run(path)
    return path


def run(runs: Path, *words: str) -> int:
    return main(["rollouts", "sums", "--folder", str(runs), *words])


def found(runs: Path, capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert run(runs, "--json", *words) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", 16),
        ("--right", 8),
        ("--wrong", 6),
        ("--failed", 2),
        ("--wrong --failed", 8),
        ("--step 2", 8),
        ("--step 1 --step 2 --right", 8),
        ("--environment arithmetic --reward 1..", 8),
        ("--reward ..0.5", 6),
        ("--reward 0.25", 6),
        ("--environment other", 0),
        ("--cause policy", 0),
        ("--cause infrastructure --cause policy", 2),
        ("--contains INJECTED", 8),
        ("--contains 2+2?", 16),
        ("-n 3", 3),
    ],
)
def test_filters_select_rollouts(
    runs: Path, capsys: pytest.CaptureFixture[str], words: str, expected: int
) -> None:
    views = found(runs, capsys, *words.split())

    assert expected == len(views)
    if "--failed" in words and "--wrong" not in words:
        assert {("failed", "timeout", 2)} == {
            (v["result"], v["termination"], v["attempts"]) for v in views
        }


def test_few_rollouts_are_of_different_groups(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two samples of one group show the same task twice; a third rollout has no group of its own in
    the newest step.
    """

    def groups(limit: str) -> list[tuple[int, int]]:
        return [(v["step"], v["group"]) for v in found(runs, capsys, "--right", "-n", limit)]

    assert len(set(groups("2"))) == 2
    assert [step for step, _ in groups("3")] == [2, 2, 2]
    assert groups("3") == sorted(groups("3"))


def test_unknown_runs_steps_and_ranges_are_refused(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, message in (
        (["--step", "7"], "it has steps 1 to 2"),
        (["--reward", "x..1"], "expected a range such as"),
        (["--html", "a.html", "--json"], "leave one out"),
    ):
        assert run(runs, *words) == 2
        out = capsys.readouterr()
        assert message in out.out + out.err
    assert main(["rollouts", "sum", "--folder", str(runs)]) != 0
    assert "did you mean 'sums'" in capsys.readouterr().err


def test_json_has_tokens_with_their_advantages(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (view,) = found(runs, capsys, "--right", "--tokens", "-n", "1")

    assert view["reward"] == 1.25
    assert view["outcome"] == 1.0
    assert view["shaping"] == 0.25
    assert view["advantage"] == 1.0
    assert view["parts"] == {"exact": 1.0, "format": 1.0}
    assert [t["text"] for t in view["tokens"]] == [
        "What is 2+2?",
        "<end>",
        "The answer",
        " is",
        " 4",
        "<end>",
    ]
    sampled = [
        (t["logp"], t["advantage"], t["version"])
        for t in view["tokens"]
        if t["source"] == TokenSource.MODEL
    ]
    assert [
        (pytest.approx(-0.01), 1.0, 2),
        (pytest.approx(-0.7), 1.0, 2),
        (pytest.approx(-2.3), 1.0, 2),
    ] == sampled


def test_advantages_follow_the_branches() -> None:
    """Advantages are stored branch by branch, and so are the tokens shown; what a branch shares with
    the one that it left is shown once.
    """

    def branch(parent: int, fork: int, ids: list[int], sources: list[int]) -> dict[str, Any]:
        columns = {"logps": [-0.5] * len(ids), "versions": [3] * len(ids)}
        return {"parent": parent, "fork": fork, "ids": ids, "sources": sources, **columns}

    record = {
        "transcripts": {
            "": {"branches": [branch(-1, 0, [1, 2, 3], [1, 2, 2]), branch(0, 2, [4, 5], [0, 2])]}
        }
    }

    rows = token_rows(record, [0.1, 0.2, 0.3])
    shown = [(1, None), (2, 0.1), (3, 0.2), (4, None), (5, 0.3)]
    assert [(row[0], row[-1]) for row in rows] == shown
    sampled = [row[-1] for row in token_rows(record, None) if row[1] == TokenSource.MODEL]
    assert sampled == [None] * 3
    assert token_rows({"transcripts": {}}, None) == []


def test_sources_have_the_names_of_the_core() -> None:
    assert [s.name.lower().replace("model", "policy") for s in TokenSource] == list(SOURCES)


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("tokens", [(), ("--tokens",)])
def test_the_terminal_view_fits(
    runs: Path, capsys: pytest.CaptureFixture[str], columns: int, tokens: tuple[str, ...]
) -> None:
    """No line is wider than the terminal, and no control character of a model reaches it."""
    with patch.dict(os.environ, COLUMNS=str(columns)):
        assert run(runs, "--wrong", "-n", "2", *tokens) == 0
    out, err = capsys.readouterr()

    assert columns >= max(map(len, out.splitlines()))
    assert "\x1b" not in out
    for text in (
        "wrong  step 2",
        "reward 0.25  outcome 0  shaping 0.25  advantage -1",
        "exact 0",
        "finished; 3 tokens",
    ):
        assert text in out
    assert ("log-prob" in out) == bool(tokens)
    assert "2 of 6 rollouts, the newest; -n 6 shows all" in err


def test_what_begins_like_the_rollout_above_is_not_printed_again(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows that are shown before each task; the last of them stays, as a place to go on from."""
    assert run(runs, "--json", "-n", "1") == 0
    row = json.loads(capsys.readouterr().out) | {"tokens": None}
    rows = [{"role": "user", "content": f"row {i}"} for i in range(6)]
    views = [
        row | {"messages": [*rows[:shown], {"role": "user", "content": f"task {task}"}]}
        for task, shown in enumerate((6, 6, 2))
    ]
    out = io.StringIO()

    show(views, str, Console(file=out, width=80))

    first, second, third = re.split(r"task \d", out.getvalue())[:3]
    assert re.findall(r"row \d", first) == [f"row {i}" for i in range(6)]
    assert re.findall(r"row \d", second) == ["row 5"]
    assert "as above  5 messages" in second
    assert re.findall(r"row \d", third) == ["row 0", "row 1"]


# ---------------------------------------------------------------- the page
class Elements(HTMLParser):
    """The tags of a page and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=False)
        self.tags: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] == ["script"]:
            self.scripts[-1] += data


@pytest.fixture(scope="module")
def page(runs: Path) -> Path:
    path = runs.parent / "rollouts.html"
    assert run(runs, "--html", str(path)) == 0
    return path


def test_the_page_has_no_element_of_a_model(page: Path) -> None:
    """Hostile texts are inside the JSON block, which they cannot end; only the page's own script
    may run.
    """
    text = page.read_text()
    elements = Elements(text)

    assert elements.tags.count("script") == 2
    assert not {"img", "iframe", "link", "object", "b", "textarea"} & set(elements.tags)
    data = json.loads(elements.scripts[0])
    assert 16 == len(data["rollouts"]) == data["total"]
    assert any(HOSTILE in r["reply"] for r in data["rollouts"])
    assert "default-src 'none'" in text
    assert "unsafe" not in text
    assert "http:" not in text
    assert "https:" not in text


def test_json_in_html_cannot_end_its_block() -> None:
    texts = ["</script>", "<!--", "]]>", "\u2028", "&lt;", "\x00"]

    assert not set("<>&\u2028") & set(json_in_html(texts))
    assert texts == json.loads(json_in_html(texts))


def test_large_runs_are_limited() -> None:
    """The page takes whole steps, first and last among them; the terminal the newest rollouts."""
    found = [(step, Path(f"{step}"), list(range(100))) for step in range(100, 0, -1)]

    steps = [step for step, *_ in spread(found, 1000)]
    assert len(steps) == 10
    assert steps[0] == 100
    assert steps[-1] == 1
    assert {11} == {a - b for a, b in pairwise(steps)}
    assert found == spread(found, 10_000)
    assert [(100, Path("100"), list(range(30)))] == spread(found, 30)
    assert [len(numbers) for *_, numbers in newest(found, 150)] == [100, 50]


def test_a_limited_page_says_so(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(runs, "--html", str(tmp_path / "a.html"), "-n", "9") == 0

    why = "whole steps (1 of 2), because a page has at most 9"
    assert f"8 of 16 rollouts, {why}; -n 16 shows all" in capsys.readouterr().err
    assert why == json.loads(Elements((tmp_path / "a.html").read_text()).scripts[0])["why"]


def test_the_page_opens_on_a_group_that_teaches(page: Path) -> None:
    """The newest one with right and wrong samples and an advantage; a group of equal outcomes
    teaches nothing.
    """
    assert json.loads(Elements(page.read_text()).scripts[0])["open"] == [2, "arithmetic", 4]
    rows = [
        {"step": 1, "environment": "e", "group": 0, "result": r, "advantage": a}
        for r, a in (("right", 0.0),) * 4
    ]
    assert instructive(rows) is None
    rows += [
        {"step": 1, "environment": "e", "group": 1, "result": r, "advantage": 0.5}
        for r in ("right", "wrong")
    ]
    assert instructive(rows) == [1, "e", 1]


# ---------------------------------------------------------------- several conversations
def test_every_player_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    """Both seats of a game and each conversation of an agent, in text, JSON, tokens and the
    page.
    """
    branch = Branch(
        ids=(1, 0, 2, 3),
        sources=tuple(map(TokenSource, (1, 0, 2, 2))),
        logps=(0.0, 0.0, -0.5, -0.6),
        versions=(-1, -1, 1, 1),
    )
    spoken = rollout(1, 0, 0)
    players = {**spoken.transcripts, "thread-2": Transcript(branches=(branch,))}
    turns = (*spoken.turns, Turn(text="I pass", reply="I pass", player="rival"))
    outcome = Score(value=1.0, players={"rival": -1.0})
    played = spoken.replace(transcripts=players, turns=turns, outcome=outcome)
    make_run(tmp_path / "runs", steps=1)
    folder = RunFolder(tmp_path / "runs" / "sums", lock=False)
    folder.write_rollouts(1, [Group(task=played.task, rollouts=(played,))], {})
    monkeypatch.chdir(tmp_path)

    (view,) = found(tmp_path / "runs", capsys, "--tokens")
    thread, rival = view["conversations"]
    assert thread["player"] == "thread-2"
    assert thread["score"] is None
    texts = [(message["role"], message["content"]) for message in thread["messages"]]
    assert texts == [("context", "What is 2+2? <end>"), ("assistant", "The answer  is")]
    assert [token["logp"] for token in thread["tokens"]] == [None, None, -0.5, -0.6]
    assert rival["player"] == "rival"
    assert rival["score"] == -1.0
    assert rival["messages"] == [{"role": "assistant", "content": "I pass"}]
    for words in ((), ("--tokens",)):
        assert run(tmp_path / "runs", *words) == 0
        out = capsys.readouterr().out
        assert "player thread-2\n" in out
        assert "player rival, score -1\n" in out
    assert run(tmp_path / "runs", "--html", "a.html") == 0
    (shown,) = json.loads(Elements(Path("a.html").read_text()).scripts[0])["rollouts"]
    assert [thread["messages"], rival["messages"]] == [
        other["messages"] for other in shown["conversations"]
    ]
    assert len(shown["conversations"][0]["tokens"]) == 4


def browse(url: str, size: str, profile: Path) -> subprocess.CompletedProcess[str]:
    """The page at *url* as headless Chromium has built it, on standard output."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    words = [chromium, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={size}"]
    words += [
        "--virtual-time-budget=3000",
        f"--user-data-dir={profile}",
        "--host-resolver-rules=MAP * ~NOTFOUND",
    ]
    return subprocess.run(
        [*words, "--dump-dom", url], capture_output=True, text=True, timeout=120, check=True
    )


@pytest.mark.ci
@pytest.mark.parametrize("size", ["1280,900", "390,844"])
def test_the_page_works_in_a_browser(page: Path, tmp_path: Path, size: str) -> None:
    """Headless Chromium shows the groups, samples and tokens that match, and runs nothing of a
    model.
    """
    url = f"{page.as_uri()}#search=injected&result=wrong&tab=tokens&colour=advantage&reading=1"
    done = browse(url, size, tmp_path / "profile")
    elements = Elements(done.stdout)

    assert "<title>sums · rollouts</title>" in done.stdout
    assert elements.tags.count("script") == 2
    assert "img" not in elements.tags
    assert "6 rollouts in 4 groups" in done.stdout
    assert done.stdout.count('class="group') == 4
    assert done.stdout.count('class="sample ') == 4
    assert "advantage -1" in done.stdout
    assert 'title="&quot;The answer&quot;, id 2, policy; log-prob -0.01' in done.stdout
    assert "Content Security Policy" not in done.stderr


@pytest.mark.ci
def test_samples_that_fit_are_not_scrolled(page: Path, tmp_path: Path) -> None:
    """A tab that is higher than the window has a scroll bar, whose width the samples do not
    lose.
    """
    measure = (
        "const button = name => [...document.querySelectorAll('.tabs button')].find(b => "
        "b.textContent === name);const places = ['tokens', 'conversation', 'scores'].map(name => "
        "{document.querySelectorAll('.sample')[3].click(); button(name).click();const row = "
        "document.querySelector('.samples');return `${name} ${row.scrollLeft} of ${row.scrollWidth "
        "- row.clientWidth}`; });document.title = places.join(', ');"
    )
    text = re.sub("<meta http-equiv[^>]*>", "", page.read_text())
    copy = tmp_path / "measured.html"
    copy.write_text(text.replace("</body>", f"<script>{measure}</script></body>"))

    done = browse(copy.as_uri(), "1280,600", tmp_path / "profile")

    assert "<title>tokens 0 of 0, conversation 0 of 0, scores 0 of 0</title>" in done.stdout


# ------------------------------------------------------------------------------ rewritten contexts


def compacted() -> Any:
    """A rollout of two contexts: the policy notes `4` after 5 tokens, and goes on from it."""

    def branch(parent: int, fork: int, ids: list[int], sources: list[int]) -> Branch:
        logps = [-0.5 if s == TokenSource.MODEL else 0.0 for s in sources]
        versions = [1 if s == TokenSource.MODEL else -1 for s in sources]
        kinds = tuple(map(TokenSource, sources))
        return Branch(parent, fork, tuple(ids), kinds, tuple(logps), tuple(versions))

    branches = (
        branch(-1, 0, [1, 0, 1, 0, 1, 4], [1, 0, 1, 0, 1, 2]),
        branch(0, 1, [4, 1, 2, 3, 4], [4, 1, 2, 2, 2]),
    )
    return rollout(
        1,
        0,
        0,
        transcripts={"": Transcript(branches=branches)},
        turns=(Turn(text=" 4", reply="4", tokens=1), Turn(text="x", reply="The answer is 4")),
        messages=(
            Message("user", "What is 2+2?"),
            Message("assistant", "not sampled"),
            Message("user", "Notes?"),
            Message("assistant", "4"),
            Message("user", "What is 2+2?"),
            Message("assistant", "The answer is 4"),
        ),
    )


def test_where_a_context_was_rewritten() -> None:
    """The mark stands behind the summary; texts that the policy did not sample count as no turns."""
    record = compacted().to_json()

    (place,) = rewrites_of(record, record["messages"])

    assert place == {"tokens": 6, "messages": 4, "before": 6, "after": 3}
    assert len(token_rows(record, None)) == 11
    assert rewrites_of({"transcripts": {}, "turns": []}, []) == []


def test_viewers_mark_where_a_context_was_rewritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    """In the text, between the tokens, in their table and in the page, of each player."""
    played = compacted()
    players = {**played.transcripts, "helper": played.transcripts[""]}
    played = played.replace(transcripts=players)
    make_run(tmp_path / "runs", steps=1)
    folder = RunFolder(tmp_path / "runs" / "sums", lock=False)
    folder.write_rollouts(1, [Group(task=played.task, rollouts=(played,))], {})
    monkeypatch.chdir(tmp_path)

    assert run(tmp_path / "runs") == 0
    lines = capsys.readouterr().out.splitlines()
    marks = [i for i, line in enumerate(lines) if "rewritten: 6 tokens before, 3 after" in line]
    assert len(marks) == 2
    assert lines[marks[0] - 1].split() == ["assistant", "4"]
    assert lines[marks[0] + 1].split()[0] == "user"
    assert run(tmp_path / "runs", "--tokens") == 0
    out = capsys.readouterr().out
    assert out.count("[context rewritten: 6 tokens before, 3 after]") == 2
    assert out.count("\ncontext rewritten: 6 tokens before, 3 after\n") == 2
    (view,) = found(tmp_path / "runs", capsys)
    helper = view["conversations"][0]
    assert view["rewrites"] == [{"tokens": 6, "messages": 4, "before": 6, "after": 3}]
    assert [m["role"] for m in helper["messages"]] == ["context", "assistant"] * 2
    assert helper["rewrites"] == [{"tokens": 6, "messages": 2, "before": 6, "after": 3}]
    assert run(tmp_path / "runs", "--html", "a.html") == 0
    (shown,) = json.loads(Elements(Path("a.html").read_text()).scripts[0])["rollouts"]
    assert shown["rewrites"] == view["rewrites"]
    assert "context rewritten: " in Path("a.html").read_text()


def test_the_page_shows_the_marks(tmp_path: Path, monkeypatch: Any) -> None:
    """As Chromium builds it: one between the messages, one between the tokens."""
    played = compacted()
    make_run(tmp_path / "runs", steps=1)
    folder = RunFolder(tmp_path / "runs" / "sums", lock=False)
    folder.write_rollouts(1, [Group(task=played.task, rollouts=(played,))], {})
    monkeypatch.chdir(tmp_path)
    assert run(tmp_path / "runs", "--html", "a.html") == 0

    for tab in ("conversation", "tokens"):
        url = f"file://{tmp_path}/a.html#tab={tab}&reading=1"
        built = browse(url, "900,900", tmp_path / "profile").stdout
        mark = '<div class="rewrite">context rewritten: 6 tokens before, 3 after</div>'
        assert built.count(mark) == 1, built[-3000:]


# ------------------------------------------------------------------------------ pictures


def seeing(tmp_path: Path) -> Path:
    """A run with one rollout: pictures of the user and of a tool, a forged one, and a lost one."""
    from quintain_vision import picture, tool_picture

    red, blue = picture(png("red", (6, 4))), tool_picture(png("blue", (640, 4)))
    lost = red.replace(red[-33:-1], "0" * 32)
    given = (
        Message("user", f"{red}Which colour? {lost}"),
        Message("assistant", f"I see {red}"),
        Message("tool", f"{blue} and {red}", name="look"),
    )
    made = rollout(1, 0, 0, messages=given, task=Task(prompt=f"{red}Which colour?"))
    make_run(tmp_path / "runs", steps=1)
    folder = RunFolder(tmp_path / "runs" / "sums", lock=False)
    folder.write_rollouts(1, [Group(task=made.task, rollouts=(made,))], {})
    return tmp_path / "runs"


@pytest.mark.parametrize("installed", [True, False])
def test_pictures_are_labels_and_small_ones(
    installed: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))
    runs = seeing(tmp_path)
    if not installed:
        monkeypatch.setattr("quintain_view.viewer.pictures.find_spec", lambda name: None)
    (view,) = found(runs, capsys)
    user, assistant, tool = view["messages"]
    assert user["content"] == "[image 6x4]Which colour? [image 6x4]"
    assert assistant["content"] == "I see [image 6x4]"
    assert tool["content"] == "[image 640x4] and [image 6x4]"
    assert view["prompt"] == "[image 6x4]Which colour?"
    assert [len(m["pictures"]) for m in view["messages"]] == ([1, 0, 1] if installed else [0] * 3)
    assert run(runs) == 0
    assert "[image 6x4]Which colour?" in capsys.readouterr().out
    assert run(runs, "--html", str(tmp_path / "a.html")) == 0
    page = json.loads(Elements((tmp_path / "a.html").read_text()).scripts[0])
    assert "\ufdd1" not in json.dumps(page["rollouts"], ensure_ascii=False)
    assert len(page["pictures"]) == 2 * installed
    if installed:
        numbers = [m["pictures"] for m in page["rollouts"][0]["messages"]]
        assert numbers == [[0], [], [1]]
        small, large = map(opened, page["pictures"])
        assert (small.size, small.getpixel((0, 0))) == ((6, 4), (255, 0, 0))
        assert large.size == (160, 1)


@pytest.mark.parametrize("given", [["https://example.org/a.png", 3, "data:a"], "data:a"])
def test_an_address_that_is_stored_is_not_fetched(given: Any) -> None:
    message = {"role": "user", "content": "a", "pictures": given}
    assert seen(message)["pictures"] == (["data:a"] if isinstance(given, list) else [])


def opened(url: str) -> Any:
    from PIL import Image

    return Image.open(io.BytesIO(b64decode(url.partition(",")[2])))


def test_the_pictures_of_a_page_are_in_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [{"pictures": ["a", "b"]}, {}, {"pictures": ["b", "c", "d"]}]
    monkeypatch.setattr("quintain_view.viewer.pictures.MOST", 3)
    assert shared(messages) == ["a", "b", "c"]
    assert messages == [{"pictures": [0, 1]}, {}, {"pictures": [1, 2]}]
