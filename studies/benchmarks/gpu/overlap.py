"""Part 8: what is under way beside something else, which a CPU shows on stand-ins alone: graphs that
stay over updates and are recorded beside a learner, copies through pinned memory, joined maps
without copies, and whether an update repeats.

The ways that Quintain took before are here as well, so that each row has what it saves.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import statistics
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from quintain.engine import sampler
from quintain.engine.embedded import EmbeddedEngine
from quintain.learning import Learner
from quintain.models import layers
from quintain.types.sampling import Sampling
from quintain.types.transcript import Sampled
from quintain_learners.lean import HostAdamW, host

from . import card
from .kernels import waits
from .part import Part, start
from .work import NoText, algorithm, batch_of, module_of, prompts_of, random_batch, sample, sequence


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Let *owner* have *value* for its *name* in the block."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def counted_records() -> Iterator[list[int]]:
    """Yield a list of one number: how many CUDA graphs were recorded in the block."""
    records, begin = [0], torch.cuda.CUDAGraph.capture_begin

    def counted(graph: Any, *args: Any, **options: Any) -> None:
        records[0] += 1
        begin(graph, *args, **options)

    with replaced(torch.cuda.CUDAGraph, "capture_begin", counted):
        yield records


def sampled(engine: EmbeddedEngine, prompts: list[list[int]], new: int) -> list[Sampled]:
    """Let *engine* continue *prompts* as an episode of a run, after which it rests. Each number of
    rows has several steps, so that the first time records it.
    """

    async def together() -> list[Sampled]:
        with engine.register():
            calls = (
                engine.sample(ids, Sampling(seed=i, max_tokens=new - (new // 16) * (i % 5)))
                for i, ids in enumerate(prompts)
            )
            return list(await asyncio.gather(*calls))

    return asyncio.run(together())


def graphs_over_updates(part: Part, size: str, rows: int, new: int) -> dict[str, Any]:
    """Four steps of sampling and training, with graphs and without: the graphs that each step
    recorded, none from the third on where both have room, its seconds, and whether tokens and
    log-probs are the same.
    """
    figures: dict[str, Any] = {}
    replies: dict[str, list[Any]] = {}
    for name, graphs in (("with", True), ("without", False)):
        module = module_of(size, part.device, torch.bfloat16)
        settings = {"lr": 1e-6, "precision": "bf16", "token_budget": 4096}
        learner = Learner(module, algorithm(), **settings)
        engine = EmbeddedEngine.sharing(
            learner.module, NoText(), dtype="bfloat16", copy=True, slots=rows, graphs=graphs,
            context=new + 64,
        )  # fmt: skip
        prompts = [p for p in prompts_of(module, [48] * (rows // 4)) for _ in range(4)]
        records, seconds, replies[name] = [], [], []
        for _ in range(4):
            asyncio.run(engine.update(learner.weights()))
            with counted_records() as counted:
                times = card.seconds(
                    lambda e=engine, p=prompts, r=replies[name]: r.append(sampled(e, p, new)),
                    part.device,
                    warm_up=0,
                    repeats=1,
                )
            records.append(counted[0])
            seconds += times
            pairs = zip(prompts, replies[name][-1], strict=True)
            learner.step(batch_of([sequence(p, r) for p, r in pairs], 4))
        figures |= {f"records_{name}": records, f"sampling_seconds_{name}": seconds}
        del learner, engine
    ids = [[[r.ids for r in step] for step in steps] for steps in replies.values()]
    bits = [[[r.logps for r in step] for step in steps] for steps in replies.values()]
    figures |= {"first_step_equal": bits[0][0] == bits[1][0], "tokens_equal": ids[0] == ids[1]}
    kept = figures["records_with"][2:] == [0, 0]
    return figures | {"ok": kept and figures["first_step_equal"]}


def bits_of_bursts(part: Part, size: str, rows: int, new: int) -> dict[str, Any]:
    """Whether log-probs of few rows keep their bits where bursts end elsewhere, and where the cache
    has more room from an earlier, longer sample.
    """
    module = module_of(size, part.device, torch.bfloat16)
    engine = EmbeddedEngine.sharing(
        module, NoText(), slots=rows, context=4 * new + 64, reproducible=False
    )
    prompts = prompts_of(module, [40] * rows)

    def logps() -> list[Any]:
        return [(reply.ids, reply.logps) for reply in sample(engine, prompts, new)]

    first = logps()
    with replaced(sampler, "BURST_SECONDS", 0.0):
        short = logps()
    sample(engine, prompts, 4 * new)
    figures = {"rows": rows, "bursts_equal": first == short, "room_equal": first == logps()}
    return figures | {"ok": figures["bursts_equal"] and figures["room_equal"]}


def beside_a_learner(part: Part, size: str, new: int) -> dict[str, Any]:
    """Sample, and record graphs, while another thread trains another model and allocates."""
    batch_module = module_of(size, part.device)
    learner = Learner(batch_module, algorithm(), lr=1e-6, precision="bf16", token_budget=2048)
    batch = random_batch(batch_module, groups=2, group_size=2, prompt=16, lengths=[48])
    done, updates = threading.Event(), [0]
    failures: list[str] = []
    held: list[Tensor] = []  # larger each time, so that the device allocates

    def train() -> None:
        try:
            while not done.is_set() or not updates[0]:
                learner.step(batch, advantages=[1.0, -1.0, 1.0, -1.0])
                updates[0] += 1
                held.append(torch.empty(2**25 + 2**20 * len(held), device=part.device))
                del held[:-32]
        except Exception as error:  # noqa: BLE001  # it is the figure
            failures.append(f"{type(error).__name__}: {error}"[:300])

    module = module_of(size, part.device, torch.bfloat16)
    expected = sample(EmbeddedEngine.sharing(module, NoText(), slots=8, context=new + 64),
                      prompts_of(module, [20] * 8), new)  # fmt: skip
    thread = threading.Thread(target=train)
    thread.start()
    try:
        engine = EmbeddedEngine.sharing(module, NoText(), slots=8, context=new + 64)
        with counted_records() as records:
            found = sample(engine, prompts_of(module, [20] * 8), new)
    finally:
        done.set()
        thread.join()
    equal = [r.ids for r in found] == [r.ids for r in expected]
    figures = {"records_beside": records[0], "updates": updates[0], "tokens_equal": equal}
    return figures | {"failed": dict.fromkeys(failures), "ok": equal and not failures}


def waits_for_a_token(part: Part, size: str, rows: int) -> dict[str, Any]:
    """How often the host waits for the device in a step of decoding: once, for its tokens."""
    module = module_of(size, part.device, torch.bfloat16)
    engine = EmbeddedEngine.sharing(module, NoText(), slots=rows, context=256)
    prompts = prompts_of(module, [16] * rows)
    sample(engine, prompts, 64)
    few, many = (waits(lambda n=n: sample(engine, prompts, n), part.device) for n in (16, 80))
    return {"waits_for_a_token": None if few is None or many is None else (many - few) / 64}


def adamw_on_the_host(part: Part, size: str) -> dict[str, Any]:
    """Seconds of a step through pinned memory and by plain copies, and whether weights are equal."""
    figures, weights = {}, []
    for name, pinned in (("pinned", part.device.type == "cuda"), ("plain", False)):
        module = module_of(size, part.device, torch.bfloat16)
        parameters = list(module.parameters())
        generator = torch.Generator(part.device).manual_seed(1)
        for parameter in parameters:
            parameter.grad = torch.randn(
                parameter.shape, generator=generator, device=part.device, dtype=parameter.dtype
            )
        optimizer = HostAdamW([{"params": parameters}], lr=1e-3)
        with replaced(host, "on_gpu", lambda tensors, pinned=pinned: pinned):
            times = card.seconds(optimizer.step, part.device, warm_up=1, repeats=2)
        figures[f"{name}_seconds"] = statistics.median(times)
        weights.append([p.detach().cpu() for p in parameters])
        del module, parameters, optimizer
    equal = all(torch.equal(a, b) for a, b in zip(*weights, strict=True))
    return figures | {"weights_equal": equal, "ok": equal}


def file_of_weights(part: Part, size: str) -> dict[str, Any]:
    """Seconds to write all weights for vLLM through pinned memory and by plain copies."""
    transports = importlib.import_module("quintain_engines.vllm.transports")
    module = module_of(size, part.device)
    tensors = {name: tensor.detach() for name, tensor in module.state_dict().items()}

    class Nobody:
        async def update_weights(self, info: Any) -> None: ...

    def plain(tensor: Tensor, dtype: torch.dtype) -> Tensor:
        return tensor.to("cpu", dtype).contiguous()

    figures = {}
    with tempfile.TemporaryDirectory(prefix="quintain-kit-", dir=memory_folder()) as where:
        transport = transports.File(where)
        transport.dtype = "bfloat16"
        for name, way in (("pinned", transports._begin_to_host), ("plain", plain)):
            with replaced(transports, "_begin_to_host", way):
                figures[f"{name}_seconds"] = statistics.median(
                    card.seconds(
                        lambda: asyncio.run(transport.send(Nobody(), tensors)),
                        part.device,
                        warm_up=1,
                        repeats=2,
                    )
                )
    return figures


def memory_folder() -> str | None:
    """Return the folder in shared memory, where there is one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def concatenated(linear: Any, x: Tensor) -> Tensor:
    """Map *x* as `JoinedLinear` did before: autograd keeps the concatenation."""
    if len(linear.parts) == 1 or not all(type(part) is nn.Linear for part in linear.parts):
        return torch.cat([part(x) for part in linear.parts], dim=-1)
    return functional.linear(x, torch.cat([part.weight for part in linear.parts]))


def joined_maps(part: Part, size: str, tokens: int) -> dict[str, Any]:
    """Peak memory and seconds of an update without checkpointing, and as it was before."""
    figures: dict[str, Any] = {}
    ways = (("now", layers.JoinedLinear._by_parts), ("before", concatenated))
    for name, way in ways:
        with replaced(layers.JoinedLinear, "_by_parts", way):
            module = module_of(size, part.device)
            learner = Learner(module, algorithm(), lr=1e-6, precision="bf16", token_budget=tokens)
            batch = random_batch(
                module, groups=2, group_size=1, prompt=tokens // 4, lengths=[tokens - tokens // 4]
            )
            values = [1.0, -1.0]
            learner.step(batch, advantages=values)
            card.reset_peak(part.device)
            times = card.seconds(
                lambda u=learner, b=batch, v=values: u.step(b, advantages=v),
                part.device, warm_up=0, repeats=3,
            )  # fmt: skip
            figures[f"{name}_peak"] = card.peak(part.device).get("allocated")
            figures[f"{name}_seconds"] = statistics.median(times)
            del learner, module
    return figures


def update_repeats(part: Part, size: str, *, deterministic: bool) -> dict[str, Any]:
    """Whether the same update twice gives the same bits, as it is or with torch's deterministic
    algorithms, which refuse what has none.
    """
    found: list[list[Tensor]] = []
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(deterministic)
    try:
        for _ in range(2):
            module = module_of(size, part.device)
            learner = Learner(module, algorithm(), lr=1e-3, precision="bf16", token_budget=4096)
            batch = random_batch(module, groups=2, group_size=4, prompt=64, lengths=[100, 37])
            learner.step(batch, advantages=[1.0, -1.0] * 4)
            found.append([p.detach().cpu() for p in module.parameters()])
    except RuntimeError as error:
        if not deterministic:
            raise
        return {"refused": str(error)[:300]}
    finally:
        torch.use_deterministic_algorithms(before)
    return {"repeats": all(torch.equal(a, b) for a, b in zip(*found, strict=True))}


def run(part: Part) -> None:
    small = part.rehearse
    # without it torch refuses products in its deterministic mode
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    size, rows, new, tokens = ("0.1M", 8, 12, 64) if small else ("0.6B", 64, 160, 4096)
    steps = {
        f"graphs over updates {size}": (graphs_over_updates, (size, rows, new), 30),
        f"records beside a learner {size}": (beside_a_learner, (size, new), 15),
        f"bits of bursts {size}": (bits_of_bursts, (size, 3, new), 10),
        f"AdamW on the host {size}": (adamw_on_the_host, (size,), 20),
        f"joined maps {size}": (joined_maps, (size, tokens), 15),
        f"waits {size}": (waits_for_a_token, (size, rows), 5),
        f"file of weights {size}": (file_of_weights, (size,), 10),
    }
    for name, (function, shape, expected) in steps.items():
        part.measure(name, lambda f=function, s=shape: f(part, *s), expected=expected)
    for deterministic in (False, True):
        part.measure(
            f"update repeats{', deterministic' if deterministic else ''}",
            lambda d=deterministic: update_repeats(part, size, deterministic=d),
            expected=10,
        )


if __name__ == "__main__":
    start(run, __doc__, "8-overlap")
