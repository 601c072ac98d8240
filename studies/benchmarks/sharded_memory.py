"""Memory of the run and of each rank of the learner `fsdp`, against the estimate of ``--dry-run``:
a model of 112 million parameters with random weights, SmolLM2-135M-Instruct, and a mixture of 16
experts whose ranks gather or split them. They start, update twice on the CPU, give all weights to
the run as a delivery to an engine does, and save a checkpoint.

Each case runs in processes of its own. The memory of a process is what it has above that after a
model of a few thousand parameters: so torch, gloo and their threads are left out (they are kept as
``baseline``). Pages that processes share count in parts, so that all together count once. Pages of
files are left out. It is read 20 times a second.

    python -m studies.benchmarks.sharded_memory           needs 9 GB, one case at a time
    python -m studies.benchmarks.sharded_memory --only "135m 2 sharded ranks"
    python -m studies.benchmarks.sharded_memory --quick
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .common import RESULTS, Worker, arguments, serve, table, write

AIM = 0.1
CASES = [
    f"{name} {n} sharded {weights}"
    for name in ("112m", "135m")
    for n in (1, 2, 4)
    for weights in ("run", "ranks")
]
CASES += [f"112m {n} {kind} run" for n in (2, 4) for kind in ("hybrid", "replicated")]
CASES += [f"{name} {n} sharded run" for n in (2, 4) for name in ("mixture", "mixture-split")]
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
        while not self._ended.wait(0.05):
            self._note()

    def _note(self) -> None:
        if phase := self._phase:
            now = [resident(pid) for pid in self.pids]
            before = self.peaks.get(phase, now)
            self.peaks[phase] = [max(pair) for pair in zip(now, before, strict=True)]


def resident(pid: int) -> int:
    """Return the resident bytes of process *pid* without pages of files; of pages that it shares
    with others, its part.
    """
    status = Path(f"/proc/{pid}/smaps_rollup").read_text()
    sizes = (status.partition(name)[2].split()[0] for name in ("Pss_Anon:", "Pss_Shmem:"))
    return 1024 * sum(map(int, sizes))


def model(quick: bool, name: str = "112m") -> Any:
    """Return a model of the shape of Qwen3 with random weights in float32, or of Qwen3-MoE."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

    mixture = name.startswith("mixture")
    sizes = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 10}
    if mixture:
        sizes = {"hidden_size": 512, "num_hidden_layers": 4, "moe_intermediate_size": 1024}
        sizes |= {"num_experts": 16, "num_experts_per_tok": 2}
    if quick:
        sizes |= {"hidden_size": 64, "num_hidden_layers": 2}
        sizes |= {"moe_intermediate_size": 16} if mixture else {"intermediate_size": 128}
    config = (Qwen3MoeConfig if mixture else Qwen3Config)(
        vocab_size=512 if quick else 32_768,
        num_attention_heads=12,
        num_key_value_heads=4,
        head_dim=64,
        tie_word_embeddings=True,
        max_position_embeddings=1024,
        **sizes,
    )
    torch.manual_seed(0)
    return (Qwen3MoeForCausalLM if mixture else Qwen3ForCausalLM)(config).eval()


def plan(case: str, settings: dict[str, Any]) -> Any:
    """Return the plan of a run with the learner of *case*, for sequences of this benchmark."""
    import torch

    from quintain.recipe import plan as plans

    from .gpu.memory import plan_of

    name, ranks, sharding, weights = case.split()
    plans.PROMPT_TOKENS = PROMPT - REPLY  # a sequence is planned for 2 * REPLY tokens and these
    args = {"ranks": int(ranks), "sharding": sharding, "weights": weights, **settings}
    args |= {"checkpoint": "sharded"} | ({"experts": "split"} if "split" in name else {})
    keys = ["learner.use=fsdp", "learner.precision=float32", "model.dtype=float32"]
    keys += [f"learner.args.{key}={json.dumps(value)}" for key, value in args.items()]
    return plan_of(
        torch.device("cpu"), groups=1, group_size=GROUP, new=REPLY, budget=BUDGET, settings=keys
    )


def run(case: str, quick: bool, settings: dict[str, Any]) -> dict[str, Any]:
    """Train and return the bytes of each process by phase, that of the run first, beside the
    estimate.
    """
    import tempfile

    import torch

    from quintain.recipe import memory_of
    from quintain_learners.fsdp import FsdpLearner
    from quintain_learners.fsdp.team import Team

    from .gpu.work import random_batch

    name, _, _, weights = case.split()
    planned = plan(case, settings)
    kind = planned.learner.kind
    options: dict[str, Any] = {
        "ranks": kind.ranks,
        "sharding": kind.sharding,
        "modes": kind.modes,
        "restarts": 0,
        "token_budget": BUDGET,
        "checkpoint": "sharded",
    }
    sizes = {"groups": kind.ranks, "group_size": GROUP, "prompt": PROMPT, "lengths": [REPLY]}
    team = Team(kind.ranks, silence=300.0)
    with tempfile.TemporaryDirectory() as place:
        folder, tiny = Path(place, "model"), Path(place, "tiny")
        model(True, name).save_pretrained(tiny)
        if name == "135m":
            folder = Path("~/.cache/quintain/models/smollm2-135m").expanduser()
        else:
            saving = multiprocessing.get_context("spawn").Process(
                target=save, args=(quick, name, folder)
            )
            saving.start()  # in a process of its own, whose memory is not that of the run
            saving.join()
        loaded = hollow if weights == "ranks" else whole
        bare = FsdpLearner(loaded(tiny), planned.algorithm, team=team, **options)
        bare.step(random_batch(bare.module, **sizes))
        weights_of(bare)
        pids = [os.getpid(), *team.pids]
        baselines = [resident(pid) for pid in pids]
        readings = Readings(pids)
        with readings.phase("start"):
            module = loaded(folder)
            learner = FsdpLearner(module, planned.algorithm, team=team, **options)
        batch = random_batch(module, **sizes)
        estimate = memory_of(planned, module, free=None)
        moments = {"started": [resident(pid) for pid in pids]}
        for _ in range(STEPS):
            with readings.phase("update"):
                learner.step(batch)
        moments["updated"] = [resident(pid) for pid in pids]
        with readings.phase("sync"):
            weights_of(learner)
        with readings.phase("save"):
            saved = Path(place, "saved")
            saved.mkdir()
            learner.begin_save(saved)
            learner.end_save(wait=True)
        readings.end()
        learner.close()
    above = {
        moment: [n - base for n, base in zip(found, baselines, strict=True)]
        for moment, found in (moments | readings.peaks).items()
    }
    numbers, held = estimate.parameters, planned.learner.bytes
    parts = numbers * held.own, numbers * (held.own + held.gradients + held.moments)
    return {
        "parameters": numbers,
        "baseline": baselines,
        "bytes": above,
        "threads": torch.get_num_threads(),
        "estimated": {
            "started": parts[0] / kind.ranks,
            "updated": parts[1] / kind.ranks,
            "update": estimate.each,
            "run": estimate.parameters * 4 if weights == "run" else 0,
        },
    }


def whole(folder: Path) -> Any:
    """Return the model in *folder* in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def hollow(folder: Path) -> Any:
    """Return the model in *folder* without weights."""
    import torch

    from quintain.models.load import module_without_weights

    return module_without_weights(str(folder), torch.float32, None).eval()


def save(quick: bool, name: str, folder: Path) -> None:
    """Save the model *name*."""
    model(quick, name).save_pretrained(folder)


def weights_of(learner: Any) -> int:
    """Read all weights, as the delivery to an engine and its check do; return their bytes."""
    return sum(tensor.nbytes for tensor in learner.weights().tensors().values())


def compared(case: str, figures: dict[str, Any], name: str) -> str:
    """Return what was measured of the largest rank in MB, and by how much it differs from what was
    estimated: its own memory, and its part of the weights that the run shares with all ranks.
    """
    measured = max(figures["bytes"][name][1:])
    estimated = figures["estimated"][name] + shared_by_run(case, figures)
    return f"{measured / 1e6:,.0f} ({100 * (measured / estimated - 1):+.0f} %)"


def shared_by_run(case: str, figures: dict[str, Any]) -> float:
    """Return a process's part of the weights that the run has, which its ranks map as well."""
    _, ranks, _, weights = case.split()
    return 4 * figures["parameters"] / (int(ranks) + 1) if weights == "run" else 0.0


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
    head = ["model, ranks, who has the weights", "started", "after an update", "peak of an update"]
    head += ["sync", "save", "run: started", "estimate", "update", "sync", "save"]
    rows = []
    for case in filter(figures.__contains__, CASES):
        found = figures[case]
        row = [case, *(compared(case, found, name) for name in ("started", "updated", "update"))]
        row += [f"{max(found['bytes'][name][1:]) / 1e6:,.0f}" for name in ("sync", "save")]
        of_run = [found["bytes"][name][0] for name in ("started", "update", "sync", "save")]
        of_run.insert(1, shared_by_run(case, found))
        rows.append([*row, *(f"{n / 1e6:,.0f}" for n in of_run)])
    print(table(head, rows))
    about = {"aim": AIM, "prompt": PROMPT, "reply": REPLY, "settings": args.settings}
    write("sharded_memory", figures, quick=args.quick, about=about)


if __name__ == "__main__":
    main()
