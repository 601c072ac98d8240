"""`quintain conformance`: what it prints, its status, layers of one's own, and its page."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.docs.pages import Page

from quintain.errors import QuintainError
from quintain_conformance import CASES
from quintain_conformance.command import conformance

from .faults import FAULTS

ROOT = Path(__file__).resolve().parent.parent.parent.parent
PAGE = ROOT / "docs" / "conformance.md"
FAULTY = """
from quintain_conformance import ServeLayer
from tests.plugins.conformance.faults import FAULTS, FaultyLayer

layer = FaultyLayer(FAULTS["a branch trains twice"])


class Silent(ServeLayer):
    async def capture(self, truth, agent, case):
        from quintain_conformance import Capture
        return Capture(sequences=[])


class Broken(ServeLayer):
    async def capture(self, truth, agent, case):
        raise OSError("no port")


class ChatAlone(ServeLayer):
    dialects = frozenset({"chat"})
    features = frozenset()
"""


def call(*words: str) -> Result:
    return CliRunner().invoke(conformance, [*words])


def test_what_passes_is_status_0_and_what_fails_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "layers.py").write_text(FAULTY, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert call("-c", "one-turn").exit_code == 0
    found = call("-c", "one-turn", "-d", "chat", "--layer", "layers.py:layer")
    assert found.exit_code == 1
    assert "FAIL" in found.output
    assert "trains 2 times, sampled 1 times" in found.output
    assert "and 12 more (--verbose)" in found.output
    whole = call("-c", "one-turn", "-d", "chat", "--layer", "layers.py:layer", "-v")
    assert whole.output.count("trains 2 times") == 15


@pytest.mark.parametrize(
    ("layer", "reason"),
    [("Silent", "the layer did not run the agent"), ("Broken", "OSError: no port")],
)
def test_a_layer_that_does_nothing_or_raises_fails(
    layer: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "layers.py").write_text(FAULTY, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    found = call("-c", "one-turn", "-d", "chat", "--layer", f"layers.py:{layer}", "--json")
    row = json.loads(found.output)
    assert (found.exit_code, row["outcome"], row["columns"][0]) == (1, "fail", "error")
    assert reason in row["reasons"][0]


def test_what_is_not_offered_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "layers.py").write_text(FAULTY, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    found = call("-c", "one-turn", "-c", "several-replies", "--layer", "layers.py:ChatAlone")
    assert found.exit_code == 0
    assert "1 pass, 0 fail, 3 not offered" in found.output


def test_the_list_has_all_cases() -> None:
    lines = call("--list").output.splitlines()
    assert [line.split()[0] for line in lines] == [*CASES]
    rows = [
        json.loads(line)
        for line in call("--list", "--json", "-g", "weights").output.split("\n")
        if line
    ]
    assert {row["group"] for row in rows} == {"weights"}


def test_warnings_of_the_gateway_are_back_afterwards() -> None:
    """They are off while cases do what it warns of, and no longer."""
    before = logging.getLogger("quintain.gateway").level
    CliRunner().invoke(conformance, ["--case", "one-turn", "--dialect", "chat"])
    assert logging.getLogger("quintain.gateway").level == before


@pytest.mark.parametrize(
    "words",
    [("-c", "one-trun"), ("-g", "turn"), ("-l", "gatewya"), ("-l", "collections:Counter")],
)
def test_names_that_mean_nothing_are_refused(words: tuple[str, ...]) -> None:
    assert isinstance(call(*words).exception, QuintainError)


def test_the_page_has_the_table_of_all_cases_and_ours_pass() -> None:
    """`python -m studies.benchmarks.conformance` writes it."""
    text = PAGE.read_text(encoding="utf-8")
    part = text.partition("<!-- table -->")[2].partition("<!-- end of table -->")[0]
    lines = [line for line in part.splitlines() if line.startswith("| `")]
    rows = [[one.strip() for one in line.strip("|").split("|")] for line in lines]
    assert [row[0].strip("`") for row in rows] == [*CASES]
    assert [row[-1] for row in rows] == [case.summary for case in CASES.values()]
    assert {row[1] for row in rows} == {"pass"}
    assert {row[2] for row in rows} == {"pass", "-"}


def test_the_page_says_how_many_faults_are_planted() -> None:
    assert f"{len(FAULTS)} faults are planted" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "passed"), [(("-g", "tokens"), 12), pytest.param((), 90, marks=pytest.mark.slow)]
)
def test_the_layer_of_the_page_passes_as_it_says(
    words: tuple[str, ...], passed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that it offers but one case, since it encodes replies again."""
    (block,) = [b for b in Page(path=PAGE).blocks if b.file == "capture.py"]
    (tmp_path / "capture.py").write_text(block.text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    found = call("--layer", "capture.py:Proxy", "--json", *words)
    rows = [json.loads(line) for line in found.output.splitlines()]
    failed = {row["case"]: row["columns"] for row in rows if row["outcome"] == "fail"}
    assert failed == {"special-tokens-spelt-by-the-policy": ["prompts"]}
    assert sum(row["outcome"] == "pass" for row in rows) > passed
