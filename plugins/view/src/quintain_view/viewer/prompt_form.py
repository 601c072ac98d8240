"""The form of an environment's prompts: the text that all of them begin and end with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile

SHORTEST = 6
"""Characters; a shorter common text is chance, or punctuation that a user writes as well."""


@dataclass(frozen=True)
class PromptForm:
    """What the prompts of an environment have before and after the question."""

    before: str = ""
    after: str = ""

    @classmethod
    def of(cls, prompts: Iterable[str]) -> PromptForm:
        """Return the common beginning and end of *prompts*, without letters and digits that they
        share by chance.
        """
        texts = sorted(set(prompts))
        if len(texts) < 2:
            return cls()
        before = _common(texts[0], texts[-1])  # of sorted texts, the outer two differ first
        backward = sorted(text[len(before) :][::-1] for text in texts)
        after = _common(backward[0], backward[-1])[::-1]
        while before and before[-1].isalnum():
            before = before[:-1]
        while after and after[0].isalnum():
            after = after[1:]
        return cls(
            before if len(before) >= SHORTEST else "", after if len(after) >= SHORTEST else ""
        )

    def fill(self, text: str) -> str:
        """Return *text* as a prompt of this form; what it has of the form already is not repeated.

        >>> PromptForm(after="=?\\nEnd with ####.").fill("2+2=?")
        '2+2=?\\nEnd with ####.'
        """
        question = text.strip()
        for part, starts in ((self.before, True), (self.after, False)):
            words, wanted = " ".join(question.split()), " ".join(part.split())
            if wanted and starts and words.startswith(wanted):
                question = words[len(wanted) :].lstrip()
            elif wanted and not starts and words.endswith(wanted):
                question = words[: -len(wanted)].rstrip()
        lengths = (n for n in range(len(self.after), 0, -1) if not self.after[n - 1].isspace())
        overlap = next((n for n in lengths if question.endswith(self.after[:n])), 0)
        return f"{self.before}{question}{self.after[overlap:]}"


def _common(a: str, b: str) -> str:
    """Return the longest beginning of both."""
    return "".join(
        x for x, _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))
    )
