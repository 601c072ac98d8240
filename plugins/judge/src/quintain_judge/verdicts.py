"""Forms of verdicts: the JSON schema that a judge is held to, and a reader that accepts nothing
else.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any, Literal

from quintain import InfrastructureError, Judgement
from quintain.errors import UsageError

_FENCE = re.compile(r"\A```[ \t]*(?:json)?[ \t]*\r?\n(.*)\n```\Z", re.DOTALL | re.IGNORECASE)
_BACKSLASH = re.compile(r"(\\(?:[\"\\/bfnrt]|u[0-9a-fA-F]{4}))|\\")
_END_OF_THOUGHT = "</think>"
LONGEST_REASON = 2000
"""Characters of a reason that are kept."""


class UnreadableVerdict(InfrastructureError):
    """A judge's reply is not the verdict that was asked for. It is retried, then the rollout is
    masked: never a 0.

    *tokens*: of the prompt and of the reply, where the server counted them; they are paid for.
    """

    tokens: tuple[int, int] = (0, 0)


class Form(ABC):
    """What a verdict looks like."""

    key: str = "score"
    """The key of the verdict beside ``reason``."""
    reasons: bool = True
    """Whether the judge gives a reason first."""

    @abstractmethod
    def value_schema(self) -> Mapping[str, Any]:
        """Return the JSON schema of the verdict itself."""

    @abstractmethod
    def instruction(self) -> str:
        """Return what the judge is told about the verdict."""

    @abstractmethod
    def value(self, raw: Any) -> Any:
        """Return the verdict of the JSON value *raw*.

        Raises:
            UnreadableVerdict: another type, or out of range.
        """

    @property
    def choices(self) -> tuple[str, ...]:
        """All verdicts as text, where they are few; engines without constrained decoding compare
        their likelihoods.
        """
        return ()

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the whole reply: a reason first, so that the verdict follows
        from it.
        """
        reason = {"reason": {"type": "string"}} if self.reasons else {}
        return {
            "type": "object",
            "properties": {**reason, self.key: dict(self.value_schema())},
            "required": [*reason, self.key],
            "additionalProperties": False,
        }

    def example(self) -> str:
        """Return what the judge is shown of the whole reply."""
        reason = '"reason": one or two sentences, ' if self.reasons else ""
        return f'{{{reason}"{self.key}": {self.instruction()}}}'

    def read(self, text: str) -> tuple[Any, str]:
        """Return the verdict and the reason in a judge's reply: one JSON object, alone, in one code
        fence or after a thought. A line break or a command of LaTeX in a text is read as it is meant,
        although JSON escapes both.

        Raises:
            UnreadableVerdict: other text around it, another key, a key twice, another type, or out
                of range.
        """
        data = _json(text)
        if (
            not isinstance(data, dict)
            or self.key not in data
            or not set(data) <= {"reason", self.key}
        ):
            raise UnreadableVerdict(
                f"the judge answered {_start(text)}; expected the keys reason and {self.key}"
            )
        reason = data.get("reason", "")
        if not isinstance(reason, str):
            raise UnreadableVerdict(f"the judge's reason is no text: {_start(text)}")
        return self.value(data[self.key]), " ".join(reason.split())[:LONGEST_REASON]


@dataclass(frozen=True)
class Scale(Form):
    """A whole number from *low* to *high*."""

    low: int = 0
    high: int = 2
    key: str = "score"
    reasons: bool = True

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise UsageError(f"a scale from {self.low} to {self.high}; expected low < high")

    @property
    def choices(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.low, self.high + 1))) if self.high - self.low < 10 else ()

    def value_schema(self) -> Mapping[str, Any]:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}

    def instruction(self) -> str:
        return f"a whole number from {self.low} (not met at all) to {self.high} (fully met)"

    def value(self, raw: Any) -> float:
        """Return the score as a share of the scale, in [0, 1]."""
        if type(raw) is float and raw.is_integer():
            raw = int(raw)
        if type(raw) is not int or not self.low <= raw <= self.high:
            raise UnreadableVerdict(
                f"the judge's score is {raw!r}; expected a whole number {self.low} to {self.high}"
            )
        return (raw - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class Levels(Form):
    """One of several described *levels*, by its number; each has its score from 0 to 1."""

    levels: tuple[tuple[str, float], ...]
    key: str = "level"

    @property
    def choices(self) -> tuple[str, ...]:
        return tuple(map(str, range(len(self.levels))))

    def value_schema(self) -> Mapping[str, Any]:
        return {"type": "integer", "minimum": 0, "maximum": len(self.levels) - 1}

    def instruction(self) -> str:
        described = "; ".join(
            f"{number} if: {text}" for number, (text, _) in enumerate(self.levels)
        )
        return f"the number of the level that fits best ({described})"

    def value(self, raw: Any) -> float:
        """Return the score of the level, in [0, 1]."""
        if type(raw) is not int or not 0 <= raw < len(self.levels):
            raise UnreadableVerdict(
                f"the judge's level is {raw!r}; expected a number 0 to {len(self.levels) - 1}"
            )
        return self.levels[raw][1]


@dataclass(frozen=True)
class SingleLabel(Form):
    """Exactly one of *labels*."""

    labels: tuple[str, ...]
    meaning: str = ""
    key: str = "verdict"

    @property
    def choices(self) -> tuple[str, ...]:
        return self.labels

    def value_schema(self) -> Mapping[str, Any]:
        return {"type": "string", "enum": list(self.labels)}

    def instruction(self) -> str:
        return f"one of {', '.join(json.dumps(label) for label in self.labels)}" + (
            self.meaning and f": {self.meaning}"
        )

    def value(self, raw: Any) -> str:
        label = raw.strip() if isinstance(raw, str) else raw
        if label not in self.labels:
            raise UnreadableVerdict(
                f"the judge's verdict is {_start(raw)}; expected one of {', '.join(self.labels)}"
            )
        return str(label)


@dataclass(frozen=True)
class Ranking(Form):
    """All of *labels*, best first; each exactly once."""

    labels: tuple[str, ...]
    key: str = "ranking"

    def value_schema(self) -> Mapping[str, Any]:
        size = len(self.labels)
        items = {"type": "string", "enum": list(self.labels)}
        return {"type": "array", "items": items, "minItems": size, "maxItems": size}

    def instruction(self) -> str:
        return f"the list of all labels ({', '.join(self.labels)}), best first, each exactly once"

    def value(self, raw: Any) -> tuple[str, ...]:
        given = [str(label).strip() for label in raw] if isinstance(raw, list) else []
        if sorted(given) != sorted(self.labels):
            raise UnreadableVerdict(
                f"the judge's ranking is {_start(raw)}; expected each of {', '.join(self.labels)} "
                f"once"
            )
        return tuple(given)  # labels are numbers, and so judges may write them


@dataclass(frozen=True)
class Texts(Form):
    """A list of at most *most* objects with the text fields *fields*; for judges that write
    criteria.
    """

    fields: tuple[str, ...]
    most: int
    key: str = "items"

    def value_schema(self) -> Mapping[str, Any]:
        fields = {name: {"type": "string"} for name in self.fields}
        entry = {
            "type": "object",
            "properties": fields,
            "required": list(self.fields),
            "additionalProperties": False,
        }
        return {"type": "array", "items": entry, "maxItems": self.most}

    def instruction(self) -> str:
        return (
            f"a list of at most {self.most} objects with the keys {', '.join(self.fields)}; it may "
            f"be empty"
        )

    def value(self, raw: Any) -> tuple[Mapping[str, str], ...]:
        if not isinstance(raw, list) or len(raw) > self.most:
            raise UnreadableVerdict(
                f"expected a list of at most {self.most} objects, got {_start(raw)}"
            )
        for entry in raw:
            if not isinstance(entry, dict) or set(entry) != set(self.fields):
                raise UnreadableVerdict(
                    f"an entry is {_start(entry)}; expected the keys {', '.join(self.fields)}"
                )
            if not all(isinstance(value, str) and value.strip() for value in entry.values()):
                raise UnreadableVerdict(
                    f"an entry is {_start(entry)}; expected text that is not empty"
                )
        return tuple(raw)


def _json(text: str) -> Any:
    """Return the JSON value of a judge's reply.

    Raises:
        UnreadableVerdict: there is other text than a value in one code fence or after a thought, a
            key occurs twice, or the thought does not end.
    """
    problem = ""
    for bare in _verdicts(_trimmed(text)):
        fenced = _FENCE.match(bare)
        source = fenced[1] if fenced else bare
        for attempt in dict.fromkeys((source, _BACKSLASH.sub(_escaped, source))):
            try:
                return json.loads(
                    attempt, strict=False, object_pairs_hook=_unique, parse_constant=_constant
                )
            except (ValueError, RecursionError) as e:
                problem = problem or str(e)
    raise UnreadableVerdict(f"the judge answered no JSON object alone ({problem}): {_start(text)}")


def _verdicts(text: str) -> list[str]:
    """Return what may be the verdict in *text*: all of it, or what follows the first or the last
    end of a thought, for servers that leave the thought in. It may lack its opening mark.

    Raises:
        UnreadableVerdict: the thought does not end.
    """
    _, ended, first = text.partition(_END_OF_THOUGHT)
    if not ended and text.startswith("<think>"):
        raise UnreadableVerdict(
            "the judge's thought does not end: raise its max_tokens, or switch its thinking off, "
            "such as by extra = { chat_template_kwargs = { enable_thinking = false } }"
        )
    if not ended:
        return [text]
    last = text.rpartition(_END_OF_THOUGHT)[2]
    return list(dict.fromkeys((text, _trimmed(first), _trimmed(last))))


def _trimmed(text: str) -> str:
    """Return *text* without blanks and byte order marks at its ends."""
    return text.strip().strip("\ufeff\u200b").strip()


def _escaped(match: re.Match[str]) -> str:
    """Return an escape of JSON as it is, and any other backslash, such as that of ``\\sqrt``,
    escaped.
    """
    return match[1] or r"\\"


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a key occurs twice")
    return dict(pairs)


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _start(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    line = "".join(c if c.isprintable() else " " for c in " ".join(text[:400].split()))
    return repr(line if len(line) <= 120 else line[:117] + "...")


LARGEST_SPREAD = 0.5
"""Largest standard deviation of scores from 0 to 1."""


class Disagreement(InfrastructureError):
    """The verdicts of a panel, of votes or of swapped labels differ: there is no verdict, and the
    rollout is masked.
    """


@dataclass(kw_only=True)
class VerdictSettings:
    """How verdicts are read: settings of a judge service.

    Attributes:
        scale: highest score of a criterion.
        lowest: lowest score of a criterion.
        verdict_key: name of the score in the verdict on a criterion.
        reasons: whether the judge writes a reason before the score of a criterion.
        on_disagreement: of the two orders of a pair: ``tie`` or ``mask``.
        max_spread: standard deviation of the scores of a panel or of votes above which there is no
            verdict; scores lie in 0 to 1, so that it is 0.5 at most.
    """

    scale: int = 2
    lowest: int = 0
    verdict_key: str = "score"
    reasons: bool = True
    on_disagreement: Literal["tie", "mask"] = "tie"
    max_spread: float = 0.45

    def criterion_form(self) -> Scale:
        """Return the form of the verdict on a criterion.

        Raises:
            UsageError: a setting is out of range.
        """
        if not 0 <= self.max_spread <= LARGEST_SPREAD:
            raise UsageError(
                f"judge: max_spread is {self.max_spread}, which no scores from 0 to 1 exceed; "
                f"expected 0 to {LARGEST_SPREAD}, where {LARGEST_SPREAD} accepts every spread"
            )
        if self.verdict_key == "reason":
            raise UsageError(
                'judge: verdict_key is "reason", which is the key of the reason; name it otherwise'
            )
        return Scale(self.lowest, self.scale, self.verdict_key, self.reasons)

    def mean(self, verdicts: Sequence[tuple[Any, str]]) -> Judgement:
        """Return the mean score of *verdicts*, each with its reason, and the first reason.

        Raises:
            Disagreement: the scores spread over more than `max_spread`.
        """
        scores = [float(score) for score, _ in verdicts]
        if len(scores) > 1 and pstdev(scores) > self.max_spread:
            raise Disagreement(
                f"scores {', '.join(f'{s:.2f}' for s in scores)} spread over more than "
                f"{self.max_spread}"
            )
        return Judgement(score=fmean(scores), reason=verdicts[0][1])


def majority(verdicts: Sequence[tuple[Any, str]]) -> str:
    """Return the verdict that more than half of *verdicts* have.

    Raises:
        Disagreement: there is none.
    """
    verdict, count = Counter(str(v) for v, _ in verdicts).most_common(1)[0]
    if 2 * count <= len(verdicts):
        raise Disagreement(f"no majority among {len(verdicts)} verdicts")
    return verdict
