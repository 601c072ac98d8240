"""`model.history = "append"`: conversations that stay one branch under templates that rewrite
earlier turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from quintain import Message, Sampled, ToolCall, ToolSpec
from quintain.errors import UsageError
from quintain.models import HFTokenizer
from quintain.rollouts import Conversation
from quintain.testing import isolated_plugins
from quintain.types.transcript import TokenSource, Transcript
from quintain_tools.formats import tool_format
from quintain_tools.formats.adapter import PROBE

from .chat_templates import FAMILIES, wear

ENDS_OF_CALLS = {"gpt-oss": "<|call|>", "GLM-4.5": "<|observation|>"}
REWRITING = [name for name, family in FAMILIES.items() if "dialogue" in family.rewrites]
THREE_CALLS = 3


def tokenizer_with(name: str, history: str) -> HFTokenizer:
    """The tokenizer of a family with all of its stops."""
    hf, family = wear(FAMILIES[name]), FAMILIES[name]
    stops = {*family.stops, *([ENDS_OF_CALLS[name]] if name in ENDS_OF_CALLS else [])}
    tokenizer = HFTokenizer(hf, stop_ids=[hf.convert_tokens_to_ids(t) for t in sorted(stops)])
    tokenizer.use_history(history)
    return tokenizer


class Talk:
    """A conversation whose turns are sampled as told, token by token."""

    def __init__(self, tokenizer: HFTokenizer, tools: Sequence[ToolSpec] = ()) -> None:
        self.tokenizer, self.conversation = tokenizer, Conversation(tokenizer, tools)
        # context and token of all that was sampled
        self.trained: list[tuple[tuple[int, ...], int]] = []

    def turn(self, text: str, end: str = "") -> list[int]:
        """Sample *text* and the token *end*, or be cut off; the prompt."""
        prompt = list(self.conversation.prompt_ids())
        # as no encoding of the text gives them
        ids = [i for c in text for i in self.tokenizer.encode(c)]
        stop = self.tokenizer.encode(end)
        ids += stop
        zeros = (0,) * len(ids)
        about: Any = {"finish": "stop", "stop": stop[0]} if stop else {"finish": "length"}
        self.conversation.add_sampled(
            Sampled(ids=tuple(ids), logps=(-1.0,) * len(ids), versions=zeros, **about)
        )
        self.trained += [((*prompt, *ids[:i]), token) for i, token in enumerate(ids)]
        return prompt

    def transcript(self) -> Transcript:
        """The record, after a check that each sampled token trains once, in the context that it was
        sampled in.
        """
        transcript = self.conversation.transcript("p", 1.0)
        rows = transcript.sequences()
        trained = [(r.ids[:i], r.ids[i]) for r in rows for i, m in enumerate(r.mask) if m]
        assert sorted(self.trained) == sorted(trained)
        return transcript


def called(name: str, word: str) -> tuple[str, Message]:
    """A call as the model writes it, and its result."""
    call = ToolCall(name=PROBE.name, arguments={"word": word}, id="call00000")
    text = tool_format(FAMILIES[name].form).render_calls([call], [PROBE])
    end = ENDS_OF_CALLS.get(name, "")
    text = text.removesuffix(end) if end else text
    return text, Message("tool", f"{word} is in the list, twice", call_id=call.id, name=call.name)


def thought(name: str, text: str) -> str:
    """A thought as the policy of a family writes it; empty where it writes none."""
    if name == "gpt-oss":
        return f"<|channel|>analysis<|message|>{text}<|end|><|start|>assistant"
    opened = "" if FAMILIES[name].opens else "<think>\n"
    return f"{opened}{text}\n</think>\n\n" if "</think>" in FAMILIES[name].tags else ""


def reply(name: str, text: str) -> str:
    return f"<|channel|>final<|message|>{text}" if name == "gpt-oss" else text


def dialogue(name: str, history: str, calls: int = THREE_CALLS) -> Talk:
    """A question, *calls* calls with a thought before each, the answer, and one more question."""
    talk = Talk(tokenizer_with(name, history), [PROBE])
    system = "You look words up for a reader who has no dictionary. Be brief, and never guess."
    talk.conversation.add(Message("system", system)) if FAMILIES[name].system == "own" else None
    talk.conversation.add(
        Message(
            "user", "Which of the words three, seven and eleven are in the list, and how often?"
        )
    )
    for i in range(calls):
        text, result = called(name, ("three", "seven", "eleven")[i % 3])
        talk.turn(
            thought(name, "I do not know this word yet, so I look it up first.") + text,
            end_of(name, call=True),
        )
        talk.conversation.add(result)
    talk.turn(
        thought(name, "All of them are known now.") + reply(name, "All three, twice each."),
        end_of(name),
    )
    talk.conversation.add(Message("user", "Thank you. And nine?"))
    talk.turn(reply(name, "I do not know."), end_of(name))
    return talk


def end_of(name: str, *, call: bool = False) -> str:
    return ENDS_OF_CALLS.get(name, FAMILIES[name].end) if call else FAMILIES[name].end


@pytest.mark.keeps("Qwen3", "gpt-oss", "Llama 3.1")
@pytest.mark.parametrize("name", FAMILIES)
def test_a_conversation_stays_one_branch_and_begins_as_the_template_has_it(name: str) -> None:
    """The first prompt is the template's byte for byte; every later message is in the one branch,
    once.
    """
    talks = {history: dialogue(name, history) for history in ("template", "append")}
    transcripts = {history: talk.transcript() for history, talk in talks.items()}
    first = {history: len(talk.trained[0][0]) for history, talk in talks.items()}
    path = transcripts["append"].path(0)
    text = talks["append"].tokenizer.decode(path.ids)

    assert len(transcripts["append"].branches) == 1
    assert talks["template"].trained[0][0] == talks["append"].trained[0][0]
    assert first["template"] == first["append"]
    for word in ("three", "seven", "eleven"):
        assert text.count(f"{word} is in the list, twice") == 1
    assert text.count("And nine?") == 1
    results = [i for i, s in zip(path.ids, path.sources, strict=True) if s == TokenSource.TOOL]
    assert "twice" in talks["append"].tokenizer.decode(results)


@pytest.mark.keeps("Qwen2.5", "DeepSeek-V3", "SmolLM3")
@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if not family.rewrites])
def test_where_nothing_is_rewritten_both_histories_are_equal(name: str) -> None:
    transcripts = [dialogue(name, history).transcript() for history in ("template", "append")]
    assert transcripts[0].path(0) == transcripts[1].path(0)


@pytest.mark.parametrize(
    "name, branches, factor", [("gpt-oss", 5, 2.5), ("Nemotron 3", 5, 3.0), ("GLM-4.5", 2, 1.5)]
)
def test_tokens_to_train_on(name: str, branches: int, factor: float) -> None:
    """Three calls with thoughts: each rewriting of the template is one more sequence."""
    rows = {
        history: dialogue(name, history).transcript().sequences()
        for history in ("template", "append")
    }
    tokens = {
        history: sum(len(row.ids) for row in sequences) for history, sequences in rows.items()
    }

    assert {"template": branches, "append": 1} == {
        history: len(sequences) for history, sequences in rows.items()
    }
    assert tokens["template"] > factor * tokens["append"]


@pytest.mark.parametrize(
    "name, between",
    [
        ("gpt-oss", "<|return|><|start|>user<|message|>next<|end|><|start|>assistant"),
        (
            "Nemotron 3",
            "<|im_end|>\n<|im_start|>user\nnext<|im_end|>\n<|im_start|>assistant\n<think>\n",
        ),
        ("GLM-4.5", "<|user|>\nnext<|assistant|>"),
        ("Qwen3", "<|im_end|>\n<|im_start|>user\nnext<|im_end|>\n<|im_start|>assistant\n"),
    ],
)
@pytest.mark.parametrize("cut", [False, True])
def test_what_follows_a_turn(name: str, between: str, cut: bool) -> None:
    """The sampled end of the turn stands for the template's; after a turn that was cut off, the
    template's follows.
    """
    talk = Talk(tokenizer_with(name, "append"))
    talk.conversation.add(Message("user", "first"))
    talk.turn("fine", "" if cut else FAMILIES[name].end)
    talk.conversation.add(Message("user", "next"))
    talk.turn("well", FAMILIES[name].end)
    text = talk.tokenizer.decode(talk.transcript().path(0).ids)
    expected = between.replace("<|return|>", "<|end|>") if cut else between

    assert f"fine{expected}well" in text


def test_a_turn_that_is_sampled_again_and_a_fork_stay_in_their_branch() -> None:
    """As an engine failure and the gateway's forks have it."""
    talk = Talk(tokenizer_with("gpt-oss", "append"))
    talk.conversation.add(Message("user", "first"))
    talk.turn("fine", "<|return|>")
    talk.conversation.add(Message("user", "next"))
    assert talk.conversation.prompt_ids() == talk.conversation.prompt_ids()
    talk.turn("well", "<|return|>")
    fork = talk.conversation.fork(1)
    fork.add(Message("user", "else"))
    ids = fork.prompt_ids()

    assert 1 == len(talk.transcript().branches) == len(fork.transcript("p", 1.0).branches)
    assert (
        "fine<|return|><|start|>user<|message|>else<|end|><|start|>assistant"
        in talk.tokenizer.decode(ids)
    )


def test_tools_that_come_later_begin_a_branch() -> None:
    """They stand in the first message, which no suffix changes."""
    talk = Talk(tokenizer_with("Nemotron 3", "append"))
    talk.conversation.add(Message("user", "first"))
    talk.turn("fine", "<|im_end|>")
    talk.conversation.tools = (PROBE,)
    talk.conversation.add(Message("user", "next"))
    prompt = talk.turn("well", "<|im_end|>")

    assert len(talk.transcript().branches) == 2
    assert PROBE.name in talk.tokenizer.decode(prompt)


def test_control_tokens_of_later_messages_stay_text() -> None:
    """Of a user and of a tool, as in a rendering of the template."""
    talk = Talk(tokenizer_with("Nemotron 3", "append"), [PROBE])
    talk.conversation.add(Message("user", "first"))
    text, result = called("Nemotron 3", "three")
    talk.turn(text, "<|im_end|>")
    talk.conversation.add(Message("tool", "<|im_end|> x", call_id=result.call_id, name=result.name))
    prompt = talk.turn("well", "<|im_end|>")
    marks = talk.tokenizer.encode("<|im_end|>")

    assert (
        sum(i in marks for i in prompt)
        - talk.tokenizer.decode(prompt[: len(talk.trained[0][0])]).count("<|im_end|>")
        == 2
    )
    assert "<|im_end|> x" in talk.tokenizer.decode(prompt)


def test_the_setting_is_saved_with_the_tokenizer(tmp_path: Path) -> None:
    """So that evaluation and chat go on in the same way; another way of going on is another
    tokenizer.
    """
    tokenizer = HFTokenizer(wear(FAMILIES["gpt-oss"]))
    plain = tokenizer.name
    tokenizer.use_history("append")
    tokenizer.hf.save_pretrained(tmp_path)
    saved = HFTokenizer(AutoTokenizer.from_pretrained(tmp_path))
    assert saved.appends is True
    assert saved.name.rpartition("-")[2] == tokenizer.name.rpartition("-")[2]
    assert plain.rpartition("-")[2] != tokenizer.name.rpartition("-")[2]
    saved.use_history("auto")
    assert saved.appends
    saved.use_history("template")
    assert not saved.appends


def test_without_the_formats_nothing_can_be_appended() -> None:
    with isolated_plugins(), pytest.raises(UsageError, match="pip install quintain-tools"):
        HFTokenizer(wear(FAMILIES["gpt-oss"])).use_history("append")
