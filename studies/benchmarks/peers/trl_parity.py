"""TRL's side of `parity`: loss, gradient and advantages of every case, computed by TRL's own
trainers.

Made-up replies enter where TRL's trainers sample (``rollout_func``; `_generate` of the RLOO
trainer) or collate (preference and supervised trainers); from there on all is TRL's: rewards to
advantages, log-probs of prox and ref, sampler corrections, loss. Between the taking up of a batch
and the loss, the weights of the policy are exchanged.

In float64 the chunked log-prob kernel, which reduces in float32 whatever it is given, is replaced
by ``log_softmax`` of the logits; nothing else is.

    python -m studies.benchmarks.peers.trl_parity IN OUT
"""

from __future__ import annotations

import argparse
import os
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
import transformers
import trl
from datasets import Dataset
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import (
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    GRPOTrainer,
    RLOOConfig,
    RLOOTrainer,
    SFTConfig,
    SFTTrainer,
)
from trl.rewards import get_soft_overlong_punishment
from trl.trainer import utils

from studies.benchmarks.parity.cases import (
    CASES,
    GROUP_SIZE,
    LONGEST,
    TEMPERATURE,
    Case,
    Reply,
    pairs,
    replies,
)
from studies.benchmarks.parity.exact import exact

State = Mapping[str, Tensor]
KERNEL = utils._ChunkedLogProbFunction


class PlainHead:
    """The log-prob kernel, written out: log-probs carry gradients, the other statistics are for
    TRL's metrics.
    """

    @staticmethod
    def apply(
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        chunk: int,
        softcap: float | None,
        scale: float,
        outputs: tuple[str, ...],
    ) -> tuple[Tensor | None, ...]:
        assert bias is None
        assert softcap is None
        assert scale == 1.0
        logits = hidden @ weight.t() / temperature
        logps = logits.log_softmax(-1)
        seen = logps.detach()
        return (
            logps.gather(-1, targets[:, None])[:, 0],
            -(seen.exp() * seen).sum(-1),
            (2 * seen).logsumexp(-1),
            logits.detach().mean(-1),
            seen.argmax(-1) == targets,
        )


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What every case shares.

    Attributes:
        folder: config, weights and tokenizer.
        states: weights of theta, prox and ref.
        logps: the sampler's log-probs, by whether there are observations.
        dtype: of the weights.
        scratch: where trainers may write.
    """

    folder: str
    states: Mapping[str, State]
    logps: Mapping[bool, list[list[float]]]
    dtype: torch.dtype
    scratch: str

    def model(self, policy: str) -> Any:
        made = AutoModelForCausalLM.from_pretrained(self.folder, dtype=self.dtype)
        return self.put(made, policy).train()

    def put(self, model: Any, policy: str) -> Any:
        """Give *model* the weights of *policy*."""
        model.load_state_dict(self.states[policy])
        return exact(model) if self.dtype == torch.float64 else model

    def options(self, samples: int) -> dict[str, Any]:
        """Of every trainer's configuration."""
        return {
            "output_dir": self.scratch,
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "per_device_train_batch_size": samples,
            "report_to": [],
            "save_strategy": "no",
            "disable_tqdm": True,
            "seed": 0,
        }


def compute(case: Case, setting: Setting) -> dict[str, Any]:
    """Loss, gradient by parameter, advantages per reply."""
    tokenizer = AutoTokenizer.from_pretrained(setting.folder)
    model = setting.model("prox")
    side = {
        "grpo": policy_gradient,
        "rloo": policy_gradient,
        "dpo": preference,
        "cpo": preference,
        "sft": supervised,
    }
    trainer, inputs = side[case.trainer](case, setting, model, tokenizer)
    if case.moved:
        setting.put(model, "theta")
    assert trainer.model is model
    loss = trainer.compute_loss(model, inputs)
    loss.backward()
    gradient = {name: p.grad.detach().double() for name, p in model.named_parameters()}
    advantages = inputs["advantages"].double().tolist() if "advantages" in inputs else []
    return {"loss": float(loss.detach()), "gradient": gradient, "advantages": advantages}


def policy_gradient(
    case: Case, setting: Setting, model: Any, tokenizer: Any
) -> tuple[Any, dict[str, Any]]:
    """Return a trainer that took up the made-up replies, and its inputs to the loss."""
    samples, logps = replies(observations=case.observations), setting.logps[case.observations]

    def outcome(number: Sequence[int], **_: Any) -> list[float]:
        return [samples[i].reward for i in number]

    rewards: list[Any] = [outcome]
    if case.overlong:
        rewards.append(get_soft_overlong_punishment(LONGEST, case.overlong))
    shared: dict[str, Any] = {
        **setting.options(len(samples)),
        "num_generations": GROUP_SIZE,
        "max_completion_length": LONGEST,
        "temperature": TEMPERATURE,
        "num_iterations": 2,  # so that log-probs under prox are kept
        **case.settings,
    }
    inputs = [{"prompt": "t0", "number": i} for i in range(len(samples))]
    trainer_settings = {
        "model": model,
        "reward_funcs": rewards,
        "train_dataset": Dataset.from_list(inputs),
        "processing_class": tokenizer,
    }
    if case.trainer == "rloo":
        trainer = RLOOTrainer(args=RLOOConfig(**shared), **trainer_settings)
        texts = tokenizer.batch_decode([list(r.ids) for r in samples])
        generated = ([list(r.prompt) for r in samples], [list(r.ids) for r in samples], texts)
        trainer._generate = lambda prompts: generated
    else:
        trainer = GRPOTrainer(
            args=GRPOConfig(**shared),
            rollout_func=lambda prompts, _: rollouts(samples, logps),
            **trainer_settings,
        )
        # TRL ties its corrections to vLLM, which is not asked for samples here.
        trainer.use_vllm, trainer._last_loaded_step = case.corrected, trainer.state.global_step
    if trainer.ref_model is not None:
        setting.put(trainer.ref_model, "ref")
    trainer.current_gradient_accumulation_steps = 1
    prepared = trainer._generate_and_score_completions(inputs)
    if case.changes.get("ratio_to") == "mu":
        prepared["old_per_token_logps"] = prepared["sampling_per_token_logps"]
    return trainer, prepared


def rollouts(samples: Sequence[Reply], logps: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Return what a rollout function returns."""
    return {
        "prompt_ids": [list(r.prompt) for r in samples],
        "completion_ids": [list(r.ids) for r in samples],
        "logprobs": [list(x) for x in logps],
        "env_mask": [[int(t) for t in r.trained] for r in samples],
    }


def preference(
    case: Case, setting: Setting, model: Any, tokenizer: Any
) -> tuple[Any, dict[str, Any]]:
    """Return a trainer on pairs and its collated inputs."""
    reply_pairs = pairs()
    dataset = Dataset.from_list(
        [{"prompt": "t0", "chosen": " t1", "rejected": " t2"}] * len(reply_pairs)
    )
    shared = {**setting.options(len(reply_pairs)), **case.settings}
    if case.trainer == "dpo":
        trainer = DPOTrainer(
            model=model,
            ref_model=setting.model("ref"),
            args=DPOConfig(**shared),
            train_dataset=dataset,
            processing_class=tokenizer,
        )
        examples = [
            {
                "prompt_ids": list(best.prompt),
                "chosen_ids": list(best.ids),
                "rejected_ids": list(worst.ids),
            }
            for best, worst in reply_pairs
        ]
        return trainer, trainer.data_collator(examples)
    from trl.experimental.cpo import CPOConfig, CPOTrainer

    trainer = CPOTrainer(
        model=model,
        args=CPOConfig(max_length=64, **shared),
        train_dataset=dataset,
        processing_class=tokenizer,
    )
    rows = [
        {**labelled(best, "chosen_"), **labelled(worst, "rejected_")} for best, worst in reply_pairs
    ]
    return trainer, trainer.data_collator(rows)


def supervised(
    case: Case, setting: Setting, model: Any, tokenizer: Any
) -> tuple[Any, dict[str, Any]]:
    """Return a trainer on examples and its collated inputs."""
    examples = [
        r for r in replies(observations=case.observations) if r.reward >= 1 or not case.winners
    ]
    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(**setting.options(len(examples)), **case.settings),
        train_dataset=Dataset.from_list([{"prompt": "t0", "completion": " t1"}] * len(examples)),
        processing_class=tokenizer,
    )
    rows = [{key: row[key] for key in ("input_ids", "labels")} for row in map(labelled, examples)]
    return trainer, trainer.data_collator(rows)


def labelled(reply: Reply, prefix: str = "") -> dict[str, list[int]]:
    """Ids, and labels that are -100 where nothing trains."""
    ids = [*reply.prompt, *reply.ids]
    trains = [False] * len(reply.prompt) + list(reply.trained)
    labels = [i if t else -100 for i, t in zip(ids, trains, strict=True)]
    return {
        f"{prefix}input_ids": ids,
        f"{prefix}attention_mask": [1] * len(ids),
        f"{prefix}labels": labels,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("given", type=Path)
    parser.add_argument("found", type=Path)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    given = torch.load(args.given)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in given["types"]:
            dtype = getattr(torch, name)
            # TRL makes tensors of rewards and log-probs in the default type
            torch.set_default_dtype(dtype)
            utils._ChunkedLogProbFunction = PlainHead if dtype == torch.float64 else KERNEL
            setting = Setting(
                folder=given["folder"],
                states=given["states"],
                logps=given["logps"],
                dtype=dtype,
                scratch=scratch,
            )
            results[name] = {
                case.name: compute(case, setting) for case in CASES if args.only in case.name
            }
    versions = {
        "trl": trl.__version__,
        "transformers": transformers.__version__,
        "torch": str(torch.__version__),
    }
    torch.save({"found": results, "versions": versions}, args.found)


if __name__ == "__main__":
    main()
