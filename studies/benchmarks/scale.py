"""CPU time at scale: prompt lengths, reply lengths, vocabularies, model sizes, many tasks.

Models have random weights and the shape of Qwen3. Rates are 6 (training) or 2 (decoding)
floating-point operations per parameter of the layers and the head and token, plus those of
attention, divided by CPU seconds (`time.process_time`), so that other processes on the machine
disturb them little.

    python -m studies.benchmarks.scale               ten minutes
    python -m studies.benchmarks.scale --only prompt
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from .common import arguments, table, write

GROUP = 16
NEW = 64
SIZES = {  # hidden size, inner size, layers, heads
    "1M": (128, 384, 4, 4),
    "10M": (384, 1024, 6, 6),
    "60M": (768, 2048, 10, 12),
    "160M": (1024, 3072, 14, 16),
}


class Case:
    """A model and what is measured on it."""

    def __init__(self, size: str = "1M", *, vocabulary: int = 2048, dtype: str = "float32") -> None:
        import torch
        from transformers import Qwen3Config, Qwen3ForCausalLM

        torch.manual_seed(0)
        hidden, inner, layers, heads = SIZES[size]
        self.head_dim, self.heads, self.layers = hidden // heads, heads, layers
        config = Qwen3Config(
            vocab_size=vocabulary,
            hidden_size=hidden,
            intermediate_size=inner,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=max(1, heads // 2),
            head_dim=self.head_dim,
            max_position_embeddings=8192,
            tie_word_embeddings=True,
        )
        self.module = Qwen3ForCausalLM(config).eval()
        self.vocabulary, self.dtype = vocabulary, dtype
        # tied: the head once, the embedding free
        self.parameters = sum(p.numel() for p in self.module.parameters())

    def attention(self, queries: int, keys: float) -> float:
        """Operations of a forward pass of attention."""
        return 4.0 * queries * keys * self.head_dim * self.heads * self.layers

    def update(self, prompt: int) -> tuple[float, float]:
        """CPU seconds of one update on a group, and its rate in GFLOP/s."""
        from quintain.learning import ALGORITHMS, Batch, Learner, Sample, TrainingSequence

        draw = random.Random(prompt)
        ids = [draw.randrange(self.vocabulary) for _ in range(prompt)]
        mask = (False,) * prompt + (True,) * NEW
        samples = tuple(
            Sample(
                sequences=(
                    TrainingSequence(
                        ids=(*ids, *(draw.randrange(self.vocabulary) for _ in range(NEW))),
                        mask=mask,
                        logps=tuple(-7.0 * trains for trains in mask),
                        versions=tuple(int(trains) - 1 for trains in mask),
                    ),
                ),
                outcome=float(i % 2),
                group=0,
            )
            for i in range(GROUP)
        )
        precision = "bf16" if self.dtype == "bfloat16" else "float32"
        learner: Any = Learner(self.module, ALGORITHMS["grpo"], lr=1e-6, precision=precision)

        def step() -> None:
            scored = learner.prepare(Batch(samples=samples))
            learner.step(scored, advantages=asyncio.run(learner.compute_advantages(scored)))

        seconds = measured(step)
        tokens = prompt + GROUP * NEW
        attended = self.attention(prompt, prompt / 2) + self.attention(
            GROUP * NEW, prompt + NEW / 2
        )
        return seconds, (6.0 * self.parameters * tokens + 3.0 * attended) / seconds / 1e9

    def decode(self, new: int) -> tuple[float, float]:
        """CPU seconds of decoding *new* tokens in each of `GROUP` rows after a short prompt, and
        its rate.
        """
        import torch

        from quintain.engine.decoding import LayerForward
        from quintain.models.layers import Decoder, fuse_storage

        module = self.module.to(getattr(torch, self.dtype))
        fuse_storage(module)
        decoder = Decoder.of(module)
        assert decoder is not None
        forward, rows = LayerForward(decoder, 8192), list(range(GROUP))

        def run() -> None:
            with torch.inference_mode():
                forward.extend(rows, [[i + 1] * 16 for i in rows], [0] * GROUP)
                ids, done = torch.zeros(GROUP, dtype=torch.long), 0
                while done < new:  # in bursts, as the engine
                    steps = forward.steps([16 + done] * GROUP, count := min(64, new - done))
                    for _ in range(count):
                        ids = steps.step(ids).argmax(-1)
                    done += count

        seconds = measured(run, rounds=1 if new > 1024 else 3)
        attended = self.attention(GROUP * new, 16 + new / 2)
        return seconds, (2.0 * self.parameters * GROUP * new + attended) / seconds / 1e9


def measured(work: Callable[[], object], rounds: int = 3) -> float:
    """Return the median CPU seconds of *work*, after one warm-up."""
    work()
    spent = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        spent.append(time.process_time() - began)
    return statistics.median(spent)


def evaluation(count: int) -> float:
    """CPU seconds of evaluating *count* tasks with a scripted policy."""
    from quintain import Environment, Rollout, Task, reward
    from quintain.evaluation import evaluate, tasks_of
    from quintain_authoring import ScriptedEngine

    @reward
    def right(rollout: Rollout) -> float:
        return float(rollout.reply == rollout.task.answer)

    class Many(Environment[Task, None]):
        def tasks(self, split: str) -> Iterator[Task]:
            return (Task(prompt=f"Say {i}.", answer="7") for i in range(count))

    Many.reward = right
    environment = Many()
    began = time.process_time()
    asyncio.run(
        evaluate(
            environment, ScriptedEngine(replies="7"), tasks=tasks_of(environment, "test", count)
        )
    )
    return time.process_time() - began


def cases(quick: bool) -> Iterator[tuple[str, Callable[[], tuple[float, float] | float]]]:
    """Name and measurement of each row."""
    for prompt in (62, 232, 944, 3768)[: 2 if quick else None]:
        yield f"update, prompt {prompt}", lambda prompt=prompt: Case().update(prompt)
    for new in (64, 256, 1024, 4096)[: 2 if quick else None]:
        yield f"decode, {new} new tokens", lambda new=new: Case().decode(new)
    for vocabulary in (2_048, 16_384, 50_304, 151_936)[: 1 if quick else None]:
        yield f"update, vocabulary {vocabulary}", lambda v=vocabulary: Case(vocabulary=v).update(62)
        yield f"decode, vocabulary {vocabulary}", lambda v=vocabulary: Case(vocabulary=v).decode(64)
    for size in list(SIZES)[: 1 if quick else None]:
        for dtype in ("float32", "bfloat16"):
            yield f"update, {size}, {dtype}", lambda s=size, d=dtype: Case(s, dtype=d).update(62)
            yield f"decode, {size}, {dtype}", lambda s=size, d=dtype: Case(s, dtype=d).decode(64)
    tasks = 200 if quick else 20_000
    yield f"evaluation of {tasks} tasks", lambda: evaluation(tasks)


def main() -> int:
    """Print the table and write studies/benchmarks/results/scale.json."""
    parser = arguments(__doc__)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(options.threads)
    rows: dict[str, dict[str, float]] = {}
    for name, measure in cases(options.quick):
        if options.only in name:
            result = measure()
            seconds, rate = result if isinstance(result, tuple) else (result, 0.0)
            rows[name] = {"cpu_seconds": round(seconds, 3), "gflops": round(rate, 1)}
            print(json.dumps({name: rows[name]}), flush=True)
    lines = [
        [name, f"{row['cpu_seconds']:.3f}", f"{row['gflops']:.1f}"] for name, row in rows.items()
    ]
    print(table(["case", "CPU s", "GFLOP/s"], lines))
    write(
        "scale",
        rows,
        quick=options.quick,
        about={"threads": options.threads, "device": options.device},
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
