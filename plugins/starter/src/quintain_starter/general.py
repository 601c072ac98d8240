"""Train the general starter, the model from which warm starts begin: ``python -m quintain_starter.general FOLDER``.

It learns generated exercises (`quintain_starter.skills`). The rate is constant and falls to zero over the last quarter
of the updates (a warm-up, stable, decay schedule, 2404.06395); the matrices are updated by Muon (Jordan et al. 2024),
the rest by Adam. A run that was stopped goes on from its last checkpoint in FOLDER.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM

from quintain.learning import TrainingSequence
from quintain.models import HFTokenizer
from quintain_offline.sft import encode_conversation, end_of_turn

from .architecture import STARTS, build_model, build_tokenizer
from .exercises import Exercise
from .skills import exercise

SIZES = {"hidden": 224, "layers": 6, "heads": 8, "kv_heads": 2, "intermediate": 608}
ROW, ROWS = 112, 48
"""Tokens of a row, into which whole examples are packed, and rows of an update."""

RATES = (0.006, 3e-3)
"""Learning rates of Muon and of Adam."""

COMMON = """
a about above add after again air all also always am among an and animal another answer any are around as ask at away
back be because been before began begin below best better between big both boy bring build but buy by call came can
change child children city close cold come complete correct could count country create cut date day describe did
different do does done down draw during each earth easy eat eight either else end enough even every example exactly
explain eye face fact fall family far fast father few figure fill final find first five follow following food foot for
form four from front full function game gave get girl give given go goes good got great group grow had half hand happy
hard has have he head hear heard help her here high him his hold home hot hour how however hundred i idea if important
in input instead into is it its just keep kind knew know known large last late later learn leave left legs length less
let life light like line list little live long look lost lot made main make man many may me mean men might mile minute
money more morning most mother mountain move much must my name near need never new next night nine no north not note
nothing now number numbers of off often old on once one only open or order other our out output over own page paper
part pass people person place plan plant play please point possible problem program put question quick rain ran read
real red remain repeat result return right rule run said same saw say school sea second see seem sell sentence
separate sequence set seven several she should show side simple since six size sky small so solve some song soon sound
south space spell stand start state step still stop story street string such sum sun sure table take talk tell ten
text than that the their them then there these they thing things think third this those thought thousand three through
time times to today together told too took top total town true false try turn twice two under until up us use used
using usually value very voice wait walk want war was watch water way we week well went were west what when where
which while who whole whose why will wind with within without woman word words work world would write year yes yet you
young your letters letter vowels expression equation fraction divide multiply subtract remainder integer digit digits
binary decimal prime factor rows columns row column grid matrix left right ascending descending alphabetical sort
reverse provide respond format following given calculate determine
""".split()
"""Words that count as one token each after a blank, beside those of the exercises."""


def vocabulary() -> list[str]:
    """Return words of the exercises that come often, in the forms in which they stand there, then
    `COMMON`.
    """
    rng, seen = Random("vocabulary"), Counter[str]()
    for _ in range(6000):
        made = exercise(rng)
        for text in (made.system, made.question, made.answer):
            seen.update(re.findall(r" ?[A-Za-z]+", text))
    often = [word for word, count in seen.most_common() if count >= 8 and len(word.strip()) > 2]
    return list(dict.fromkeys([*STARTS, " ####", *often, *(f" {word}" for word in COMMON)]))


def encoded(tokenizer: HFTokenizer, made: Exercise) -> TrainingSequence:
    """Return the conversation of an exercise; its last reply trains."""
    end = end_of_turn(tokenizer)
    (sequence,) = encode_conversation(
        made.messages, [len(made.messages) - 1], tokenizer, end, made.tools
    )
    return sequence


def packed(
    tokenizer: HFTokenizer, rng: Random, hard: float, rows: int = ROWS
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw *rows* rows of whole exercises.

    Returns:
        Ids and positions within the exercise, both rows x `ROW` with pads at the end, where the position is 0; and
        the weight of each token in the loss: 1 for replies, 0 elsewhere.
    """
    ids = torch.full((rows, ROW), tokenizer.hf.pad_token_id)
    positions, weights = torch.zeros((rows, ROW), dtype=torch.long), torch.zeros(rows, ROW)
    filled, missed = [0] * rows, 0
    while missed < 4:  # exercises in a row that fit nowhere
        sequence = encoded(tokenizer, exercise(rng, hard))
        count = len(sequence.ids)
        row = next((i for i, length in enumerate(filled) if length + count <= ROW), None)
        missed = missed + 1 if row is None else 0
        if row is not None:
            span = slice(filled[row], filled[row] + count)
            ids[row, span] = torch.tensor(sequence.ids)
            positions[row, span] = torch.arange(count)
            weights[row, span] = torch.tensor(sequence.mask, dtype=torch.float)
            filled[row] += count
    return ids, positions, weights


def within_exercises(positions: Tensor) -> Tensor:
    """Return which token may attend to which, rows x 1 x length x length: earlier ones of its own exercise."""
    number = (positions == 0).cumsum(1)
    same_exercise = number[:, :, None] == number[:, None, :]
    causal: Tensor = (
        same_exercise
        & torch.ones(same_exercise.shape[-1], same_exercise.shape[-1], dtype=torch.bool).tril()
    )
    return causal[:, None]


class Muon(torch.optim.Optimizer):
    """Momentum whose matrix updates are made orthogonal by five Newton-Schulz steps, in float32."""

    def __init__(self, matrices: Sequence[Tensor], lr: float) -> None:
        super().__init__(matrices, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # takes no closure
        for group in self.param_groups:
            for p in group["params"]:
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                momentum.lerp_(p.grad, 0.05)
                x = p.grad.lerp(momentum, 0.95)  # Nesterov
                tall = x.shape[0] > x.shape[1]
                x = x.T if tall else x
                x = x / (x.norm() + 1e-7)
                for _ in range(5):
                    square = x @ x.T
                    x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
                p.mul_(1 - group["lr"] * 0.01)
                p.add_(x.T if tall else x, alpha=-group["lr"] * 0.2 * max(p.shape) ** 0.5)


def rate(step: int, steps: int) -> float:
    """Return the share of the full learning rate: up over 60 updates, constant, down over the last quarter."""
    return min(1.0, (step + 1) / 60, 4 * (steps - step) / steps)


def losses(
    module: Any, ids: Tensor, positions: Tensor, weights: Tensor, body: Any = None
) -> Tensor:
    """Return the cross-entropy of each weighted token, in nats."""
    mask = within_exercises(positions)
    hidden = (module.model if body is None else body)(
        input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False
    ).last_hidden_state
    trained = weights[:, 1:] > 0
    return functional.cross_entropy(
        module.lm_head(hidden[:, :-1][trained]), ids[:, 1:][trained], reduction="none"
    )


@torch.no_grad()
def accuracies(module: Any, tokenizer: HFTokenizer, count: int = 3000) -> dict[str, float]:
    """Return the share of new exercises whose whole reply is the most probable one, token by token,
    by skill.

    That is what greedy decoding gets right.
    """
    rng, right_by_skill = Random("held out"), defaultdict[str, list[bool]](list)
    for _ in range(count):
        made = exercise(rng)
        sequence = encoded(tokenizer, made)
        ids, mask = torch.tensor([sequence.ids]), torch.tensor(sequence.mask[1:])
        best = module(input_ids=ids, use_cache=False).logits[0, :-1].argmax(-1)
        right_by_skill[made.skill].append(bool((best == ids[0, 1:])[mask].all()))
    return {
        skill: round(sum(right) / len(right), 3) for skill, right in sorted(right_by_skill.items())
    }


@dataclass(kw_only=True)
class Progress:
    """How far training is: updates *done*, tokens seen and trained, seconds, and the loss every ten updates."""

    done: int = 0
    tokens: int = 0
    replies: int = 0
    seconds: float = 0.0
    curve: list[list[float]] = field(default_factory=list)


def train(
    folder: Path, *, steps: int, seed: int = 0, compiled: bool = False, keep: int = 50
) -> None:
    """Train for *steps* updates and write a model folder with its provenance; go on from a checkpoint if there is one.

    Args:
        compiled: whether to compile the network, which needs a C++ compiler and halves the time.
        keep: updates between two checkpoints.
    """
    tokenizer = HFTokenizer(build_tokenizer(vocabulary()))
    module = untrained(tokenizer, seed)
    matrices = [p for name, p in module.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in module.named_parameters() if p.ndim != 2 or "embed" in name]
    optimizers = [
        Muon(matrices, RATES[0]),
        torch.optim.AdamW(others, RATES[1], betas=(0.9, 0.98), weight_decay=0.0),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    progress = restored(folder / "checkpoint.pt", module, optimizers)
    body = torch.compile(module.model) if compiled else module.model
    recent: list[float] = []
    began = time.monotonic() - progress.seconds
    for step in range(progress.done, steps):
        hard = min(1.0, 0.3 + 3 * step / 1400)
        ids, positions, weights = packed(tokenizer, Random(f"{seed}/{step}"), hard)
        loss = losses(module, ids, positions, weights, body).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        for optimizer, lr in zip(optimizers, RATES, strict=True):
            optimizer.param_groups[0]["lr"] = lr * rate(step, steps)
            optimizer.step()
            optimizer.zero_grad()
        progress.done += 1
        progress.tokens += int((ids != tokenizer.hf.pad_token_id).sum())
        progress.replies += int(weights.sum())
        progress.seconds = time.monotonic() - began
        recent.append(loss.item())
        if progress.done % 10 == 0:
            mean = round(sum(recent) / len(recent), 4)
            progress.curve.append([progress.done, mean])
            print(
                f"{progress.done}/{steps}  loss {mean:.3f}  {progress.tokens:,} tokens  {progress.seconds:.0f} s",
                flush=True,
            )
            recent = []
        if progress.done % keep == 0:
            state = {
                "module": module.state_dict(),
                "optimizers": [o.state_dict() for o in optimizers],
            }
            torch.save(state | asdict(progress), folder / "checkpoint.tmp")
            (folder / "checkpoint.tmp").replace(folder / "checkpoint.pt")
    save(folder / "model", module, tokenizer)
    description = provenance(
        progress, folder / "model", tokenizer, steps=steps, seed=seed, compiled=compiled
    )
    (folder / "model" / "quintain.json").write_text(
        json.dumps({"general": description}) + "\n", encoding="utf-8"
    )


def untrained(tokenizer: HFTokenizer, seed: int) -> Any:
    """Return the network before any training."""
    module: Any = build_model(
        seed, vocabulary=len(tokenizer.hf), initializer_range=0.03, **SIZES
    ).train()
    for config in (module.config, module.generation_config):
        config.eos_token_id, config.pad_token_id = (
            list(tokenizer.stop_ids),
            tokenizer.hf.pad_token_id,
        )
    return module


def restored(
    checkpoint: Path, module: Any, optimizers: Sequence[torch.optim.Optimizer]
) -> Progress:
    """Load what *checkpoint* holds, if it exists."""
    if not checkpoint.exists():
        return Progress()
    state = torch.load(checkpoint, weights_only=True)
    module.load_state_dict(state.pop("module"))
    for optimizer, kept in zip(optimizers, state.pop("optimizers"), strict=True):
        optimizer.load_state_dict(kept)
    return Progress(**state)


def provenance(
    progress: Progress, folder: Path, tokenizer: HFTokenizer, **settings: Any
) -> dict[str, Any]:
    """Return how the model in *folder* came about, and what it gets right."""
    module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return {
        "script": "python -m quintain_starter.general",
        **settings,
        "parameters": sum(p.numel() for p in module.parameters()),
        "tokens": progress.tokens,
        "reply_tokens": progress.replies,
        "loss": progress.curve[-1][1] if progress.curve else None,
        "curve": progress.curve,
        "accuracies": accuracies(module, tokenizer),
        "seconds": round(progress.seconds),
        "date": date.today().isoformat(),
        "versions": {
            name: version(name)
            for name in ("quintain-starter", "torch", "transformers", "tokenizers")
        },
        "threads": torch.get_num_threads(),
        "processor": torch.backends.cpu.get_cpu_capability(),
    }


def save(folder: Path, module: Any, tokenizer: HFTokenizer) -> None:
    """Write weights, rounded to bfloat16, and tokenizer."""
    rounded = {
        name: p.to(torch.bfloat16)
        for name, p in module.state_dict().items()
        if name != "lm_head.weight"
    }
    module.save_pretrained(folder, state_dict=rounded)
    tokenizer.hf.save_pretrained(folder)


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(prog="python -m quintain_starter.general", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=1080, help="updates of 5,376 tokens each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--compile", action="store_true", help="compile the network; needs a C++ compiler"
    )
    chosen = parser.parse_args(argv)
    train(chosen.folder, steps=chosen.steps, seed=chosen.seed, compiled=chosen.compile)


if __name__ == "__main__":
    main()
