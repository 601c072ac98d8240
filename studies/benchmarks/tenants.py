"""Adapters of many tenants on one base: memory, time in turns against time alone, time of samples
that are decoded together against that of one request after the other, and of gradients that are
computed in one pass against those of one pass each.

python -m studies.benchmarks.tenants MODEL --counts 1,8,64 --tenants 8
"""

from __future__ import annotations

import argparse
import gc
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.nn import functional

from quintain import Sampling
from quintain.models import TokenSequence
from quintain_gateway.tinker.adapters import Adapter, AdapterSpec
from quintain_gateway.tinker.compute import Compute, SampleRequest
from quintain_gateway.tinker.requests import Datum, ForwardBackward, TensorData

STEP = {
    "learning_rate": 1e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.0,
    "grad_clip_norm": 0.0,
}  # fmt: skip
MIB = 2**20
SAMPLED = 12
"""Tokens of each sample."""


def resident() -> float:
    """MiB of this process that are in memory."""
    gc.collect()
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def batch(tokens: int) -> ForwardBackward:
    ids = [100 + 7 * i % 900 for i in range(tokens + 1)]
    targets = TensorData(values=ids[1:], shape=(tokens,))
    datum = Datum(ids=ids[:-1], inputs={"target_tokens": targets})
    return ForwardBackward(model_id="m", seq_id=1, data=[datum], loss="cross_entropy")


def memory(compute: Compute, counts: list[int], rank: int) -> None:
    base = resident()
    print(f"base {base:.0f} MiB")
    adapters: list[Adapter] = []
    for count in counts:
        while len(adapters) < count:
            adapters.append(compute.bank.create(AdapterSpec(rank=rank, seed=len(adapters))))
            adapters[-1].step(STEP)  # with moments, as after the first step of a run
        size = sum(
            t.numel() * t.element_size() for t in adapters[0].tensors(optimizer=True).values()
        )
        now = resident()
        each = (now - base) / count
        print(f"N = {count}: {now:.0f} MiB, {each:.1f} per adapter ({size / MIB:.1f} of tensors)")


def update(compute: Compute, adapter: Adapter, request: ForwardBackward) -> None:
    compute.forward_backward(adapter, request)
    adapter.step(STEP)


def turns(compute: Compute, count: int, rank: int, steps: int, tokens: int) -> None:
    request = batch(tokens)
    adapters = [compute.bank.create(AdapterSpec(rank=rank, seed=i)) for i in range(count)]
    update(compute, adapters[0], request)  # what the first pass allocates is not measured
    for name in ("one after the other", "in turns", "one after the other", "in turns"):
        began = time.process_time()
        if name == "in turns":
            for _ in range(steps):
                for adapter in adapters:
                    update(compute, adapter, request)
        else:
            for adapter in adapters:
                for _ in range(steps):
                    update(compute, adapter, request)
        seconds = time.process_time() - began
        rate = count * steps * tokens / seconds
        print(f"{count} runs {name}: {seconds:.1f} s of CPU, {rate:.0f} tokens/s")


def sampling(compute: Compute, count: int, rank: int, rows: int, pairs: int) -> None:
    """Print the CPU time of *count* requests for *rows* samples each, of adapters of their own, and
    check that both ways give the same bits.
    """
    adapters = [compute.bank.create(AdapterSpec(rank=rank, seed=i)) for i in range(count)]
    for adapter in adapters:
        update(compute, adapter, batch(16))  # so that each samples as no other does
    asked = [
        SampleRequest(
            ids=[100 + 7 * (i + k) % 900 for k in range(16)],
            count=rows,
            sampling=Sampling(max_tokens=SAMPLED, seed=i),
        )
        for i in range(count)
    ]
    alone: list[float] = []
    together: list[float] = []
    for pair in range(pairs + 1):  # the first one is not measured
        began = time.process_time()
        expected = [compute.sample(a, r) for a, r in zip(adapters, asked, strict=True)]
        middle = time.process_time()
        found: dict[str, object] = {}
        for i, (adapter, request) in enumerate(zip(adapters, asked, strict=True)):
            assert compute.fits(request), "more samples than slots"
            compute.begin(str(i), adapter, request)
        while len(found) < count:
            found.update(compute.advance())
        if pair:
            alone.append(middle - began)
            together.append(time.process_time() - middle)
        assert [found[str(i)] for i in range(count)] == expected, "other bits"
    tokens = sum(len(s["tokens"]) for one in expected for s in one["sequences"])
    gain = median(a / t for a, t in zip(alone, together, strict=True))
    print(
        f"{count} requests of {rows} samples, {tokens} tokens in all: one after the other "
        f"{median(alone):.2f} s of CPU, together {median(together):.2f} s, {gain:.2f} times as fast "
        f"(median of {pairs} pairs), the same bits",
        flush=True,
    )


def gradients(compute: Compute, count: int, rank: int, lengths: list[int]) -> None:
    """Print the CPU time of the passes of *count* tenants, each with texts of *lengths* tokens, one
    after the other and as one pass, and how many of them have the same bits both ways. The server
    computes them one after the other. Adapters of the output layer are left out.
    """
    spec = {"rank": rank, "unembedding": False}
    adapters = [compute.bank.create(AdapterSpec(seed=i, **spec)) for i in range(count)]
    for adapter in adapters:
        update(compute, adapter, batch(16))  # so that both factors have gradients
    texts = [
        [
            # tenants have them in another order
            TokenSequence([100 + (7 * i + tenant) % 900 for i in range(n + 1)], range(1, n + 1))
            for n in lengths[tenant % len(lengths) :] + lengths[: tenant % len(lengths)]
        ]
        for tenant in range(count)
    ]

    def passed(tenants: list[int]) -> list[Any]:
        rows = [text for tenant in tenants for text in texts[tenant]]
        hidden = compute._forward.hidden([[row] for row in rows]).split(sum(lengths))
        sums = []
        for tenant, part in zip(tenants, hidden, strict=True):
            ids = torch.tensor([i for text in texts[tenant] for i in text.ids[1:]])
            found = compute._statistics(part, compute.bank.head_weight(), ids)
            sums.append(found.logp.sum())
        torch.autograd.backward(torch.stack(sums).sum())
        gradients = [[p.grad for p in adapters[tenant].parameters()] for tenant in tenants]
        for tenant in tenants:
            for parameter in adapters[tenant].parameters():
                parameter.grad = None
        return gradients

    for _ in range(2):  # the first one is not measured
        began, alone = time.process_time(), []
        for tenant, adapter in enumerate(adapters):
            compute.bank.use(adapter)
            alone += passed([tenant])
        middle, size = time.process_time(), sum(lengths)
        blocks = [(slice(k * size, (k + 1) * size), a) for k, a in enumerate(adapters)]
        compute.bank.use_by_rows(blocks)
        together = passed([*range(count)])
        ended = time.process_time()
    same = sum(
        all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
        for one, other in zip(alone, together, strict=True)
    )
    print(
        f"{count} passes of texts of {lengths} tokens: one after the other {middle - began:.2f} s "
        f"of CPU, as one {ended - middle:.2f} s, {(middle - began) / (ended - middle):.2f} times as "
        f"fast; {same} of {count} have the same bits",
        flush=True,
    )


def products(compute: Compute) -> None:
    """Print the CPU time of all products of a pass over the layers, by the number of rows."""
    spec = AdapterSpec(rank=1, seed=0, unembedding=False)
    factors = compute.bank.create(spec).factors.values()
    weights = [torch.randn(len(second), first.shape[1]) for first, second in factors]
    for rows in (1, 4, 8, 16, 32, 64, 128, 256, 512):
        given = {width: torch.randn(rows, width) for width in {w.shape[1] for w in weights}}
        seconds = []
        for _ in range(4):
            began = time.process_time()
            for weight in weights:
                functional.linear(given[weight.shape[1]], weight)
            seconds.append(time.process_time() - began)
        least = 1000 * min(seconds)
        print(f"{rows} rows: {least:.1f} ms, {least / rows:.2f} per row", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--counts", default="1,8,64")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--tenants", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--samples", default="", help="samples of a request, as 1,2,4,8")
    parser.add_argument("--products", action="store_true", help="time of products, by rows")
    parser.add_argument("--texts", default="", help="tokens of the texts of a pass, as 32 or 24,40")
    parser.add_argument("--pairs", type=int, default=3)
    chosen = parser.parse_args()
    compute = Compute(str(Path(chosen.model).expanduser()), slots=64)
    # Memory first: what passes free is used again, and would hide what adapters take.
    if chosen.products:
        products(compute)
    if chosen.counts:
        memory(compute, [int(count) for count in chosen.counts.split(",")], chosen.rank)
    for rows in filter(None, chosen.samples.split(",")):
        sampling(compute, chosen.tenants, chosen.rank, int(rows), chosen.pairs)
    if chosen.texts:
        lengths = [int(length) for length in chosen.texts.split(",")]
        gradients(compute, chosen.tenants, chosen.rank, lengths)
    if chosen.tenants and chosen.steps:
        turns(compute, chosen.tenants, chosen.rank, chosen.steps, chosen.tokens)


if __name__ == "__main__":
    main()
