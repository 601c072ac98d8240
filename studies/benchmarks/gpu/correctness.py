"""Part 1: does the device compute the same? Engine against plain forward passes, the learner's
gradient against float64 on the CPU, the check of the sampler with a planted fault, CUDA graphs, and
one step of every algorithm.
"""

from __future__ import annotations

import asyncio
import math
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quintain.console.screen import Screen
from quintain.engine.embedded import EmbeddedEngine
from quintain.interfaces.algorithm import Algorithm
from quintain.learning import Learner
from quintain.models import kernels_of
from quintain.models.probe import plain_log_probs
from quintain.models.sampler_mismatch import SamplerMismatch
from quintain.recipe import Recipe
from quintain.recipe.plan import MISMATCH_LIMIT_FLOAT32, MISMATCH_LIMIT_HALF
from quintain.registry.lookup import current
from quintain.run.build import run_training
from quintain.store.run_folder import RunFolder

from ..quintain_step import RECIPE
from ..shapes import LARGE, folder
from .part import Part, start
from .work import NoText, algorithm, batch_of, module_of, prompts_of, random_batch, sample, sequence

DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16}
LARGEST = 1e-3
"""Nats by which a log-prob of the engine may differ from that of the plain forward in float32."""
TIMES = 1.5
"""How many times the error of the plain forward in bf16 that of the engine may be, as root mean
squares of the differences from float32 with the same weights.
"""
GRADIENT = {"float32": 1e-4, "bf16": 5e-2}
"""Of the norm of the difference from float64 over the norm of the gradient."""
PEAKED = {"initializer_range": 0.1}
"""Wider weights, so that the distributions of a small random model are not almost flat."""


def logps_of(module: Any, prompt: list[int], ids: tuple[int, ...]) -> Tensor:
    """Return the log-probs of *ids* after *prompt* by the module's own forward, on the CPU."""
    with torch.inference_mode():
        logp_TV = plain_log_probs(module, [*prompt, *ids])[len(prompt) - 1 : -1]
        return logp_TV.gather(1, torch.tensor(ids, device=logp_TV.device)[:, None])[:, 0].cpu()


def engine_error(
    size: str, dtype: str, device: torch.device, new: int, **options: Any
) -> dict[str, Any]:
    """Largest difference of the engine's log-probs, as sampled and as scored, from those of the
    plain forward in the same type, and of both from float32 with the same weights; rows of several
    lengths, two of each prompt.
    """
    module = module_of(size, device, DTYPES[dtype], **({} if size in LARGE else PEAKED))
    engine = EmbeddedEngine.sharing(module, NoText(), slots=6, context=512, **options)
    prompts = [p for p in prompts_of(module, [5, 17, 33, 64]) for _ in range(2)]
    replies = sample(engine, prompts, [new, new // 2] * 4)

    async def scored() -> list[list[float]]:
        calls = (engine.score([*p, *r.ids], len(p)) for p, r in zip(prompts, replies, strict=True))
        return list(await asyncio.gather(*calls))

    scores = torch.tensor([x for row in asyncio.run(scored()) for x in row])
    sampled = torch.tensor([x for r in replies for x in r.logps])
    plain = torch.cat([logps_of(module, p, r.ids) for p, r in zip(prompts, replies, strict=True)])
    wide = module.float()
    exact = torch.cat([logps_of(wide, p, r.ids) for p, r in zip(prompts, replies, strict=True)])

    def largest(a: Tensor, b: Tensor) -> float:
        return float((a.double() - b.double()).abs().max())

    def spread(a: Tensor) -> float:
        return float((a.double() - exact.double()).square().mean().sqrt())

    figures = {
        "path": engine.path,
        "tokens": len(sampled),
        "sampled_from_plain": largest(sampled, plain),
        "scored_from_plain": largest(scores, plain),
        "sampled_from_float32": largest(sampled, exact),
        "plain_from_float32": largest(plain, exact),
        "rms_sampled": spread(sampled),
        "rms_plain": spread(plain),
        "least_logp": float(exact.min()),
    }
    if dtype == "float32":
        return figures | {"limit": LARGEST, "ok": figures["sampled_from_plain"] <= LARGEST}
    limit = TIMES * figures["rms_plain"]
    return figures | {"limit": limit, "ok": figures["rms_sampled"] <= limit}


def gradients(module: Any, batch: Any, **settings: Any) -> dict[str, Tensor]:
    """Return the gradient of one update without clipping, by name, in float64 on the CPU."""
    learner = Learner(module, algorithm(), lr=0.0, max_grad_norm=0.0, **settings)
    learner.step(batch)
    return {
        name: parameter.grad.detach().double().cpu()
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }


def gradient_error(
    size: str, device: torch.device, precision: str, **settings: Any
) -> dict[str, Any]:
    """Relative difference of the gradient on *device* from that in float64 on the CPU."""
    reference = module_of(size, torch.device("cpu"), torch.float64, **PEAKED)
    shape = {"groups": 3, "group_size": 4, "prompt": 23, "lengths": (5, 40, 17, 29)}
    batch = random_batch(reference, **shape)
    module = module_of(size, device, **PEAKED)
    with torch.no_grad():
        for ours, theirs in zip(module.parameters(), reference.parameters(), strict=True):
            # the same numbers on both sides, also where generators of devices differ
            ours.copy_(theirs.float())
            theirs.copy_(theirs.float().double())
    exact = gradients(reference, batch, layout="bucketed")
    found = gradients(module, batch, precision=precision, **settings)
    assert exact, "something trains"
    assert exact.keys() == found.keys(), "both sides train the same tensors"
    norm = math.sqrt(sum(float(g.square().sum()) for g in exact.values()))
    gap = math.sqrt(sum(float((found[n] - g).square().sum()) for n, g in exact.items()))
    by_name = {
        n: float((found[n] - g).norm() / g.norm()) for n, g in exact.items() if float(g.norm()) > 0
    }
    worst = max(by_name, key=by_name.__getitem__)
    return {
        "relative_error": gap / norm,
        "worst_tensor": worst,
        "worst_relative_error": by_name[worst],
        "limit": GRADIENT[precision],
        "ok": gap / norm <= GRADIENT[precision],
    }


def live_check(size: str, device: torch.device, dtype: str) -> dict[str, Any]:
    """The check of a run around its update: quiet on a healthy engine, loud on one that kept old
    weights.
    """
    limit = MISMATCH_LIMIT_FLOAT32 if dtype == "float32" else MISMATCH_LIMIT_HALF
    module = module_of(size, device, **PEAKED)
    settings = {"precision": dtype, "max_sample_mismatch": limit, "lr": 1e-6}
    learner = Learner(module, algorithm(), **settings)
    name = {"float32": "float32", "bf16": "bfloat16"}[dtype]
    engine = EmbeddedEngine.sharing(module, NoText(), dtype=name, copy=True, slots=16, context=512)
    prompts = [p for p in prompts_of(module, [12, 30, 21, 9]) for _ in range(4)]

    def stepped() -> dict[str, float]:
        replies = sample(engine, prompts, 48)
        pairs = zip(prompts, replies, strict=True)
        return learner.step(batch_of([sequence(p, r) for p, r in pairs], 4))

    healthy = []
    for _ in range(2):
        asyncio.run(engine.update(learner.weights()))
        healthy.append(stepped()["mismatch.sample"])
    asyncio.run(engine.update(learner.weights()))
    with torch.no_grad():  # the learner moves, the engine's copy does not
        for parameter in module.model.layers[0].parameters():
            parameter.add_(torch.randn_like(parameter) * parameter.std())
    try:
        stepped()
    except SamplerMismatch as error:
        return {"healthy": max(healthy), "planted": error.difference, "limit": limit, "ok": True}
    return {"healthy": max(healthy), "planted": "not found", "limit": limit, "ok": False}


def kernels(part: Part, size: str) -> dict[str, Any]:
    """Which attention kernels passed their check on this device, for the heads of *size*."""
    module = module_of(size, torch.device("cpu"))
    config, found = module.config, {}
    shape = (config.num_attention_heads, config.num_key_value_heads, config.head_dim)
    brought = kernels_of(part.device)
    for name, dtype in DTYPES.items():
        found[name] = brought.described(part.device, dtype, shape) if brought else "with masks"
    on_gpu = part.device.type == "cuda"
    return found | {"ok": not on_gpu or "masks" not in found["bf16"]}


@contextmanager
def counted_replays() -> Iterator[list[int]]:
    """Yield a list of one number: how many CUDA graphs were replayed in the block."""
    replays = [0]
    replay = torch.cuda.CUDAGraph.replay

    def counted(graph: Any) -> None:
        replays[0] += 1
        replay(graph)

    torch.cuda.CUDAGraph.replay = counted  # type: ignore[method-assign]
    try:
        yield replays
    finally:
        torch.cuda.CUDAGraph.replay = replay  # type: ignore[method-assign]


def graphs(part: Part, size: str, dtype: str) -> dict[str, Any]:
    """The engine with CUDA graphs off and on, against the plain forward. Half precision on a GPU
    must have replayed some.
    """
    figures: dict[str, Any] = {"ok": True}
    for name, setting in (("off", False), ("on", True)):
        with counted_replays() as replays:
            error = engine_error(size, dtype, part.device, 32, graphs=setting)
        figures |= {name: error["sampled_from_plain"], f"replays_{name}": replays[0]}
        expected = setting and dtype == "bf16" and part.device.type == "cuda"
        figures["ok"] &= error["ok"] and (replays[0] > 0) == expected
    return figures


def algorithm_names() -> list[str]:
    """Return the names of all algorithms that are installed."""
    registry = current()
    found = [c for c in registry.components("algorithm") if "." not in c.name]
    return [c.name for c in found if isinstance(registry.resolve(c), Algorithm)]


def needed_by(name: str, where: Path) -> list[str]:
    """Return the changes to the recipe with which algorithm *name* has what it needs: a teacher,
    which is the model as it is before the step, a value model, which is fitted into *where*, or the
    engine that samples trees of four answers.
    """
    pieces = current().load("algorithm", name).pieces
    slots = {slot for piece in pieces for slot in piece.needs.values()}
    changes = []
    if "teacher" in slots:
        changes.append(f"services.teacher={{use='teacher', args={{model='{folder('0.1M')}'}}}}")
    if "value" in slots:
        from quintain_algorithms.tree_search import ScoredRow, fit_value

        rows = [ScoredRow(ids=(5, 6, i % 9), first=1, success=i % 2 == 0) for i in range(40)]
        fit_value(str(folder("0.1M")), rows, where / "value")
        changes.append(f"services.value={{use='value-model', args={{model='{where / 'value'}'}}}}")
    if any(piece.name in ("tree_steps", "tree_process") for piece in pieces):
        changes += ["engine.use='tree'", "engine.args={depth=2, by='tokens', size=2}"]
    return changes


def one_step(name: str, device: torch.device, precision: str) -> dict[str, Any]:
    """One step of `quintain train` by algorithm *name* on the smallest model."""
    half = precision == "bf16"
    text = RECIPE.format(
        model=folder("0.1M"),
        dtype="bfloat16" if half else "float32",
        device=device,
        engine_args="",
        high=8,
        groups=4,
        group_size=4,
        lr=1e-4,
        precision=precision,
        learner_extra="",
    )
    text = text.replace("steps = 100000", "steps = 1").replace('"dr_grpo"', f'"{name}"')
    with tempfile.TemporaryDirectory(prefix="quintain-kit-") as where:
        recipe = Recipe.parse(text, needed_by(name, Path(where)))
        with RunFolder.create(Path(where) / "run", recipe.to_toml()) as run_folder:
            run_training(recipe, run_folder, Screen(quiet=True))
            record = run_folder.metrics()[-1]
    return {"loss": record.get("loss"), "updates": record["updates"]}


def all_algorithms(part: Part, precision: str) -> dict[str, Any]:
    """One step of each; what fails is named with its error."""
    failed: dict[str, str] = {}
    names = algorithm_names()
    reached = 0
    began = time.monotonic()
    for name in names:
        if part.left < 20:
            break
        reached += 1
        try:
            found = one_step(name, part.device, precision)
            # a batch whose samples are all idle makes no update, and loss is then absent
            if found["loss"] is not None and not math.isfinite(found["loss"]):
                failed[name] = f"loss {found['loss']}"
        except Exception as error:  # noqa: BLE001  # each is a result
            failed[name] = f"{type(error).__name__}: {error}"[:300]
    return {
        "algorithms": len(names),
        "stepped": reached,
        "names_not_reached": names[reached:],
        "failed": failed,
        "seconds_each": (time.monotonic() - began) / max(1, reached),
        "ok": reached == len(names) and not failed,
    }


def sizes(part: Part) -> Iterator[str]:
    """Yield the shapes of this part."""
    yield "0.1M" if part.rehearse else "4.46M"
    if not part.rehearse:
        yield "0.6B"


def run(part: Part) -> None:
    small, *large = sizes(part)
    device, new = part.device, 16 if part.rehearse else 64
    for size in (small, *large):
        part.measure(f"attention {size}", lambda s=size: kernels(part, s), expected=5)
    for dtype in DTYPES:
        part.measure(
            f"engine {small} {dtype}",
            lambda d=dtype: engine_error(small, d, device, new),
            expected=5,
        )
    for precision in DTYPES:
        for label, settings in (
            ("", {}),
            (", bucketed", {"layout": "bucketed"}),
            (", checkpointing", {"activation_checkpointing": True}),
        ):
            part.measure(
                f"gradient {small} {precision}{label}",
                lambda p=precision, s=settings: gradient_error(small, device, p, **s),
                expected=5,
            )
    for dtype in DTYPES:
        part.measure(
            f"live check {dtype}", lambda d=dtype: live_check(small, device, d), expected=5
        )
    for dtype in DTYPES:
        part.measure(f"CUDA graphs {dtype}", lambda d=dtype: graphs(part, small, d), expected=10)
    for size in large:
        for dtype in DTYPES:
            part.measure(
                f"engine {size} {dtype}",
                lambda s=size, d=dtype: engine_error(s, d, device, new),
                expected=20,
            )
    for precision in ("float32",) if part.rehearse else DTYPES:
        part.measure(
            f"algorithms {precision}", lambda p=precision: all_algorithms(part, p), expected=40
        )


if __name__ == "__main__":
    start(run, __doc__, "1-correctness")
