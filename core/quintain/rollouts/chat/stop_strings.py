"""Stop strings over tokens: the token that completes one. A special token matches as a whole."""

from __future__ import annotations

from collections.abc import Sequence

from ...interfaces.tokenizer import ChatTokenizer

_SLACK = 8
"""Tokens decoded beyond the length of the strings in bytes, since some tokens decode to nothing."""

_PRIVATE = 0xF0000
"""Where Unicode begins to give no character a meaning."""


class StopStrings:
    """The stop strings of a request; falsy where there are none.

    Only a token whose text contains the last character of a stop string can complete it, so most
    tokens cost one look-up.

    Attributes:
        window: at least the number of tokens that a stop string can be spread over.
    """

    def __init__(self, stops: tuple[str, ...], tokenizer: ChatTokenizer) -> None:
        self._stops = tuple(filter(None, stops))
        self._ends = {"\N{REPLACEMENT CHARACTER}", *(s[-1] for s in self._stops)}
        self._tokenizer = tokenizer
        self.window = len("".join(stops).encode()) + _SLACK
        self._may_end: dict[int, bool] = {}

    def __bool__(self) -> bool:
        return bool(self._stops)

    def may_end(self, token: int) -> bool:
        """Return whether *token* could complete a string; parts of a character always could."""
        if token not in self._may_end:
            self._may_end[token] = not self._ends.isdisjoint(self._tokenizer.decode([token]))
        return self._may_end[token]

    def found(self, tokens: Sequence[int]) -> str | None:
        """Return the stop string that the newest of *tokens* completes, the earliest in the text of
        several.

        A string may hold the spelling of a special token, but neither begins nor ends within one.
        """
        if not self.may_end(tokens[-1]):
            return None
        decode = self._tokenizer.decode
        recent = tokens[-self.window :]
        texts = [*self._stops, decode(recent)]
        for place, token in enumerate(recent):
            spelling = decode([token])
            if spelling != decode([token], special=False):
                # as one character, which no other text has, it cannot be cut
                texts = [text.replace(spelling, chr(_PRIVATE + place)) for text in texts]
        *stops, text = texts
        places = [(text.find(s), n) for n, s in enumerate(stops) if s in text]
        return self._stops[min(places)[1]] if places else None
