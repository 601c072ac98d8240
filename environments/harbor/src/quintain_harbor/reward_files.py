"""The files in which a verifier writes its reward."""

from __future__ import annotations

import json
import math

from quintain.errors import EnvironmentFault

FOLDER = "/logs/verifier"
TEXT, JSON = "reward.txt", "reward.json"
MOST = 1 << 20
"""Most bytes of a reward file."""


class RewardFileError(EnvironmentFault):
    """A verifier left no reward. It is a failure, never the reward 0.

    Attributes:
        kind: ``missing``, ``empty``, ``unreadable``, ``not a number`` or ``not finite``.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def rewards_of(text: bytes | None, as_json: bytes | None) -> dict[str, float]:
    """Return the rewards by name; that of ``reward.txt`` is called ``reward``.

    Args:
        text, as_json: contents of ``reward.txt`` and ``reward.json``; ``None`` where there is no
            such file. The second counts if there are both.

    Raises:
        RewardFileError: there is neither, or the one that counts has no finite numbers.
    """
    if as_json is not None:
        return _of_json(as_json)
    if text is not None:
        return {"reward": _of_text(text)}
    raise RewardFileError("missing", f"the verifier wrote neither {TEXT} nor {JSON} in {FOLDER}")


def _of_text(content: bytes) -> float:
    if not content.strip():
        raise RewardFileError("empty", f"{TEXT} is empty")
    try:
        value = float(content.decode())
    except ValueError as e:  # UnicodeDecodeError is one
        raise RewardFileError("unreadable", f"{TEXT} is no number: {content[:80]!r}") from e
    return _finite(value, TEXT)


def _of_json(content: bytes) -> dict[str, float]:
    if not content.strip():
        raise RewardFileError("empty", f"{JSON} is empty")
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as e:
        raise RewardFileError("unreadable", f"{JSON} is no JSON: {content[:80]!r}") from e
    if not isinstance(value, dict) or not value:
        raise RewardFileError("unreadable", f"{JSON} is {content[:80]!r}; expected an object")
    for name, item in value.items():
        if not isinstance(item, (int, float)):
            raise RewardFileError(
                "not a number", f"{JSON}: {name} is {item!r:.80}; expected a number"
            )
    return {name: _finite(item, f"{JSON}: {name}") for name, item in value.items()}


def _finite(value: float, where: str) -> float:
    try:
        number = float(value)
    except OverflowError:  # a whole number beyond all floats
        number = math.inf
    if not math.isfinite(number):
        raise RewardFileError("not finite", f"{where} is {number}")
    return number


def chosen(rewards: dict[str, float], key: str) -> float:
    """Return the reward of name *key*, or the only one.

    Raises:
        RewardFileError: there are several, and none has this name.
    """
    if key in rewards:
        return rewards[key]
    if len(rewards) == 1:
        return next(iter(rewards.values()))
    raise RewardFileError(
        "unreadable", f"{JSON} has {', '.join(sorted(rewards))}; set `key` to the one that counts"
    )
