"""What grows with a run: CPU seconds and memory by rows of a data set, episodes at once, stored
rollouts and steps.

Each size runs in a process of its own, whose CPU seconds and highest resident memory the system
counts (`os.wait4`), so that other work on the machine disturbs little.

    python -m studies.benchmarks.growth --only rows          2,000,000 rows, first and second start
    python -m studies.benchmarks.growth --only episodes      50,000 at once
    python -m studies.benchmarks.growth --only rollouts      1,000,000 stored, `quintain rollouts -n 3`
    python -m studies.benchmarks.growth --only steps         a run of 5,000 steps

`rows` is `quintain train dataset` with one step of a model of 0.1 million parameters. The first
start finds no cache, the second the one of the first. `episodes` are of one turn with an engine
that answers when all have asked. `rollouts` are 250 files of 4,000 rows.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from . import shapes
from .common import arguments, child_environment, table, write

SIZES = {
    "rows": (1_000, 100_000, 2_000_000),
    "episodes": (1_000, 10_000, 50_000),
    "rollouts": (10_000, 100_000, 1_000_000),
    "steps": (500, 5_000),
}
QUICK = {"rows": (100, 200), "episodes": (10, 20), "rollouts": (40, 80), "steps": (4, 8)}
FILE_ROWS = 4_000
RECIPE = """
[run]
steps = {steps}
[model]
name = "{model}"
device = "cpu"
[[environments]]
use = "{environment}"
args = {args}
[algorithm]
use = "dr_grpo"
[sampling]
max_tokens = 4
[batch]
prompts = 2
group_size = 2
[rollouts]
keep = 2
[evaluation]
every = 0
test = {{ tasks = 0 }}
"""


def measured(words: list[str], place: Path, **variables: str) -> dict[str, float]:
    """CPU seconds and peak MB of `python WORDS` in *place*."""
    with (place / "output.txt").open("w") as output:
        child = subprocess.Popen(
            [sys.executable, *words],
            cwd=place,
            env={**child_environment(1), **variables},
            stdout=output,
            stderr=output,
        )
        _, status, used = os.wait4(child.pid, 0)
    if status:
        raise RuntimeError(f"{words} ended with {status}: {(place / 'output.txt').read_text()}")
    return {"cpu": used.ru_utime + used.ru_stime, "mb": used.ru_maxrss / 1000}


def rows(size: int, place: Path) -> dict[str, float]:
    """Train one step on *size* rows, twice."""
    with (place / "data.jsonl").open("w") as file:
        for i in range(size):
            row = {"question": f"What is {i % 977} + {i}?", "answer": str(i % 977 + i)}
            file.write(json.dumps(row) + "\n")
    args = '{ path = "data.jsonl" }'
    model = shapes.folder("0.1M")
    recipe = RECIPE.format(steps=1, model=model, environment="dataset", args=args)
    (place / "recipe.toml").write_text(recipe)
    command = ["-m", "quintain", "train", "recipe.toml", "--quiet", "--name"]
    figures: dict[str, float] = {}
    for start in ("first", "second"):
        found = measured([*command, start], place, QUINTAIN_CACHE=str(place / "cache"))
        figures |= {f"{start} start {key}": value for key, value in found.items()}
    return figures


def episodes(size: int, place: Path) -> dict[str, float]:
    """Play *size* episodes at once."""
    return measured(["-m", "studies.benchmarks.growth", "--play", str(size)], place)


def play(size: int) -> None:
    """Play *size* episodes of one turn, which all wait until the last has asked."""
    from quintain import Engine, Environment, Reply, Rollout, Task, reward
    from quintain.evaluation.evaluation import evaluate

    asked, all_asked = 0, asyncio.Event()

    class Waits(Engine):
        name = "waits"

        async def reply(self, messages: Any, tools: Any, sampling: Any) -> Reply:
            nonlocal asked
            asked += 1
            if asked == size:
                all_asked.set()
            await all_asked.wait()
            return Reply(text="42")

    @reward
    def right(rollout: Rollout[Any, Any]) -> float:
        return float(rollout.reply == "42")

    class Asked(Environment[Task, None]):
        reward = right

        def tasks(self, split: str) -> Iterator[Task]:
            return (Task(prompt=f"What is {i}?", answer="42") for i in range(size))

    environment = Asked()
    found = asyncio.run(
        evaluate(environment, Waits(), tasks=[*environment.tasks("train")], concurrency=size)
    )
    assert sum(r.outcome is not None and r.outcome.total == 1 for r in found.rollouts) == size


def rollouts(size: int, place: Path) -> dict[str, float]:
    """Show three of *size* stored rollouts."""
    import pyarrow as pa
    import pyarrow.parquet

    recipe = RECIPE.format(
        steps=2, model=shapes.folder("0.1M"), environment="arithmetic", args="{}"
    )
    (place / "recipe.toml").write_text(recipe)
    measured(["-m", "quintain", "train", "recipe.toml", "--quiet", "--name", "run"], place)
    run = place / "runs" / "run"
    one = pyarrow.parquet.read_table(run / "rollouts" / "step-000002.parquet")
    count = min(size, FILE_ROWS)
    many = pa.concat_tables([one] * (count // one.num_rows))
    for step in range(1, size // count + 1):
        steps = pa.array([step] * many.num_rows, pa.int64())
        pyarrow.parquet.write_table(
            many.set_column(many.column_names.index("step"), "step", steps),
            run / "rollouts" / f"step-{step:06d}.parquet",
            compression="zstd",
            write_page_checksum=True,
        )
    return measured(["-m", "quintain", "rollouts", "run", "-n", "3"], place)


def steps(size: int, place: Path) -> dict[str, float]:
    """Train *size* steps; also the median seconds of the first and the last tenth of the steps,
    by the clock, and the size of the metrics.
    """
    recipe = RECIPE.format(
        steps=size, model=shapes.folder("0.1M"), environment="arithmetic", args="{}"
    )
    (place / "recipe.toml").write_text(recipe)
    found = measured(["-m", "quintain", "train", "recipe.toml", "--quiet", "--name", "run"], place)
    metrics = place / "runs" / "run" / "metrics.jsonl"
    records = [json.loads(line) for line in metrics.read_text().splitlines()[1:]]
    phases = ("rollouts", "update", "sync")
    seconds = [sum(record[f"seconds.{phase}"] for phase in phases) for record in records]
    tenth = max(1, size // 10)
    found |= {
        "first tenth, s a step": statistics.median(seconds[:tenth]),
        "last tenth, s a step": statistics.median(seconds[-tenth:]),
        "metrics MB": metrics.stat().st_size / 1e6,
    }
    return found


PARTS: dict[str, Callable[[int, Path], dict[str, float]]] = {
    "rows": rows,
    "episodes": episodes,
    "rollouts": rollouts,
    "steps": steps,
}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", choices=[*PARTS], help="this part")
    parser.add_argument("--sizes", type=int, nargs="+", help="instead of those of the page")
    parser.add_argument("--play", type=int, default=0, help="episodes, in this process")
    options = parser.parse_args()
    if options.play:
        play(options.play)
        return
    for name in [options.only] if options.only else [*PARTS]:
        figures: dict[str, Any] = {}
        for size in options.sizes or (QUICK if options.quick else SIZES)[name]:
            with tempfile.TemporaryDirectory(prefix="quintain-growth-") as folder:
                figures[f"{size:,}"] = PARTS[name](size, Path(folder))
            print(name, size, json.dumps(figures[f"{size:,}"]), file=sys.stderr, flush=True)
        keys = list(next(iter(figures.values())))
        print(
            table((name, *keys), [(s, *(f"{f[k]:,.2f}" for k in keys)) for s, f in figures.items()])
        )
        write(f"growth_{name}", figures, quick=options.quick, about={"file_rows": FILE_ROWS})


if __name__ == "__main__":
    main()
