"""Peak memory of scorer and backward pass at a vocabulary of 151,936 words: the chunked scorer
against full logits.

Given hidden states [N, D] and an output layer [V, D], both ways compute the log-prob of N targets
and its gradients with respect to the hidden states and the output layer. ``full`` is the usual way:
``log_softmax`` of ``hidden @ weight.T`` in float32, then gather. ``gathered`` is the other common
form: the target's logit less ``logsumexp``. Each way runs in a process of its own.

Measured is the peak above what lay there before (weights, hidden states and their gradient buffers,
which every way needs): on a CPU the high-water mark of the resident set, reset just before
(``/proc/self/clear_refs``), on CUDA that of the allocator. The kernel's mark counts pages, so freed
blocks that the C allocator keeps count too; large tensors are mapped and unmapped whole.

    python -m studies.benchmarks.memory       about three minutes on two quiet cores, needs 12 GiB
    python -m studies.benchmarks.memory --quick
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from .common import Worker, arguments, serve, table, write

VOCABULARY = 151_936
WAYS = ("chunked", "full", "gathered")
AIM = 5.0


def run(
    way: str, tokens: int, hidden: int, dtype: str, device: str, vocabulary: int
) -> dict[str, Any]:
    """One forward and backward pass; peak bytes above the start."""
    import torch

    from quintain.models.head import statistics

    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    hidden_ND = (torch.randn(tokens, hidden, device=device, dtype=kind)).requires_grad_()
    weight_VD = (
        torch.randn(vocabulary, hidden, device=device, dtype=kind) * hidden**-0.5
    ).requires_grad_()
    target_N = torch.randint(0, vocabulary, (tokens,), device=device)
    for x in (hidden_ND, weight_VD):
        x.grad = torch.zeros_like(x)
    warm_ND = hidden_ND.detach()[:2]
    statistics(warm_ND, weight_VD.detach()[:64], target_N[:2] % 64)
    before = mark(device)
    began = time.perf_counter()
    if way == "chunked":
        logp_N = statistics(hidden_ND, weight_VD, target_N).logp
    elif way == "full":
        logp_N = (
            (hidden_ND @ weight_VD.t()).float().log_softmax(-1).gather(1, target_N[:, None])[:, 0]
        )
    else:
        logits_NV = (hidden_ND @ weight_VD.t()).float()
        logp_N = logits_NV.gather(1, target_N[:, None])[:, 0] - logits_NV.logsumexp(-1)
        del logits_NV
    loss = -logp_N.mean()
    loss.backward()
    value, norm = float(loss), float(hidden_ND.grad.float().norm())  # type: ignore[union-attr]
    return {
        "bytes": peak(device) - before,
        "seconds": time.perf_counter() - began,
        "loss": value,
        "grad_norm": norm,
    }


def mark(device: str) -> int:
    """Reset the high-water mark; bytes in use now."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak(device: str) -> int:
    """Return the most bytes in use since `mark`."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()
    return _status("VmHWM")


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(key)).split()[1])


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", help="shapes whose name contains this")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(run, args.threads)
        return
    shapes = (
        [(256, 64, "float32")]
        if args.quick
        else [(2048, 1024, "float32"), (4096, 1024, "float32"), (4096, 1024, "bfloat16")]
    )
    figures: dict[str, Any] = {}
    for tokens, hidden, dtype in shapes:
        name = f"{tokens} tokens, hidden {hidden}, {dtype}"
        if args.only and args.only not in name:
            continue
        results: dict[str, Any] = {}
        for way in WAYS:
            with Worker(
                way,
                [
                    sys.executable,
                    "-m",
                    "studies.benchmarks.memory",
                    "--serve",
                    "1",
                    "--threads",
                    str(args.threads),
                ],
                args.threads,
            ) as child:
                results[way] = child.ask(
                    way=way,
                    tokens=tokens,
                    hidden=hidden,
                    dtype=dtype,
                    device=args.device,
                    vocabulary=VOCABULARY,
                )
        results["ratio"] = {
            way: results[way]["bytes"] / results["chunked"]["bytes"] for way in WAYS
        }
        figures[name] = results
        print(json.dumps(results), file=sys.stderr, flush=True)
    rows = [
        (
            name,
            *(f"{f[way]['bytes'] / 2**20:,.0f} MiB, {f[way]['seconds']:.1f} s" for way in WAYS),
            f"{f['ratio']['full']:.1f}x",
            f"{f['ratio']['gathered']:.1f}x",
        )
        for name, f in figures.items()
    ]
    print(table(("shape", *WAYS, "full / chunked", "gathered / chunked"), rows))
    write(
        "memory",
        figures,
        quick=args.quick,
        about={
            "vocabulary": VOCABULARY,
            "aim": AIM,
            "threads": args.threads,
            "device": args.device,
        },
    )


if __name__ == "__main__":
    main()
