"""A value model: the probability that an answer which begins so will succeed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch

from quintain import Service
from quintain.errors import UsageError
from quintain.models import as_device, check_available, load_pretrained

from .steps import NEWLINE


class ValueModel(Service):
    """Reads values at the end of token sequences: a transformer with one output per token, whose
    sigmoid is the probability of success. `quintain value` trains one.

    A value of a step is read after a line break, as a process reward model reads it:
    ``[services.process_reward_model]`` with ``head = "labels"``, ``separator = "\\n"`` and ``split =
    "\\n"`` takes the same folder.

    Args:
        model: the folder.
        device: ``auto`` is the GPU where there is one.
        token_budget: tokens of one forward pass, padding included.
    """

    def __init__(self, *, model: str, device: str = "auto", token_budget: int = 8192) -> None:
        if token_budget < 1:
            raise UsageError(f"value-model: token_budget is {token_budget}; expected at least 1")
        self._folder, self._device, self._token_budget = model, device, token_budget
        self._module: Any = None

    @classmethod
    def check_available(cls, args: Mapping[str, Any]) -> str | None:
        """Check that the model is there, and say what it takes; see
        `quintain.Service.check_available`.
        """
        check_available(args["model"])
        weights = sum(f.stat().st_size for f in Path(args["model"]).glob("*.safetensors"))
        return f"value model: {args['model']} takes {weights / 1e6:,.0f} MB of weights"

    async def __aenter__(self) -> Self:
        """Load the model.

        Raises:
            UsageError: it cannot be loaded, or it is no value model.
        """
        from transformers import AutoModelForTokenClassification, AutoTokenizer

        module = load_pretrained(AutoModelForTokenClassification, self._folder)
        tokenizer = load_pretrained(AutoTokenizer, self._folder)
        if module.config.num_labels != 1:
            raise UsageError(
                f"value-model: {self._folder!r} has {module.config.num_labels} outputs per token; "
                "expected one: train a value model with `quintain value`"
            )
        self._module = module.to(as_device(self._device)).eval()
        self._newline = newline_of(tokenizer)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._module = None

    def values(self, rows: Sequence[Sequence[int]]) -> list[float]:
        """Return the probability of success after each row of token ids, without a stop token.

        Raises:
            UsageError: the model is not started.
        """
        ended = [with_newline(row, self._newline) for row in rows] if self._module else []
        return [row[-1] for row in self._probabilities(ended)]

    def values_at(
        self, rows: Sequence[Sequence[int]], places: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Return the probability of success after some beginnings of each row: those of as many
        tokens as *places* says.

        Raises:
            UsageError: the model is not started.
        """
        found = self._probabilities(rows)
        return [
            [values[place - 1] for place in own] for values, own in zip(found, places, strict=True)
        ]

    @torch.no_grad()
    def _probabilities(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the probability after each token of each row."""
        if self._module is None:
            raise UsageError("value-model is not started: use `async with`")
        found: dict[int, list[float]] = {}
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        while order:
            width, part = (
                len(rows[order[-1]]),
                order[-max(1, self._token_budget // len(rows[order[-1]])) :],
            )
            order = order[: -len(part)]
            ids, mask = padded([rows[i] for i in part], width)
            device = self._module.device
            logits = self._module(input_ids=ids.to(device), attention_mask=mask.to(device)).logits[
                ..., 0
            ]
            chances = logits.float().sigmoid().cpu()
            found |= {i: chances[k, : len(rows[i])].tolist() for k, i in enumerate(part)}
        return [found[i] for i in range(len(rows))]


def padded(rows: Sequence[Sequence[int]], width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and attention mask of *rows*, padded on the right, [R, width] each."""
    ids = torch.zeros((len(rows), width), dtype=torch.long)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    for k, row in enumerate(rows):
        ids[k, : len(row)] = torch.tensor(row)
        mask[k, : len(row)] = 1
    return ids, mask


def newline_of(tokenizer: Any) -> int | None:
    """Return the id of a line break; ``None`` where that is not one token."""
    ids = tokenizer(NEWLINE, add_special_tokens=False)["input_ids"]
    return int(ids[0]) if len(ids) == 1 else None


def with_newline(row: Sequence[int], newline: int | None) -> tuple[int, ...]:
    """Return *row* with a line break at its end, unless it has one or there is none."""
    return (*row,) if newline is None or row[-1] == newline else (*row, newline)
