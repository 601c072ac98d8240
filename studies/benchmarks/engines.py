"""Tokens per second and the time of a weight update, of four ways to sample one model, in turns:

    embedded       this process, decodes the learner's own tensors
    vllm           vLLM in this process, in a thread of its own
    vllm-server    vLLM in processes of its own, asked over HTTP; weights travel by shared memory
    generate       ``transformers.generate`` over the learner's module, without log-probs

A round is one batch on each side: 64 prompts of 32 random ids, all different, 256 new tokens,
temperature 1; no id ends a reply early. Each round begins with a weight update of new values on the
three engines, which is timed by itself (the canary of vLLM included). Needs an environment with
vLLM:

    $(bash tools/vllm_env.sh) -m studies.benchmarks.engines            minutes on two quiet cores
    $(bash tools/vllm_env.sh) -m studies.benchmarks.engines --quick
    python -m studies.benchmarks.engines --device cuda                 with `pip install vllm`
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

from .common import arguments, shown, spread, table, write
from .shapes import VOCABULARY, folder, generate

SIDES = ("embedded", "vllm", "vllm-server", "generate")
PROMPT = 32


class Engines:
    """The sides over one set of weights; context manager that starts and stops those of vLLM."""

    def __init__(self, size: str, rows: int, new: int, device: str) -> None:
        from quintain.engine.embedded import EmbeddedEngine
        from quintain.models.load import load_model
        from quintain_engines.vllm import VLLMEngine, VLLMServer

        # vLLM's kernels of attention on a GPU take half precision; two engines and the learner
        # share its memory
        dtype, options = (
            ("bfloat16", {"gpu_memory_utilization": 0.3}) if device != "cpu" else ("float32", {})
        )
        loaded = load_model(folder(size), dtype=dtype, device=device)
        loaded.tokenizer.stop_ids = ()
        settings: dict[str, Any] = {"slots": rows, "context": 512, "options": options}
        self.module, self.rows, self.new, self.version = loaded.module, rows, new, 0
        self.engines: dict[str, Any] = {
            "embedded": EmbeddedEngine.sharing(loaded.module, loaded.tokenizer, slots=rows),
            "vllm": VLLMEngine.sharing(loaded.module, loaded.tokenizer, **settings),
            "vllm-server": VLLMServer.sharing(loaded.module, loaded.tokenizer, **settings),
        }

    async def __aenter__(self) -> Engines:
        for engine in self.engines.values():
            await engine.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        for engine in self.engines.values():
            await engine.__aexit__(*exc)

    def step(self) -> None:
        """Change the weights a little, as an optimizer would."""
        import torch

        with torch.no_grad():
            for parameter in self.module.parameters():
                parameter.mul_(1.0001)
        self.version += 1

    async def sync(self, side: str) -> float:
        """Seconds of a weight update."""
        from quintain.learning import ModuleWeights

        began = time.perf_counter()
        await self.engines[side].update(ModuleWeights(self.module, self.version))
        return time.perf_counter() - began

    async def sample(self, side: str, round_: int) -> float:
        """Tokens per second of one batch."""
        from quintain.types.sampling import Sampling

        rng = random.Random(f"engines/{round_}")
        prompts = [[rng.randrange(3, VOCABULARY) for _ in range(PROMPT)] for _ in range(self.rows)]
        began = time.perf_counter()
        if side == "generate":
            tokens = generate(self.module, prompts, self.new)
        else:
            engine = self.engines[side]
            calls = (
                engine.sample(p, Sampling(max_tokens=self.new, seed=i))
                for i, p in enumerate(prompts)
            )
            tokens = sum(len(sampled.ids) for sampled in await asyncio.gather(*calls))
        seconds = time.perf_counter() - began
        assert tokens == self.rows * self.new, (side, tokens)
        return tokens / seconds


async def measure(size: str, rounds: int, rows: int, new: int, device: str) -> dict[str, Any]:
    """Speeds and update times per side, over *rounds* rounds after one that does not count."""
    speeds: dict[str, list[float]] = {side: [] for side in SIDES}
    syncs: dict[str, list[float]] = {side: [] for side in SIDES[:-1]}
    async with Engines(size, rows, new, device) as engines:
        for round_ in range(-1, rounds):
            engines.step()
            for side in SIDES if round_ % 2 else reversed(SIDES):
                sync = await engines.sync(side) if side != "generate" else 0.0
                speed = await engines.sample(side, round_)
                if round_ >= 0:
                    speeds[side].append(speed)
                    if side != "generate":
                        syncs[side].append(1000 * sync)
    return {
        side: {
            "tokens_per_second": spread(speeds[side]),
            "over_generate": spread(
                a / b for a, b in zip(speeds[side], speeds["generate"], strict=True)
            ),
            **({"sync_ms": spread(syncs[side])} if side != "generate" else {}),
        }
        for side in SIDES
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", default="", help="sizes whose name contains this")
    args = parser.parse_args()
    import torch

    torch.set_num_threads(args.threads)
    rows, new = (4, 8) if args.quick else (64, 256)
    sizes = (
        ("1.05M",)
        if args.quick
        else ("1.05M", "4.46M", *(("0.6B",) if args.device != "cpu" else ()))
    )
    figures: dict[str, Any] = {}
    lines: list[tuple[str, ...]] = []
    for size in (size for size in sizes if args.only in size):
        rounds = args.rounds or (1 if args.quick else 7)
        figures[size] = asyncio.run(measure(size, rounds, rows, new, args.device))
        for side, f in figures[size].items():
            sync = shown(f["sync_ms"]) if "sync_ms" in f else "-"
            lines.append(
                (
                    size,
                    side,
                    shown(f["tokens_per_second"], digits=5),
                    shown(f["over_generate"], "x"),
                    sync,
                )
            )
    print(table(("model", "sampled by", "tokens/s", "over generate", "update ms"), lines))
    write(
        "engines",
        figures,
        quick=args.quick,
        about={"threads": args.threads, "device": args.device, "rows": rows},
    )


if __name__ == "__main__":
    main()
