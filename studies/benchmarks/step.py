"""Seconds of one whole optimizer step: TRL's GRPOTrainer against Quintain.

Both: the same random Qwen3-shaped weights and tokenizer, 16 prompts of 37 tokens on average, 8
samples each, replies of a forced length, the same reward function, Dr. GRPO, AdamW, float32 master
weights, gradient clipping at 1, one update per batch, no activation checkpointing. ``fp32`` is
float32 everywhere. ``bf16`` is each side's own bf16: autocast in training on both, autocast (TRL)
or a bfloat16 copy (Quintain) for sampling. ``ragged`` draws the length of every reply uniformly
from 8 to 128: the same multiset of lengths on both sides in every round, so equal numbers of tokens
are sampled and trained.

    python -m studies.benchmarks.step            all cases, about ten minutes on two quiet cores
    python -m studies.benchmarks.step --only 135M
    python -m studies.benchmarks.step --quick
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from .common import Worker, alternate, arguments, peers_python, shown, spread, table, write
from .shapes import folder


@dataclass(frozen=True, kw_only=True)
class Case:
    """One line of the table; *aim* is the ratio asked for."""

    size: str
    precision: str = "fp32"
    low: int = 64
    high: int = 64
    groups: int = 16
    group_size: int = 8
    aim: float | None = None

    @property
    def name(self) -> str:
        lengths = str(self.low) if self.low == self.high else f"{self.low}-{self.high}"
        return f"{self.size} {self.precision} {lengths}"

    def options(self) -> list[str]:
        shape = {
            "precision": self.precision,
            "low": self.low,
            "high": self.high,
            "groups": self.groups,
            "group-size": self.group_size,
        }
        return [part for key, value in shape.items() for part in (f"--{key}", str(value))]


CASES = (
    Case(size="4.46M", aim=1.6),
    Case(size="4.46M", precision="bf16", aim=2.0),
    Case(size="4.46M", low=8, high=128, aim=2.0),
    Case(size="4.46M", precision="bf16", low=8, high=128, aim=2.0),
    Case(size="1.05M", aim=1.6),
    Case(size="1.05M", precision="bf16", aim=2.0),
    Case(size="1.05M", low=8, high=128, aim=2.0),
)
REAL = (
    Case(size="135M", low=48, high=48, groups=8, aim=2.5),
    Case(size="135M", low=16, high=80, groups=8, aim=2.5),
    Case(size="135M", precision="bf16", low=48, high=48, groups=8, aim=2.5),
)
"""SmolLM2-135M; run where ``--only`` names them."""
LARGE = (
    Case(size="0.6B", precision="bf16", low=512, high=512),
    Case(size="0.6B", precision="bf16", low=64, high=512),
)
"""For CUDA machines; run where ``--only`` names them."""
QUICK = (
    Case(size="0.1M", groups=4, low=8, high=8),
    Case(size="0.1M", precision="bf16", groups=4, low=2, high=16),
)


def measure(case: Case, args: Any) -> dict[str, Any]:
    """Both sides in turns; medians, ratio, and what each side says of itself."""
    shared = [
        str(folder(case.size)),
        *case.options(),
        "--threads",
        str(args.threads),
        "--device",
        args.device,
    ]
    extra = [
        part
        for key in ("slots", "budget")
        if getattr(args, key)
        for part in (f"--{key}", str(getattr(args, key)))
    ]
    theirs = ["--micro", str(args.micro)] if args.micro else []
    with (
        Worker(
            "TRL",
            [peers_python(), "-m", "studies.benchmarks.peers.trl_step", *shared, *theirs],
            args.threads,
        ) as trl,
        Worker(
            "Quintain",
            [sys.executable, "-m", "studies.benchmarks.quintain_step", *shared, *extra],
            args.threads,
        ) as quintain,
    ):
        rounds = args.rounds or (2 if args.quick else 9)
        paired = alternate(quintain, trl, rounds=rounds, warmup=1 if args.quick else 2)
        versions = {"ours": quintain.about, "theirs": trl.about}
    for ours, theirs in zip(paired.ours, paired.theirs, strict=True):
        if ours["tokens"] != theirs["tokens"]:
            raise RuntimeError(
                f"{case.name}: unequal work, {ours['tokens']} and {theirs['tokens']} new tokens in "
                f"a round"
            )
    tokens = spread(o["tokens"] for o in paired.ours)
    return {
        "aim": case.aim,
        "samples": case.groups * case.group_size,
        "new_tokens": tokens,
        **paired.summary(),
        "cpu_seconds": paired.summary("cpu"),
        "sampling": paired.summary("sampling"),
        "about": versions,
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", help="cases whose name contains this")
    parser.add_argument("--slots", type=int, help="of Quintain's engine")
    parser.add_argument("--budget", type=int, help="Quintain's tokens per micro-batch")
    parser.add_argument("--micro", type=int, help="TRL's samples per backward pass")
    args = parser.parse_args()
    figures: dict[str, Any] = {}
    cases = (
        QUICK
        if args.quick
        else CASES
        if not args.only
        else [c for c in (*CASES, *REAL, *LARGE) if args.only in c.name]
    )
    for case in cases:
        result = figures[case.name] = measure(case, args)
        print(f"{case.name}: {shown(result['ratio'], 'x')}", file=sys.stderr, flush=True)
    head = (
        "model, precision, new tokens",
        "TRL s/step",
        "Quintain s/step",
        "samples/s",
        "ratio",
        "aim",
        "ratio sampling",
    )
    rows = [
        (
            name,
            shown(f["theirs"]),
            shown(f["ours"]),
            f"{f['samples'] / f['theirs']['median']:.1f} / "
            f"{f['samples'] / f['ours']['median']:.1f}",
            shown(f["ratio"], "x"),
            f"{f['aim']}x" if f["aim"] else "",
            shown(f["sampling"]["ratio"], "x"),
        )
        for name, f in figures.items()
    ]
    print(table(head, rows))
    write("step", figures, quick=args.quick, about={"threads": args.threads, "device": args.device})


if __name__ == "__main__":
    main()
