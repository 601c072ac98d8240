"""Memory of each rank of the learner `fsdp`, against the estimate of ``--dry-run``: a model of 113
million parameters with random weights, two updates on the CPU.

Each case runs in a process of its own. The memory of a rank is its anonymous resident memory above
what the same process had after it trained a model of a few thousand parameters: so torch, gloo and
their threads are left out (they are printed), and so are the weights in the memory that all ranks
share. These count once, in the process of the run. It is read 200 times a second.

    python -m studies.benchmarks.sharded_memory           needs 9 GB, one case at a time
    python -m studies.benchmarks.sharded_memory --only "2 sharded"
    python -m studies.benchmarks.sharded_memory --quick
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .common import Worker, arguments, serve

AIM = 0.1
CASES = [f"{n} {sharding}" for n in (2, 4) for sharding in ("sharded", "hybrid", "replicated")]
PROMPT, REPLY, GROUP, STEPS = 16, 16, 2, 2


class Readings:
    """The most anonymous resident bytes of each of some processes, by phase."""

    def __init__(self, pids: Sequence[int]) -> None:
        self.pids, self.peaks = pids, dict[str, list[int]]()
        self._phase = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Call the readings inside *name*."""
        self._phase = name
        yield
        self._note()
        self._phase = ""

    def end(self) -> None:
        """Stop reading."""
        self._ended.set()
        self._thread.join()

    def _read(self) -> None:
        while not self._ended.wait(0.005):
            self._note()

    def _note(self) -> None:
        if phase := self._phase:
            now = [anonymous(pid) for pid in self.pids]
            before = self.peaks.get(phase, now)
            self.peaks[phase] = [max(pair) for pair in zip(now, before, strict=True)]


def anonymous(pid: int) -> int:
    """Return the resident bytes of process *pid* that are neither pages of files nor shared."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(status.partition("RssAnon:")[2].split()[0])


def model(quick: bool) -> Any:
    """Return a model of the shape of Qwen3 with random weights in float32."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = (
        {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
        if quick
        else {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 10}
    )
    config = Qwen3Config(
        vocab_size=512 if quick else 32_768,
        num_attention_heads=12,
        num_key_value_heads=4,
        head_dim=64,
        tie_word_embeddings=True,
        max_position_embeddings=1024,
        **sizes,
    )
    torch.manual_seed(0)
    return Qwen3ForCausalLM(config).eval()


def run(case: str, quick: bool, settings: dict[str, Any]) -> dict[str, Any]:
    """Train and return bytes of each rank by phase."""
    from quintain.learning import ALGORITHMS
    from quintain_fsdp import FsdpLearner
    from quintain_fsdp.team import Team

    from .gpu.work import random_batch

    count, sharding = case.split()
    ranks = int(count)
    options: dict[str, Any] = {"ranks": ranks, "sharding": sharding, "token_budget": 64, **settings}
    team = Team(ranks, silence=300.0)
    bare = FsdpLearner(model(True), ALGORITHMS["dr_grpo"], team=team, **options)
    sizes = {"groups": ranks, "group_size": GROUP, "prompt": PROMPT, "lengths": [REPLY]}
    bare.step(random_batch(bare.module, **sizes))
    baselines = [anonymous(pid) for pid in team.pids]
    readings = Readings(team.pids)
    module = model(quick)
    numbers = sum(p.numel() for p in module.parameters())
    with readings.phase("start"):
        learner = FsdpLearner(module, ALGORITHMS["dr_grpo"], team=team, **options)
    started = [anonymous(pid) for pid in team.pids]
    batch = random_batch(module, **sizes)
    for _ in range(STEPS):
        with readings.phase("update"):
            learner.step(batch)
    updated = [anonymous(pid) for pid in team.pids]
    with readings.phase("save"):
        learner.state_dict(weights=False)
    readings.end()
    learner.close()
    above = {
        name: [n - base for n, base in zip(found, baselines, strict=True)]
        for name, found in (("started", started), ("updated", updated), *readings.peaks.items())
    }
    return {"parameters": numbers, "baseline": baselines, "bytes": above}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", action="append", choices=CASES, help="one case; may be repeated")
    parser.add_argument("--settings", type=json.loads, default={}, help="of the learner, as JSON")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(run, args.threads)
        return
    command = [sys.executable, "-m", "studies.benchmarks.sharded_memory", "--serve", "1"]
    figures: dict[str, Any] = {}
    for case in args.only or CASES:
        with Worker(case, [*command, "--threads", "1"], 1) as child:
            figures[case] = child.ask(case=case, quick=args.quick, settings=args.settings)
        print(json.dumps({case: figures[case]}), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
