"""docs/architecture.md describes the source as it is: folders, layers, and a reading order."""

from __future__ import annotations

import re
import runpy

import pytest

from .pages import ROOT, page

PACKAGE = ROOT / "core" / "quintain"
PAGE = page("docs/architecture.md")
LAYOUT = runpy.run_path(str(ROOT / "tools" / "layout.py"), run_name="layout")

MOST_FILES = 12


def section(title: str) -> str:
    """The text under a heading of the page."""
    return PAGE.text.split(f"## {title}\n")[1].split("\n## ")[0]


def reading_order() -> dict[str, str]:
    """Path of each file of the reading order, from the package, with what the page says about
    it.
    """
    text = section("Reading order")
    item = r"^(\d+)\. \[`([\w/.]+)`\]\(\.\./core/quintain/([\w/.]+)\): (.+?)(?=^\d+\. |^$)"
    items = re.findall(item, text, re.M | re.S)
    assert [str(n + 1) for n in range(len(items))] == [number for number, *_ in items]
    assert all(shown == target for _, shown, target, _ in items)
    assert len(re.findall(r"^\d+\. ", text, re.M)) == len(items)
    return {path: about for _, path, _, about in items}


def test_the_reading_order_is_that_of_the_layout() -> None:
    """At most 12 files, from the loop to the weight sync. `tools/layout.py` limits their tokens."""
    names = [path.removesuffix(".py").replace("/", ".") for path in reading_order()]

    assert names == list(LAYOUT["READING_ORDER"])
    assert names[0] == "run.loop"
    assert names[-1] == "run.weight_sync"
    assert len(names) <= MOST_FILES


@pytest.mark.parametrize("path", reading_order())
def test_what_the_reading_order_points_at_is_in_the_file(path: str) -> None:
    """Functions and classes that the page names beside a file are defined there."""
    text = (PACKAGE / path).read_text(encoding="utf-8")
    for span in re.findall(r"`([^`]+)`", reading_order()[path]):
        if "/" not in span:
            for name in span.removesuffix("()").split("."):
                assert re.search(rf"\b(def|class) {name}\b", text), f"{path} has no {name}"


def test_the_picture_shows_every_folder() -> None:
    """All folders of the package, with the base marked, and the layers as they are."""
    (picture, chain) = (block.text for block in PAGE.blocks if block.language == "text")
    shown = {name: bool(base) for base, name in re.findall(r"^(B?) +(\w+)/ ", picture, re.M)}
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.iterdir())} - {
        "__pycache__"
    }

    assert set(shown) == folders
    assert {name for name, base in shown.items() if base} == LAYOUT["BASE_FOLDERS"]
    assert [part.split(", ") for part in chain.strip().split(" < ")] == [
        list(layer) for layer in LAYOUT["LAYERS"] if layer != ("__main__",)
    ]


def test_paths_in_the_text_exist() -> None:
    """Files and folders named in the text or in the picture of a step."""
    boxes = [
        part
        for block in PAGE.blocks
        if block.language == "mermaid"
        for part in re.findall(r"[\w/]+\.py", block.text)
    ]
    spans = [span for span in PAGE.spans if re.fullmatch(r"[\w/]+(/|\.py)", span)]
    missing = [
        path
        for path in (*boxes, *spans)
        if not (PACKAGE / path).exists() and not (ROOT / path).exists()
    ]

    assert boxes
    assert not missing
