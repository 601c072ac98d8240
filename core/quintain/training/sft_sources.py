"""What supervised training imitates: demonstrations of an environment, rollouts of a run, conversations in a file.

Each becomes `Example`s, and these rows of tokens. Where a rollout was sampled with the tokenizer of the model that is
trained, its own token ids train; else its text is rendered and encoded anew, turn by turn.
"""

from __future__ import annotations

import asyncio
import json
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import UnknownNameError, UsageError
from ..interfaces.environment import Environment, yielded
from ..interfaces.tokenizer import Codec
from ..rollouts.chat.bridge import Conversation
from ..rollouts.chat.tool_calls import parse
from ..services.manager import BY_OPTION, Choice, opened
from ..types.rollout import Rollout
from ..types.task import Message, messages_of
from ..types.transcript import Sampled, TrainingSequence
from .recipe.tables import EnvironmentTable
from .resolve import cast_table
from .run_folder import RunFolder
from .runs import find_run
from .storage import steps_in

FILES = (".jsonl", ".parquet")
ROLES = ("system", "user", "assistant")
THINK, NO_THINK = " /think", " /no_think"
"""What ends a question that is to be answered with or without thought (Qwen3, 2505.09388, section 4.3)."""
NO_THOUGHT = "<think>\n\n</think>\n\n"

_HASH = re.compile(r"-[0-9a-f]{12}\Z")
_SLACK = 1e-9  # a verdict may be a sum of weights that add up to 1 only nearly


@dataclass(frozen=True, slots=True)
class Tokens:
    """A row for the learner in a tenth of the room that a `TrainingSequence` takes: ids, and 1 where one trains."""

    ids: array[int]
    mask: bytes

    @classmethod
    def of(cls, row: TrainingSequence) -> Tokens:
        return cls(array("i", row.ids), bytes(row.mask))

    def sequence(self) -> TrainingSequence:
        """For `Learner.supervised_step`; who sampled it is forgotten."""
        n = len(self.ids)
        mask = tuple(map(bool, self.mask))
        return TrainingSequence(ids=tuple(self.ids), mask=mask, logps=(0.0,) * n, versions=(-1,) * n)


@dataclass(frozen=True, kw_only=True)
class Example:
    """A conversation, and which of its messages are to be imitated.

    Attributes:
        messages: in order; those that train hold all that was said, thoughts and calls included.
        said: places of the messages that train.
        calls: whether tools were called, which only their own model writes in this way.
        exact: the tokens as they were sampled, where they were recorded.
        codec: what wrote *exact*.
    """

    messages: tuple[Message, ...]
    said: tuple[int, ...]
    calls: bool = False
    exact: tuple[Tokens, ...] = ()
    codec: str = ""

    @property
    def thinks(self) -> bool:
        """Whether some message that trains begins with a thought."""
        return any(parse(self.messages[at].content).reasoning for at in self.said)


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where examples come from.

    Attributes:
        kind: ``demonstrations``, ``rollouts`` or ``messages``.
        name: as it was asked for.
        environment: where it is known, for the next command.
        left_out: why some are not among the examples, and how many.
    """

    kind: str
    name: str
    examples: tuple[Example, ...]
    environment: str = ""
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """How many examples at most (the first *count*), and which rollouts: those of a verdict from *min_reward* on; with
    *truncated* also those that a limit cut off in mid-answer.
    """

    min_reward: float = 1.0
    truncated: bool = False
    count: int = 10_000

    def refuses(self, rollout: Rollout[Any, Any]) -> str:
        """Why *rollout* is left out; empty where it is not."""
        own = [turn for turn in rollout.turns if not turn.seat]
        if not rollout.valid or not own:
            return "failed"
        if (rollout.verdict.of_seat("") if rollout.verdict else 0.0) < self.min_reward - _SLACK:
            return f"below a reward of {self.min_reward:g}"
        return "cut off by a limit" if own[-1].finish == "length" and not self.truncated else ""


def source_of(
    table: EnvironmentTable,
    wanted: Wanted = Wanted(),
    *,
    folder: str = "runs",
    services: Mapping[str, Choice] | None = None,
) -> Source:
    """What ``table.use`` names: a file (``.jsonl``, ``.parquet``), a run, or an environment.

    Args:
        table: its ``args`` are the fields of an environment.
        wanted: how many examples at most, and which rollouts.
        folder: where the runs are.
        services: what fills the service slots of an environment.

    Raises:
        UsageError: there is no such source, it cannot be read, or nothing in it can be imitated.
    """
    name = table.use
    if Path(name).suffix in FILES and ":" not in name:
        found = _of_file(Path(name), wanted)
    elif (run := _run(name, folder)) is not None:
        found = _of_run(run, wanted)
    else:
        found = _of_environment(table, wanted.count, folder, services or {})
    if not found.examples:
        raise UsageError(f"nothing in {name!r} can be imitated: {reasons(found.left_out)}")
    return found


def reasons(left_out: Mapping[str, int]) -> str:
    """Why examples are left out, for people."""
    return ", ".join(f"{count:,} {why}" for why, count in left_out.items()) or "there is nothing"


# ---- reading ---------------------------------------------------------------------------------------------------------


def _run(name: str, folder: str) -> Path | None:
    if ":" in name:
        return None
    try:
        return find_run(name, folder)
    except UnknownNameError:
        return None


def _of_environment(table: EnvironmentTable, count: int, folder: str, services: Mapping[str, Choice]) -> Source:
    try:
        environment, found = asyncio.run(_demonstrated(table, count, services))
    except UnknownNameError as e:
        known = f"neither a run in {folder!r} nor a file that ends in {' or '.join(FILES)}"
        raise UnknownNameError(f"{table.use!r} is {known}, and as an environment: {e}") from e
    if not found:
        raise UsageError(
            f"{type(environment).__name__} has no demonstrations to imitate: define demonstrations(self, split), or "
            "name a run or a file of rollouts (quintain eval ... --out FILE.parquet)"
        )
    return Source(kind="demonstrations", name=table.use, examples=tuple(found), environment=table.use)


async def _demonstrated(
    table: EnvironmentTable, count: int, chosen: Mapping[str, Choice]
) -> tuple[Environment[Any, Any], list[Example]]:
    casting = cast_table(table)
    async with opened(chosen, casting.slots - {"policy"}, {}, fix=BY_OPTION) as services:
        environment = casting.make({**services, "policy": None})
        found: list[Example] = []
        for demonstration in islice(yielded(environment, "demonstrations", "train"), count):
            messages = messages_of(demonstration.prompt)
            system = demonstration.system or environment.system
            if system and not any(m.role == "system" for m in messages):
                messages.insert(0, Message("system", system))
            reply = Message("assistant", demonstration.reply)
            found.append(Example(messages=(*messages, reply), said=(len(messages),)))
    return environment, found


def _of_run(path: Path, wanted: Wanted) -> Source:
    """Of the last steps first: their policy is the best."""
    run = RunFolder(path, lock=False)
    steps = [step for step, _ in reversed(steps_in(run.rollouts))]
    if not steps:
        raise UsageError(f"run {run.name!r} has no rollouts: they are kept where its recipe says [rollouts] keep")
    records = (json.loads(row["rollout"]) for step in steps for row in run.read_rollouts(step))
    return _of_rollouts(run.name, records, wanted)


def _of_file(path: Path, wanted: Wanted) -> Source:
    if not path.is_file():
        raise UsageError(f"there is no file {str(path)!r}")
    if path.suffix == ".parquet":
        return _of_rollouts(str(path), _parquet(path), wanted)
    lines = _lines(path)
    first = next(lines, None)
    if first is None:
        raise UsageError(f"{path} is empty")
    if "messages" in first[1] and "task" not in first[1]:
        told = [first, *islice(lines, wanted.count - 1)]
        examples = tuple(_told(record, f"{path}, line {number}") for number, record in told)
        return Source(kind="messages", name=str(path), examples=examples)
    if "task" not in first[1]:
        raise UsageError(
            f'{path}, line {first[0]}: expected {{"messages": [{{"role": "user", "content": ...}}, ...]}}, or a '
            "rollout as `quintain eval --out` writes it"
        )
    records = (record for part in ([first], lines) for _, record in part)
    return _of_rollouts(str(path), records, wanted)


def _parquet(path: Path) -> Iterator[Mapping[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        for batch in file.iter_batches(256, columns=["rollout"]):
            yield from (json.loads(row["rollout"]) for row in batch.to_pylist())
    except (pyarrow.ArrowException, KeyError, ValueError) as e:
        raise UsageError(
            f"{path} holds no rollouts as `quintain train` and `quintain eval --out` write them: {e}"
        ) from e


def _lines(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError as e:
                raise UsageError(f"{path}, line {number}: not JSON: {e}") from e
            if not isinstance(record, dict):
                raise UsageError(f"{path}, line {number}: expected an object, got {type(record).__name__}")
            yield number, record


def _told(record: Mapping[str, Any], where: str) -> Example:
    """A conversation in the form that chat servers take; all that the assistant says in it trains."""
    rows = record.get("messages")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UsageError(f'{where}: "messages" is to be a list of objects with "role" and "content"')
    messages = []
    for row in rows:
        role, content = row.get("role"), row.get("content")
        if role not in ROLES or row.get("tool_calls"):
            raise UsageError(f"{where}: a message of role {role!r}; expected {', '.join(ROLES)}, without tool calls")
        if isinstance(content, list) and all(isinstance(p, dict) and p.get("type") == "text" for p in content):
            content = "".join(str(part.get("text", "")) for part in content)
        if not isinstance(content, str):
            raise UsageError(f'{where}: "content" of the {role} is {content!r}; expected text')
        thought = row.get("reasoning_content") or row.get("reasoning") or ""
        messages.append(Message(role, _written(str(thought), content) if thought else content))
    said = tuple(at for at, m in enumerate(messages) if m.role == "assistant" and at)
    if not said:
        raise UsageError(f"{where}: the assistant answers nothing, so there is nothing to imitate")
    return Example(messages=tuple(messages), said=said)


def _of_rollouts(name: str, records: Iterable[Mapping[str, Any]], wanted: Wanted) -> Source:
    examples: list[Example] = []
    left_out: Counter[str] = Counter()
    environment = ""
    for record in records:
        rollout: Rollout[Any, Any] = _rollout(record, name)
        environment = environment or rollout.environment
        if why := wanted.refuses(rollout):
            left_out[why] += 1
            continue
        examples.append(example_of(rollout))
        if len(examples) == wanted.count:
            break
    return Source(
        kind="rollouts", name=name, examples=tuple(examples), environment=environment, left_out=dict(left_out)
    )


def _rollout(record: Mapping[str, Any], name: str) -> Rollout[Any, Any]:
    from pydantic import ValidationError

    try:
        return Rollout.from_json(record)
    except ValidationError as e:
        raise UsageError(f"{name} holds something that is no rollout: {e.errors()[0]['msg']}") from e


def example_of(rollout: Rollout[Any, Any]) -> Example:
    """What the policy's own seat said in *rollout*."""
    turns = [turn for turn in rollout.turns if not turn.seat]
    messages = list(rollout.messages)
    said: list[int] = []
    # From the end, since a prompt may hold answers too, as examples.
    for at in reversed(range(len(messages))):
        turn = turns[len(turns) - 1 - len(said)] if len(said) < len(turns) else None
        held = messages[at]
        if turn and held.role == "assistant" and (held.content, held.reasoning) == (turn.reply, turn.reasoning):
            messages[at] = Message("assistant", turn.text)
            said.append(at)
    transcript = rollout.transcripts.get("")
    return Example(
        messages=tuple(messages),
        said=tuple(reversed(said)) if len(said) == len(turns) else (),
        calls=any(turn.calls for turn in turns),
        exact=tuple(map(Tokens.of, transcript.sequences())) if transcript else (),
        codec=transcript.codec if transcript else "",
    )


# ---- thinking --------------------------------------------------------------------------------------------------------


def mixed(example: Example, think: bool) -> Example:
    """The example as one to think about or not: the question says which, the answers keep their thought or have an
    empty one (Qwen3, 2505.09388, section 4.3).

    The flag ends the last question before the first answer that trains, and holds for all answers after it. (Qwen3 also
    leaves the flag off some that think, and lets some long conversations switch.)
    """
    if example.calls or not example.said:  # these are taken only as they were sampled
        return replace(example, exact=(), codec="")
    messages = list(example.messages)
    asked = next((at for at in reversed(range(example.said[0])) if messages[at].role == "user"), None)
    if asked is not None:
        old = messages[asked]
        messages[asked] = replace(old, content=old.content + (THINK if think else NO_THINK))
    for at in example.said:
        found = parse(messages[at].content)
        text = _written(found.reasoning, found.reply) if think and found.reasoning else NO_THOUGHT + found.reply
        messages[at] = Message("assistant", text)
    return replace(example, messages=tuple(messages), exact=(), codec="")


def _written(thought: str, reply: str) -> str:
    """As Qwen3 writes a thought."""
    return f"<think>\n{thought.strip()}\n</think>\n\n{reply}"


# ---- tokens ----------------------------------------------------------------------------------------------------------


def rows_of(example: Example, codec: Codec, end: int) -> list[Tokens]:
    """What was said, in the context it was said in, each answer with the token *end*.

    More than one row where the template rewrites history (drops earlier thoughts, say).
    """
    if example.exact and same_tokens(example.codec, codec.name):
        return list(example.exact)
    conversation = Conversation(codec)
    for at, message in enumerate(example.messages[: example.said[-1] + 1]):
        if at not in example.said:
            conversation.add(message)
            continue
        found = parse(message.content)
        text = _written(found.reasoning, found.reply) if found.reasoning else message.content
        if codec.stops and not text[:1].isspace():  # a template in paragraphs: "Assistant: yes"
            text = f" {text}"
        ids = (*codec.encode(text), end)
        conversation.prompt()
        conversation.said(Sampled(ids=ids, logps=(0.0,) * len(ids), versions=(-1,) * len(ids), finish="stop", stop=end))
    return list(map(Tokens.of, conversation.transcript("", 1.0).sequences()))


def same_tokens(one: str, other: str) -> bool:
    """Whether two codecs write the same ids: their names end in a hash of vocabulary and template."""
    return one == other or (bool(_HASH.search(one)) and one[-12:] == other[-12:])


def end_of_turn(codec: Codec) -> int:
    """The token that the template puts after an answer; where it has none, the end of the text.

    Raises:
        UsageError: the tokenizer has no token that ends anything.
    """
    if not codec.stop_ids:
        raise UsageError(f"the tokenizer {codec.name} has no token that ends a text; set its eos_token and save it")
    said = codec.render([Message("user", "?"), Message("assistant", "x")], prompt=False)
    for stop in codec.stop_ids:
        if f"x{codec.decode([stop])}" in said:
            return stop
    return codec.stop_ids[0]


def examined(
    examples: Iterable[Example], codec: Codec, context: int, left_out: Counter[str], *, dedupe: bool = False
) -> Iterator[Tokens]:
    """The rows of all examples that fit; *left_out* counts why others do not.

    Args:
        context: longest row.
        dedupe: of equal rows only the first.
    """
    seen: set[bytes] = set()
    end = end_of_turn(codec)
    for example in examples:
        exact = bool(example.exact) and same_tokens(example.codec, codec.name)
        if not exact and (example.calls or not example.said):
            why = "with tool calls" if example.calls else "with messages that lack some turns"
            left_out[f"{why}, which train only with the tokens that were sampled"] += 1
            continue
        found = rows_of(example, codec, end)
        if any(len(row.ids) > context for row in found):
            left_out[f"longer than the model's {context} tokens"] += 1
            continue
        for row in found:
            if dedupe and (key := row.ids.tobytes()) in seen:
                left_out["copies"] += 1
                continue
            if dedupe:
                seen.add(key)
            yield row
