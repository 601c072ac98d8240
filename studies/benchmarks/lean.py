"""Ways to train in less memory, against float32: accuracy after 50 steps of the quickstart, and the
bytes that a parameter takes on the device.

Each way starts from the same model and takes the same seed. Accuracy is of 200 test tasks, sampled
at the temperature of training (0.7), with its 95 % interval, and greedy beside it.

    python -m studies.benchmarks.lean       about ten minutes on two quiet cores
    python -m studies.benchmarks.lean --quick --only "8-bit moments"
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from .common import arguments, table, write

STEPS = 50
HALF = ["learner.precision=bf16", "model.dtype=bfloat16"]
LEAN = ["learner.use=lean"]
LORA = ["model.lora={}", "learner.lr=1e-3"]
ADAPTERS = [*HALF, *LORA, *LEAN, "learner.args.optimizer=adamw"]
READ = ["engine.args.merge=false"]
WAYS: dict[str, list[str]] = {
    "float32": [],
    "bf16 autocast": HALF,
    "8-bit moments": [*LEAN, "learner.args.weights=float32"],
    "bfloat16 weights, 8-bit moments": [*HALF, *LEAN],
    "bfloat16 weights, AdamW on the host": [*HALF, *LEAN, "learner.args.optimizer=adamw_host"],
    "LoRA": LORA,
    "LoRA, bf16 autocast": [*HALF, *LORA],
    "LoRA on a bfloat16 base": ADAPTERS,
    "LoRA on an int8 base": [*ADAPTERS, *READ, "learner.args.base=int8"],
    "LoRA on an nf4 base": [*ADAPTERS, *READ, "learner.args.base=nf4"],
}
"""Settings of a recipe by the name of the way."""


def trained(settings: list[str], steps: int, threads: int) -> dict[str, Any]:
    """Train the quickstart for *steps*; return its accuracies and the largest mismatch."""
    changes = [*settings, "stop.accuracy=1.0", f"evaluation.every={steps}", "checkpoint.every=0"]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "quintain", "train", "--folder", folder, "--quiet"]
        command += ["--steps", str(steps), *(word for c in changes for word in ("--set", c))]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
        (run,) = Path(folder).iterdir()
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
        lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    held_out = summary["held_out"]["after"]
    return {
        "before": summary["held_out"]["before"]["accuracy"],
        "sampled": [held_out[key] for key in ("accuracy", "low", "high")],
        "greedy": held_out["other_decoding"]["accuracy"],
        "mismatch": max(json.loads(line).get("mismatch.mean", 0.0) for line in lines),
        "seconds": summary["seconds"]["update"],
    }


def planned(settings: list[str]) -> dict[str, float]:
    """Return the bytes of a parameter by part, as `--dry-run` plans them for Qwen3-0.6B's shape."""
    import torch
    import transformers

    from quintain.models.lora import with_adapters
    from quintain.recipe.memory import memory_of
    from quintain.recipe.plan import RunPlan
    from quintain.recipe.tables import Recipe

    plan = RunPlan.of(Recipe.load("quickstart", settings))
    config = transformers.Qwen3Config(
        vocab_size=151_936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
        num_attention_heads=16, num_key_value_heads=8, head_dim=128, tie_word_embeddings=True,
    )  # fmt: skip
    with torch.device("meta"):
        module: Any = transformers.AutoModelForCausalLM.from_config(config)
    numbers = sum(p.numel() for p in module.parameters())
    if plan.model.lora is not None:
        module = with_adapters(module, plan.model.lora)
    memory = memory_of(plan, module, free=10**12)
    parts = ("weights", "gradients", "moments", "copy")
    return {part: getattr(memory, part) / numbers for part in parts}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", choices=WAYS, help="one way alone")
    args = parser.parse_args()
    figures = {
        way: trained(settings, 2 if args.quick else STEPS, args.threads)
        | {"bytes": planned(settings)}
        for way, settings in WAYS.items()
        if args.only in (None, way)
    }
    lines = []
    for way, figure in figures.items():
        parts = figure["bytes"]
        accuracy, low, high = (f"{100 * x:.1f}" for x in figure["sampled"])
        lines.append(
            (
                way,
                *(f"{parts[part]:.1f}" for part in ("weights", "gradients", "moments", "copy")),
                f"{sum(parts.values()):.1f}",
                f"{accuracy} % ({low} to {high})",
                f"{100 * figure['greedy']:.1f} %",
                f"{figure['mismatch']:.1e}",
            )
        )
    columns = ("way", "weights", "gradients", "moments", "engine", "together")
    print(table((*columns, "sampled at T 0.7", "greedy", "mean mismatch"), lines))
    write("lean", figures, quick=args.quick, about={"steps": STEPS, "threads": args.threads})


if __name__ == "__main__":
    main()
