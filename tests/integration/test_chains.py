"""Each training takes what each other one made: a run, adapters, an export, a tuned folder."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from quintain.cli import main
from quintain.models.load import load_model

from ..core.models.tiny import save_tiny

LETTERS = f"{Path(__file__).parent / 'letters.py'}:Letters"
SHORT = "--set batch.prompts=2 --set batch.group_size=4 --set sampling.max_tokens=4 "
SHORT += "--set evaluation.test.tasks=0 --set run.steps=1 --set learner.lr=1e-2"
LORA = "--set model.lora.r=2"
STEPS = {
    "train": f"train --env {LETTERS} --model FROM --name TO {SHORT} -q",
    "sft": "sft talks.jsonl --model FROM --out TO --lr 1e-2 --epochs 1 -q",
    "preference": "preference pairs.jsonl --model FROM --out TO --lr 1e-2 --held-out 0 -q",
    "distill": "distill talks.jsonl --model FROM --teacher FROM --out TO --lr 1e-2 -q",
    "reward": "reward train pairs.jsonl --model FROM --out TO --lr 1e-2 --held-out 0 -q",
}
MADE = {
    "run": [f"train --env {LETTERS} --model base --name run {SHORT} -q"],
    "run_lora": [f"train --env {LETTERS} --model base --name run_lora {SHORT} {LORA} -q"],
    "export": ["export run export"],
    "export_lora": ["export run_lora export_lora"],
    **{
        f"{name}{end}": [f"{STEPS[name].replace('FROM', 'base').replace('TO', name + end)} {lora}"]
        for name in ("sft", "preference", "distill")
        for end, lora in (("", ""), ("_lora", LORA))
    },
    "reward": [STEPS["reward"].replace("FROM", "base").replace("TO", "reward")],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with what each command makes of one base."""
    folder = tmp_path_factory.mktemp("chains")
    before = Path.cwd()
    os.chdir(folder)
    save_tiny(folder / "base", context=128)
    pair = {"prompt": "say a", "chosen": "a", "rejected": "b"}
    (folder / "pairs.jsonl").write_text(f"{json.dumps(pair)}\n" * 4)
    talk = [{"role": "user", "content": "say a"}, {"role": "assistant", "content": "a"}]
    (folder / "talks.jsonl").write_text(f"{json.dumps({'messages': talk})}\n" * 4)
    for commands in MADE.values():
        for command in commands:
            assert main(command.split()) == 0, command
    yield folder
    os.chdir(before)


@pytest.mark.more
@pytest.mark.parametrize("maker", MADE)
@pytest.mark.parametrize(
    ("taker", "lora"),
    [(taker, lora) for taker in STEPS for lora in ("", LORA) if not (lora and taker == "reward")],
)
def test_each_training_takes_what_each_other_made(
    place: Path, capsys: pytest.CaptureFixture[str], maker: str, lora: str, taker: str
) -> None:
    to = f"{taker}.of.{maker}{'.lora' if lora else ''}"
    status = main(f"{STEPS[taker].replace('FROM', maker).replace('TO', to)} {lora}".split())
    out, err = capsys.readouterr()

    assert status == 0, err
    assert "Traceback" not in out + err
    if taker in ("sft", "preference", "distill"):
        module = load_model(place / to).module
        assert all(parameter.requires_grad for parameter in module.parameters())
