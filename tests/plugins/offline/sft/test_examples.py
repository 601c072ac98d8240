"""Examples of supervised training: what is read, which tokens train, thoughts."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from quintain import Agent, Task
from quintain.errors import UsageError
from quintain.learning import TrainingSequence
from quintain.models.load import load_model
from quintain.models.tokenizer import HFTokenizer
from quintain.testing import rollout
from quintain.types.rollout import Termination, TerminationKind
from quintain.types.task import Message
from quintain_authoring import run_episode
from quintain_authoring.byte_tokenizer import ByteTokenizer
from quintain_offline.sft.sources import (
    Example,
    ExampleSource,
    Tokens,
    examined,
    example_of,
    mixed,
    rows_of,
    same_tokens,
)
from quintain_offline.sft.supervised import end_of_turn
from quintain_offline.sft.tuning import with_thoughts
from quintain_starter.architecture import build_tokenizer
from quintain_starter.warm_start import examples_of

from ....core.models.tiny import tiny_model
from ....core.rollouts.engines import ThoughtlessTokenizer
from .kit import PARROT, PLAIN, TASK, TOKENIZER, lines, said, scored, source_of, texts
from .parrot import Echo, Talk


def test_demonstrations_are_encoded_as_for_a_supervised_start() -> None:
    """The same ids and mask as the default model's warm start, the environment's system message
    included.
    """
    tokenizer = HFTokenizer(build_tokenizer())

    async def first_three() -> list[TrainingSequence]:
        examples = examples_of([Echo()], tokenizer)
        return [await anext(examples) for _ in range(3)]

    found = source_of(f"{PARROT}:Echo", count=3)
    assert found.kind == "demonstrations"
    assert found.environment == f"{PARROT}:Echo"
    for example, want in zip(found.examples, asyncio.run(first_three()), strict=True):
        (row,) = rows_of(example, tokenizer, end_of_turn(tokenizer))
        assert row.sequence().ids == want.ids
        assert row.sequence().mask == want.mask


def test_all_answers_of_a_conversation_train(tmp_path: Path) -> None:
    file = lines(tmp_path / "talk.jsonl", said("a", "b", "c", "d", "e"))
    rows = list(examined(source_of(file).examples, TOKENIZER, 999, Counter()))
    ((whole, trained),) = texts(rows)
    assert trained == "b<|im_end|>d<|im_end|>"
    assert whole == (
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
        "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\nd<|im_end|>"
    )


def test_a_template_that_drops_thoughts_gives_a_row_per_answer(tmp_path: Path) -> None:
    """Each answer trains once, in the context that the model will meet."""
    answer = {"role": "assistant", "content": "4", "reasoning_content": "two and two"}
    talk = {"messages": [*said("2+2?")["messages"], answer, *said("sure?", "yes")["messages"]]}
    tokenizer = ThoughtlessTokenizer()
    (example,) = source_of(lines(tmp_path / "talk.jsonl", talk)).examples
    first, second = texts(rows_of(example, tokenizer, end_of_turn(tokenizer)), tokenizer)
    assert first[1] == "<think>\ntwo and two\n</think>\n\n4<|im_end|>"
    assert second[1] == "yes<|im_end|>"
    assert "two and two" not in second[0]


def test_the_end_is_the_templates_and_not_the_tokenizers() -> None:
    """A tokenizer may call another token its end of sequence than the one that ends a turn."""
    assert TOKENIZER.decode([TOKENIZER.stop_ids[0]]) == "<|endoftext|>"
    assert TOKENIZER.decode([end_of_turn(TOKENIZER)]) == "<|im_end|>"
    assert PLAIN.decode([end_of_turn(PLAIN)]) == "<|endoftext|>"


def test_without_a_template_answers_are_paragraphs() -> None:
    example = Example(messages=(Message("user", "a"), Message("assistant", "b")), replies=(1,))
    sampled = Example(messages=(Message("user", "a"), Message("assistant", " b")), replies=(1,))
    for written in (example, sampled):
        assert texts(rows_of(written, PLAIN, end_of_turn(PLAIN)), PLAIN) == [
            ("User: a\n\nAssistant: b<|endoftext|>", " b<|endoftext|>")
        ]


def test_a_tokenizer_is_known_again_after_it_was_saved(tmp_path: Path) -> None:
    """By the hash in its name, whatever the folder is called."""
    tokenizer = HFTokenizer(build_tokenizer())
    tokenizer.hf.save_pretrained(tmp_path / "other-name")
    tiny_model(vocab=tokenizer.vocab_size).save_pretrained(tmp_path / "other-name")
    again = load_model(tmp_path / "other-name").tokenizer
    assert again.name != tokenizer.name
    assert same_tokens(again.name, tokenizer.name)
    assert not same_tokens(TOKENIZER.name, tokenizer.name)
    assert not same_tokens("bytes", "thoughtless")
    assert not same_tokens("my-tokenizer", "your-tokenizer")


def test_rows_keep_ids_and_mask() -> None:
    (row,) = rows_of(
        Example(messages=(Message("user", "é"), Message("assistant", "ü")), replies=(1,)),
        TOKENIZER,
        end_of_turn(TOKENIZER),
    )
    sequence = row.sequence()
    assert Tokens.of(sequence) == row
    assert len(sequence.logps) == len(sequence.versions) == len(sequence.ids)


def test_rollouts_are_taken_as_sampled_by_the_same_tokenizer() -> None:
    """The tokens of the transcript, all turns, nothing encoded again."""
    held = run_episode(Talk(), TASK, ["<think>\nhm\n</think>\n\n5", "4"])
    (want,) = held.transcripts[""].sequences()
    tokenizer = ByteTokenizer()
    (row,) = rows_of(example_of(held), tokenizer, end_of_turn(tokenizer))
    assert row.sequence().ids == want.ids
    assert row.sequence().mask == want.mask


def test_rollouts_of_another_tokenizer_are_encoded_again() -> None:
    held = run_episode(Talk(), TASK, ["<think>\nhm\n</think>\n\n5", "4"])
    ((whole, trained),) = texts(rows_of(example_of(held), TOKENIZER, end_of_turn(TOKENIZER)))
    assert trained == "<think>\nhm\n</think>\n\n5<|im_end|>4<|im_end|>"
    assert whole.startswith("<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n<think>")


class Forgets(Talk):
    """Answers again from a context without the first answer."""

    async def rollout(self, task: Task, agent: Agent) -> None:
        agent.user(task.prompt)
        await agent.turn()
        agent.rewrite(agent.messages[:-1])
        await agent.turn()


def test_a_rewritten_context_is_not_guessed_from_the_messages() -> None:
    """The record holds the messages of all contexts: what was sampled trains only as it was."""
    held = run_episode(Forgets(), TASK, ["5", "4"])
    example = example_of(held)

    assert held.metrics["rewrites"] == 1
    assert len(rows_of(example, ByteTokenizer(), 0)) == 2
    assert example.replies == ()


def test_answers_in_a_prompt_are_context() -> None:
    """The prompt shows an answer that equals the policy's own; only the policy's trains."""
    prompt = (Message("user", "1+1?"), Message("assistant", "4"), Message("user", "2+2?"))
    held = rollout(Task(prompt=prompt, answer="4"), "4")
    assert example_of(held).replies == (3,)


def test_what_is_not_imitated_is_counted(tmp_path: Path) -> None:
    short = scored("4")
    rollouts = [
        scored("4"),
        scored("4"),
        scored("5", 0.0),
        scored("4", 1 - 1e-12),
        scored("4", termination=Termination(kind=TerminationKind.TIMEOUT)),
        short.replace(
            turns=tuple(t.__class__(text="4", reply="4", finish="length") for t in short.turns)
        ),
        scored('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'),
        scored("9" * 300),
    ]
    found = source_of(lines(tmp_path / "r.jsonl", *(r.to_json() for r in rollouts)))
    assert found.left_out == {"below a reward of 1": 1, "failed": 1, "cut off by a limit": 1}
    left_out: Counter[str] = Counter()
    rows = list(examined(found.examples, TOKENIZER, 200, left_out, dedupe=True))
    assert len(rows) == 1
    assert dict(left_out) == {
        "copies": 2,
        "with tool calls, which train only with the tokens that were sampled": 1,
        "longer than the model's 200 tokens": 1,
    }
    assert len(source_of(tmp_path / "r.jsonl", min_reward=0.0, count=3).examples) == 3


@pytest.mark.parametrize("kind", ["messages", "rollouts", "parquet"])
@pytest.mark.parametrize(
    ("count", "expected"), [(2, {"after the first 2 (--examples)": 3}), (5, {}), (6, {})]
)
def test_records_after_the_last_example_are_counted(
    tmp_path: Path, kind: str, count: int, expected: dict[str, int]
) -> None:
    file = tmp_path / ("r.parquet" if kind == "parquet" else "r.jsonl")
    if kind == "parquet":
        column = [json.dumps(scored("4").to_json())] * 5
        pyarrow.parquet.write_table(pyarrow.table({"rollout": column}), file)
    else:
        record = said("a", "b") if kind == "messages" else scored("4").to_json()
        lines(file, *[record] * 5)
    found = source_of(file, count=count)

    assert len(found.examples) == min(count, 5)
    assert found.left_out == expected


def thoughtful(tmp_path: Path, count: int = 40) -> ExampleSource:
    answer = {"role": "assistant", "content": "4", "reasoning_content": "two and two"}
    return source_of(
        lines(tmp_path / "t.jsonl", *([{"messages": [*said("2+2?")["messages"], answer]}] * count))
    )


def test_the_mix_of_thought_and_none(tmp_path: Path) -> None:
    """Qwen3's flags and empty think block, exactly."""
    (example,) = thoughtful(tmp_path, 1).examples
    for think, want in (
        (True, ("2+2? /think", "<think>\ntwo and two\n</think>\n\n4")),
        (False, ("2+2? /no_think", "<think>\n\n</think>\n\n4")),
    ):
        assert tuple(m.content for m in mixed(example, think).messages) == want


def test_the_mix_is_drawn_by_the_seed(tmp_path: Path) -> None:
    source = thoughtful(tmp_path, 400)
    examples, thinking = with_thoughts(source, 0.25, 0)
    assert thinking is not None
    assert 60 <= thinking <= 140
    assert thinking == sum(e.thinks for e in examples)
    assert with_thoughts(source, 0.25, 0) == (examples, thinking)
    assert with_thoughts(source, 0.25, 1)[0] != examples
    assert with_thoughts(source, 0.0, 0)[1] == 0
    assert with_thoughts(source, 1.0, 0)[1] == 400
    assert with_thoughts(source, None, 0) == (list(source.examples), None)


def test_an_answer_without_thought_never_gets_one(tmp_path: Path) -> None:
    thinking = {"role": "assistant", "content": "<think>why</think>b"}
    source = source_of(
        lines(
            tmp_path / "m.jsonl", said("a", "b"), {"messages": [said("a")["messages"][0], thinking]}
        )
    )
    examples, count = with_thoughts(source, 1.0, 0)
    assert count == 1
    assert [e.messages[1].content for e in examples] == [
        "<think>\n\n</think>\n\nb",
        "<think>\nwhy\n</think>\n\nb",
    ]
    with pytest.raises(UsageError, match="no example of .* has one"):
        with_thoughts(source_of(lines(tmp_path / "n.jsonl", said("a", "b"))), 0.5, 0)
    with pytest.raises(UsageError, match="from 0 to 1"):
        with_thoughts(source, 1.5, 0)
