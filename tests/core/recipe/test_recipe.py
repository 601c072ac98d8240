"""Recipes: strict, overridable, written out whole, and clear about what is wrong."""

from __future__ import annotations

import datetime
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintain.errors import RecipeError, UsageError
from quintain.interfaces.agent import Limits
from quintain.recipe.errors import line_of
from quintain.recipe.extends import bundled_text
from quintain.recipe.plan import RunPlan
from quintain.recipe.resolve import is_model_source
from quintain.recipe.tables import LimitsTable, Recipe, parsed_override

SMALL = '[[environments]]\nuse = "arithmetic"\n'


def test_defaults() -> None:
    recipe = Recipe.parse(SMALL)
    assert recipe.environments[0].use == "arithmetic"
    assert recipe.batch.prompts == 32
    assert recipe.batch.group_size == 8
    assert recipe.batch.min_group_size is None
    assert recipe.algorithm.use == "dr_grpo"
    assert recipe.engine.use == "embedded"
    assert is_model_source(recipe.model.name)
    assert recipe.sampling.to_sampling().temperature == 1
    assert recipe.evaluation.to_sampling(recipe.sampling).temperature == 0


def test_every_section_takes_its_keys() -> None:
    recipe = Recipe.parse(FULL)
    assert recipe.run.name == "first"
    assert recipe.environments[1].weight == 0.5
    assert recipe.environments[0].args == {"level": 2, "words": ["a", "b"], "deep": {"x": 1.5}}
    assert recipe.environments[0].limits.over(Limits(turns=2, seconds=9)) == Limits(
        turns=None, tokens=64, seconds=9
    )
    assert recipe.model.lora is not None
    assert recipe.model.lora.model_dump() == {
        "r": 4,
        "lora_alpha": 32,
        "target_modules": "all-linear",
    }
    named = Recipe.parse(FULL, ["model.lora.target_modules=['q_proj']"]).model.lora
    assert named is not None
    assert named.model_dump()["target_modules"] == ["q_proj"]
    assert recipe.model.start.args == {"lr": 1e-3}
    assert not is_model_source(Recipe.parse(FULL, ["model.name=Qwen/Qwen3-0.6B"]).model.name)
    assert recipe.services["judge"].args == {"url": "http://x"}
    assert recipe.evaluation.tasks is None
    assert recipe.evaluation.test.tasks == 0
    assert recipe.rollouts.keep == 5
    assert Recipe.parse(recipe.to_toml()) == recipe


FULL = """
[run]
name = "first"
seed = 3
[model]
dtype = "bfloat16"
lora = {r = 4}
[model.start]
args = {lr = 1e-3}
[[environments]]
use = "arithmetic"
reward = "found * 0.5"
system = "Think."
limits = {turns = "none", tokens = 64}
[environments.args]
level = 2
words = ["a", "b"]
deep.x = 1.5
[[environments]]
use = "countdown"
weight = 0.5
shaping = "0.1 * brevity"
[services.judge]
use = "llm"
args = {url = "http://x"}
[evaluation]
tasks = "all"
test = {tasks = 0}
[rollouts]
keep = 5
[sampling]
stop = ["END"]
[stop]
accuracy = 0.95
"""


@pytest.mark.parametrize(
    ("dtype", "precision"), [("bfloat16", "bf16"), ("float16", "fp16"), ("float32", "float32")]
)
def test_precisions_have_two_names(dtype: str, precision: str) -> None:
    """PyTorch's and the short one, in either key; the resolved recipe has one of them."""
    for word in (dtype, precision):
        read = Recipe.parse(SMALL, [f"model.dtype={word}", f"learner.precision={word}"])
        assert read.model.dtype == dtype
        assert read.learner.precision == precision
    with pytest.raises(
        RecipeError,
        match="expected 'float32', 'bf16', 'fp16', 'bfloat16', 'float16' or 'auto'; did you mean",
    ):
        Recipe.parse(SMALL, ["learner.precision=bfloat"])


def test_a_copy_with_other_values_is_checked_and_keeps_the_rest() -> None:
    recipe = Recipe.parse(FULL)
    changed = recipe.replace({"run.name": "second", "environments.1.weight": 2.0})
    assert changed.run.name == "second"
    assert changed.environments[1].weight == 2
    assert changed.replace({"run.name": "first", "environments.1.weight": 0.5}) == recipe
    with pytest.raises(RecipeError, match=r"run\.steps"):
        recipe.replace({"run.steps": 0})


@pytest.mark.parametrize(
    "text, path, value",
    [
        ("learner.lr=1e-5", ("learner", "lr"), 1e-5),
        ("run.steps = 7", ("run", "steps"), 7),
        ("model.name=Qwen/Qwen3-0.6B", ("model", "name"), "Qwen/Qwen3-0.6B"),
        ("checkpoint.best=false", ("checkpoint", "best"), False),
        ("sampling.stop=['a', 'b']", ("sampling", "stop"), ["a", "b"]),
        ('a.b="quoted = text"', ("a", "b"), "quoted = text"),
        ("a.b=x=y", ("a", "b"), "x=y"),
        ("a.b=0.1 * kind(rubric='x')", ("a", "b"), "0.1 * kind(rubric='x')"),
        ("a.b=2026-01-01", ("a", "b"), "2026-01-01"),
        ("a.b=1\nc=2", ("a", "b"), "1\nc=2"),
        ("a.b=", ("a", "b"), ""),
        ("environments.0.args.level=2", ("environments", "0", "args", "level"), 2),
    ],
)
def test_overrides_are_toml_or_plain_text(text: str, path: tuple[str, ...], value: Any) -> None:
    assert parsed_override(text)[:2] == (path, value)


@pytest.mark.parametrize("text", ["learner.lr", "=3", "a..b=1", "a.b=[1", 'a.b="open', "a.b={"])
def test_unreadable_overrides(text: str) -> None:
    with pytest.raises(RecipeError, match="cannot read"):
        parsed_override(text)


def test_overrides_reach_into_lists_and_append() -> None:
    recipe = Recipe.parse(
        SMALL,
        ["environments.0.args.level=2", "environments.1.use=countdown", "services.judge.use=llm"],
    )
    assert recipe.environments[0].args == {"level": 2}
    assert recipe.environments[1].use == "countdown"
    assert recipe.services["judge"].use == "llm"


def test_text_may_look_like_a_number() -> None:
    assert Recipe.parse(SMALL, ["run.name=5"]).run.name == "5"
    assert Recipe.parse(SMALL, ["environments.0.system=1.50"]).environments[0].system == "1.50"


@pytest.mark.parametrize(
    "change, words",
    [
        ("environments.use=x", ["list of 1", "environments.0.use"]),
        ("environments.3.use=x", ["list of 1"]),
        ("environments.0.use.x=1", ["environments.0.use is 'arithmetic', not a table"]),
        (
            "learner.lrr=1",
            ["--set learner.lrr=1", "unknown key 'lrr' in [learner]", "did you mean 'lr'"],
        ),
        ("sampling.lr=1", ["'lr' in [sampling]", "belongs in [learner]"]),
        ("lerner.lr=1", ["unknown section [lerner]", "did you mean 'learner'"]),
        ("lr=1e-3", ["--set lr=1e-3", "unknown section [lr]", "did you mean learner.lr?"]),
        ("temperature=1", ["did you mean sampling.temperature or evaluation.temperature?"]),
        ("use=arithmetic", ["unknown section [use]"]),
        ("extend=quickstart", ["unknown section [extend]", "did you mean 'extends'"]),
        ("environments.0.level=3", ["[[environments]] number 1", "go under args"]),
        ("environments.0.limits.turn=3", ["[environments.0.limits]", "did you mean 'turns'"]),
        ("services.judge={use = 'llm', x = 3}", ["unknown key 'x' in [services.judge]"]),
        ("learner.lr=abc", ["learner.lr is 'abc'", "a number"]),
        ('learner.lr="0.1"', ["learner.lr is '0.1'", "remove the quotes"]),
        ("learner.lr=0", ["learner.lr is 0", "more than 0"]),
        ("learner.lr=nan", ["finite"]),
        ("run.steps=3.0", ["run.steps is 3.0", "a whole number"]),
        ("run.steps=true", ["a whole number"]),
        ("run.seed=-1", ["at least 0"]),
        ("run.name=../up", ["run.name is '../up'", "no slash"]),
        ("run.name=rm", ["run.name is 'rm'", "`quintain runs rm` removes runs"]),
        ("checkpoint.best=yes", ["true or false"]),
        ("evaluation.split=tst", ["did you mean 'test'"]),
        ("model.dtype=fp8", ["model.dtype is 'fp8'", "'bfloat16'"]),
        ("stop.accuracy=95", ["at most 1"]),
        ("rollouts.keep=0", ["rollouts.keep is 0", "'all' or 'none'"]),
        ("rollouts.keep=some", ["'all' or 'none'"]),
        ("evaluation.tasks=0", ["from 1 to 10,000,000"]),
        ("environments.0.limits.turns=0", ["from 1 to 10,000,000, or 'none'"]),
        ("environments.0.weight=0", ["more than 0"]),
        ("environments.0.args=3", ["a table"]),
        ("learner.betas=[0.9]", ["no value 2"]),
        ("learner.betas=[0.9, 1.0]", ["less than 1"]),
        ("batch={group_size=1,min_group_size=2}", ["min_group_size is 2", "at most group_size"]),
        ("sampling.top_p=0.9", ["top_p cannot be used in training", "remove"]),
        ("sampling.min_p=0.1", ["min_p cannot be used in training"]),
        ("sampling.temperature=0", ["more than 0"]),
        ("environments=[]", ["names no environment", "quintain list environments"]),
    ],
)
def test_errors_name_key_expected_and_fix(change: str, words: list[str]) -> None:
    with pytest.raises(RecipeError) as caught:
        Recipe.parse(SMALL, [change])
    message = str(caught.value)
    for word in words:
        assert word in message
    assert len(message.splitlines()) == 1
    assert "pydantic" not in message


def test_all_errors_at_once_each_with_its_line() -> None:
    text = (
        '[run]\nsteps = "3"\n\n[[environments]]\nuse = "a"\n[[environments]]\nues = '
        '"b"\n[learner]\nlr = -1\n'
    )
    with pytest.raises(RecipeError) as caught:
        Recipe.parse(text, source="my.toml")
    lines = str(caught.value).splitlines()
    assert any(x.startswith("my.toml:2: run.steps") for x in lines)
    assert any(x.startswith("my.toml:6: [[environments]] number 2 has no 'use'") for x in lines)
    assert any(x.startswith("my.toml:7: unknown key 'ues'") for x in lines)
    assert any(x.startswith("my.toml:9: learner.lr is -1") for x in lines)
    assert len(lines) == 4


def test_a_data_file_in_place_of_a_recipe(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n')

    with pytest.raises(RecipeError, match="quintain train dataset --arg path="):
        Recipe.load(tmp_path / "rows.jsonl")


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text(SMALL)
    assert Recipe.load(path, ["run.seed=4"]).run.seed == 4
    with pytest.raises(RecipeError, match=r"is no recipe, file or environment; recipes are chat"):
        Recipe.load(tmp_path / "unlike.zip")
    with pytest.raises(
        RecipeError, match=r"is a folder, .*`quintain runs .*`quintain train --resume "
    ):
        Recipe.load(tmp_path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(RecipeError, match="UTF-8"):
        Recipe.load(path)
    path.write_text("[run\n")
    with pytest.raises(RecipeError, match=r"r\.toml is not TOML.*line 1"):
        Recipe.load(path)
    with pytest.raises(RecipeError, match="names no environment"):
        Recipe.parse("")


def test_lines_are_found_in_nested_tables() -> None:
    text = (
        '[model]\nname = "x"\n[[environments]]\nuse = "a"\nargs.level = 1\n'
        "[[environments]]\n[environments.limits] # of the second\nturns = 3"
    )
    assert line_of(text, ("model", "name")) == 2
    assert line_of(text, ("environments", 0, "args", "level")) == 5
    assert line_of(text, ("environments", 1, "limits", "turns")) == 8
    assert line_of(text, ("environments", 1, "use")) == 6
    assert line_of(text, ("learner", "lr")) is None


def test_a_missing_file_shows_what_is_near(tmp_path: Path) -> None:
    (tmp_path / "coached.toml").write_text(SMALL)
    with pytest.raises(
        RecipeError,
        match=r"coach\.toml' is no recipe, file or environment; did you mean 'coached\.toml'\?",
    ):
        Recipe.load(tmp_path / "coach.toml")


# ---- extends -------------------------------------------------------------------------------------


def written(folder: Path, **recipes: str) -> None:
    for name, text in recipes.items():
        (folder / f"{name}.toml").write_text(text)


def test_a_recipe_extends_a_bundled_one() -> None:
    """What it says goes over the quickstart; what it leaves out is the quickstart's, and nothing
    else changes.
    """
    quickstart = Recipe.parse(bundled_text("quickstart"))
    own = (
        'extends = "quickstart"\nsampling.temperature = 0.5\n[[environments]]\nuse = '
        '"countdown"\nweight = 2.0\n'
    )
    found = Recipe.parse(own, ["run.seed=3"])
    environments = [{"use": "countdown", "weight": 2.0}]
    assert found == quickstart.replace(
        {"sampling.temperature": 0.5, "environments": environments, "run.seed": 3}
    )
    assert found.learner.lr == 6e-5
    assert found.batch.prompts == 64
    assert "extends" not in found.to_toml()
    assert Recipe.parse(found.to_toml()) == found


def test_tables_merge_lists_are_replaced_and_the_nearest_wins(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    written(
        tmp_path,
        top='extends = "deep/middle.toml"\nlearner.lr = 1e-3\nsampling.stop = ["C"]\n',
        base=SMALL
        + (
            '[learner]\nlr = 1e-5\nwarmup_steps = 7\n[sampling]\nstop = ["A", "B"]\n[run]\nseed = '
            "5\n"
        ),
    )
    written(
        tmp_path / "deep",
        middle='extends = "../base.toml"\nlearner = { lr = 1e-4, weight_decay = 0.1 }\n',
    )
    found = Recipe.load(tmp_path / "top.toml", ["run.seed=6"])
    assert found.learner.lr == 1e-3
    assert found.learner.weight_decay == 0.1
    assert found.learner.warmup_steps == 7
    assert found.sampling.stop == ("C",)
    assert found.environments[0].use == "arithmetic"
    assert found.run.seed == 6


def test_arguments_stay_with_the_component_that_they_are_for(tmp_path: Path) -> None:
    base = SMALL + '[algorithm]\nuse = "grpo"\nargs = { epochs = 2, kl = { coefficient = 0.1 } }\n'
    same = 'extends = "base.toml"\nalgorithm = { use = "grpo", args = { epochs = 3 } }\n'
    written(tmp_path, base=base, same=same, other='extends = "base.toml"\nalgorithm.use = "rloo"\n')
    assert Recipe.load(tmp_path / "same.toml").algorithm.args == {
        "epochs": 3,
        "kl": {"coefficient": 0.1},
    }
    assert Recipe.load(tmp_path / "other.toml").algorithm.args == {}


def test_errors_name_the_file_that_holds_the_key(tmp_path: Path) -> None:
    base = '[learner]\nlr = -1\nlrr = 3\n[batch]\ngroup_size = 4\n[[environments]]\nuse = "a"\n'
    own = (
        'extends = "base.toml"\n[learner]\nwarmup = 1\n[batch]\nmin_group_size = '
        "9\n[[environments]]\nweight = 2.0\n"
    )
    written(tmp_path, base=base, own=own)
    with pytest.raises(RecipeError) as caught:
        Recipe.load(tmp_path / "own.toml", ["run.steps=0"])
    lines = [line.replace(f"{tmp_path}/", "") for line in str(caught.value).splitlines()]
    assert sorted(line.partition(": ")[0] for line in lines) == [
        "--set run.steps=0",
        "base.toml:2",
        "base.toml:3",
        "own.toml:3",
        "own.toml:4",
        "own.toml:6",
    ]
    assert any(
        line.startswith("own.toml:6: [[environments]] number 1 has no 'use'") for line in lines
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            'extends = "quickstar"\n',
            [
                "own.toml: extends is 'quickstar'",
                "did you mean 'quickstart'?",
                "No such file",
            ],
        ),
        (
            'extends = "bas.toml"\n',
            ["did you mean 'base.toml'?", "a bundled recipe (", "quickstart", ") or a path"],
        ),
        ("extends = 3\n", ["own.toml: extends is 3; expected a bundled recipe"]),
        ('extends = ""\n', ["expected a bundled recipe"]),
        ('extends = "own.toml"\n', ["in a circle", "own.toml extends"]),
        ('extends = "other.toml"\n', ["in a circle", "own.toml extends", "other.toml extends"]),
        ('extends = "broken.toml"\n', ["broken.toml is not TOML"]),
        ('extends = "."\n', ["cannot read", "Is a directory"]),
        (
            '[run]\nextends = "base.toml"\n',
            ["own.toml:2: unknown key 'extends' in [run]; it belongs at the top"],
        ),
    ],
)
def test_what_cannot_be_extended_is_refused(tmp_path: Path, text: str, words: list[str]) -> None:
    written(tmp_path, own=text, other='extends = "own.toml"\n', base=SMALL, broken="[run")
    with pytest.raises(RecipeError) as caught:
        Recipe.load(tmp_path / "own.toml")
    for word in words:
        assert word in str(caught.value)


def test_extends_is_not_for_the_command_line() -> None:
    with pytest.raises(RecipeError, match="'extends' is valid only at the top of a recipe file"):
        Recipe.parse(SMALL, ["extends=quickstart"])


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
scalars = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | names
    | st.dates(min_value=datetime.date(1, 1, 1))
    | st.times()
    | st.datetimes()
)
tables = st.recursive(
    st.dictionaries(names, scalars, max_size=3),
    lambda inner: st.dictionaries(
        names, scalars | inner | st.lists(scalars | inner, max_size=3), max_size=3
    ),
    max_leaves=8,
)


def with_args(args: dict[str, Any]) -> Recipe:
    return Recipe.of({"environments": [{"use": "a", "args": args}]})


@settings(deadline=None)
@given(tables)
def test_any_toml_table_is_written_and_read_back(table: dict[str, Any]) -> None:
    recipe = with_args(table)
    assert Recipe.parse(recipe.to_toml()) == recipe


def test_toml_refuses_what_it_cannot_carry() -> None:
    assert Recipe.parse(with_args({"a": None, "b": {"c": None}}).to_toml()) == with_args({"b": {}})
    with pytest.raises(TypeError, match="not TOML serializable"):
        with_args({"a": [object()]}).to_toml()


args = st.dictionaries(
    st.text("abcxyz_", min_size=1, max_size=5),
    st.integers(-99, 99) | names | st.floats(-9, 9) | st.booleans(),
    max_size=3,
)


@settings(deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "environments": st.lists(
                st.fixed_dictionaries({"use": names.filter(bool), "args": args}),
                min_size=1,
                max_size=3,
            )
        },
        optional={
            "run": st.fixed_dictionaries(
                {"seed": st.integers(0, 2**63 - 1), "steps": st.integers(1, 10**6)}
            ),
            "learner": st.fixed_dictionaries({"lr": st.floats(1e-9, 1.0)}),
            "evaluation": st.fixed_dictionaries({"tasks": st.just("all") | st.integers(1, 999)}),
            "rollouts": st.fixed_dictionaries({"keep": st.sampled_from(["all", "none", 1, 7])}),
            "stop": st.fixed_dictionaries({"minutes": st.floats(0.1, 99)}),
            "services": st.dictionaries(
                names.filter(bool),
                st.fixed_dictionaries({"use": st.just("x"), "args": args}),
                max_size=2,
            ),
        },
    )
)
def test_resolved_recipes_read_back_equal(data: dict[str, Any]) -> None:
    recipe = Recipe.of(data)
    again = Recipe.parse(recipe.to_toml())
    assert again == recipe
    assert again.to_toml() == recipe.to_toml()
    assert recipe.replace({}) == recipe


@pytest.mark.parametrize(
    "text, overrides, start",
    [
        (
            "",
            ["sampling.max_tokens=5", "sampling.top_p=0.9"],
            "--set sampling.top_p=0.9: sampling: top_p cannot",
        ),
        (
            "[batch]\ngroup_size = 8\n",
            ["batch.min_group_size=9"],
            "--set batch.min_group_size=9: batch: min_group_size is 9",
        ),
        (
            "[sampling]\ntop_p = 0.9\n",
            ["sampling.max_tokens=5"],
            "recipe:1: sampling: top_p cannot",
        ),
        (
            "",
            ["environments=[{use='a'}]", "environments.0.weight=0"],
            "--set environments.0.weight=0: ",
        ),
    ],
)
def test_the_fault_of_a_table_is_put_where_it_was_typed(
    text: str, overrides: list[str], start: str
) -> None:
    with pytest.raises(RecipeError) as e:
        Recipe.parse(text + SMALL, overrides)
    assert str(e.value).startswith(start)


def test_limits_of_seconds_can_be_removed() -> None:
    """``"none"`` in a recipe is `None` of `Limits`; anything else is a number above 0."""
    table = LimitsTable.model_validate({"seconds": "none", "reward_seconds": 5})
    assert Limits(seconds=None, reward_seconds=5) == table.over(Limits())
    for wrong in (0, -1, "all", math.inf, math.nan, [1]):
        with pytest.raises(ValueError, match="number above 0, or 'none'"):
            LimitsTable.model_validate({"seconds": wrong})


def test_a_recipe_says_when_contexts_are_compacted() -> None:
    table = LimitsTable.model_validate({"compact_at": 0.8})
    assert table.over(Limits()) == Limits(compact_at=0.8)
    none = LimitsTable.model_validate({"compact_at": "none"})
    assert none.over(Limits(compact_at=0.8)) == Limits()
    for wrong in (0, 1.5, "all", math.nan):
        with pytest.raises(ValueError, match="compact_at"):
            LimitsTable.model_validate({"compact_at": wrong})


def test_clipping_of_gradients_can_be_switched_off() -> None:
    """0 is the value that `Learner` documents for it."""
    text = "[[environments]]\nuse = 'arithmetic'\n"
    assert Recipe.parse(text, ["learner.max_grad_norm=0"]).learner.max_grad_norm == 0.0
    with pytest.raises(RecipeError, match="max_grad_norm"):
        Recipe.parse(text, ["learner.max_grad_norm=-1"])


def test_an_evaluation_can_follow_the_temperature_of_training() -> None:
    """The quickstart is judged as it samples, also with another temperature; greedy is the other
    way of decoding.
    """
    recipe = Recipe.parse(bundled_text("quickstart"), ["sampling.temperature=0.5"])
    greedy = Recipe.parse(bundled_text("pretrained"))

    assert recipe.evaluation.to_sampling(recipe.sampling).temperature == 0.5
    assert recipe.evaluation.other_decoding_temperature(recipe.sampling) == 0.0
    assert greedy.evaluation.to_sampling(greedy.sampling).temperature == 0.0
    assert greedy.evaluation.other_decoding_temperature(greedy.sampling) == 1.0
    assert recipe == Recipe.parse(recipe.to_toml())
    for wrong in ("-0.1", "101", "true", "'greedy'"):
        with pytest.raises(
            RecipeError, match=r"evaluation.temperature .*from 0 \(greedy\) to 100, or 'sampling'"
        ):
            Recipe.parse(bundled_text("quickstart"), [f"evaluation.temperature={wrong}"])


def test_a_schedule_is_replaced_and_its_key_may_have_dots(tmp_path: Path) -> None:
    base = "environments=[{use='arithmetic'}]\n[learner.schedules]\nlr={cosine=[1, 0.1, 9]}\n"
    (tmp_path / "base.toml").write_text(base)
    path = tmp_path / "own.toml"
    path.write_text(
        "extends='base.toml'\n[learner.schedules]\nlr={ramp=[1, 0, 5]}\nkl.coefficient={ramp=[1, 0, 2]}\n"
    )

    given = ["learner.schedules.objective.low={cosine=[2, 1, 3]}"]

    assert Recipe.load(path, given).learner.schedules == {
        "lr": {"ramp": (1, 0, 5)},
        "kl.coefficient": {"ramp": (1, 0, 2)},
        "objective.low": {"cosine": (2, 1, 3)},
    }
    recipe = Recipe.load(path, given)
    assert Recipe.parse(recipe.to_toml()) == recipe


@pytest.mark.parametrize(
    ("table", "schedule", "message"),
    [
        ("{adaptive=[0.1, 10]}", "sync", "a ramp or a cosine"),
        ("{ramp=[1, 0, 10]}", "sync", "above 0 and at most 100"),
        ("{ramp=[1, 200, 10]}", "sync", "above 0 and at most 100"),
        ("{ramp=[1, 2]}", "sync", "sampling.schedules.temperature.ramp is"),
        ("{ramp=[1, 2, 10]}", "one_step_off", "a batch would have several temperatures"),
    ],
)
def test_a_temperature_that_cannot_follow_is_refused(
    table: str, schedule: str, message: str
) -> None:
    given = [f"sampling.schedules.temperature={table}", f"schedule.use={schedule}"]
    with pytest.raises(UsageError, match=message):
        RunPlan.of(Recipe.parse(bundled_text("quickstart"), given))
