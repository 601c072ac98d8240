"""`quintain compare`: equal terms or a refusal, ordinary runs that are kept and resumed."""

from __future__ import annotations

import gc
import json
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs quintain[train]")

from quintain.cli import main
from quintain.errors import Interrupted, PluginError, RunError, StorageError, UsageError
from quintain.interfaces.environment import Environment
from quintain.interfaces.reward import reward
from quintain.interfaces.service import need
from quintain.models import LoadedModel
from quintain.recipe.sources import ModelRequest, ModelSource
from quintain.registry.lookup import current, isolated
from quintain.store.run_folder import RunFolder, current_run
from quintain.types.rollout import Rollout
from quintain.types.task import Task
from quintain_view.compare.command import repeat_options, swept
from quintain_view.compare.comparison import RunBudget, build_comparison

from ....core.models.tiny import save_tiny
from .kit import RECIPE, recipe


@reward(range=(0, 1))
def small_letter(rollout: Rollout[Task, None]) -> float:
    return float(any("a" <= c <= "z" for c in rollout.reply))


class Babble(Environment[Task, None]):
    reward = small_letter
    size: int = 16

    def tasks(self, split: str) -> Iterable[Task]:
        return (Task(prompt=f"{split} {i}", answer="a") for i in range(self.size))


class Judged(Babble):
    judge: Any = need("judge")


class Judge:
    pass


WATCHED = ["--set", "model.name=watched"]


@dataclass
class Starts:
    """The runs that loaded the model of `WATCHED`, and what may happen before it is loaded."""

    names: list[str] = field(default_factory=list)
    before: Callable[[str, int], None] = lambda name, seed: None


@pytest.fixture
def starts(place: Path) -> Starts:
    """Runs of the model ``watched`` call ``before`` with their name and seed, as they start without
    a checkpoint.
    """
    told = Starts()

    class Watched(ModelSource):
        def load(self, request: ModelRequest) -> LoadedModel:
            folder = current_run()
            assert folder is not None
            told.names.append(folder.name)
            told.before(folder.name, request.seed)
            return request.load_model("model")

    current().add("model", "watched", Watched)
    return told


def processes_of(folder: Path) -> set[int]:
    """How many processes each run in *folder* had."""
    return {
        len(RunFolder(path.parent, lock=False).processes()) for path in folder.glob("*/recipe.toml")
    }


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model") / "model", context=256)


@pytest.fixture
def place(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a recipe and a tiny model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").symlink_to(model)
    (tmp_path / "ours.toml").write_text(RECIPE)
    with isolated(keep=["quintain", "quintain-view"]) as registry:
        registry.add("environment", "babble", Babble)
        registry.add("environment", "judged", Judged)
        registry.add("service", "judge", Judge)
        registry.add("service", "strict", Judge)
        yield tmp_path


@pytest.fixture
def no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparisons do not draw their picture, which takes longer than a short run."""
    monkeypatch.setattr("quintain_view.compare.report.draw", lambda folder, results: folder)


def called(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    capsys.readouterr()
    status = main(["compare", *argv])
    out = capsys.readouterr()
    return status, out.out, out.err


# -------------------------------------------------------------------------------------- equal terms


def test_recipes_that_differ_in_the_algorithm_are_comparable(tmp_path: Path) -> None:
    """Runs come seed by seed; each has the recipe, its seed and its own folder."""
    both = [("a", recipe()), ("a", recipe(algorithm__use="rloo", learner__lr=1e-3))]
    found = build_comparison(both, seeds=[3, 5], folder=tmp_path, steps=2)

    assert found.runs() == [("a", 3), ("a.2", 3), ("a", 5), ("a.2", 5)]
    one = found.recipe("a.2", 5)
    assert one.algorithm.use == "rloo"
    assert one.run.seed == 5
    assert one.run.steps == 2
    assert one.run.name == "a.2-seed5"
    assert found.path("a.2", 5) == Path(one.run.folder) / one.run.name


@pytest.mark.parametrize(
    "change, what",
    [
        ({"environments.0.args.size": 8}, "tasks"),
        ({"environments.0.reward": "0.5 * babble"}, "tasks"),
        ({"model.name": "other"}, "starting models"),
        ({"evaluation.tasks": 8}, "measurements"),
        ({"sampling.max_tokens": 7}, "measurements .*'max_tokens': 6.*'max_tokens': 7"),
        ({"sampling.stop": ["."]}, "measurements .*'stop': "),
        (
            {"algorithm.args.plan": {"thinking_budget": {"min_tokens": 2, "max_tokens": 3}}},
            "measurements .*'thinking_budget': None",
        ),
        ({"run.steps": 5}, "budgets"),
        ({"batch.prompts": 3}, "--budget"),
    ],
)
def test_unequal_terms_are_refused(change: Mapping[str, Any], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        build_comparison(
            [("a", recipe()), ("b", recipe().replace(change))], seeds=[0], folder="compare/x"
        )


def test_sampling_may_differ_where_measuring_does_not() -> None:
    """Training with other lengths is a choice of method; what is measured is said apart."""
    own = {"sampling.max_tokens": 9, "sampling.temperature": 0.7, "evaluation.max_tokens": 6}

    assert build_comparison(
        [("a", recipe()), ("b", recipe().replace(own))], seeds=[0], folder="x"
    ).runs()


@pytest.mark.parametrize(
    "plan, key",
    [
        ({"order": "easy_to_hard"}, 'plan.order = "easy_to_hard"'),
        ({"difficulty_samples": 2}, "plan.difficulty_samples = 2"),
    ],
)
@pytest.mark.parametrize("kind", ["tokens", "samples", "seconds"])
def test_a_plan_that_depends_on_the_end_needs_one(
    plan: Mapping[str, Any], key: str, kind: str
) -> None:
    """A budget bounds the steps from above only, and the plan would take that for their number."""
    both = [("a", recipe()), ("b", recipe(algorithm__args__plan=dict(plan)))]
    budget = RunBudget.parse(f"{kind}=500")
    with pytest.raises(UsageError, match=f"^b: {key} .* {kind} .* --steps"):
        build_comparison(both, seeds=[0], folder="x", budget=budget)

    ended = build_comparison(both, seeds=[0], folder="x", budget=budget, steps=3)
    assert {3} == {r.run.steps for r in ended.recipes.values()}
    assert build_comparison(both, seeds=[0], folder="x", budget=RunBudget.parse("steps=3")).runs()


def test_a_budget_makes_unequal_batches_equal() -> None:
    both = [("a", recipe()), ("b", recipe(batch__prompts=4))]
    found = build_comparison(both, seeds=[0], folder="x", budget=RunBudget.parse("samples=64"))

    assert [r.run.steps for r in found.recipes.values()] == [8, 4]
    assert {64} == {r.stop.samples for r in found.recipes.values()}


@pytest.mark.parametrize("budget", ["samples=64", "steps=3"])
def test_a_budget_does_not_hide_another_end(budget: str) -> None:
    """One that would stop at an accuracy is not on equal terms with one that would not."""
    both = [("a", recipe()), ("b", recipe(stop__accuracy=0.9))]
    with pytest.raises(UsageError, match="ends .*'accuracy': None.*'accuracy': 0.9"):
        build_comparison(both, seeds=[0], folder="x", budget=RunBudget.parse(budget))
    own = [("a", recipe(stop__samples=10)), ("b", recipe(stop__samples=20))]

    assert build_comparison(own, seeds=[0], folder="x", budget=RunBudget.parse("samples=64")).runs()


@pytest.mark.parametrize(
    "text, kind, amount",
    [("tokens=2_000", "tokens", 2000), ("seconds=1.5", "seconds", 1.5), ("steps=3", "steps", 3)],
)
def test_budgets_are_read(text: str, kind: str, amount: float) -> None:
    budget = RunBudget.parse(text)
    ended = budget.limit(recipe(), None)

    assert kind == budget.kind
    assert amount == budget.amount
    assert amount == (ended.run.steps if kind == "steps" else getattr(ended.stop, kind))


@pytest.mark.parametrize(
    "text", ["tokens", "tokens=0", "tokens=many", "euros=3", "samples=-1", "seconds=inf"]
)
def test_a_budget_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="tokens=N"):
        RunBudget.parse(text)


@pytest.mark.parametrize("seeds", [[], [1, 1], [-1]])
def test_seeds_must_be_some_and_different(seeds: list[int]) -> None:
    with pytest.raises(UsageError, match="seed"):
        build_comparison([("a", recipe())], seeds=seeds, folder="x")


def test_lists_of_words_are_read() -> None:
    """Each option takes what follows, up to the next option or a recipe."""
    line = "--algorithms grpo rloo --seeds 0 1,2 ours.toml --steps 3 --set a.b=c -q --seeds=4"
    want = (
        "--algorithms grpo --algorithms rloo --seeds 0 --seeds 1 --seeds 2 ours.toml --steps 3 "
        "--set a.b=c -q"
    )

    assert [*want.split(), "--seeds", "4"] == repeat_options(line.split())


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--seeds", "0"], "nothing to compare"),
        (["."], "`quintain runs .` shows a run"),
        (["ours.toml", "ours.toml", "--algorithms", "grpo"], "give one"),
        (["ours.toml", "--algorithms", "grpo", "dr_gpro"], "did you mean 'dr_grpo'"),
        (["ours.toml", "--set", "learner.lrr=1"], "lrr"),
        (["ours.toml", "--budget", "tokens=x"], "tokens=N"),
        (["ours.toml", "--set", "run.seed=3"], "--seeds"),
        (["ours.toml", "--set", "run.folder=elsewhere"], "--folder"),
        (["ours.toml", "--set", "run.name=mine"], "named by recipe and seed"),
        (["ours.toml", "ours.toml", "--sweep", "learner.lr=1,2"], "give one"),
        (["ours.toml", "--sweep", "learner.lr"], "expected a key once"),
        (["ours.toml", "--sweep", "learner.lrr=1,2"], "lrr"),
        (["ours.toml", "--sweep", "run.seed=1,2"], "--seeds"),
        (["ours.toml", "--algorithms", "grpo", "--sweep", "learner.lr=1,2"], "leave out"),
        (["ours.toml", "short.toml"], "limits of babble"),
        (["judged.toml", "strict.toml"], "services.judge"),
    ],
)
def test_mistakes_are_found_without_a_run(
    capsys: pytest.CaptureFixture[str], place: Path, argv: list[str], message: str
) -> None:
    (place / "short.toml").write_text(
        RECIPE.replace('use = "babble"', 'use = "babble"\nlimits = { tokens = 3 }')
    )
    judged = RECIPE.replace('use = "babble"', 'use = "judged"')
    (place / "judged.toml").write_text(judged)
    (place / "strict.toml").write_text(judged + '[services.judge]\nuse = "strict"\n')
    status, out, err = called(capsys, *argv)

    assert status == 2
    assert out == ""
    assert message in err
    assert "Traceback" not in err
    assert not (place / "compare").exists()


def test_arguments_of_another_algorithm_are_not_dropped_silently(
    capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    (place / "args.toml").write_text(RECIPE + "[algorithm]\nuse = 'grpo'\nargs = { epochs = 2 }\n")
    status, _, err = called(capsys, "args.toml", "--algorithms", "rloo", "grpo")

    assert status == 2
    assert "for 'grpo'" in err


def test_a_sweep_has_all_combinations(place: Path) -> None:
    sweep = ["learner.lr=1e-4,2e-4", "algorithm.use=dr_grpo,rloo", "learner.betas=[0.9,0.95]"]

    named = swept(["ours.toml"], sweep, ["learner.warmup_steps=2"])

    assert [(name, r.learner.lr, r.algorithm.use, r.learner.betas) for name, r in named] == [
        (f"lr={lr},use={use},betas=0.9-0.95", lr, use, (0.9, 0.95))
        for lr in (0.0001, 0.0002)
        for use in ("dr_grpo", "rloo")
    ]
    assert {r.learner.warmup_steps for _, r in named} == {2}


# ---------------------------------------------------------------------------------------- real runs


@pytest.fixture(autouse=True, scope="module")
def _young_heap(model: Path) -> None:
    """Each comparison collects garbage after each run: this leaves the modules that models need
    out of it, as `tests/conftest.py` leaves out the tests.
    """
    gc.freeze()


@pytest.fixture
def small(place: Path) -> list[str]:
    return [
        "ours.toml",
        "--algorithms",
        "dr_grpo",
        "rloo",
        "--seeds",
        "0",
        "1",
        "--steps",
        "2",
        "--folder",
        "c",
    ]


@pytest.mark.more
def test_a_comparison_from_end_to_end(
    capsys: pytest.CaptureFixture[str],
    place: Path,
    small: list[str],
) -> None:
    """Four ordinary runs, a picture, a result for programs and one for people; a second call
    repeats nothing.
    """
    status, out, err = called(capsys, *small, "--json")
    told = json.loads(out)

    assert status == 0
    assert told["finished"]
    # progress bars of the libraries
    assert "Writing" not in err
    assert "\r" not in err
    assert {"dr_grpo-seed0", "dr_grpo-seed1", "rloo-seed0", "rloo-seed1"} == {
        p.parent.name for p in place.glob("c/*/summary.json")
    }
    first, second = told["recipes"].values()
    assert first["difference"] is None
    assert second["difference"]["count"] == 2
    pairs = zip(second["runs"], first["runs"], strict=True)
    assert second["difference"]["mean"] == pytest.approx(
        sum(a["after"] - b["after"] for a, b in pairs) / 2
    )
    for run in first["runs"]:
        assert run["samples"] == 16
        assert run["steps"] == 2
        assert 0 <= run["before"] <= 1
    # the same starting model
    assert [r["before"] for r in first["runs"]] == [r["before"] for r in second["runs"]]
    assert "needs 5 evaluations after different compute" in first["fits"]["compute"]["reason"]
    assert (place / "c" / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert told["recipes"] == json.loads((place / "c" / "compare.json").read_text())["recipes"]

    status, out, _ = called(capsys, *small)
    assert status == 0
    assert "against dr_grpo" in out
    assert processes_of(place / "c") == {1}, "no run was started again"
    assert 1 == out.count("no compute curve") == out.count("no repeated-sampling law"), (
        "once for both recipes"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("no_picture")
def test_runs_are_those_of_train_and_leave_nothing_behind(
    capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    """The same recipe twice in one process gives the same run, which is the one of `quintain
    train`.
    """
    (place / "short.toml").write_text(RECIPE.replace("steps = 4", "steps = 2"))
    status, _, err = called(
        capsys, "short.toml", "short.toml", "--seeds", "7", "--folder", "c", "--quiet"
    )
    assert status == 0, err
    assert main(["train", "short.toml", "--seed", "7", "--name", "alone", "--quiet"]) == 0

    def metrics(path: str) -> list[dict[str, Any]]:
        records = RunFolder(place / path, lock=False).metrics()
        return [{k: v for k, v in r.items() if "second" not in k} for r in records]

    assert metrics("runs/alone") == metrics("c/short-seed7") == metrics("c/short.2-seed7")


@pytest.mark.slow
@pytest.mark.usefixtures("no_picture")
def test_an_interrupted_comparison_resumes(
    capsys: pytest.CaptureFixture[str],
    place: Path,
    small: list[str],
    starts: Starts,
) -> None:
    """Ctrl-C in the second run: the first is kept, the second is picked up in its folder."""
    small = [*(w for w in small if w != "1"), *WATCHED]

    def stops_once(name: str, seed: int) -> None:
        if len(starts.names) == 2:
            raise Interrupted("stopped after step 0")

    starts.before = stops_once
    status, _, err = called(capsys, *small, "--quiet")
    assert status == 130
    assert "the same command resumes in c" in err
    held = json.loads((place / "c" / "compare.json").read_text())
    assert not held["finished"]
    assert sum(r["finished"] for s in held["recipes"].values() for r in s["runs"]) == 1

    status, out, _ = called(capsys, *small, "--json")
    assert status == 0
    assert json.loads(out)["finished"]
    assert starts.names == ["dr_grpo-seed0", "rloo-seed0", "rloo-seed0"]


@pytest.mark.slow
@pytest.mark.usefixtures("no_picture")
def test_a_run_of_another_recipe_is_not_taken_for_ours(
    capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    one = ["ours.toml", "--seeds", "0", "--steps", "1", "--folder", "c", "--quiet"]
    assert called(capsys, *one)[0] == 0
    status, _, err = called(capsys, *one, "--set", "learner.lr=1e-4")

    assert status == 2
    assert "another recipe" in err
    assert "--folder" in err


@pytest.mark.slow
@pytest.mark.usefixtures("no_picture")
def test_a_comparison_resumes_however_its_folder_is_spelled(
    capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    """The runs are the same runs from another directory, too."""
    one = ["ours.toml", "--seeds", "0", "--steps", "1", "--quiet", "--folder"]
    assert called(capsys, *one, "c")[0] == 0
    for folder in ("./c", str(place / "c")):
        status, _, err = called(capsys, *one, folder)
        assert status == 0, err
        assert processes_of(place / "c") == {1}


@pytest.mark.slow
@pytest.mark.usefixtures("no_picture")
def test_failures_do_not_cost_the_others(
    capsys: pytest.CaptureFixture[str], place: Path, starts: Starts
) -> None:
    """The reasons are shown and stored, the status is 1, the others are there."""
    errors = [
        RunError("the gradient is not finite"),
        UsageError("no device"),
        PluginError("broken"),
        StorageError("full"),
    ]
    seeds = [str(seed) for seed in range(len(errors))]

    def fails_mostly(name: str, seed: int) -> None:
        if name != "rloo-seed0":
            raise errors[seed]

    starts.before = fails_mostly
    words = [
        "ours.toml",
        "--algorithms",
        "dr_grpo",
        "rloo",
        "--seeds",
        *seeds,
        "--steps",
        "2",
        "--folder",
        "c",
        *WATCHED,
    ]
    status, out, _ = called(capsys, *words)
    failed, done = json.loads((place / "c" / "compare.json").read_text())["recipes"].values()

    assert status == 1
    for seed, error in enumerate(errors):
        assert f"dr_grpo-seed{seed} failed: {error}" in out
    assert [str(error) for error in errors] == [r["failure"] for r in failed["runs"]]
    assert failed["after"] is None
    # there is nothing to pair it with
    assert done["after"]["count"] == 1
    assert done["difference"] is None


@pytest.mark.slow
@pytest.mark.usefixtures("no_picture")
def test_ctrl_c_keeps_the_reasons_of_what_failed_before(
    capsys: pytest.CaptureFixture[str],
    place: Path,
    small: list[str],
    starts: Starts,
) -> None:
    """Those of this call and of earlier ones, until the run that failed has gone through."""
    small = [*(w for w in small if w != "1"), *WATCHED, "--steps", "1"]
    ends: list[Exception | None] = []

    def ends_so(name: str, seed: int) -> None:
        if (end := ends.pop(0)) is not None:
            raise end

    def failures() -> list[str]:
        told = json.loads((place / "c" / "compare.json").read_text())["recipes"]
        return [r["failure"] for s in told.values() for r in s["runs"]]

    starts.before = ends_so
    ends[:] = [RunError("no luck"), Interrupted("stopped after step 0")]
    assert called(capsys, *small)[0] == 130
    assert failures() == ["no luck", ""]
    ends[:] = [Interrupted("stopped after step 0")]
    assert called(capsys, *small)[0] == 130
    assert failures() == ["no luck", ""]
    ends[:] = [None, None]
    assert called(capsys, *small)[0] == 0
    assert failures() == ["", ""]


@pytest.mark.slow
@pytest.mark.usefixtures("no_picture")
def test_sigterm_before_a_run_listens_is_heard(
    capsys: pytest.CaptureFixture[str],
    place: Path,
    small: list[str],
    starts: Starts,
) -> None:
    """While a model is prepared: a line on how to resume, and status 130. A run before it takes its
    handler away.
    """

    def hears_sigterm(name: str, seed: int) -> None:
        if name == "rloo-seed0":
            os.kill(os.getpid(), signal.SIGTERM)

    starts.before = hears_sigterm
    before = signal.signal(signal.SIGTERM, lambda *a: pytest.fail("the signal killed the process"))
    try:
        status, _, err = called(capsys, *small, *WATCHED, "--quiet")
    finally:
        signal.signal(signal.SIGTERM, before)

    assert status == 130
    assert "the same command resumes in c" in err
    assert (place / "c" / "dr_grpo-seed0" / "summary.json").exists()


@pytest.mark.usefixtures("no_picture")
@pytest.mark.parametrize(
    "budget, used",
    [
        pytest.param("samples=17", 24, marks=pytest.mark.slow),
        ("tokens=30", None),
        pytest.param("seconds=0.000001", 8, marks=pytest.mark.slow),
    ],
)
def test_a_budget_ends_the_runs(
    capsys: pytest.CaptureFixture[str], place: Path, budget: str, used: int | None
) -> None:
    """The step that passes it is the last, and the run ends as a finished one."""
    status, out, err = called(
        capsys, "ours.toml", "--seeds", "0", "--budget", budget, "--folder", "c", "--json"
    )
    assert status == 0, err + out
    run = json.loads(out)["recipes"]["ours"]["runs"][0]

    assert run["finished"]
    assert run["after"] is not None
    if used is not None:
        assert used == run["samples"]
    else:
        tokens = [
            m.get("tokens", 0) for m in RunFolder(place / "c" / "ours-seed0", lock=False).metrics()
        ]
        assert sum(tokens[:-1]) < 30 <= sum(tokens) == run["tokens"]
