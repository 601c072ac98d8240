"""Every case through Quintain's own capture layers: exactly what was sampled trains."""

from __future__ import annotations

import pytest

from quintain_conformance import (
    CASES,
    CaptureCase,
    CaptureLayer,
    GatewayLayer,
    ServeLayer,
    run_cases,
)


def failures(case: CaptureCase, layer: CaptureLayer, dialect: str = "") -> list[str]:
    return [
        f"{result.dialect}: {reason}"
        for result in run_cases([case], layer, dialect)
        for reason in (result.reasons if result.outcome != "pass" else ())
    ]


@pytest.mark.parametrize(
    ("name", "dialect"),
    [
        # each case in one dialect, and each dialect in some cases; all of them in the slow lane
        pytest.param(name, dialect, marks=[pytest.mark.slow] if k != i % len(case.dialects) else [])
        for i, (name, case) in enumerate(CASES.items())
        for k, dialect in enumerate(case.dialects)
    ],
)
def test_the_gateway_in_an_episode_trains_what_was_sampled(name: str, dialect: str) -> None:
    assert failures(CASES[name], GatewayLayer(), dialect) == []


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_server_records_what_was_sampled(case: CaptureCase) -> None:
    """It has no episodes, so no limit on their tokens."""
    if "budget" in case.needs:
        assert {r.outcome for r in run_cases([case], ServeLayer())} == {"not offered"}
    else:
        assert failures(case, ServeLayer()) == []


def test_there_are_sixty_cases_and_each_samples_something() -> None:
    assert len(CASES) >= 60
    results = [*run_cases([*CASES.values()][:20], ServeLayer(), "chat")]
    assert all(result.turns and result.tokens for result in results)
