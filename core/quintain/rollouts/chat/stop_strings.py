"""Stop strings over tokens: the token that completes one."""

from __future__ import annotations

from collections.abc import Sequence

from ...interfaces.tokenizer import ChatTokenizer

_SLACK = 8
"""Tokens decoded beyond the length of the string in bytes, since some tokens decode to nothing."""


class StopStrings:
    """The stop strings of a request; falsy where there are none.

    Only a token whose text contains the last character of a stop string can complete it, so most
    tokens cost one look-up.

    Attributes:
        window: number of tokens that a stop string can be spread over.
    """

    def __init__(self, stops: tuple[str, ...], tokenizer: ChatTokenizer) -> None:
        self._stops = tuple(s for s in stops if s)
        self._tokenizer = tokenizer
        self.window = max((len(s.encode()) for s in stops), default=0) + _SLACK
        self._may_end: dict[int, bool] = {}

    def __bool__(self) -> bool:
        return bool(self._stops)

    def may_end(self, token: int) -> bool:
        """Return whether *token* could complete a string; parts of a character always could."""
        if token not in self._may_end:
            text = self._tokenizer.decode([token])
            last_in_text = any(s[-1] in text for s in self._stops)
            self._may_end[token] = last_in_text or "\N{REPLACEMENT CHARACTER}" in text
        return self._may_end[token]

    def found(self, tokens: Sequence[int]) -> str | None:
        """Return the stop string that the newest of *tokens* completes, the earliest in the text of
        several.
        """
        if not self.may_end(tokens[-1]):
            return None
        text = self._tokenizer.decode(tokens[-self.window :])
        places = [(text.find(s), s) for s in self._stops if s in text]
        return min(places)[1] if places else None
