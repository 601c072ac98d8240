"""Conversations as token ids: the chat template of the scorer if it has one, without control tokens
in the texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from quintain import Message, Rollout
from quintain.errors import RewardFault, UsageError
from quintain.types import messages_of

Conversation = Sequence[Message]
BETWEEN = "\n\n"
"""Between messages where there is no chat template."""


def conversation_of(rollout: Rollout[Any, Any]) -> tuple[Message, ...]:
    """Return the conversation of the policy's own player; the prompt and the last reply where none
    is recorded.
    """
    if rollout.messages:
        return tuple(rollout.messages)
    return (*messages_of(rollout.task.prompt), Message("assistant", rollout.reply))


def conversation(prompt: str | Conversation, reply: str | Conversation) -> tuple[Message, ...]:
    """Join *prompt* and *reply*, texts or messages, to one conversation."""
    tail = (Message("assistant", reply),) if isinstance(reply, str) else tuple(reply)
    return (*messages_of(prompt), *tail)


class ConversationEncoder:
    """Turns conversations into the token ids that a scorer reads.

    Control tokens inside the texts are broken up by a space, so that a reply cannot end its turn
    and speak as the user. Thoughts are not part of a reply and are left out.

    Args:
        tokenizer: of transformers.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        added = [
            str(token.content) for token in tokenizer.added_tokens_decoder.values() if token.special
        ]
        controls = [
            token for token in {*map(str, tokenizer.all_special_tokens), *added} if len(token) > 1
        ]
        self._control = re.compile(
            "|".join(re.escape(t) for t in sorted(controls, key=len, reverse=True)) or r"(?!)"
        )
        single, double = (tokenizer.num_special_tokens_to_add(pair=pair) for pair in (False, True))
        self._pairs = double > single

    def clean(self, text: str) -> str:
        """Return *text* with its control tokens broken up."""
        return self._control.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)

    def render(self, messages: Conversation) -> str:
        """Return the text of a conversation, by the chat template or with an empty line between
        messages.

        Raises:
            RewardFault: the chat template refuses the conversation.
        """
        if not self.tokenizer.chat_template:
            return BETWEEN.join(self.clean(message.content) for message in messages)
        try:
            text = self.tokenizer.apply_chat_template(
                [self._plain(message) for message in messages],
                tokenize=False,
                add_generation_prompt=False,
            )
        except Exception as error:  # Jinja's errors, and those that a template raises itself
            raise RewardFault(
                f"the chat template of the reward model refuses the conversation: {error}"
            ) from error
        return str(text)

    def encode(self, messages: Conversation) -> list[int]:
        """Return the token ids of a conversation.

        Without a chat template, models that read pairs of texts get all but the last message and
        the last one.

        Raises:
            RewardFault: as `render`.
            UsageError: there is no message.
        """
        if not messages:
            raise UsageError("an empty conversation cannot be scored")
        if self.tokenizer.chat_template:
            ids = self.tokenizer(self.render(messages), add_special_tokens=False, verbose=False)[
                "input_ids"
            ]
        elif self._pairs and len(messages) > 1:
            first, second = self.render(messages[:-1]), self.clean(messages[-1].content)
            ids = self.tokenizer(first, second, truncation=False, verbose=False)["input_ids"]
        else:
            ids = self.tokenizer(self.render(messages), truncation=False, verbose=False)[
                "input_ids"
            ]
        return list(ids)

    def _plain(self, message: Message) -> dict[str, Any]:
        plain: dict[str, Any] = {"role": message.role, "content": self.clean(message.content)}
        if message.calls:
            calls = [{"name": call.name, "arguments": call.arguments} for call in message.calls]
            cleaned = json.loads(self.clean(json.dumps(calls)))
            plain["tool_calls"] = [{"type": "function", "function": call} for call in cleaned]
        if message.name:
            plain["name"] = message.name
        return plain
