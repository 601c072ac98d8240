"""`make site`: it builds without a network, and nothing in it leads nowhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from .pages import ROOT, page

SECTIONS = ["Start", "Tutorials", "Guides", "Reference", "Contributors"]


class Html(HTMLParser):
    """The links, the sources of what a browser loads, and the anchors of a file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag in ("script", "img", "iframe", "source") and "src" in found:
            self.loads.append(found["src"])
        elif tag == "link" and found.get("rel") in ("stylesheet", "icon", "preload"):
            self.loads.append(found["href"])


def test_the_index_has_the_sections_of_the_site() -> None:
    """docs/README.md is the navigation: each page is in a row of one of its tables."""
    index = page("docs/README.md").text

    assert re.findall(r"^## (.+)$", index, re.M) == SECTIONS
    rows = re.findall(r"^\| \[[^\]]+\]\(([^)]+)\) \| .+ \|$", index, re.M)
    assert sorted(set(rows)) == sorted(rows)
    assert sorted(rows) == sorted(page("docs/README.md").links)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without a network and without a warning."""
    folder = tmp_path_factory.mktemp("site")
    dead = {
        f"{scheme}_proxy": "http://127.0.0.1:9" for scheme in ("http", "https", "HTTP", "HTTPS")
    }
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **dead}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.ci
def test_every_page_is_there(site: Path) -> None:
    """Pages of docs/, the API reference of the public names, llms.txt, and a search index that
    finds them.
    """
    made = {p.relative_to(site).with_suffix("").as_posix() for p in site.rglob("*.html")}
    pages = {
        p.relative_to(ROOT / "docs").with_suffix("").as_posix()
        for p in (ROOT / "docs").rglob("*.md")
    }

    assert pages - {"README", "decisions/README", "experiments/README"} <= made
    assert {
        "index",
        "api/quintain",
        "decisions/index",
        "experiments/index",
        "files/CONTRIBUTING.md",
    } <= made
    reference = Html(site / "api" / "quintain.html").anchors
    assert {"quintain.interfaces.environment.Environment", "advantage"} <= reference
    found = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    assert {"recipes.html", "start.html"} <= {
        entry["location"].partition("#")[0] for entry in found
    }
    assert (ROOT / "llms.txt").read_text() == (site / "llms.txt").read_text()


@pytest.mark.ci
def test_no_link_is_broken_and_nothing_is_loaded_from_another_host(site: Path) -> None:
    """Files and anchors exist; a browser without a network shows everything."""
    files = {p: Html(p) for p in site.rglob("*.html") if p.name != "404.html"}
    broken = []
    for path, html in files.items():
        for link in [*html.links, *html.loads]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in html.loads:
                    broken.append(f"{path.relative_to(site)} loads {link}")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            anchor = unquote(parts.fragment)
            if not target.exists():
                broken.append(f"{path.relative_to(site)} -> {link}")
            elif target in files and anchor not in {"", *files[target].anchors}:
                broken.append(f"{path.relative_to(site)} -> {link}: no such heading")

    assert len(files) >= 60
    assert broken == []
