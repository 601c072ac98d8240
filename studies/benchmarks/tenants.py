"""Adapters of many tenants on one base: memory, and time in turns against time alone.

python -m studies.benchmarks.tenants MODEL --counts 1,8,64 --tenants 8
"""

from __future__ import annotations

import argparse
import gc
import time
from pathlib import Path

from quintain_gateway.tinker.adapters import Adapter, AdapterSpec
from quintain_gateway.tinker.compute import Compute
from quintain_gateway.tinker.requests import Datum, ForwardBackward, TensorData

STEP = {
    "learning_rate": 1e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.0,
    "grad_clip_norm": 0.0,
}  # fmt: skip
MIB = 2**20


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--counts", default="1,8,64")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--tenants", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    chosen = parser.parse_args()
    compute = Compute(str(Path(chosen.model).expanduser()), slots=1)
    # Memory first: what passes free is used again, and would hide what adapters take.
    memory(compute, [int(count) for count in chosen.counts.split(",")], chosen.rank)
    if chosen.tenants:
        turns(compute, chosen.tenants, chosen.rank, chosen.steps, chosen.tokens)


if __name__ == "__main__":
    main()
