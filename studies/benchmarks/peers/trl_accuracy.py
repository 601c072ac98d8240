"""TRL's GRPOTrainer until held-out greedy accuracy reaches a target: one learning rate, one seed.

Tasks and outcome are those of the Quintain environment itself (its floors 1-3 need no library
beyond the standard one), so both sides are judged by the same code. Held-out tasks are answered
with ``generate``, greedily, while the clock stands still.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOTrainer

from quintain import Environment, Message, Task
from quintain.testing import rollout
from quintain.types.task import messages_of
from studies.benchmarks.common import Door, trial_arguments
from studies.benchmarks.peers.trl_config import equal_work


def load(name: str, args: Mapping[str, Any]) -> Environment[Any, Any]:
    """``module:Class`` with its configuration."""
    module, _, attribute = name.partition(":")
    built: Environment[Any, Any] = getattr(importlib.import_module(module), attribute)(**args)
    return built


def conversation(environment: Environment[Any, Any], task: Task) -> list[dict[str, str]]:
    messages = list(messages_of(task.prompt))
    if environment.system:
        messages.insert(0, Message("system", environment.system))
    return [{"role": m.role, "content": m.content} for m in messages]


class Watch(TrainerCallback):
    """Measures held-out accuracy every few steps and stops the clock meanwhile."""

    def __init__(self, environment: Environment[Any, Any], args: argparse.Namespace) -> None:
        self.environment, self.args = environment, args
        self.held_out = list(itertools.islice(environment.tasks("dev"), args.tasks))
        self.trainer: GRPOTrainer | None = None
        self.curve: list[dict[str, float]] = []
        self.spent = 0.0
        self.began = 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.measure(0)
        self.began = time.perf_counter()

    def on_step_end(self, _: Any, state: Any, control: Any, **__: Any) -> None:
        if state.global_step % self.args.every:
            return
        self.spent += time.perf_counter() - self.began
        control.should_training_stop |= self.measure(state.global_step) >= self.args.target
        self.began = time.perf_counter()

    def measure(self, step: int) -> float:
        assert self.trainer is not None
        replies = answer(
            self.trainer.model, self.trainer.processing_class, self.prompts(), self.args.max_tokens
        )
        right = [
            self.environment.reward.score(rollout(t, r)).value >= 1
            for t, r in zip(self.held_out, replies, strict=True)
        ]
        accuracy = sum(right) / len(right)
        self.curve.append({"step": step, "seconds": self.spent, "accuracy": accuracy})
        return accuracy

    def prompts(self) -> list[list[dict[str, str]]]:
        return [conversation(self.environment, task) for task in self.held_out]


@torch.no_grad()
def answer(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[list[dict[str, str]]],
    max_tokens: int,
    batch: int = 100,
) -> Iterator[str]:
    """Greedy replies."""
    for start in range(0, len(prompts), batch):
        part = list(prompts[start : start + batch])
        texts = tokenizer.apply_chat_template(part, add_generation_prompt=True, tokenize=False)
        inputs = tokenizer(
            texts, padding=True, padding_side="left", add_special_tokens=False, return_tensors="pt"
        )
        inputs = inputs.to(model.device)
        out = model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            do_sample=False,
            max_new_tokens=max_tokens,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        yield from tokenizer.batch_decode(
            out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True
        )


def main() -> None:
    args = trial_arguments().parse_args()
    door = Door()
    torch.set_num_threads(args.threads)
    environment = load(args.environment, args.environment_args)
    tasks = list(itertools.islice(environment.tasks("train"), args.groups * args.steps))

    def outcome(completions: list[Any], number: list[int], **_: Any) -> list[float]:
        numbered = zip(number, completions, strict=True)
        return [
            environment.reward.score(rollout(tasks[i], c[0]["content"])).value for i, c in numbered
        ]

    samples = args.groups * args.group_size
    config = equal_work(
        device=args.device,
        group_size=args.group_size,
        lr=args.lr,
        bf16=False,
        per_device_train_batch_size=samples,
        max_completion_length=args.max_tokens,
        max_steps=args.steps,
        seed=args.seed,
    )
    watch = Watch(environment, args)
    watch.trainer = trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(args.model),
        reward_funcs=outcome,
        args=config,
        train_dataset=Dataset.from_list(
            [{"prompt": conversation(environment, t), "number": i} for i, t in enumerate(tasks)]
        ),
        callbacks=[watch],
    )
    trainer.train()
    door.say(curve=watch.curve)


if __name__ == "__main__":
    main()
