"""Runs that are evaluated on other environments than they train on, beside a player of another
run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from quintain.cli import main
from quintain.cli.summary import next_commands, own_commands
from quintain.errors import UsageError
from quintain.recipe import Recipe, check_recipe
from quintain.recipe.extends import bundled_text
from quintain.recipe.plan import RunPlan
from quintain.recipe.resolve import pinned_recipe
from quintain.store.run_folder import RunFolder
from quintain_authoring.evaluate.like import settings_of

from ..small_run import small_recipe

RECIPE = small_recipe(
    'use = "tests.integration.letters:Letters"',
    evaluation="every = 1\ntasks = 3\ntest = { tasks = 2 }",
)
OTHERS = """
[[evaluation.environments]]
use = "tests.integration.letters:Letters"
name = "longer"
split = "test"
tasks = 5
args = { size = 7 }

[[evaluation.environments]]
use = "tests.integration.rivals:Rivals"
name = "against-first"
weight = 0
tasks = "all"
args = { size = 4 }

[services.rival]
use = "embedded"
args = { model = "first", slots = 4 }
"""


@pytest.fixture
def place(small_run: Callable[..., Path]) -> Path:
    folder = small_run(RECIPE, context=128)
    (folder / "second.toml").write_text(RECIPE + OTHERS)
    return folder


@pytest.mark.slow
def test_a_run_is_evaluated_on_other_environments_and_against_an_earlier_run(place: Path) -> None:
    assert main(["train", "recipe.toml", "--name", "first", "-q"]) == 0
    assert main(["train", "second.toml", "--name", "second", "-q"]) == 0

    written = RunFolder("runs/second", lock=False)
    begin, end = written.metrics()
    for name in ("longer", "against-first"):
        assert 0 <= end[f"held_out.{name}.accuracy"] <= 1
    assert begin["held_out.tasks"] == end["held_out.tasks"] == 5 + 4
    assert end["held_out.accuracy"] == end["held_out.longer.accuracy"]
    assert (
        json.loads((place / "runs/second/summary.json").read_text())["held_out"]["after"]["tasks"]
        == 2 + 2
    )
    after = json.loads((place / "runs/second/summary.json").read_text())["held_out"]["after"]
    assert after["temperature"] == 0.0, "greedy, and sampled beside it"
    assert after["other_decoding"]["temperature"] == 1.0, "greedy, and sampled beside it"
    assert after["other_decoding"]["tasks"] == 2 + 2
    assert 0 <= after["other_decoding"]["low"] <= after["other_decoding"]["accuracy"]
    recipe = Recipe.parse(written.recipe())
    assert recipe.services["rival"].use == "quintain/embedded"
    assert recipe.services["rival"].args["model"] == "runs/first/checkpoints/step-000001/model"


def test_an_evaluation_like_a_run_has_the_engine_of_another_player(place: Path) -> None:
    recipe = (
        RECIPE.replace("letters:Letters", "rivals:Rivals")
        + OTHERS[OTHERS.index("[services.rival]") :]
    )
    (place / "runs/third").mkdir(parents=True)
    (place / "runs/third/recipe.toml").write_text(recipe.replace('"first"', '"model"'))

    services = settings_of(RunFolder("runs/third", lock=False)).services

    assert [(slot, one.use, one.args) for slot, one in services.items()] == [
        ("rival", "embedded", {"model": "model", "slots": 4})
    ]


def test_eval_like_a_run_measures_what_the_run_measured(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Model, tasks, decoding and seed are those of the recipe; options that are given win."""
    sampled = [
        "evaluation.temperature='sampling'",
        "evaluation.samples=4",
        "run.seed=3",
        "checkpoint.best=false",
    ]
    more = [*sampled, "environments.0.args.size=5"]
    assert (
        main(["train", "recipe.toml", "--name", "like", "-q", *(f"--set={pair}" for pair in more)])
        == 0
    )
    after = json.loads((place / "runs/like/summary.json").read_text())["held_out"]["after"]
    capsys.readouterr()

    assert main(["eval", "--like", "like", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert after["accuracy"] == found["pass@1"]
    assert after["reward"] == found["reward"]
    assert tuple(found[k] for k in ("tasks", "samples", "temperature", "max_tokens", "seed")) == (
        2,
        4,
        1.0,
        4,
        3,
    )
    assert (
        main(
            [
                "eval",
                "--like",
                "runs/like",
                "--tasks",
                "1",
                "--temperature",
                "0",
                "--samples",
                "1",
                "--json",
            ]
        )
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert tuple(found[k] for k in ("tasks", "samples", "temperature")) == (1, 1, 0.0)
    assert main(["eval", "letters", "--like", "like"]) == 2
    assert "leave out ENVIRONMENT" in capsys.readouterr().err
    assert main(["eval"]) == 2
    assert "--like RUN" in capsys.readouterr().err


def test_the_next_commands_fit_a_terminal_and_exist(place: Path) -> None:
    """A run that ended before its first step has no checkpoint, which `chat` and `eval` need."""
    assert main(["train", "recipe.toml", "--name", "first", "-q"]) == 0
    folder = RunFolder("runs/first", lock=False)
    commands = [text.partition("quintain ")[2] for text in next_commands(folder, "")]
    assert commands == ["chat runs/first", "rollouts runs/first", "eval --like runs/first"]

    (place / "runs/none").mkdir()
    (place / "runs/none/recipe.toml").write_text(RECIPE)
    (text,) = next_commands(RunFolder("runs/none", lock=False), "stop.minutes = 4")
    assert text == "nothing was trained: stop.minutes = 4"


def test_a_run_on_a_file_goes_on_with_it() -> None:
    recipe = Recipe.parse('model.name = "m"\nenvironments = [{use = "quintain/letters"}]')
    assert [name for name, _ in own_commands(recipe)] == ["your own file", "your own reward"]
    own = '[{use="quintain/dataset", args={path="my file.csv", shown=8}}]'

    ((name, command),) = own_commands(Recipe.parse(recipe.to_toml(), [f"environments={own}"]))

    assert name == "your own reward"
    words = "train dataset --arg 'path=my file.csv' --arg shown=8 --model m --reward"
    assert words in command


def test_a_finished_run_shows_its_recorded_results(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its times, too: nothing is loaded or measured. With --force it is measured again."""
    assert main(["train", "recipe.toml", "--name", "first", "--json"]) == 0
    shown = capsys.readouterr().out
    recorded = (place / "runs/first/summary.json").read_bytes()

    assert main(["train", "--resume", "first", "--json"]) == 0
    again = capsys.readouterr()
    assert again.out == shown
    assert "loading" not in again.err
    assert recorded == (place / "runs/first/summary.json").read_bytes()
    assert main(["train", "--resume", "first", "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 1
    assert recorded != (place / "runs/first/summary.json").read_bytes()


def test_an_evaluated_environment_is_checked_before_the_run(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = "--set=evaluation.environments=[{use='tests.integration.letters:Letters', args={sise=3}}]"

    assert main(["train", "recipe.toml", "--dry-run", key]) == 2
    assert "has no argument 'sise'; did you mean 'size'?" in capsys.readouterr().err


def test_every_weight_is_not_zero(place: Path) -> None:
    with pytest.raises(UsageError, match="every weight of"):
        Recipe.load("recipe.toml", ["evaluation.environments=[{use='a', weight=0}]"])


def test_the_recipe_of_the_run_has_full_names(place: Path) -> None:
    recipe = Recipe.load(
        "recipe.toml", ["evaluation.environments=[{use='arithmetic', reward='math_equal'}]"]
    )

    (table,) = pinned_recipe(recipe).evaluation.environments
    assert table.use == "quintain-env-math/arithmetic"
    assert table.reward == 'use("quintain-rewards/math_equal")'


JUDGED = """
from quintain import Judge, Rollout, need, reward
from tests.integration.letters import Letters

class Counting:
    def __init__(self):
        self.calls = 0

    async def grade(self, prompt, reply, rubric):
        with open("calls.txt", "a") as calls:
            calls.write("x")
        return float(len(reply) % 2)

@reward(range=(0, 1))
async def graded(rollout: Rollout, *, judge: Judge = need()) -> float:
    return await judge.grade(rollout.task.prompt, rollout.reply, "short")

class Judged(Letters):
    reward, shaping = graded, None
"""


@pytest.mark.slow
def test_a_judge_grades_one_way_of_decoding_unless_asked(place: Path) -> None:
    """Each call may cost money. A step is of 4 rollouts, `dev` of 3, and `test` of 2, before and
    after it.
    """
    (place / "counting.py").write_text(JUDGED)
    recipe = RECIPE.replace("tests.integration.letters:Letters", "counting.py:Judged")
    recipe += '[services.judge]\nuse = "counting.py:Counting"\n'
    (place / "judged.toml").write_text(recipe)

    calls = {}
    for wanted in ("auto", "true"):
        (place / "calls.txt").unlink(missing_ok=True)
        options = ["--set", f"evaluation.test.other_decoding={wanted}", "--name", wanted, "-q"]
        assert main(["train", "judged.toml", *options]) == 0
        summary = json.loads((place / f"runs/{wanted}/summary.json").read_text())
        calls[wanted] = len((place / "calls.txt").read_text())
        assert ("other_decoding" in summary["held_out"]["after"]) is (wanted == "true")

    assert calls == {"auto": 4 + 2 * 3 + 2 * 2, "true": 4 + 2 * 3 + 2 * 2 * 2}


def test_the_check_of_a_recipe_says_which_service_an_evaluation_spares(place: Path) -> None:
    chat = Recipe.parse(bundled_text("chat"))
    opponent = RECIPE.replace(
        "tests.integration.letters:Letters", "tests.integration.rivals:Rivals"
    )
    opponent += (
        '[services.rival]\nuse = "openai"\nargs = { model = "m", base_url = "http://h/v1" }\n'
    )

    recipes = (Recipe.parse(RECIPE), chat, Recipe.parse(opponent))
    assert [RunPlan.of(r).evaluation.costly_slot for r in recipes] == ["", "judge", "rival"]
    said = "evaluation.test.other_decoding is off, since calls of the service 'judge'"
    assert any(note.startswith(said) for note in check_recipe(chat))
    chosen = chat.replace({"evaluation.test.other_decoding": True})
    assert not any(note.startswith(said) for note in check_recipe(chosen))
