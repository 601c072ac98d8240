"""A conversation that is rendered while it grows has the text, the tokens and the sources of one
that is rendered as a whole, under the templates of all families.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain import Message, Sampled, ToolCall, ToolSpec
from quintain.errors import UsageError
from quintain.models import HFTokenizer
from quintain.models import template_loops as loops
from quintain.rollouts import Conversation

from ...lanes import examples, mostly_slow
from ...plugins.tools.formats.chat_templates import FAMILIES
from ...plugins.tools.formats.talk import component, tokenizer_with
from ...plugins.tools.formats.test_conversations import LOOK, NOW, spoken_by, turns_of

READ_ALL = {"gpt-oss"}
"""Families whose template looks at all later messages with each call, so that all is rendered."""


class Whole:
    """A tokenizer whose conversations are rendered as a whole with every turn."""

    def __init__(self, tokenizer: HFTokenizer) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def renderer(self) -> Any:
        return lambda messages, tools, known: self._tokenizer.render(messages, tools)


def prompt(conversation: Conversation) -> list[int] | str:
    try:
        return list(conversation.prompt_ids())
    except UsageError as e:  # the template refuses the messages
        return str(e)


def steps_of(tokenizer: HFTokenizer, form: Any) -> st.SearchStrategy[list[tuple[str, Any]]]:
    """What happens in a conversation, in order."""
    said = spoken_by(tokenizer)
    call = ToolCall(name="look", arguments={"word": "w", "n": 1, "on": True}, id="call00001")
    messages = (
        said.map(lambda text: Message("user", text))
        | said.map(lambda text: Message("tool", text, call_id="call00001", name="look"))
        | said.map(lambda text: Message("assistant", text))
        | said.map(lambda text: Message("assistant", text, reasoning="hm"))
        | said.map(lambda text: Message("assistant", text, calls=(call,)))
        | said.map(lambda text: Message("system", text))
    )
    step = (
        st.tuples(st.just("add"), messages)
        | st.tuples(st.just("turn"), turns_of(tokenizer, form))
        | st.tuples(st.just("tools"), st.sampled_from([(), (LOOK,), (LOOK, NOW)]))
        | st.tuples(st.just("rewrite"), st.integers(0, 4))
        | st.tuples(st.just("fork"), st.none())
    )
    return st.lists(step, min_size=2, max_size=12)


def carried_out(
    tokenizer: Any, tools: Sequence[ToolSpec], steps: Sequence[tuple[str, Any]]
) -> list[Any]:
    """The prompts of a conversation, and its record."""
    talked, turns, prompts = Conversation(tokenizer, tools), 0, list[Any]()
    messages = [Message("user", "begin")]
    talked.add(*messages)
    prompts.append(prompt(talked))
    for kind, value in steps:
        if kind == "add":
            talked.add(value)
            messages.append(value)
        elif kind == "turn" and not isinstance(prompts[-1], str):
            end = value[-1] if value[-1] in tokenizer.stop_ids else None
            turn = Sampled(
                ids=tuple(value),
                logps=(-1.0,) * len(value),
                versions=(0,) * len(value),
                finish="length" if end is None else "stop",
                stop=end,
            )
            messages.append(Message("assistant", talked.add_sampled(turn)))
            turns += 1
        elif kind == "tools":
            talked.tools = value
        elif kind == "rewrite":
            messages = messages[:1] + messages[1 + value :]
            talked.rewrite(messages)
        elif kind == "fork" and turns:
            talked = talked.fork(turns)
            messages = list(talked.messages)
        prompts.append(prompt(talked))
    return [*prompts, talked.transcript("policy", 1.0)]


@pytest.mark.keeps("Qwen3")
@pytest.mark.parametrize(
    "name",
    mostly_slow(
        FAMILIES,
        ["ChatML", "DeepSeek-R1", "Gemma 3", "Llama 3.1", "Mistral", "Qwen3", "gpt-oss"],
    ),
)
@given(data=st.data())
@examples(25)
def test_a_growing_conversation_has_the_tokens_of_a_whole_one(
    name: str, data: st.DataObject
) -> None:
    """Sampled turns that another tokenisation would merge otherwise, results of tools that spell
    control tokens, rewritten histories, forks, other tools, refused messages.
    """
    tokenizer = tokenizer_with(name)
    steps = data.draw(steps_of(tokenizer, component(FAMILIES[name].form)))
    tools = data.draw(st.sampled_from([(), (LOOK, NOW)]))
    assert carried_out(tokenizer, tools, steps) == carried_out(Whole(tokenizer), tools, steps)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_turn_renders_what_it_adds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While tools answer, the template runs over the new messages alone and the last one before
    them; a family whose calls and results stand in one turn repeats that turn.
    """
    tokenizer = tokenizer_with(name)
    seen: list[int] = []
    given: list[Message] = [Message("user", "begin")]
    renderer, known = tokenizer.renderer(), ""

    class Counted(loops._Pass):
        def __init__(self, run: Any, start: int, index0: int) -> None:
            seen.append(index0)
            super().__init__(run, start, index0)

    monkeypatch.setattr(loops, "_Pass", Counted)
    passes = []
    for i in range(12):
        seen.clear()
        text = renderer(given, (LOOK,), known)
        assert text == tokenizer.render(given, (LOOK,))
        passes.append(len(seen))
        form = component(FAMILIES[name].form)
        said = form.render_calls([ToolCall(name="look", arguments={"word": str(i)})], [LOOK])
        known = text + said
        given += [
            Message("assistant", said),
            Message("tool", "found", call_id=f"call-{i}", name="look"),
        ]
    assert (passes[-1] > 8) == (name in READ_ALL), passes
