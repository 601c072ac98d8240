"""Faults of weight updates at a learning rate of 1e-6: which check finds each, after how many
updates, what the checks cost, and whether healthy updates raise an alarm.

The faults are those of `tests/core/run/weight_faults.py`; each line is a call of the tests'
functions. A learner steps with a learning rate of 1e-6 (with vLLM, every weight moves by 1e-6, as in
a first step of Adam), the fault changes what arrives in the engine, and the checks of a run follow.
"no effect": each bit that the engine computes with is that of the right update.

    python -m studies.benchmarks.weight_faults                                embedded engine
    .venv-vllm/bin/python -m studies.benchmarks.weight_faults --engine vllm    as tools/vllm_env.sh makes it
    python -m studies.benchmarks.weight_faults --updates 1000 --faults none    false alarms alone
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
import warnings
from typing import Any

from .common import arguments, table, write

DTYPES = ("float32", "bfloat16")


def embedded_faults() -> dict[str, list[str]]:
    import pytest
    from tests.core.run.test_weight_faults import outcome
    from tests.core.run.weight_faults import EXPERTS, FAULTS

    rows: dict[str, list[str]] = {}
    for fault in (*FAULTS, *EXPERTS):
        rows[fault.name] = [fault.thread]
        for dtype in DTYPES:
            with pytest.MonkeyPatch.context() as patch:
                means, updates = outcome(fault, dtype, patch)
            rows[fault.name].append(f"{means}, {updates}")
    return rows


def embedded_updates(dtype: str, count: int) -> dict[str, Any]:
    """Alarms in *count* healthy updates, and milliseconds of the comparison."""
    from tests.core.models.tiny import tiny_model
    from tests.core.run.test_weight_faults import Trained

    from quintain.errors import QuintainError

    trained = Trained(tiny_model(hidden=128), dtype)
    alarms, spent = list[str](), list[float]()

    async def run() -> None:
        await trained.begin()
        for _ in range(count):
            try:
                await trained.update()
            except QuintainError as error:
                alarms.append(str(error))
            began = time.perf_counter()
            await trained.compare()
            spent.append(1e3 * (time.perf_counter() - began))

    asyncio.run(run())
    return {"updates": count, "alarms": alarms, "check_ms": statistics.median(spent)}


def vllm_faults() -> dict[str, list[str]]:
    import pytest
    from tests.core.run.weight_faults import FAULTS
    from tests.plugins.engines.vllm.test_weight_faults import moving, sent_wrong

    rows: dict[str, list[str]] = {fault.name: [fault.thread] for fault in FAULTS}
    started: dict[Any, Any] = {}
    for dtype in DTYPES:
        for fault in sorted(FAULTS, key=lambda fault: fault.family):
            running = moving(started, fault.family, dtype)
            with pytest.MonkeyPatch.context() as patch:
                altered = sent_wrong(running, fault, patch)
                means = running.found()[0]
            rows[fault.name].append(f"{means}, 1" if altered[0] else "no effect, 1")
            running.recover()
    while started:
        started.popitem()[1].close()
    return rows


def vllm_updates(dtype: str, count: int) -> dict[str, Any]:
    """Alarms in *count* healthy updates, milliseconds of each part, and the differences of the
    canary in what rounding explains.
    """
    from tests.plugins.engines.vllm.test_weight_faults import Moving

    from quintain.errors import QuintainError
    from quintain.learning import ModuleWeights
    from quintain_engines.vllm.canary import (
        ROUNDING,
        TOLERANCE,
        canary_ids,
        forward_log_probs,
        tolerance_of,
    )

    running = Moving("qwen3", dtype)
    engine: Any = running.engine
    alarms, checksums, checks, updates, noise = [], [], [], [], []
    for _ in range(count):
        running.step()
        weights = ModuleWeights(running.model, running.version)
        began = time.perf_counter()
        try:
            running.update()
        except QuintainError as error:
            alarms.append(str(error))
        updates.append(1e3 * (time.perf_counter() - began))
        if running.version % 10 == 0:
            began = time.perf_counter()
            running.do(engine.outdated(weights))
            checksums.append(1e3 * (time.perf_counter() - began))
            engine._checked = running.version
            began = time.perf_counter()
            running.do(engine._check(weights))
            checks.append(1e3 * (time.perf_counter() - began))
            ids = canary_ids(engine._vocabulary, engine.context)
            log_probs = forward_log_probs(running.model, ids)
            limit = tolerance_of(running.model, ids, log_probs, dtype)
            noise.append(
                engine.differences[-1] / (limit if dtype in TOLERANCE else limit / ROUNDING)
            )
    running.close()
    return {
        "updates": count,
        "alarms": alarms,
        "checksums_ms": statistics.median(checksums),
        "check_ms": statistics.median(checks),
        "update_ms": statistics.median(updates),
        "canary_nats": [statistics.median(engine.differences), max(engine.differences)],
        "canary_in_rounding": [statistics.median(noise), max(noise)],
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--engine", choices=("embedded", "vllm"), default="embedded")
    parser.add_argument("--updates", type=int, default=0, help="healthy updates per type")
    parser.add_argument("--faults", choices=("all", "none"), default="all")
    args = parser.parse_args()
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    import torch

    warnings.filterwarnings("ignore")
    torch.set_num_threads(args.threads)
    vllm = args.engine == "vllm"
    figures: dict[str, Any] = {}
    if args.faults == "all":
        figures["faults"] = rows = vllm_faults() if vllm else embedded_faults()
        print(table(("fault", "thread", *DTYPES), [(name, *row) for name, row in rows.items()]))
    healthy = vllm_updates if vllm else embedded_updates
    for dtype in DTYPES if args.updates else ():
        figures[f"healthy, {dtype}"] = healthy(dtype, args.updates)
        print(dtype, figures[f"healthy, {dtype}"], flush=True)
    about = {"engine": args.engine, "threads": args.threads, "load": os.getloadavg()[0]}
    write("weight_faults", figures, quick=args.quick, about=about)


if __name__ == "__main__":
    main()
