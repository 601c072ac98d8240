"""What the documentation shows is what happens: its code and its commands run, its recipes parse,
its links resolve.
"""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from quintain.cli import COMMANDS, main
from quintain.recipe.resolve import EnvironmentSpec, resolve_algorithm
from quintain.recipe.tables import Recipe
from quintain.registry import parse_manifest
from quintain.registry.binding import bind, signature_of
from quintain.registry.discovery import GROUPS
from quintain.registry.lookup import current

from ..core.models.tiny import save_tiny
from ..lanes import mostly_slow
from .commands import ELSEWHERE, parse, run, shows
from .pages import MEMBER_PAGES, OTHER_PAGES, PAGES, ROOT, Block, Page, page

SHOWS_ONLY = {"", "text", "mermaid", "json", "markdown"}
"""Languages of blocks that nothing can run."""

PYTEST = "python -m pytest "

SLOW = {"docs/compare.md", "docs/games.md", "docs/harbor.md"}
"""Pages whose commands take seconds, and are run in their own way by the tests of a plugin or an
environment.
"""

WORKED = {path.read_text() for path in (ROOT / "examples").glob("*.toml")}

TRAINED = """
run.name = "arithmetic-1"
run.steps = 2
model.name = "model"
environments = [{ use = "arithmetic" }]
sampling.max_tokens = 8
batch = { prompts = 2, group_size = 2 }
evaluation = { every = 1, tasks = 4, test = { tasks = 4 } }
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run as `quintain train arithmetic` leaves it, only much smaller."""
    place = tmp_path_factory.mktemp("trained")
    save_tiny(place / "model", context=160)
    (place / "small.toml").write_text(TRAINED)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert main(["train", "small.toml", "--quiet"]) == 0
    return place


@pytest.fixture
def place(trained: Path, desk: Path, no_curves: None) -> Path:
    """The working directory of a reader who has trained both."""
    shutil.copytree(trained / "runs", desk / "runs")
    shutil.copytree(desk / "runs" / "arithmetic-1", desk / "runs" / "extraction-1")
    return desk


def page_name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def commands_of(path: Path) -> list[str]:
    """The commands that a page shows."""
    blocks = Page(path=path).blocks
    return [c for block in blocks if block.language == "bash" for c in block.commands]


FAST = {page_name(path) for path in PAGES} - SLOW


@dataclass
class Reader:
    """Does what a page says, from top to bottom."""

    page: Page
    place: Path
    pytest: bool = False
    """Whether ``python -m pytest`` is run, too, which is a second or two for each."""
    names: dict[str, Any] = field(default_factory=dict)

    def read(self) -> None:
        module = types.ModuleType("__page__")
        sys.modules[module.__name__] = module
        self.names = module.__dict__
        for block in self.page.blocks:
            getattr(self, f"do_{block.language}", self.show)(block)
        del sys.modules[module.__name__]

    def show(self, block: Block) -> None:
        assert block.language in SHOWS_ONLY, (
            f"{self.at(block)}: no test knows what to do with {block.language!r}"
        )

    def at(self, block: Block) -> str:
        return f"{self.page.path.relative_to(ROOT)}:{block.line}"

    def do_python(self, block: Block) -> None:
        if block.file:
            self.write(block)
            return
        # Empty lines in front, so that a traceback names the line of the page.
        source = "\n" * (block.line - 1) + block.text
        exec(compile(source, str(self.page.path), "exec", dont_inherit=True), self.names)

    def do_bash(self, block: Block) -> None:
        for command in block.commands:
            if command in ELSEWHERE or (command.startswith(PYTEST) and not self.pytest):
                continue
            status, said = run(command)
            assert status == 0, f"{self.at(block)}: {command}\n{said}"

    def do_console(self, block: Block) -> None:
        for command, expected in block.talks:
            _, said = run(command)
            assert shows(expected, said), (
                f"{self.at(block)}: {command} said\n{said}\ninstead of\n{expected}"
            )

    def do_toml(self, block: Block) -> None:
        if block.file:
            self.write(block)
        if block.text not in WORKED:  # test_worked_recipes.py checks these, in their folder
            check_toml(block.text, self.at(block))

    def write(self, block: Block) -> None:
        path = self.place / block.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)
        later = [b.text for b in self.page.blocks if b.line > block.line]
        used = Path(block.file).stem
        assert path.suffix == ".toml" or any(re.search(rf"\b{used}\b", text) for text in later), (
            f"{self.at(block)}: nothing on the page uses {block.file}"
        )


def check_toml(text: str, where: str) -> None:
    """A recipe or a part of one, a manifest, or the entry points of a distribution."""
    data = tomllib.loads(text)
    if "project" in data:
        groups = {g for g in data["project"].get("entry-points", {}) if g.startswith("quintain")}
        assert groups <= set(GROUPS.values()), where
    elif "api" in data:
        parse_manifest(text, where)
    else:
        whole = (
            text if "environments" in data else f'{text}\n[[environments]]\nuse = "arithmetic"\n'
        )
        recipe = Recipe.parse(whole, source=where)
        resolve_algorithm(recipe)
        for table in recipe.environments:
            component = EnvironmentSpec.of(table).component
            if not signature_of(component).needs:
                bind(component, table.args, {}, who=where)


@pytest.mark.keeps("README.md", "docs/start.md")
@pytest.mark.parametrize("path", mostly_slow(PAGES, FAST, name=page_name), ids=page_name)
def test_page_does_what_it_says(path: Path, place: Path) -> None:
    """Code, files, commands and recipes of a page, in the order of the page."""
    Reader(Page(path=path), place).read()


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [p for p in PAGES if any(c.startswith(PYTEST) for c in commands_of(p))], ids=page_name
)
def test_tests_of_a_page_pass(path: Path, place: Path) -> None:
    """The test files that a page shows, run as it says."""
    Reader(Page(path=path), place, pytest=True).read()


@pytest.mark.parametrize("path", [*PAGES, *MEMBER_PAGES, *OTHER_PAGES], ids=page_name)
def test_links_resolve(path: Path) -> None:
    """Files and headings that a page points at exist; addresses on the net are not looked up."""
    for link in Page(path=path).links:
        if re.match(r"https?://|mailto:", link):
            continue
        file, _, ratio_to = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), f"{path.name}: {link}"
        assert not ratio_to or ratio_to in Page(path=target).anchors, f"{path.name}: {link}"


def test_every_member_has_a_page_of_its_own() -> None:
    """Its README is what an index of packages would show, and is read at one sight."""
    members = {
        path.parent
        for place in ("plugins", "environments")
        for path in (ROOT / place).glob("*/pyproject.toml")
    }
    lengths = {path.parent: len(path.read_text().splitlines()) for path in MEMBER_PAGES}

    assert set(lengths) == members
    assert {path.name: lines for path, lines in lengths.items() if lines > 60} == {}


@pytest.mark.parametrize("path", MEMBER_PAGES, ids=page_name)
def test_the_page_of_a_member_names_its_components_and_extras(path: Path) -> None:
    """A reader finds there what the member brings."""
    project = tomllib.loads((path.parent / "pyproject.toml").read_text())["project"]
    names = [
        name
        for group, components in project.get("entry-points", {}).items()
        if group in GROUPS.values()
        for name in components
    ]
    names += project.get("optional-dependencies", {})
    text = path.read_text()

    assert [name for name in names if not re.search(rf"[`\[ ]{name}\b", text)] == []


def test_what_a_coding_agent_reads_first_is_one_page() -> None:
    """AGENTS.md has at most 60 lines."""
    assert len((ROOT / "AGENTS.md").read_text().splitlines()) <= 60


def test_the_latest_release_is_read_on_one_page() -> None:
    """A release that sums up has at most 60 lines."""
    releases = (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1:]

    assert releases[0].startswith("Unreleased")
    assert len(releases[1].splitlines()) <= 60


def test_commands_that_run_elsewhere_are_run_there() -> None:
    """Every test that the table names exists, every command in it is in the documentation and takes
    its options.
    """
    shown = {command for path in PAGES for command in commands_of(path)}

    assert not set(ELSEWHERE) - shown
    for command, test in ELSEWHERE.items():
        file, _, name = test.partition("::")
        assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.M), test
        if command.startswith("quintain "):
            parse(command)


def test_every_page_is_in_the_index() -> None:
    """docs/README.md links to each page of its folder."""
    index = ROOT / "docs" / "README.md"

    assert {p.name for p in PAGES if p.parent == index.parent} - {index.name} <= set(
        Page(path=index).links
    )


def test_commands_in_the_text_exist() -> None:
    """`quintain ...` in running text names a command, `make ...` a target."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    spans = {(path.name, *span.split()) for path in PAGES for span in Page(path=path).spans}
    words = {(name, tool, rest[0]) for name, tool, *rest in (s for s in spans if len(s) > 2)}

    commands = {*COMMANDS, *(component.name for component in current().components("command"))}

    assert not {w for w in words if w[1] == "quintain" and w[2] not in commands and w[2][0] != "-"}
    assert not {w for w in words if w[1] == "make" and w[2] not in targets}


def test_promises_name_tests_that_exist() -> None:
    """Each test that docs/guarantees.md points at for a promise is there."""
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page("docs/guarantees.md").text)

    assert len(named) >= 8
    for file, name in named:
        assert not name or f"def {name}(" in (ROOT / file).read_text(), f"{file}::{name}"


def test_the_examples_of_the_readme_are_as_short_as_it_says() -> None:
    """About twenty lines for an environment, five for a reward."""
    files = {block.file: block.text for block in page("README.md").blocks if block.file}
    lines = [line for line in files["reverse.py"].splitlines()[1:] if line.strip()]

    assert len(lines) <= 22
    assert len(files["closeness.py"].splitlines()) <= 9


def test_the_readme_is_read_in_five_minutes() -> None:
    """It has at most 1,000 words, code included."""
    assert len(page("README.md").text.split()) <= 1_000


def test_the_loop_follows_the_two_commands() -> None:
    """The first link after them is the file that a reader opens next."""
    _, found, rest = page("README.md").text.partition("make test ")

    assert found != ""
    assert re.findall(r"\]\(([^)]+)\)", rest)[0] == "examples/loop.py"


def test_the_reader_notices_what_is_wrong() -> None:
    """A line that is not there, a line out of order, an unknown command."""
    assert shows("a ... d\n...\ne", "a b c d\nx\ny\ne\n")
    assert not shows("e\na", "a\ne")
    assert not shows("a c", "a b c")
    with pytest.raises(AssertionError, match="ELSEWHERE"):
        run("rm -rf x")
