"""Tokens, log-probs and gradients of messages with pictures are those of transformers' own forward."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from quintain import Message, Sampling, ToolCall, ToolSpec
from quintain.cli import main
from quintain.engine import EmbeddedEngine
from quintain.errors import UsageError
from quintain.models import (
    PICTURE,
    PICTURE_TOKENS,
    Forward,
    LoadedModel,
    TokenSequence,
    load_model,
    module_on_paper,
)
from quintain.models.prefix_layout import tree_of
from quintain.rollouts.chat.bridge import Conversation
from quintain.types.transcript import TokenSource, Transcript
from quintain_vision import message, picture
from quintain_vision.grids import axes, positions
from quintain_vision.messages import REFERENCE
from quintain_vision.module import tower_parts
from quintain_vision.source import PictureModel
from quintain_vision.tokenizer import PictureTokenizer
from quintain_vision.tokens import digits_of, key_of

from . import tiny

QWEN = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]
"""Their positions follow the grid of a picture, here four rows of five tokens."""
FAMILIES = ["llava", "llava_next", "idefics3", "smolvlm", *QWEN, "gemma3", "pixtral"]
TOKENS = {
    "llava": 16, "llava_next": 44, "idefics3": 20, "smolvlm": 20, **dict.fromkeys(QWEN, 20),
    "gemma3": 4, "pixtral": 20,
}  # fmt: skip
"""Of a picture of 40 x 28 pixels."""


@pytest.fixture(scope="module", autouse=True)
def store(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUINTAIN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return cache(lambda family: tiny.save(tmp_path_factory.mktemp(family), family))


def png(seed: int, width: int = 40, height: int = 28) -> bytes:
    """A picture of noise."""
    random = Random(seed)
    image = Image.frombytes("RGB", (width, height), random.randbytes(3 * width * height))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def question(seed: int, text: str = "How many?") -> Message:
    return message("user", [{"type": "image", "image": png(seed)}, {"type": "text", "text": text}])


def plain_module(folder: Path) -> Any:
    """The model as transformers loads it, without Quintain."""
    from transformers import AutoModelForImageTextToText

    return AutoModelForImageTextToText.from_pretrained(folder).eval()


def plain_inputs(loaded: LoadedModel, ids: Sequence[int]) -> dict[str, Any]:
    """What transformers' own forward gets for *ids*."""
    tokenizer = loaded.tokenizer
    assert isinstance(tokenizer, PictureTokenizer)
    place = tokenizer.hf.convert_tokens_to_ids(tokenizer.processor.token)
    inputs = {"input_ids": torch.tensor([[place if i >= PICTURE_TOKENS else i for i in ids]])}
    keys = dict.fromkeys(key_of(i) for i in ids if i >= PICTURE_TOKENS)
    made = [tokenizer.processor.inputs(digits_of(key)) for key in keys]
    family = made and loaded.module.config.model_type
    if family in ("gemma3", *QWEN):
        name = "token_type_ids" if family == "gemma3" else "mm_token_type_ids"
        inputs[name] = torch.tensor([[int(i >= PICTURE_TOKENS) for i in ids]])
    # one row for each picture, but all pictures of a sequence in one row for Idefics3
    dim = 1 if family in ("idefics3", "smolvlm") else 0
    for name in made[0] if made else ():
        inputs[name] = torch.cat([one[name] for one in made], dim)
    return inputs


def plain_logps(module: Any, inputs: dict[str, Any], ids: Sequence[int]) -> Tensor:
    """The log-prob of each of *ids* but the first; of pictures, of nothing."""
    logits = module(**inputs, use_cache=False).logits[0, :-1]
    targets = torch.tensor([0 if i >= PICTURE_TOKENS else i for i in ids[1:]])
    return logits.log_softmax(-1).gather(1, targets[:, None])[:, 0]


def conversation_of(
    loaded: LoadedModel, engine: EmbeddedEngine, seeds: Sequence[int]
) -> Transcript:
    """Sample a turn after a question about each picture of *seeds*; 0 is a question without one."""

    async def play() -> Transcript:
        talk = Conversation(loaded.tokenizer)
        async with engine:
            for turn, seed in enumerate(seeds):
                talk.add(question(seed) if seed else Message("user", "Say something"))
                sampling = Sampling(max_tokens=6, seed=turn)
                talk.add_sampled(await engine.sample(talk.prompt_ids(), sampling))
        return talk.transcript("policy", 1.0)

    return asyncio.run(play())


def references(*seeds: int) -> list[str]:
    return [picture(png(seed)) for seed in seeds if seed]


def processor_of(family: str, folder: Path) -> Any:
    """The processor of transformers, over its image processor that needs no torchvision."""
    import transformers

    words = tiny.tokenizer(family)
    if family in ("llava", "llava_next"):
        kind = transformers.LlavaProcessor if family == "llava" else transformers.LlavaNextProcessor
        return kind.from_pretrained(folder, backend="pil")
    images = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    if family == "idefics3":
        return transformers.Idefics3Processor(images, words, image_seq_len=4)
    if family == "gemma3":
        words.boi_token, words.image_token, words.eoi_token = tiny.SPECIAL["gemma"]
        ids = words.convert_tokens_to_ids(tiny.SPECIAL["gemma"])
        words.boi_token_id, words.image_token_id, words.eoi_token_id = ids
        return transformers.Gemma3Processor(images, words, image_seq_length=4)
    kinds = {
        "qwen2_vl": transformers.Qwen2VLProcessor,
        "qwen2_5_vl": transformers.Qwen2_5_VLProcessor,
        "qwen3_vl": transformers.Qwen3VLProcessor,
    }

    class WithoutVideos(kinds[family]):  # type: ignore[misc]
        def check_argument_for_proper_class(self, *_: Any) -> None:
            """Let the processor of videos be missing, which needs torchvision."""

    return WithoutVideos(images, words)


@pytest.mark.keeps("llava", "qwen3_vl", "gemma3")
@pytest.mark.parametrize(
    "family", [name for name in FAMILIES if name not in ("smolvlm", "pixtral")]
)
def test_tokens_are_those_of_the_processor(family: str, folders: Any) -> None:
    loaded = load_model(folders(family))
    words = tiny.tokenizer(family)
    processor = processor_of(family, folders(family))
    parts = [
        {"type": "text", "text": "A "},
        {"type": "image", "image": png(1)},
        {"type": "text", "text": " and "},
        {"type": "image", "image": png(2, 30, 60)},
        {"type": "text", "text": " differ?"},
    ]
    text = loaded.tokenizer.render([message("user", parts)])
    ids = loaded.tokenizer.encode(text)
    spoken = [
        {"role": "user", "content": [{k: v for k, v in p.items() if k != "image"} for p in parts]}
    ]
    prompt = words.apply_chat_template(spoken, tokenize=False, add_generation_prompt=True)
    images = [Image.open(io.BytesIO(png(1))), Image.open(io.BytesIO(png(2, 30, 60)))]
    theirs = processor(
        images=[images] if family in ("idefics3", "gemma3") else images,
        text=[prompt],
        return_tensors="pt",
    )
    ours = plain_inputs(loaded, ids)
    assert ours["input_ids"].tolist() == theirs["input_ids"].tolist()
    for name in set(ours) - {"input_ids"}:
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=0)


def test_pixtral_ends_each_row_of_tokens(folders: Any) -> None:
    """The module of its processor needs torchvision; the text is that of its documentation."""
    tokenizer: Any = load_model(folders("pixtral")).tokenizer
    (digest,) = REFERENCE.findall(picture(png(1)))[0][2:]
    row = "[IMG]" * 5
    expected = "[IMG_BREAK]".join([row] * 4) + "[IMG_END]"
    assert tokenizer.processor.text(digest) == expected
    ids = tokenizer.encode(tokenizer.render([question(1)]))
    begin = next(i for i, token in enumerate(ids) if token >= PICTURE_TOKENS)
    ends = tokenizer.hf.convert_tokens_to_ids(["[IMG_BREAK]"] * 3 + ["[IMG_END]"])
    assert ids[begin + 5 : begin + 24 : 6] == ends


@pytest.mark.keeps("smolvlm")
@pytest.mark.parametrize("family", FAMILIES)
def test_two_pictures_never_match_and_one_is_shared(family: str, folders: Any) -> None:
    tokenizer = load_model(folders(family)).tokenizer
    first, again, other = (
        tokenizer.encode(tokenizer.render([question(seed)])) for seed in (1, 1, 2)
    )
    assert first == again
    assert len(first) == len(other)
    assert [a == b for a, b in zip(first, other, strict=True)] == [
        i < PICTURE_TOKENS for i in first
    ]


@pytest.mark.keeps("llava", "smolvlm")
@pytest.mark.parametrize("family", FAMILIES)
def test_sampled_log_probs_are_those_of_transformers(family: str, folders: Any) -> None:
    loaded = load_model(folders(family))
    engine = EmbeddedEngine.sharing(loaded.module, loaded.tokenizer)
    ways = {"gemma3": "BatchForward", **dict.fromkeys(QWEN, "GridForward")}
    assert engine.path.partition(" ")[0] == ways.get(family, "LayerForward")
    transcript = conversation_of(loaded, engine, [0, 1, 2])
    assert transcript.sampled >= 12
    plain = plain_module(folders(family))
    for sequence in transcript.sequences():
        with torch.no_grad():
            logps = plain_logps(plain, plain_inputs(loaded, sequence.ids), sequence.ids)
        sampled = [i for i, trains in enumerate(sequence.mask) if trains]
        found = torch.tensor([sequence.logps[i] for i in sampled])
        torch.testing.assert_close(found, logps[[i - 1 for i in sampled]], rtol=0, atol=1e-4)


@pytest.mark.keeps("smolvlm")
@pytest.mark.parametrize("family", FAMILIES)
def test_the_tokens_of_a_picture_are_not_trained(family: str, folders: Any) -> None:
    loaded = load_model(folders(family))
    engine = EmbeddedEngine.sharing(loaded.module, loaded.tokenizer)
    sequence = conversation_of(loaded, engine, [1, 2]).sequences()[-1]
    assert sum(i >= PICTURE_TOKENS for i in sequence.ids) == 2 * TOKENS[family]
    assert not any(
        m for i, m in zip(sequence.ids, sequence.mask, strict=True) if i >= PICTURE_TOKENS
    )


def rows_of(loaded: LoadedModel, seeds: Sequence[int]) -> list[TokenSequence]:
    """A group: a prompt with pictures, and replies of several lengths to it."""
    parts: list[Any] = [{"type": "image", "image": png(seed)} for seed in seeds]
    parts.append({"type": "text", "text": "How many?"})
    prompt = loaded.tokenizer.encode(loaded.tokenizer.render([message("user", parts)]))
    rows = []
    for number, length in enumerate((5, 3, 7)):
        reply = loaded.tokenizer.encode("threesome of four"[number : number + length])
        ids = [*prompt, *reply]
        rows.append(TokenSequence(ids, range(len(prompt), len(ids))))
    return rows


def gradients(module: Any) -> dict[str, Tensor]:
    base = module.get_base_model() if hasattr(module, "get_base_model") else module
    return {n: p.grad.clone() for n, p in base.named_parameters() if p.grad is not None}


@pytest.mark.keeps("llava-auto", "smolvlm-auto", "smolvlm-bucketed")
@pytest.mark.parametrize("layout", ["auto", "bucketed"])
@pytest.mark.parametrize("family", FAMILIES)
def test_log_probs_and_gradients_are_those_of_transformers(
    family: str, layout: Any, folders: Any
) -> None:
    loaded = load_model(folders(family))
    groups = [rows_of(loaded, [1]), rows_of(loaded, [2, 1])]
    forward = Forward(loaded.module, layout=layout)
    shares = layout == "auto" and family != "gemma3"
    assert forward.layout == ("shared" if shares else "bucketed")
    logp = forward.statistics(groups).logp
    (logp * torch.arange(1, len(logp) + 1)).sum().backward()

    plain = plain_module(folders(family))
    rows = []
    for group in groups:
        for row in group:
            inputs = plain_inputs(loaded, row.ids)
            rows.append(plain_logps(plain, inputs, row.ids)[[p - 1 for p in row.positions]])
    expected = torch.cat(rows)
    (expected * torch.arange(1, len(expected) + 1)).sum().backward()
    torch.testing.assert_close(logp, expected, rtol=0, atol=1e-4)
    assert_same_gradients(loaded.module, plain)


def assert_same_gradients(module: Any, plain: Any) -> None:
    ours, theirs = gradients(module), gradients(plain)
    assert ours.keys() == theirs.keys()
    assert any("vision" in name or "visual" in name for name in ours)
    for name, gradient in theirs.items():
        scale = float(gradient.abs().max()) + 1
        torch.testing.assert_close(ours[name] / scale, gradient / scale, rtol=0, atol=1e-5)


def logps_of(folder: Path, loaded: LoadedModel, ids: Sequence[int], count: int) -> Tensor:
    """The log-probs of the last *count* of *ids* by transformers' own forward."""
    with torch.no_grad():
        return plain_logps(plain_module(folder), plain_inputs(loaded, ids), ids)[-count:]


def prompt_of(loaded: LoadedModel, *messages: Message) -> list[int]:
    return loaded.tokenizer.encode(loaded.tokenizer.render(messages))


@pytest.mark.parametrize("family", ["qwen2_5_vl"])
def test_positions_are_those_of_transformers(family: str, folders: Any) -> None:
    """For each cut of a row, also inside of a picture."""
    loaded = load_model(folders(family))
    tokenizer: Any = loaded.tokenizer
    ids = prompt_of(loaded, question(1), Message("assistant", "4"), question(2), question(1))
    assert ids.count(ids[4]) == 2  # the same picture twice
    inputs = plain_inputs(loaded, ids)
    inputs["image_grid_thw"] = inputs["image_grid_thw"][[0, 1, 0]]
    del inputs["pixel_values"]
    expected, delta = loaded.module.model.get_rope_index(**inputs)  # type: ignore[union-attr,operator]
    found, shifts = positions(tokenizer.processor, ids)
    torch.testing.assert_close(axes(torch.tensor(found)), expected[:, 0], rtol=0, atol=0)
    assert shifts[-1][1] == int(delta) < 0
    for cut in range(len(ids)):
        before, shifts = positions(tokenizer.processor, ids[:cut])
        offset = shifts[-1][1] if shifts else 0
        behind, _ = positions(tokenizer.processor, ids[cut:], cut, offset)
        assert [*before, *behind] == found


@pytest.mark.keeps("llava", "qwen3_vl")
@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_with_one_picture_are_continued_in_one_batch(
    family: str, folders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows copy a beginning with a picture from another row, of the same prompt or of one that goes
    on otherwise, and passes end inside of a picture.
    """
    monkeypatch.setattr("quintain.engine.embedded.PREFILL_TOKENS", 11)
    loaded = load_model(folders(family))
    engine = EmbeddedEngine.sharing(loaded.module, loaded.tokenizer)
    talks = [
        [question(1, "Count them.")],
        [question(1, "Count them."), Message("assistant", "four"), question(2)],
        [Message("user", "Say something.")],
        [question(1, "Count them."), Message("assistant", "five"), Message("user", "Sure?")],
    ]
    prompts = [prompt_of(loaded, *talk) for talk in talks]

    async def sample() -> list[Any]:
        async with engine:
            first = await engine.sample(prompts[0], Sampling(max_tokens=3, seed=9))
            turns = [
                engine.sample(ids, Sampling(max_tokens=5, seed=i))
                for i, ids in enumerate((*prompts, prompts[1]))
            ]
            found = await asyncio.gather(*turns)
            scored = [*prompts[1], *found[1].ids]
            scores = await asyncio.gather(
                *(engine.score(scored[: len(scored) - i], len(prompts[1])) for i in range(2))
            )
            torch.testing.assert_close(
                torch.tensor(scores[0]), torch.tensor(found[1].logps), rtol=0, atol=1e-4
            )
            assert len(scores[1]) == len(scores[0]) - 1
            return [first, *found]

    found = asyncio.run(sample())
    for ids, turn in zip((prompts[0], *prompts, prompts[1]), found, strict=True):
        expected = logps_of(folders(family), loaded, [*ids, *turn.ids], len(turn.ids))
        torch.testing.assert_close(torch.tensor(turn.logps), expected, rtol=0, atol=1e-4)


@pytest.mark.keeps("qwen3_vl-shared", "qwen3_vl-packed")
@pytest.mark.parametrize(
    ("family", "layout"),
    [
        *((family, "shared") for family in ("smolvlm", *QWEN)),
        # transformers packs no rows of the others
        ("smolvlm", "packed"),
        ("qwen3_vl", "packed"),
    ],
)
def test_rows_that_part_at_several_places_train(family: str, layout: Any, folders: Any) -> None:
    """A tree of turns with pictures, its layers computed again in the backward pass."""
    loaded = load_model(folders(family))
    forward = Forward(loaded.module, layout=layout, checkpointing=True)
    assert forward.layout == layout
    opened = [question(1, "How many red ones are there, and how many of them are small?")]
    later = [*opened, Message("assistant", "four"), question(2, "And how many here, again in all?")]
    talks = [
        [*later, Message("assistant", "two")],
        [*later, Message("assistant", "six"), Message("user", "Sure?")],
        [*opened, Message("assistant", "seven"), Message("user", "Say it again.")],
    ]
    rows = []
    for talk in talks:
        ids = prompt_of(loaded, *talk)
        rows.append(TokenSequence(ids, [len(ids) - 6, len(ids) - 1]))
    assert layout == "packed" or tree_of(rows)
    logp = forward.statistics([rows]).logp
    logp.sum().backward()
    plain = plain_module(folders(family))
    parts = []
    for row in rows:
        logps = plain_logps(plain, plain_inputs(loaded, row.ids), row.ids)
        parts.append(logps[[p - 1 for p in row.positions]])
    expected = torch.cat(parts)
    expected.sum().backward()
    torch.testing.assert_close(logp, expected, rtol=0, atol=1e-4)
    assert_same_gradients(loaded.module, plain)


@pytest.mark.keeps("qwen3_vl-bucketed", "qwen3_vl-packed")
@pytest.mark.parametrize(
    ("family", "layout"),
    [*((name, "bucketed") for name in FAMILIES if name != "gemma3"), ("qwen3_vl", "packed")],
)
def test_a_sampled_placeholder_is_text_in_each_layout(
    family: str, layout: Any, folders: Any
) -> None:
    """It keeps its own embedding, beside a picture, before one, and in a row without one."""
    loaded = load_model(folders(family))
    tokenizer: Any = loaded.tokenizer
    spelled = tokenizer.hf.convert_tokens_to_ids(tokenizer.processor.token)
    assert spelled == loaded.module.config.image_token_id
    opened = prompt_of(loaded, question(1))
    rows = []
    for begin, later in ((opened, prompt_of(loaded, question(2))), (opened, []), ([5, 6], [7])):
        ids = [*begin, spelled, 9, spelled, spelled, *later, 8]
        rows.append(TokenSequence(ids, [*range(len(begin), len(begin) + 4), len(ids) - 1]))
    found = []
    for chosen in ("shared", layout):
        loaded.module.zero_grad()
        forward = Forward(loaded.module, layout=chosen)
        assert forward.layout == chosen
        logp = forward.statistics([rows]).logp
        (logp * torch.arange(1, len(logp) + 1)).sum().backward()
        found.append((logp.detach(), gradients(loaded.module)))
    (expected, theirs), (logp, ours) = found
    torch.testing.assert_close(logp, expected, rtol=0, atol=1e-4)
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        scale = float(gradient.abs().max()) + 1
        torch.testing.assert_close(ours[name] / scale, gradient / scale, rtol=0, atol=1e-5)


@pytest.mark.keeps("llava")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_group_computes_its_picture_once(
    family: str, folders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_model(folders(family))
    tower: Any = next(iter(tower_parts(loaded.module).values()))
    calls = []
    tower.register_forward_hook(lambda *_: calls.append(1))
    engine = EmbeddedEngine.sharing(loaded.module, loaded.tokenizer)
    prompt = loaded.tokenizer.encode(loaded.tokenizer.render([question(3)]))

    async def sample() -> list[Any]:
        async with engine:
            turns = [engine.sample(prompt, Sampling(max_tokens=4, seed=i)) for i in range(4)]
            return await asyncio.gather(*turns)

    asyncio.run(sample())
    assert len(calls) == 1
    forward = Forward(loaded.module)
    rows = [TokenSequence([*prompt, i, i], [len(prompt)]) for i in range(4)]
    with torch.no_grad():  # prox, from the cache
        forward.statistics([rows])
    assert len(calls) == 1
    forward.statistics([rows]).logp.sum().backward()
    assert len(calls) == 2


def test_features_follow_the_weights(folders: Any) -> None:
    loaded = load_model(folders("llava"))
    table: Any = loaded.module.get_input_embeddings()
    ids = torch.tensor(loaded.tokenizer.encode(loaded.tokenizer.render([question(1)])))
    picture_rows = ids >= PICTURE_TOKENS
    with torch.inference_mode():
        before = table(ids)
        assert torch.equal(table(ids), before)
        for part in tower_parts(loaded.module).values():
            for parameter in part.parameters():
                parameter.mul_(1.1)
        after = table(ids)
    assert torch.equal(after[~picture_rows], before[~picture_rows])
    assert not torch.isclose(after[picture_rows], before[picture_rows]).all()


@pytest.mark.keeps("smolvlm")
@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_are_those_of_the_language_model(family: str, folders: Any) -> None:
    loaded = load_model(folders(family), lora={"r": 2, "lora_alpha": 4})
    trained = [name for name, p in loaded.module.named_parameters() if p.requires_grad]
    assert trained
    assert all("language_model" in name or "text_model" in name for name in trained)
    for name, parameter in loaded.module.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    engine = EmbeddedEngine.sharing(loaded.module, loaded.tokenizer)
    assert not engine.shares
    (branch,) = conversation_of(loaded, engine, [1]).branches
    sampled = [i for i, source in enumerate(branch.sources) if source == TokenSource.MODEL]
    forward = Forward(loaded.module)
    logp = forward.statistics([[TokenSequence(branch.ids, sampled)]]).logp
    found = torch.tensor([branch.logps[i] for i in sampled])
    torch.testing.assert_close(found, logp.detach(), rtol=0, atol=1e-4)
    logp.sum().backward()
    assert all((p.grad is not None) == p.requires_grad for _, p in loaded.module.named_parameters())


def test_adapters_of_the_tower_train(folders: Any) -> None:
    """Without them, for the reference, the model is its base, and text alone has a gradient of 0."""
    loaded = load_model(folders("llava"), lora={"r": 2, "target_modules": ["linear_2"]})
    for name, parameter in loaded.module.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    rows, text = [rows_of(loaded, [1])], [rows_of(loaded, [])]
    forward, base = Forward(loaded.module), Forward(load_model(folders("llava")).module)
    module: Any = loaded.module
    with torch.no_grad():
        adapted = forward.statistics(rows).logp
        with module.disable_adapter():
            reference = forward.statistics(rows).logp
        torch.testing.assert_close(reference, base.statistics(rows).logp, rtol=0, atol=1e-5)
        assert torch.equal(forward.statistics(rows).logp, adapted)
        assert float((adapted - reference).abs().max()) > 0.01
    forward.statistics(text).logp.sum().backward()
    assert not any(gradient.any() for gradient in gradients(module).values())
    forward.statistics(rows).logp.sum().backward()
    assert {n.split(".")[-4] for n, g in gradients(module).items() if g.any()} == {"linear_2"}


def test_weights_are_not_left_out(folders: Any) -> None:
    with pytest.raises(UsageError, match="sees pictures, and its weights cannot be left out"):
        load_model(folders("gemma3"), device="meta")


def test_adapters_alone_are_loaded_with_their_base(folders: Any, tmp_path: Path) -> None:
    trained = load_model(folders("smolvlm"), lora={"r": 2, "lora_alpha": 4})
    for name, parameter in trained.module.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    module: Any = trained.module
    module.save_pretrained(tmp_path)
    merged = load_model(tmp_path)
    rows = [rows_of(merged, [1])]
    with torch.no_grad():
        logps = [Forward(one.module).statistics(rows).logp for one in (trained, merged)]
    torch.testing.assert_close(*logps, rtol=0, atol=1e-4)


def request_for(folder: Path) -> Any:
    from quintain.console import Screen
    from quintain.recipe import ModelRequest

    return ModelRequest(
        name="pictures",
        seed=0,
        device="cpu",
        dtype="float32",
        lora=None,
        specs=(),
        services={},
        screen=Screen(),
    )


def test_a_frozen_tower_stays_frozen_when_it_is_loaded_again(folders: Any, tmp_path: Path) -> None:
    source = PictureModel(model=str(folders("llava")), train="language")
    loaded = source.load(request_for(folders("llava")))
    assert_frozen(loaded)
    loaded.module.save_pretrained(tmp_path)
    loaded.tokenizer.hf.save_pretrained(tmp_path)
    again = load_model(tmp_path)
    assert_frozen(again)
    assert_same(loaded, again)
    forward = Forward(loaded.module)
    forward.statistics([rows_of(loaded, [1])]).logp.sum().backward()
    names = gradients(loaded.module).keys()
    assert names
    assert all("language_model" in name or "lm_head" in name for name in names)


def test_a_frozen_tower_stays_frozen_under_adapters_that_are_merged(
    folders: Any, tmp_path: Path
) -> None:
    source = PictureModel(model=str(folders("smolvlm")), train="language")
    frozen = source.load(request_for(folders("smolvlm")))
    frozen.module.save_pretrained(tmp_path / "frozen")
    frozen.tokenizer.hf.save_pretrained(tmp_path / "frozen")
    adapted: Any = load_model(tmp_path / "frozen", lora={"r": 2, "lora_alpha": 4}).module
    adapted.save_pretrained(tmp_path / "adapters")

    merged = load_model(tmp_path / "adapters")

    assert_frozen(merged)
    tower = {id(p) for part in tower_parts(merged.module).values() for p in part.parameters()}
    assert all(p.requires_grad for p in merged.module.parameters() if id(p) not in tower)


def test_an_explicit_all_trains_a_tower_that_was_saved_frozen(folders: Any, tmp_path: Path) -> None:
    folder = folders("llava")
    frozen, saved = tmp_path / "frozen", tmp_path / "saved"
    loaded = PictureModel(model=str(folder), train="language").load(request_for(folder))
    loaded.module.save_pretrained(frozen)
    loaded.tokenizer.hf.save_pretrained(frozen)
    assert_frozen(PictureModel(model=str(frozen)).load(request_for(frozen)))

    source = PictureModel(model=str(frozen), train="all")
    unfrozen = source.load(request_for(frozen))
    assert all(p.requires_grad for p in unfrozen.module.parameters())
    Forward(unfrozen.module).statistics([rows_of(unfrozen, [1])]).logp.sum().backward()
    assert any("vision" in name and g.any() for name, g in gradients(unfrozen.module).items())
    unfrozen.module.save_pretrained(saved)
    unfrozen.tokenizer.hf.save_pretrained(saved)
    assert "quintain_frozen_tower" not in (saved / "config.json").read_text(encoding="utf-8")
    assert all(p.requires_grad for p in load_model(saved).module.parameters())

    adapted = source.load(replace(request_for(frozen), lora={"r": 2, "lora_alpha": 4}))
    trained = [name for name, p in adapted.module.named_parameters() if p.requires_grad]
    assert trained
    assert all("lora_" in name for name in trained)


@pytest.mark.keeps("qwen3_vl", "smolvlm")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_tower_keeps_what_is_estimated(family: str, folders: Any) -> None:
    """What autograd saves of one picture, the weights apart, within a third; the module that tells it
    has no weights.
    """
    loaded = load_model(tiny.save(folders(family).parent / f"{family}-large", family, hidden=64))
    asked = [question(1)]
    paper = module_on_paper(loaded.path, None)
    estimate = paper.bytes_of_pictures(asked)
    (place,) = {key_of(i) for i in ids_of(loaded, asked) if i >= PICTURE_TOKENS}
    own = {p.untyped_storage().data_ptr() for p in loaded.module.parameters()}
    kept: list[Tensor] = []
    table: Any = loaded.module.get_input_embeddings()

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        features = table._computed(place)
    stores = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kept}
    saved = sum(size for place, size in stores.items() if place not in own)

    assert 2 / 3 < estimate.kept / saved < 4 / 3
    assert paper.tokens_of_pictures(asked) == TOKENS[family] == len(features)
    assert estimate.cached > features.nbytes
    assert all(p.is_meta for p in paper.parameters())


def ids_of(loaded: LoadedModel, messages: Sequence[Message]) -> list[int]:
    return loaded.tokenizer.encode(loaded.tokenizer.render(messages))


def test_the_memory_of_a_run_with_pictures_is_estimated(
    folders: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    """Pictures count in the slots of the engine; a frozen tower takes no gradients and keeps
    nothing. The module without weights is made once.
    """
    made = []
    on_paper = PictureModel.on_paper

    def counted(source: Any, *args: Any) -> Any:
        made.append(1)
        return on_paper(source, *args)

    monkeypatch.setattr(PictureModel, "on_paper", counted)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    said = {}
    for train in ("all", "language"):
        made.clear()
        settings = f"model.start.args={{ model = '{folders('llava_next')}', train = '{train}' }}"
        words = ["counting", "--model", "pictures", "--set", settings, "--folder", str(tmp_path)]
        words += ["--set", "sampling.max_tokens=8"]
        assert main(["train", *words, "--dry-run"]) == 0
        said[train] = capsys.readouterr().err
        assert len(made) == 1
        tokens = re.search(r"slots of ([0-9]+) tokens", said[train])
        assert tokens
        assert int(tokens[1]) > 2 * 8 + 512  # those of a text
        assert "  pictures " in said[train]
    module = load_model(folders("llava_next")).module
    language = sum(p.numel() for p in module.parameters())
    for part in tower_parts(module).values():
        language -= sum(p.numel() for p in part.parameters())
    assert f"of {language / 1e6:,.1f}M parameters" in said["language"]


def assert_frozen(loaded: LoadedModel) -> None:
    for part in tower_parts(loaded.module).values():
        assert not any(p.requires_grad for p in part.parameters())
    assert loaded.module.get_input_embeddings().weight.requires_grad


def assert_same(one: LoadedModel, other: LoadedModel) -> None:
    ids = one.tokenizer.encode(one.tokenizer.render([question(1)]))
    assert other.tokenizer.encode(other.tokenizer.render([question(1)])) == ids
    rows = [[TokenSequence(ids, range(len(ids) - 3, len(ids)))]]
    with torch.no_grad():
        logps = [Forward(loaded.module).statistics(rows).logp for loaded in (one, other)]
    assert torch.equal(*logps)


def test_transformers_reads_what_was_saved(folders: Any, tmp_path: Path) -> None:
    loaded = load_model(folders("smolvlm"))
    loaded.module.save_pretrained(tmp_path)
    loaded.tokenizer.hf.save_pretrained(tmp_path)
    assert_same(loaded, load_model(tmp_path))
    saved, original = plain_module(tmp_path), plain_module(folders("smolvlm"))
    assert type(saved) is type(original)
    assert saved.state_dict().keys() == original.state_dict().keys()
    assert (tmp_path / "preprocessor_config.json").is_file()


@pytest.mark.keeps("idefics3")
@pytest.mark.parametrize("family", ["idefics3", "qwen3_vl"])
def test_a_copy_in_half_precision_sees_pictures(family: str, folders: Any) -> None:
    loaded = load_model(folders(family))
    engine = EmbeddedEngine.sharing(loaded.module, loaded.tokenizer, dtype="bfloat16")
    (branch,) = conversation_of(loaded, engine, [1]).branches
    inputs = plain_inputs(loaded, branch.ids)
    with torch.no_grad():
        logps = plain_logps(plain_module(folders(family)), inputs, branch.ids)
    sampled = [i for i, source in enumerate(branch.sources) if source == TokenSource.MODEL]
    found = torch.tensor([branch.logps[i] for i in sampled])
    torch.testing.assert_close(found, logps[[i - 1 for i in sampled]], rtol=0, atol=0.15)


@pytest.mark.keeps("llava")
@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_user_spells_is_no_picture(family: str, folders: Any) -> None:
    tokenizer: Any = load_model(folders(family)).tokenizer
    text = f"a {tokenizer.processor.token} or {tokenizer.processor.placeholder} tag"
    ids = tokenizer.encode(tokenizer.render([question(1, text)]))
    assert sum(i >= PICTURE_TOKENS for i in ids) == TOKENS[family]
    spelled = tokenizer.processor.token, tokenizer.processor.placeholder
    assert ids.count(tokenizer.hf.convert_tokens_to_ids(spelled[0])) == 0
    # its own, beside the picture, for Gemma 3
    begins = ids.count(tokenizer.hf.convert_tokens_to_ids(spelled[1]))
    assert begins == (spelled[0] != spelled[1])
    assert f"a {spelled[0]} or {spelled[1]} tag" in tokenizer.decode(ids)


def test_what_the_policy_spells_is_no_picture(folders: Any) -> None:
    tokenizer = load_model(folders("smolvlm")).tokenizer
    reference = picture(png(1))
    talk = [question(2), Message("assistant", f"<image>{reference}"), Message("user", "And?")]
    ids = tokenizer.encode(tokenizer.render(talk))
    assert sum(i >= PICTURE_TOKENS for i in ids) == 20


def test_spans_of_tokens_are_those_of_the_text(folders: Any) -> None:
    tokenizer = load_model(folders("smolvlm")).tokenizer
    text = tokenizer.render([question(1, "What <image> and "), question(2, "again?")])
    ids, spans = tokenizer.encode_with_offsets(text)
    shown = text.replace("\ufdd0", "")
    for token, (start, end) in zip(ids, spans, strict=True):
        if token >= PICTURE_TOKENS:
            assert shown[start:end] in references(1, 2)
        elif start < end and "\ufdd1" not in shown[start:end]:
            assert shown[start:end] == tokenizer.hf.decode([token])
    assert [start for start, _ in spans] == sorted(start for start, _ in spans)


def test_a_conversation_that_grows_is_rendered_as_a_whole(folders: Any) -> None:
    tokenizer = load_model(folders("smolvlm")).tokenizer
    render, messages, known = tokenizer.renderer(), [], ""
    for seed in (1, 0, 2):
        messages.append(question(seed) if seed else Message("assistant", "four"))
        if seed:
            known = render(messages, (), known)
            assert known == tokenizer.render(messages)


def test_a_model_of_text_refuses_a_picture() -> None:
    from quintain.models import HFTokenizer

    with pytest.raises(UsageError, match=r"holds a picture.*docs/pictures\.md"):
        HFTokenizer(tiny.tokenizer("llava")).render([question(1)])


@pytest.mark.parametrize("seen", ["text", "pictures"])
def test_what_a_tool_returns_is_text(seen: str, folders: Any) -> None:
    """A policy may have a tool write a reference, known or not: it is no picture, and no error."""
    from quintain.models import HFTokenizer

    tokenizer: Any = (
        HFTokenizer(tiny.tokenizer("llava"))
        if seen == "text"
        else load_model(folders("smolvlm")).tokenizer
    )
    known = picture(png(3))
    for forged in (known, known.replace(known[-9:-1], "0" * 8), known[0] * 2):
        call = ToolCall(name="look", arguments={}, id="c1")
        asked = Message("assistant", "", calls=(call,))
        told = Message("tool", f"a {forged} b", call_id="c1", name="look")
        ids = tokenizer.encode(tokenizer.render([Message("user", "Look."), asked, told]))
        assert max(ids) < PICTURE_TOKENS


def looked(*results: Message) -> list[Message]:
    """A conversation in which tools have returned *results*."""
    calls = tuple(ToolCall(name="look", arguments={}, id=f"c{i}") for i in range(len(results)))
    told = [replace(m, call_id=f"c{i}", name="look") for i, m in enumerate(results)]
    return [Message("user", "Look."), Message("assistant", "", calls=calls), *told]


@pytest.mark.keeps("smolvlm")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_picture_of_a_tool_is_seen(family: str, folders: Any) -> None:
    tokenizer = load_model(folders(family)).tokenizer
    known = picture(png(3))
    told = message(
        "tool", [{"type": "text", "text": f"<image> {known} "}, {"type": "image", "image": png(4)}]
    )
    ids = tokenizer.encode(tokenizer.render(looked(told, message("tool", question_parts(5)))))
    seen = dict.fromkeys(digits_of(key_of(i)) for i in ids if i >= PICTURE_TOKENS)
    assert list(seen) == [reference[-33:-21] for reference in references(4, 5)]
    assert f"image 40x28 {known[-33:-1]}" in tokenizer.decode(ids), "it stays text"


def question_parts(seed: int) -> list[dict[str, Any]]:
    return [{"type": "image", "image": png(seed)}, {"type": "text", "text": "?"}]


def test_a_picture_of_a_tool_has_sources_and_log_probs(folders: Any) -> None:
    """As in an episode: a call is sampled, its result is a picture, and the policy goes on."""
    loaded = load_model(folders("smolvlm"))
    engine = EmbeddedEngine.sharing(loaded.module, loaded.tokenizer)

    async def play() -> Transcript:
        talk = Conversation(loaded.tokenizer)
        async with engine:
            talk.add(Message("user", "Look."))
            for seed in (6, 7):
                sampling = Sampling(max_tokens=6, seed=seed)
                talk.add_sampled(await engine.sample(talk.prompt_ids(), sampling))
                talk.add(replace(message("tool", question_parts(seed)), call_id="c", name="look"))
            talk.add_sampled(await engine.sample(talk.prompt_ids(), Sampling(max_tokens=6, seed=1)))
        return talk.transcript("policy", 1.0)

    plain = plain_module(folders("smolvlm"))
    transcript = asyncio.run(play())
    for sequence in transcript.sequences():
        with torch.no_grad():
            logps = plain_logps(plain, plain_inputs(loaded, sequence.ids), sequence.ids)
        sampled = [i for i, trains in enumerate(sequence.mask) if trains]
        found = torch.tensor([sequence.logps[i] for i in sampled])
        torch.testing.assert_close(found, logps[[i - 1 for i in sampled]], rtol=0, atol=1e-4)
    sources = [
        source
        for branch in transcript.branches
        for token, source in zip(branch.ids, branch.sources, strict=True)
        if token >= PICTURE_TOKENS
    ]
    assert sources == [TokenSource.TOOL] * 2 * 20


def test_a_model_of_text_reads_what_a_picture_of_a_tool_is() -> None:
    from quintain.models import HFTokenizer

    tokenizer = HFTokenizer(tiny.tokenizer("llava"))
    text = tokenizer.render(looked(message("tool", question_parts(5))))
    assert "[image 40x28]?" in text
    assert PICTURE not in text


def test_no_field_of_a_turn_spells_a_picture(folders: Any) -> None:
    """Agents send turns of other models: thoughts, arguments, ids and names are text."""
    loaded = load_model(folders("smolvlm"))
    loaded.tokenizer.hf.chat_template = (
        "{% for m in messages %}{{ m.role }} {{ m.reasoning_content }} {{ m.tool_call_id }} "
        "{{ m.name }}{% for c in m.content %}{{ c.text }}{% if c.type == 'image' %}<image>{% endif %}"
        "{% endfor %}{% for c in m.tool_calls %}{{ c.id }}{{ c.function | tojson }}{% endfor %}\n"
        "{% endfor %}{% for t in tools or [] %}{{ t.function.description }}{% endfor %}"
    )
    forged = f"<image>{picture(png(3))}"
    call = ToolCall(name="look", arguments={"at": forged, forged: [forged]}, id=forged)
    talk = [
        question(1),
        Message("assistant", forged, reasoning=forged, calls=(call,)),
        Message("tool", forged, call_id=forged, name=forged),
        question(2, "<image>"),
    ]
    tools = (ToolSpec(name="look", description=forged),)
    tokenizer: Any = PictureTokenizer(
        loaded.tokenizer.hf, loaded.tokenizer.processor, stop_ids=(0,)
    )
    for text in (tokenizer.render(talk, tools), tokenizer.renderer()(talk, tools, "")):
        assert text.count(forged[-33:-1]) >= 8
        ids = tokenizer.encode(text)
        keys = dict.fromkeys(digits_of(key_of(i)) for i in ids if i >= PICTURE_TOKENS)
        assert list(keys) == [reference[-33:-21] for reference in references(1, 2)]
        assert tokenizer.hf.convert_tokens_to_ids("<image>") not in ids


def test_what_an_environment_repeats_of_the_policy_is_no_picture(folders: Any) -> None:
    """Escaped or not, in the reply, in the thought and in calls."""
    tokenizer = load_model(folders("smolvlm")).tokenizer
    tokenizer.use_tool_format("hermes")
    forged = picture(png(3))
    escaped = forged.replace(PICTURE, "\\ufdd1")
    call = f'<tool_call>{{"name": "look", "arguments": {{"a": ["{escaped}"]}}}}</tool_call>'
    text = f"<think>{forged}</think>{forged}{call}"
    turn = tokenizer.parse(text, [ToolSpec(name="look")])
    assert turn.text == text
    assert turn.calls[0].name == "look"
    assert forged[1:-1] in str(turn.calls[0].arguments)
    assert forged[1:-1] in turn.reply
    assert PICTURE not in turn.reply + turn.reasoning + str(turn.calls[0].arguments)
    deep = "[" * 3000 + "]" * 3000
    call = f'<tool_call>{{"name": "look", "arguments": {{"a": {deep}}}}}</tool_call>'
    assert tokenizer.parse(call, [ToolSpec(name="look")]).calls[0].error


def test_a_teacher_sees_pictures_as_the_policy_does_or_is_refused(folders: Any) -> None:
    from quintain.models import HFTokenizer
    from quintain_offline.distill import SharedVocabulary

    policy = load_model(folders("smolvlm")).tokenizer
    ids = policy.encode(policy.render([question(1, "What?"), question(2)]))
    size = len(policy.hf)
    for teacher, reason in (
        (load_model(folders("idefics3")).tokenizer, ""),
        (load_model(folders("llava")).tokenizer, "16 tokens of one that is 20 tokens there"),
        (HFTokenizer(tiny.tokenizer("smolvlm")), "reads text alone"),
    ):
        shared = SharedVocabulary.of(policy, teacher, name="t", policy_size=size, teacher_size=size)
        if reason:
            with pytest.raises(UsageError, match=reason):
                shared.check(ids, policy.decode)
        else:
            shared.check(ids, policy.decode)


def test_a_text_model_is_no_model_of_pictures(tmp_path: Path) -> None:
    from tests.core.models.tiny import save_tiny

    source = PictureModel(model=str(save_tiny(tmp_path)))
    with pytest.raises(UsageError, match="no family that sees pictures"):
        source.load(request_for(tmp_path))


def test_families_that_are_not_known_are_left_to_core() -> None:
    for config in (
        {"model_type": "mistral3", "vision_config": {"model_type": "pixtral"}},
        {"model_type": "llava_onevision", "vision_config": {}},
    ):
        assert PictureModel.family("nowhere", config) is None
