"""vLLM in this process sees the pictures of a prompt as the learner does, after updates, too.

Runs in the environment of `tools/vllm_env.sh`; elsewhere it is skipped.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: bash tools/vllm_env.sh")
pytest.importorskip("torchvision", reason="vLLM's vision-language models need torchvision")

import torch

from quintain import Message, Sampling
from quintain.errors import UsageError
from quintain.learning import ModuleWeights
from quintain.models import PICTURE_TOKENS, LoadedModel, load_model
from quintain.rollouts.chat.bridge import Conversation
from quintain_engines.vllm import CanaryError, UndeliveredError, VLLMEngine, VLLMServer
from quintain_engines.vllm import base as engine_base
from quintain_engines.vllm.pictures import served
from quintain_vision.module import tower_parts

from ...vision import tiny
from ...vision.test_models import question
from .kit import Running, adapters_arrive, plain_logps

pytestmark = [pytest.mark.filterwarnings("default")]  # vLLM's own
FAMILIES = ["llava_next", "idefics3"]


@pytest.fixture(scope="module", autouse=True)
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUINTAIN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


class Seeing(Running):
    """A started engine over a tiny model of a family that sees."""

    def __init__(self, folder: Path, family: str, kind: Any = VLLMEngine, **options: Any) -> None:
        # vLLM on a CPU needs heads of 32 numbers
        self.loaded = load_model(tiny.save(folder, family, hidden=128))
        self.version = 0
        super().__init__(self.loaded.module, kind, tokenizer=self.loaded.tokenizer, **options)

    def exact(self, ids: Sequence[int], *outs: Any) -> None:
        """The log-probs of *outs* are those of the learner's forward."""
        for out in outs:
            assert list(out.logps) == pytest.approx(plain_logps(self.model, ids, out.ids), abs=1e-4)
            assert out.versions == (self.version,) * len(out.ids)

    def publish(self) -> None:
        self.version += 1
        self.do(self.engine.update(ModuleWeights(self.model, self.version)))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seeing]:
    started = Seeing(tmp_path_factory.mktemp("llava"), "llava")
    yield started
    started.close()


def ids_of(loaded: LoadedModel, *seeds: int, text: str = "How many?") -> Sequence[int]:
    """The prompt of one question for each picture of *seeds*."""
    talk = Conversation(loaded.tokenizer)
    for seed in seeds:
        talk.add(question(seed, text))
    return talk.prompt_ids()


def conversation(running: Seeing, seeds: Sequence[int]) -> None:
    """Each turn of a conversation is exact, in a group of three, after questions about the pictures of
    *seeds*. 0 is one without a picture.
    """
    talk = Conversation(running.loaded.tokenizer)
    for seed in seeds:
        talk.add(question(seed) if seed else Message("user", "Say something"))
        ids = talk.prompt_ids()
        outs = running.sample(*((ids, Sampling(seed=s, max_tokens=6)) for s in range(3)))
        running.exact(ids, *outs)
        assert len({out.ids for out in outs}) > 1
        talk.add_sampled(outs[0])


@pytest.mark.parametrize("seeds", [[1], [1, 2], [0, 3, 0], [4, 4]])
def test_log_probs_agree_with_the_learner(running: Seeing, seeds: list[int]) -> None:
    conversation(running, seeds)


def test_two_pictures_in_one_message(running: Seeing) -> None:
    ids = ids_of(running.loaded, 5, 6)
    assert sum(i >= PICTURE_TOKENS for i in ids) == 32
    running.exact(ids, *running.sample((ids, Sampling(seed=1, max_tokens=6))))


def test_another_picture_gives_another_log_prob(running: Seeing) -> None:
    """Of the same tokens, after the same text."""
    one, other = ids_of(running.loaded, 7), ids_of(running.loaded, 8)
    reply = list(running.loaded.tokenizer.encode("three"))
    scores = [
        running.do(running.engine.score([*ids, *reply], len(ids))) for ids in (one, other, one)
    ]
    assert scores[0] == pytest.approx(scores[2], abs=1e-5)
    assert scores[0] == pytest.approx(plain_logps(running.model, one, reply), abs=1e-4)
    assert scores[1] == pytest.approx(plain_logps(running.model, other, reply), abs=1e-4)
    assert abs(scores[0][0] - scores[1][0]) > 1e-2


def test_scores_at_another_temperature(running: Seeing) -> None:
    ids = ids_of(running.loaded, 9)
    reply = list(running.loaded.tokenizer.encode("two"))
    scores = running.do(running.engine.score([*ids, *reply], len(ids), 0.7))
    assert scores == pytest.approx(plain_logps(running.model, ids, reply, 0.7), abs=1e-4)


def test_prefixes_are_shared_where_the_picture_is_the_same(running: Seeing) -> None:
    """A block has 32 tokens. The picture is in the first."""
    text = "How many of them are there, and which of them are the largest? " * 2
    fields = {"max_tokens": 1, "temperature": 1.0, "logprobs": 0, "ignore_eos": True}

    def cached(seed: int) -> int:
        ids = ids_of(running.loaded, seed, text=text)
        found: int = running.do(running.engine._generate(ids, fields)).cached
        return found

    whole = len(ids_of(running.loaded, 10, text=text)) // 32 * 32
    assert whole >= 64
    assert [cached(seed) for seed in (10, 10, 11, 11, 10)] == [0, whole, 0, whole, whole]


def test_stops_and_limits_behind_a_picture(running: Seeing) -> None:
    ids = ids_of(running.loaded, 12)
    (free,) = running.sample((ids, Sampling(seed=3, max_tokens=20)))
    place = next(i for i, token in enumerate(free.ids) if i >= 2 and token not in free.ids[:i])
    stopped, short = running.sample(
        (ids, Sampling(seed=3, max_tokens=20, stop_ids=(free.ids[place],))),
        (ids, Sampling(seed=3, max_tokens=place)),
    )
    assert (stopped.finish, stopped.stop) == ("stop", free.ids[place])
    assert stopped.ids == free.ids[: place + 1]
    assert (short.finish, short.ids) == ("length", free.ids[:place])
    assert all(token < running.engine._vocabulary for token in free.ids)


def test_a_placeholder_that_the_policy_wrote_is_text(running: Seeing) -> None:
    place = running.loaded.tokenizer.hf.convert_tokens_to_ids("<image>")
    ids = [*ids_of(running.loaded, 13), place, 65, *ids_of(running.loaded, 14)]
    running.exact(ids, *running.sample((ids, Sampling(seed=1, max_tokens=6))))


def test_features_are_counted(running: Seeing) -> None:
    """vLLM would leave out what is too much, and say nothing."""
    ids = ids_of(running.loaded, 15)
    running.sample((ids, Sampling(seed=1, max_tokens=1)))
    (seen,) = running.engine._seen(ids)
    assert seen.digits in running.engine._counted
    running.engine._counted.clear()
    fewer = replace(seen, offsets=seen.offsets[:-1])
    with pytest.raises(UsageError, match="16 features of picture .* has 15 tokens"):
        running.do(running.engine._check_features([fewer], running.version))


def test_checksums_cover_all_weights(running: Seeing) -> None:
    """Those of the vision tower and of the projector, too."""
    found = running.do(running.engine._rpc("quintain_weights"))
    tensors = ModuleWeights(running.model, 0).tensors()
    names = set(served(tensors, running.model.config))
    # vLLM cuts the layers of the tower off whose output the model does not take
    unused = {name for name in names if ".layers.1." in name and "vision_tower" in name}
    unused |= {name for name in names if "post_layernorm" in name}
    assert names - unused <= set(found)


def test_an_update_of_the_vision_tower_arrives(running: Seeing) -> None:
    """The features that vLLM has cached are those of older weights."""
    ids = ids_of(running.loaded, 16)
    reply = list(running.loaded.tokenizer.encode("one"))

    def score() -> list[float]:
        scores: list[float] = running.do(running.engine.score([*ids, *reply], len(ids)))
        assert scores == pytest.approx(plain_logps(running.model, ids, reply), abs=1e-4)
        return scores

    before = score()
    for name, part in tower_parts(running.model).items():
        with torch.no_grad():
            for parameter in part.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.05)
        running.publish()
        assert running.engine.differences[-1] < 1e-3
        after = score()
        assert abs(after[0] - before[0]) > 1e-3, name
        running.exact(ids, *running.sample((ids, Sampling(seed=2, max_tokens=6))))
        before = after


def test_a_turn_in_flight_takes_the_new_tower(running: Seeing) -> None:
    """Each token is of the version that it says, and those after the update are of the new weights."""
    running.engine.follow(in_flight_updates=True, recompute_kv=True)
    ids = ids_of(running.loaded, 17)
    sampling = Sampling(seed=5, max_tokens=200, stop_ids=())
    old = running.version

    async def update_between() -> Any:
        turn = asyncio.create_task(running.engine.sample(ids, sampling))
        await asyncio.sleep(0.2)
        with torch.no_grad():
            for part in tower_parts(running.model).values():
                for parameter in part.parameters():
                    parameter.add_(torch.randn_like(parameter) * 0.05)
        running.version += 1
        await running.engine.update(ModuleWeights(running.model, running.version))
        return await turn

    out = running.do(update_between())
    assert set(out.versions) <= {old, running.version}
    if out.versions[-1] != running.version:
        pytest.skip("the turn ended before the update")
    first = out.versions.index(running.version)
    expected = plain_logps(running.model, ids, out.ids)
    assert list(out.logps[first:]) == pytest.approx(expected[first:], abs=1e-4)
    running.engine.follow(in_flight_updates=False, recompute_kv=True)


def without(part: str) -> Callable[[Mapping[str, Any], Any], Mapping[str, Any]]:
    """A transfer that forgets the weights of *part*."""

    def sent(tensors: Mapping[str, Any], config: Any) -> Mapping[str, Any]:
        return {n: t for n, t in served(tensors, config).items() if part not in n}

    return sent


@pytest.mark.parametrize("part", ["vision_tower", "multi_modal_projector"])
def test_a_part_that_is_not_sent_is_found(
    running: Seeing, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """By the checksums, and without them by the canary that has a picture."""

    def step() -> None:
        with torch.no_grad():
            for parameter in tower_parts(running.model)[part].parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)

    with monkeypatch.context() as patch:
        patch.setattr(engine_base, "served", without(part))
        step()
        with pytest.raises(UndeliveredError, match=part):
            running.publish()

        async def none(weights: Any) -> str:
            return ""

        patch.setattr(running.engine, "outdated", none)
        with pytest.raises(CanaryError):
            running.publish()
    running.publish()


@pytest.mark.parametrize("family", FAMILIES)
def test_families(family: str, tmp_path: Path) -> None:
    running = Seeing(tmp_path, family)
    try:
        conversation(running, [1, 0, 2])
        with torch.no_grad():
            for parameter in running.model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.02)
        running.publish()
        conversation(running, [1, 2])
        assert max(running.engine.differences) < 1e-3
    finally:
        running.close()


def test_adapters_of_the_language_model(tmp_path: Path) -> None:
    """They go alone. Those of the tower are refused, since vLLM would leave them out."""
    pytest.importorskip("peft")
    folder = tiny.save(tmp_path, "llava", hidden=128)
    loaded = load_model(folder, lora={"r": 5, "lora_alpha": 7})
    running = Running(loaded.module, tokenizer=loaded.tokenizer, adapters=True)
    try:
        adapters_arrive(running, [*ids_of(loaded, 1)], 1)
        adapters_arrive(running, [*ids_of(loaded, 2)], 2)
    finally:
        running.close()
    everywhere = load_model(folder, lora={"r": 5, "target_modules": ["q_proj"]})
    with pytest.raises(UsageError, match="vision tower or the projector has adapters"):
        VLLMEngine.sharing(everywhere.module, everywhere.tokenizer, adapters=True)


def test_behind_a_server(tmp_path: Path) -> None:
    running = Seeing(tmp_path, "llava", VLLMServer)
    try:
        conversation(running, [1, 0, 2])
        with torch.no_grad():
            for part in tower_parts(running.model).values():
                for parameter in part.parameters():
                    parameter.add_(torch.randn_like(parameter) * 0.05)
        running.publish()
        conversation(running, [1, 2])
        assert all(math.isfinite(d) and d < 1e-3 for d in running.engine.differences)
    finally:
        running.close()


def test_a_server_is_not_told_of_text_between_the_tokens_of_a_picture(tmp_path: Path) -> None:
    loaded = load_model(tiny.save(tmp_path, "idefics3", hidden=128))
    engine = VLLMServer.sharing(loaded.module, loaded.tokenizer)
    seen = engine._seen(ids_of(loaded, 1))
    with pytest.raises(UsageError, match=r'engine.use = "vllm"'):
        engine._features(seen, 0)
