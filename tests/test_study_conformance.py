"""The study of capture layers: Quintain's own pass every case, planted faults are found, and the
page has the results.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from studies.conformance import (
    CASES,
    CaptureCase,
    CaptureLayer,
    GatewayLayer,
    ServeLayer,
    run_case,
    run_cases,
)
from studies.conformance.__main__ import conformance

from .conformance_faults import FAULTS, FaultyLayer
from .docs.pages import Page
from .lanes import mostly_slow

PAGE = Path(__file__).resolve().parent.parent / "docs" / "conformance.md"

FAST_CASES = {case.name for case in [*CASES.values()][::6]}
"""They are of every group; `make test-slow` plays all."""

FAST_FAULTS = {fault.column: name for name, fault in FAULTS.items()}
"""One fault of each column; `make test-slow` plants all."""


def failures(case: CaptureCase, layer: CaptureLayer) -> list[str]:
    return [
        f"{result.dialect}: {reason}"
        for result in run_cases([case], layer)
        for reason in (result.reasons if result.outcome != "pass" else ())
    ]


@pytest.mark.more
@pytest.mark.parametrize("name", mostly_slow(CASES, FAST_CASES))
def test_the_gateway_in_an_episode_trains_what_was_sampled(name: str) -> None:
    """Each case passes in each API."""
    assert failures(CASES[name], GatewayLayer()) == []


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_server_records_what_was_sampled(case: CaptureCase) -> None:
    """It has no episodes, so no limit on their tokens."""
    if "budget" in case.needs:
        assert {r.outcome for r in run_cases([case], ServeLayer())} == {"not offered"}
    else:
        assert failures(case, ServeLayer()) == []


@pytest.mark.parametrize("name", mostly_slow(FAULTS, set(FAST_FAULTS.values())))
def test_a_planted_fault_is_found_by_its_cases(name: str) -> None:
    """Each case that is named finds it in its column, and finds nothing without it."""
    fault = FAULTS[name]
    for case in map(CASES.__getitem__, fault.finds):
        found = asyncio.run(run_case(case, FaultyLayer(fault), "chat"))
        assert fault.column in found.columns, (case.name, found)
        assert asyncio.run(run_case(case, ServeLayer(), "chat")).outcome == "pass"


def test_the_status_is_1_if_a_case_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not offered is no failure."""
    (tmp_path / "layers.py").write_text(
        "from studies.conformance import ServeLayer\n"
        "from tests.conformance_faults import FAULTS, FaultyLayer\n"
        'faulty = FaultyLayer(FAULTS["a branch trains twice"])\n'
        "class ChatAlone(ServeLayer):\n"
        '    dialects = frozenset({"chat"})\n'
    )
    monkeypatch.chdir(tmp_path)
    passed = CliRunner().invoke(conformance, ["-c", "one-turn", "-l", "layers.py:ChatAlone"])
    failed = CliRunner().invoke(conformance, ["-c", "one-turn", "-l", "layers.py:faulty"])
    assert passed.exit_code == 0
    assert "1 pass, 0 fail, 2 not offered" in passed.output
    assert failed.exit_code == 1
    assert "trains 2 times, sampled 1 times" in failed.output


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
    assert f"{len(FAULTS)} faults are planted" in text


@pytest.mark.slow
def test_the_layer_of_the_page_passes_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that it offers but one case, since it encodes replies again."""
    (block,) = [b for b in Page(path=PAGE).blocks if b.file == "capture.py"]
    (tmp_path / "capture.py").write_text(block.text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(conformance, ["--layer", "capture.py:Proxy", "--json"])
    rows = [json.loads(line) for line in found.output.splitlines()]
    failed = {row["case"]: row["columns"] for row in rows if row["outcome"] == "fail"}
    assert failed == {"special-tokens-spelt-by-the-policy": ["prompts"]}
    assert sum(row["outcome"] == "pass" for row in rows) > 90
