"""Process reward models: a score for each step of a reply, gathered into one for each turn."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from quintain import Message, Rollout, Service
from quintain.errors import EpisodeError, RewardFault, UsageError

from .conversations import ConversationEncoder, conversation_of
from .failures import checked

Reduction = Literal["min", "mean", "product", "last", "sum"]


@dataclass(frozen=True, kw_only=True)
class MarkedSteps:
    """A conversation as token ids, with the places where scores are read.

    Attributes:
        places: position of the mark after each step, in order.
        steps: number of steps of each turn.
    """

    ids: tuple[int, ...]
    places: tuple[int, ...]
    steps: tuple[int, ...]


class ProcessRewardModel(Service):
    """Scores the steps of the policy's turns with a process reward model (Lightman et al. 2023,
    2305.20050).

    Each step is followed by the token *separator*; the score of the step is read there:

    - ``head = "tokens"``: a language-model head; the probability of *good* against *bad* as the
      next token, as in Math-Shepherd (Wang et al. 2023, 2312.08935), which has the separator "ки"
      and the tokens "+" and "-".
    - ``head = "labels"``: a token-classification head, as in Qwen2.5-Math-PRM (2501.07301) with
      "<extra_0>"; the probability of the label *good*, by default the last one; the sigmoid of the
      logit if there is a single label.

    All turns of a conversation are scored in one pass. Separators that the policy writes itself are
    broken up.

    Args:
        model: folder, or hub id.
        head: ``tokens`` or ``labels``.
        separator: a text that is one token, which follows each step.
        good, bad: texts of one token each; for ``labels`` the name of a label.
        split: text between two steps of a turn; empty: a turn is one step.
        reduce: how the scores of a turn's steps become one: ``min``, ``mean``, ``product``,
            ``last`` or ``sum``.
        offset: subtracted from the score of each turn, so that a bad turn costs something.
        max_length: longest conversation, in tokens; 0 is the context of the model. A longer one is
            a failure.
        dtype, device: of the weights.
    """

    def __init__(
        self,
        *,
        model: str,
        separator: str,
        head: Literal["tokens", "labels"] = "tokens",
        good: str = "",
        bad: str = "",
        split: str = "",
        reduce: Reduction = "min",
        offset: float = 0.0,
        max_length: int = 0,
        dtype: str = "float32",
        device: str = "auto",
    ) -> None:
        """Check the settings.

        Raises:
            UsageError: the head ``tokens`` lacks *good* or *bad*, or there is no separator.
        """
        if not separator or (head == "tokens" and not (good and bad)):
            raise UsageError(
                'process_reward_model: name a separator, and for head = "tokens" the tokens good and bad'
            )
        self.model = model
        self.separator = separator
        self.head = head
        self.good = good
        self.bad = bad
        self.split, self.reduce, self.offset, self.max_length = split, reduce, offset, max_length
        self.dtype, self.device = dtype, device
        self._turn = asyncio.Lock()
        self._module: Any = None

    async def __aenter__(self) -> Self:
        """Load the model, and find the tokens.

        Raises:
            UsageError: the model cannot be loaded, or a text is not one token of it.
        """
        from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

        from .loading import context_of, load_head

        kind: Any = (
            AutoModelForCausalLM if self.head == "tokens" else AutoModelForTokenClassification
        )
        module, tokenizer = load_head(kind, self.model, dtype=self.dtype, device=self.device)
        self._encoder = ConversationEncoder(tokenizer)
        self._separator = self._token(tokenizer, self.separator)
        start = [] if tokenizer.chat_template else tokenizer("x")["input_ids"][:1]
        # templates write it themselves
        self._first = [i for i in start if i == tokenizer.bos_token_id]
        if self.head == "tokens":
            self._labels = [self._token(tokenizer, self.good), self._token(tokenizer, self.bad)]
        else:
            known = {str(text): int(index) for index, text in module.config.id2label.items()}
            if self.good and self.good not in known:
                raise UsageError(
                    f"process_reward_model: {self.model} has no label {self.good!r}; it has "
                    f"{', '.join(known)}"
                )
            self._labels = [known[self.good] if self.good else len(known) - 1]
        context = context_of(module, tokenizer)
        self._limit, self._module = min(self.max_length or context, context), module
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._module = None

    def _token(self, tokenizer: Any, text: str) -> int:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(ids) > 1:  # sentencepiece puts a blank before a text
            ids = [i for i in ids if tokenizer.decode([i]).strip()]
        if len(ids) != 1:
            raise UsageError(
                f"process_reward_model: {text!r} is {len(ids)} tokens of {self.model}; expected one"
            )
        return int(ids[0])

    async def score_all(
        self, rollouts: Sequence[Rollout[Any, Any]]
    ) -> list[tuple[float, ...] | EpisodeError]:
        """Return the score of each turn of the policy's own player, or the failure of the rollout,
        in order.

        Raises:
            UsageError: the service is not started.
        """
        if self._module is None:
            raise UsageError("process_reward_model is not started: use `async with`")
        async with self._turn:
            return await asyncio.to_thread(lambda: [self._scored(rollout) for rollout in rollouts])

    def _scored(self, rollout: Rollout[Any, Any]) -> tuple[float, ...] | EpisodeError:
        try:
            marked = self.marked(rollout)
            scores = self._probabilities(marked)
            turns, offset = [], 0
            for count in marked.steps:
                value = _reduced(scores[offset : offset + count], self.reduce)
                turns.append(checked(value, f"the process reward model {self.model}") - self.offset)
                offset += count
            return tuple(turns)
        except RewardFault as failure:
            return failure

    def marked(self, rollout: Rollout[Any, Any]) -> MarkedSteps:
        """Return the conversation with a mark after each step.

        Raises:
            RewardFault: the conversation lacks a turn of the policy, is too long, or the chat
                template moves its marks.
        """
        messages = list(conversation_of(rollout))
        policy_turns = sum(not turn.player for turn in rollout.turns)
        replies = (
            [i for i, message in enumerate(messages) if message.role == "assistant"][-policy_turns:]
            if policy_turns
            else []
        )
        if len(replies) < policy_turns:
            raise RewardFault(
                f"the conversation has {len(replies)} replies for {policy_turns} turns of the "
                f"policy"
            )
        counts = []
        for index, message in enumerate(messages):
            broken = (
                f"{self.separator[0]} {self.separator[1:]}".rstrip()
                if len(self.separator) > 1
                else ""
            )
            text = message.content.replace(MARK, "")
            if index in replies:
                # split first: the separator may be what ends the steps of the policy anyway
                steps = [s for s in text.split(self.split) if s.strip()] if self.split else [text]
                steps = [s.replace(self.separator, broken) for s in steps]
                counts.append(max(len(steps), 1))
                text = "".join(f"{self._encoder.clean(step)}{MARK}" for step in steps or [""])
            messages[index] = Message(
                message.role, text, calls=message.calls, call_id=message.call_id, name=message.name
            )
        ids, places = list(self._first), []
        *parts, tail = self._encoder.render(messages).split(MARK)
        for part in parts:
            ids += self._ids(part)
            places.append(len(ids))
            ids.append(self._separator)
        ids += self._ids(tail)
        if len(places) != sum(counts):
            raise RewardFault(
                f"the chat template of {self.model} left {len(places)} of {sum(counts)} steps: it "
                f"rewrites turns"
            )
        if len(ids) > self._limit:
            raise RewardFault(
                f"the conversation has {len(ids)} tokens and the process reward model reads at "
                f"most {self._limit}: it has no score. Lower sampling.max_tokens, or use a model "
                "with a longer context"
            )
        return MarkedSteps(ids=tuple(ids), places=tuple(places), steps=tuple(counts))

    def _ids(self, text: str) -> list[int]:
        return list(
            self._encoder.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        )

    def _probabilities(self, marked: MarkedSteps) -> list[float]:
        """Return the probability that each step is good."""
        import torch

        if not marked.places:
            return []
        with torch.no_grad():
            logits = self._module(
                input_ids=torch.tensor([marked.ids], device=self._module.device)
            ).logits[0]
            logits = logits[list(marked.places)].float()
            if self.head == "tokens":
                chances = logits[:, self._labels].softmax(-1)[:, 0]
            elif logits.shape[-1] == 1:
                chances = logits[:, 0].sigmoid()
            else:
                chances = logits.softmax(-1)[:, self._labels[0]]
        return [float(c) for c in chances]


MARK = "\ue000"
"""Stands for the separator until the text is tokens: a character of the private use area, which no
text needs.
"""


def _reduced(scores: Sequence[float], how: Reduction) -> float:
    match how:
        case "min":
            return min(scores)
        case "mean":
            return math.fsum(scores) / len(scores)
        case "product":
            return math.prod(scores)
        case "sum":
            return math.fsum(scores)
        case "last":
            return scores[-1]
