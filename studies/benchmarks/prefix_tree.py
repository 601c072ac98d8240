"""Tokens and time of an update over rewritten histories: beginnings that rows share computed once,
against each row alone.

`four branches`: four conversations of one rollout that share 80 per cent. `group`: four rollouts of
one prompt, each with four such conversations. `chain`: eight turns whose thinking is stripped from
the history of the next, so that each is a row of its own. Both sides run the same code on the same
rows in one process, in turns; a round is one forward and backward pass of each.

    python -m studies.benchmarks.prefix_tree       about five minutes on two quiet cores
    python -m studies.benchmarks.prefix_tree --quick
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from .common import arguments, table, write

VOCABULARY = 2048
AIM = 1.1


def rows_of(case: str, length: int) -> list[list[int]]:
    """Return the rows of *case*, the longest of about *length* tokens."""
    source = random.Random(0)

    def some(count: int) -> list[int]:
        return [source.randrange(VOCABULARY) for _ in range(count)]

    def branches(start: list[int]) -> list[list[int]]:
        history = start + some(length * 4 // 5 - len(start))
        return [history + some(length // 5) for _ in range(4)]

    if case == "four branches":
        return branches([])
    if case == "group":
        prompt = some(length // 10)
        return [row for _ in range(4) for row in branches(prompt)]
    history: list[int] = []
    rows = []
    for _ in range(8):
        rows.append(history + some(length // 8))
        history += some(length // 8)
    return rows


def tree_size(rows: list[list[int]]) -> int:
    """Return the number of different beginnings, which is the least that can be computed."""
    return len({hash(tuple(row[:end])) for row in rows for end in range(1, len(row))})


def measure(case: str, length: int, rounds: int, width: int, layers: int) -> dict[str, Any]:
    """Return tokens through the layers and the medians of paired times, in seconds."""
    import torch
    from tests.core.models.tiny import tiny_model

    from quintain.models.forward import Forward
    from quintain.models.prefix_layout import TokenSequence

    module = tiny_model(
        "qwen3", vocab=VOCABULARY, hidden=width, layers=layers, context=length + 8, spread=0.02
    )
    forward = Forward(module, layout="shared")
    rows = rows_of(case, length)
    group = [TokenSequence(row, range(len(row) - length // 16, len(row))) for row in rows]
    apart = [[row] for row in group]

    def timed(run: Callable[[], Any]) -> tuple[float, float]:
        module.zero_grad()
        began = time.perf_counter()
        loss = run()
        loss.backward()
        return time.perf_counter() - began, float(loss.detach())

    def together() -> Any:
        return -forward.statistics([group]).logp.mean()

    def alone() -> Any:
        """One row at a time, as a budget of one row per micro-batch has it."""
        logps = [forward.statistics([row]).logp for row in apart]
        return -torch.cat(logps).mean()

    timed(together), timed(alone)
    ratios, seconds = [], []
    for number in range(rounds):
        order = (together, alone) if number % 2 == 0 else (alone, together)
        found = {run.__name__: timed(run) for run in order}
        assert abs(found["together"][1] - found["alone"][1]) < 1e-4, found
        ratios.append(found["alone"][0] / found["together"][0])
        seconds.append(found["together"][0])
    computed = forward.cost(group)
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return {
        "computed": computed,
        "tree": tree_size(rows),
        "alone": sum(len(row) - 1 for row in rows),
        "seconds": statistics.median(seconds),
        "faster": statistics.median(ratios),
        "quartiles": [quartiles[0], quartiles[2]],
    }


def main() -> None:
    args = arguments(__doc__).parse_args()
    import torch

    torch.set_num_threads(args.threads)
    rounds = args.rounds or (1 if args.quick else 9)
    lengths = (160,) if args.quick else (1000, 4000)
    width, layers = (32, 2) if args.quick else (512, 8)
    figures = {
        f"{case}, {length} tokens": measure(case, length, rounds, width, layers)
        for case in ("four branches", "group", "chain")
        for length in lengths
        if args.quick or case != "group" or length == 1000
    }
    lines = [
        (
            name,
            f"{f['alone']:,}",
            f"{f['tree']:,}",
            f"{f['computed']:,} ({f['computed'] / f['tree']:.2f}x)",
            f"{f['seconds']:.2f} s",
            f"{f['faster']:.2f}x ({f['quartiles'][0]:.2f}-{f['quartiles'][1]:.2f})",
        )
        for name, f in figures.items()
    ]
    columns = ("case", "tokens alone", "of the tree", "computed", "time", "alone / tree")
    print(table(columns, lines))
    write(
        "prefix_tree",
        figures,
        quick=args.quick,
        about={"aim": AIM, "width": width, "layers": layers, "threads": args.threads},
    )


if __name__ == "__main__":
    main()
