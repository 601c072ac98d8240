"""A side of `sharded`: our learner, or a bare training loop with DDP or FSDP2, in processes of its own.

Answers each message with the seconds of some steps, CPU seconds of all its processes, the loss before
the last step, and the memory of each rank.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .common import serve

TICKS = os.sysconf("SC_CLK_TCK")
LR = 1e-4


def sequences_of(count: int, length: int, vocabulary: int) -> list[list[int]]:
    """Return *count* sequences of random ids, alike in every process."""
    draw = random.Random(0)
    return [[draw.randrange(vocabulary) for _ in range(length)] for _ in range(count)]


def cpu_seconds(pids: Sequence[int]) -> float:
    """Return the processor time that the processes have used."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def megabytes(pid: int) -> float:
    """Return the memory that a process has for itself, and its share of what it shares."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def loaded(folder: str) -> Any:
    """Return the model in float32."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def ours(args: argparse.Namespace) -> tuple[Callable[[], float], list[int]]:
    """Return a step of the learner `fsdp`, which gives the loss, and the process ids of its ranks."""
    from quintain.types.transcript import TrainingSequence
    from quintain_learners.fsdp import FsdpLearner

    module = loaded(args.folder)
    rows = sequences_of(args.sequences, args.length, module.config.vocab_size)
    sequences = [
        TrainingSequence(
            ids=tuple(row),
            mask=(False, *[True] * (len(row) - 1)),
            logps=(0.0,) * len(row),
            versions=(0,) * len(row),
        )
        for row in rows
    ]
    learner = FsdpLearner(
        module,
        ranks=args.ranks,
        sharding=args.kind,
        lr=LR,
        token_budget=args.sequences * args.length,
        silence=600.0,
    )
    return lambda: learner.supervised_step(sequences)["loss"], learner.team.pids


def bare_rank(rank: int, args: argparse.Namespace, meeting: str, connection: Any) -> None:
    """Train on a part of the sequences whenever *connection* says so, and answer with the loss."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=args.ranks
    )
    module = loaded(args.folder)
    ids = torch.tensor(sequences_of(args.sequences, args.length, module.config.vocab_size))
    own = ids[rank :: args.ranks]
    trained: nn.Module = module
    if args.kind == "DDP":
        trained = nn.parallel.DistributedDataParallel(module, gradient_as_bucket_view=True)
    else:
        from torch.distributed.fsdp import fully_shard

        for layer in module.model.layers:
            fully_shard(layer)
        fully_shard(module)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=LR, weight_decay=0.0, fused=True)
    while connection.recv():
        logits = trained(input_ids=own, use_cache=False).logits[:, :-1]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), own[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mean: Tensor = loss.detach()
        dist.all_reduce(mean)
        connection.send(float(mean) / args.ranks)
    dist.destroy_process_group()


def bare(args: argparse.Namespace) -> tuple[Callable[[], float], list[int]]:
    """Return a step of the bare loop, and the process ids of its ranks."""
    context = torch.multiprocessing.get_context("spawn")
    meeting = Path(tempfile.mkdtemp(), "meeting")
    ends, pids = [], []
    for rank in range(args.ranks):
        here, there = context.Pipe()
        process = context.Process(
            target=bare_rank, args=(rank, args, str(meeting), there), daemon=True
        )
        process.start()
        ends.append(here)
        pids.append(process.pid or 0)

    def step() -> float:
        for end in ends:
            end.send(True)
        losses = [float(end.recv()) for end in ends]
        return losses[0]

    return step, pids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--kind", required=True)
    for name in ("ranks", "sequences", "length", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    args = parser.parse_args()
    made: list[tuple[Callable[[], float], list[int]]] = []

    def run(round: int) -> dict[str, Any]:  # noqa: A002 - name of the message
        if not made:
            made.append((bare if args.kind in ("DDP", "FSDP2") else ours)(args))
        step, pids = made[0]
        every = [os.getpid(), *pids]
        cpu, began = cpu_seconds(every), time.perf_counter()
        losses = [step() for _ in range(args.steps)]
        return {
            "seconds": time.perf_counter() - began,
            "cpu": cpu_seconds(every) - cpu,
            "loss": losses[-1],
            "tokens": args.steps * args.sequences * args.length,
            "megabytes": [megabytes(pid) for pid in pids],
        }

    serve(run, 1)


if __name__ == "__main__":
    main()
