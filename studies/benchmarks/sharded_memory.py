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

from .common import RESULTS, Worker, arguments, serve, table, write

AIM = 0.1
CASES = [f"{n} {sharding}" for n in (2, 4) for sharding in ("sharded", "hybrid", "replicated")]
PROMPT, REPLY, GROUP, STEPS = 16, 16, 2, 2
BUDGET = GROUP * (PROMPT + REPLY)


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


def plan(case: str, settings: dict[str, Any]) -> Any:
    """Return the plan of a run with the learner of *case*, for sequences of this benchmark."""
    import torch

    from quintain.recipe import plan as plans

    from .gpu.memory import plan_of

    ranks, sharding = case.split()
    plans.PROMPT_TOKENS = PROMPT - REPLY  # a sequence is planned for 2 * REPLY tokens and these
    args = {"ranks": int(ranks), "sharding": sharding, **settings}
    keys = ["learner.use=fsdp", "learner.precision=float32", "model.dtype=float32"]
    keys += [f"learner.args.{key}={json.dumps(value)}" for key, value in args.items()]
    return plan_of(
        torch.device("cpu"), groups=1, group_size=GROUP, new=REPLY, budget=BUDGET, settings=keys
    )


def run(case: str, quick: bool, settings: dict[str, Any]) -> dict[str, Any]:
    """Train and return bytes of each rank by phase, beside the estimate."""
    from quintain.recipe.memory import memory_of
    from quintain_learners.fsdp import FsdpLearner
    from quintain_learners.fsdp.team import Team

    from .gpu.work import random_batch

    planned = plan(case, settings)
    kind = planned.learner_kind
    options: dict[str, Any] = {
        "ranks": kind.ranks,
        "sharding": kind.sharding,
        "modes": kind.modes,
        "restarts": 0,
        "token_budget": BUDGET,
    }
    team = Team(kind.ranks, silence=300.0)
    bare = FsdpLearner(model(True), planned.algorithm, team=team, **options)
    sizes = {"groups": kind.ranks, "group_size": GROUP, "prompt": PROMPT, "lengths": [REPLY]}
    bare.step(random_batch(bare.module, **sizes))
    baselines = [anonymous(pid) for pid in team.pids]
    readings = Readings(team.pids)
    module = model(quick)
    estimate = memory_of(planned, module, free=None)
    held = planned.learner_bytes
    with readings.phase("start"):
        learner = FsdpLearner(module, planned.algorithm, team=team, **options)
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
    numbers = estimate.parameters
    parts = numbers * held.own, numbers * (held.own + held.gradients + held.moments)
    return {
        "parameters": numbers,
        "baseline": baselines,
        "bytes": above,
        "estimated": {
            "started": parts[0] / kind.ranks,
            "updated": parts[1] / kind.ranks,
            "update": estimate.each,
        },
    }


def compared(figures: dict[str, Any], name: str) -> tuple[str, str, str]:
    """Return what was measured of the largest rank in MB, what was estimated, and by how much they
    differ.
    """
    measured, estimated = max(figures["bytes"][name]), figures["estimated"][name]
    share = f"{100 * (measured / estimated - 1):+.0f} %"
    return f"{measured / 1e6:,.0f}", f"{estimated / 1e6:,.0f}", share


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", action="append", choices=CASES, help="one case; may be repeated")
    parser.add_argument("--settings", type=json.loads, default={}, help="of the learner, as JSON")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(run, args.threads)
        return
    kept = (RESULTS / "quick" if args.quick else RESULTS) / "sharded_memory.json"
    # Cases that are not measured now keep their figures: each needs minutes.
    figures: dict[str, Any] = {}
    if args.only and kept.exists():
        figures = json.loads(kept.read_text(encoding="utf-8"))["figures"]
    command = [sys.executable, "-m", "studies.benchmarks.sharded_memory", "--serve", "1"]
    for case in args.only or CASES:
        with Worker(case, [*command, "--threads", "1"], 1) as child:
            figures[case] = child.ask(case=case, quick=args.quick, settings=args.settings)
        print(json.dumps({case: figures[case]}), file=sys.stderr, flush=True)
    head = ["ranks"]
    for moment in ("started", "after an update", "peak of an update"):
        head += [f"{moment}, MB", "estimate", ""]
    rows = [
        [case, *(x for name in ("started", "updated", "update") for x in compared(found, name))]
        for case, found in figures.items()
    ]
    print(table(head, rows))
    about = {"aim": AIM, "prompt": PROMPT, "reply": REPLY, "settings": args.settings}
    write("sharded_memory", figures, quick=args.quick, about=about)


if __name__ == "__main__":
    main()
