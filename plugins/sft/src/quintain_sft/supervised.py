"""Supervised training: cross-entropy over the reply tokens of examples, one optimizer step per
batch.

Examples are conversations in which some assistant messages are to be imitated;
`quintain_sft.demonstrations` has those of an environment. `encode_conversation` turns one into
token sequences, `by_epoch` trains on batches of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from quintain import Message, Sampled, ToolSpec
from quintain.errors import UsageError
from quintain.learning import Learner, TrainingSequence
from quintain.models import ChatTokenizer, parse
from quintain.rollouts import Conversation
from quintain.types import derived_seed

Rows = TypeVar("Rows")
WARMUP = 0.03
"""Share of the updates of an SFT run over which the learning rate rises."""


@dataclass(frozen=True, kw_only=True)
class EpochUpdate:
    """One optimizer step of *updates*, in epoch *epoch* (from 1) of *epochs*.

    Attributes:
        number: from 1.
        loss: before the update, of its examples.
        tokens: that trained.
        lr: learning rate after the warm-up factor.
    """

    number: int
    updates: int
    epoch: int
    epochs: int
    loss: float
    tokens: int
    lr: float
    seconds: float


def by_epoch(
    learner: Learner,
    batches: Iterable[Rows],
    step: Callable[[Rows], Mapping[str, float]],
    *,
    lr: Callable[[int], float],
    planned: int,
    epochs: int,
    progress: Callable[[EpochUpdate], None],
    stop: Callable[[], bool],
) -> list[list[EpochUpdate]]:
    """Take one optimizer step of *learner* per batch and return the updates of each epoch.

    Args:
        step: takes the step and returns its metrics.
        lr: the learning rate of an update by its index, from 0; the learner's warm-up scales it.
        planned: number of batches of all epochs together.
        progress: called after each update.
        stop: called before each update; true ends training.

    Raises:
        RunError: a gradient is not finite.
    """
    taken: list[list[EpochUpdate]] = [[] for _ in range(epochs)]
    for index, batch in enumerate(batches):
        if stop():
            break
        learner.lr = lr(index)
        metrics = step(batch)
        epoch = index * epochs // planned
        update = EpochUpdate(
            number=index + 1,
            updates=planned,
            epoch=epoch + 1,
            epochs=epochs,
            loss=metrics["loss"],
            tokens=int(metrics["tokens"]),
            lr=metrics["lr"],
            seconds=metrics["seconds"],
        )
        taken[epoch].append(update)
        progress(update)
    return taken


def losses_of(taken: Iterable[Sequence[EpochUpdate]]) -> tuple[float, ...]:
    """Return the mean loss per token of each epoch that `by_epoch` has begun."""
    return tuple(
        sum(update.loss * update.tokens for update in epoch)
        / sum(update.tokens for update in epoch)
        for epoch in taken
        if epoch
    )


def orders(count: int, *, epochs: int, batch: int, seed: int, purpose: str) -> Iterator[list[int]]:
    """Yield the rows of each update by number: every row once per epoch, in an order that depends
    on *seed*, *purpose* and the epoch alone.
    """
    for epoch in range(epochs):
        order = list(range(count))
        Random(derived_seed(seed, purpose, epoch)).shuffle(order)
        yield from (order[start : start + batch] for start in range(0, count, batch))


def encode_conversation(
    messages: Sequence[Message],
    replies: Collection[int],
    tokenizer: ChatTokenizer,
    end: int,
    tools: Sequence[ToolSpec] = (),
) -> list[TrainingSequence]:
    """Encode each reply in the context in which the policy would sample it; replies and the token
    *end* train.

    Where the chat template rewrites history (drops earlier thoughts, say), the conversation takes
    several sequences.

    Args:
        replies: positions of the assistant messages that train.
        end: the token that ends a reply, see `end_of_turn`.
        tools: those offered. A reply with calls is written as the chat template writes it.
    """
    conversation = Conversation(tokenizer, tools)
    for position, message in enumerate(messages[: max(replies) + 1]):
        if position not in replies:
            conversation.add(message)
            continue
        if message.calls:
            message = Message("assistant", written(message, tokenizer, tools, end))
        thought, reply = split_thought(message.content)
        text = join_thought(thought, reply) if thought else message.content
        if tokenizer.stops and not text[:1].isspace():  # a template in paragraphs: "Assistant: yes"
            text = f" {text}"
        ids = (*tokenizer.encode(text), end)
        conversation.prompt_ids()
        conversation.add_sampled(
            Sampled(
                ids=ids, logps=(0.0,) * len(ids), versions=(-1,) * len(ids), finish="stop", stop=end
            )
        )
    return list(conversation.transcript("", 1.0).sequences())


def written(message: Message, tokenizer: ChatTokenizer, tools: Sequence[ToolSpec], end: int) -> str:
    """Return the text of an assistant's *message* with its tool calls, as the chat template writes
    them.

    Raises:
        UsageError: the template leaves the calls out, or writes them before the reply begins.
    """
    question = Message("user", "?")
    before = tokenizer.render([question], tools)
    after = tokenizer.render([question, message], tools, prompt=False)
    text, ended, _ = after.removeprefix(before).rpartition(tokenizer.decode([end]))
    missing = [call.name for call in message.calls if call.name not in text]
    if not after.startswith(before) or not ended or missing:
        raise UsageError(
            f"the chat template of {tokenizer.name} does not write tool calls behind its prompt, "
            f"so a demonstration that calls {message.calls[0].name!r} cannot train this model"
        )
    return text


def end_of_turn(tokenizer: ChatTokenizer) -> int:
    """Return the token that the chat template puts after an answer; where it has none, the end of
    the text.

    Raises:
        UsageError: the tokenizer has no token that ends anything.
    """
    if not tokenizer.stop_ids:
        raise UsageError(
            f"the tokenizer {tokenizer.name} has no token that ends a text; set its eos_token and "
            f"save it"
        )
    rendered = tokenizer.render([Message("user", "?"), Message("assistant", "x")], prompt=False)
    for stop in tokenizer.stop_ids:
        if f"x{tokenizer.decode([stop])}" in rendered:
            return stop
    return tokenizer.stop_ids[0]


def split_thought(text: str) -> tuple[str, str]:
    """Split a reply into its thought, without the tags and empty where there is none, and the
    rest.
    """
    parsed = parse(text)
    return parsed.reasoning, parsed.reply


def join_thought(thought: str, reply: str) -> str:
    """Write a thought before a reply in the form of Qwen3 (2505.09388, section 4.3)."""
    return f"<think>\n{thought.strip()}\n</think>\n\n{reply}"
