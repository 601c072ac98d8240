"""Sources of examples, and their texts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from quintain import Rollout, Task
from quintain.models.tokenizer import HFTokenizer
from quintain.recipe.tables import EnvironmentTable
from quintain.testing import rollout
from quintain.types.rollout import Score
from quintain_offline.sft.sources import (
    ExampleSource,
    Selection,
    Tokens,
)
from quintain_offline.sft.sources import source_of as opened

from ....core.models.tiny import byte_tokenizer
from . import parrot

PARROT = Path(parrot.__file__)


TOKENIZER = HFTokenizer(byte_tokenizer())


PLAIN = HFTokenizer(byte_tokenizer(None))


TASK = Task(prompt="2+2?", answer="4")


def source_of(name: str | Path, **settings: Any) -> ExampleSource:
    return opened(EnvironmentTable(use=str(name)), Selection(**settings))


def texts(rows: Iterable[Tokens], tokenizer: Any = TOKENIZER) -> list[tuple[str, str]]:
    """Per row its whole text, and what trains in it."""
    return [
        (
            tokenizer.decode(list(r.ids)),
            tokenizer.decode([i for i, m in zip(r.ids, r.mask, strict=True) if m]),
        )
        for r in rows
    ]


def lines(path: Path, *records: Any) -> Path:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records))
    return path


def said(*words: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": word} for i, word in enumerate(words)]}


def scored(text: str, outcome: float = 1.0, **fields: Any) -> Rollout[Task, Any]:
    return rollout(TASK, text, outcome=Score(value=outcome), **fields)
