"""TRL 1.16.0's `GRPOTrainer` as a capture layer for `python -m studies.conformance`.

The trainer owns the loop of the agent, so that only cases of one conversation with tools can be
played: a prompt, calls, results that are appended. What is measured is what
`_generate_and_score_completions` hands to the loss: ids, masks (completion and tool mask) and the
sampler's log-probs. The engine stands where vLLM's does (``trainer.vllm_generation``). The chat
template is TRL's copy of Qwen3's. Each prompt is sampled twice, a group of two. From the root of the
repository, in an environment of its own (`docs/conformance.md`)::

    python -m studies.conformance --layer studies.benchmarks.peers.conformance_trl:TRLLayer
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from functools import cached_property
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from quintain import Message, Sampling, ToolCall
from studies.conformance import Capture, CaptureCase, TrainingSequence, TruthEngine
from studies.conformance.client import Exchange
from studies.conformance.tokenizer_files import save_tokenizer
from studies.conformance.truth import Received

from .conformance_played import PLAYED, Played

FOLDER = Path(tempfile.mkdtemp(prefix="conformance-trl-"))
LONGEST = 60_000
"""Tokens of a completion, where the case has no budget."""


def no_reward(completions: list[Any], **fields: Any) -> list[float]:
    return [0.0] * len(completions)


class Generation:
    """The engine in the place of vLLM's; *sample* runs in the event loop of the case."""

    def __init__(self, truth: TruthEngine, temperature: float, longest: int) -> None:
        self.truth = truth
        self.sampling = Sampling(temperature=temperature, max_tokens=longest)
        self.loop = asyncio.get_running_loop()

    def sync_weights(self) -> None:
        """Do nothing: the script has no weights."""

    def generate(self, prompts: list[list[int]], **settings: Any) -> tuple[Any, ...]:
        """Return ids and log-probs, one turn for each prompt."""
        calls = (self.truth.sample(ids, self.sampling) for ids in prompts)
        turns = [asyncio.run_coroutine_threadsafe(one, self.loop).result() for one in calls]
        logps = [[[logp] for logp in turn.logps] for turn in turns]
        return prompts, [list(turn.ids) for turn in turns], logps, None


class TRLLayer:
    """The loop of TRL's trainer."""

    name = "TRL"
    version = version("trl")
    plays = frozenset(PLAYED)
    dialects = frozenset({"chat"})
    features = frozenset({"n", "temperature", "budget"})
    columns = frozenset({"ids", "mask", "logps", "replies", "prompts"})

    async def capture(self, truth: TruthEngine, agent: Any, case: CaptureCase) -> Capture:
        played, longest = PLAYED[case.name], case.budget or LONGEST
        trainer = self.trainer(played, longest)
        trainer.vllm_generation = Generation(truth, case.temperature, longest)
        read: list[Exchange] = []
        generate = trainer._generate

        def generated(prompts: list[Any]) -> Any:
            output = generate(prompts)
            for prompt, completion in zip(prompts, output[3], strict=True):
                read.extend(exchanges_of(prompt, completion))
            return output

        trainer._generate = generated
        rows = [{"prompt": list(played.messages)} for _ in range(2)]
        output = await asyncio.to_thread(trainer._generate_and_score_completions, rows)
        return Capture(sequences=sequences_of(output), read=read)

    def trainer(self, played: Played, longest: int) -> GRPOTrainer:
        """Return a trainer with a model of random weights and the tools of the cases."""

        def add(x: float, y: float) -> str:
            """Add two numbers.

            Args:
                x: The first.
                y: The second.
            """
            return played.looked if "<|" in played.looked else str(x + y)

        def look(what: str, deep: str = "") -> str:
            """Look something up.

            Args:
                what: The subject.
                deep: The rest.
            """
            return played.looked

        tools: list[Callable[..., Any]] | None = [add, look] if played.tools else None
        trainer = GRPOTrainer(
            model=Qwen3ForCausalLM(self.config),
            reward_funcs=no_reward,
            args=GRPOConfig(
                output_dir=str(FOLDER / "output"),
                use_cpu=True,
                bf16=False,
                per_device_train_batch_size=2,
                num_generations=2,
                max_completion_length=longest,
                report_to=[],
            ),
            train_dataset=Dataset.from_list([{"prompt": list(played.messages)}]),
            processing_class=self.tokenizer,
            tools=tools,
        )
        trainer.use_vllm, trainer.vllm_mode, trainer._last_loaded_step = True, "server", 0
        trainer.model.train()
        return trainer

    @cached_property
    def config(self) -> Qwen3Config:
        return Qwen3Config(
            vocab_size=512,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            max_position_embeddings=65536,
        )

    @property
    def tokenizer(self) -> Any:
        template = files("trl").joinpath("chat_templates/qwen3.jinja").read_text(encoding="utf-8")
        return AutoTokenizer.from_pretrained(save_tokenizer(FOLDER / "tokenizer", template))


def exchanges_of(prompt: list[Any], completion: list[Any]) -> Iterator[Exchange]:
    """Yield each parsed turn with the messages before it; why it stopped is not said."""
    for at, message in enumerate(completion):
        if message["role"] == "assistant":
            said = message_of(message)
            reply = Received(text=said.content.strip(), calls=said.calls, stop="")
            yield Exchange(tuple(map(message_of, [*prompt, *completion[:at]])), reply)


def message_of(data: dict[str, Any]) -> Message:
    functions = [c["function"] for c in data.get("tool_calls") or ()]
    calls = tuple(ToolCall(name=f["name"], arguments=f["arguments"]) for f in functions)
    return Message(data["role"], data.get("content") or "", calls=calls)


def sequences_of(output: dict[str, Any]) -> list[TrainingSequence]:
    """Return the rows of a batch without padding: what the loss is computed on."""
    sequences = []
    trained = output["completion_mask"] * output.get("tool_mask", 1)
    for row in range(len(output["prompt_ids"])):
        prompt = output["prompt_ids"][row][output["prompt_mask"][row].bool()].tolist()
        kept = output["completion_mask"][row].bool()
        completion = output["completion_ids"][row][kept].tolist()
        logps = output["sampling_per_token_logps"][row][kept].double().tolist()
        mask = trained[row][kept].bool().tolist()
        sequences.append(
            TrainingSequence(
                ids=(*prompt, *completion),
                mask=(*(False,) * len(prompt), *mask),
                logps=(*(0.0,) * len(prompt), *logps),
                versions=(),
            )
        )
    return sequences
