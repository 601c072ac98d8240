"""What the engines for vLLM make of ids of tokens of pictures, before vLLM is asked."""

from __future__ import annotations

from collections import UserDict
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs quintain[train]")

import torch

from quintain.errors import UsageError
from quintain.models import PICTURE_TOKENS, HFTokenizer, LoadedModel, load_model
from quintain_engines.vllm.base import SyncedEngine
from quintain_engines.vllm.pictures import Pictures, identifier, served, served_name
from quintain_vision import picture
from quintain_vision.tokens import digits_of, key_of

from ....core.models.tiny import byte_tokenizer
from ....pictures import png
from ...vision import tiny


@pytest.fixture(scope="module", autouse=True)
def store(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUINTAIN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return cache(lambda family: load_model(tiny.save(tmp_path_factory.mktemp(family), family)))


def pictures_of(loaded: LoadedModel) -> Pictures:
    found = Pictures.of(loaded.tokenizer, loaded.module.config)
    assert found is not None
    return found


def test_each_picture_is_a_range_of_placeholders(loaded: Any) -> None:
    """Also the same one twice, with nothing between."""
    model = loaded("llava")
    red, blue = (picture(png(colour, (32, 32))) for colour in ("red", "blue"))
    ids = model.tokenizer.encode(f"a{red}b{blue}{blue}c")
    pictures = pictures_of(model)
    first, second, third = pictures.seen(ids)
    assert [(p.start, p.end) for p in (first, second, third)] == [(1, 17), (18, 34), (34, 50)]
    assert first.digits != second.digits == third.digits
    assert all(p.is_whole for p in (first, second, third))
    place = model.tokenizer.hf.convert_tokens_to_ids("<image>")
    plain = pictures.plain(ids)
    assert plain == [place if i >= PICTURE_TOKENS else i for i in ids]
    assert plain.count(place) == 48
    assert pictures.seen(ids[:1]) == []
    assert pictures.plain(ids[:1]) == ids[:1]


def test_text_between_the_tokens_of_a_picture_stays(loaded: Any) -> None:
    model = loaded("idefics3")
    ids = model.tokenizer.encode(picture(png("red", (40, 28))))
    (seen,) = pictures_of(model).seen(ids)
    assert not seen.is_whole
    tokens = [ids[seen.start + offset] for offset in seen.offsets]
    assert tokens == [i for i in ids if i >= PICTURE_TOKENS]
    assert {digits_of(key_of(i)) for i in tokens} == {seen.digits}


def test_a_part_of_a_picture_is_no_prompt(loaded: Any) -> None:
    model = loaded("llava")
    ids = model.tokenizer.encode(picture(png("red", (32, 32))))
    with pytest.raises(ValueError, match="15 tokens of picture"):
        pictures_of(model).seen(ids[:15])


@pytest.mark.parametrize(
    ("family", "reason"), [("gemma3", "see each other"), ("qwen2_vl", "differed by")]
)
def test_a_family_that_vllm_does_not_serve_says_why(loaded: Any, family: str, reason: str) -> None:
    model = loaded(family)
    pictures = pictures_of(model)
    assert pictures.seen([1, 2]) == []  # text is sampled
    ids = model.tokenizer.encode(picture(png("red", (32, 32))))
    with pytest.raises(UsageError, match=rf'{reason}.*engine.use = "embedded"'):
        pictures.seen(ids)


def test_a_model_of_text_refuses_a_picture() -> None:
    tokenizer = HFTokenizer(byte_tokenizer())
    assert Pictures.of(tokenizer, SimpleNamespace(model_type="qwen3")) is None
    engine: Any = SimpleNamespace(_pictures=None, name="vllm")
    assert SyncedEngine._seen(engine, [1, 2]) == []
    with pytest.raises(UsageError, match="sees none"):
        SyncedEngine._seen(engine, [1, PICTURE_TOKENS + 3])


def test_names_of_an_older_vision_tower(loaded: Any) -> None:
    config = loaded("llava").module.config
    weight = "model.vision_tower.encoder.layers.0.mlp.fc1.weight"
    nested = "model.vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight"
    other = "model.language_model.norm.weight"
    assert served_name(config, weight) == served_name(config, nested) == nested
    assert served_name(config, other) == other
    lazy = UserDict({weight: torch.zeros(1), other: torch.ones(1)})
    assert list(served(lazy, config)) == [nested, other]
    assert served(lazy, config)[nested] is lazy[weight]
    assert list(served(dict(lazy), config)) == [nested, other]
    text = SimpleNamespace(model_type="qwen3")
    assert served(lazy, text) is lazy


def test_features_have_the_version_of_the_weights_in_their_name(loaded: Any) -> None:
    model = loaded("llava")
    (seen,) = pictures_of(model).seen(model.tokenizer.encode(picture(png("red", (32, 32)))))
    assert identifier(seen, 1) != identifier(seen, 2)
