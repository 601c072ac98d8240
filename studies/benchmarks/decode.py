"""Decoding by the embedded engine against a hand-written loop of plain torch, on the same weights
and prompts.

The loop does what one writes for exactly this model and batch: prompts of one length, a
preallocated cache, one call of torch's attention per layer, softmax and ``multinomial``; it also
gathers the log-prob of every token, as training needs it. It has no requests, stop tokens, seeds
per sample or refilled rows.

Rounds alternate; a ratio is loop / engine of one round, so above 1 the engine is faster.

    python -m studies.benchmarks.decode              64 rows, 256 new tokens, 1.05M and 4.46M, both
                                                     precisions
    python -m studies.benchmarks.decode --lengths    CPU time of one step over 16 caches of 64 to
                                                     4,000 tokens, with the bytes that it reads per
                                                     second beside those of a plain sum
    python -m studies.benchmarks.decode --against CHECKOUT
                                                     the engine of another checkout in place of the
                                                     loop
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from .common import Door, Worker, arguments, shown, spread, table, write
from .shapes import SIZES, VOCABULARY, folder

PROMPT = 32
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


class PlainLoop:
    """A Qwen3-shaped model as plain functions over its tensors."""

    def __init__(self, module: Any) -> None:
        import torch
        from torch.nn import functional

        self.torch, self.F, self.config = torch, functional, module.config
        self.weights = {name: parameter.detach() for name, parameter in module.named_parameters()}
        self.rotary = module.model.rotary_emb

    def norm(self, x: Any, name: str) -> Any:
        weight = self.weights[name]
        wide = self.F.rms_norm(x.float(), x.shape[-1:], eps=self.config.rms_norm_eps)
        return weight * wide.to(x.dtype)

    def rotate(self, x: Any, cos: Any, sin: Any) -> Any:
        first, second = x.chunk(2, dim=-1)
        return x * cos + self.torch.cat((-second, first), dim=-1) * sin

    def attend(self, q: Any, k: Any, v: Any) -> Any:
        """Queries [n, H, T, E], keys and values [n, K, S, E] -> [n, H, T, E]."""
        if q.shape[2] > 1:
            return self.F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        # Heads that share keys become queries of one row: three times as fast as `enable_gqa` in
        # bfloat16 on a CPU.
        grouped = q.view(k.shape[0], k.shape[1], -1, q.shape[-1])
        return self.F.scaled_dot_product_attention(grouped, k, v).view(q.shape)

    def forward(self, ids: Any, start: int) -> Any:
        """Append *ids* [n, T] to the cache at *start*; returns the logits after the last, [n,
        V].
        """
        w, linear, config = self.weights, self.F.linear, self.config
        n, new = ids.shape
        cos, sin = self.cos[start : start + new], self.sin[start : start + new]
        x = self.F.embedding(ids, w["model.embed_tokens.weight"])
        for i in range(config.num_hidden_layers):
            prefix = f"model.layers.{i}."
            h = self.norm(x, prefix + "input_layernorm.weight")
            q, k, v = (
                linear(h, w[f"{prefix}self_attn.{part}_proj.weight"])
                .view(n, new, -1, config.head_dim)
                .transpose(1, 2)
                for part in "qkv"
            )
            q = self.rotate(self.norm(q, prefix + "self_attn.q_norm.weight"), cos, sin)
            self.keys[i][:, :, start : start + new] = self.rotate(
                self.norm(k, prefix + "self_attn.k_norm.weight"), cos, sin
            )
            self.values[i][:, :, start : start + new] = v
            mixed = self.attend(
                q, self.keys[i][:, :, : start + new], self.values[i][:, :, : start + new]
            )
            x = x + linear(
                mixed.transpose(1, 2).reshape(n, new, -1), w[prefix + "self_attn.o_proj.weight"]
            )
            h = self.norm(x, prefix + "post_attention_layernorm.weight")
            gate, up = (linear(h, w[f"{prefix}mlp.{part}_proj.weight"]) for part in ("gate", "up"))
            x = x + linear(self.F.silu(gate) * up, w[prefix + "mlp.down_proj.weight"])
        return linear(self.norm(x[:, -1], "model.norm.weight"), w["model.embed_tokens.weight"])

    def sample(self, prompts: Any, new: int) -> tuple[Any, Any]:
        """Ids and log-probs of *new* tokens per row, each [n, new]."""
        torch, config = self.torch, self.config
        n, length = prompts.shape
        shape = (n, config.num_key_value_heads, length + new, config.head_dim)
        like = self.weights["model.norm.weight"]
        self.keys = [like.new_zeros(shape) for _ in range(config.num_hidden_layers)]
        self.values = [like.new_zeros(shape) for _ in range(config.num_hidden_layers)]
        cos, sin = self.rotary(like, torch.arange(length + new, device=like.device)[None])
        self.cos, self.sin = cos[0], sin[0]
        ids, logps = [], []
        logits = self.forward(prompts, 0)
        for t in range(new):
            log_probs = logits.float().log_softmax(-1)
            newest = torch.multinomial(log_probs.exp(), 1)
            ids.append(newest)
            logps.append(log_probs.gather(-1, newest))
            if t + 1 < new:
                logits = self.forward(newest, length + t)
        return torch.cat(ids, 1), torch.cat(logps, 1)


class Sides:
    """Both sides over one set of weights."""

    def __init__(self, size: str, precision: str, rows: int, device: str) -> None:
        import torch

        from quintain.engine.embedded import EmbeddedEngine
        from quintain.models.load import load_model

        loaded: Any = load_model(folder(size), dtype=DTYPES[precision], device=device)
        loaded.tokenizer.stop_ids = ()
        loaded.module.config.max_position_embeddings = 8192
        self.torch, self.rows, self.module = torch, rows, loaded.module
        self.engine = EmbeddedEngine.sharing(loaded.module, loaded.tokenizer, slots=rows)
        self.loop = PlainLoop(loaded.module)

    def prompts(self, round_: int) -> list[list[int]]:
        generator = self.torch.Generator().manual_seed(round_ + 1000)
        drawn: list[list[int]] = self.torch.randint(
            3, VOCABULARY, (self.rows, PROMPT), generator=generator
        ).tolist()
        return drawn

    def by_engine(self, prompts: list[list[int]], new: int) -> tuple[Any, Any]:
        from quintain.types.sampling import Sampling

        async def run() -> Any:
            tries = [
                self.engine.sample(p, Sampling(max_tokens=new, seed=i))
                for i, p in enumerate(prompts)
            ]
            return await asyncio.gather(*tries)

        sampled = asyncio.run(run())
        return self.torch.tensor([s.ids for s in sampled]), self.torch.tensor(
            [s.logps for s in sampled]
        )

    def by_loop(self, prompts: list[list[int]], new: int) -> tuple[Any, Any]:
        with self.torch.inference_mode():
            ids, logps = self.loop.sample(
                self.torch.tensor(prompts, device=self.module.device), new
            )
        return ids.cpu(), logps.cpu()

    def step(self, length: int, steps: int) -> dict[str, Any]:
        """Median CPU seconds of one step of all rows over a cache of *length* tokens; their values
        do not matter.
        """
        with self.torch.inference_mode():
            decoding = self.engine._forward.steps([length] * self.rows, steps + 2)
            ids, seconds = self.torch.arange(self.rows, device=self.module.device), []
            for _ in range(steps + 2):
                burnt = time.process_time()
                decoding.step(ids)
                seconds.append(time.process_time() - burnt)
        return {"cpu": statistics.median(seconds[2:])}

    def timed(self, side: str, round_: int, new: int) -> dict[str, Any]:
        """One round of a side, and how far its log-probs are from those of the module itself on the
        first row.
        """
        prompts = self.prompts(round_)
        began, burnt = time.perf_counter(), time.process_time()
        ids, logps = (self.by_engine if side == "engine" else self.by_loop)(prompts, new)
        if self.module.device.type == "cuda":
            self.torch.cuda.synchronize()
        seconds, cpu = time.perf_counter() - began, time.process_time() - burnt
        assert ids.shape == (self.rows, new), ids.shape
        text = self.torch.tensor([[*prompts[0], *ids[0, :64].tolist()]], device=self.module.device)
        with self.torch.inference_mode():
            module_logps = (
                self.module(input_ids=text).logits[0, PROMPT - 1 : -1].float().log_softmax(-1).cpu()
            )
        off = (module_logps.gather(-1, ids[0, :64, None])[:, 0] - logps[0, :64]).abs().median()
        return {"seconds": seconds, "cpu": cpu, "off": float(off)}


def serve(size: str, precision: str, rows: int, threads: int, device: str) -> None:
    """The child: answers which side's which round."""
    door = Door()
    import torch

    torch.set_num_threads(threads)
    sides = Sides(size, precision, rows, device)
    door.say(torch=torch.__version__, threads=torch.get_num_threads())
    while (message := door.hear()) is not None:
        if "length" in message:
            door.say(**sides.step(message["length"], message["steps"]))
        else:
            door.say(**sides.timed(message["side"], message["round"], message["new"]))


def bandwidth(megabytes: int, threads: int) -> float:
    """GB per CPU second at which this process reads a tensor of that many megabytes: the fastest of
    20 sums.
    """
    import torch

    torch.set_num_threads(threads)
    block = torch.ones(megabytes * 250_000)
    seconds = []
    for _ in range(20):
        burnt = time.process_time()
        block.sum()
        seconds.append(time.process_time() - burnt)
    return megabytes / 1000 / min(seconds)


def cache_bytes(size: str, precision: str) -> int:
    """Bytes of the keys and values of one token."""
    shape = SIZES[size]
    head_dim = shape["hidden_size"] // shape["heads"]
    return (
        2
        * shape["num_hidden_layers"]
        * shape["key_heads"]
        * head_dim
        * (4 if precision == "fp32" else 2)
    )


def measure_lengths(size: str, precision: str, rows: int, args: Any) -> dict[int, dict[str, Any]]:
    """CPU milliseconds of a step per length of the cache; the bytes are those beyond a step over 64
    tokens.
    """
    figures: dict[int, dict[str, Any]] = {}
    with Worker(
        f"{size} {precision}", child_command(size, precision, rows, args), args.threads
    ) as child:
        for length in (64, 256, 1024, 4000)[: 2 if args.quick else None]:
            rounds = [
                child.ask(length=length, steps=2 if args.quick else 8)["cpu"]
                for _ in range(args.rounds or 5)
            ]
            figures[length] = {"step": spread(rounds)}
            bytes_read = cache_bytes(size, precision) * rows * (length - 64)
            extra = figures[length]["step"]["median"] - figures[64]["step"]["median"]
            figures[length]["cache_gb_per_cpu_second"] = (
                bytes_read / 1e9 / extra if extra > 0 else 0.0
            )
    return figures


def child_command(size: str, precision: str, rows: int, args: Any) -> list[str]:
    command = [
        sys.executable,
        "-m",
        "studies.benchmarks.decode",
        "--serve",
        json.dumps([size, precision, rows]),
    ]
    return [*command, "--threads", str(args.threads), "--device", args.device]


def measure(size: str, precision: str, rows: int, new: int, args: Any) -> dict[str, Any]:
    """Rounds of the engine and the other side in turns."""
    command = child_command(size, precision, rows, args)
    answers: dict[str, list[dict[str, Any]]] = {"engine": [], "other": []}
    with ExitStack() as stack:
        child = stack.enter_context(Worker(f"{size} {precision}", command, args.threads))
        other = child
        if args.against:
            other = stack.enter_context(
                Worker("the other checkout", command, args.threads, args.against.resolve())
            )
        for round_ in range(-1, args.rounds or (2 if args.quick else 7)):
            for side in answers if round_ % 2 else reversed(answers):
                by = "engine" if args.against or side == "engine" else "loop"
                answer = (child if side == "engine" else other).ask(side=by, round=round_, new=new)
                assert answer["off"] < (1e-4 if precision == "fp32" else 0.05), answer
                if round_ >= 0:
                    answers[side].append(answer)
    pairs = list(zip(answers["engine"], answers["other"], strict=True))
    return {
        f"{side}_tokens_per_cpu_second": spread(rows * new / a["cpu"] for a in answers[side])
        for side in answers
    } | {
        "ratio": spread(other["seconds"] / engine["seconds"] for engine, other in pairs),
        "ratio_cpu": spread(other["cpu"] / engine["cpu"] for engine, other in pairs),
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument(
        "--lengths", action="store_true", help="one step per length of the cache, without the loop"
    )
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument(
        "--new", type=int, default=256, help="new tokens of each row (default: %(default)s)"
    )
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(*json.loads(args.serve), args.threads, args.device)
        return
    rows, new = (4, 8) if args.quick else (16 if args.lengths else 64, args.new)
    names = [
        f"{size} {precision}"
        for size in (("0.1M",) if args.quick else ("1.05M", "4.46M"))
        for precision in DTYPES
    ]
    figures: dict[str, Any] = {}
    lines: list[tuple[str, ...]] = []
    for name in (name for name in names if args.only in name):
        size, precision = name.split()
        if args.lengths:
            figures[name] = {"read_gb_per_second": bandwidth(200, args.threads)}
            for length, f in measure_lengths(size, precision, rows, args).items():
                figures[name][str(length)] = f
                read = (
                    f"{x:.1f}"
                    for x in (f["cache_gb_per_cpu_second"], figures[name]["read_gb_per_second"])
                )
                lines.append((name, str(length), f"{1000 * f['step']['median']:.2f}", *read))
            continue
        f = figures[name] = measure(size, precision, rows, new, args)
        speeds = (
            shown(f[f"{side}_tokens_per_cpu_second"], digits=5) for side in ("other", "engine")
        )
        lines.append((name, *speeds, *(shown(f[key], "x") for key in ("ratio", "ratio_cpu"))))
    head = (
        "model",
        "before tok/CPU s" if args.against else "loop tok/CPU s",
        "engine tok/CPU s",
        "ratio",
        "CPU ratio",
    )
    if args.lengths:
        head = ("model", "tokens in the cache", "CPU ms a step", "cache GB/CPU s", "sum GB/CPU s")
    print(table(head, lines))
    if not args.against:
        conditions = {"threads": args.threads, "device": args.device, "rows": rows, "new": new}
        write(
            "decode_lengths" if args.lengths else "decode",
            figures,
            quick=args.quick,
            about=conditions,
        )


if __name__ == "__main__":
    main()
