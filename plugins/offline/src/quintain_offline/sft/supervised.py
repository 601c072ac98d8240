"""Supervised training: cross-entropy over the reply tokens of examples, one optimizer step per
batch.

Examples are conversations in which some assistant messages are to be imitated;
`quintain_offline.sft.demonstrations` has those of an environment. `encode_conversation` turns one into
token sequences, `by_epoch` trains on batches of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TypeVar

from quintain import Message, Sampled, ToolSpec
from quintain.errors import UsageError
from quintain.learning import Learner, TrainingSequence
from quintain.models import ChatTokenizer
from quintain.rollouts import Conversation
from quintain.types import derived_seed, split_thought

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
    """Encode each reply in the context in which the policy would sample it, as the chat template
    writes it behind the prompt; replies and the token *end* train.

    Where the template rewrites history (drops earlier thoughts, say), the conversation takes
    several sequences. So it does where the prompt ends otherwise than the template writes this
    reply (the prompt has an empty thought, and the reply a thought): then what both begin with is
    the context.

    Args:
        replies: positions of the assistant messages that train.
        end: the token that ends a reply, see `end_of_turn`.
        tools: those offered. A reply with calls is written as the chat template writes it.

    Raises:
        UsageError: the template writes a reply without its calls, or rewrites the messages before.
    """
    conversation = Conversation(tokenizer, tools)
    history: list[Message] = []
    sequences: list[TrainingSequence] = []
    sampled = False
    for position, message in enumerate(messages[: max(replies) + 1]):
        if position not in replies:
            history.append(message)
            conversation.add(message)
            continue
        prompt = tokenizer.render(history, tools)
        reply, whole = _written(history, prompt, message, tokenizer, tools, end)
        if whole.startswith(prompt):
            ids = (*tokenizer.encode(whole[len(prompt) :]), end)
            conversation.prompt_ids()
            conversation.add_sampled(
                Sampled(
                    ids=ids,
                    logps=(0.0,) * len(ids),
                    versions=(-1,) * len(ids),
                    finish="stop",
                    stop=end,
                )
            )
            # Not the raw text: the template writes the blank or the thought before a reply itself.
            conversation.messages[-1] = reply
            sampled = True
        else:
            sequences.append(_in_its_own_context(history, prompt, whole, tokenizer, tools, end))
            conversation.add(reply)
        history.append(reply)
    if sampled:
        sequences = [*conversation.transcript("", 1.0).sequences(), *sequences]
    return sequences


def _written(
    history: Sequence[Message],
    prompt: str,
    message: Message,
    tokenizer: ChatTokenizer,
    tools: Sequence[ToolSpec],
    end: int,
) -> tuple[Message, str]:
    """Return the assistant's *message* with its thought where the template reads it, and the text
    of the conversation up to the end of it, without the token *end*. *prompt* is that of *history*.

    Raises:
        UsageError: the template leaves calls out.
    """
    closing = tokenizer.decode([end])
    content = message.content
    while closing and content.rstrip().endswith(closing):  # else it would train twice
        content = content.rstrip().removesuffix(closing)
    thought, rest = split_thought(content)
    rest = rest.strip()
    reply = replace(message, content=content)
    if thought or message.reasoning:
        thought = thought or message.reasoning
        reply = replace(message, content=rest, reasoning=thought)
    whole = tokenizer.render([*history, reply], tools, prompt=False)
    if whole.startswith(prompt):
        context = prompt
    else:
        context = _shared(tokenizer.render(history, tools, prompt=False), whole)
    if thought and thought.strip() not in whole[len(context) :]:
        # A template without thoughts takes one for a part of the text.
        reply = replace(message, content=join_thought(thought, rest), reasoning="")
        whole = tokenizer.render([*history, reply], tools, prompt=False)
    if thought and thought.strip() not in whole[len(context) :]:
        # One that never writes thoughts, for none is history. The policy samples them all the same.
        opened = prompt.rstrip().endswith("<think>")
        whole = prompt + (reply.content.removeprefix("<think>\n") if opened else reply.content)
        return reply, whole
    new = whole[len(context) :]
    if missing := [call.name for call in reply.calls if call.name not in new]:
        raise UsageError(
            f"the chat template of {tokenizer.name} does not write tool calls, so a demonstration "
            f"that calls {missing[0]!r} cannot train this model"
        )
    new, ended, behind = new.rpartition(closing)
    if not ended:
        # The template marks no end; what it writes behind the reply is no part of it.
        last = "" if reply.calls else reply.content.strip()
        found = behind.rfind(last)
        new = behind[: found + len(last)] if last and found >= 0 else behind.rstrip()
    return reply, whole[: len(context)] + new


def _in_its_own_context(
    history: Sequence[Message],
    prompt: str,
    whole: str,
    tokenizer: ChatTokenizer,
    tools: Sequence[ToolSpec],
    end: int,
) -> TrainingSequence:
    """Return the tokens of *whole*, which trains from where it leaves *prompt*.

    Raises:
        UsageError: they part before the reply begins.
    """
    common = _shared(prompt, whole)
    if not common.startswith(tokenizer.render(history, tools, prompt=False)):
        raise UsageError(
            f"the chat template of {tokenizer.name} writes the messages before a reply in another "
            "way than before a prompt, so conversations cannot train this model"
        )
    ids, spans = tokenizer.encode_with_offsets(whole)
    mask = [stop > len(common) for _, stop in spans]
    length = len(ids) + 1
    return TrainingSequence(
        ids=(*ids, end),
        mask=(*mask, True),
        logps=(0.0,) * length,
        versions=(-1,) * length,
    )


def _shared(one: str, other: str) -> str:
    """Return what both texts begin with."""
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return one[:index]
    return min(one, other, key=len)


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


def join_thought(thought: str, reply: str) -> str:
    """Write a thought before a reply in the form of Qwen3 (2505.09388, section 4.3)."""
    return f"<think>\n{thought.strip()}\n</think>\n\n{reply}"
