"""Rollouts as a table, one row each, for `datasets`, notebooks and re-scoring.

The column ``rollout`` has the full record as JSON; the other columns are a convenience.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from ..errors import RunError, UsageError
from ..types.json_text import encodable
from ..types.rollout import AnyGroup, Rollout, Score
from ..types.transcript import Branch

if TYPE_CHECKING:
    import pyarrow


def schema(*, wide: bool = False) -> pyarrow.Schema:
    """Return the columns.

    ``task``, ``messages``, ``outcome_parts``, ``shaping_parts``, ``metrics`` and ``rollout`` are
    JSON text. ``token_*`` describe the last branch of the policy's own player, token by token: id,
    sampling log-prob (0 if not sampled), weight version (-1 if not sampled) and source
    (`quintain.types.transcript.TokenSource`); the rest is in ``rollout``. ``advantages`` are
    `advantages_of` the rollout, ``advantage`` is their mean; both are null if it did not train.
    They are those of the sampled tokens of all branches, so they fit ``token_*`` only where there is
    one branch.
    """
    import pyarrow as pa

    text, integer, number = pa.string(), pa.int64(), pa.float64()
    columns = {
        "step": integer,
        "environment": text,
        "group": integer,
        "sample": integer,
        "seed": integer,
        "task_id": text,
        "level": number,
        "task": text,
        "messages": text,
        "reply": text,
        "outcome": number,
        "outcome_parts": text,
        "shaping": number,
        "shaping_parts": text,
        "yardstick": number,
        "advantage": number,
        "advantages": pa.list_(pa.float32()),
        "termination": text,
        "reason": text,
        "attempts": integer,
        "metrics": text,
        "seconds": number,
        "tokens": integer,
        "token_ids": pa.list_(pa.int64() if wide else pa.int32()),
        "token_logps": pa.list_(number),
        "token_versions": pa.list_(pa.int32()),
        "token_sources": pa.list_(pa.int8()),
        "rollout": text,
    }
    return pa.schema(list(columns.items()))


LATER = {"yardstick", "advantage", "advantages"}
"""Columns that older files lack."""
_LARGEST = 2**31 - 1
_STEP = re.compile(r"step-(\d+)\.parquet")


def read_table(path: Path, columns: Sequence[str] | None = None) -> pyarrow.Table:
    """Return the table of rollouts at *path*, whose pages are compared with their checksums.

    Args:
        columns: those alone.

    Raises:
        RunError: it is damaged, or has rollouts of another step than its name says.
        UsageError: it lacks a column.
    """
    import pyarrow as pa
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path, page_checksum_verification=True)
        names = file.schema_arrow.names
        if lacking := sorted(set(columns or schema().names) - set(names) - LATER):
            raise UsageError(
                f"{path} has no column {lacking[0]!r}; expected a file of rollouts that Quintain "
                "wrote"
            )
        wanted = None if columns is None else [name for name in columns if name in names]
        table = file.read(columns=wanted)
        table.validate(full=True)
    except (OSError, ValueError, pa.ArrowException) as e:
        raise RunError(f"{path} cannot be read: {e}; remove the file to see the others") from e
    types = [{field.name: field.type for field in schema(wide=wide)} for wide in (False, True)]
    for field in table.schema:  # the checksums do not cover what the file says of its columns
        if field.type not in [kinds.get(field.name, field.type) for kinds in types]:
            raise RunError(
                f"{path} is damaged: column {field.name!r} is {field.type}; remove the file to see "
                "the others"
            )
    found = _STEP.fullmatch(path.name)
    if found and "step" in table.column_names:
        steps = set(table["step"].unique().to_pylist())
        if other := sorted(steps - {int(found[1])}):
            raise RunError(
                f"{path} has rollouts of step {other[0]}; remove the file to see the others"
            )
    return table


Advantages = Mapping[tuple[int, int], Sequence[float]]


def to_parquet(
    step: int, rollouts: Iterable[Rollout[Any, Any]], advantages: Advantages | None = None
) -> bytes:
    """Return the *rollouts* of a step as a Parquet file, with the *advantages* of those that
    trained.
    """
    import pyarrow as pa
    import pyarrow.parquet

    rows = [
        row(step, rollout, (advantages or {}).get((rollout.group, rollout.sample)))
        for rollout in rollouts
    ]
    wide = any(max(row["token_ids"], default=0) > _LARGEST for row in rows)
    table = pa.Table.from_pylist(rows, schema=schema(wide=wide))
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink, compression="zstd", write_page_checksum=True)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def advantages_of(groups: Iterable[AnyGroup], advantages: Any) -> Advantages:
    """Return the advantage of each token that was sampled in the policy's own first conversation,
    branch by branch, by group and sample.

    *groups* are those of the batch, *advantages* what the learner computed: ``values`` per sample
    or per sampled token.
    """
    samples = [
        (rollout, player, tokens)
        for group in groups
        for rollout in group.valid
        for player, names in rollout.conversations.items()
        if (tokens := sum(rollout.transcripts[name].sampled for name in names))
    ]
    values = getattr(advantages, "values", ())
    values = values.tolist() if hasattr(values, "tolist") else values
    if len(values) == len(samples):
        values = [
            value
            for value, (*_, tokens) in zip(values, samples, strict=True)
            for value in repeat(value, tokens)
        ]
    by_token = iter(values)
    first_conversations: dict[tuple[int, int], Sequence[float]] = {}
    for rollout, player, tokens in samples:
        of_sample = list(islice(by_token, tokens))
        # The first conversation has no name. Its tokens are the first of the sample.
        if of_sample and not player and "" in rollout.transcripts:
            first = of_sample[: rollout.transcripts[""].sampled]
            first_conversations[rollout.group, rollout.sample] = first
    return first_conversations


def row(
    step: int, rollout: Rollout[Any, Any], advantages: Sequence[float] | None = None
) -> dict[str, Any]:
    """Return one rollout as plain values, by column (see `schema`)."""
    record = rollout.to_json()
    tokens = _last_branch(rollout)
    return {
        "step": step,
        "environment": rollout.environment,
        "group": rollout.group,
        "sample": rollout.sample,
        "seed": rollout.seed,
        "task_id": rollout.task.id,
        "level": rollout.task.level,
        "task": _json(record["task"]),
        "messages": _json(record["messages"]),
        "reply": encodable(rollout.reply),
        **_score("outcome", rollout.outcome),
        **_score("shaping", rollout.shaping),
        "yardstick": rollout.yardstick.total if rollout.yardstick else None,
        "advantage": sum(advantages) / len(advantages) if advantages else None,
        "advantages": advantages,
        "termination": rollout.termination.kind.value,
        "reason": encodable(rollout.termination.reason),
        "attempts": rollout.termination.attempts,
        "metrics": _json(record["metrics"]),
        "seconds": rollout.seconds,
        "tokens": rollout.tokens,
        "token_ids": tokens.ids,
        "token_logps": tokens.logps,
        "token_versions": tokens.versions,
        "token_sources": tokens.sources,
        "rollout": _json(record),
    }


def _json(value: Any) -> str:
    try:
        return to_json(value, inf_nan_mode="constants").decode()
    except ValueError:
        # a lone surrogate, which only `json` can escape; it takes three times as long
        return json.dumps(value)


def _score(name: str, score: Score | None) -> Mapping[str, Any]:
    if score is None:
        return {name: None, f"{name}_parts": "{}"}
    return {name: score.total, f"{name}_parts": _json(dict(score.parts))}


def _last_branch(rollout: Rollout[Any, Any]) -> Branch:
    transcript = rollout.transcripts.get("")
    if transcript is None or not transcript.branches:
        return Branch()
    last = transcript.branches[-1]
    return last if last.parent < 0 else transcript.path(len(transcript.branches) - 1)
