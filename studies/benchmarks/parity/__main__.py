"""Loss, gradient and advantages of each method against TRL's, from the same weights, tokens, masks,
log-probs and rewards.

Every value that TRL and Quintain choose differently is set on both sides; the last column says what
TRL does otherwise unless told. Errors are relative: the largest difference of any entry over the
largest entry (of a loss: over its size, at least 0.001). ``float32`` is TRL untouched; in
``float64`` its log-prob kernel, which reduces in float32, gives way to a plain log_softmax, and so
do norms and rotary embeddings of transformers on both sides.

    python -m studies.benchmarks.parity            about a minute
    python -m studies.benchmarks.parity --only GSPO

Exits with 1 where a difference exceeds `LIMITS`, or where a case cannot tell its method from
another one.
"""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from ..common import ROOT, child_environment, peers_python, table, write
from .cases import ABSENT, CASES, SHAPE, VOCABULARY, Case
from .ours import Found, compute, sampler_logps

LIMITS = {"float64": 1e-12, "float32": 1e-4}
TELLING = 1e-3
"""Gradients of two cases differ by more than this, relative, or one of them tests nothing."""
NOISE = {"prox": 0.0, "theta": 0.02, "mu": 0.015, "ref": 0.05}
"""Standard deviation of each policy's weights around those of prox (0.3)."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One case in one type.

    Attributes:
        loss, gradient, advantage: relative errors; ``None`` where it is not compared.
        nearest: relative distance of TRL's gradient from that of the likest other case of the same
            trainer; ``None`` where there is none.
        metrics: of our metrics, those that the case wants not to be 0, and the extremes of the raw
            ratio.
    """

    loss: float | None
    gradient: float
    advantage: float | None
    nearest: float | None
    metrics: Mapping[str, float]

    @property
    def worst(self) -> float:
        return max(x for x in (self.loss, self.gradient, self.advantage) if x is not None)


Results = dict[str, Compared]
"""By type."""


def world(folder: Path) -> dict[str, Any]:
    """Weights of four policies around one another, a tokenizer that trainers ask for, and the
    sampler's log-probs.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers

    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**SHAPE))
    prox = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    states = {}
    for policy, spread in NOISE.items():
        noise = {
            name: torch.randn(tensor.shape) * spread
            for name, tensor in prox.items()
            if name != "lm_head.weight"
        }
        states[policy] = {name: prox[name] + value for name, value in noise.items()}
        states[policy]["lm_head.weight"] = states[policy]["model.embed_tokens.weight"]  # tied
    model.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCABULARY)}, unk_token="t0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = {"eos_token": f"t{SHAPE['eos_token_id']}", "pad_token": f"t{SHAPE['pad_token_id']}"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, **ends).save_pretrained(folder)
    return {"folder": str(folder), "states": states, "logps": sampler_logps(folder, states["mu"])}


def theirs(
    given: Mapping[str, Any], folder: Path, only: str
) -> tuple[dict[str, dict[str, Found]], dict[str, str]]:
    """TRL's side of all cases by type and name, and versions. In a process of the peers'
    environment.

    Raises:
        RuntimeError: it ended with an error; its last lines are shown.
    """
    given_file, found_file = folder / "given.pt", folder / "found.pt"
    torch.save(dict(given), given_file)
    command = [
        str(peers_python()),
        "-m",
        "studies.benchmarks.peers.trl_parity",
        str(given_file),
        str(found_file),
        "--only",
        only,
    ]
    run = subprocess.run(
        command, cwd=ROOT, env=child_environment(1), capture_output=True, text=True
    )
    if run.returncode:
        raise RuntimeError(f"TRL's side ended with status {run.returncode}:\n{run.stderr[-4000:]}")
    output = torch.load(found_file)
    results = {
        kind: {name: Found(**one) for name, one in cases.items()}
        for kind, cases in output["found"].items()
    }
    return results, output["versions"]


def relative(
    ours: Mapping[str, Tensor], others: Mapping[str, Tensor], factor: float = 1.0
) -> float:
    """Largest difference of any entry over the largest entry of *others*."""
    if ours.keys() != others.keys():
        raise ValueError(f"parameters differ: {sorted(ours.keys() ^ others.keys())}")
    size = max(float(x.abs().max()) for x in others.values())
    return max(float((factor * ours[name] - others[name]).abs().max()) for name in others) / size


def compared(
    case: Case, ours: Found, others: Mapping[str, Found], cases: Sequence[Case]
) -> Compared:
    """One case, in one type."""
    other = others[case.name]
    loss = abs(case.factor * ours.loss - other.loss) / max(abs(other.loss), 1e-3)
    pairs = list(zip(ours.advantages, other.advantages, strict=True)) if other.advantages else []
    size = max((abs(b) for _, b in pairs), default=1.0)
    advantage = max((abs(case.factor * a - b) for a, b in pairs), default=0.0) / size
    same = {case.name, case.twin} | {c.name for c in cases if c.twin == case.name}
    rivals = [c for c in cases if c.trainer == case.trainer and c.name not in same]
    return Compared(
        loss=loss if "loss" in case.compares else None,
        gradient=relative(ours.gradient, other.gradient, case.factor),
        advantage=advantage if "advantage" in case.compares else None,
        nearest=min(
            (relative(others[c.name].gradient, other.gradient) for c in rivals), default=None
        ),
        metrics={
            name: value
            for name, value in ours.metrics.items()
            if name in {*case.active, "ratio.min", "ratio.max"}
        },
    )


def complaints(case: Case, compared_by_kind: Mapping[str, Compared]) -> list[str]:
    """Return what speaks against a case."""
    lines = []
    for kind, one in compared_by_kind.items():
        if one.worst > LIMITS[kind]:
            lines.append(
                f"{case.name}, {kind}: differs by {one.worst:.1e}, allowed {LIMITS[kind]:.0e}"
            )
        if one.nearest is not None and one.nearest < TELLING:
            lines.append(
                f"{case.name}, {kind}: TRL's gradient is that of another case to {one.nearest:.1e}"
            )
        idle = [name for name in case.active if not one.metrics.get(name)]
        if idle:
            lines.append(f"{case.name}, {kind}: {', '.join(idle)} never happened")
    return lines


def compare(
    only: str = "", kinds: Sequence[str] = tuple(LIMITS)
) -> tuple[dict[str, Results], dict[str, str]]:
    """All cases whose name holds *only*, by name and type; and TRL's versions."""
    cases = [case for case in CASES if only in case.name]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        given = {**world(folder), "types": list(kinds)}
        others, versions = theirs(given, folder, only)
        results: dict[str, Results] = {case.name: {} for case in cases}
        for kind in kinds:
            for case in cases:
                ours = compute(case, folder, given["states"], given["logps"], getattr(torch, kind))
                results[case.name][kind] = compared(case, ours, others[kind], cases)
    return results, versions


def shown(value: float | None) -> str:
    return "" if value is None else f"{value:.0e}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default="", help="cases whose name holds this; nothing is written then"
    )
    parser.add_argument(
        "--quick", action="store_true", help="float64 alone; results go to results/quick"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("quintain").setLevel(logging.ERROR)  # what rows warn about is meant here
    results, versions = compare(args.only, ["float64"] if args.quick else tuple(LIMITS))
    cases = {case.name: case for case in CASES}
    head = (
        "method",
        "Quintain",
        f"TRL {versions['trl']}",
        "loss",
        "gradient",
        "advantage",
        "float32",
        "TRL otherwise",
    )
    rows = [
        (
            name,
            *cases[name].says,
            *map(shown, (one["float64"].loss, one["float64"].gradient, one["float64"].advantage)),
            "" if args.quick else shown(one["float32"].worst),
            cases[name].note,
        )
        for name, one in results.items()
    ]
    print(table(head, rows))
    print("\nnot compared")
    print("\n".join(f"- {what}: {why}" for what, why in ABSENT))
    if not args.only:
        figures = {
            name: {kind: vars(one) for kind, one in kinds.items()}
            for name, kinds in results.items()
        }
        write(
            "parity",
            figures,
            quick=args.quick,
            about={"limits": LIMITS, "peers": versions, "absent": dict(ABSENT)},
        )
    lines = [line for name, one in results.items() for line in complaints(cases[name], one)]
    if lines:
        print("\n".join(lines), file=sys.stderr)
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
