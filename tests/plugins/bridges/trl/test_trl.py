"""Environments of Quintain in TRL's trainer, with TRL itself."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from quintain.errors import EnvironmentFault, UsageError
from quintain_authoring import Stepwise
from quintain_bridges.trl import InTRL
from quintain_bridges.trl.episode import OVER

from ....core.models.tiny import save_tiny
from ....lanes import needs

pytestmark = needs("trl", "pip install trl")


@pytest.fixture
def hosted() -> Iterator[Any]:
    """Makes environments and closes them."""
    made: list[InTRL] = []

    def make(use: str, **settings: Any) -> InTRL:
        made.append(InTRL(use, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_rows_have_what_the_policy_is_asked_first(hosted: Any) -> None:
    """The system message is in the prompt, and the answer is not in the row."""
    rows = hosted("arithmetic", args={"levels": [1]}).rows("test", 3)
    assert rows.column_names == ["prompt", "split", "index"]
    assert len(rows) == 3
    assert rows[1]["prompt"][-1]["role"] == "user"
    assert "=" in rows[1]["prompt"][-1]["content"]
    assert rows[2]["split"] == "test"
    assert rows[2]["index"] == 2


def test_a_reward_function_gives_the_score_of_each_reply(hosted: Any) -> None:
    """Text and messages; a row is found by its split and number."""
    one = hosted("arithmetic", args={"levels": [1]})
    right = [f"#### {one.task('test', n).answer}" for n in (1, 2)]
    replies = [right[0], [{"role": "assistant", "content": right[1]}], "7", right[0]]
    where = {"split": ["test"] * 4, "index": [1, 2, 1, 2]}
    assert one.reward(replies, prompts=[""] * 4, **where)[:3] == [1.0, 1.0, 0.0]


def test_a_failure_of_the_environment_is_no_score(hosted: Any, tmp_path: Path) -> None:
    """TRL leaves out ``None``; a reward that raises is not a reward of 0."""
    (tmp_path / "broken.py").write_text(
        "from quintain import Environment, Task, reward\n"
        "@reward\n"
        "def broken(rollout):\n"
        "    if rollout.reply == 'raise': raise OSError('the disk is full')\n"
        "    return 0.5\n"
        "class Broken(Environment):\n"
        "    reward = broken\n"
        "    def tasks(self, split): yield Task(prompt='x')\n"
    )
    one = hosted(f"{tmp_path / 'broken.py'}:Broken")
    where = {"split": ["train"] * 2, "index": [0, 0]}
    assert one.reward(["raise", "y"], **where) == [None, 0.5]


def test_an_environment_of_several_turns_needs_the_factory(hosted: Any) -> None:
    with pytest.raises(EnvironmentFault, match="has several turns"):
        hosted("guess").reward(["5"], split=["train"], index=[0])
    with pytest.raises(UsageError):
        InTRL("no such environment")


def test_an_episode_has_the_tools_of_the_environment(hosted: Any) -> None:
    """Methods have what TRL makes a schema of; the episode gets the score of the environment."""
    from transformers.utils import get_json_schema

    one = hosted("tools")
    kind = one.factory()
    public = [n for n, _ in inspect.getmembers(kind, inspect.isfunction) if not n.startswith("_")]
    assert public == ["calculate", "count", "put", "reset", "take"]
    schema = get_json_schema(kind().put)["function"]
    assert schema["parameters"]["required"] == ["item", "count"]
    assert schema["parameters"]["properties"]["count"]["type"] == "integer"

    right, wrong = kind(), kind()
    assert right.reset(split="train", index=0) is None
    assert wrong.reset(index=0) is None
    task = one.task("train", 0)
    for step in task.steps:
        assert step.kind == "all"
        right.take(item=step.good, count=task.stock[step.good])
    completions = [[{"role": "assistant", "content": "done"}]] * 2
    assert one.episode_reward(completions, [right, wrong]) == [1.0, 0.0]
    assert right.take(item="nuts", count=1) == OVER


def test_an_environment_without_tools_is_played_by_one(hosted: Any) -> None:
    """Each call of ``reply`` is a turn."""
    one = hosted("guess")
    task = one.task("train", 3)
    episode = one.factory()()
    episode.reset(split="train", index=3)
    assert episode.reply(message="1") not in ("", OVER)
    completion = [[{"role": "assistant", "content": str(task.answer)}]]
    assert one.episode_reward(completion, [episode]) != [None]


def test_tasks_come_back_in_the_same_order(hosted: Any) -> None:
    one = hosted("arithmetic")
    first = [one.task("train", n).id for n in range(3)]
    assert first == [t.id for t, _ in zip(one.environment.tasks("train"), range(3), strict=False)]


def trained(folder: Path, hosted: InTRL, **settings: Any) -> Any:
    """Train a tiny model for two steps with TRL's trainer, and return it."""
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    save_tiny(folder / "model", context=2048)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    tokenizer.chat_template = files("trl").joinpath("chat_templates/qwen3.jinja").read_text()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = GRPOTrainer(
            model=str(folder / "model"),
            processing_class=tokenizer,
            train_dataset=hosted.rows("train", 4),
            args=GRPOConfig(
                output_dir=str(folder / "out"),
                use_cpu=True,
                bf16=False,
                per_device_train_batch_size=4,
                num_generations=2,
                max_completion_length=8,
                max_steps=2,
                logging_steps=1,
                report_to=[],
                save_strategy="no",
            ),
            **settings,
        )
        trainer.train()
    return trainer


def test_trl_trains_on_single_turns(hosted: Any, tmp_path: Path) -> None:
    """`GRPOTrainer` runs two steps on rows and rewards of ours, on the CPU."""
    one = hosted("arithmetic", args={"levels": [1]})
    trainer = trained(tmp_path, one, reward_funcs=one.reward)
    assert trainer.state.global_step == 2
    assert [row["reward"] for row in trainer.state.log_history if "reward" in row] == [0.0, 0.0]


def test_trl_trains_on_episodes(hosted: Any, tmp_path: Path) -> None:
    """The same with `environment_factory`: a tiny model calls no tool, which scores 0."""
    one = hosted("tools")
    trainer = trained(
        tmp_path, one, reward_funcs=one.episode_reward, environment_factory=one.factory()
    )
    assert trainer.state.global_step == 2
    assert [row["reward"] for row in trainer.state.log_history if "reward" in row] == [0.0, 0.0]


def test_a_step_after_the_end_is_refused(hosted: Any) -> None:
    """`Stepwise` says that the episode is over."""
    one = hosted("arithmetic")

    async def play() -> None:
        from quintain import Reply

        async with Stepwise(one.environment, one.task("train", 0), one.services) as episode:
            await episode.next()
            await episode.next(Reply(text="x"))
            await episode.next(Reply(text="x"))

    with pytest.raises(EnvironmentFault, match="the episode is over"):
        one.run(play())
