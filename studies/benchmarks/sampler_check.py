"""What `mismatch.sample` is in half precision, by architecture, and which errors its limit finds.

Random models of the families in ``tests/core/models/architectures.py``, 512 wide with 8 layers,
decode 96 tokens in bfloat16 or float16; the learner scores the same tokens in its own precision.
Weights of norms differ from 1, and a low temperature makes the distribution as peaked as that of a
trained model. The same again with an error in the engine's copy: `rotary` (frequencies 0.8 times),
`norm` (one norm of a middle layer without its weights), `matrix` (one projection of a middle layer
drawn anew), `rows` (two sequences swap their caches after 64 tokens), `position` (the reply begins
one position late).

A run stops where `mismatch.sample`, over the 8 samples, exceeds the limit of half precision.

    python -m studies.benchmarks.sampler_check            an hour on two busy cores
    python -m studies.benchmarks.sampler_check --only qwen3
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import statistics
import warnings
from collections.abc import Sequence
from typing import Any

from .common import arguments, table, write

FAMILIES = (
    "qwen3 llama gemma3 qwen3-moe gpt2 deepseek-v3 olmo2 mistral-window gpt-oss granite-scaled "
    "lfm2 falcon-h1 mixtral qwen2 gemma2 phi3 qwen3-next cohere2 smollm3 glm4 olmoe"
).split()
ERRORS = ("none", "rotary", "norm", "matrix", "rows", "position")
LAYERS, NEW, VOCABULARY = 8, 96, 2048


def wide(name: str, quick: bool) -> Any:
    """Return the model of a family, with random weights in its norms."""
    import torch
    from tests.core.models.architectures import SPREAD, architecture

    small, layers = architecture(name).config, 2 if quick else LAYERS
    width = 64 if quick else 512
    changed: dict[str, Any] = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": 8,
        "head_dim": width // 8,
        "intermediate_size": 2 * width,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 1024,
        "n_positions": 1024,
        "n_embd": width,
        "n_layer": layers,
        "n_head": 8,
        "moe_intermediate_size": width // 2,
        "num_experts": 8,
        "num_local_experts": 8,
        "n_routed_experts": 8,
        "mamba_d_ssm": 2 * width,
        "mamba_d_head": width // 4,
        "query_pre_attn_scalar": width // 8,
    }
    changed = {key: value for key, value in changed.items() if hasattr(small, key)}
    # attention of DeepSeek: its heads keep their parts' sizes
    if hasattr(small, "qk_rope_head_dim"):
        del changed["head_dim"]
        changed["num_key_value_heads"] = 8
    if kinds := getattr(small, "layer_types", None):
        changed["layer_types"] = (list(kinds) * layers)[:layers]
    changed |= {"eos_token_id": VOCABULARY - 2, "pad_token_id": VOCABULARY - 1}
    module = architecture(name, spread=SPREAD * math.sqrt(32 / width), **changed)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for norm in norms(module):
            norm.mul_(torch.empty_like(norm).normal_(0, 0.3, generator=generator).exp())
    return module


def norms(module: Any) -> list[Any]:
    """Weights of all norms, in the order of the layers."""
    return [
        p
        for name, p in module.named_parameters()
        if p.ndim == 1 and name.endswith("weight") and "norm" in name
    ]


def engine_of(module: Any, dtype: str, error: str) -> Any:
    """Return an engine with *error*; ``None`` where its forward cannot have it."""
    import torch

    from quintain.engine.embedded import EmbeddedEngine
    from quintain_authoring.byte_tokenizer import ByteTokenizer

    tokenizer = ByteTokenizer()
    tokenizer.stop_ids = ()
    engine: Any = EmbeddedEngine.sharing(module, tokenizer, dtype=dtype, slots=8)
    copy, forward = engine.snapshot.module, engine._forward
    with torch.no_grad():
        if error == "rotary":
            tables = [b for name, b in copy.named_buffers() if name.endswith("inv_freq")]
            for frequencies in tables:
                frequencies.mul_(0.8)
            return engine if tables else None
        if error == "norm":
            weights = norms(copy)
            if not weights:
                return None
            weights[len(weights) // 2].fill_(1)
        if error == "matrix":
            matrices = [
                p for name, p in copy.named_parameters() if p.ndim == 2 and "embed" not in name
            ]
            middle = matrices[len(matrices) // 2]
            middle.copy_(torch.randn_like(middle) * middle.std())
    if error in ("rows", "position"):
        if forward.store is None:
            return None
        steps, calls = forward.steps, [0]

        def wrong(lengths: Sequence[int], count: int) -> Any:
            calls[0] += 1
            if error == "position":
                lengths = [n + 1 for n in lengths]
            elif calls[0] == 2:
                common = min(lengths[:2])
                forward.store.copy([(0, 1, common), (1, 0, common)])
            return steps(lengths, count)

        forward.steps = wrong
    return engine


def log_probs(
    module: Any, engine: Any, precision: Any, temperature: float, sampled: Any
) -> list[tuple[Any, Any]]:
    """log mu and log prox of the tokens of each sample, [tokens] each."""
    import torch

    from quintain.learning import ALGORITHMS, Batch, Learner, Sample, TrainingSequence

    samples = tuple(
        Sample(
            sequences=(
                TrainingSequence(
                    ids=(*prompt, *out.ids),
                    mask=(False,) * len(prompt) + (True,) * len(out.ids),
                    logps=(0.0,) * len(prompt) + out.logps,
                    versions=(-1,) * len(prompt) + (0,) * len(out.ids),
                ),
            ),
            outcome=0.0,
            group=i,
        )
        for i, (prompt, out) in enumerate(sampled)
    )
    learner: Any = Learner(module, ALGORITHMS["grpo"], lr=1e-6, precision=precision)
    prox = learner.logprobs(Batch(samples=samples, temperature=temperature)).double().cpu()
    mu = torch.tensor([logp for _, out in sampled for logp in out.logps], dtype=torch.float64)
    lengths = [len(out.ids) for _, out in sampled]
    return list(zip(mu.split(lengths), prox.split(lengths), strict=True))


def sample(engine: Any, temperature: float, quick: bool) -> list[tuple[list[int], Any]]:
    from quintain.types.sampling import Sampling

    draw = random.Random(0)
    prompts = [[draw.randrange(VOCABULARY) for _ in range(draw.randint(20, 60))] for _ in range(8)]

    async def run() -> Any:
        tries = (
            engine.sample(
                p, Sampling(max_tokens=16 if quick else NEW, seed=i, temperature=temperature)
            )
            for i, p in enumerate(prompts)
        )
        return await asyncio.gather(*tries)

    return list(zip(prompts, asyncio.run(run()), strict=True))


def compared(by_sample: Sequence[tuple[Any, Any]]) -> float:
    """`mismatch.sample` of a batch of these samples."""
    import torch

    from quintain.models.sampler_mismatch import differences

    mu, prox = (torch.cat(column) for column in zip(*by_sample, strict=True))
    sample = torch.arange(len(by_sample)).repeat_interleave(
        torch.tensor([len(mu) for mu, _ in by_sample])
    )
    return max(differences(prox, mu, sample, torch.ones(len(mu), dtype=torch.bool)).values())


def measure(
    name: str, dtype: str, temperature: float, errors: Sequence[str], quick: bool
) -> dict[str, Any]:
    """Statistics per error and learner precision: medians, means and maxima of each sample's
    gaps.
    """
    from quintain.models.sampler_mismatch import typical_difference

    module = wide(name, quick)
    figures: dict[str, Any] = {}
    for error in errors:
        engine = engine_of(module, dtype, error)
        if engine is None:
            continue
        sampled = sample(engine, temperature, quick)
        half = "fp16" if dtype == "float16" else "bf16"
        for precision in (half, "float32") if error == "none" else (half,):
            by_sample = log_probs(module, engine, precision, temperature, sampled)
            figures[f"{error}, learner {precision}"] = {
                "sample": compared(by_sample),
                "typical": sorted(typical_difference(mu, prox) for mu, prox in by_sample),
                "mean": sorted(float((prox - mu).abs().mean()) for mu, prox in by_sample),
                "max": max(float((prox - mu).abs().max()) for mu, prox in by_sample),
                "path": engine.path,
                "logp": statistics.fmean(x for _, out in sampled for x in out.logps),
            }
    return figures


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", default="", help="one family")
    parser.add_argument("--dtype", default="bfloat16", help="of the engine (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.25, help="(default: %(default)s)")
    args = parser.parse_args()
    import torch

    warnings.filterwarnings("ignore")
    torch.set_num_threads(args.threads)
    from quintain.recipe.plan import MISMATCH_LIMIT_HALF

    figures: dict[str, Any] = {}
    for name in [args.only] if args.only else FAMILIES[: 2 if args.quick else None]:
        try:
            figures[name] = measure(name, args.dtype, args.temperature, ERRORS, args.quick)
        except Exception as error:  # noqa: BLE001 -- a family that cannot be widened by its config says nothing
            print(f"{name}: {type(error).__name__}: {str(error)[:120]}", flush=True)
            continue
        print(json.dumps({name: figures[name]}), flush=True)
    lines = []
    for name, cases in figures.items():
        for case, f in cases.items():
            above_half = sum(x > MISMATCH_LIMIT_HALF for x in f["typical"])
            low, high = f["typical"][0], f["typical"][-1]
            lines.append(
                (name, case, f"{f['sample']:.3f}", f"{low:.3f} to {high:.3f}", f"{above_half} of 8")
            )
    print(
        table(
            (
                "family",
                "error",
                "mismatch.sample",
                "typical difference of 8 samples",
                "above the limit",
            ),
            lines,
        )
    )
    conditions = {"threads": args.threads, "dtype": args.dtype, "temperature": args.temperature}
    write("sampler_check", figures, quick=args.quick, about=conditions)


if __name__ == "__main__":
    main()
