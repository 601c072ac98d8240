"""The memory that pages promise for models of 8 to 70 billion parameters: one function says it to
`--dry-run`, `quintain plan` and the pages.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quintain.recipe import Recipe, RunPlan, memory_of
from quintain.recipe.memory import activations, logits_bytes, memory_table
from quintain_learners.fsdp.memory import gathered_bytes
from quintain_simulate import SimulationSetup
from quintain_simulate.planning import ClusterPlanner

DOCS = Path(__file__).parents[3] / "docs"
SCALE = (DOCS / "scale.md").read_text(encoding="utf-8")
LONG = (DOCS / "decisions" / "0250-long-sequences-on-one-rank.md").read_text(encoding="utf-8")
ROWS = re.findall(
    r"^\| (\d+B) \| (\d+) \| ([\d.]+) GB \| ([\d.]+) GB \| ([\d.]+) GB \| ([\d.]+) GB \|$",
    SCALE,
    re.MULTILINE,
)
LONG_ROWS = re.findall(
    r"^\| (\d+B) \| (\d+)k \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$",
    LONG,
    re.MULTILINE,
)
RECIPE = SCALE.partition("# file: scale.toml\n")[2].partition("```")[0]
TENTH = 0.0501e9
"""The pages round to a tenth of a GB."""


def planner(size: str, *changes: str) -> ClusterPlanner:
    plan = RunPlan.of(Recipe.parse(RECIPE, list(changes)))
    return ClusterPlanner.of(plan, SimulationSetup.of({"model": size.lower()}), 8)


@pytest.mark.keeps("8B-8")
@pytest.mark.parametrize("row", ROWS, ids=["-".join(row[:2]) for row in ROWS])
def test_pages_plan_and_dry_run_say_the_same(row: tuple[str, ...]) -> None:
    size, ranks = row[0], int(row[1])
    part, rest, together, host = (1e9 * float(text) for text in row[2:])
    planned = planner(size, "learner.use=fsdp")
    numbers = sum(p.numel() for p in planned.module.parameters())
    # By the formula of docs/distributed.md.
    assert 16 * numbers / ranks == pytest.approx(part, abs=TENTH)
    assert 4 * numbers == pytest.approx(host, abs=TENTH)
    whole = gathered_bytes(planned.module, gather=2, autocast=True)
    of_batch = activations(planned.plan, planned.module)
    logits = logits_bytes(planned.plan, planned.module, "gpu")
    assert whole + of_batch + logits == pytest.approx(rest, abs=TENTH)
    # `quintain plan`, for the learner of the recipe and for one that has none.
    assert planned.rank_bytes(ranks) == pytest.approx(together, abs=TENTH)
    assert planned.memory_on(ranks).host == 4 * numbers
    # `--dry-run`, of a recipe with as many ranks.
    settings = ["learner.use=fsdp", f"learner.args.ranks={ranks}", "learner.args.device=cuda"]
    plan = RunPlan.of(Recipe.parse(RECIPE, [*settings, "engine.use=vllm-server"]))
    memory = memory_of(plan, planned.module, free=int(141e9))
    assert memory.each == pytest.approx(together, abs=TENTH)
    assert memory.host == 4 * numbers
    lines = memory_table(plan, memory, "a GPU", int(141e9))
    assert any(f"{memory.total / 1e9:,.2f} GB" in line for line in lines if "together" in line)


def test_the_page_has_all_four_sizes() -> None:
    assert [row[0] for row in ROWS] == ["8B", "8B", "14B", "32B", "70B"]


@pytest.mark.keeps("8B-32")
@pytest.mark.parametrize("row", LONG_ROWS, ids=["-".join(row[:2]) for row in LONG_ROWS])
def test_a_decision_has_the_memory_of_long_sequences(row: tuple[str, ...]) -> None:
    """One sequence in a micro-batch; what the layers keep of it alone; and a GPU of 8, 16 and 64."""
    size, tokens = row[0], 1024 * int(row[1])
    kept, of_batch, *of_gpus = (1e9 * float(text) for text in row[2:])
    # A sequence is planned for twice the reply and a prompt of 512 tokens.
    reply = (tokens - 512) // 2
    found = planner(size, f"sampling.max_tokens={reply}", "learner.token_budget=1024")
    assert found.plan.rollouts.sequence_tokens == tokens
    config = found.module.config
    assert 4 * config.hidden_size * found.shape.layers * tokens == pytest.approx(kept, abs=TENTH)
    assert activations(found.plan, found.module) == pytest.approx(of_batch, abs=TENTH)
    for ranks, bytes_ in zip((8, 16, 64), of_gpus, strict=True):
        assert found.rank_bytes(ranks) == pytest.approx(bytes_, abs=TENTH)


def test_the_decision_has_both_lengths_of_all_sizes() -> None:
    pairs = [(size, tokens) for size in ("8B", "14B", "32B", "70B") for tokens in ("32", "128")]
    assert [row[:2] for row in LONG_ROWS] == pairs
