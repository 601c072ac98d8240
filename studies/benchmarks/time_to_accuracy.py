"""Seconds of training until held-out greedy accuracy first reaches a target: TRL's GRPOTrainer
against Quintain.

Both start from the same trained default model, train on the same environment (`arithmetic`) with
the same batch, Dr. GRPO, AdamW without decay, clipping at 1, float32, and are judged by the same
outcome on the same held-out tasks every few steps, clock stopped. Both run the same sweep of
learning rates with every seed; each side counts with its own best one: that of the lowest median
over the seeds, among those with which most seeds arrive. The ratio is taken seed by seed.

    python -m studies.benchmarks.time_to_accuracy            about half an hour on two quiet cores
    python -m studies.benchmarks.time_to_accuracy --quick
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

from .common import PEERS, ROOT, Worker, arguments, peers_python, shown, spread, table, write

SIDES = {
    "ours": "studies.benchmarks.quintain_accuracy",
    "theirs": "studies.benchmarks.peers.trl_accuracy",
}
QUICK = {
    "steps": 2,
    "every": 1,
    "tasks": 10,
    "groups": 4,
    "group_size": 4,
    "target": 0.99,
    "seeds": 1,
    "lrs": [1e-4],
}


def start_model(args: Any) -> Path:
    """Return the default model with seed 0, from Quintain's cache or trained now."""
    if args.model:
        return Path(args.model).resolve()
    words = [str(args.threads), args.environment, args.environment_args, args.start_args]
    with Worker(
        "start", [sys.executable, "-m", "studies.benchmarks.quintain_start", *words], args.threads
    ) as worker:
        return Path(worker.about["folder"])


def trial(side: str, model: Path, seed: int, lr: float, args: Any) -> dict[str, Any]:
    """One training run; its curve, and when it arrived."""
    python = peers_python() if side == "theirs" else sys.executable
    options = {
        "environment": args.environment,
        "environment-args": args.environment_args,
        "seed": seed,
        "lr": lr,
        "device": args.device,
        **{
            key: getattr(args, key.replace("-", "_"))
            for key in (
                "steps",
                "every",
                "tasks",
                "groups",
                "group-size",
                "max-tokens",
                "target",
                "threads",
            )
        },
    }
    command = [
        python,
        "-m",
        SIDES[side],
        str(model),
        *(part for k, v in options.items() for part in (f"--{k}", str(v))),
    ]
    with Worker(side, command, args.threads) as worker:
        curve = worker.about["curve"]
    arrived = next((point for point in curve if point["accuracy"] >= args.target), None)
    results = {
        "seed": seed,
        "lr": lr,
        "curve": curve,
        "best": max((p["accuracy"] for p in curve), default=0.0),
    }
    results |= (
        {"seconds": arrived["seconds"], "step": arrived["step"]}
        if arrived
        else {"seconds": None, "step": None}
    )
    print(side, {k: v for k, v in results.items() if k != "curve"}, file=sys.stderr, flush=True)
    return results


def best_rate(trials: list[dict[str, Any]]) -> float:
    """Return the learning rate of the lowest median time, among those with which most seeds arrive:
    one that is too high may jump to the target with one seed and never come near it with another.
    """
    rates = sorted({t["lr"] for t in trials})

    def median(lr: float) -> tuple[int, float, float]:
        times = [
            math.inf if t["seconds"] is None else t["seconds"] for t in trials if t["lr"] == lr
        ]
        bests = [t["best"] for t in trials if t["lr"] == lr]
        return (
            sum(t == math.inf for t in times),
            statistics.median(times),
            -statistics.median(bests),
        )

    return min(rates, key=median)


def row(side: str, rate: float, trials: list[dict[str, Any]]) -> tuple[str, ...]:
    """One side's line of the table."""
    there = [t for t in trials if t["seconds"]]
    times = shown(spread(t["seconds"] for t in there), " s") if there else "never"
    steps = shown(spread(t["step"] for t in there)) if there else ""
    return (side, f"{rate:g}", f"{len(there)} of {len(trials)}", times, steps)


def from_quickstart(args: Any) -> None:
    """Fill in what was not given from the recipe of the quickstart."""
    from quintain.recipe.tables import Recipe
    from quintain.registry.lookup import current

    keys = (
        "environment",
        "environment_args",
        "start_args",
        "groups",
        "group_size",
        "max_tokens",
        "lrs",
    )
    if not any(getattr(args, key) is None for key in keys):
        return
    recipe = Recipe.load(ROOT / "core/quintain/recipes/quickstart.toml")
    task = recipe.environments[0]
    target = current().find("environment", task.use).target
    results = {
        "environment": target,
        "environment_args": json.dumps(task.args),
        "start_args": json.dumps(recipe.model.start.args),
        "groups": recipe.batch.prompts,
        "group_size": recipe.batch.group_size,
        "max_tokens": recipe.sampling.max_tokens,
        "lrs": [round(recipe.learner.lr * factor, 12) for factor in (1 / 3, 1, 3)],
    }
    vars(args).update({key: value for key, value in results.items() if getattr(args, key) is None})


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--model", help="start from this folder instead of the default model")
    parser.add_argument(
        "--environment",
        help="module:Class (default: the quickstart's, as all that says no default)",
    )
    parser.add_argument("--environment-args", help="its configuration, as JSON")
    parser.add_argument("--start-args", help="settings of the default model, as JSON")
    parser.add_argument(
        "--lrs",
        type=float,
        nargs="+",
        help="the sweep (default: 1/3, 1 and 3 times the quickstart's)",
    )
    parser.add_argument("--groups", type=int)
    parser.add_argument("--group-size", type=int)
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--steps", type=int, default=60, help="give up after this many (default: %(default)s)"
    )
    parser.add_argument(
        "--every",
        type=int,
        default=1,
        help="steps between looks at held-out tasks (default: %(default)s)",
    )
    parser.add_argument(
        "--tasks", type=int, default=200, help="held-out tasks (default: %(default)s)"
    )
    parser.add_argument(
        "--target", type=float, default=0.95, help="held-out accuracy (default: %(default)s)"
    )
    args = parser.parse_args()
    if args.quick:
        vars(args).update(QUICK)
    from_quickstart(args)
    model = start_model(args)
    trials: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    for number, (seed, lr) in enumerate((s, lr) for s in range(args.seeds) for lr in args.lrs):
        for side in list(SIDES)[:: 1 if number % 2 else -1]:
            trials[side].append(trial(side, model, seed, lr, args))
    rates = {side: best_rate(results) for side, results in trials.items()}
    chosen = {
        side: [t for t in results if t["lr"] == rates[side]] for side, results in trials.items()
    }
    arrived = [
        (o, t)
        for o, t in zip(chosen["ours"], chosen["theirs"], strict=True)
        if o["seconds"] and t["seconds"]
    ]
    figures: dict[str, Any] = {"best_lr": rates, "trials": trials, "arrived": len(arrived)}
    rows = [row(side, rates[side], results) for side, results in chosen.items()]
    if arrived:
        figures["ratio"] = spread(t["seconds"] / o["seconds"] for o, t in arrived)
        rows.append(("ratio", "", "", shown(figures["ratio"], "x"), "aim 2x"))
    print(table(("side", "best lr", "arrived", f"seconds to {args.target:.0%}", "steps"), rows))
    conditions = {k: v for k, v in vars(args).items() if k not in ("quick", "rounds")} | {
        "model": str(model.name),
        "peers": str(PEERS.relative_to(ROOT)),
    }
    write("time_to_accuracy", json.loads(json.dumps(figures)), quick=args.quick, about=conditions)


if __name__ == "__main__":
    main()
