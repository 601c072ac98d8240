"""The journal of a server that records: each reply with its exact tokens, each rating of one.

A folder has two files of JSON lines. A line of `RESPONSES` is written before the answer leaves, one
of `FEEDBACK` before the rating is confirmed, so that a process that is killed loses neither. A line
that was cut off by a kill is dropped by the next server.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from quintain.errors import UsageError
from quintain.store import drop_partial_line, take_lock

from .errors import ApiError, invalid
from .fields import get
from .request import PolicyTurn

RESPONSES, FEEDBACK, ROUNDS = "responses.jsonl", "feedback.jsonl", "rounds.jsonl"
LOCK = "serve.lock"
LABELS = ("bad", "good")
"""Of ratings: 0 and 1."""
LONGEST_EDIT = 100_000
"""Characters of an edited answer."""
FIELDS = ("response_id", "choice", "score", "label", "edit")


class TrafficJournal:
    """Writes replies and ratings to *folder*. The last rating of a reply counts.

    Raises:
        UsageError: another server writes there.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._open = folder, ExitStack()
        if (lock := take_lock(folder / LOCK)) is None:
            raise UsageError(
                f"another server writes to {str(folder)!r}; give each server its own --record"
            )
        self._open.enter_context(lock)
        self._owners: dict[str, tuple[str, int]] = {}
        self._ratings: dict[tuple[str, int], dict[str, Any]] = {}
        for record in self._lines(RESPONSES):
            self._owners[record["id"]] = record["owner"], len(record["replies"])
        for record in self._lines(FEEDBACK):
            rating = {name: record[name] for name in FIELDS[2:] if name in record}
            self._ratings[record["id"], record["choice"]] = rating
        self._files = {
            name: self._open.enter_context(open(folder / name, "ab", buffering=0))  # noqa: SIM115
            for name in (RESPONSES, FEEDBACK)
        }

    def close(self) -> None:
        """Close the files."""
        self._open.close()

    def answered(
        self, response_id: str, key: str, user: str, answers: Sequence[PolicyTurn]
    ) -> None:
        """Write the replies of a response. Neither the key nor the name of the user is written,
        but digests of them.
        """
        exact = [a.exact for a in answers]
        if not all(exact):
            return  # of a policy that keeps no tokens
        first = answers[0].exact
        assert first is not None
        owner = _owner(key, user)
        self._write(
            RESPONSES,
            {
                "id": response_id,
                "owner": owner,
                "time": time.time(),
                "temperature": first.sampling.temperature,
                "top_p": first.sampling.top_p,
                "prompt": list(first.prompt),
                "replies": [
                    {
                        "ids": list(e.sampled.ids),
                        "logps": list(e.sampled.logps),
                        "versions": list(e.sampled.versions),
                        "finish": e.sampled.finish,
                    }
                    for e in exact
                    if e is not None
                ],
            },
        )
        self._owners[response_id] = owner, len(answers)

    def rated(self, body: Mapping[str, Any], key: str) -> dict[str, Any]:
        """Write the rating of a request and return what its sender is told.

        Raises:
            ApiError: 400 for a field that is wrong, 404 for a response that *key* did not get.
        """
        response_id, rating = rating_of(body)
        owner, replies = self._owners.get(response_id, ("", 0))
        if owner.partition("/")[0] != digest(key):
            raise ApiError(
                404,
                "unknown_response",
                f"no response {response_id!r} was given to this key; send the id of an answer",
                param="response_id",
            )
        choice = get(body, "choice", int, 0)
        if not 0 <= choice < replies:
            raise invalid(f"choice is {choice}; the response has {replies} replies", "choice")
        place = (response_id, choice)
        before = self._ratings.get(place)
        if before != rating:
            line = {"id": response_id, "choice": choice, "owner": owner, "time": time.time()}
            self._write(FEEDBACK, line | rating)
            self._ratings[place] = rating
        return {
            "object": "feedback",
            "response_id": response_id,
            "choice": choice,
            **rating,
            "replaced": before is not None and before != rating,
        }

    def _write(self, name: str, record: Mapping[str, Any]) -> None:
        """Append a line, whole or not at all.

        Raises:
            ApiError: 500, the disk refuses it.
        """
        data, file = json.dumps(record, allow_nan=False).encode() + b"\n", self._files[name]
        begin = file.seek(0, os.SEEK_END)
        try:
            if file.write(data) != len(data):
                raise OSError("the disk took a part of the line")
            if name == FEEDBACK:
                os.fsync(file.fileno())
        except OSError as e:
            os.truncate(self._folder / name, begin)
            raise ApiError(500, "record_failed", f"{self._folder / name}: {e}") from e

    def _lines(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield what earlier servers wrote, after what a kill left of a last line is dropped."""
        place = self._folder / name
        drop_partial_line(place)
        if place.exists():
            with open(place, "rb") as file:
                yield from map(json.loads, file)


def rating_of(body: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the response that a request rates, and its score, label or edited answer.

    Raises:
        ApiError: 400, naming the field.
    """
    for name in body:
        if name not in FIELDS:
            raise invalid(f"{name} is no field; expected {', '.join(FIELDS)}", name)
    response_id = get(body, "response_id", str, "")
    if not response_id:
        raise invalid("response_id is missing; send the id of an answer", "response_id")
    given = [name for name in FIELDS[2:] if body.get(name) is not None]
    if len(given) != 1:
        raise invalid(
            f"{len(given)} of score, label and edit are given; expected one of them", "score"
        )
    (name,) = given
    if name == "score":
        score = float(get(body, "score", (int, float), 0))
        if not (math.isfinite(score) and 0 <= score <= 1):
            raise invalid(f"score is {score}; expected 0 to 1", "score")
        return response_id, {"score": score}
    text = get(body, name, str, "")
    if name == "label" and text not in LABELS:
        raise invalid(f"label is {text[:100]!r}; expected good or bad", "label")
    if name == "edit" and not (text.strip() and len(text) <= LONGEST_EDIT):
        raise invalid(
            f"edit has {len(text):,} characters; expected an answer of 1 to {LONGEST_EDIT:,}",
            "edit",
        )
    return response_id, {name: text}


def served_version(folder: Path) -> tuple[int, str] | None:
    """Return the version and the folder of the weights that `quintain traffic` has accepted in
    *folder*; ``None`` before its first round.
    """
    try:
        lines = (folder / ROUNDS).read_bytes().rpartition(b"\n")[0].splitlines()
    except FileNotFoundError:
        return None
    if not lines:
        return None
    last = json.loads(lines[-1])
    return int(last["serve"]), str(last["model"])


def version_of(model: str) -> int:
    """Return the version of the weights in a folder that `quintain traffic` wrote, else 0."""
    try:
        described = json.loads((Path(model) / "quintain.json").read_text("utf-8"))
        return int(described["traffic"]["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def user_of(body: Mapping[str, Any]) -> str:
    """Return the user that a request names in any of the APIs; empty if it names none."""
    metadata = body.get("metadata")
    named = metadata.get("user_id") if isinstance(metadata, Mapping) else None
    return next(
        (
            u
            for u in (body.get("safety_identifier"), body.get("user"), named)
            if isinstance(u, str) and u
        ),
        "",
    )


def digest(text: str) -> str:
    """Return 16 hexadecimal digits that stand for a key or a user."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _owner(key: str, user: str) -> str:
    return f"{digest(key)}/{digest(user)}" if user else digest(key)
