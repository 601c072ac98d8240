"""Scores of conversations by a sequence-classification model of transformers, in batches that
padding cannot change.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from quintain.errors import RewardFault, UsageError

from .conversations import Conversation, ConversationEncoder

STATISTICS = "reward_model.json"
"""The file beside a model that holds `ScoreStatistics`."""
Side = Literal["right", "left"]


@dataclass(frozen=True, kw_only=True)
class ScoreStatistics:
    """Mean and standard deviation (ddof 0) of the scores of a reference set.

    Attributes:
        texts: number of conversations scored.
        reference: what they were, for people.
    """

    mean: float
    std: float
    texts: int
    reference: str = ""

    @classmethod
    def of(cls, scores: Sequence[float], reference: str = "") -> ScoreStatistics:
        """Compute the statistics of *scores*.

        Raises:
            UsageError: there are fewer than two different scores, so that nothing could be divided
                by their spread.
        """
        mean = math.fsum(scores) / max(len(scores), 1)
        std = math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / max(len(scores), 1))
        if not std > 0:
            texts = reference or "the reference set"
            raise UsageError(f"{len(scores)} scores of {texts} do not differ; give other texts")
        return cls(mean=mean, std=std, texts=len(scores), reference=reference)

    @classmethod
    def read(cls, folder: str) -> ScoreStatistics | None:
        """Return the statistics beside the model in *folder*; ``None`` if there are none.

        Raises:
            UsageError: the file is damaged.
        """
        path = Path(folder).expanduser() / STATISTICS
        if not path.is_file():
            return None
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise UsageError(
                f"{path} is damaged: {error}; write it again with `quintain reward check`"
            ) from error

    def write(self, folder: Path) -> None:
        """Write the file beside the model in *folder*."""
        (folder / STATISTICS).write_text(
            json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8"
        )


@dataclass(frozen=True, kw_only=True)
class ScoringModel:
    """A sequence-classification model and its tokenizer.

    Models with a linear head ``score`` on a decoder are pooled here, at the last token of each
    text, which is found by the attention mask: a text that ends in the padding token keeps it, and
    left padding changes nothing. Other architectures pool by themselves.

    Attributes:
        label: index of the logit that is the score.
        context: longest text, in tokens.
        statistics: of a reference set, if the model has any.
    """

    module: Any
    tokenizer: Any
    path: str
    context: int
    label: int = 0
    statistics: ScoreStatistics | None = None

    @property
    def encoder(self) -> ConversationEncoder:
        return ConversationEncoder(self.tokenizer)

    @property
    def example(self) -> str:
        """A reply that the model can score."""
        return "42"

    @property
    def caution(self) -> str:
        """What to know before its scores are used: a decoder without a chat template reads no
        roles; else empty.
        """
        if self.tokenizer.chat_template or not self.pools_here:
            return ""
        return (
            f"{self.path} has no chat template: messages are joined by empty lines, without roles. "
            "If it was trained with a template, its scores mean little; put chat_template.jinja "
            "into its folder"
        )

    @property
    def pools_here(self) -> bool:
        """Whether the module is a decoder with a linear head called ``score``."""
        return isinstance(getattr(self.module, "score", None), torch.nn.Linear)

    def logits(self, rows: Sequence[Sequence[int]], *, side: Side = "right") -> Tensor:
        """Return the scores of token sequences as one batch, in float32 or wider, shape (rows,);
        differentiable.

        Raises:
            UsageError: left padding of a model that pools by itself.
        """
        longest = max(map(len, rows))
        ids = torch.full((len(rows), longest), self.tokenizer.pad_token_id or 0)
        mask = torch.zeros_like(ids)
        for index, row in enumerate(rows):
            place = slice(0, len(row)) if side == "right" else slice(longest - len(row), longest)
            ids[index, place], mask[index, place] = torch.tensor(list(row)), 1
        ids, mask = ids.to(self.module.device), mask.to(self.module.device)
        if not self.pools_here:
            if side == "left":
                raise UsageError(
                    f"{type(self.module).__name__} counts positions from the left; pad it on the "
                    f"right"
                )
            return _wide(self.module(input_ids=ids, attention_mask=mask).logits[:, self.label])
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        hidden = self.module.base_model(
            input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False
        )
        last = mask.shape[1] - 1 - mask.flip(-1).argmax(-1)
        pooled = hidden.last_hidden_state[torch.arange(len(rows), device=mask.device), last]
        head = self.module.score
        bias = None if head.bias is None else _wide(head.bias)
        return torch.nn.functional.linear(_wide(pooled), _wide(head.weight), bias)[:, self.label]

    def scores(
        self, rows: Sequence[Sequence[int]], *, batch: int = 16, side: Side = "right"
    ) -> list[float]:
        """Return the score of each row, in batches of rows of like lengths; they depend on *rows*
        and *batch* alone.
        """
        order = sorted(range(len(rows)), key=lambda at: len(rows[at]))
        values = [0.0] * len(rows)
        with torch.no_grad():
            for start in range(0, len(order), batch):
                chunk = order[start : start + batch]
                for index, value in zip(
                    chunk, self.logits([rows[i] for i in chunk], side=side).tolist(), strict=True
                ):
                    values[index] = value
        return values

    def encode(self, conversation: Conversation, max_length: int = 0) -> list[int]:
        """Return the token ids of a conversation.

        Raises:
            RewardFault: it is longer than *max_length* (0: the context of the model), or the chat
                template refuses it.
        """
        ids = self.encoder.encode(conversation)
        limit = min(max_length or self.context, self.context)
        if len(ids) > limit:
            raise RewardFault(
                f"the conversation has {len(ids)} tokens and the reward model {self.path} reads at "
                f"most {limit}: it has no score. Lower sampling.max_tokens, or use a model with a "
                "longer context"
            )
        if not ids:
            raise RewardFault(
                f"the conversation has no token for the reward model {self.path}; is its tokenizer "
                "beside it (tokenizer.json)?"
            )
        return ids


def _wide(values: Tensor) -> Tensor:
    """Return *values* in float32, or as they are if they are wider."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values
