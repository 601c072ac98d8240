"""What does a language model of 135 million parameters learn on a laptop? Six tasks that people have,
each a recipe, before and after, with a shift that was never trained and the loss on other texts.

The model is SmolLM2-135M-Instruct of `quintain model get smollm2-135m`. Each run is a line of
``small_model-runs.jsonl`` once it has ended, and is not made again: remove its line for that.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from quintain.recipe.precision import processor

from .common import RESULTS, ROOT, Line, Panel, Report, Study, main

RECIPES = "examples/smollm2"
PIECES = 16
"""Of a book, on which the loss is measured."""
INSTRUCTIONS = 200
"""Instructions that no task is like, on whose replies the loss is measured: half are questions of GSM8K
with their solutions, half tasks of MBPP with their programs.
"""
PIECE = 256
"""Tokens of a piece or of a reply, at most."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A task.

    Attributes:
        recipe: what `quintain train` runs.
        shift: words of `quintain eval` for tasks of another form than those that train.
        moved: what differs there.
        changes: of the recipe, as for ``--set``.
    """

    recipe: str
    shift: Sequence[str]
    moved: str
    changes: Sequence[str] = ()


PARTS = {
    "extraction": Part(
        recipe="extraction",
        shift=("extraction", "-a", "keys=[3]", "-a", "lists=false", "-a", "asides=1.0"),
        moved="a sentence beside the record, in each task",
    ),
    "instructions": Part(
        recipe=f"{RECIPES}/instructions.toml",
        shift=("instructions", "-a", "levels=[2]"),
        moved="two constraints",
    ),
    "tickets": Part(
        recipe=f"{RECIPES}/tickets.toml",
        shift=("--like", "RUN", "-a", "shown=4"),
        moved="four rows shown",
    ),
    "store": Part(
        recipe=f"{RECIPES}/store.toml",
        shift=("--like", "RUN", "-a", "examples=1"),
        moved="one worked question",
    ),
    "library": Part(
        recipe=f"{RECIPES}/library.toml",
        shift=("--like", "RUN", "-a", "examples=1"),
        moved="one worked question",
    ),
    "polite": Part(
        recipe=f"{RECIPES}/polite.toml",
        shift=("--like", "RUN", "-a", "blunt=other"),
        moved="another way to be blunt",
    ),
}
LORA = ("model.lora.r=16", "model.lora.lora_alpha=32", "learner.lr=2e-4")
KL = ('algorithm.args.kl={where="loss", estimator="k2", coefficient=0.05}',)
VARIANTS = {
    f"{name}, {what}": replace(PARTS[name], changes=changes)
    for name in PARTS
    for what, changes in (("LoRA", LORA), ("KL", KL))
}
"""The same tasks with adapters, and held near the model before training."""
PARTS |= VARIANTS


@dataclass(kw_only=True)
class Trained:
    """One run: its share of right samples by step, and what was measured before and after it."""

    steps: list[int]
    right: list[float]
    seconds: float
    measured: dict[str, tuple[float, float]] = field(default_factory=dict)


def recorded(name: str, seed: int, quick: bool) -> Trained:
    """Return the run of a part, which is made unless it has been."""
    if quick:
        return trained(name, seed, quick)
    path = RESULTS / "small_model-runs.jsonl"
    lines = path.read_text().splitlines() if path.is_file() else []
    for row in map(json.loads, lines):
        if (row.pop("part"), row.pop("seed")) == (name, seed):
            row.pop("date")
            return Trained(**row)
    made = trained(name, seed, quick)
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    row = {"part": name, "seed": seed, "date": date, **asdict(made)}
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
    return made


def trained(name: str, seed: int, quick: bool) -> Trained:
    """Train on the part *name*, and measure the model before and after."""
    part = PARTS[name]
    with tempfile.TemporaryDirectory(prefix="quintain-small-") as place:
        words = [part.recipe, "--seed", str(seed), "--folder", place, "--name", "run", "-q"]
        words += [word for change in part.changes for word in ("--set", change)]
        if quick:
            words += ["--steps", "2", "--set", "evaluation.test.tasks=4"]
            words += ["--set", "batch.prompts=2", "--set", "batch.group_size=2"]
        began = time.perf_counter()
        quintain("train", *words)
        seconds = time.perf_counter() - began
        run = Path(place, "run")
        summary = json.loads((run / "summary.json").read_text())
        lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        steps = [line for line in lines if line["step"]]
        held_out = summary["held_out"]
        result = Trained(
            steps=[line["step"] for line in steps],
            right=[line["success"] for line in steps],
            seconds=seconds,
        )
        result.measured["sampled"] = both(held_out, lambda row: row["accuracy"])
        result.measured["greedy"] = both(held_out, lambda row: row["other_decoding"]["accuracy"])
        if held_out["after"].get("yardstick") is not None:
            result.measured["yardstick"] = both(held_out, lambda row: row["yardstick"])
        models = [model_folder(), last_model(run)]
        result.measured |= other_texts_before_and_after(models[1], 2 if quick else None)
        tasks = 4 if quick else 32
        shifted = [shift(part, run, model, tasks) for model in models]
        result.measured[f"shift: {part.moved}"] = (shifted[0], shifted[1])
    return result


def both(held_out: Mapping[str, Any], of: Callable[[Any], float]) -> tuple[float, float]:
    """Return a measure before and after."""
    return of(held_out["before"]), of(held_out["after"])


def quintain(*words: str) -> str:
    """Return what a command prints.

    Raises:
        RuntimeError: it failed.
    """
    command = [sys.executable, "-m", "quintain", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"quintain {' '.join(words)}: {done.stderr[-2000:]}")
    return done.stdout


def shift(part: Part, run: Path, model: Path, tasks: int) -> float:
    """Return the accuracy of *model* on tasks of another form, greedily."""
    words = [str(run) if word == "RUN" else word for word in part.shift]
    said = quintain(
        *("eval", *words, "-m", str(model), "--tasks", str(tasks), "-t", "0", "--json"),
        *(() if "RUN" in part.shift else ("--max-tokens", "64")),
    )
    return float(json.loads(said)["pass@1"])


def model_folder() -> Path:
    """Return the folder of the model before training."""
    cache = Path(os.environ.get("QUINTAIN_CACHE", Path.home() / ".cache" / "quintain"))
    return cache / "models" / "smollm2-135m"


def last_model(run: Path) -> Path:
    """Return the folder of the model of the last checkpoint."""
    return sorted((run / "checkpoints").glob("step-*/model"))[-1]


@dataclass(frozen=True, slots=True)
class Text:
    """What the loss is measured on: the tokens of *reply*, behind those of an *instruction* if any."""

    reply: str
    instruction: str = ""


def other_texts(most: int | None) -> dict[str, list[Text]]:
    """Return texts that no task is like, by their kind, at most *most* of each; none without the
    data.
    """
    data = Path(os.environ.get("QUINTAIN_DATA", ""))
    if not os.environ.get("QUINTAIN_DATA") or not data.is_dir():
        return {}
    book = next((data / "books").glob("*.txt")).read_text()
    length = len(book) // PIECES
    questions = rows_of(data / "gsm8k" / "test.jsonl", INSTRUCTIONS // 2)
    programs = rows_of(data / "mbpp" / "mbpp.jsonl", INSTRUCTIONS // 2)
    instructions = [Text(row["answer"], row["question"]) for row in questions]
    instructions += [Text(row["code"], row["text"]) for row in programs]
    return {
        "book": [Text(book[i * length :][: PIECE * 4]) for i in range(PIECES)][:most],
        "instructions": instructions[:most],
    }


def rows_of(path: Path, count: int) -> list[dict[str, str]]:
    """Return the first rows of a file of JSON lines."""
    return [json.loads(row) for row in path.read_text().splitlines()[:count]]


def other_texts_before_and_after(model: Path, most: int | None) -> dict[str, tuple[float, float]]:
    """Return the losses on other texts of the model before training and of *model*, by measure."""
    before, after = losses_before(most), losses(model, other_texts(most))
    return {f"nats a token, {kind}": (before[kind], after[kind]) for kind in after}


@cache
def losses_before(most: int | None) -> dict[str, float]:
    """Return the losses of the model before training."""
    return losses(model_folder(), other_texts(most))


@torch.no_grad()
def losses(folder: Path, texts: Mapping[str, Sequence[Text]]) -> dict[str, float]:
    """Return the mean negative log-prob of the tokens of each kind of text, in nats a token."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def beginning(text: Text) -> list[int]:
        """The tokens before the reply."""
        if not text.instruction:
            return []
        messages = [{"role": "user", "content": text.instruction}]
        words = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return list(tokenizer(words, add_special_tokens=False).input_ids)

    found = {}
    for kind, pieces in texts.items():
        total, tokens = 0.0, 0
        for text in pieces:
            before = beginning(text)
            reply = tokenizer(text.reply, add_special_tokens=False).input_ids[:PIECE]
            # no token stands before the first one of a page
            labels = [-100] * max(len(before), 1) + reply[0 if before else 1 :]
            ids = torch.tensor([[*before, *reply]])
            counted = len(reply) if before else len(reply) - 1
            with torch.autocast("cpu", torch.bfloat16, enabled=processor().half):
                loss = model(ids, labels=torch.tensor([labels])).loss
            total += float(loss) * counted
            tokens += counted
        found[kind] = total / tokens
    return found


def study_of(names: Sequence[str]) -> Study:
    """Return the study of some parts."""

    def study(seeds: Sequence[int], quick: bool) -> Report:
        torch.set_num_threads(2)
        lines, contrasts = [], dict[str, list[float]]()
        notes = ["| task | seed | measure | before | after |", "|---|---|---|---|---|"]
        seconds = dict[str, list[float]]()
        for name in names:
            runs = [recorded(name, seed, quick) for seed in seeds]
            lines.append(Line(label=name, x=runs[0].steps, values=[run.right for run in runs]))
            seconds[name] = [round(run.seconds) for run in runs]
            for what in runs[0].measured:
                # older runs have no loss on instructions
                pairs = {
                    seed: run.measured.get(what) for seed, run in zip(seeds, runs, strict=True)
                }
                known = {seed: pair for seed, pair in pairs.items() if pair is not None}
                changes = [after - before for before, after in known.values()]
                contrasts[f"{name}, {what}: after less before"] = changes
                notes += [
                    f"| {name} | {seed} | {what} | {before:.3f} | {after:.3f} |"
                    for seed, (before, after) in known.items()
                ]
        title = "right samples in training, at the temperature of the recipe"
        panels = [
            Panel(title=f"{line.label}: {title}", xlabel="step", lines=[line]) for line in lines
        ]
        return Report(
            panels=panels,
            contrasts=contrasts,
            settings={"seconds": seconds, "threads": torch.get_num_threads()},
            notes=notes,
        )

    return study


study = study_of([name for name in PARTS if name not in VARIANTS])


if __name__ == "__main__":
    main(study, parts={name: study_of([name]) for name in PARTS})
