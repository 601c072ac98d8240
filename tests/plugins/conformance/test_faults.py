"""Faults of capture that are planted are found: else the table would prove nothing."""

from __future__ import annotations

import asyncio

import pytest

from quintain_conformance import CASES, ServeLayer, run_case

from .faults import FAULTS, FaultyLayer


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_by_its_cases(name: str) -> None:
    """Each case that is named finds it in its column, and finds nothing without it."""
    fault = FAULTS[name]
    for case in map(CASES.__getitem__, fault.finds):
        found = asyncio.run(run_case(case, FaultyLayer(fault), "chat"))
        assert fault.column in found.columns, (case.name, found)
        assert asyncio.run(run_case(case, ServeLayer(), "chat")).outcome == "pass"


def test_there_are_faults_of_every_column() -> None:
    assert {f.column for f in FAULTS.values()} == {
        "ids",
        "mask",
        "logps",
        "versions",
        "replies",
        "prompts",
    }
