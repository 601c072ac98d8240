"""TRL's GRPOTrainer, one optimizer step per question.

Set up as its own documentation has it for one device; what differs from the defaults is what makes
the work equal: batch of one step in one piece, no gradient checkpointing, constant learning rate,
Dr. GRPO's loss, no weight decay. A step is timed from the start of sampling to the moment the next
one would start, logging and data loading included.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LogitsProcessor,
    LogitsProcessorList,
    TrainerCallback,
)
from trl import GRPOTrainer

from studies.benchmarks.common import Door, step_arguments
from studies.benchmarks.peers.trl_config import equal_work
from studies.benchmarks.shapes import lengths, prompts, reward


class Finished(Exception):
    """The other end hung up."""


class Forced(LogitsProcessor):
    """Ends sample i after ``lengths[i]`` new tokens and not before, whatever the logits say."""

    def __init__(self, prompt: int, counts: list[int], eos: int) -> None:
        self.prompt, self.eos = prompt, eos
        self.counts = torch.tensor(counts)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        last = self.counts.to(scores.device) <= input_ids.shape[1] - self.prompt + 1
        scores[:, self.eos] = float("-inf")
        scores[last] = float("-inf")
        scores[last, self.eos] = 0.0
        return scores


class Gate(TrainerCallback):
    """Waits for a question before each step, and answers the one before."""

    def __init__(self, door: Door) -> None:
        self.door = door
        self.began = self.burnt = 0.0
        self.sampling = 0.0
        self.tokens = 0
        self.step = -1

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.answer()
        if self.door.hear() is None:
            raise Finished
        self.step += 1
        self.sampling, self.tokens = 0.0, 0
        self.began, self.burnt = time.perf_counter(), time.process_time()

    def answer(self) -> None:
        if self.began:
            seconds, cpu = time.perf_counter() - self.began, time.process_time() - self.burnt
            self.door.say(seconds=seconds, cpu=cpu, sampling=self.sampling, tokens=self.tokens)


def forced_generate(trainer: GRPOTrainer, gate: Gate, low: int, high: int) -> None:
    """Make the trainer's ``model.generate`` end samples where both sides agreed, and time it."""
    plain = trainer.model.generate
    eos = trainer.processing_class.eos_token_id

    def generate(*args: Any, **options: Any) -> Any:
        if low < high:
            rows, prompt = options["input_ids"].shape
            forced = Forced(prompt, lengths(gate.step, rows, low, high), eos)
            options["logits_processor"] = LogitsProcessorList([forced])
        began = time.perf_counter()
        out = plain(*args, **options)
        gate.sampling += time.perf_counter() - began
        return out

    trainer.model.generate = generate


def main() -> None:
    parser = step_arguments()
    parser.add_argument("--micro", type=int, help="samples per backward pass (default: all)")
    args = parser.parse_args()
    door = Door()
    torch.set_num_threads(args.threads)
    gate = Gate(door)
    samples = args.groups * args.group_size

    def vowels(completions: list[Any], completion_ids: list[list[int]], **_: Any) -> list[float]:
        gate.tokens += sum(map(len, completion_ids))
        return [reward(c[0]["content"]) for c in completions]

    micro = args.micro or samples
    config = equal_work(
        device=args.device,
        group_size=args.group_size,
        lr=args.lr,
        bf16=args.precision == "bf16",
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=samples // micro,
        max_completion_length=args.high,
        generation_kwargs={"min_new_tokens": args.low} if args.low == args.high else None,
        num_iterations=1,
        max_steps=100_000,
        shuffle_dataset=False,
        logging_steps=1,
        seed=0,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(args.model),
        reward_funcs=vowels,
        args=config,
        train_dataset=Dataset.from_list(
            [{"prompt": [{"role": "user", "content": p}]} for p in prompts(args.model)]
        ),
        callbacks=[gate],
    )
    forced_generate(trainer, gate, args.low, args.high)
    import transformers
    import trl

    door.say(
        side="TRL",
        trl=trl.__version__,
        transformers=transformers.__version__,
        torch=torch.__version__,
        threads=torch.get_num_threads(),
        optimizer=str(config.optim),
        bf16=config.bf16,
        samples=samples,
    )
    with contextlib.suppress(Finished):
        trainer.train()


if __name__ == "__main__":
    main()
