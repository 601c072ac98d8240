"""What supervised training imitates: demonstrations of an environment, rollouts of a run,
conversations in a file.

Each becomes `Example`s, and these rows of tokens. Where a rollout was sampled with the tokenizer of
the model that is trained, its own token ids train; else its text is rendered and encoded again,
turn by turn.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from quintain import Message, Rollout
from quintain.data import DataFaults, json_object, text_lines
from quintain.errors import UnknownNameError, UsageError
from quintain.models import ChatTokenizer, LoadedModel
from quintain.recipe import EnvironmentSpec, EnvironmentTable, opened_environments
from quintain.services import BY_OPTION, Choice
from quintain.store import RunFolder, find_run, steps_in
from quintain.types import reaches, split_thought

from .demonstrations import demonstrations_of
from .example import Example, Tokens
from .supervised import encode_conversation, end_of_turn, join_thought

FILES = (".jsonl", ".parquet")
ROLES = ("system", "user", "assistant")
EXPECTED = (
    '{"messages": [{"role": "user", "content": ...}, ...]}, or a rollout as `quintain eval --out` '
    "writes it"
)
"""What a line of a file is."""
THINK, NO_THINK = " /think", " /no_think"
"""What ends a question that is to be answered with or without thought (Qwen3, 2505.09388, section
4.3).
"""
NO_THOUGHT = "<think>\n\n</think>\n\n"

_HASH = re.compile(r"-[0-9a-f]{12}\Z")


@dataclass(frozen=True, kw_only=True)
class ExampleSource:
    """The examples that a name stands for.

    Attributes:
        kind: ``demonstrations``, ``rollouts`` or ``messages``.
        name: as the user wrote it.
        environment: its name where it is known, for the next command.
        left_out: number of records that are not among the examples, by reason.
    """

    kind: str
    name: str
    examples: tuple[Example, ...]
    environment: str = ""
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which examples to take: the first *count*, of rollouts those with an outcome of at least
    *min_reward*.

    Attributes:
        truncated: take rollouts that a limit cut off in mid-answer, too.
    """

    min_reward: float = 1.0
    truncated: bool = False
    count: int = 10_000

    def reason_to_skip(self, rollout: Rollout[Any, Any]) -> str:
        """Return why *rollout* is left out; empty where it is not."""
        policy_turns = [turn for turn in rollout.turns if not turn.player]
        if not rollout.valid or not policy_turns:
            return "failed"
        if not reaches(rollout.outcome.of_player("") if rollout.outcome else 0.0, self.min_reward):
            return f"below a reward of {self.min_reward:g}"
        cut = policy_turns[-1].finish == "length"
        return "cut off by a limit" if cut and not self.truncated else ""

    def beyond(self, rest: Iterable[Any]) -> dict[str, int]:
        """Count the records of *rest*, which come after the last example that is taken."""
        count = sum(1 for _ in rest)
        return {f"after the first {self.count:,} (--examples)": count} if count else {}


def source_of(
    table: EnvironmentTable,
    selection: Selection = Selection(),
    *,
    folder: str = "runs",
    services: Mapping[str, Choice] | None = None,
) -> ExampleSource:
    """Return what ``table.use`` names: a file (``.jsonl``, ``.parquet``), a run, or an environment.

    Args:
        table: its ``args`` are the fields of an environment.
        selection: how many examples at most, and which rollouts.
        folder: where the runs are.
        services: what fills the service slots of an environment.

    Raises:
        UsageError: there is no such source, it cannot be read, or nothing in it can be imitated.
    """
    name = table.use
    if Path(name).suffix in FILES and ":" not in name:
        source = _of_file(Path(name), selection)
    elif (run := _run(name, folder)) is not None:
        source = _of_run(run, selection)
    else:
        source = _of_environment(table, selection.count, folder, services or {})
    if not source.examples:
        raise UsageError(f"nothing in {name!r} can be imitated: {reasons(source.left_out)}")
    return source


def reasons(left_out: Mapping[str, int]) -> str:
    """Format the reasons why examples were left out, with their numbers."""
    return ", ".join(f"{count:,} {why}" for why, count in left_out.items()) or "there is nothing"


# ---- reading -------------------------------------------------------------------------------------


def _run(name: str, folder: str) -> Path | None:
    if ":" in name:
        return None
    try:
        return find_run(name, folder)
    except UnknownNameError:
        return None


def _of_environment(
    table: EnvironmentTable, count: int, folder: str, services: Mapping[str, Choice]
) -> ExampleSource:
    try:
        class_name, examples = asyncio.run(_demonstrated(table, count, services))
    except UnknownNameError as e:
        not_found = f"neither a run in {folder!r} nor a file that ends in {' or '.join(FILES)}"
        raise UnknownNameError(f"{table.use!r} is {not_found}, and as an environment: {e}") from e
    if not examples:
        raise UsageError(
            f"{class_name} has no demonstrations to imitate: define demonstrations(self, split) or "
            "a control `demonstrator`, or name a run or a file of rollouts (quintain eval ... "
            "--out FILE.parquet)"
        )
    return ExampleSource(
        kind="demonstrations", name=table.use, examples=tuple(examples), environment=table.use
    )


async def _demonstrated(
    table: EnvironmentTable, count: int, chosen: Mapping[str, Choice]
) -> tuple[str, list[Example]]:
    """Return the class name of the environment and its first *count* demonstrations."""
    spec = EnvironmentSpec.of(table)
    examples: list[Example] = []
    async with opened_environments([spec], chosen, fix=BY_OPTION) as ((environment,), services):
        demonstrations = demonstrations_of(environment, services=services)
        while len(examples) < count and (example := await anext(demonstrations, None)) is not None:
            examples.append(example)
    return type(environment).__name__, examples


def _of_run(path: Path, selection: Selection) -> ExampleSource:
    """Read the rollouts of a run, those of the last steps first, since their policy is the best."""
    run = RunFolder(path, lock=False)
    steps = [step for step, _ in reversed(steps_in(run.rollouts))]
    if not steps:
        raise UsageError(
            f"run {run.name!r} has no rollouts: they are kept where its recipe says [rollouts] keep"
        )
    records = (row["rollout"] for step in steps for row in run.read_rollouts(step))
    return _of_rollouts(run.name, records, selection)


def _of_file(path: Path, selection: Selection) -> ExampleSource:
    if not path.is_file():
        raise UsageError(f"there is no file {str(path)!r}")
    if path.suffix == ".parquet":
        return _of_rollouts(str(path), _parquet(path), selection)
    with DataFaults(path) as faults:
        lines = text_lines(path, faults)
        records = _records(lines, faults)
        first = next(records, None)
        if first is None and not faults:
            raise UsageError(f"{path} is empty")
        found = chain([first] if first else [], records)
        if first and "task" in first[1]:
            return _of_rollouts(str(path), (record for _, record in found), selection)
        examples = []
        for where, record in islice(found, selection.count):
            with faults.row(where):
                examples.append(_conversation(record))
        rest = selection.beyond(lines)
    return ExampleSource(kind="messages", name=str(path), examples=tuple(examples), left_out=rest)


def _parquet(path: Path) -> Iterator[str]:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path, page_checksum_verification=True)
        for batch in file.iter_batches(256, columns=["rollout"]):
            yield from (row["rollout"] for row in batch.to_pylist())
    except (pyarrow.ArrowException, KeyError, ValueError) as e:
        raise UsageError(
            f"{path} holds no rollouts as `quintain train` and `quintain eval --out` write them: "
            f"{e}"
        ) from e


def _records(
    lines: Iterable[tuple[str, str]], faults: DataFaults
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for where, line in lines:
        with faults.row(where):
            yield where, json_object(line, EXPECTED)


def _conversation(record: Mapping[str, Any]) -> Example:
    """Read a conversation in the format of chat servers; every message of the assistant trains."""
    rows = record.get("messages")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UsageError(f"expected {EXPECTED}")
    messages = []
    for row in rows:
        role, content = row.get("role"), row.get("content")
        if role not in ROLES or row.get("tool_calls"):
            raise UsageError(
                f"a message of role {role!r}; expected {', '.join(ROLES)}, without tool calls"
            )
        if isinstance(content, list) and all(
            isinstance(p, dict) and p.get("type") == "text" for p in content
        ):
            content = "".join(str(part.get("text", "")) for part in content)
        if not isinstance(content, str):
            raise UsageError(f'"content" of the {role} is {content!r}; expected text')
        thought = row.get("reasoning_content") or row.get("reasoning") or ""
        messages.append(Message(role, join_thought(str(thought), content) if thought else content))
    replies = tuple(index for index, m in enumerate(messages) if m.role == "assistant" and index)
    if not replies:
        raise UsageError("the assistant answers nothing, so there is nothing to imitate")
    return Example(messages=tuple(messages), replies=replies)


def _of_rollouts(
    name: str, records: Iterator[Mapping[str, Any] | str], selection: Selection
) -> ExampleSource:
    """Read rollouts as plain data or as JSON; those after the last example are counted alone."""
    examples: list[Example] = []
    left_out: Counter[str] = Counter()
    environment = ""
    for record in records:
        rollout: Rollout[Any, Any] = _rollout(record, name)
        environment = environment or rollout.environment
        if why := selection.reason_to_skip(rollout):
            left_out[why] += 1
            continue
        examples.append(example_of(rollout))
        if len(examples) == selection.count:
            break
    return ExampleSource(
        kind="rollouts",
        name=name,
        examples=tuple(examples),
        environment=environment,
        left_out={**left_out, **selection.beyond(records)},
    )


def _rollout(record: Mapping[str, Any] | str, name: str) -> Rollout[Any, Any]:
    from pydantic import ValidationError

    try:
        return Rollout.from_json(json.loads(record) if isinstance(record, str) else record)
    except ValidationError as e:
        raise UsageError(
            f"{name} holds something that is no rollout: {e.errors()[0]['msg']}"
        ) from e
    except ValueError as e:
        raise UsageError(f"{name} holds something that is no rollout: {e}") from e


def example_of(rollout: Rollout[Any, Any]) -> Example:
    """Return the turns of the policy's own player in *rollout* as an example."""
    turns = [turn for turn in rollout.turns if not turn.player]
    messages = list(rollout.messages)
    replies: list[int] = []
    # From the end, since a prompt may hold answers too, as examples.
    for index in reversed(range(len(messages))):
        turn = turns[len(turns) - 1 - len(replies)] if len(replies) < len(turns) else None
        old = messages[index]
        if (
            turn
            and old.role == "assistant"
            and (old.content, old.reasoning) == (turn.reply, turn.reasoning)
        ):
            messages[index] = Message("assistant", turn.text)
            replies.append(index)
    transcript = rollout.transcripts.get("")
    # the record holds all messages, also those that a rewritten context had no more
    known = len(replies) == len(turns) and not rollout.metrics.get("rewrites")
    return Example(
        messages=tuple(messages),
        replies=tuple(reversed(replies)) if known else (),
        calls=any(turn.calls for turn in turns),
        exact=tuple(map(Tokens.of, transcript.sequences())) if transcript else (),
        tokenizer=transcript.tokenizer if transcript else "",
    )


# ---- thinking ------------------------------------------------------------------------------------


def mixed(example: Example, think: bool) -> Example:
    """Return the example as one to think about or not: the question says which, the answers keep
    their thought or have an empty one (Qwen3, 2505.09388, section 4.3).

    The flag ends the last question before the first answer that trains, and holds for all answers
    after it. (Qwen3 also leaves the flag off some that think, and lets some long conversations
    switch.)
    """
    if example.calls or not example.replies:  # these are taken only as they were sampled
        return replace(example, exact=(), tokenizer="")
    messages = list(example.messages)
    question = next(
        (index for index in reversed(range(example.replies[0])) if messages[index].role == "user"),
        None,
    )
    if question is not None:
        old = messages[question]
        messages[question] = replace(old, content=old.content + (THINK if think else NO_THINK))
    for index in example.replies:
        thought, reply = split_thought(messages[index].content)
        reply = reply.strip()
        text = join_thought(thought, reply) if think and thought else NO_THOUGHT + reply
        messages[index] = Message("assistant", text)
    return replace(example, messages=tuple(messages), exact=(), tokenizer="")


# ---- tokens --------------------------------------------------------------------------------------


def rows_of(example: Example, tokenizer: ChatTokenizer, end: int) -> list[Tokens]:
    """Return the tokens of an example: as they were sampled, or encoded again, each answer with the
    token *end*.

    More than one row where the template rewrites history (drops earlier thoughts, say).
    """
    if example.exact and same_tokens(example.tokenizer, tokenizer.name):
        return list(example.exact)
    return list(
        map(
            Tokens.of,
            encode_conversation(example.messages, example.replies, tokenizer, end, example.tools),
        )
    )


def same_tokens(one: str, other: str) -> bool:
    """Return whether two tokenizers write the same ids: their names end in a hash of vocabulary and
    template.
    """
    return one == other or (bool(_HASH.search(one)) and one[-12:] == other[-12:])


def fit_rows(
    source: ExampleSource, model: LoadedModel, *, dedupe: bool = False
) -> tuple[list[Tokens], dict[str, int]]:
    """Return the rows of *source* that fit *model*, and how many examples were left out, by reason.

    Args:
        dedupe: of equal rows only the first.

    Raises:
        UsageError: none fits.
    """
    left_out = Counter(source.left_out)
    rows = list(examined(source.examples, model.tokenizer, model.context, left_out, dedupe=dedupe))
    if not rows:
        raise UsageError(
            f"nothing in {source.name!r} is fit to train {model.path!r}: {reasons(left_out)}"
        )
    return rows, dict(left_out)


def examined(
    examples: Iterable[Example],
    tokenizer: ChatTokenizer,
    context: int,
    left_out: Counter[str],
    *,
    dedupe: bool = False,
) -> Iterator[Tokens]:
    """Yield the rows of all examples that fit; *left_out* counts why others do not.

    Args:
        context: longest row.
        dedupe: of equal rows only the first.
    """
    seen: set[bytes] = set()
    end = end_of_turn(tokenizer)
    for example in examples:
        exact = bool(example.exact) and same_tokens(example.tokenizer, tokenizer.name)
        if not exact and (example.calls or not example.replies):
            why = (
                "with tool calls"
                if example.calls
                else "with a rewritten context or messages that lack some turns"
            )
            left_out[f"{why}, which train only with the tokens that were sampled"] += 1
            continue
        encoded = rows_of(example, tokenizer, end)
        if any(len(row.ids) > context for row in encoded):
            left_out[f"longer than the model's {context} tokens"] += 1
            continue
        for row in encoded:
            if dedupe and (key := row.ids.tobytes()) in seen:
                left_out["copies"] += 1
                continue
            if dedupe:
                seen.add(key)
            yield row
