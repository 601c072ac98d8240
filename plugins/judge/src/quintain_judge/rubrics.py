"""Persistent rubrics, written once from what a search finds about each prompt (DR Tulu, 2511.19399,
section 3).
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ConfigDict

from quintain import InfrastructureError, Message, Task
from quintain.console import printable
from quintain.errors import UsageError

from .gate import injection
from .prompts import neutral
from .questions import text_of
from .rows import read_rows
from .service import JudgeService
from .verdicts import Texts, UnreadableVerdict

Search = Callable[[str], Awaitable[str]]
"""The passages that a query finds, as text."""
WEIGHTS = {"must": 1.0, "quality": 1.0, "fault": -1.0}
LONGEST = 300
"""Characters of a criterion; longer ones are dropped."""
PASSAGES = 5
"""Passages of a query."""
TOGETHER = 32
"""Tasks whose rubrics are written at one time, and then appended to the file."""
_QUERIES = (
    "You prepare a rubric for replies to one prompt. Write search queries whose results would show "
    "what a correct and complete reply says: names, numbers, causes, and mistakes that are often "
    "made."
)
_CRITERIA = (
    "You write the rubric by which replies to one prompt are scored. The passages were found by a "
    "search for that prompt. Write criteria that can be decided by reading a reply, each about one "
    "thing, in one sentence of the form 'Names ...', 'States that ...' or 'Claims that ...'. Take "
    "names, numbers and claims from the passages, and nothing that does not concern the prompt. "
    "Give each a kind: must for what a reply is useless without, quality for what a good reply "
    "does, fault for a mistake that the passages refute. Give the source: the id in brackets of "
    "the passage that it rests on, or none."
)


@dataclass(frozen=True, kw_only=True)
class Prompted:
    """A prompt that a rubric is written for, and the other columns of its row."""

    prompt: str | list[dict[str, str]]
    columns: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The prompt as one text."""
        if isinstance(self.prompt, str):
            return self.prompt
        return text_of([Message(cast(Any, m["role"]), m["content"]) for m in self.prompt])


class _Row(BaseModel):
    model_config = ConfigDict(extra="allow")
    prompt: str | list[dict[str, str]]


def read_prompts(path: Path) -> list[Prompted]:
    """Return the rows of a file of JSON lines with the key ``prompt``; their other keys are kept.

    Raises:
        UsageError: no file, or lines that are no such rows.
    """
    missing = (
        f"there is no file {path}; expected JSON lines with the key prompt, or the name of an "
        f"environment"
    )
    return read_rows(
        path,
        _Row,
        missing,
        lambda _, row: Prompted(prompt=row.prompt, columns=row.model_extra or {}),
    )


def prompts_of(tasks: Sequence[Task], split: str) -> Iterator[Prompted]:
    """Yield the prompts of an environment's tasks."""
    for task in tasks:
        messages = task.prompt
        prompt = (
            messages
            if isinstance(messages, str)
            else [{"role": m.role, "content": m.content} for m in messages]
        )
        columns = (
            {"split": split}
            if task.answer is None
            else {"split": split, "answer": str(task.answer)}
        )
        yield Prompted(prompt=prompt, columns=columns)


def usable(text: str) -> bool:
    """Return whether *text* may be a criterion, which stands among the instructions of the judge.

    What the policy or a web page wrote may come back through the judge that writes criteria: so a
    criterion is nothing that speaks to the judge or has the form of a verdict.
    """
    return (
        len(text) <= LONGEST
        and text.isprintable()
        and not injection(text)
        and neutral(text) == text
    )


async def rubric_for(
    judge: JudgeService, prompt: str, search: Search, *, max_queries: int = 3, max_criteria: int = 5
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return criteria for replies to *prompt*, as rows of `chat` have them, and the queries whose
    results they rest on.

    Args:
        max_queries: that the judge writes.
        max_criteria: that it writes.

    Raises:
        InfrastructureError: the search failed, or the judge wrote nothing that can be read or used.
        UsageError: rules judge, which write nothing.
    """
    query_rows = await judge.write(_QUERIES, [("prompt", prompt)], Texts(("query",), max_queries))
    written = list(dict.fromkeys(" ".join(row["query"].split()) for row in query_rows))
    results = await asyncio.gather(*map(search, written))
    texts = [("prompt", prompt), *((f"results {n}", text) for n, text in enumerate(results, 1))]
    rows = await judge.write(_CRITERIA, texts, Texts(("criterion", "kind", "source"), max_criteria))
    criteria: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["kind"] not in WEIGHTS:
            raise UnreadableVerdict(
                f"a new criterion is of the kind {row['kind'][:50]!r}; expected "
                f"{', '.join(WEIGHTS)}"
            )
        text = " ".join(row["criterion"].split())
        if usable(text):
            must = {"must": True} if row["kind"] == "must" else {}
            key = " ".join(re.findall(r"\w+", text.lower()))
            criteria.setdefault(key, {"text": text, "weight": WEIGHTS[row["kind"]], **must})
    if not any(c["weight"] > 0 for c in criteria.values()):
        raise UnreadableVerdict("the judge wrote no criterion that a good reply meets")
    return list(criteria.values()), written


@dataclass(kw_only=True)
class Written:
    """What `write_rubrics` did: numbers of tasks, of criteria, and why tasks have none."""

    tasks: int = 0
    skipped: int = 0
    criteria: int = 0
    failures: list[str]


async def write_rubrics(
    judge: JudgeService,
    prompts: Sequence[Prompted],
    search: Search,
    out: Path,
    *,
    max_queries: int = 3,
    max_criteria: int = 5,
    on_task: Callable[[], object] = lambda: None,
) -> Written:
    """Append a row with criteria to *out* for each of *prompts* that it lacks, in their order.

    A task that fails has no row, so that the same command writes it later; what was asked is in the
    judge's cache.
    """
    done = set(_texts(out))
    result = Written(skipped=sum(p.text in done for p in prompts), failures=[])
    todo = [p for p in prompts if p.text not in done]

    async def row(task: Prompted) -> dict[str, Any] | InfrastructureError:
        try:
            criteria, queries = await rubric_for(
                judge, task.text, search, max_queries=max_queries, max_criteria=max_criteria
            )
        except InfrastructureError as e:
            return e
        finally:
            on_task()
        kept = list(task.columns.get("criteria") or [])
        return {
            "prompt": task.prompt,
            **task.columns,
            "criteria": [*kept, *criteria],
            "queries": queries,
        }

    for start in range(0, len(todo), TOGETHER):
        batch = todo[start : start + TOGETHER]
        rows = await asyncio.gather(*map(row, batch))
        with out.open("a", encoding="utf-8") as file:
            for task, written in zip(batch, rows, strict=True):
                if isinstance(written, InfrastructureError):
                    result.failures.append(f"{printable(task.text)[:60]!r}: {written}")
                    continue
                file.write(json.dumps(written, ensure_ascii=False) + "\n")
                result.tasks += 1
                result.criteria += len(written["criteria"])
    return result


def _texts(out: Path) -> list[str]:
    """Return the prompts that *out* has a rubric for."""
    return [p.text for p in read_prompts(out)] if out.is_file() else []


def _is_corpus(source: str) -> bool:
    return Path(source).expanduser().exists()


@asynccontextmanager
async def search_of(source: str) -> AsyncIterator[Search]:
    """Open the search that *source* names: a corpus (a folder, or a file of passages), else the
    command of an MCP server.

    Raises:
        UsageError: `quintain-tools` is not installed, or the server has no tool ``search``.
    """
    try:
        from quintain_tools.mcp import Mcp, McpServer
        from quintain_tools.search import build_index, open_corpus
    except ModuleNotFoundError as e:
        raise UsageError(
            "a search needs quintain-tools: pip install 'quintain-tools[mcp,search]'"
        ) from e
    if _is_corpus(source):
        index = build_index(open_corpus(source))

        async def in_corpus(query: str) -> str:
            hits = index.search(query, PASSAGES)
            return (
                "\n\n".join(f"[{h.passage.id}] {h.passage.title}\n{h.passage.text}" for h in hits)
                or "nothing found"
            )

        yield in_corpus
        return
    server = McpServer(command=tuple(shlex.split(source)))
    async with Mcp(servers={"search": server}) as client, client.session() as session:
        session.choose("search")

        async def on_server(query: str) -> str:
            result = await session.call("search", {"query": query})
            if result.failed:
                raise InfrastructureError(f"the search failed: {result.text[:300]}")
            return str(result.text)

        yield on_server
