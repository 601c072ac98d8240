"""What `quintain compare` makes of results: paired differences, intervals, curves, fits."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs quintain[train]")

from quintain_view.compare.comparison import build_comparison
from quintain_view.compare.fits import NoFit, RepeatedSampling, Sigmoid
from quintain_view.compare.report import notes, picture, row
from quintain_view.compare.results import RecipeResult, recipe_results

from .kit import recipe


def write(
    folder: Path, rates: Sequence[float], coverage: Mapping[int, float] | None = None
) -> None:
    """A finished run: every step 10 samples, 100 tokens and 2 seconds; reward and accuracy as
    given.
    """
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text("")
    lines = [{"step": 0, "held_out.accuracy": rates[0]}]
    for step, rate in enumerate(rates[1:], 1):
        spent = {
            "samples": 10,
            "tokens": 100,
            "seconds.rollouts": 1.5,
            "seconds.update": 0.5,
            "seconds.evaluation": 9,
        }
        lines.append(
            {"step": step, **spent, "reward.outcome.mean": rate, "held_out.accuracy": rate}
        )
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    after = {"accuracy": rates[-1], **{f"pass@{k}": c for k, c in (coverage or {}).items()}}
    (folder / "summary.json").write_text(
        json.dumps({"held_out": {"before": {"accuracy": rates[0]}, "after": after}})
    )


def rise(top: float, wobble: float = 0.0, steps: int = 30) -> list[float]:
    return [
        0.2 + (top - 0.2) / (1 + (800 / max(1e-9, 100 * i)) ** 2) + wobble * (-1) ** i
        for i in range(steps + 1)
    ]


@pytest.fixture
def made_up(tmp_path: Path) -> list[RecipeResult]:
    comparison = build_comparison(
        [("a", recipe()), ("b", recipe(algorithm__use="rloo"))], seeds=[0, 1, 2], folder=tmp_path
    )
    for seed, wobble in enumerate((0.01, -0.01, 0.0)):
        write(comparison.path("a", seed), rise(0.6, wobble))
        rates = rise(0.8 + 0.05 * seed, wobble)
        write(
            comparison.path("b", seed),
            rates,
            {k: math.exp(math.log(rates[-1]) * k**-0.5) for k in (2, 4, 8)},
        )
    return recipe_results(comparison)


def test_means_differences_and_what_was_used(made_up: list[RecipeResult]) -> None:
    """Differences are taken seed by seed, so what the seeds share drops out; evaluation costs
    nothing.
    """
    a, b = made_up
    end = [rise(0.8 + 0.05 * i)[-1] - rise(0.6)[-1] for i in range(3)]

    assert b.difference is not None
    assert a.difference is None
    assert sum(end) / 3 == pytest.approx(b.difference.value)
    assert pytest.approx(dict(b.used)) == {
        "steps": 30,
        "samples": 300,
        "tokens": 3000,
        "seconds": 60,
    }
    assert a.gain is not None
    assert a.gain.value == pytest.approx(rise(0.6)[-1] - rise(0.6)[0])
    assert row(a)[1] == "3/3"
    assert row(b)[5].startswith("+")


def test_intervals_of_two_seeds_stay_inside_what_can_be(tmp_path: Path) -> None:
    """Gains and bands end where accuracies and rewards do; a gain is in points, not in percent."""
    comparison = build_comparison(
        [("a", recipe()), ("b", recipe(algorithm__use="rloo"))], seeds=[0, 1], folder=tmp_path
    )
    for name in comparison.recipes:
        for seed in comparison.seeds:
            write(comparison.path(name, seed), rise(0.1 + 0.8 * seed))
    first, second = recipe_results(comparison)
    for interval in (first.gain, second.difference, first.after):
        assert interval is not None
        assert interval.low is not None
        assert interval.high is not None
        assert -1 <= interval.low <= interval.value <= interval.high <= 1
    assert "points (" in row(first)[4]
    assert " % (" in row(first)[3]
    for value in ("reward", "accuracy"):
        curve = first.curve("samples", value)  # type: ignore[arg-type]
        assert curve is not None
        assert curve.low is not None
        assert curve.high is not None
        assert min(curve.low) >= 0
        assert max(curve.high) <= 1


def test_curves_cover_what_all_seeds_have_seen(made_up: list[RecipeResult]) -> None:
    curve = made_up[0].curve("tokens")
    assert curve is not None
    assert curve.low is not None
    assert curve.high is not None

    assert curve.x[0] == 100
    assert curve.x[-1] == 3000
    assert curve.mean[-1] == pytest.approx(rise(0.6)[-1])
    assert all(
        low <= m <= high for low, m, high in zip(curve.low, curve.mean, curve.high, strict=True)
    )
    held = made_up[0].curve("samples", "accuracy")
    assert held is not None
    assert held.x[0] == 0
    assert held.x[-1] == 300


@pytest.mark.more
def test_fits_where_there_is_data(made_up: list[RecipeResult]) -> None:
    a, b = made_up

    assert isinstance(a.compute_fit, Sigmoid)
    assert a.compute_fit.identified
    assert pytest.approx(a.compute_fit.ceiling.value, abs=0.02) == 0.6
    assert pytest.approx(a.compute_fit.midpoint.value, rel=0.1) == 800
    assert isinstance(a.attempts_fit, NoFit)
    assert "evaluation.samples" in a.attempts_fit.reason
    assert isinstance(b.attempts_fit, RepeatedSampling)
    assert b.after is not None
    assert pytest.approx(b.attempts_fit.b.value, abs=0.01) == -0.5
    assert b.after.value == pytest.approx(b.attempts_fit(1), abs=0.01)  # pass@1 is the accuracy
    assert any("ceiling 60" in line or "ceiling 59" in line for line in notes(made_up))
    assert picture(made_up).startswith(b"\x89PNG")


def test_one_seed_has_no_interval_and_a_note(tmp_path: Path) -> None:
    comparison = build_comparison([("a", recipe())], seeds=[0], folder=tmp_path)
    write(comparison.path("a", 0), rise(0.6))
    found = recipe_results(comparison)

    assert found[0].after is not None
    assert found[0].after.low is None
    assert any("no intervals: run at least 2 seeds" in line for line in notes(found))
    curve = found[0].curve("seconds")
    assert curve is not None
    assert curve.low is None


def test_a_seed_that_has_not_finished_cuts_nothing(tmp_path: Path) -> None:
    """Curves, fits and what was used are of the finished runs; of the others only while there is
    none.
    """
    comparison = build_comparison([("a", recipe())], seeds=[0, 1, 2], folder=tmp_path)
    write(comparison.path("a", 2), rise(0.6, steps=3))
    (comparison.path("a", 2) / "summary.json").unlink()
    (begun,) = recipe_results(comparison)
    curve = begun.curve("tokens")
    assert curve is not None
    assert 300 == curve.x[-1] == begun.used["tokens"]
    assert begun.after is None

    for seed in (0, 1):
        write(comparison.path("a", seed), rise(0.6))
    (found,) = recipe_results(comparison)
    curve = found.curve("tokens")
    assert curve is not None
    assert 3000 == curve.x[-1] == found.used["tokens"]
    assert isinstance(found.compute_fit, Sigmoid)
    assert found.compute_fit.points == 2 * 30
    assert row(found)[1] == "2/3"


def test_measuring_difficulty_is_paid_for(tmp_path: Path) -> None:
    """What stands in the record of step 0 comes before all else."""
    comparison = build_comparison([("a", recipe())], seeds=[0], folder=tmp_path)
    path = comparison.path("a", 0)
    write(path, rise(0.6, steps=2))
    first, *rest = (path / "metrics.jsonl").read_text().splitlines()
    probed = {
        **json.loads(first),
        "samples": 5,
        "tokens": 50,
        "seconds.difficulty": 3.0,
        "seconds.model": 99.0,
    }
    (path / "metrics.jsonl").write_text("\n".join([json.dumps(probed), *rest]) + "\n")
    (found,) = recipe_results(comparison)

    assert pytest.approx(dict(found.used)) == {
        "steps": 2,
        "samples": 25,
        "tokens": 250,
        "seconds": 7,
    }
    curve = found.curve("tokens")
    assert curve is not None
    assert curve.x[0] == 150
    assert curve.x[-1] == 250
    held = found.curve("tokens", "accuracy")
    assert held is not None
    assert held.x[0] == 50
