"""`quintain plan` and `quintain simulate` as commands; costs by data sheets and by runs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from quintain.cli import main
from quintain.errors import UsageError
from quintain.models.head import CHUNK_ELEMENTS
from quintain.recipe import Recipe, RunPlan
from quintain.registry import current
from quintain_simulate import Distribution, LearnerCosts, Simulation, SimulationSetup
from quintain_simulate.episodes import EpisodeStep
from quintain_simulate.fit import MeasuredTurn, fitted_engine, fitted_learner, turn_rows
from quintain_simulate.hardware import CONFIGS, gpus, module_of, shape_of
from quintain_simulate.planning import ClusterPlanner
from quintain_simulate.report import assumptions
from quintain_simulate.roofline import engine_costs, forward_passes, learner_costs

RECIPE = """
run.steps = 100
model = { name = "none", dtype = "bfloat16" }
algorithm.use = "dr_grpo"
sampling.max_tokens = 2048
batch = { prompts = 4, group_size = 4 }
schedule.use = "areal"
learner = { precision = "bf16", checkpoint_activations = true }
[[environments]]
use = "quintain-env-math/arithmetic"
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return str(path)


def said(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, "--json"]) == 0
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    return record


def test_a_plan_says_memory_hours_money_and_which_change_helps(
    recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hours and money are the steps times the seconds of one, and the first change gains most."""
    plan = said(
        capsys, "plan", recipe, "--gpus", "4:h100", "-w", "model=0.6b", "--price", "2",
        "--simulate-steps", "4",
    )  # fmt: skip
    assert plan["seconds"] == pytest.approx(100 * plan["figures"]["step_seconds"])
    assert plan["cost"] == pytest.approx(2 * 4 * plan["seconds"] / 3600)
    assert plan["memory"]["rank"] < 80e9
    gains = [change["gain"] for change in plan["changes"]]
    assert gains == sorted(gains, reverse=True)
    assert {"1 GPU more for sampling", "1 GPU more for learning"} <= {
        change["change"] for change in plan["changes"]
    }


@pytest.mark.parametrize("name", ["plan", "simulate"])
def test_the_commands_are_known_to_import_torch(name: str) -> None:
    """A terminal says why nothing happens for some seconds."""
    [command] = current().matching(name, "command")
    entry = current().entry(command)
    assert entry is not None
    assert "torch" in entry.tags


def test_a_plan_without_room_for_the_learner_names_what_to_do(
    recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """70 billion parameters with AdamW do not fit on 8 GPUs of 80 GB."""
    assert main(["plan", recipe, "--gpus", "8:h100", "-w", "model=70b"]) == 2
    error = capsys.readouterr().err
    assert "the learner takes" in error
    assert "model.lora" in error


def planner(gpus: int, size: str, *changes: str) -> ClusterPlanner:
    """Return the planner of H100 for `RECIPE` with *changes*."""
    plan = RunPlan.of(Recipe.parse(RECIPE, list(changes)))
    return ClusterPlanner.of(plan, SimulationSetup.of({"model": size}), gpus)


def simulated(setup: SimulationSetup, **fields: Any) -> Simulation:
    return Simulation.of(RunPlan.of(Recipe.parse(RECIPE)), setup, **fields)


def test_a_rank_holds_its_share_whole_ends_activations_and_logits() -> None:
    """By hand for 0.6B (28 layers of 1,024 and 3,072, 16 and 8 heads of 128, tied embeddings): 16
    bytes a parameter are divided, the root, which is embeddings and the last norm, is whole three
    times, a head in half precision and its gradient are 4 bytes, and a micro-batch has 8,192 tokens,
    checkpointed. The run has 4 bytes a parameter on the host.
    """
    found = planner(4, "0.6b", "learner.token_budget=8192")
    divided = 16 * found.shape.parameters
    layer = 4 * 0.72 * (3.5 * 1024 + 3 * 3072 + 3.5 * 16 * 128 + 4 * 8 * 128)
    activations = 8192 * (4 * 2 * 1024 + 4 * 1024 * 28 + layer)
    logits = 12 * min(CHUNK_ELEMENTS["gpu"], 8192 * 151_936)
    assert found.rank_bytes(4) == pytest.approx(
        divided / 4 + 4 * (3 * (151_936 + 1) + 151_936) * 1024 + activations + logits
    )
    assert found.memory_on(4).host == 4 * found.shape.parameters


def test_settings_of_the_learner_count() -> None:
    """Those of the recipe, for as many GPUs as are tried."""
    usual = planner(4, "0.6b", "learner.use=fsdp")
    eight = planner(4, "0.6b", "learner.use=fsdp", "learner.args.optimizer=adamw_8bit")
    saved = usual.rank_bytes(4) - eight.rank_bytes(4)
    assert saved == pytest.approx(6 * usual.shape.parameters / 4, rel=1e-6)
    assert usual.rank_bytes(4) == planner(4, "0.6b").rank_bytes(4)


def test_adapters_take_fewer_gpus() -> None:
    """What the error recommends: 8B with AdamW needs several GPUs, with adapters one."""
    assert planner(8, "8b").least_ranks() > 1
    assert planner(8, "8b", "model.lora={}").least_ranks() == 1


def test_shared_gpus_have_to_hold_the_learner() -> None:
    """A synchronous plan of 70B on 8 GPUs says what the learner takes; 0.6B says what it assumes."""
    with pytest.raises(UsageError, match="the learner takes"):
        planner(8, "70b", 'schedule.use="sync"').division()
    small = planner(2, "0.6b", 'schedule.use="sync"')
    simulation = small.simulated("", small.division()).simulation
    lines = assumptions(simulation)
    assert any("take turns on the GPUs" in line for line in lines)


def test_updates_in_flight_keep_the_other_settings_of_the_schedule() -> None:
    """Of `stale` and `order`."""
    found = planner(
        2, "0.6b", 'schedule={use="one_step_off", args={stale="drop", order="longest_first"}}'
    )
    other = dict(found.other_schedules())["updates in flight"]
    assert other == dataclasses.replace(found.plan.schedule, in_flight_updates=True)
    assert vars(other) | {"in_flight_updates": False} == vars(found.plan.schedule)


@pytest.mark.parametrize(
    ("changes", "passes"),
    [
        ([], 3.0),
        (["algorithm.args.epochs=2"], 6.0),
        (["algorithm.args.minibatches=4"], 3.75),  # prox of three quarters
        (["algorithm.args.minibatches=99"], 3.75),  # one for each of 4 groups
        (['algorithm.use="grpo"'], 4.0),  # ref
        (['algorithm.use="grpo"', 'algorithm.args.kl.where="reward"'], 5.0),  # prox of all
    ],
)
def test_an_update_takes_the_passes_of_its_algorithm(changes: list[str], passes: float) -> None:
    """Three for each epoch, one for ref, and prox of what trains after the first optimizer step."""
    plan = RunPlan.of(Recipe.parse(RECIPE, changes))
    assert forward_passes(plan.algorithm, plan.rollouts.groups) == passes


def test_seconds_of_an_engine_replace_those_of_its_gpu_one_by_one() -> None:
    """With one written, the weights are still read; and only what is in use is printed."""
    shape = shape_of(module_of("0.6b"), "0.6b")
    by_gpu = engine_costs(SimulationSetup(), shape)
    setup = SimulationSetup.of(
        {"model": "0.6b", "engine": {"overhead": 0.002}, "learner": {"transfer": 0.0}}
    )
    found = engine_costs(setup, shape)
    assert found == dataclasses.replace(by_gpu, overhead=0.002)
    lines = assumptions(simulated(setup))
    assert "a step of decoding takes 2.0 ms beside" in lines
    assert "weights take 0 s to the engines" in lines
    assert "the engine's seconds as written or measured: overhead 0.002" in lines


def test_assumptions_name_the_episodes_that_are_drawn() -> None:
    """The default reply by its numbers; of measured episodes, none of the setup's distributions."""
    setup = SimulationSetup.of({"model": "0.6b"})
    [line] = [line for line in assumptions(simulated(setup)) if line.startswith("episodes")]
    assert "reply lognormal:512,0.8 and at most 2,048" in line
    measured = ((EpisodeStep(0, 5, 0.0),),) * 3
    drawn = assumptions(simulated(setup, measured=measured))
    [line] = [line for line in drawn if line.startswith("episodes")]
    assert line == (
        "episodes: 3 measured ones drawn from, replies of at most 2,048, prompt 256, start 0 s, "
        "0.0% lost"
    )


def test_assumptions_without_a_model_name_no_gpu() -> None:
    """Nothing comes from a data sheet then."""
    setup = SimulationSetup.of({"engine": {"overhead": 0.01}, "learner": {"base": 2.0}})
    lines = assumptions(simulated(setup))
    text = "\n".join(lines)
    assert "h100" not in text
    assert "GB/s" not in text
    assert "FLOP/s" not in text
    assert "weights take 0 s to the engines" in lines


def test_a_simulation_prints_what_it_assumes(
    recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The setup that it prints gives the same figures again."""
    words = ("simulate", recipe, "-w", "model=8b", "-w", "episodes.reply=lognormal:500,1")
    first = said(capsys, *words, "--steps", "4")
    assert any("data sheet" in line for line in first["assumptions"])
    assert SimulationSetup.of(first["setup"]).plain() == first["setup"]
    assert main([*words, "--steps", "4"]) == 0
    text = capsys.readouterr().out
    assert f"{first['figures']['tokens_per_second']:,.0f}" in text
    assert "assumed:" in text


@pytest.mark.parametrize("hours", ["0", "-1"])
def test_hours_are_more_than_none(
    recipe: str, hours: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", recipe, "-w", "model=0.6b", "--hours", hours]) == 2
    assert "--hours" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("size", "billions"),
    [("0.6b", 0.596), ("8b", 8.19), ("70b", 70.55)],
)
def test_published_sizes_are_those_of_their_models(size: str, billions: float) -> None:
    """The configurations of the table give the parameters that the models are published with."""
    assert shape_of(module_of(size), size).parameters / 1e9 == pytest.approx(billions, rel=0.005)
    assert size in CONFIGS


def test_costs_by_a_data_sheet_are_bytes_over_bandwidth_and_operations_over_flops() -> None:
    """By hand for 8B on two H100, with efficiencies of 1."""
    setup = SimulationSetup.of(
        {
            "cluster": {"gpus_per_engine": 2, "learner_gpus": 4},
            "assumed": {"bandwidth": 1, "compute": 1, "mfu": 1, "step": 0, "exchange": 0},
        }
    )
    shape = shape_of(module_of("8b"), "8b")
    engine, learner = engine_costs(setup, shape), learner_costs(setup, shape, 3)
    assert engine.weights == pytest.approx(2 * shape.parameters / (2 * 3350e9))
    assert engine.context == pytest.approx(2 * 2 * 36 * 8 * 128 / (2 * 3350e9))
    multiplied = shape.parameters - 151_936 * 4096  # input embeddings are looked up
    assert engine.compute == pytest.approx(2 * multiplied / (2 * 989e12))
    assert learner.token == pytest.approx(6 * multiplied / (4 * 989e12))
    assert engine.overhead == 0.0
    assert engine.capacity == pytest.approx(
        (0.9 * 2 * 80e9 - 2 * shape.parameters) / (2 * 2 * 36 * 8 * 128)
    )
    assert learner.pair == pytest.approx(3 * 4 * 36 * 32 * 128 / (4 * 989e12))
    assert learner.transfer == pytest.approx(0.5 + 2 * shape.parameters / 2 / 50e9)


def test_an_engine_of_several_gpus_exchanges_twice_a_layer() -> None:
    """36 layers of 8B, 10 microseconds each; one GPU has nobody to exchange with."""
    shape = shape_of(module_of("8b"), "8b")
    seconds = [
        engine_costs(SimulationSetup.of({"cluster": {"gpus_per_engine": count}}), shape).overhead
        for count in (1, 2)
    ]
    assert seconds == pytest.approx([0.004, 0.004 + 2 * 36 * 1e-5])


def test_an_update_adds_its_sequences_tokens_and_pairs() -> None:
    """Two sequences of 10 and 20 tokens: 30 tokens, and 50 + 200 pairs."""
    costs = LearnerCosts(base=1.0, sequence=0.5, token=0.25, pair=0.125)
    assert costs.update([10, 20]) == 1.0 + 2 * 0.5 + 30 * 0.25 + 250 * 0.125


def test_every_gpu_has_all_numbers() -> None:
    """And each line of the table names where its number is from."""
    import quintain_simulate

    table = Path(quintain_simulate.__file__).with_name("hardware.toml").read_text()
    rows = [line for line in table.splitlines() if " = " in line]
    assert all("#" in row for row in rows)
    assert len(rows) == 3 * len(gpus())


def test_a_fit_finds_the_seconds_that_made_the_turns() -> None:
    """Turns of a batch that shrinks, made by a step of 20 ms and 1 ms for each sequence."""
    random, turns, rows = Random(3), [], []
    for count in (2, 8, 20):
        lengths = sorted(random.randint(5, 60) for _ in range(count))
        moment = done = 0.0
        for place, length in enumerate(lengths):
            moment += (length - done) * (0.02 + 0.001 * (count - place))
            done = length
            turns.append(MeasuredTurn(began=0.0, ended=moment, tokens=length))
        rows += turn_rows(turns)
        turns = []
    costs = fitted_engine(rows)
    assert costs["overhead"] == pytest.approx(0.02, rel=0.1)
    assert costs["sequence"] == pytest.approx(0.001, rel=0.2)


def test_a_fit_of_the_learner_is_exact_on_exact_steps() -> None:
    """Half a second and 2 ms a token."""
    steps = [
        {"tokens": n, "seconds.update": 0.5 + 0.002 * n, "seconds.sync": 0.25}
        for n in (50, 80, 300)
    ]
    assert fitted_learner(steps) == pytest.approx({"base": 0.5, "token": 0.002, "transfer": 0.25})


@pytest.mark.parametrize(
    ("written", "mean"),
    [
        (7, 7.0),
        ("7", 7.0),
        ([1, 3], 2.0),
        ("uniform:0,10", 5.0),
        ("exponential:4", 4.0),
        ("mixture:1*0.9,11*0.1", 2.0),
        ("lognormal:2,0.5", 2 * 1.1331),
    ],
)
def test_distributions_have_their_means(written: Any, mean: float) -> None:
    """The median of a log-normal times exp(sigma^2 / 2)."""
    random, distribution = Random(0), Distribution.parse(written)
    drawn = [distribution.draw(random) for _ in range(4000)]
    assert sum(drawn) / len(drawn) == pytest.approx(mean, rel=0.08)


@pytest.mark.parametrize("written", [1234567.25, [3, 1234567.25, 8, 1e-9], 7])
def test_a_distribution_draws_what_its_text_draws(written: Any) -> None:
    """The printed setup gives the same figures: no digit is lost, and a list draws as its text."""
    first = Distribution.parse(written)
    again = Distribution.parse(first.text)
    draws = [
        [each.draw(random) for _ in range(50)]
        for each, random in ((first, Random(1)), (again, Random(1)))
    ]
    assert draws[0] == draws[1]


@pytest.mark.parametrize(
    "written", ["normal:3", "uniform:1", "-3", "mixture:1", [], -1, "lognormal:a"]
)
def test_what_is_no_distribution_is_refused(written: Any) -> None:
    """The error lists the forms."""
    with pytest.raises(UsageError, match="expected a number"):
        Distribution.parse(written)
