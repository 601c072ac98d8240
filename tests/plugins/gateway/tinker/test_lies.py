"""Bodies that lie, and numbers that would spoil the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quintain_gateway.errors import ApiError
from quintain_gateway.tinker.adapters import settings_of
from quintain_gateway.tinker.compute import sample_request_of
from quintain_gateway.tinker.protobuf import number, sized, text
from quintain_gateway.tinker.requests import forward_backward_of

from ....core.models.tiny import save_tiny
from .kit import ADAM, IDS, Client, datum, prompt
from .test_calls import run


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("base"))


def body_of(tensor: bytes) -> bytes:
    one = sized(2, text(1, "weights") + sized(2, tensor))
    return text(1, "m") + number(2, 1) + sized(3, one) + text(4, "cross_entropy")


def sparse(rows: list[int], values: list[float], shape: list[int]) -> dict[str, Any]:
    given = {
        "data": values, "dtype": "float32", "shape": shape, "sparse_crow_indices": rows,
        "sparse_col_indices": [0] * len(values),
    }  # fmt: skip
    return {"model_input": {"chunks": []}, "loss_fn_inputs": {"weights": given}}


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        (number(3, 1) + sized(4, b"\x80" * 64), "has no end"),
        (number(3, 1) + sized(4, b"\xff\xff\x03" * 64), "shape"),
        (number(3, 1) + sized(1, b"abc"), "does not fit"),
        (number(3, 1) + sized(1, b"abcd")[:-2], "longer than the rest"),
    ],
    ids=["endless", "wide", "odd", "short"],
)
def test_a_message_that_lies_is_refused(tensor: bytes, says: str) -> None:
    with pytest.raises(ApiError, match=says):
        forward_backward_of(body_of(tensor), "application/x-protobuf")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ([sparse([0, 2, 0, 2], [1.0, 1.0], [3, 1])], "follow each other"),
        ([sparse([0, 0, 0], [], [2, 1 << 22])] * 3, "cells"),
        ([sparse([], [], [-1, 5])], "shape"),
        ([datum(weights=["1"] * 19)], "no number"),  # type: ignore[list-item]
        ([datum([40.5, *IDS])], "whole number"),  # type: ignore[list-item]
        ([{"loss_fn_inputs": {}}], "KeyError"),
        ([7], "TypeError"),
    ],
)
def test_json_that_lies_is_refused(data: list[Any], says: str) -> None:
    parsed = {"forward_backward_input": {"data": data, "loss_fn": "cross_entropy"}}
    with pytest.raises(ApiError, match=says):
        forward_backward_of(b"", "application/json", parsed)


@pytest.mark.parametrize(
    "wrong", [{"eps": 0.0}, {"beta2": 1.0}, {"learning_rate": float("nan")}, {"other": 1.0},
              {"beta1": None}, {"weight_decay": -1.0}, {"grad_clip_norm": "1"}],
)  # fmt: skip
def test_settings_of_a_step_that_would_spoil_the_weights_are_refused(
    wrong: dict[str, Any],
) -> None:
    with pytest.raises(ApiError, match=next(iter(wrong))):
        settings_of({**ADAM, **wrong})
    assert settings_of(None)["beta2"] == 0.95
    assert settings_of({"grad_clip_norm": -1.0})["grad_clip_norm"] == -1.0  # no clipping


def test_a_gradient_that_is_not_finite_is_refused(base: Path, tmp_path: Path) -> None:
    async def program(_: Any, client: Client) -> None:
        await client.open()
        model = await client.model()
        far = datum(logprobs=[-80.0] * 19, advantages=[1.0] * 19)
        refused = await client.train(model, [far], "importance_sampling")
        assert "gradient is not finite" in refused["error"]
        before = await client.forward(model)
        await client.step(model)
        assert await client.forward(model) == before  # the step had no gradient
        half = datum()
        half["loss_fn_inputs"]["target_tokens"]["data"][3] += 0.5
        assert "target token" in (await client.train(model, [half]))["error"]

    run(base, tmp_path, program)


@pytest.mark.parametrize(
    "params", [{"stop": ""}, {"stop": [[1]]}, {"max_tokens": 0}, {"max_tokens": float("inf")}]
)
def test_settings_of_samples_that_lie_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(ApiError):
        sample_request_of(prompt(params=params), "r", 100)
