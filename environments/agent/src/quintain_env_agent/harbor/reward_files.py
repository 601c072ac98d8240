"""The files in which a verifier writes its reward."""

from __future__ import annotations

import json
import math
import re

from quintain.errors import EnvironmentFault

FOLDER = "/logs/verifier"
TEXT, JSON = "reward.txt", "reward.json"
_MARK = b"\xef\xbb\xbf"  # a byte order mark
MOST = 1 << 20
"""Most bytes of a reward file."""


_BEGUN = re.compile(
    r"test session starts|^collected \d+ items?|^TAP version|^=+ RUN ", re.MULTILINE
)
"""Tests began, so that what they need was there."""
_NOT_FETCHED = re.compile(
    r"could not resolve (?:host|proxy)|temporary failure (?:in name resolution|resolving)|"
    r"name or service not known|network is unreachable|no route to host|nodename nor servname|"
    r"(?:uvx?|pytest|pipx?3?|curl|wget|npm|npx|node): (?:command )?not found|"
    r"^E: (?:unable to locate package|failed to fetch|unable to fetch|package .* has no installation)|"
    r"no module named '?pytest|no matching distribution found|could not find a version that satisfies|"
    r"newconnectionerror|failed to (?:download|fetch) |error sending request for url|dns error|"
    r"getaddrinfo (?:failed|ENOTFOUND|EAI_AGAIN)|unable to resolve host address|could not fetch url",
    re.IGNORECASE | re.MULTILINE,
)


class RewardFileError(EnvironmentFault):
    """A verifier left no reward. It is a failure, never the reward 0.

    Attributes:
        kind: ``missing``, ``empty``, ``unreadable``, ``not a number``, ``not finite``, or
            ``set-up``: the verifier could not fetch what it runs with.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def not_fetched(output: str) -> str:
    """Return the line of a verifier's *output* which says that it could not fetch what it runs
    with; empty if there is none, or if its tests began after all.
    """
    match = None if _BEGUN.search(output) else _NOT_FETCHED.search(output)
    if match is None:
        return ""
    begin = output.rfind("\n", 0, match.start()) + 1
    return output[begin:].partition("\n")[0].strip()[:200]


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
    if not content.removeprefix(_MARK).strip():
        raise RewardFileError("empty", f"{TEXT} is empty")
    try:
        text = content.decode("utf-8-sig").strip()
    except UnicodeDecodeError as e:
        raise RewardFileError("unreadable", f"{TEXT} is no number: {content[:80]!r}") from e
    # float() reads the notations of Python, too: 1_0 and digits of other scripts
    if not text.isascii() or "_" in text:
        raise RewardFileError("unreadable", f"{TEXT} is no number: {content[:80]!r}")
    try:
        value = float(text)
    except ValueError as e:
        raise RewardFileError("unreadable", f"{TEXT} is no number: {content[:80]!r}") from e
    return _finite(value, TEXT)


def _of_json(content: bytes) -> dict[str, float]:
    if not content.removeprefix(_MARK).strip():
        raise RewardFileError("empty", f"{JSON} is empty")
    try:
        value = json.loads(content.decode("utf-8-sig"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as e:
        raise RewardFileError("unreadable", f"{JSON} is no JSON ({e}): {content[:80]!r}") from e
    if not isinstance(value, dict) or not value:
        raise RewardFileError("unreadable", f"{JSON} is {content[:80]!r}; expected an object")
    for name, item in value.items():
        if isinstance(item, bool) or not isinstance(item, (int, float)):
            raise RewardFileError(
                "not a number", f"{JSON}: {name} is {item!r:.80}; expected a number"
            )
    return {name: _finite(item, f"{JSON}: {name}") for name, item in value.items()}


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError("a key occurs twice")
    return row


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
