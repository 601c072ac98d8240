"""Rollouts of a run or a file as plain data for viewers: read, filtered and limited."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from quintain import Termination
from quintain.errors import RunError, UsageError
from quintain.models import PICTURE_PLACES, PICTURE_TOKENS
from quintain.store import RunFolder, fault_of, find_run, read_table, steps_in
from quintain.types import reaches

from .pictures import labelled, seen

__all__ = [
    "SOURCES",
    "Filter",
    "Row",
    "StoredRollouts",
    "TokenText",
    "prompt_of",
    "result_of",
    "view_of",
]

Row = dict[str, Any]
LIGHT = ("step", "environment", "group", "sample", "outcome", "shaping", "termination")
"""Columns that the filters read first; the others only if these match."""
SOURCES = ("template", "prompt", "policy", "tool", "copy", "forced")
"""Names of the sources of tokens, by number."""
POLICY = 2
TOKENIZER = "model/tokenizer.json"
"""Of a checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which rollouts to show; ``None`` and empty values match all.

    Attributes:
        results: ``right``, ``wrong`` and ``failed``, any of them.
        causes: of failures (`Termination.cause`), any of them.
        reward: smallest and largest total reward.
        contains: text in the prompt, a reply or a tool result, in any case.
    """

    steps: frozenset[int] | None = None
    results: frozenset[str] = frozenset()
    causes: frozenset[str] = frozenset()
    environment: str = ""
    reward: tuple[float, float] | None = None
    contains: str = ""

    def light(self, row: Mapping[str, Any]) -> bool:
        """Return whether the columns `LIGHT` of *row* match."""
        total = (row["outcome"] or 0.0) + (row["shaping"] or 0.0)
        return (
            (not self.results or result_of(row) in self.results)
            and (not self.causes or Termination(row["termination"]).cause in self.causes)
            and self.environment in ("", row["environment"])
            and (
                self.reward is None
                or (row["outcome"] is not None and self.reward[0] <= total <= self.reward[1])
            )
        )

    def text(self, messages: str, task: str) -> bool:
        """Return whether *messages* and *task*, columns of JSON text, have the text."""
        return not self.contains or any(
            self.contains.casefold() in text.casefold()
            for text in _texts([json.loads(messages), json.loads(task)])
        )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def result_of(row: Mapping[str, Any]) -> str:
    """Return ``right``, ``wrong``, or ``failed`` for a rollout that failed for reasons other than
    the policy.
    """
    if Termination(row["termination"]).ours:
        return "failed"
    return "right" if row["outcome"] is not None and reaches(row["outcome"]) else "wrong"


class StoredRollouts:
    """The rollout files of a run, or one file that ``quintain eval --out`` wrote.

    Args:
        name: a run, its folder, or a Parquet file.
        folder: parent folder of the run folders.

    Attributes:
        files: the files by step, in order.
        lost: the steps between them that have no file.

    Raises:
        UsageError: there is no such run or file, or it has no rollouts.
    """

    def __init__(self, name: str, folder: str = "runs") -> None:
        if name.endswith(".parquet"):
            if not Path(name).is_file():
                raise UsageError(f"no file {name!r}")
            self.name, self.files, self.path = Path(name).name, [(0, Path(name))], None
            self.lost = []
            return
        self.path = find_run(name, folder)
        run = RunFolder(self.path, lock=False)
        self.name, self.files = run.name, steps_in(run.rollouts)
        steps = [step for step, _ in self.files]
        self.lost = sorted(set(range(steps[0], steps[-1])) - set(steps)) if steps else []
        if not self.files:
            raise RunError(
                f"run {run.name!r} has no rollouts yet; see [rollouts] keep in its recipe"
            )

    def matching(self, wanted: Filter) -> Iterator[tuple[int, Path, list[int]]]:
        """Yield the step, file and numbers of the matching rows of each file that has some; first
        one row of each group.
        """
        for step, path in self.files:
            if wanted.steps is not None and step not in wanted.steps:
                continue
            light = _read(path, LIGHT)
            numbers = [i for i, row in enumerate(light) if wanted.light(row)]
            if wanted.contains and numbers:
                texts = _read(path, ("messages", "task"), numbers)
                numbers = [
                    i
                    for i, row in zip(numbers, texts, strict=True)
                    if wanted.text(row["messages"], row["task"])
                ]
            if numbers:
                seen: Counter[tuple[str, int]] = Counter()
                ranks = {}
                for i in numbers:
                    group = light[i]["environment"], light[i]["group"]
                    ranks[i] = seen[group]
                    seen[group] += 1
                yield step, path, sorted(numbers, key=ranks.__getitem__)

    def causes(self, chosen: Iterable[tuple[int, Path, list[int]]]) -> Counter[str]:
        """Return the number of failures in *chosen* by their cause."""
        ends = (
            Termination(row["termination"])
            for _, path, numbers in chosen
            for row in _read(path, ("termination",), numbers)
        )
        return Counter(end.cause for end in ends if end.cause)

    def rows(
        self, path: Path, numbers: Sequence[int], decode: TokenText, *, tokens: bool = True
    ) -> list[Row]:
        """Return the rollouts with *numbers* in the file *path*, as `view_of` gives them."""
        return [view_of(row, decode, tokens=tokens) for row in _read(path, None, numbers)]


def _read(
    path: Path, columns: Sequence[str] | None, numbers: Sequence[int] | None = None
) -> list[Row]:
    table = read_table(path, columns)
    rows: list[Row] = (table if numbers is None else table.take(numbers)).to_pylist()
    return rows


def view_of(row: Row, decode: TokenText, *, tokens: bool = True) -> Row:
    """Return what viewers show of a stored rollout, as JSON; ``conversations`` are those of players
    beside its own.
    """
    record = json.loads(row["rollout"])
    outcome, shaping = (record.get(slot) or {} for slot in ("outcome", "shaping"))
    total = None if row["outcome"] is None else row["outcome"] + (row["shaping"] or 0.0)
    return {
        **{
            k: row[k]
            for k in ("step", "environment", "group", "sample", "seed", "task_id", "level")
        },
        "result": result_of(row),
        "prompt": prompt_of(record["task"]),
        "answer": record["task"].get("answer"),
        "messages": [*map(seen, record["messages"])],
        "reply": row["reply"],
        "reward": total,
        "outcome": row["outcome"],
        "shaping": row["shaping"],
        "yardstick": row.get("yardstick"),
        "parts": {**json.loads(row["outcome_parts"]), **json.loads(row["shaping_parts"])},
        "why": "; ".join(text for text in (outcome.get("reason"), shaping.get("reason")) if text),
        "advantage": row.get("advantage"),
        "termination": row["termination"],
        "cause": Termination(row["termination"]).cause,
        "reason": row["reason"],
        "attempts": row["attempts"],
        "metrics": json.loads(row["metrics"]),
        "seconds": row["seconds"],
        "sampled": row["tokens"],
        "tokens": token_rows(record, row.get("advantages")) if tokens else None,
        "rewrites": rewrites_of(record, record["messages"]),
        "conversations": [
            conversation_of(record, player, decode, tokens=tokens)
            for player in {
                **record["transcripts"],
                **dict.fromkeys(t.get("player", "") for t in record["turns"]),
            }
            if player
        ],
    }


def conversation_of(
    record: Mapping[str, Any], player: str, decode: TokenText, *, tokens: bool
) -> Row:
    """Return what another *player* of a stored rollout read and said: a seat of a game, or a
    conversation of an agent.

    Only its tokens are stored, so its messages are their text: ``context`` for what it read,
    ``assistant`` for what the policy sampled. A player without tokens, such as one of another
    engine, has the texts of its turns.
    """
    rows = token_rows(record, None, player)
    rewrites = rewrites_of(record, (), player)
    messages, ends = [], [0]
    for sampled, group in groupby(rows, key=lambda row: row[1] == POLICY):
        part = [row[0] for row in group]
        messages.append(
            {"role": "assistant" if sampled else "context", "content": decode.text(part)}
        )
        ends.append(ends[-1] + len(part))
    for place in rewrites:
        place["messages"] = sum(end <= place["tokens"] for end in ends) - 1
    if not rows:
        turns = [turn for turn in record["turns"] if turn.get("player") == player]
        messages = [{"role": "assistant", "content": turn["text"]} for turn in turns]
    score = ((record.get("outcome") or {}).get("players") or {}).get(player)
    return {
        "player": player,
        "score": score,
        "messages": messages,
        "tokens": rows if tokens else None,
        "rewrites": rewrites,
    }


def prompt_of(task: Mapping[str, Any]) -> str:
    """Return the prompt of a stored task; of a conversation the last message. A picture is a label."""
    prompt = task.get("prompt", "")
    return labelled(
        prompt if isinstance(prompt, str) else str(prompt[-1].get("content", "")) if prompt else ""
    )


def token_rows(
    record: Mapping[str, Any], advantages: Sequence[float] | None, player: str = ""
) -> list[tuple[Any, ...]]:
    """Return the tokens of *player*, branch by branch: id, source, log-prob, weight version,
    advantage. Of a branch those that it does not share with the one that it left.

    Log-prob, version and advantage are ``None`` where the token was not sampled.

    Args:
        record: a rollout as `Rollout.to_json` gives it.
        advantages: of each sampled token, branch by branch.
        player: by default the policy's own.
    """
    rest = iter(advantages or ())
    return [
        (token, source, logp, version, next(rest, None))
        if source == POLICY
        else (token, source, None, None, None)
        for branch in _branches(record, player)
        for token, source, logp, version in zip(
            branch["ids"], branch["sources"], branch["logps"], branch["versions"], strict=True
        )
    ]


def rewrites_of(
    record: Mapping[str, Any], messages: Sequence[Mapping[str, Any]], player: str = ""
) -> list[Row]:
    """Return where the context of *player* was rewritten: compacted, truncated, or rendered anew by
    its template.

    Of each place: ``tokens`` and ``messages``, how many come before it in `token_rows` and in
    *messages*; ``before`` and ``after``, the length of the context before it and of the next
    prompt, in tokens.
    """
    places: list[Row] = []
    lengths: list[int] = []
    tokens = turns = 0
    for branch in _branches(record, player):
        sources = branch["sources"]
        shared = branch["fork"] if branch["parent"] >= 0 else 0
        if lengths:
            prompt = sources.index(POLICY) if POLICY in sources else len(sources)
            places.append(
                {
                    "tokens": tokens,
                    "messages": _after_turns(record, messages, turns, player),
                    "before": lengths[-1],
                    "after": shared + prompt,
                }
            )
        lengths.append(shared + len(sources))
        tokens += len(sources)
        turns += sum(sampled for sampled, _ in groupby(s == POLICY for s in sources))
    return places


def _after_turns(
    record: Mapping[str, Any], messages: Sequence[Mapping[str, Any]], count: int, player: str
) -> int:
    """Return how many of *messages* there are up to the turn number *count* of *player*. Texts of
    assistants that it did not sample are no turns.
    """
    replies = [turn["reply"] for turn in record["turns"] if turn.get("player", "") == player]
    found = 0
    for number, message in enumerate(messages, 1):
        if found < len(replies) and message["role"] == "assistant":
            found += message["content"].strip() == replies[found].strip()
        if found == count:
            return number
    return len(messages)


def _branches(record: Mapping[str, Any], player: str) -> Sequence[Mapping[str, Any]]:
    branches: Sequence[Mapping[str, Any]] = (
        record["transcripts"].get(player, {}).get("branches", ())
    )
    return branches


class TokenText:
    """The text of single tokens, by the tokenizer of the last checkpoint; ids in brackets if there
    is none.
    """

    def __init__(self, run: Path | None) -> None:
        self._tokenizer: Any = None
        self._texts: dict[int, str] = {}
        for _, checkpoint in reversed(steps_in(run / "checkpoints")) if run else ():
            file = checkpoint / TOKENIZER
            saved = (checkpoint / "SHA256SUMS").is_file()
            if saved and (fault := fault_of(checkpoint, TOKENIZER)):
                raise RunError(f"checkpoint {checkpoint} is damaged ({fault}); put the file back")
            if file.is_file():
                from tokenizers import Tokenizer

                self._tokenizer = Tokenizer.from_file(str(file))
                return

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of *tokens*, without the special ones of a chat template."""
        if self._tokenizer is None or max(tokens, default=0) >= PICTURE_TOKENS:
            return "".join(map(self, tokens)).strip()
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True)).strip()

    def __call__(self, token: int) -> str:
        if token >= PICTURE_TOKENS:  # the picture as a whole, at its first token
            return "" if token % PICTURE_PLACES else "[image]"
        if token not in self._texts:
            text = (
                self._tokenizer.decode([token], skip_special_tokens=False)
                if self._tokenizer
                else ""
            )
            self._texts[token] = text or f"[{token}]"
        return self._texts[token]
