"""Sampled tokens per second: the embedded engine against ``transformers.generate``, in one process,
on the same weights, in turns.

    fixed    64 prompts of 32 tokens, all different, 256 new tokens each
    group    16 prompts of 37 tokens, 8 samples each, 64 new tokens: the shape of a training step
    ragged   256 prompts of 32 tokens, 16 to 256 new tokens, drawn uniformly: both sides sample the
             same lengths. ``generate`` takes four batches of 64 as they come, or all 256 at once;
             the engine has 64 rows that it resamples, or 256: the faster way counts on either side

Temperature 1 on both sides; the engine also returns the log-prob of every token, ``generate`` does
not. Tokens that count are those that were asked for; what ``generate`` computes for rows that have
ended does not. Prompts are random ids, no id ends a reply early. bf16 is a model cast to bfloat16
on both sides.

    python -m studies.benchmarks.engine            about five minutes on two quiet cores
    python -m studies.benchmarks.engine --quick
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .common import Door, Worker, arguments, shown, spread, table, write
from .shapes import VOCABULARY, folder, generate


@dataclass(frozen=True, kw_only=True)
class Case:
    """One line of the table: *groups* prompts with *group_size* samples each; *aim* is the ratio
    asked for.
    """

    shape: str
    size: str
    precision: str = "fp32"
    groups: int = 64
    group_size: int = 1
    prompt: int = 32
    low: int = 256
    high: int = 256
    slots: int = 64
    aim: float | None = None

    @property
    def name(self) -> str:
        return f"{self.shape} {self.size} {self.precision}"

    @property
    def batches(self) -> tuple[int, ...]:
        """Sequences at once that either side may choose between."""
        samples = self.groups * self.group_size
        return tuple(sorted({min(self.slots, samples), samples}))


def _cases() -> tuple[Case, ...]:
    shapes: dict[str, dict[str, int]] = {
        "fixed": {},
        "group": {"groups": 16, "group_size": 8, "prompt": 37, "low": 64, "high": 64, "slots": 128},
        "ragged": {"groups": 256, "low": 16},
    }
    models = (
        ("1.05M", "fp32", 2.0),
        ("1.05M", "bf16", 2.0),
        ("4.46M", "fp32", 1.5),
        ("4.46M", "bf16", 2.0),
    )
    return tuple(
        Case(shape=shape, size=size, precision=precision, aim=aim, **settings)
        for shape, settings in shapes.items()
        for size, precision, aim in models
    )


QUICK = (
    Case(shape="fixed", size="0.1M", groups=4, low=8, high=8),
    Case(shape="group", size="0.1M", groups=2, group_size=4, low=8, high=8),
    Case(shape="ragged", size="0.1M", precision="bf16", groups=8, low=2, high=16, slots=4),
)


class Sides:
    """Both sides over one set of weights."""

    def __init__(self, case: Case, device: str) -> None:
        import torch

        from quintain.engine.embedded import EmbeddedEngine
        from quintain.models.load import load_model

        self.case, self.torch = case, torch
        dtype = {"fp32": "float32", "bf16": "bfloat16"}[case.precision]
        loaded = load_model(folder(case.size), dtype=dtype, device=device)
        loaded.tokenizer.stop_ids = ()
        self.model = loaded.module
        self.engines = {
            n: EmbeddedEngine.sharing(loaded.module, loaded.tokenizer, slots=n)
            for n in case.batches
        }
        assert all(engine.shares for engine in self.engines.values()), (
            "both sides decode the same tensors"
        )

    def work(self, round_: int) -> tuple[list[list[int]], list[int]]:
        """Prompts and new tokens of one round, one of each per sample."""
        rng, case = random.Random(f"{self.case.name}/{round_}"), self.case
        prompts = [
            [rng.randrange(3, VOCABULARY) for _ in range(case.prompt)] for _ in range(case.groups)
        ]
        rows = [p for p in prompts for _ in range(case.group_size)]
        return rows, [rng.randint(case.low, case.high) for _ in rows]

    def sample(self, rows: Sequence[list[int]], counts: Sequence[int], slots: int) -> int:
        """Tokens sampled by the engine with *slots* rows."""
        import asyncio

        from quintain.types.sampling import Sampling

        async def run() -> int:
            jobs = enumerate(zip(rows, counts, strict=True))
            tries = [
                self.engines[slots].sample(p, Sampling(max_tokens=n, seed=i)) for i, (p, n) in jobs
            ]
            return sum(len(s.ids) for s in await asyncio.gather(*tries))

        return asyncio.run(run())

    def generate(self, rows: Sequence[list[int]], counts: Sequence[int], batch: int) -> int:
        """Tokens asked for; every batch runs to its longest."""
        done = 0
        for start in range(0, len(rows), batch):
            part, lengths = rows[start : start + batch], counts[start : start + batch]
            assert generate(self.model, part, max(lengths)) == max(lengths) * len(part)
            done += sum(lengths)
        return done

    def timed(self, side: str, batch: int, round_: int) -> dict[str, Any]:
        """One side's round."""
        rows, counts = self.work(round_)
        began, burnt = time.perf_counter(), time.process_time()
        tokens = (self.sample if side == "engine" else self.generate)(rows, counts, batch)
        if self.model.device.type == "cuda":
            self.torch.cuda.synchronize()
        seconds, cpu = time.perf_counter() - began, time.process_time() - burnt
        assert tokens == sum(counts), (tokens, sum(counts))
        return {"seconds": seconds, "cpu": cpu, "tokens": tokens, "per_second": tokens / seconds}


def serve(case: Case, threads: int, device: str) -> None:
    """The child: answers which side's which round."""
    door = Door()
    import torch

    torch.set_num_threads(threads)
    sides = Sides(case, device)
    door.say(torch=torch.__version__, threads=torch.get_num_threads())
    while (message := door.hear()) is not None:
        door.say(**sides.timed(message["side"], message["batch"], message["round"]))


def measure(case: Case, args: Any) -> dict[str, Any]:
    """Rounds in turns; each side counts with the batch that suits it best."""
    ways = [(side, batch) for side in ("engine", "generate") for batch in case.batches]
    results: dict[tuple[str, int], list[dict[str, Any]]] = {way: [] for way in ways}
    command = [
        sys.executable,
        "-m",
        "studies.benchmarks.engine",
        "--serve",
        json.dumps(asdict(case)),
    ]
    command += ["--threads", str(args.threads), "--device", args.device]
    rounds = args.rounds or (2 if args.quick else 5)
    with Worker(case.name, command, args.threads) as child:
        for round_ in range(-1, rounds):
            for side, batch in ways if round_ % 2 else reversed(ways):
                answer = child.ask(side=side, batch=batch, round=round_)
                if round_ >= 0:
                    results[side, batch].append(answer)
    speeds = {way: spread(a["per_second"] for a in answers) for way, answers in results.items()}
    ours, theirs = (
        max((w for w in ways if w[0] == s), key=lambda w: speeds[w]["median"])
        for s in ("engine", "generate")
    )
    pairs = list(zip(results[ours], results[theirs], strict=True))
    return {
        "aim": case.aim,
        "tokens_per_second": {f"{side} {batch}": speed for (side, batch), speed in speeds.items()},
        "engine": speeds[ours] | {"batch": ours[1]},
        "generate": speeds[theirs] | {"batch": theirs[1]},
        "ratio": spread(o["per_second"] / t["per_second"] for o, t in pairs),
        "ratio_cpu_seconds": spread(t["cpu"] / o["cpu"] for o, t in pairs),
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", help="cases whose name contains this")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(Case(**json.loads(args.serve)), args.threads, args.device)
        return
    figures: dict[str, Any] = {}
    for case in QUICK if args.quick else _cases():
        if args.only and args.only not in case.name:
            continue
        results = figures[case.name] = measure(case, args)
        print(f"{case.name}: {shown(results['ratio'], 'x')}", file=sys.stderr, flush=True)
    rows = [
        (
            name,
            f"{shown(f['generate'], digits=5)} at {f['generate']['batch']}",
            f"{shown(f['engine'], digits=5)} at {f['engine']['batch']}",
            shown(f["ratio"], "x"),
            f"{f['aim']}x" if f["aim"] else "",
        )
        for name, f in figures.items()
    ]
    print(
        table(("shape, model, precision", "generate tok/s", "engine tok/s", "ratio", "aim"), rows)
    )
    write(
        "engine", figures, quick=args.quick, about={"threads": args.threads, "device": args.device}
    )


if __name__ == "__main__":
    main()
