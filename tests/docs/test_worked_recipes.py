"""The recipes of examples/ are complete: each passes ``--dry-run`` without a network, and the page
shows its text.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quintain.cli import main
from quintain.evaluation.evaluation import tasks_of
from quintain.recipe.resolve import EnvironmentSpec
from quintain.recipe.tables import Recipe

from ..core.models.tiny import save_tiny
from .commands import forget_modules
from .pages import ROOT, page

FOLDER = ROOT / "examples"
RECIPES = sorted(path.stem for path in FOLDER.glob("*.toml"))
LOCAL = {
    "distill": "environments.0.args.data=sums services.teacher.args.model=model",
    "gsm8k": "environments.0.args.data=sums",
    "gsm8k-lora": "environments.0.args.data=sums",
    "gsm8k-vllm": "environments.0.args.data=sums",
    "mbpp": "environments.0.args.data=mbpp.jsonl",
    # generated stories instead of the books that somebody has
    "story": "environments.0.args.data=",
}
"""What replaces a download, by recipe."""


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a model of random weights, sums in the format of GSM8K, and examples/, whose
    modules are forgotten afterwards.
    """
    place = tmp_path_factory.mktemp("recipes")
    save_tiny(place / "model", context=256)
    (place / "examples").symlink_to(FOLDER)
    (place / "sums").mkdir()
    for split, first in (("train", 0), ("test", 1000)):
        rows = [
            {"question": f"{i} + 1?", "answer": f"Add.\n#### {i + 1}"}
            for i in range(first, first + 300)
        ]
        (place / "sums" / f"{split}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows)
        )
    solved = {
        "text": "Add one.",
        "code": "def f(x):\n    return x + 1",
        "test_list": ["assert f(1) == 2"],
    }
    rows = [{"task_id": i, **solved, "text": f"Add one, {i}."} for i in (11, 511, 601, 602)]
    (place / "mbpp.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    answers = [{"text": "Paris"}]
    paragraph = {
        "context": "Paris is the capital of France.",
        "qas": [{"question": "Capital?", "answers": answers}],
    }
    articles = [{"title": f"T{i}", "paragraphs": [paragraph]} for i in range(10)]
    (place / "dev-v2.0.json").write_text(json.dumps({"data": articles}))
    yield place
    forget_modules(FOLDER)


def overrides(recipe: str) -> list[str]:
    """The options that make *recipe* local."""
    sets = ["model.name=model", "model.dtype=float32", *LOCAL.get(recipe, "").split()]
    return [word for pair in sets for word in ("--set", pair)]


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_recipe_passes_the_dry_run(
    recipe: str, local: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names, settings, services, schedule, model and tasks fit the installed components; the name
    is the file's.
    """
    if recipe == "mbpp" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    monkeypatch.chdir(local)
    if recipe == "gsm8k-vllm":  # the test below is without vLLM
        monkeypatch.setattr("quintain_engines.vllm.local.check_installed", lambda: None)
    status = main(["train", f"examples/{recipe}.toml", "--dry-run", *overrides(recipe)])
    shown = capsys.readouterr()

    assert status == 0, shown.err
    assert recipe == Recipe.parse(shown.out, source=recipe).run.name


@pytest.mark.parametrize(
    ("recipe", "words", "message"),
    [
        (
            "search",
            ["environments.0.args.data=nope.json"],
            "cannot read nope.json: No such file or directory; docs/search-environment.md",
        ),
        (
            "search",
            ["services.retriever.args.data=nope.json"],
            "cannot read nope.json: No such file or directory; docs/search-environment.md",
        ),
        (
            "mbpp",
            ["environments.0.args.data=some/questions"],
            "'some/questions' is no file, and the hub does not",
        ),
        ("mbpp", [], "apt-get install bubblewrap"),
        (
            "mbpp",
            ["services.sandbox={use='docker', args={url='unix:///nowhere'}}"],
            "engine answers at unix:///nowhere",
        ),
        ("gsm8k-vllm", [], "pip install 'quintain-engines[vllm]'"),
        (
            "gsm8k-vllm",
            ["engine={use='pool', args={engine='vllm-server'}}"],
            "pip install 'quintain-engines[vllm]'",
        ),
        (
            "story",
            ["services.likelihood={use='frozen-model', args={model='some/model'}}"],
            "cannot load model 'some/mo",
        ),
    ],
)
def test_a_dry_run_asks_for_what_the_recipe_needs(
    recipe: str,
    words: list[str],
    message: str,
    local: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Files, packages, programs and models of environments, engines and services; nothing is loaded
    or started.
    """
    if "docker" in str(words):
        pytest.importorskip("docker")
    monkeypatch.chdir(local)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(sys.modules, "vllm", None)
    sets = [word for pair in words for word in ("--set", pair)]

    assert main(["train", f"examples/{recipe}.toml", "--dry-run", *overrides(recipe), *sets]) > 0
    shown = capsys.readouterr()
    assert message in shown.err
    assert "Traceback" not in shown.err
    assert not shown.out
    assert not (local / "runs" / recipe).exists()


def test_a_misspelled_setting_fails_the_dry_run(
    local: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The check above sees a wrong name of a setting."""
    monkeypatch.chdir(local)
    words = [
        "train",
        "examples/search.toml",
        "--dry-run",
        *overrides("search"),
        "--set",
        "environments.0.args.result=3",
    ]

    assert main(words) == 2
    assert "'result'" in capsys.readouterr().err


@pytest.mark.more
def test_the_recipe_of_ones_own_data_trains(local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File, suffix and reward function of capitals.toml reach the rollouts."""
    monkeypatch.chdir(local)
    small = (
        "run.steps=1 sampling.max_tokens=4 batch.prompts=2 batch.group_size=2 "
        "learner.precision=float32"
    )
    off = "evaluation.every=0 evaluation.test.tasks=0"
    sets = [word for pair in f"{small} {off}".split() for word in ("--set", pair)]
    assert main(["train", "examples/capitals.toml", "--quiet", *overrides("capitals"), *sets]) == 0

    from pyarrow import parquet

    rows = parquet.read_table(local / "runs/capitals/rollouts").to_pylist()
    stored = [json.loads(row["rollout"]) for row in rows]
    assert len(stored) == 4
    assert all(list(r["outcome"]["parts"]) == ["score"] for r in stored)
    assert all("Answer with the name of the city." in r["task"]["prompt"] for r in stored)


def test_the_controls_play_the_file(local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """capitals.jsonl is a file that the environment reads."""
    monkeypatch.chdir(local)

    assert main(["eval", "dataset", "--arg", "path=examples/capitals.jsonl", "--controls"]) == 0


def test_prompts_with_rubrics_have_their_splits(
    local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """rubrics.jsonl is read, the criterion of the recipe included."""
    monkeypatch.chdir(local)
    spec = EnvironmentSpec.of(Recipe.load("examples/rubrics.toml").environments[0])
    chat = spec.make({})
    split = {name: tasks_of(chat, name, 100, name="chat") for name in ("train", "dev", "test")}

    assert {name: len(tasks) for name, tasks in split.items()} == {"train": 8, "dev": 2, "test": 2}
    assert all(
        "Has at most 120 words." in {c.text for c in t.criteria}
        for tasks in split.values()
        for t in tasks
    )


def test_the_page_has_every_recipe() -> None:
    """Each file has a section, with the file's text and what was measured of it."""
    text = page("docs/worked-recipes.md").text
    sections = {
        m[1]: m[2]
        for m in re.finditer(
            r"^## .*?\n(?=.*?`examples/([\w-]+)\.toml`)(.*?)(?=^## |\Z)", text, re.M | re.S
        )
    }

    assert sorted(sections) == RECIPES
    for name, section in sections.items():
        assert "**Measured.**" in section, name
        assert (FOLDER / f"{name}.toml").read_text().strip() in section, (
            f"{name}.toml differs from the page"
        )
