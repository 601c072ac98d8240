"""The model that is grown to see: what it reads while it grows is what it reads as a policy."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from PIL import Image

from quintain import Message, Sampling
from quintain.cli import main
from quintain.engine import EmbeddedEngine
from quintain.evaluation import evaluate
from quintain.models import PICTURE_TOKENS, load_model
from quintain_env_pictures import Bars, Clicking, Counting, Geometry, PictureMaze
from quintain_starter import sight
from quintain_vision import picture


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two updates."""
    return grown(tmp_path_factory.mktemp("sight") / "model", seed=0)


def grown(folder: Path, seed: int) -> Path:
    sight.grow(folder, seed, lambda line: None, tower_updates=1, updates=1)
    return folder


def test_labels_are_those_of_answers_alone() -> None:
    ids, labels, mask = sight.padded([([5, 6, 7], [8, 9]), ([5], [8])], pad=0)
    assert ids.tolist() == [[5, 6, 7, 8, 9], [5, 8, 0, 0, 0]]
    assert labels.tolist() == [[-100, -100, -100, 8, 9], [-100, 8, -100, -100, -100]]
    assert mask.tolist() == [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]


@pytest.mark.parametrize(
    "environment",
    [Counting(), Bars(), Geometry(), Geometry(measure="angle"), Clicking(), PictureMaze()],
    ids=lambda environment: type(environment).__name__,
)
def test_words_of_the_environments_are_one_token_each(environment: Any) -> None:
    words = sight.sight_tokenizer()
    _, question, _ = environment.made(Random(0))
    pieces = question.replace(".", " .").replace("?", " ?").replace(",", " ,").split()
    size = len(words.encode(question))
    digits = sum(character.isdigit() for character in question)
    # digits are one token each, and a blank before one is a token
    assert size <= len(pieces) + 2 * digits + 4


def test_it_grows_on_the_tokens_and_pixels_that_it_meets_as_a_policy(folder: Path) -> None:
    image, question = Counting().draw(Random(1), 3)
    file = io.BytesIO()
    image.save(file, "PNG")
    loaded = load_model(folder)
    prompt = [Message("user", f"{picture(file.getvalue())}\n{question}")]
    ids = loaded.tokenizer.encode(loaded.tokenizer.render(prompt))
    place = loaded.tokenizer.hf.convert_tokens_to_ids(sight.PLACEHOLDER)
    seen = [place if token >= PICTURE_TOKENS else token for token in ids]
    assert seen == sight.encoded(sight.sight_tokenizer(), question, "3")[0]
    digest = prompt[0].content.split()[2][:12]
    pixels = loaded.tokenizer.processor.inputs(digest)["pixel_values"]  # type: ignore[attr-defined]
    ours = sight.image_processor()([image], return_tensors="pt").pixel_values
    torch.testing.assert_close(pixels, ours, rtol=0, atol=0)


def test_it_ends_its_answer_where_a_policy_does(folder: Path) -> None:
    loaded = load_model(folder)
    _, answer = sight.encoded(sight.sight_tokenizer(), "How many?", "12")
    assert answer[-1] in loaded.tokenizer.stop_ids
    assert loaded.tokenizer.decode(answer[:-1]) == "12"


def test_the_same_seed_grows_the_same_bits(folder: Path, tmp_path: Path) -> None:
    again, other = grown(tmp_path / "again", seed=0), grown(tmp_path / "other", seed=1)
    weights = (folder / "model.safetensors").read_bytes()
    assert (again / "model.safetensors").read_bytes() == weights
    assert (other / "model.safetensors").read_bytes() != weights


def test_it_is_grown_once_for_each_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    grew: list[int] = []

    def grow(folder: Path, seed: int, say: Any) -> None:
        grew.append(seed)
        folder.mkdir(parents=True)
        (folder / "quintain.json").write_text("{}")

    monkeypatch.setattr(sight, "grow", grow)
    folders = [sight.grown_once(seed, lambda line: None) for seed in (0, 0, 1)]
    assert grew == [0, 1]
    assert folders[0] == folders[1] != folders[2]


def test_a_dry_run_grows_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = Path(__file__).parents[3] / "examples" / "pictures" / "counting.toml"
    assert main(["train", str(recipe), "--dry-run"]) == 0
    assert sight.GROWN_FIRST in capsys.readouterr().err
    assert not (tmp_path / "cache" / "models").exists()


@pytest.mark.ci
def test_it_answers_from_the_picture(tmp_path: Path) -> None:
    sight.grow(tmp_path / "model", 0, lambda line: None, updates=100)
    loaded = load_model(tmp_path / "model")

    async def accuracy(environment: Any) -> float:
        async with EmbeddedEngine.sharing(loaded.module, loaded.tokenizer) as engine:
            measured = await evaluate(
                environment,
                engine,
                split="test",
                tasks=200,
                sampling=Sampling(temperature=0, max_tokens=4),
            )
        assert measured.accuracy is not None
        return measured.accuracy.value

    assert asyncio.run(accuracy(Counting())) > 0.26
    assert asyncio.run(accuracy(Counting(blind=True))) < 0.25


def test_pictures_of_other_sizes_become_as_many_tokens(folder: Path) -> None:
    loaded = load_model(folder)
    for size in (16, 64, 150):
        file = io.BytesIO()
        Image.new("RGB", (size, size), "red").save(file, "PNG")
        ids = loaded.tokenizer.encode(
            loaded.tokenizer.render([Message("user", picture(file.getvalue()))])
        )
        assert sum(token >= PICTURE_TOKENS for token in ids) == sight.PATCHES
