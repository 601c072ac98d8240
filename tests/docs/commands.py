"""The commands of the documentation: which the page tests run, and which test runs the others."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

from quintain.cli import main, root

from .pages import ROOT

WHOLE_RUN = "tests/integration/test_run.py::test_summary_holds_what_programs_read"
ALONE = "tests/plugins/starter/test_packages.py::test_train_alone_gets_its_model_and_trains_it"
QUICKSTART = "tests/integration/test_quickstart.py::test_the_quickstart_ends_with_a_better_model"
INSTALLED = "tests/core/registry/test_extension.py::test_list_shows_its_components_and_the_clash"
OWN = "tests/docs/test_own_code.py::test_the_readmes_environment_trains"
SOON = "tests/docs/test_own_code.py::test_a_step_of_learning_is_seen_within_a_minute"
COACHED = "tests/docs/test_own_code.py::test_the_readmes_recipe_trains"
GSM8K = "tests/integration/test_gsm8k.py::test_twenty_steps_on_gsm8k_survive_a_kill"
FILE = "tests/environments/dataset/test_dataset.py::test_a_file_and_a_function_train"
SERVER = "tests/plugins/engines/openai/test_eval.py::test_eval_against_a_local_server"
COMPARED = "tests/plugins/view/compare/test_compare.py::test_a_comparison_from_end_to_end"
CODE = "tests/environments/code/test_rows.py::test_the_command_line_evaluates_a_file"
CHECKED = "tests/environments/code/test_rows.py::test_check_lists_the_rows_that_cannot_be_used"
FUNCTIONS = "tests/integration/test_code_run.py::test_the_default_model_learns_to_write_functions"
SEARCHER = "tests/integration/test_search_run.py::test_the_default_model_learns_to_search"
MAZE = "tests/integration/test_games_run.py::test_the_default_model_learns_to_play"
SEARCH = "tests/plugins/tools/search/test_search.py::test_the_page_shows_commands_that_work"
SERVE = (
    "tests/plugins/gateway/test_serve.py::test_the_command_serves_a_model_until_it_is_interrupted"
)
AGENT = "tests/environments/agent/test_training.py::test_the_page_shows_a_recipe_that_trains"
BOXED = "tests/environments/agent/test_sandboxed_training.py::test_the_page_shows_a_recipe_that_trains_in_boxes"
MCP = "tests/plugins/tools/mcp/test_command.py::test_the_page_shows_commands_that_work"
OWN_MCP = "tests/plugins/tools/mcp/test_command.py::test_a_server_of_ones_own_is_as_the_page_shows"
RUBRICS = "tests/plugins/judge/test_rubrics.py::test_the_command_writes_rubrics_of_an_environment"
STORY = "tests/environments/story/test_books.py::test_the_page_shows_commands_that_work"
STORY_RUN = "tests/integration/test_story_run.py::test_the_default_model_learns_to_plan"
STORY_PAIRS = "tests/environments/story/test_quality.py::test_the_page_shows_commands_that_work"
STOPPED = "tests/docs/test_debugging_page.py::test_a_breakpoint_stops_in_the_reward"
RESCORED = "tests/plugins/authoring/test_authoring.py::test_stored_rollouts_are_scored_again"
VLLM = "tests/integration/test_vllm_lane.py::test_vllm_lane"
VLLM_RUN = "tests/integration/test_vllm_lane.py::test_the_command_trains"
DRY = "tests/docs/test_worked_recipes.py::test_the_recipe_passes_the_dry_run"
OWN_DATA = "tests/docs/test_worked_recipes.py::test_the_recipe_of_ones_own_data_trains"
CAPITALS = "tests/docs/test_worked_recipes.py::test_the_controls_play_the_file"
RANKS = "tests/plugins/learners/fsdp/test_run.py::test_the_quickstart_trains_on_two_ranks"
WATCHED = "tests/plugins/view/watch/test_server.py::test_the_command_prints_its_address_and_ends"
AUDITED = "tests/environments/agent/harbor/test_containers.py::test_an_audit_goes_on_where_it_was_and_a_recipe_reads_it"
CLUSTER = "tests/integration/test_laptop_to_cluster.py::test_every_command_of_the_page_works"
WORKSPACE = "tests/test_workspace.py::test_ci_script_runs"

ELSEWHERE = {
    "quintain train sums.toml --name laptop": CLUSTER,
    "quintain timeline laptop": CLUSTER,
    "quintain train sums.toml --name overlap --set schedule.use=one_step_off": CLUSTER,
    "quintain train sums.toml --name processes --set workers.episodes=2": CLUSTER,
    "quintain train sums.toml --name replicas --set engine.use=pool --set "
    "'engine.args={count=2}'": CLUSTER,
    "quintain train sums.toml --name ranks --set learner.use=fsdp --set learner.args.ranks=2": CLUSTER,
    "quintain train cluster.toml --dry-run": CLUSTER,
    "quintain grading rubrics prompts.jsonl --search articles --url http://127.0.0.1:8000/v1 --out "
    "new.jsonl": RUBRICS,
    "bash tools/vllm_env.sh": VLLM,
    ".venv-vllm/bin/quintain train --set engine.use=vllm": VLLM_RUN,
    "make test": WORKSPACE,
    "quintain tasks audit tasks --out audit.jsonl": AUDITED,
    "quintain train --env sorting.py:Sort --set 'model.start.args.target=[0.03,0.6]' --steps 1": SOON,
    "make train": ALONE,
    "make train ARGS=arithmetic": QUICKSTART,
    "quintain watch": WATCHED,
    "quintain train --set learner.use=fsdp --set learner.args.ranks=2": RANKS,
    "quintain train arithmetic": QUICKSTART,
    "quintain train --env reverse.py:Reverse --set sampling.temperature=0.5 --steps 100": OWN,
    "quintain train coached.toml": COACHED,
    "quintain train --model Qwen/Qwen3-0.6B --env gsm8k": GSM8K,
    "quintain train dataset --arg path=qa.jsonl --model Qwen/Qwen3-0.6B": FILE,
    "quintain train dataset --arg path=tickets.csv --arg prompt=ticket --arg answer=queue "
    "--arg shown=8 --model smollm2-135m": FILE,
    "quintain train dataset --arg path=qa.jsonl --reward score.py:score --model Qwen/Qwen3-0.6B": FILE,
    "quintain eval gsm8k --engine http://127.0.0.1:8000 --model NAME --samples 8 --k 1,4,8": SERVER,
    "quintain eval code --data mbpp.jsonl --engine @oracle": CODE,
    "quintain train code": FUNCTIONS,
    "quintain train search": SEARCHER,
    "quintain train maze": MAZE,
    "quintain train agent.toml": AGENT,
    "quintain train boxed.toml": BOXED,
    "quintain serve arithmetic-1 --record sessions": SERVE,
    "quintain-code check --data rows.jsonl --out left-out.json": CHECKED,
    "quintain compare --algorithms dr_grpo grpo rloo --seeds 0 1 2 --steps 40": COMPARED,
    "quintain-search-server corpus.jsonl --query 'who discovered radium'": SEARCH,
    "quintain-search-server notes --query radium --json": SEARCH,
    "quintain-search-server corpus.jsonl --text-column text --id-column id --query radium": SEARCH,
    "quintain-search-server corpus.jsonl": SEARCH,
    "quintain-search-server corpus.jsonl --http 8765": SEARCH,
    "quintain mcp-tools --command 'quintain-search-server corpus.jsonl'": MCP,
    "quintain mcp-tools --command 'quintain-search-server corpus.jsonl' --json": MCP,
    "quintain mcp-tools --url http://127.0.0.1:8765/mcp": MCP,
    "quintain mcp-tools --recipe agent.toml": MCP,
    "quintain mcp-tools --command 'python prices.py'": OWN_MCP,
    "quintain eval questions.py:Questions --engine @oracle "
    '--service-arg \'mcp.servers={prices={command=["python","prices.py"]}}\'': OWN_MCP,
    "quintain train story": STORY_RUN,
    "quintain-story build alice.txt --out stories": STORY,
    "quintain eval story --data stories --split train --controls": STORY,
    "quintain-story quality @oracle --against @filler": STORY_PAIRS,
    "quintain-story quality @oracle --against @wrong_chapter --tasks 40 --out chapters.jsonl "
    "--json": STORY_PAIRS,
    "quintain eval debugged.py:Wordy --engine @oracle --tasks 1": STOPPED,
    "pip install -e .": INSTALLED,
    **{
        f"quintain train examples/{name}.toml": DRY
        for name in ("gsm8k", "gsm8k-lora", "gsm8k-vllm", "mbpp")
    },
    **{
        f"quintain train examples/{name}.toml": DRY
        for name in ("search", "rubrics", "story", "distill")
    },
    "quintain train examples/capitals.toml": OWN_DATA,
    "quintain eval dataset --arg path=examples/capitals.jsonl --controls": CAPITALS,
    "quintain sft arithmetic-1 --model arithmetic-1 --epochs 1 --out student": QUICKSTART,
    "quintain eval arithmetic --model student --arg 'levels=[1,2,3]' --arg reworded=0.6 --tasks "
    "200": QUICKSTART,
    "quintain rescore arithmetic-1 --reward 'math_equal * format_tags'": RESCORED,
    "quintain rescore arithmetic-1 --reward shapes.py:shortness --last 10": RESCORED,
}
"""Command to the test that does the same in its own way: what takes minutes, a network or a
server.
"""


def parse(command: str) -> None:
    """Read the options of a ``quintain`` command without running it.

    Raises:
        click.ClickException: there is no such command or option.
    """
    name, *words = shlex.split(command)[1:]
    with root.make_context("quintain", [name, *words], resilient_parsing=False) as context:
        found = root.get_command(context, name)
        assert found is not None
        found.make_context(name, list(words), parent=context)


def run(command: str) -> tuple[int, str]:
    """Run *command* in the working directory: its status, and all that it said.

    `quintain` runs in this process, since every new one pays for torch again; `python` in its own.
    """
    tool, *words = shlex.split(command)
    if tool == "quintain":
        return _inside(words)
    assert tool == "python", f"{command!r} is neither run here nor in the table ELSEWHERE"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}  # where `studies` is
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=120, env=environment
    )
    return done.returncode, done.stdout + done.stderr


def _inside(words: Sequence[str]) -> tuple[int, str]:
    out = io.StringIO()
    with (
        patch.dict(os.environ, COLUMNS="160"),
        patch("sys.stdin", io.StringIO()),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
    ):
        status = main(words)
    return status, out.getvalue()


def shows(expected: str, output: str) -> bool:
    """Whether *output* has the lines of *expected*, in order; ``...`` stands for anything."""
    lines = [
        line.strip() for line in expected.splitlines() if line.strip() and line.strip() != "..."
    ]
    patterns = [r"\s+".join(map(_pattern, line.split())) for line in lines]
    return re.search(r".*?\s*".join(patterns), output, re.S) is not None


def _pattern(word: str) -> str:
    return re.escape(word).replace(r"\.\.\.", ".*?")


def forget_modules(folder: Path) -> None:
    """Forget the modules of *folder*: a later test may import others of these names."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]
