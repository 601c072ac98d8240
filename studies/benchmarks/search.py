"""Queries per second of the search index and of its MCP server over 100,000 passages, memory and
recall.

Passages are the paragraphs of SQuAD, and mixtures of five sentences of SQuAD and GSM8K; queries are
the questions of SQuAD. CPU seconds are of the process that searches: this one for the index, the
server for MCP.

    QUINTAIN_DATA=FOLDER python -m studies.benchmarks.search
        [--passages 100000] [--queries 1000] [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def sentences(texts: list[str]) -> list[str]:
    return [s for text in texts for s in re.split(r"(?<=[.!?])\s+", text) if len(s) > 20]


def load(data: Path, count: int) -> tuple[Iterator[dict[str, str]], list[tuple[str, str]]]:
    """Return the passages of the corpus, and questions with the id of the paragraph that answers
    them.
    """
    articles = json.loads((data / "squad" / "dev-v2.0.json").read_text())["data"]
    paragraphs = [p for article in articles for p in article["paragraphs"]]
    problems = [
        json.loads(line)["question"]
        for f in sorted((data / "gsm8k").glob("*.jsonl"))
        for line in f.open()
    ]
    parts = sentences([p["context"] for p in paragraphs]) + sentences(problems)
    draw = random.Random(0)

    def rows() -> Iterator[dict[str, str]]:
        for i in range(count):
            text = (
                paragraphs[i]["context"]
                if i < len(paragraphs)
                else " ".join(draw.choices(parts, k=5))
            )
            yield {"id": f"p{i}", "text": text}

    questions = [
        (q["question"], f"p{i}")
        for i, p in enumerate(paragraphs)
        for q in p["qas"]
        if not q["is_impossible"]
    ]
    return rows(), random.Random(1).sample(questions, len(questions))


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    return int(re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) / 1024  # type: ignore[index]


async def ask(client: Any, queries: list[str], at_once: int) -> None:
    waiting = iter(queries)

    async def worker() -> None:
        for query in waiting:
            assert not (await client.call_tool("search", {"query": query})).is_error

    await asyncio.gather(*(worker() for _ in range(at_once)))


async def ask_timed(url: str, queries: list[str]) -> tuple[float, float]:
    """Wall and own CPU seconds of all queries, after a warm-up."""
    from mcp import Client

    async with Client(url) as client:
        await ask(client, queries[:50], 16)
        wall, cpu = time.perf_counter(), time.process_time()
        await ask(client, queries, 16)
        return time.perf_counter() - wall, time.process_time() - cpu


def over_http(corpus: Path, cache: Path, queries: list[str]) -> None:
    argv = [
        sys.executable,
        "-m",
        "quintain_tools.search",
        str(corpus),
        "--cache",
        str(cache),
        "--http",
        "0",
    ]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as server:
        try:
            url = re.search(r"http://\S+", server.stderr.readline())[0]  # type: ignore[index, union-attr]
            asyncio.run(ask_timed(url, queries[:1]))
            before = cpu_seconds(server.pid)
            wall, client_cpu = asyncio.run(ask_timed(url, queries))
            # without the warm-up
            cpu = (cpu_seconds(server.pid) - before) * len(queries) / (len(queries) + 50)
            print(
                f"streamable HTTP, 16 calls at once: {len(queries) / wall:,.0f}/s of wall time, "
                f"{len(queries) / cpu:,.0f}/s of the server's CPU time, "
                f"{len(queries) / client_cpu:,.0f}/s of the client's, server "
                f"{resident_mb(server.pid):.0f} MB"
            )
        finally:
            server.terminate()


def main() -> None:
    from quintain_tools.search import build_index, open_corpus

    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--passages", type=int, default=100_000)
    options.add_argument("--queries", type=int, default=1_000)
    options.add_argument(
        "--quick", action="store_true", help="2,000 passages, 60 queries: does it run?"
    )
    chosen = options.parse_args()
    if chosen.quick:
        chosen.passages, chosen.queries = 2_000, 60
    rows, questions = load(Path(os.environ["QUINTAIN_DATA"]), chosen.passages)
    questions = questions[: chosen.queries]
    with tempfile.TemporaryDirectory() as name:
        corpus, cache = Path(name) / "corpus.jsonl", Path(name) / "cache"
        with corpus.open("w") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        wall, cpu = time.perf_counter(), time.process_time()
        index = build_index(open_corpus(str(corpus)), cache)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        size = sum(f.stat().st_size for f in index.folder.iterdir()) / 1e6
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"build: {wall:.1f} s, {cpu:.1f} s of CPU, {size:.0f} MB on disk, process at most "
            f"{peak:.0f} MB"
        )
        wall, cpu = time.perf_counter(), time.process_time()
        hits = sum(id_ in [hit.passage.id for hit in index.search(q, 5)] for q, id_ in questions)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        print(
            f"index, one thread: {len(questions) / wall:,.0f}/s of wall time, "
            f"{len(questions) / cpu:,.0f}/s of CPU time, recall at 5 {hits / len(questions):.3f}, "
            f"{resident_mb(os.getpid()):.0f} MB"
        )
        over_http(corpus, cache, [q for q, _ in questions])
    print(f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
