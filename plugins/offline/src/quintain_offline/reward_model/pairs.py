"""Preference pairs: read from JSON lines or `datasets`, split by prompt, made from rollouts."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from quintain import Message, Rollout
from quintain.data import DataFaults, json_object, text_lines
from quintain.errors import RunError, UsageError
from quintain.models import PICTURE

from ..messages import WrittenMessage
from .conversations import conversation

Text = tuple[Message, ...]


_Messages = Field(min_length=1)


class _PairRow(BaseModel):
    model_config = ConfigDict(extra="ignore")

    prompt: str | list[WrittenMessage] = ""
    chosen: str | list[WrittenMessage]
    rejected: str | list[WrittenMessage]
    margin: float = Field(default=0.0, allow_inf_nan=False)


class _RankingRow(BaseModel):
    model_config = ConfigDict(extra="ignore")

    prompt: str = Field(min_length=1)
    pictures: list[str | list[str]] = Field(min_length=2)


@dataclass(frozen=True, kw_only=True)
class PreferencePair:
    """Two conversations that begin with the same prompt, the better one first.

    Attributes:
        margin: the difference of scores that the pair must exceed.
        key: hash of the prompt, by which pairs are split.
    """

    chosen: Text
    rejected: Text
    margin: float = 0.0
    key: str = ""


def read_pairs(source: str, *, split: str = "train") -> list[PreferencePair]:
    """Return the pairs of a file of JSON lines, or of a data set of the library `datasets` (a saved
    folder, or a hub id).

    A row has ``chosen`` and ``rejected``, texts or lists of messages, and ``prompt``; without a
    prompt both are whole conversations. ``margin`` is optional.

    A row with ``pictures`` ranks pictures for a ``prompt``: files within the folder of the file of
    lines, or ``data:`` URLs, the best first; equally good ones are a list within the list. It gives
    a pair for each two that are not equally good (Xu et al. 2023, 2304.05977, section 3.1).

    Args:
        split: of a data set.

    Raises:
        UsageError: there is no such file or data set, lines are no rows, have blank or equal
            replies or say the opposite of another, or no row is left.
    """
    path = Path(source).expanduser()
    folder = path.parent if path.is_file() else None
    pairs: list[PreferencePair] = []
    first: dict[frozenset[Text], tuple[str, Text]] = {}
    with DataFaults(source) as faults:
        for where, row in _rows(source, path, split, faults):
            with faults.row(where):
                data = json_object(row) if isinstance(row, str) else row
                ranked = isinstance(data, Mapping) and "pictures" in data
                for pair in _ranked(data, folder) if ranked else [_pair(data)]:
                    both = frozenset((pair.chosen, pair.rejected))
                    place, better = first.setdefault(both, (where, pair.chosen))
                    if better != pair.chosen:
                        raise UsageError(f"says the opposite of {place}; leave one of them out")
                    pairs.append(pair)
    if not pairs:
        raise UsageError(
            f"{source}: no preference pairs; expected rows with prompt, chosen and rejected"
        )
    return pairs


def _rows(source: str, path: Path, split: str, faults: DataFaults) -> Iterator[tuple[str, Any]]:
    if path.is_file():
        yield from text_lines(path, faults)
    else:
        yield from _dataset(source, split)


def _dataset(source: str, split: str) -> Iterator[tuple[str, Any]]:
    try:
        import datasets
    except ImportError as error:
        raise UsageError(
            f"{source!r} is no file of JSON lines, and the library datasets is not installed; name "
            "a file, or `pip install 'quintain[train]'`"
        ) from error
    local = Path(source).expanduser()
    try:
        if local.is_dir():
            loaded = datasets.load_from_disk(str(local))
            rows = loaded[split] if isinstance(loaded, datasets.DatasetDict) else loaded
        else:
            rows = datasets.load_dataset(source, split=split)
    except Exception as error:  # the library raises its own, those of the hub and those of files
        reason = str(error).strip().split("\n")[0][:240] or type(error).__name__
        raise UsageError(
            f"{source!r} is no file of JSON lines, and no data set with the split {split!r} can be "
            f"loaded: {reason}"
        ) from error
    for number, row in enumerate(rows, 1):
        yield (
            f"{source}, row {number}",
            {key: value for key, value in row.items() if value is not None},
        )


def _pair(row: Any) -> PreferencePair:
    checked = _PairRow.model_validate(row)
    key: str | Text
    prompt, chosen, rejected = map(_content, (checked.prompt, checked.chosen, checked.rejected))
    if not prompt:
        texts = [_whole(text) for text in (chosen, rejected)]
        key = tuple(_shared(*texts))
    else:
        key, texts = prompt, [conversation(prompt, text) for text in (chosen, rejected)]
    for name, text in zip(("chosen", "rejected"), texts, strict=True):
        if not text[-1].content.strip():
            raise UsageError(f"{name} is blank")
    if _plain(texts[0]) == _plain(texts[1]):
        raise UsageError("chosen and rejected are equal, or differ by blanks; leave the row out")
    return PreferencePair(chosen=texts[0], rejected=texts[1], margin=checked.margin, key=_hash(key))


def _ranked(row: Any, folder: Path | None) -> Iterator[PreferencePair]:
    """Yield the pairs of a ranking of pictures."""
    try:
        from quintain_vision import of_row, picture
    except ImportError as error:
        raise UsageError(
            "ranked pictures need quintain-vision: pip install 'quintain-offline[images]'"
        ) from error
    checked = _RankingRow.model_validate(row)
    places = [[place] if isinstance(place, str) else place for place in checked.pictures]
    stored = [[picture(of_row(name, folder)) for name in place] for place in places]
    if len({name for place in stored for name in place}) < sum(map(len, stored)):
        raise UsageError("the same picture is ranked twice; leave one out")
    for index, place in enumerate(stored):
        for better in place:
            for worse in (name for later in stored[index + 1 :] for name in later):
                chosen, rejected = (conversation(checked.prompt, name) for name in (better, worse))
                yield PreferencePair(chosen=chosen, rejected=rejected, key=_hash(checked.prompt))


def _plain(text: Text) -> list[str]:
    return [unicodedata.normalize("NFC", message.content).strip() for message in text]


def _content(text: str | list[WrittenMessage]) -> str | Text:
    return text if isinstance(text, str) else tuple(Message(m.role, m.content) for m in text)


def _whole(text: str | Text) -> Text:
    return (Message("assistant", text),) if isinstance(text, str) else text


def _shared(a: Sequence[Any], b: Sequence[Any]) -> Iterator[Any]:
    for one, other in zip(a, b, strict=False):
        if one != other:
            return
        yield one


def _hash(prompt: Any) -> str:
    return hashlib.sha256(repr(prompt).encode()).hexdigest()[:16]


def has_picture(pair: PreferencePair) -> bool:
    """Return whether *pair* compares pictures."""
    return PICTURE in pair.chosen[-1].content


def split_by_prompt(
    pairs: Sequence[PreferencePair], share: float, seed: int
) -> tuple[list[PreferencePair], list[PreferencePair]]:
    """Return training pairs, and about *share* of the pairs held out: all pairs of a prompt are on
    one side.

    Raises:
        UsageError: *share* is not in [0, 1), or no pair is left to train or to hold out.
    """
    if not 0 <= share < 1:
        raise UsageError(f"a share of {share} is to be held out; expected 0 to 1, without 1")
    keys = sorted({pair.key for pair in pairs})
    Random(f"{seed}/held out").shuffle(keys)
    wanted, held_out_keys, count = share * len(pairs), set[str](), 0
    sizes: dict[str, int] = defaultdict(int)
    for pair in pairs:
        sizes[pair.key] += 1
    for key in keys:
        if count >= wanted:
            break
        held_out_keys.add(key)
        count += sizes[key]
    parts = (
        [p for p in pairs if p.key not in held_out_keys],
        [p for p in pairs if p.key in held_out_keys],
    )
    if not parts[0]:
        raise UsageError(
            f"{len(pairs)} pairs of {len(keys)} prompts leave none to train if {share:g} of them "
            "are held out; give more prompts, or --held-out 0"
        )
    return parts


def pairs_of_groups(
    groups: Iterable[Sequence[tuple[float, str]]],
    prompts: Iterable[Any],
    *,
    most: int = 1,
    seed: int = 0,
) -> Iterator[dict[str, Any]]:
    """Yield rows for `read_pairs` from the replies to each prompt and their rewards.

    Pairs are drawn without repetition among those whose rewards differ.

    Args:
        groups: reward and reply of each sample, one sequence per prompt.
        prompts: text or messages as plain data, one per group.
        most: pairs per prompt at most.
    """
    rng = Random(f"{seed}/pairs")
    for prompt, group in zip(prompts, groups, strict=True):
        samples = sorted(set(group), reverse=True)
        candidates = [
            (better, worse)
            for index, better in enumerate(samples)
            for worse in samples[index + 1 :]
            if better[0] > worse[0]
        ]
        for better, worse in rng.sample(candidates, min(most, len(candidates))):
            if better[1] != worse[1]:
                yield {"prompt": prompt, "chosen": better[1], "rejected": worse[1]}


def pairs_of_rollouts(
    path: str, *, most: int = 1, seed: int = 0, folder: str = "runs"
) -> list[dict[str, Any]]:
    """Return rows for `read_pairs` from a file of ``quintain eval --out`` or from all rollouts that
    a run has kept.

    The rewards are the outcomes that the rollouts were scored with. Failed rollouts are left out.

    Raises:
        UsageError: there is no such file or run, or no prompt has replies with different outcomes.
    """
    from quintain.store import find_run, read_table

    file = Path(path).expanduser()
    files = (
        [file]
        if file.is_file()
        else sorted((find_run(path, folder) / "rollouts").glob("*.parquet"))
    )
    groups: dict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
    prompts: dict[tuple[str, str], Any] = {}
    for each in files:
        try:
            table = read_table(each, ["environment", "task_id", "outcome", "rollout"])
        except RunError as error:
            raise UsageError(f"{each} holds no rollouts: {error}") from error
        for row in table.to_pylist():
            rollout: Rollout[Any, Any] = Rollout.from_json(json.loads(row["rollout"]))
            if row["outcome"] is None or not rollout.valid:
                continue
            key = (row["environment"], row["task_id"])
            groups[key].append((row["outcome"], rollout.reply))
            prompts[key] = _plain_prompt(json.loads(row["rollout"])["task"]["prompt"])
    rows = list(pairs_of_groups(groups.values(), prompts.values(), most=most, seed=seed))
    if not rows:
        raise UsageError(
            f"{path}: none of {len(groups)} prompts has replies with different outcomes; sample "
            "several replies per task (`quintain eval ENVIRONMENT --samples 8 --out FILE`)"
        )
    return rows


def _plain_prompt(prompt: Any) -> Any:
    if isinstance(prompt, str):
        return prompt
    return [{"role": m["role"], "content": m["content"]} for m in prompt if isinstance(m, Mapping)]


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON lines."""
    path.write_text(
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8"
    )
