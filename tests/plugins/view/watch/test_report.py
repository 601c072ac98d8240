"""`quintain watch --report` and `--terminal`, on a stored run with hostile texts."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from quintain.cli import main
from quintain.errors import RunError
from quintain.store import RunFolder
from quintain_view.watch.document import Grid, Heading, Paragraph, Verbatim, as_html, as_markdown
from quintain_view.watch.index import RolloutIndex
from quintain_view.watch.report import chosen_samples, report_of
from quintain_view.watch.terminal import bars

from ..viewer.rollout_run import HOSTILE
from .stored import make_stored


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_stored(tmp_path_factory.mktemp("runs"), steps=16)


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.sources: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.sources += [v or "" for k, v in attrs if k in ("src", "href")]


@pytest.mark.more
def test_a_report_has_all_that_an_appendix_needs(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every section, in HTML and in Markdown, with the picture inside and beside."""
    monkeypatch.chdir(tmp_path)
    words = ["--folder", str(folder.parent), "--price", "2"]
    assert main(["watch", "sums", "--report", "sums-report.html", *words]) == 0

    page, markdown = (Path(f"sums-report.{kind}").read_text() for kind in ("html", "md"))
    titles = [
        "Run sums",
        "Results",
        "Curves",
        "Data",
        "Samples",
        "Failures by cause",
        "Alerts",
        "Hardware, cost and versions",
        "Steered while it ran",
        "Repeat it",
        "Recipe",
    ]
    assert re.findall("<h[12]>(.*?)</h[12]>", page) == titles
    assert re.findall("^##? (.*)$", markdown, re.M) == titles
    for text in (
        "quintain train recipe.toml",
        "2.13.0",
        "cpu (x86_64)".replace("_", "_"),
        "infrastructure",
        "12.50%",
        "entropy.sampled, success",
        "66.7%",
    ):
        assert text in page
    assert Path("sums-curves.png").read_bytes().startswith(b"\x89PNG")
    assert "](sums-curves.png)" in markdown
    tags = Tags(page)
    assert set(tags.names) & {"script", "iframe", "link", "object"} == set()
    assert [source[:22] for source in tags.sources] == ["data:image/png;base64,"]


def test_samples_are_chosen_by_the_rule(folder: Path) -> None:
    """First, middle and last step, one right and one wrong each, and a failure of each cause."""
    index = RolloutIndex(folder)
    index.refresh()

    chosen = chosen_samples(index.entries)

    assert [(e.step, e.result, e.sample) for e in chosen] == [
        (1, "right", 0),
        (1, "wrong", 1),
        (9, "right", 0),
        (9, "wrong", 1),
        (16, "right", 0),
        (16, "wrong", 1),
        (1, "failed", 3),
    ]
    assert chosen_samples(list(reversed(index.entries))) == chosen


def test_texts_neither_format_nor_run() -> None:
    """Tags, fences and bars of a model stay what they are."""
    fence = "a ``` b ```` c"
    blocks = [
        Heading(HOSTILE),
        Paragraph("*no* <b> _x_ | [y](z)"),
        Verbatim(fence),
        Grid(["a|b"], [["x\ny|z"]]),
    ]

    page = as_html("t", blocks)
    markdown = as_markdown(blocks)

    assert set(Tags(page).names) == {
        *("html", "head", "meta", "title", "style", "body"),
        *("h2", "p", "pre", "table", "tr", "th", "td"),
    }
    assert "\n`````\na ``` b ```` c\n`````\n" in markdown
    assert r"\*no\* \<b\> \_x\_ \| \[y\](z)" in markdown
    assert "| a\\|b |\n| --- |\n| x y\\|z |" in markdown


def test_a_run_without_a_step_has_no_report(tmp_path: Path) -> None:
    """There is nothing to report."""
    RunFolder.create(tmp_path / "new", "[run]\n").close()

    with pytest.raises(RunError, match="has no complete step"):
        report_of(tmp_path / "new")


def test_the_terminal_shows_the_state(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Curves as bars, alerts with their metrics, what the last step waited for, and the cost."""
    words = ["--terminal", "--once", "--price", "2", "--folder", str(folder.parent)]
    assert main(["watch", "sums", *words]) == 0

    out = capsys.readouterr().out
    assert "sums: stopped, step 16 of 16" in out
    assert "alert entropy_collapse since step 13 (entropy.sampled, success)" in out
    assert re.search(r"45\.0% +4\.500 s +tool search", out)
    assert "12,800 tokens, 0.03" in out
    assert "█" in out


def test_bars_span_the_values() -> None:
    """The smallest value is the lowest bar and the largest the highest, also where all are equal."""
    assert bars([0.0, 0.5, 1.0]) == "▁▅█"
    assert bars([2.0, 2.0]) == "▁▁"
