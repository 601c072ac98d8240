"""What `--model` begins with where torch finds no GPU."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from quintain import Demonstration, Environment, Rollout, Task, reward
from quintain.cli import recipe_for
from quintain.recipe import Recipe, RunPlan, on_cpu, precision, settled
from quintain.recipe.on_cpu import (
    MARKS,
    MAX_TOKENS,
    PROMPTS,
    SECONDS,
    PromptTokens,
    changes_on_cpu,
    longest_reply,
    prompt_tokens,
    seconds_of_step,
)
from quintain.recipe.precision import Processor, processor
from quintain.recipe.resolve import EnvironmentSpec
from quintain.registry import current

from ..models.tiny import save_tiny

PLAIN = Processor(float32=1e11, bfloat16=2e10, decoding=5e10)
HALF = Processor(float32=1e11, bfloat16=4e11, decoding=5e10)
OPEN = """
model.dtype = "auto"
learner.precision = "auto"
[[environments]]
use = "arithmetic"
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(save_tiny(tmp_path / "model"))


@pytest.fixture
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_cpu, "processor", lambda: PLAIN)


@reward(range=(0, 1))
def never(rollout: Rollout) -> float:
    return 0.0


class Shown(Environment[Task, None]):
    """Answers are short, demonstrations are long."""

    reward = never

    def tasks(self, split: str) -> Iterable[Task]:
        return [Task(prompt="?", answer="yes")]

    def demonstrations(self, split: str) -> Iterable[Demonstration]:
        return [Demonstration(prompt="?", reply="x" * n) for n in (30, 120)]


class Answered(Shown):
    """No demonstrations."""

    def demonstrations(self, split: str) -> Iterable[Demonstration]:
        return ()


class Digits(Shown):
    """A token each."""

    def demonstrations(self, split: str) -> Iterable[Demonstration]:
        return [Demonstration(prompt="?", reply="2026-11-30")]


class Open(Answered):
    """No answers."""

    def tasks(self, split: str) -> Iterable[Task]:
        return [Task(prompt="?")]


class Long(Shown):
    """Longer than a CPU has time for."""

    def demonstrations(self, split: str) -> Iterable[Demonstration]:
        return [Demonstration(prompt="?", reply="x" * 10_000)]


def recipe_of(kind: type[Shown]) -> Recipe:
    name = current().add("environment", kind.__name__, kind).name
    return Recipe.parse("", [f'environments=[{{use="{name}"}}]'])


@pytest.mark.parametrize(
    ("kind", "tokens"),
    [
        (Shown, 68),  # one and a half times 120 characters of 3 a token, and 8
        (Answered, 36),  # four times one token, and 32
        (Digits, 21),  # one and a half times eight digits and two thirds of a token, and 8
        (Open, MAX_TOKENS.stop - 1),
        (Long, MAX_TOKENS.stop - 1),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_lengths_are_those_of_the_environment(kind: type[Shown], tokens: int) -> None:
    assert longest_reply(recipe_of(kind)) == tokens


@pytest.mark.parametrize(
    ("here", "millions", "dtype", "precision"),
    [
        (PLAIN, 600, "float32", "float32"),
        (PLAIN, 135, "float32", "float32"),
        (HALF, 600, "bfloat16", "bf16"),
        (HALF, 135, "bfloat16", "bf16"),
    ],
)
def test_the_precision_is_what_this_processor_multiplies_fast(
    here: Processor,
    millions: int,
    dtype: str,
    precision: str,
    model: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(on_cpu, "processor", lambda: here)
    monkeypatch.setattr(on_cpu, "_parameters", lambda recipe: millions * 10**6)

    recipe = recipe_for("extraction", [], model)

    assert (recipe.model.dtype, recipe.learner.precision) == (dtype, precision)
    assert (recipe.algorithm.args.get("correction") == "tis") == (precision == "bf16")
    assert not recipe.learner.checkpoint_activations
    assert (recipe.sampling.temperature, recipe.learner.lr) == (1.0, 2e-5)


@pytest.mark.parametrize(
    ("here", "device", "dtype", "computed"),
    [
        (PLAIN, "cpu", "float32", "float32"),
        (HALF, "cpu", "bfloat16", "bf16"),
        (PLAIN, "cuda", "bfloat16", "bf16"),
    ],
)
def test_auto_is_the_precision_that_this_machine_computes_faster(
    here: Processor, device: str, dtype: str, computed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "processor", lambda: here)
    recipe = Recipe.parse(OPEN, [f'model.device="{device}"'])

    assert (found := settled(recipe)).model.dtype == dtype
    assert found.learner.precision == computed
    assert settled(found) is found
    one = recipe.replace({"learner.precision": "float32"})
    assert settled(one).learner.precision == "float32"


def test_a_plan_has_no_open_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "processor", lambda: HALF)
    plan = RunPlan.of(Recipe.parse(OPEN))

    assert (plan.model.dtype, plan.learner.precision) == ("bfloat16", "bf16")
    assert plan.record["learner"]["precision"] == "bf16"


@pytest.mark.usefixtures("_plain")
def test_what_is_set_wins(model: str) -> None:
    recipe = recipe_for("extraction", ["batch.prompts=3", "sampling.max_tokens=9"], model)

    assert (recipe.batch.prompts, recipe.sampling.max_tokens) == (3, 9)


@pytest.mark.usefixtures("_plain")
def test_a_named_gpu_keeps_the_values_of_a_gpu(model: str) -> None:
    recipe = recipe_for("extraction", ['model.device="cuda"'], model)

    assert (recipe.model.dtype, recipe.learner.checkpoint_activations) == ("bfloat16", True)


@pytest.mark.usefixtures("_plain")
@pytest.mark.parametrize(
    ("millions", "prompts"), [(0.1, PROMPTS[0]), (135, 8), (600, PROMPTS[-1]), (8000, PROMPTS[-1])]
)
def test_the_batch_is_what_a_minute_suffices_for(
    millions: float, prompts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_cpu, "_parameters", lambda recipe: int(millions * 1e6))

    changes = changes_on_cpu(recipe_of(Shown))

    assert f"batch.prompts={prompts}" in changes


@pytest.mark.usefixtures("_plain")
@pytest.mark.parametrize(("millions", "steps"), [(0.1, 50), (20, 19), (600, 10)])
def test_the_steps_fit_some_minutes(
    millions: float, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_cpu, "_parameters", lambda recipe: int(millions * 1e6))

    assert f"run.steps={steps}" in changes_on_cpu(recipe_of(Shown))


@pytest.mark.usefixtures("_plain")
def test_prompts_of_the_environment_count() -> None:
    """Rows that are shown make a prompt, and a step, long."""

    class Longer(Shown):
        def tasks(self, split: str) -> Iterable[Task]:
            return [Task(prompt="word " * n, answer="yes") for n in (200, 400)]

    class LongAndShort(Shown):
        def tasks(self, split: str) -> Iterable[Task]:
            long = [Task(prompt=f"{'x' * 6000}{i}", answer="yes") for i in range(17)]
            return [*long, *(Task(prompt=f"{i} {'y' * 30}", answer="yes") for i in range(15))]

    class Examples(Shown):
        """One of the tasks is the example of the others, and has another one."""

        def tasks(self, split: str) -> Iterable[Task]:
            return [
                Task(prompt=f"{'other' if i == 3 else 'first'} {'word ' * 199}{i}", answer="yes")
                for i in range(20)
            ]

    spec = EnvironmentSpec.of(recipe_of(Longer).environments[0])
    marks = len(MARKS) / 3
    assert prompt_tokens(spec) == PromptTokens(mean=500 + round(marks), shared=333)
    mixed = prompt_tokens(EnvironmentSpec.of(recipe_of(LongAndShort).environments[0]))
    assert 0 < mixed.shared < mixed.mean
    shown = EnvironmentSpec.of(recipe_of(Examples).environments[0])
    assert prompt_tokens(shown).shared in range(310, 320)
    assert prompt_tokens(EnvironmentSpec.of(recipe_of(Shown).environments[0])) == PromptTokens()


@pytest.mark.usefixtures("_plain")
def test_a_step_is_a_pass_for_each_token_and_three_more_for_each_of_the_update() -> None:
    prompt = PromptTokens(mean=100, shared=60)
    seconds = seconds_of_step(10**8, prompts=4, group=8, tokens=50, half=False, prompt=prompt)

    read, decoded = 60 + 4 * 40, 4 * 8 * 50
    decoding = 2e8 * decoded / (on_cpu.DECODING_SHARE * PLAIN.decoding)
    passes = (2e8 * read + 6e8 * (read + decoded)) / (on_cpu.UPDATE_SHARE * PLAIN.float32)
    assert seconds == pytest.approx(decoding + passes)
    assert seconds < SECONDS


@pytest.mark.parametrize(
    ("reward", "shaping", "use"),
    [
        ("", "", on_cpu.MAXRL),
        ("score.py:of_unknown_range", "", on_cpu.DR_GRPO),
        ("score.py:signed", "", on_cpu.DR_GRPO),
        ("", "score.py:signed", on_cpu.DR_GRPO),
        ("", "score.py:share", on_cpu.MAXRL),
    ],
)
@pytest.mark.usefixtures("_plain")
def test_rewards_that_may_be_negative_keep_the_algorithm(
    reward: str,
    shaping: str,
    use: str,
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("score.py").write_text(
        "from quintain import reward\n"
        "def of_unknown_range(completion): return 1.0\n"
        "@reward(range=(-1, 1))\ndef signed(rollout): return -1.0\n"
        "@reward(range=(0, 1))\ndef share(rollout): return 1.0\n"
    )
    named = {"reward": reward, "shaping": shaping}
    table = {"use": "extraction"} | {k: f'use("{name}")' for k, name in named.items() if name}
    changes = [f"environments=[{{{', '.join(f'{k} = {v!r}' for k, v in table.items())}}}]"]

    assert recipe_for("extraction", changes, model).algorithm.use == use
    assert recipe_for("extraction", ["algorithm.use='grpo'"], model).algorithm.use == "grpo"
    own = recipe_for("extraction", ["algorithm.args.overlong=0.2"], model)  # maxrl refuses it
    assert own.algorithm.use == on_cpu.DR_GRPO


def test_this_processor_is_measured() -> None:
    here = processor()

    assert min(here.float32, here.bfloat16, here.decoding) > 1e8
