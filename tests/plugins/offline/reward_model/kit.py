"""Reward models of random weights for the tests of quintain-offline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification

from quintain import Message
from quintain_offline.reward_model import ScoringModel

from ....core.models.tiny import CHATML, byte_tokenizer, tiny_model, with_exact_norms


def scoring_model(
    kind: str = "qwen3",
    *,
    seed: int = 0,
    template: str | None = CHATML,
    dtype: torch.dtype = torch.float32,
    **config: Any,
) -> ScoringModel:
    """A decoder with a head ``score`` of one label, and a tokenizer of bytes."""
    base = tiny_model(kind, seed=seed, **config)
    torch.manual_seed(seed)
    plain = {k: v for k, v in base.config.to_dict().items() if k not in ("id2label", "label2id")}
    module = AutoModelForSequenceClassification.from_config(
        type(base.config).from_dict({**plain, "num_labels": 1})
    )
    module.base_model.load_state_dict(base.base_model.state_dict())
    torch.nn.init.normal_(module.score.weight, 0, 0.5)
    tokenizer = byte_tokenizer(template)
    if dtype == torch.float64:
        module = with_exact_norms(module)
    return ScoringModel(
        module=module.to(dtype).eval(), tokenizer=tokenizer, path="tiny", context=512
    )


def saved(folder: Path, kind: str = "qwen3", **config: Any) -> str:
    """A folder of such a model, as from a hub."""
    model = scoring_model(kind, **config)
    model.module.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    return str(folder)


def said(prompt: str, reply: str) -> tuple[Message, ...]:
    """A conversation of one turn."""
    return (Message("user", prompt), Message("assistant", reply))


def in_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """A test that is a coroutine, in an event loop of its own."""

    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run
