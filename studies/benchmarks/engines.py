"""Tokens per second and the time of a weight update, of several ways to sample one model, in turns:

    embedded       this process, decodes the learner's own tensors
    vllm           vLLM in this process, in a thread of its own
    vllm-server    vLLM in processes of its own, asked over HTTP; weights travel by shared memory
    generate       ``transformers.generate`` over the learner's module, without log-probs
    llama.cpp      its server on a GGUF file of the same model, asked over HTTP, without log-probs
                   and without weight updates; where ``--llama`` names the program

A round is one batch on each side: 64 prompts of 32 random ids, all different, 256 new tokens,
temperature 1; no id ends a reply early. Of 135M, SmolLM2, the prompts have 60 ids, each is sampled
eight times, and replies have 48 tokens. Each round begins with a weight update of new values on the
engines, which is timed by itself (the canary of vLLM included). Needs an environment with vLLM:

    $(bash tools/vllm_env.sh) -m studies.benchmarks.engines            minutes on two quiet cores
    $(bash tools/vllm_env.sh) -m studies.benchmarks.engines --quick
    $(bash tools/vllm_env.sh) -m studies.benchmarks.engines --only 135M --rows 8 --precision bf16 \\
        --llama llama-server --gguf model-f16.gguf
    python -m studies.benchmarks.engines --device cuda                 with `pip install vllm`
"""

from __future__ import annotations

import asyncio
import random
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from .common import arguments, shown, spread, table, write
from .shapes import VOCABULARY, folder, generate

SIDES = ("embedded", "vllm", "vllm-server", "generate", "llama.cpp")
UPDATED = frozenset(SIDES[:3])
REST = 2.0
"""Seconds between two sides: threads of servers wait for work in a loop for a while."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The work of a round: *rows* sequences of *new* tokens after prompts of *prompt* ids, *each*
    of one prompt.
    """

    rows: int = 64
    each: int = 1
    prompt: int = 32
    new: int = 256

    def prompts(self, round_: int) -> list[list[int]]:
        rng = random.Random(f"engines/{round_}")
        ids = [
            [rng.randrange(3, VOCABULARY) for _ in range(self.prompt)]
            for _ in range(self.rows // self.each)
        ]
        return [prompt for prompt in ids for _ in range(self.each)]


class LlamaServer:
    """llama.cpp's own server with as many slots as rows; prompts that it knows are not computed
    again, as in the other engines.
    """

    def __init__(self, program: str, gguf: str, rows: int, threads: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        slots = ["--parallel", str(rows), "--ctx-size", str(512 * rows), "--no-kv-unified"]
        self._command = [
            *(program, "--model", gguf, "--port", str(self._port), "--threads", str(threads)),
            *(*slots, "--no-webui", "--log-disable"),
        ]

    def _start(self) -> None:
        quiet = subprocess.DEVNULL
        self._server = subprocess.Popen(self._command, stdout=quiet, stderr=quiet)

    async def __aenter__(self) -> LlamaServer:
        self._start()
        connector = aiohttp.TCPConnector(limit=0)
        self._client = aiohttp.ClientSession(
            f"http://127.0.0.1:{self._port}",
            connector=connector,
            timeout=aiohttp.ClientTimeout(600),
        )
        while self._server.poll() is None:
            try:
                async with self._client.get("/health") as answer:
                    if answer.status == 200:
                        return self
            except aiohttp.ClientConnectionError:
                pass
            await asyncio.sleep(0.2)
        raise RuntimeError(f"llama.cpp's server ended with status {self._server.returncode}")

    async def __aexit__(self, *exc: object) -> None:
        await self._client.close()
        self._server.terminate()
        self._server.wait()

    async def sample(self, prompts: Sequence[Sequence[int]], new: int) -> int:
        """Return how many tokens were sampled."""

        async def one(ids: Sequence[int], seed: int) -> int:
            request = {
                "prompt": list(ids),
                "n_predict": new,
                "seed": seed,
                "ignore_eos": True,
                "temperature": 1.0,
                "samplers": ["temperature"],
                "cache_prompt": True,
            }
            async with self._client.post("/completion", json=request) as answer:
                answer.raise_for_status()
                return int((await answer.json())["tokens_predicted"])

        return sum(await asyncio.gather(*(one(ids, i) for i, ids in enumerate(prompts))))


class Engines:
    """The sides over one set of weights; context manager that starts and stops their servers."""

    def __init__(
        self,
        size: str,
        batch: Batch,
        device: str,
        precision: str,
        sides: Sequence[str],
        llama: LlamaServer | None,
    ) -> None:
        from quintain.engine.embedded import EmbeddedEngine
        from quintain.models.load import load_model
        from quintain_engines.vllm import VLLMEngine, VLLMServer

        # vLLM's kernels of attention on a GPU take half precision; two engines and the learner
        # share its memory
        on_gpu, rows = device != "cpu", batch.rows
        options = {"gpu_memory_utilization": 0.3} if on_gpu else {}
        dtype = "bfloat16" if on_gpu or precision == "bf16" else "float32"
        loaded = load_model(folder(size), dtype=dtype, device=device)
        loaded.tokenizer.stop_ids = ()
        settings: dict[str, Any] = {"slots": rows, "context": 512, "options": options}
        if dtype == "bfloat16":
            settings["canary_tolerance"] = 1.0  # 135M differs by 0.4 nats on the canary's text
        self.module, self.batch, self.version = loaded.module, batch, 0
        kinds: dict[str, Any] = {"vllm": VLLMEngine, "vllm-server": VLLMServer}
        self.engines: dict[str, Any] = {
            "embedded": EmbeddedEngine.sharing(loaded.module, loaded.tokenizer, slots=rows)
        }
        for side in kinds:
            if side in sides:
                self.engines[side] = kinds[side].sharing(
                    loaded.module, loaded.tokenizer, **settings
                )
        if llama is not None:
            self.engines["llama.cpp"] = llama

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

        prompts, new = self.batch.prompts(round_), self.batch.new
        began = time.perf_counter()
        if side == "generate":
            tokens = generate(self.module, prompts, new)
        elif side == "llama.cpp":
            tokens = await self.engines[side].sample(prompts, new)
        else:
            engine = self.engines[side]
            calls = (
                engine.sample(p, Sampling(max_tokens=new, seed=i)) for i, p in enumerate(prompts)
            )
            tokens = sum(len(sampled.ids) for sampled in await asyncio.gather(*calls))
        seconds = time.perf_counter() - began
        assert tokens == self.batch.rows * new, (side, tokens)
        return tokens / seconds


async def measure(
    size: str,
    rounds: int,
    batch: Batch,
    device: str,
    precision: str = "fp32",
    sides: Sequence[str] = SIDES[:-1],
    llama: LlamaServer | None = None,
) -> dict[str, Any]:
    """Speeds and update times per side, over *rounds* rounds after one that does not count."""
    speeds: dict[str, list[float]] = {side: [] for side in sides}
    syncs: dict[str, list[float]] = {side: [] for side in sides}
    async with Engines(size, batch, device, precision, sides, llama) as engines:
        for round_ in range(-1, rounds):
            engines.step()
            for side in sides if round_ % 2 else reversed(sides):
                await asyncio.sleep(REST)
                sync = await engines.sync(side) if side in UPDATED else 0.0
                speed = await engines.sample(side, round_)
                if round_ >= 0:
                    speeds[side].append(speed)
                    syncs[side].append(1000 * sync)
    return {
        side: {
            "tokens_per_second": spread(speeds[side]),
            "over_generate": spread(
                a / b for a, b in zip(speeds[side], speeds["generate"], strict=True)
            ),
            **({"sync_ms": spread(syncs[side])} if side in UPDATED else {}),
        }
        for side in sides
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", default="", help="sizes whose name contains this")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--rows", type=int, default=64, help="sequences of a round")
    parser.add_argument("--without", default="", help="sides to leave out, with commas")
    parser.add_argument("--llama", help="llama.cpp's server program")
    parser.add_argument("--gguf", help="the same model as a file that it reads")
    args = parser.parse_args()
    import torch

    torch.set_num_threads(args.threads)
    sizes = ("1.05M",) if args.quick else ("1.05M", "4.46M")
    if args.only in ("135M", "0.6B"):
        sizes = (args.only,)
    figures: dict[str, Any] = {}
    lines: list[tuple[str, ...]] = []
    for size in (size for size in sizes if args.only in size):
        rounds = args.rounds or (1 if args.quick else 7)
        batch = Batch(rows=4, new=8) if args.quick else Batch(rows=args.rows)
        if size == "135M":
            batch = Batch(rows=args.rows, each=8, prompt=60, new=48)
        llama, left_out = None, {*args.without.split(","), "" if args.llama else "llama.cpp"}
        sides = [side for side in SIDES if side not in left_out]
        if args.llama:
            llama = LlamaServer(args.llama, args.gguf, batch.rows, args.threads)
        measuring = measure(size, rounds, batch, args.device, args.precision, sides, llama)
        figures[size] = asyncio.run(measuring)
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
        "engines" if args.only != "135M" else f"engines-135M-{args.precision}-{args.rows}",
        figures,
        quick=args.quick,
        about={"threads": args.threads, "device": args.device, "rows": args.rows},
    )


if __name__ == "__main__":
    main()
