"""The token bridge: converts messages to tokens and records the exact sampled tokens.

Sampled tokens are never decoded and encoded again, because another tokenisation of the same text
would have other log-probs. Each turn renders the conversation as text; if the rendering extends the
recorded text, only the new text is encoded and appended. If the template rewrote earlier text, the
transcript branches, unless the tokenizer appends: then the new messages are rendered as what
follows the last turn (`ChatTokenizer.continuation`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...interfaces.tokenizer import ChatTokenizer
from ...interfaces.tools import ToolSpec
from ...types.sampling import Sampling
from ...types.task import Message
from ...types.transcript import Recorder, Sampled, TokenSource, Transcript
from .token_sources import encoded_with_sources

_COPIED = bytes(TokenSource.COPY if s == TokenSource.MODEL else s for s in range(256))


class Conversation:
    """One player's messages and their tokens. Conversations that begin alike may share *first*,
    their first prompt.

    Attributes:
        messages: those added so far, turns as they were sampled.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        tools: Sequence[ToolSpec] = (),
        first: list[Any] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.tools = tuple(tools)
        self._rendered_tools = self.tools
        # what it renders, its text, the tokens of that and their sources
        self._first = [] if first is None else first
        self.messages: list[Message] = []
        self._render = tokenizer.renderer()
        self._rendered = 0
        self._text = ""
        self._recorder = Recorder()
        # after each turn: messages, and characters and tokens of the path
        self._ends: list[tuple[int, int, int]] = []

    def add(self, *messages: Message) -> None:
        self.messages.extend(messages)

    def rewrite(self, messages: Sequence[Message]) -> None:
        """Replace all messages. Where the rendering no longer extends what was recorded, the next
        prompt begins a branch.
        """
        self.messages = list(messages)
        self._rendered = 0
        self._ends = [(len(messages), 0, 0)] * len(self._ends)

    def prompt_ids(self) -> Sequence[int]:
        """Record all new messages; return the ids that the policy continues, as an `array`."""
        if not self._text:
            text, ids, sources = self._first_prompt()
            self._recorder.add(ids, sources)
        else:
            text = self._appended() or self._render(self.messages, self.tools, self._text)
            if text.startswith(self._text):
                # Only what is new is tokenized, so that sampled tokens stay as they are.
                new = self.messages[self._rendered :]
                ids, sources = encoded_with_sources(self.tokenizer, text[len(self._text) :], new)
                self._recorder.add(ids, sources)
            else:
                # The template rewrote earlier text. The old branch keeps the context that its
                # tokens were sampled in; no turn ends at a place of the new one.
                ids, sources = encoded_with_sources(self.tokenizer, text, self.messages)
                self._recorder.branch(ids, sources)
                self._ends = [(messages, 0, 0) for messages, _, _ in self._ends]
        self._text = text
        self._rendered = len(self.messages)
        self._rendered_tools = self.tools
        return self._recorder.ids

    def _first_prompt(self) -> tuple[str, Sequence[int], Sequence[int]]:
        """Return the text of all messages, its tokens and their sources; those of a conversation
        that shares its first prompt and began alike.
        """
        rendered = [self.tokenizer, self.tools, *self.messages]
        if not self._first or self._first[0] != rendered:
            text = self.tokenizer.render(self.messages, self.tools)
            self._first[:] = (
                rendered,
                text,
                *encoded_with_sources(self.tokenizer, text, self.messages),
            )
        _, text, ids, sources = self._first
        return text, ids, sources

    def _appended(self) -> str:
        """Return the recorded text and what the tokenizer writes after it; empty where all has to
        be rendered.
        """
        if not self.tokenizer.appends or self.tools != self._rendered_tools:
            return ""
        messages, _, tokens = self._ends[-1] if self._ends else (0, 0, 0)
        if tokens != len(self._recorder):
            # A prompt stands at the end. It is sampled from again, unless there is more to render.
            return self._text if self._rendered == len(self.messages) else ""
        after = self.tokenizer.continuation(
            self.messages, messages - 1, self.tools, self._recorder.last
        )
        return self._text + after if after else ""

    def add_sampled(self, sampled: Sampled) -> str:
        """Record a turn of the policy; its text, without what ended it."""
        self._recorder.sampled(sampled)
        self._text += self.tokenizer.decode(sampled.ids)
        text = text_without_stop(self.tokenizer, sampled)
        # The message has the raw text, with thoughts and calls, so that the template renders
        # exactly what was sampled.
        self.messages.append(Message("assistant", text))
        self._rendered = len(self.messages)
        self._ends.append((self._rendered, len(self._text), len(self._recorder)))
        return text

    def fork(self, turns: int) -> Conversation:
        """Return a copy of the first *turns* sampled turns; their tokens are not trained in it.

        It begins with the tokens recorded here, unless the template has rewritten them since: then
        all is rendered.
        """
        fork = Conversation(self.tokenizer, self.tools)
        messages, characters, tokens = self._ends[turns - 1] if turns else (0, 0, 0)
        fork.messages = self.messages[:messages]
        if tokens:
            ids, sources = self._recorder.head(tokens)
            fork._recorder.add(ids, sources.translate(_COPIED))
            fork._text = self._text[:characters]
            fork._rendered = messages
        fork._ends = self._ends[:turns]
        return fork

    def transcript(self, policy: str, temperature: float, player: str | None = None) -> Transcript:
        """Return the record so far."""
        return self._recorder.transcript(
            policy=policy, tokenizer=self.tokenizer.name, temperature=temperature, player=player
        )


def text_without_stop(tokenizer: ChatTokenizer, sampled: Sampled) -> str:
    """Return the text of a sampled turn without the stop token or stop string that ended it."""
    ids = sampled.ids
    stop = sampled.stop if sampled.finish == "stop" else None
    if isinstance(stop, int) and ids[-1:] == (stop,):
        ids = ids[:-1]
    text = tokenizer.decode(ids)
    if isinstance(stop, str) and stop:
        # The last token may hold text behind the stop string, which goes with it.
        before, found, _ = text.rpartition(stop)
        text = before if found else text
    return text


def stops(tokenizer: ChatTokenizer, sampling: Sampling) -> Sampling:
    """Return *sampling* with the stop strings and stop ids of *tokenizer* added."""
    return sampling.replace(
        stop=(*sampling.stop, *tokenizer.stops), stop_ids=(*sampling.stop_ids, *tokenizer.stop_ids)
    )
