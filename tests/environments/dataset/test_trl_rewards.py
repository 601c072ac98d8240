"""Reward functions of TRL, as its package has them, on rows of `dataset`."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from studies.conformance.tokenizer_files import save_tokenizer

from quintain.recipe.plain_functions import of_function
from quintain_authoring import run_episode
from quintain_env_dataset import Dataset

from ...lanes import needs

pytestmark = needs("trl", "pip install trl")


@pytest.fixture
def rows(tmp_path: Path) -> str:
    """A file of conversations with solutions, as TRL's data sets have them."""
    path = tmp_path / "rows.jsonl"
    row = {"prompt": [{"role": "user", "content": "1/2 + 1/4?"}], "solution": r"$\frac{3}{4}$"}
    other = {"prompt": [{"role": "user", "content": "2 + 2?"}], "solution": "$4$"}
    path.write_text("".join(json.dumps(r) + "\n" for r in (row, row | {"solution": "$x$"}, other)))
    return str(path)


def test_accuracy_reward(rows: str) -> None:
    """Mathematics is compared by TRL; its column `solution` is the answer of the row."""
    from trl.rewards import accuracy_reward

    data = Dataset(path=rows).overridden(reward=of_function(accuracy_reward))
    tasks = {t.answer: t for split in ("train", "dev", "test") for t in data.tasks(split)}
    task = tasks[r"$\frac{3}{4}$"]
    replies = (r"It is \boxed{\frac{6}{8}}", r"\boxed{\frac{1}{4}}")
    assert [run_episode(data, task, r).outcome.total for r in replies] == [1.0, 0.0]


def test_think_format_reward(rows: str) -> None:
    """A function of the completion alone, with the messages that it expects."""
    from trl.rewards import think_format_reward

    data = Dataset(path=rows).overridden(reward=of_function(think_format_reward))
    task = next(iter(data.tasks("train")))
    assert run_episode(data, task, "no thought").outcome.total == 0.0


def test_several_are_added(rows: str) -> None:
    """Weights are an expression, as `reward_weights` of TRL."""
    from trl.rewards import accuracy_reward, think_format_reward

    both = 2.0 * of_function(accuracy_reward) + 0.5 * of_function(think_format_reward)
    data = Dataset(path=rows).overridden(reward=both)
    tasks = [t for split in ("train", "dev", "test") for t in data.tasks(split)]
    (task,) = [t for t in tasks if t.answer == "$4$"]
    assert run_episode(data, task, r"\boxed{4}").outcome.total == 2.0


TEXTS = (
    "<think>two and three</think>\n5",
    "two and three</think>\n5",
    "<think>5",
    "5",
    "",
    " 5\n",
    'I add. <tool_call>{"name": "add", "arguments": {}}</tool_call>',
    r"<think>\boxed{6}</think>\boxed{5}",
)
COLUMNS = {"answer": 5, "solution": "$5$", "points": [1, 2], "note": None}


class Sampler:
    """Says `TEXTS`, in the place of vLLM."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def sync_weights(self) -> None:
        """Do nothing: texts have no weights."""

    def generate(self, prompts: list[list[int]], **settings: Any) -> tuple[Any, ...]:
        ids = [[*self.tokenizer.encode(t), self.tokenizer.eos_token_id] for t in TEXTS]
        return prompts, ids, [[[-1.0]] * len(turn) for turn in ids], None


def pass_to_trl(prompt: Any, function: Any, folder: Path) -> None:
    """Let TRL's trainer sample a batch of one prompt, and score it by *function*."""
    import datasets
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    template = files("trl").joinpath("chat_templates/qwen3.jinja").read_text(encoding="utf-8")
    tokenizer = AutoTokenizer.from_pretrained(save_tokenizer(folder / "tokenizer", template))
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    row = {"prompt": prompt, **COLUMNS}
    trainer = GRPOTrainer(
        model=Qwen3ForCausalLM(Qwen3Config(vocab_size=512, **size, **heads)),
        reward_funcs=function,
        args=GRPOConfig(
            output_dir=str(folder / "out"), use_cpu=True, bf16=False, report_to=[],
            per_device_train_batch_size=len(TEXTS), num_generations=len(TEXTS),
        ),
        train_dataset=datasets.Dataset.from_list([row]),
        processing_class=tokenizer,
    )  # fmt: skip
    trainer.use_vllm, trainer.vllm_mode, trainer._last_loaded_step = True, "server", 0
    trainer.vllm_generation = Sampler(tokenizer)
    trainer.model.train()
    trainer._generate_and_score_completions([dict(row) for _ in TEXTS])


def keeping(kept: list[Any]) -> Any:
    """Return a function of TRL that keeps what it gets, a tuple for each row."""

    def score(
        prompts: Any, completions: Any, answer: Any, solution: Any, points: Any, note: Any,
        **others: Any,
    ) -> list[float]:  # fmt: skip
        rows = zip(prompts, completions, answer, solution, points, note, strict=True)
        kept.extend(rows)
        return [0.0 for _ in prompts]

    return score


@pytest.mark.parametrize(
    "prompt", ["2+3?", [{"role": "user", "content": "2+3?"}]], ids=["text", "conversation"]
)
@pytest.mark.filterwarnings("ignore")
def test_a_function_gets_what_the_trainer_passes(prompt: Any, tmp_path: Path) -> None:
    """One batch, scored by TRL's trainer and here, one call for each row."""
    of_trl: list[Any] = []
    of_ours: list[Any] = []
    pass_to_trl(prompt, keeping(of_trl), tmp_path)
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"prompt": prompt, **COLUMNS}) + "\n")
    data = Dataset(path=str(path)).overridden(reward=of_function(keeping(of_ours)))
    (task,) = [t for split in ("train", "dev", "test") for t in data.tasks(split)]
    for text in TEXTS:
        run_episode(data, task, text)
    assert of_ours == of_trl
