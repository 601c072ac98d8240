"""Reward models of (prompt, picture) pairs: the published architecture against its formulas, what is
learned from rankings, and what a policy's pictures are worth.
"""

from __future__ import annotations

import asyncio
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from PIL import Image

from quintain import Message, Rollout, Task, reward
from quintain.cli import main
from quintain.errors import RewardFault, UsageError
from quintain_offline.reward_model import (
    OverOptimisation,
    RewardModel,
    RewardTraining,
    TrainingSettings,
    load_scoring_model,
    new_picture_model,
    new_scoring_model,
    picture_reward,
    read_pairs,
    split_by_prompt,
)
from quintain_offline.reward_model.image_reward import pixels_of
from quintain_offline.reward_model.training import EncodedPair, pair_gradients
from quintain_vision import picture

from .painted import painted, rankings
from .published import HEAD, SIDE, TEXT, WORDS, expected, published, tensors

PROMPT = "two blue squares, a red cat"


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))


def noise(seed: int, size: tuple[int, int] = (SIDE, SIDE)) -> Image.Image:
    return Image.frombytes("RGB", size, Random(seed).randbytes(3 * size[0] * size[1]))


def stored(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return picture(file.getvalue())


def shown(prompt: str, image: Image.Image) -> tuple[Message, ...]:
    return (Message("user", prompt), Message("assistant", stored(image)))


# ---------------------------------------------------------------- the published architecture
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 3e-7), ("float32", 3e-5)])
def test_a_published_folder_scores_as_its_formulas_say(
    tmp_path: Path, dtype: str, tolerance: float
) -> None:
    model = load_scoring_model(str(published(tmp_path / "ir")), dtype=dtype)
    prompts = (PROMPT, "a circle")
    images = noise(0), noise(1)
    rows = [model.encode(shown(*both)) for both in zip(prompts, images, strict=True)]
    assert [WORDS[token] for token in rows[1][:-1]] == ["[CLS]", "a", "circle", "[SEP]"]

    alone = [expected(tensors(), row[:-1], image) for row, image in zip(rows, images, strict=True)]
    assert model.scores(rows) == pytest.approx(alone, abs=tolerance)
    assert abs(alone[0] - alone[1]) > 0.1


def test_a_published_model_reads_35_tokens_of_a_prompt(tmp_path: Path) -> None:
    model = load_scoring_model(str(published(tmp_path / "ir")))
    row = model.encode(shown("a cat " * 40, noise(0)))
    assert len(row) == 35 + 1
    assert WORDS[row[-2]] == "[SEP]"


def test_pictures_are_resized_at_their_shorter_side_and_cropped_in_the_middle() -> None:
    image = Image.new("RGB", (96, 48), "red")
    image.paste("blue", (24, 0, 72, 48))
    values = pixels_of(image, 48)
    assert values.shape == (3, 48, 48)
    blue = [(value / 255 - m) / s for value, m, s in ((0, 0.48145466, 0.26862954),)]
    assert values[0].unique().tolist() == pytest.approx(blue)
    inside = (..., slice(4, -4))  # the edge of the colours is blurred
    assert torch.equal(pixels_of(image.resize((192, 96)), 48)[inside], values[inside])


def without(name: str) -> Callable[[Any], Any]:
    return lambda made: {key: value for key, value in made.items() if key != name}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("mlp.layers.7.bias"), "head.4.bias"),
        (without("blip.visual_encoder.blocks.1.norm1.bias"), "layer_norm1.bias"),
        (lambda made: {**made, "mlp.layers.0.weight": torch.zeros(HEAD[0], TEXT + 1)}, "head.0"),
        (lambda made: {**made, "other.weight": torch.zeros(1)}, "'other.weight' is none of"),
        (lambda made: {}, "no folder of ImageReward"),
    ],
)
def test_tensors_that_are_missing_or_unknown_are_refused(
    tmp_path: Path, change: Callable[[Any], Any], message: str
) -> None:
    folder = published(tmp_path / "ir", change(tensors()))
    with pytest.raises(UsageError, match=message):
        load_scoring_model(str(folder))


@pytest.mark.parametrize("file", ["ImageReward.pt", "med_config.json"])
def test_a_damaged_file_is_refused(tmp_path: Path, file: str) -> None:
    folder = published(tmp_path / "ir")
    (folder / file).write_bytes(b"PK\3\4 no")
    with pytest.raises(UsageError, match="damaged"):
        load_scoring_model(str(folder))


@pytest.mark.parametrize(
    "change",
    [
        lambda made: {},
        lambda made: [],
        lambda made: without("head")(made),
        lambda made: {**made, "head": 3},
        lambda made: {**made, "vision": {**made["vision"], "hidden_size": "wide"}},
        lambda made: without("mean")(made),
        lambda made: {**made, "words": "many"},
    ],
)
def test_settings_that_are_none_are_refused(tmp_path: Path, change: Callable[[Any], Any]) -> None:
    (tmp_path / "own").mkdir()
    model = new_picture_model(["a cat"], seed=0, side=16, patch=8, width=8)
    model.module.save_pretrained(tmp_path / "own")
    model.tokenizer.save_pretrained(tmp_path / "own")
    load_scoring_model(str(tmp_path / "own"))
    file = tmp_path / "own" / "image_reward.json"
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    with pytest.raises(UsageError, match=r"image_reward\.json"):
        load_scoring_model(str(tmp_path / "own"))


def test_a_pickle_runs_nothing(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    folder = published(tmp_path / "ir", {"mlp": Bomb()})  # type: ignore[dict-item]
    with pytest.raises(UsageError, match="damaged"):
        load_scoring_model(str(folder))
    assert not (tmp_path / "ran").exists()


def test_a_saved_model_scores_the_same(tmp_path: Path) -> None:
    model = new_scoring_model(str(published(tmp_path / "ir")), seed=0)
    (tmp_path / "own").mkdir()
    model.module.save_pretrained(tmp_path / "own")
    model.tokenizer.save_pretrained(tmp_path / "own")
    again = load_scoring_model(str(tmp_path / "own"))
    row = model.encode(shown(PROMPT, noise(0)))
    assert again.encode(shown(PROMPT, noise(0))) == row
    assert again.scores([row]) == model.scores([row])


@pytest.mark.parametrize("pictures", [0, 2])
def test_a_conversation_has_one_picture(tmp_path: Path, pictures: int) -> None:
    model = load_scoring_model(str(published(tmp_path / "ir")))
    message = Message("user", "a cat" + "".join(stored(noise(i)) for i in range(pictures)))
    with pytest.raises(RewardFault, match=f"has {pictures} pictures"):
        model.encode([message])


# ---------------------------------------------------------------- the loss
def test_loss_and_gradient_are_those_of_bradley_and_terry_in_float64(tmp_path: Path) -> None:
    """The loss by `expected` alone, and its derivative by differences of it."""
    made = {k: v.double() if v.is_floating_point() else v for k, v in tensors().items()}
    model = load_scoring_model(str(published(tmp_path / "ir", made)), dtype="float64")
    images = [noise(seed) for seed in range(4)]
    ids = model.encode(shown(PROMPT, images[0]))[:-1]
    encoded = [model.encode(shown(PROMPT, image)) for image in images]
    rows = [EncodedPair(encoded[0], encoded[1], 0.0), EncodedPair(encoded[2], encoded[3], 0.25)]

    def loss(changed: Any) -> float:
        scores = [expected(changed, ids, image) for image in images]
        terms = ((scores[0], scores[1], 0.0), (scores[2], scores[3], 0.25))
        losses = [math.log1p(math.exp(-(c - r - m))) + 0.05 * (c + r) ** 2 for c, r, m in terms]
        return math.fsum(losses) / 2

    value, _ = pair_gradients(model, rows, micro_batch=1, centering=0.05)
    assert value == pytest.approx(loss(made), abs=1e-6)
    for name, own in (
        ("mlp.layers.0.weight", "head.0.weight"),
        (
            "blip.visual_encoder.blocks.0.attn.qkv.weight",
            "vision.encoder.layers.0.self_attn.qkv.weight",
        ),
        (
            "blip.text_encoder.encoder.layer.1.crossattention.self.key.weight",
            "text.encoder.layer.1.crossattention.self.key.weight",
        ),
    ):
        gradient = model.module.get_parameter(own).grad
        at = divmod(int(gradient.abs().argmax()), gradient.shape[1])
        around = []
        for step in (1e-5, -1e-5):
            moved = made[name].clone()
            moved[at] += step
            around.append(loss({**made, name: moved}))
        assert float(gradient[at]) == pytest.approx((around[0] - around[1]) / 2e-5, rel=1e-4)


# ---------------------------------------------------------------- rankings
def written(tmp_path: Path, *rows: Any) -> str:
    for name in "abcd":
        noise(ord(name), (8, 8)).save(tmp_path / f"{name}.png")
    path = tmp_path / "rankings.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_ranking_is_a_pair_for_each_two_that_differ(tmp_path: Path) -> None:
    row = {"prompt": "a cat", "pictures": ["a.png", ["b.png", "c.png"], "d.png"]}
    pairs = read_pairs(written(tmp_path, row))
    names = {stored(noise(ord(name), (8, 8))): name for name in "abcd"}
    found = [names[pair.chosen[1].content] + names[pair.rejected[1].content] for pair in pairs]
    assert found == ["ab", "ac", "ad", "bd", "cd"]
    assert {pair.chosen[0].content for pair in pairs} == {"a cat"}
    assert len({pair.key for pair in pairs}) == 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"prompt": "a", "pictures": ["a.png"]}], "at least 2"),
        ([{"prompt": "a", "pictures": ["a.png", "a.png"]}], "ranked twice"),
        ([{"prompt": "a", "pictures": ["a.png", "x.png"]}], "is no file"),
        ([{"prompt": "a", "pictures": [["a.png", "b.png"]]}], "at least 2"),
        (
            [{"prompt": "a", "pictures": [*"ab"]}, {"prompt": "a", "pictures": [*"ba"]}],
            "the opposite of",
        ),
        ([{"prompt": "", "pictures": ["a.png", "b.png"]}], "prompt"),
    ],
)
def test_rankings_that_say_nothing_are_refused(
    tmp_path: Path, rows: list[Any], message: str
) -> None:
    rows = [
        {**row, "pictures": [f"{p}.png" if p in ("a", "b") else p for p in row["pictures"]]}
        for row in rows
    ]
    with pytest.raises(UsageError, match=message):
        read_pairs(written(tmp_path, *rows))


@pytest.mark.parametrize("way", ["absolute", "up", "link"])
def test_a_ranking_reads_no_file_outside_of_its_folder(tmp_path: Path, way: str) -> None:
    secret, folder = tmp_path / "secret.png", tmp_path / "table"
    noise(0).save(secret)
    folder.mkdir()
    (folder / "link.png").symlink_to(secret)
    name = {"absolute": str(secret), "up": "../secret.png", "link": "link.png"}[way]
    path = written(folder, {"prompt": "a", "pictures": ["a.png", name]})
    with pytest.raises(UsageError, match=r"rankings\.jsonl:1.*is outside of"):
        read_pairs(path)


def test_a_ranking_of_a_data_set_has_no_paths(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    names = []
    for name in "ab":
        noise(ord(name), (8, 8)).save(tmp_path / f"{name}.png")
        names.append(str(tmp_path / f"{name}.png"))
    rows = datasets.Dataset.from_list([{"prompt": "a", "pictures": names}])
    rows.save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(UsageError, match="row 1.*and no paths"):
        read_pairs(str(tmp_path / "saved"))


# ---------------------------------------------------------------- what is learned
def trained(folder: Path, seed: int, count: int = 100, epochs: int = 4) -> RewardTraining:
    pairs = read_pairs(str(rankings(folder, count, seed=seed)))
    parts = split_by_prompt(pairs, 0.25, 0)
    prompts = [pair.chosen[0].content for pair in pairs]
    return RewardTraining(
        model=new_picture_model(prompts, seed=seed, side=32, patch=8, width=48),
        pairs=parts[0],
        held_out=parts[1],
        settings=TrainingSettings(epochs=epochs, lr=3e-3, batch=16, seed=seed),
    )


def test_a_small_model_learns_which_colour_a_prompt_asks_for(tmp_path: Path) -> None:
    """The prompts of the held-out pairs are new, and their words are not."""
    training = trained(tmp_path / "data", seed=0)
    report = training.run()
    assert report.before is not None
    assert report.held_out is not None
    assert report.before.low < 0.5 < report.before.high
    assert report.held_out.low > 0.55
    assert report.held_out.accuracy > 0.9
    assert report.losses[-1] < 0.3 < report.losses[0]


# ---------------------------------------------------------------- rewards
def episode(result: str, prompt: str = PROMPT) -> Rollout[Task, str]:
    return Rollout(task=Task(prompt=prompt), result=result)


@reward
def drawn(rollout: Rollout[Any, Any]) -> float:
    """A gold reward of the test."""
    return float(bool(rollout.result))


def test_a_picture_is_worth_its_probability_of_being_preferred(tmp_path: Path) -> None:
    names = [str(published(tmp_path / str(seed), tensors(seed))) for seed in (0, 1)]

    async def scored() -> list[Any]:
        async with RewardModel(models=names, penalty=0.5) as model:
            return [
                await picture_reward.ascore(episode(result), reward_model=model)
                for result in (stored(noise(0)), "")
            ]

    good, none = asyncio.run(scored())
    ids = load_scoring_model(names[0]).encode(shown(PROMPT, noise(0)))[:-1]
    scores = [expected(tensors(seed), ids, noise(0)) for seed in (0, 1)]
    mean, std = sum(scores) / 2, abs(scores[0] - scores[1]) / 2
    assert good.total == pytest.approx(1 / (1 + math.exp(-(mean - 0.5 * std))), abs=1e-5)
    assert good.parts["picture_reward.std"] == pytest.approx(std, abs=1e-4)
    assert (none.total, none.reason) == (0, "the episode returned no picture")


def test_a_result_that_is_no_picture_is_a_failure_and_no_score(tmp_path: Path) -> None:
    async def scored() -> None:
        async with RewardModel(model=str(published(tmp_path / "ir"))) as model:
            await picture_reward.ascore(episode("a red cat"), reward_model=model)

    with pytest.raises(RewardFault, match="has 0 pictures"):
        asyncio.run(scored())


def test_the_monitor_sees_the_pictures_of_evaluations(tmp_path: Path) -> None:
    async def row() -> Any:
        gold = f'use("{__name__}:drawn")'
        async with (
            RewardModel(model=str(published(tmp_path / "ir"))) as model,
            OverOptimisation(gold=gold, learner=None) as monitor,
        ):
            for result in (stored(noise(0)), ""):
                services = {"reward_model": model, "overoptimisation": monitor}
                score = await picture_reward.ascore(
                    episode(result, f"a cat {len(result)}"), **services
                )
            assert monitor.close(0, "dev", "drawing")
            return monitor.rows[0], score

    (found, _) = asyncio.run(row())
    assert found["gold"] == 0.5
    assert 0 < found["proxy"] < 0.5
    assert found["rollouts"] == 2


# ---------------------------------------------------------------- the command
@pytest.mark.slow
def test_the_command_trains_and_measures_on_rankings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, new = (
        str(rankings(tmp_path / name, 120, seed=seed)) for name, seed in (("a", 0), ("b", 9))
    )
    out = str(tmp_path / "rm")
    command = ["reward", "train", path, "-m", "default", "-o", out, "--lr", "2e-3", "--batch", "16"]
    assert main([*command, "--epochs", "4", "--json"]) == 0
    capsys.readouterr()
    assert main(["reward", "check", out, new, "--normalise", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["accuracy"] > 0.9
    assert report["left_out"] == 0
    assert load_scoring_model(out).statistics is not None
    drawn = [picture(painted(Random(0), colour, "circle")) for colour in ("red", "blue")]
    model = load_scoring_model(out)
    rows = [model.encode([Message("user", f"a nice red circle{image}")]) for image in drawn]
    right, wrong = model.scores(rows)
    assert right > wrong
