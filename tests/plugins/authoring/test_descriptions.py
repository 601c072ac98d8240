"""`quintain check` on an installed component: descriptions that are stale, or still those of
`quintain new`.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quintain.registry import current
from quintain.registry.discovery import Component
from quintain.registry.lookup import isolated
from quintain_authoring.checks import check_manifest
from quintain_authoring.descriptions import stale_description
from quintain_authoring.new import EPISODES, KINDS, distribution_files

SUMS = "Sort the digits of a line."
LADDERS = "Change a word into another, one letter a turn."
Edit = tuple[str, str, str]
"""A file (by the end of its path), a text in it, and another."""


@pytest.fixture
def described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """What is said about a new component after these edits, with its distribution on the path as
    pip installs it.
    """
    monkeypatch.syspath_prepend(tmp_path)

    def described(kind: str, name: str, *edits: Edit, episode: str = "single-turn") -> str:
        texts = distribution_files(kind, name, episode)
        for end, old, new in edits:
            (path,) = (path for path in texts if path.endswith(end))
            assert old in texts[path]
            texts[path] = texts[path].replace(old, new)
        project = tomllib.loads(texts["pyproject.toml"])["project"]
        ((_, points),) = project["entry-points"].items()
        info = tmp_path / f"{project['name'].replace('-', '_')}-0.1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.4\nName: {project['name']}\nVersion: 0.1.0\nSummary: "
            f"{project['description']}\n"
        )
        for path, text in texts.items():
            file = tmp_path / path.removeprefix("src/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        component = Component(
            kind=KINDS[kind].component, name=name, target=points[name], distribution=project["name"]
        )
        with isolated(component, keep=["quintain"]):
            rows = check_manifest(component)
        assert [("manifest", "ok"), ("description", "warning" if rows[1].message else "ok")] == [
            (row.name, row.status) for row in rows
        ]
        return rows[1].message

    yield described
    for name in [
        name
        for name, module in sys.modules.items()
        if str(tmp_path) in str(getattr(module, "__file__", ""))
    ]:
        del sys.modules[name]


def test_what_was_just_written_is_described(described: Callable[..., str]) -> None:
    for kind in KINDS.keys() - {"environment"}:
        assert described(kind, f"fresh-{kind}") == ""
    for episode in EPISODES:
        assert described("environment", f"fresh-{episode}", episode=episode) == ""


@pytest.mark.parametrize(
    ("edits", "stale", "again"),
    [
        (
            [("/ladder.py", "digits: int = 4", "digits: int = 5")],
            ["the code of", "summary of", "description in"],
            True,
        ),
        ([("/ladder.py", SUMS, LADDERS)], ["summary of", "description in"], True),
        ([("/ladder.py", SUMS, LADDERS), ("pyproject.toml", SUMS, LADDERS)], ["summary of"], False),
        (
            [("quintain.toml", SUMS, LADDERS), ("pyproject.toml", SUMS, LADDERS)],
            ["the code of"],
            False,
        ),
        (
            [(end, SUMS, LADDERS) for end in ("/ladder.py", "quintain.toml")],
            ["description in"],
            True,
        ),
    ],
    ids="code class class-and-project toml-and-project class-and-toml".split(),
)
def test_each_place_that_kept_the_template_is_named(
    edits: list[Edit], stale: list[str], again: bool, described: Callable[..., str]
) -> None:
    head, *lines = described("environment", "ladder", *edits).splitlines()

    assert "still that of `quintain new`; write what the component does" in head
    assert again == head.endswith("then pip install -e . again")
    assert len(lines) == len(stale)
    assert all(
        line.startswith(place) and line.endswith(SUMS)
        for place, line in zip(stale, lines, strict=True)
    )


def test_a_description_that_was_edited_in_one_place_alone_is_noticed(
    described: Callable[..., str],
) -> None:
    """The manifest has been the author's own; then the class changes."""
    mine = [
        (end, SUMS, "Name the capital of a country.") for end in ("quintain.toml", "pyproject.toml")
    ]
    assert (
        described(
            "environment", "capitals", *mine, ("/capitals.py", SUMS, "The capital of each country.")
        )
        == ""
    )

    message = described("environment", "ladder", *mine, ("/ladder.py", SUMS, LADDERS))

    head, own, manifest = message.splitlines()
    assert head.endswith("change the one that is stale")
    assert own == "the code of 'ladder': Change a word into another, one letter a turn."
    assert manifest.endswith("quintain_env_ladder/quintain.toml: Name the capital of a country.")


def test_the_summary_of_an_algorithm_is_that_of_its_manifest(described: Callable[..., str]) -> None:
    old = "Dr. GRPO with a cap on the ratio instead of the clip."
    edits = [(end, old, "Dr. GRPO with a cap.") for end in ("quintain.toml", "pyproject.toml")]

    assert (
        described("algorithm", "capped", *edits, ("/capped.py", old, "Dr. GRPO with a cap.")) == ""
    )
    assert "two descriptions do not agree" in described(
        "algorithm", "other", *edits, ("/other.py", old, "Capped.")
    )


@pytest.mark.parametrize("kind", ["environment", "reward", "algorithm", "hooks"])
def test_our_own_descriptions_agree(kind: str) -> None:
    assert {c.id: text for c in current().components(kind) if (text := stale_description(c))} == {}
