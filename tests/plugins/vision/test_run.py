"""A run whose messages hold pictures: sampled, learned from, stored, and continued."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from quintain import Agent, Environment, Reply, Rollout, Score, Task, ToolCall, reward
from quintain.console import printable
from quintain.models import PICTURE_TOKENS
from quintain.store import read_table
from quintain_authoring import ScriptedEngine, run_episode
from quintain_scale.workers.frames import packed_ids, unpacked_ids
from quintain_view.viewer.stored import TokenText
from quintain_vision import picture, tool_picture
from quintain_vision.store import stored
from quintain_vision.tokens import digits_of, key_of

from ...small_run import small_recipe
from . import tiny


def main(words: list[str]) -> int:
    from quintain.cli import main

    return int(main(words))


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def step(run: Path, number: int) -> dict[str, Any]:
    """The metrics of a step that do not depend on the clock."""
    rows = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    (*_, row) = (row for row in rows if row.get("step") == number)
    return {k: v for k, v in row.items() if "second" not in k and "time" not in k}


ENVIRONMENT = 'use = "counting"\nargs = { size = 32, train = 8, held_out = 4 }'


@pytest.mark.more
@pytest.mark.parametrize("family", ["smolvlm", "qwen3_vl", "gemma3"])
def test_a_run_with_pictures_is_stored_and_resumed(
    family: str, tmp_path: Path, no_curves: Any
) -> None:
    tiny.save(tmp_path / "model", family)
    recipe = small_recipe(ENVIRONMENT, steps=2, tables="[checkpoint]\nevery = 1")
    (tmp_path / "recipe.toml").write_text(recipe, encoding="utf-8")
    assert main(["train", "recipe.toml", "--name", "whole", "--quiet"]) == 0
    whole, cut = tmp_path / "runs" / "whole", tmp_path / "runs" / "cut"
    for number in (1, 2):
        table = read_table(whole / "rollouts" / f"step-{number:06d}.parquet")
        ids = table["token_ids"].to_pylist()
        assert all(any(i >= PICTURE_TOKENS for i in row) for row in ids)
        assert "[image]" in TokenText(whole).text(ids[0])
    shutil.copytree(whole, cut)
    shutil.rmtree(cut / "checkpoints" / "step-000002")
    assert main(["train", "--resume", str(cut), "--quiet"]) == 0
    assert step(cut, 2) == step(whole, 2)


def test_demonstrations_with_pictures_train(tmp_path: Path) -> None:
    from quintain.types import TrainingSequence
    from quintain_offline.sft.example import Tokens

    row = TrainingSequence(
        ids=(1, PICTURE_TOKENS + 5, 2),
        mask=(False, False, True),
        logps=(0.0,) * 3,
        versions=(-1,) * 3,
    )
    assert Tokens.of(row).sequence() == row


@pytest.mark.parametrize("ids", [[], [1, 2, 3], [1, PICTURE_TOKENS + 7, 2**63 - 1]])
def test_ids_of_pictures_pass_between_processes(ids: list[int]) -> None:
    assert list(unpacked_ids(packed_ids(ids))) == ids


@reward
def looked(rollout: Rollout[Task, None]) -> Score:
    return Score(value=1.0)


class Looking(Environment[Task, None]):
    """A tool shows a picture, and repeats what the policy asks for."""

    reward = looked

    def tasks(self, split: str) -> list[Task]:
        return [Task(prompt="Look.")]

    async def rollout(self, task: Task, agent: Agent) -> None:
        def look(at: str) -> str:
            """Look at something."""
            file = io.BytesIO()
            Image.new("RGB", (40, 28), "red").save(file, "PNG")
            return f"{at}: {tool_picture(file.getvalue())}"

        agent.user(task.prompt)
        turn = await agent.run(look)
        agent.user(f"You said {turn.reply}. Sure?")
        await agent.turn()


def test_an_episode_with_a_tool_that_shows_a_picture(tmp_path: Path) -> None:
    """A run stores its messages, from which a demonstration has the same tokens."""
    from quintain.models import load_model

    file = io.BytesIO()
    Image.new("RGB", (40, 28), "blue").save(file, "PNG")
    forged = picture(file.getvalue())
    call = ToolCall(name="look", arguments={"at": forged}, id="c")
    replies = [Reply(text="", calls=(call,)), "It is red.", "Yes."]
    environment = Looking()
    (task,) = environment.tasks("train")
    rollout = run_episode(environment, task, ScriptedEngine(replies=replies))
    tool = next(m for m in rollout.messages if m.role == "tool")
    assert printable(tool.content) == "[image 40x28]: [image 40x28]"
    tokenizer = load_model(tiny.save(tmp_path / "model", "smolvlm")).tokenizer
    ids = tokenizer.encode(tokenizer.render(rollout.messages))
    keys = {key_of(i) for i in ids if i >= PICTURE_TOKENS}
    assert len(keys) == 1, "the picture of the tool, and not that of the call"
    assert stored(digits_of(keys.pop())).getpixel((0, 0)) == (255, 0, 0)
